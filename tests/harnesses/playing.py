"""A task in two steps, the model that plays it with whatever tools an agent offers, and rollouts of it."""

import contextlib
import json

from rollwright.engines.function import FunctionEngine
from rollwright.harnesses import harness_config, make_harness
from rollwright.rollouts import Environment
from rollwright.runtimes import runtime_config
from rollwright.tasks import Task, Taskset, reward
from rollwright.wire import ToolCall, assistant

PROMPT = "Write 42 into answer.txt, then read it back."
LAST = "The file holds 42."
TITLE = "A title"
WRITE, READ = "echo 42 > answer.txt", "cat answer.txt"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_PATH = "/workspace/answer.txt"

# By the names of the tools that an agent offers: the calls that solve the task, one after the other.
PLAYS = {
    "Write": [("Write", {"file_path": _PATH, "content": "42\n"}), ("Bash", {"command": READ, "description": "work"})],
    "write": [("write", {"filePath": _PATH, "content": "42\n"}), ("bash", {"command": READ, "description": "work"})],
    "exec_command": [("exec_command", {"cmd": WRITE}), ("exec_command", {"cmd": READ})],
    "bash": [("bash", {"command": WRITE}), ("bash", {"command": READ})],
}
OURS = [PROMPT, LAST, TITLE, WRITE, READ, SUBMIT, "Step 0.", "Step 1.", "Step 2.", "42", "work", "answer.txt"]


def play(call):
    """The next step. A call without tools is a side request, such as the title of a session."""
    offered = {tool.name for tool in call.tools}
    steps = next((steps for name, steps in PLAYS.items() if name in offered), None)
    if steps is None:
        return assistant(TITLE)
    if any("COMPLETE_TASK" in message.text for message in call.messages):
        steps = [*steps, ("bash", {"command": SUBMIT})]
    done = sum(bool(message.tool_calls) for message in call.messages)
    if done == len(steps):
        return assistant(LAST)
    name, arguments = steps[done]
    return assistant(f"Step {done}.", ToolCall(f"call_{done}", name, json.dumps(arguments)))


class Waiting(FunctionEngine):
    """A model that first waits for something; `wait` is called with each call."""

    def __init__(self, wait, answer=play):
        super().__init__(answer)
        self._wait = wait

    async def complete(self, call):
        await self._wait(call)
        return await super().complete(call)


class Answer(Task, frozen=True):
    @reward
    async def right(self, runtime) -> bool:
        return (await runtime.read("answer.txt")).strip() == b"42"


class Nothing(Taskset, frozen=True):
    def tasks(self):
        return []


@contextlib.asynccontextmanager
async def serving(
    kind, answer=play, *, runtime="subprocess", limits=None, settings=None, engine=None, return_tokens=False
):
    """Rollouts by one harness, with a function for a model."""
    harness = make_harness(harness_config(kind, settings))
    environment = Environment(Nothing(), harness=harness, runtime=runtime_config(runtime, {}), limits=limits)
    engine = engine or FunctionEngine(answer)
    async with environment.serving(engine, "scripted", return_tokens=return_tokens) as open_:
        yield open_


async def rolled_out(kind, answer=play, *, task=None, **options):
    async with serving(kind, answer, **options) as open_:
        return await open_.run(task or Answer(id="answer", prompt=PROMPT))


def branches(trace):
    """Each conversation from its first message to a last one, as roles and what was said or done."""
    parents = {node.parent for node in trace.nodes}
    leaves = [index for index in range(len(trace.nodes)) if index not in parents]
    return [[_told(trace.nodes[index].message) for index in _path(trace, leaf)] for leaf in leaves]


def _path(trace, node):
    found = []
    while node >= 0:
        found.append(node)
        node = trace.nodes[node].parent
    return reversed(found)


def _told(message):
    calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    results = ["".join(part.text for part in result.content) for result in message.parts if hasattr(result, "call_id")]
    return message.role, calls or results or message.text
