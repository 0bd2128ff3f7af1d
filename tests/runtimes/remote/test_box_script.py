"""The script inside of a box, run by the shells of this host: what goes in comes out, whatever it holds."""

import base64
import secrets
import shutil
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.runtimes.contract import Ending
from rollwright.runtimes.remote.commands import BOX_SCRIPT, parse_report
from rollwright.runtimes.remote.process import _ESCAPES

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
words = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"], exclude_characters="\x1e"), max_size=20)


@pytest.fixture(params=SHELLS, scope="module")
def box(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("box")
    # Of its own for every shell: a box hunts by its token over the whole machine, and tests run side by side.
    token = secrets.token_hex(6)
    numbers = iter(range(1, 1_000_000))

    def words_of(operation, *words):
        return [request.param, str(BOX_SCRIPT), str(root), operation, *words]

    def call(operation, *words, env=None, stdin=b""):
        done = subprocess.run(
            words_of(operation, *words),
            input=stdin,
            capture_output=True,
            timeout=60,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", **(env or {})},
        )
        return done

    def run(argv, *, stdin=b"", env=None, limit=1000, seconds="20", number=None):
        number = str(next(numbers)) if number is None else number
        given = {f"RWE_{name}": value for name, value in (env or {}).items()}
        if stdin:
            given["RW_STDIN"] = base64.b64encode(stdin).decode()
        place = [str(root / "workspace"), " ".join(env or {}), ""]
        answer = call("run", number, f"{token}/{number}.", str(limit), seconds, *place, *argv, env=given).stdout
        return parse_report(answer, wall_s=0.0)

    (root / "control").mkdir()
    assert call("make", token).stdout == b"rollwright made\n"
    run.call, run.words, run.root, run.token = call, words_of, root, token
    return run


@settings(max_examples=12)
@given(st.binary(max_size=3000), st.integers(0, 2000), st.integers(0, 127))
def test_bytes_go_through_up_to_the_limit(box, data, limit, code):
    result = box(["sh", "-c", f"tee /dev/stderr; exit {code}"], stdin=data, limit=limit)
    assert (result.ending, result.exit_code) == (Ending.EXITED, code)
    for kept, dropped in ((result.stdout, result.stdout_dropped), (result.stderr, result.stderr_dropped)):
        assert (kept, dropped) == (data[:limit], max(0, len(data) - limit))


@settings(max_examples=12)
@given(st.lists(words, max_size=5), words)
def test_words_and_variables_arrive_as_they_are(box, argv, value):
    result = box(["sh", "-c", 'printf "%s\\036" "$GIVEN" "$@"', "sh", *argv], env={"GIVEN": value})
    assert result.stdout.decode().split("\x1e")[:-1] == [value, *argv]


@settings(max_examples=10)
@given(st.lists(st.binary(max_size=300), max_size=4))
def test_input_in_lines_is_the_input(box, pieces):
    lines = "".join(f"={''.join(_ESCAPES[byte] for byte in piece)}\n" for piece in pieces)
    number = str(2_000_000 + hash(tuple(pieces)) % 1_000_000_000)
    shutil.rmtree(box.root / "control" / number, ignore_errors=True)
    place = [str(box.root / "workspace"), "", ""]
    done = box.call("open", number, f"{box.token}/{number}.", "1000", "", *place, "cat", stdin=f"{lines}.\n".encode())
    assert done.stdout == b"".join(pieces)
    assert parse_report(done.stderr, wall_s=0.0).exit_code == 0


def test_a_number_runs_once(box):
    for _ in range(2):
        box.call(
            "run",
            "999",
            f"{box.token}/999.",
            "10",
            "9",
            str(box.root / "workspace"),
            "",
            "",
            "sh",
            "-c",
            "echo x >> once",
        )
    assert (box.root / "workspace" / "once").read_bytes() == b"x\n"
    (box.root / "workspace" / "once").unlink()
    shutil.rmtree(box.root / "control" / "999")


def test_output_that_looks_like_a_report_is_output(box):
    lie = b"rollwright 1 end 0 0 0\n-\n.\n"
    result = box(["cat"], stdin=lie)
    assert result.stdout == lie
    assert box(["sh", "-c", "cat >&2; exit 7"], stdin=lie).stderr == lie


def test_a_deadline_ends_the_tree_and_keeps_what_was_said(box):
    long = str(secrets.randbelow(10**9) + 10**6)
    tree = f"echo said; sleep {long} & setsid sleep {long} & (env -i sleep {long}) & wait"
    result = box(["sh", "-c", tree], seconds="0.3")
    assert (result.ending, result.exit_code, result.stdout) == (Ending.TIMED_OUT, 124, b"said\n")
    assert subprocess.run(["pgrep", "-x", "-f", f"sleep {long}"], capture_output=True).stdout == b""


def test_clearing_ends_programs_with_the_shells_that_carry_them(box):
    talked_to = [str(2_000_000_000), str(2_000_000_001)]
    place = [str(box.root / "workspace"), "", ""]
    carried = [
        subprocess.Popen(
            box.words("open", number, f"{box.token}/{number}.", "1000", "", *place, "cat"), stdin=subprocess.PIPE
        )
        for number in talked_to
    ]
    try:
        for number in talked_to:
            _until((box.root / "control" / number / "pid").exists)
        assert box.call("clear", box.token, "next").stdout == b"rollwright cleared\n"
        assert subprocess.run(["pgrep", "-f", f"{box.token}/20000000"], capture_output=True).stdout == b""
        assert [process.wait(20) for process in carried] == [-9, -9]
    finally:
        for process in carried:
            process.kill()
            process.stdin.close()
        assert box.call("make", box.token).stdout == b"rollwright made\n"


def _until(true, within_s=30.0):
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)
