"""The tree is the architecture: who may import whom, and how light the front door is."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import rollwright

SOURCE = Path(rollwright.__file__).parent

# A room may import the rooms listed here and nothing else of ours.
_LOW = {"wire", "telemetry"}
_MODELS = _LOW | {"renderers", "dialects", "runtimes"}
_ROLLOUT = _MODELS | {"engines", "traces", "tasks", "harnesses", "intercept"}
ARROWS = {
    "wire": set(),
    "telemetry": {"wire"},
    "renderers": _LOW,
    "dialects": _LOW,
    "runtimes": _LOW,
    "engines": _MODELS - {"runtimes"},
    "traces": _LOW | {"renderers"},
    "tasks": _LOW | {"runtimes", "traces"},
    "harnesses": _MODELS | {"engines", "traces", "tasks"},
    "intercept": _MODELS | {"engines", "traces", "tasks", "harnesses"},
    "rollouts": _ROLLOUT,
    "serve": _ROLLOUT | {"rollouts"},
    "orchestrator": _ROLLOUT | {"rollouts", "serve"},
    "reference": _ROLLOUT | {"rollouts", "orchestrator"},
    "view": _ROLLOUT | {"rollouts", "orchestrator"},
    "cli": _ROLLOUT | {"rollouts", "serve", "orchestrator", "reference", "view"},
}
ROOMS = sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.glob("**/*.py")))


def imported_rooms(room: str) -> set[str]:
    found = set()
    for path in (SOURCE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                depth = len(path.relative_to(SOURCE / room).parts)
                assert node.level <= depth, f"{path} reaches into another room by a relative import"
            found |= {name.split(".")[1] for name in names if name.startswith("rollwright.")}
    return found - {room, "__version__"}


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_point_upwards(room):
    assert imported_rooms(room) <= ARROWS[room]


def test_a_room_is_one_concept():
    """No module of over 400 lines, no room of over about 1,500."""
    sizes = {path: path.read_text().count("\n") for path in SOURCE.rglob("*.py")}
    assert {str(path.relative_to(SOURCE)): size for path, size in sizes.items() if size > 400} == {}


def python(code: str) -> dict:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(run.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc, which is not here")
def test_the_front_door_is_light():
    seen = python(
        "import sys, time, json\n"
        "before = set(sys.modules); began = time.process_time()\n"
        "import rollwright\n"
        "spent = time.process_time() - began\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "peak_mb = int(status['VmHWM'].split()[0]) / 1024\n"
        "print(json.dumps({'cpu_s': spent, 'peak_mb': peak_mb, 'modules': sorted(set(sys.modules) - before)}))"
    )
    assert seen["cpu_s"] < 0.3
    assert seen["peak_mb"] < 60
    heads = {name.split(".")[0] for name in seen["modules"]}
    assert not heads & EXTRAS


EXTRAS = {
    "xllamacpp", "datasets", "pyarrow", "wandb", "opentelemetry", "ray", "prime_sandboxes", "modal", "mcp",
    "torch", "transformers", "openai", "anthropic", "playwright",
}  # fmt: skip


def test_no_room_loads_an_extra_by_itself():
    names = ", ".join(f"rollwright.{room}" for room in ROOMS)
    seen = python(
        f"import sys, json\nimport {names}\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    )
    assert not set(seen) & EXTRAS


def test_no_pickle_in_the_house():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {name.split(".")[0] for name in names} & {"pickle", "dill", "cloudpickle", "marshal"}, path


def test_no_full_garbage_collection_in_the_house():
    """Law 15: a full collection stalls the loop for seconds once the heap is large."""
    scripts = SOURCE / "runtimes" / "warm" / "inside"  # Runs in the process of a script, where there is no loop.
    for path in SOURCE.rglob("*.py"):
        calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert "gc.collect" not in calls or path.is_relative_to(scripts), path
