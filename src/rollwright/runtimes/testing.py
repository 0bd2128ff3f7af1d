"""The list of promises that every kind of box keeps, as code that a test or `doctor` runs against a real one.

    await check_runtime(lambda: SubprocessRuntime())

A promise gets a fresh, started box and raises AssertionError where it is not kept. Only `sh` and the usual small tools
are expected in a box, so that the smallest image can be checked. Speed is no promise and is not looked at.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rollwright.wire import RuntimeFault, RuntimeLost

from .contract import Ending, Runtime

Promise = Callable[[Runtime], Awaitable[None]]
PROMISES: dict[str, Promise] = {}
"""Every promise by name, in the order in which they are checked."""

_PATIENCE_S = 30.0


def promise(check: Promise) -> Promise:
    PROMISES[check.__name__] = check
    return check


async def check_runtime(make: Callable[[], Runtime], *, skip: frozenset[str] = frozenset()) -> list[str]:
    """Check every promise, each in a box of its own; the names of those that were kept.

    All failures are told together. `skip` names promises that a kind states it does not make.
    """
    kept, broken = [], []
    for name in PROMISES:
        if name in skip:
            continue
        try:
            await check_promise(name, make)
            kept.append(name)
        except (AssertionError, RuntimeFault, TimeoutError) as error:
            broken.append(f"{name}: {type(error).__name__}: {error}")
    if broken:
        raise AssertionError("\n".join([f"{len(broken)} of {len(PROMISES)} promises are not kept:", *broken]))
    return kept


async def check_promise(name: str, make: Callable[[], Runtime]) -> None:
    """Check one promise in a box of its own."""
    with _host_secret("ROLLWRIGHT_TEST_API_KEY"):
        runtime = make()
        await runtime.start()
        try:
            async with asyncio.timeout(4 * _PATIENCE_S):
                await PROMISES[name](runtime)
        finally:
            await runtime.stop()


@promise
async def host_variables_stay_outside(runtime: Runtime) -> None:
    secret = os.environ["ROLLWRIGHT_TEST_API_KEY"]
    seen = await sh(runtime, "env; cat /proc/self/environ; cat /proc/$$/cmdline")
    assert secret not in seen, "a variable of the host that is not allow-listed is visible"


@promise
async def given_variables_arrive_and_stay_off_the_command_line(runtime: Runtime) -> None:
    value = f"{secrets.token_hex(8)} 'quoted' $HOME\nsecond line"
    told = await runtime.run(["sh", "-c", 'printf %s "$GIVEN"'], env={"GIVEN": value}, timeout_s=_PATIENCE_S)
    assert told.stdout == value.encode()
    lines = await runtime.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"], env={"GIVEN": value}, timeout_s=_PATIENCE_S)
    assert value.split()[0].encode() not in lines.stdout, "a secret is visible on a command line"
    assert await sh(runtime, 'printf %s "${GIVEN-unset}"') == "unset", "a variable outlived its command"


@promise
async def home_and_tmp_are_the_boxes_own(runtime: Runtime) -> None:
    home, tmp, work = (await sh(runtime, 'printf "%s\\n%s\\n" "$HOME" "${TMPDIR-/tmp}"; pwd')).split("\n")[:3]
    assert len({home, tmp, work}) == 3
    name = f".rollwright-{secrets.token_hex(8)}"
    assert await sh(runtime, f'touch "$HOME/{name}" "${{TMPDIR-/tmp}}/{name}" {name} && printf done') == "done"
    assert not _in_host_home(name), "HOME is the host's"


@promise
async def exit_codes_are_the_programs(runtime: Runtime) -> None:
    for code in (0, 1, 3, 42, 124, 127, 255):
        result = await runtime.run(["sh", "-c", f"exit {code}"], timeout_s=_PATIENCE_S)
        assert (result.ending, result.exit_code, result.ok) == (Ending.EXITED, code, code == 0), result


@promise
async def signals_are_told(runtime: Runtime) -> None:
    for number in (9, 11, 15):
        result = await runtime.run(["sh", "-c", f"kill -{number} $$"], timeout_s=_PATIENCE_S)
        assert (result.ending, result.exit_code) == (Ending.SIGNALLED, 128 + number), result


@promise
async def a_missing_program_is_a_value(runtime: Runtime) -> None:
    result = await runtime.run(["no-such-program-here"], timeout_s=_PATIENCE_S)
    assert (result.ending, result.exit_code) == (Ending.EXITED, 127), result
    assert result.stderr


@promise
async def words_are_not_interpreted(runtime: Runtime) -> None:
    words = ["", " ", "a b", "$HOME", "`id`", "'", '"', "*", "\\", "-n", "x\ny", "é漢"]
    result = await runtime.run(["printf", "%s\\036", *words], timeout_s=_PATIENCE_S)
    assert result.stdout.decode().split("\x1e")[:-1] == words


@promise
async def streams_are_apart_and_binary(runtime: Runtime) -> None:
    blob = bytes(range(256)) * 300
    result = await runtime.run(["sh", "-c", "printf err >&2; cat"], stdin=blob, timeout_s=_PATIENCE_S)
    assert (result.stdout, result.stderr) == (blob, b"err")


@promise
async def stdin_ends(runtime: Runtime) -> None:
    for stdin in (b"", b"x", b"y" * 300_000):
        counted = await runtime.run(["wc", "-c"], stdin=stdin, timeout_s=_PATIENCE_S)
        assert int(counted.stdout) == len(stdin)
    unread = await runtime.run(["true"], stdin=b"z" * 300_000, timeout_s=_PATIENCE_S)
    assert unread.ok, "a program that does not read its stdin is no failure"


@promise
async def output_is_capped_and_counted(runtime: Runtime) -> None:
    loud = "head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2; exit 5"
    result = await runtime.run(["sh", "-c", loud], output_limit=70_000, timeout_s=_PATIENCE_S)
    assert (len(result.stdout), result.stdout_dropped) == (70_000, 230_000)
    assert (len(result.stderr), result.stderr_dropped) == (70_000, 130_000)
    assert result.exit_code == 5, "a loud program runs to its own end"


@promise
async def commands_begin_in_the_workspace(runtime: Runtime) -> None:
    await runtime.write("inner/file", b"here")
    assert await sh(runtime, "cat inner/file") == "here"
    result = await runtime.run(["cat", "file"], cwd="inner", timeout_s=_PATIENCE_S)
    assert result.stdout == b"here"


@promise
async def files_round_trip(runtime: Runtime) -> None:
    blob = os.urandom(300_000)
    await runtime.write("deep/er/blob", blob)
    assert await runtime.read("deep/er/blob") == blob
    await runtime.write("deep/er/blob", b"short")
    assert await runtime.read("deep/er/blob") == b"short", "a file is replaced, not overwritten at its beginning"
    work = (await sh(runtime, "pwd")).strip()
    assert await runtime.read(f"{work}/deep/er/blob") == b"short"


@promise
async def refused_files_are_faults(runtime: Runtime) -> None:
    await sh(runtime, "mkdir dir && mkfifo pipe")
    for path in ("missing", "dir", "pipe"):
        await raises(RuntimeFault, runtime.read(path))


@promise
async def a_timeout_is_told_and_kills_the_tree(runtime: Runtime) -> None:
    async with await runtime.open_process(["sh", "-c", f"{_DAEMONS} sleep 1000"]) as process:
        pids = (await _line(process.read)).split()
        result = await process.wait(timeout_s=0.05)
    assert (result.ending, result.exit_code, result.ok) == (Ending.TIMED_OUT, 124, False), result
    await _gone(runtime, pids)
    result = await runtime.run(["sh", "-c", "echo before; sleep 1000"], timeout_s=1.0)
    assert (result.ending, result.stdout) == (Ending.TIMED_OUT, b"before\n"), result


@promise
async def a_cancelled_run_kills_the_tree_first(runtime: Runtime) -> None:
    await sh(runtime, "mkfifo pids")
    running = asyncio.create_task(runtime.run(["sh", "-c", f"({_DAEMONS}) > pids; sleep 1000"], timeout_s=1000))
    pids = (await sh(runtime, "head -n 1 pids")).split()
    running.cancel()
    await raises(asyncio.CancelledError, running)
    await _gone(runtime, pids)


@promise
async def neighbours_survive_a_timeout(runtime: Runtime) -> None:
    async with await runtime.open_process(["cat"]) as neighbour:
        result = await runtime.run(["sleep", "1000"], timeout_s=0.05)
        assert result.ending is Ending.TIMED_OUT
        await neighbour.write(b"still here\n")
        assert await _line(neighbour.read) == "still here"


@promise
async def a_child_that_holds_the_pipes_does_not_hold_the_run(runtime: Runtime) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        result = await runtime.run(["sh", "-c", "sleep 1000 & echo started"], timeout_s=600)
    assert (result.ending, result.stdout) == (Ending.EXITED, b"started\n"), result


@promise
async def processes_are_talked_to(runtime: Runtime) -> None:
    async with await runtime.open_process(["sh", "-c", "cat; echo end >&2; echo rest; exit 4"]) as process:
        for word in (b"one\n", b"two\n"):
            await process.write(word)
            assert await _line(process.read) == word.decode().strip()
        await process.close_stdin()
        result = await process.wait(timeout_s=_PATIENCE_S)
        assert (result.exit_code, result.stdout, result.stderr) == (4, b"rest\n", b"end\n"), result
        assert await process.wait(timeout_s=_PATIENCE_S) == result, "waiting twice gives one answer"


@promise
async def a_killed_process_is_signalled(runtime: Runtime) -> None:
    async with await runtime.open_process(["sleep", "1000"]) as process:
        await process.kill()
        assert await process.read() == b""
        result = await process.wait(timeout_s=_PATIENCE_S)
    assert (result.ending, result.exit_code) == (Ending.SIGNALLED, 137), result


@promise
async def many_commands_run_at_once(runtime: Runtime) -> None:
    async def one(number: int) -> None:
        result = await runtime.run(["sh", "-c", "cat; exit $1", "sh", str(number)], stdin=b"%d" % number)
        assert (result.stdout, result.exit_code) == (b"%d" % number, number)

    async with asyncio.TaskGroup() as group:
        for number in range(32):
            group.create_task(one(number))


@promise
async def a_reset_leaves_nothing(runtime: Runtime) -> None:
    await sh(runtime, "mkdir -p locked/deep && echo x > locked/deep/file && chmod 000 locked/deep locked")
    await sh(
        runtime, 'echo x > "$HOME/.profile"; echo x > "${TMPDIR-/tmp}/left"; ln -s / out; mkfifo pipe; chmod 500 .'
    )
    pids = (await sh(runtime, _DAEMONS)).split()
    await runtime.reset()
    assert await runtime.alive()
    await _gone(runtime, pids)
    assert await sh(runtime, 'ls -A . "$HOME" "${TMPDIR-/tmp}" | grep -v :') == "\n\n"
    assert await sh(runtime, "echo new > file && cat file") == "new\n"


@promise
async def a_reset_breaks_off_what_runs(runtime: Runtime) -> None:
    async with await runtime.open_process(["sh", "-c", "echo ready; sleep 1000"]) as process:
        assert await _line(process.read) == "ready"
        await runtime.reset()
        await raises(RuntimeLost, process.wait(timeout_s=_PATIENCE_S))
    assert await sh(runtime, "echo on") == "on\n"


@promise
async def an_exposed_port_has_an_address(runtime: Runtime) -> None:
    url = await runtime.expose(8123)
    assert url.startswith(("http://", "https://"))
    assert not url.endswith("/")


@promise
async def after_stop_all_is_lost(runtime: Runtime) -> None:
    assert await runtime.alive()
    async with await runtime.open_process(["sh", "-c", "echo ready; sleep 1000"]) as process:
        assert await _line(process.read) == "ready"
        await asyncio.gather(runtime.stop(), runtime.stop())
        await raises(RuntimeLost, process.wait(timeout_s=_PATIENCE_S))
    await runtime.stop()
    assert not await runtime.alive()
    for operation in (
        runtime.run(["true"]),
        runtime.open_process(["true"]),
        runtime.read("x"),
        runtime.write("x", b""),
        runtime.expose(80),
        runtime.reset(),
    ):
        await raises(RuntimeLost, operation)


_DAEMONS = "sleep 1000 & a=$!; setsid sleep 1001 & b=$!; echo $a $b;"
"""Leaves two children, one of them in a session of its own, and tells their ids."""


async def sh(runtime: Runtime, script: str) -> str:
    """Stdout of a shell script in the box."""
    result = await runtime.run(["sh", "-c", script], timeout_s=_PATIENCE_S)
    assert result.ending is Ending.EXITED, f"{script!r} ended as {result}"
    return result.text


async def raises(kind: type[BaseException], work: Awaitable[object]) -> None:
    try:
        answer = await work
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}, got {answer!r}")


async def _line(read: Callable[[int], Awaitable[bytes]]) -> str:
    """One line, read by single bytes so that nothing after it is taken."""
    line = b""
    async with asyncio.timeout(_PATIENCE_S):
        while (byte := await read(1)) not in (b"\n", b""):
            line += byte
    return line.decode()


async def _gone(runtime: Runtime, pids: list[str]) -> None:
    assert len(pids) == 2, f"expected two process ids, got {pids}"
    for pid in pids:
        # A zombie that waits for its reaper has ended.
        state = await sh(runtime, f"sed -n 's/^State:[[:space:]]*//p' /proc/{pid}/status 2>/dev/null || true")
        assert state[:1] in ("", "Z", "X"), f"process {pid} is still there: {state}"


@contextmanager
def _host_secret(name: str) -> Iterator[None]:
    os.environ[name] = secrets.token_hex(16)
    try:
        yield
    finally:
        del os.environ[name]


def _in_host_home(name: str) -> bool:
    return Path.home().joinpath(name).exists()
