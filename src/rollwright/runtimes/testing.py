"""The list of promises that every kind of box keeps, as code that a test or `doctor` runs against a real one.

    await check_runtime(lambda: SubprocessRuntime())

A promise gets a fresh, started box and raises AssertionError where it is not kept. Only `sh` and the usual small tools
are expected in a box, so that the smallest image can be checked. Speed is no promise and is not looked at.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from collections.abc import Awaitable, Callable

from rollwright.wire import RuntimeFault, RuntimeLost

from .asking import (
    DAEMONS,
    FETCH,
    LISTEN,
    PATIENCE_S,
    gone,
    host_secret,
    in_host_home,
    line_of,
    served,
)
from .asking import raises as raises
from .asking import sh as sh
from .contract import Ending, Runtime
from .poison import check_unpoisoned as check_unpoisoned
from .poison import poison as poison
from .state import differences

Promise = Callable[[Runtime], Awaitable[None]]
PROMISES: dict[str, Promise] = {}
"""Every promise by name, in the order in which they are checked."""


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
    with host_secret("ROLLWRIGHT_TEST_API_KEY"):
        runtime = make()
        await runtime.start()
        try:
            async with asyncio.timeout(4 * PATIENCE_S):
                await PROMISES[name](runtime)
        finally:
            await runtime.stop()


@promise
async def host_variables_stay_outside(runtime: Runtime) -> None:
    secret = os.environ["ROLLWRIGHT_TEST_API_KEY"]
    seen = await sh(runtime, "env; cat /proc/self/environ; cat /proc/$$/cmdline")
    assert secret not in seen, "a variable of the host that is not allow-listed is visible"


@promise
async def given_variables_arrive_and_stay_off_the_commandline_of(runtime: Runtime) -> None:
    value = f"{secrets.token_hex(8)} 'quoted' $HOME\nsecond line"
    told = await runtime.run(["sh", "-c", 'printf %s "$GIVEN"'], env={"GIVEN": value}, timeout_s=PATIENCE_S)
    assert told.stdout == value.encode()
    lines = await runtime.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"], env={"GIVEN": value}, timeout_s=PATIENCE_S)
    assert value.split()[0].encode() not in lines.stdout, "a secret is visible on a command line"
    assert await sh(runtime, 'printf %s "${GIVEN-unset}"') == "unset", "a variable outlived its command"


@promise
async def home_and_tmp_are_the_boxes_own(runtime: Runtime) -> None:
    home, tmp, work = (await sh(runtime, 'printf "%s\\n%s\\n" "$HOME" "${TMPDIR-/tmp}"; pwd')).split("\n")[:3]
    assert len({home, tmp, work}) == 3
    name = f".rollwright-{secrets.token_hex(8)}"
    assert await sh(runtime, f'touch "$HOME/{name}" "${{TMPDIR-/tmp}}/{name}" {name} && printf done') == "done"
    assert not in_host_home(name), "HOME is the host's"


@promise
async def exit_codes_are_the_programs(runtime: Runtime) -> None:
    for code in (0, 1, 3, 42, 124, 127, 255):
        result = await runtime.run(["sh", "-c", f"exit {code}"], timeout_s=PATIENCE_S)
        assert (result.ending, result.exit_code, result.ok) == (Ending.EXITED, code, code == 0), result


@promise
async def signals_are_told(runtime: Runtime) -> None:
    for number in (9, 11, 15):
        result = await runtime.run(["sh", "-c", f"kill -{number} $$"], timeout_s=PATIENCE_S)
        assert (result.ending, result.exit_code) == (Ending.SIGNALLED, 128 + number), result


@promise
async def a_missing_program_is_a_value(runtime: Runtime) -> None:
    result = await runtime.run(["no-such-program-here"], timeout_s=PATIENCE_S)
    assert (result.ending, result.exit_code) == (Ending.EXITED, 127), result
    assert result.stderr


@promise
async def words_are_not_interpreted(runtime: Runtime) -> None:
    words = ["", " ", "a b", "$HOME", "`id`", "'", '"', "*", "\\", "-n", "x\ny", "é漢"]
    result = await runtime.run(["printf", "%s\\036", *words], timeout_s=PATIENCE_S)
    assert result.stdout.decode().split("\x1e")[:-1] == words


@promise
async def streams_are_apart_and_binary(runtime: Runtime) -> None:
    blob = bytes(range(256)) * 300
    result = await runtime.run(["sh", "-c", "printf err >&2; cat"], stdin=blob, timeout_s=PATIENCE_S)
    assert (result.stdout, result.stderr) == (blob, b"err")


@promise
async def stdin_ends(runtime: Runtime) -> None:
    for stdin in (b"", b"x", b"y" * 300_000):
        counted = await runtime.run(["wc", "-c"], stdin=stdin, timeout_s=PATIENCE_S)
        assert int(counted.stdout) == len(stdin)
    unread = await runtime.run(["true"], stdin=b"z" * 300_000, timeout_s=PATIENCE_S)
    assert unread.ok, "a program that does not read its stdin is no failure"


@promise
async def output_is_capped_and_counted(runtime: Runtime) -> None:
    loud = "head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2; exit 5"
    result = await runtime.run(["sh", "-c", loud], output_limit=70_000, timeout_s=PATIENCE_S)
    assert (len(result.stdout), result.stdout_dropped) == (70_000, 230_000)
    assert (len(result.stderr), result.stderr_dropped) == (70_000, 130_000)
    assert result.exit_code == 5, "a loud program runs to its own end"


@promise
async def commands_begin_in_the_workspace(runtime: Runtime) -> None:
    await runtime.write("inner/file", b"here")
    assert await sh(runtime, "cat inner/file") == "here"
    result = await runtime.run(["cat", "file"], cwd="inner", timeout_s=PATIENCE_S)
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
    async with await runtime.open_process(["sh", "-c", f"{DAEMONS} sleep 1000"]) as process:
        pids = (await line_of(process.read)).split()
        result = await process.wait(timeout_s=0.05)
    assert (result.ending, result.exit_code, result.ok) == (Ending.TIMED_OUT, 124, False), result
    await gone(runtime, pids)
    result = await runtime.run(["sh", "-c", "echo before; sleep 1000"], timeout_s=1.0)
    assert (result.ending, result.stdout) == (Ending.TIMED_OUT, b"before\n"), result


@promise
async def a_cancelled_run_kills_the_tree_first(runtime: Runtime) -> None:
    await sh(runtime, "mkfifo pids")
    running = asyncio.create_task(runtime.run(["sh", "-c", f"({DAEMONS}) > pids; sleep 1000"], timeout_s=1000))
    pids = (await sh(runtime, "head -n 1 pids")).split()
    running.cancel()
    await raises(asyncio.CancelledError, running)
    await gone(runtime, pids)


@promise
async def neighbours_survive_a_timeout(runtime: Runtime) -> None:
    async with await runtime.open_process(["cat"]) as neighbour:
        result = await runtime.run(["sleep", "1000"], timeout_s=0.05)
        assert result.ending is Ending.TIMED_OUT
        await neighbour.write(b"still here\n")
        assert await line_of(neighbour.read) == "still here"


@promise
async def a_child_that_holds_the_pipes_does_not_hold_the_run(runtime: Runtime) -> None:
    async with asyncio.timeout(PATIENCE_S):
        result = await runtime.run(["sh", "-c", "sleep 1000 & echo started"], timeout_s=600)
    assert (result.ending, result.stdout) == (Ending.EXITED, b"started\n"), result


@promise
async def processes_are_talked_to(runtime: Runtime) -> None:
    async with await runtime.open_process(["sh", "-c", "cat; echo end >&2; echo rest; exit 4"]) as process:
        for word in (b"one\n", b"two\n"):
            await process.write(word)
            assert await line_of(process.read) == word.decode().strip()
        await process.close_stdin()
        result = await process.wait(timeout_s=PATIENCE_S)
        assert (result.exit_code, result.stdout, result.stderr) == (4, b"rest\n", b"end\n"), result
        assert await process.wait(timeout_s=PATIENCE_S) == result, "waiting twice gives one answer"


@promise
async def writes_at_once_go_in_whole(runtime: Runtime) -> None:
    async with await runtime.open_process(["cat"]) as process:
        writing = asyncio.gather(*(process.write(letter * 100_000 + b"\n") for letter in (b"a", b"b")))
        heard = b""
        async with asyncio.timeout(PATIENCE_S):
            while heard.count(b"\n") < 2:
                heard += await process.read()
            await writing
    assert sorted(heard.splitlines()) == [b"a" * 100_000, b"b" * 100_000], "two writes were mixed"


@promise
async def a_killed_process_is_signalled(runtime: Runtime) -> None:
    async with await runtime.open_process(["sleep", "1000"]) as process:
        await process.kill()
        assert await process.read() == b""
        result = await process.wait(timeout_s=PATIENCE_S)
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
    pids = (await sh(runtime, DAEMONS)).split()
    await runtime.reset()
    assert await runtime.alive()
    await gone(runtime, pids)
    assert await sh(runtime, 'ls -A . "$HOME" "${TMPDIR-/tmp}" | grep -v :') == "\n\n"
    assert await sh(runtime, "echo new > file && cat file") == "new\n"


@promise
async def a_reset_breaks_off_what_runs(runtime: Runtime) -> None:
    async with await runtime.open_process(["sh", "-c", "echo ready; sleep 1000"]) as process:
        assert await line_of(process.read) == "ready"
        reading = asyncio.create_task(process.read())
        await asyncio.sleep(0)
        await runtime.reset()
        await raises(RuntimeLost, asyncio.wait_for(reading, PATIENCE_S))
        await raises(RuntimeLost, process.read())
        await raises(RuntimeLost, process.wait(timeout_s=PATIENCE_S))
    assert await sh(runtime, "echo on") == "on\n"


@promise
async def an_exposed_port_has_an_address(runtime: Runtime) -> None:
    url, *others = await asyncio.gather(*(runtime.expose(8123) for _ in range(3)))
    assert url.startswith(("http://", "https://"))
    assert not url.endswith("/")
    assert [url, url, url] == [*others, await runtime.expose(8123)], "a port has more than one address"


@promise
async def a_program_reaches_a_server_of_the_host(runtime: Runtime) -> None:
    """Shown with whatever in the box speaks HTTP; where nothing does, the address has to do."""
    token = secrets.token_hex(8)
    async with served(token) as port:
        url, *others = await asyncio.gather(*(runtime.forward(port) for _ in range(3)))
        assert url.startswith(("http://", "https://")), url
        assert not url.endswith("/"), url
        assert [url, url, url] == [*others, await runtime.forward(port)], "a port has more than one address"
        for _ in range(2):
            assert await sh(runtime, FETCH.replace("URL", f"{url}/")) in (token, "nothing here speaks HTTP")


@promise
async def a_look_shows_what_is_left(runtime: Runtime) -> None:
    fresh = await runtime.inspect()
    assert differences(fresh, await runtime.inspect()) == [], "two looks at an untouched box differ"
    await sh(runtime, f'echo x > left; echo x > "$HOME/.left"; echo x > "${{TMPDIR-/tmp}}/left"; {DAEMONS}')
    found = differences(fresh, await runtime.inspect())
    assert sum(line.startswith("file ") and "left" in line for line in found) == 3, found
    assert sum(line.startswith("processes: ") for line in found) >= 2, found
    await sh(runtime, "chmod 755 left")
    assert any("left" in line for line in differences(fresh, await runtime.inspect()))
    await runtime.reset()
    assert differences(fresh, await runtime.inspect()) == [], "a reset box does not look like a fresh one"


@promise
async def a_look_shows_who_listens(runtime: Runtime) -> None:
    """Shown with whatever in the box can listen; where nothing can, there is nothing to show."""
    fresh = await runtime.inspect()
    listening = await sh(runtime, LISTEN.replace("PORT", str(random.randint(20000, 60000))))
    found = [line for line in differences(fresh, await runtime.inspect()) if line.startswith("ports: ")]
    assert bool(found) is ("listening" in listening), (listening, found)
    await runtime.reset()
    assert differences(fresh, await runtime.inspect()) == [], "a port outlives a reset"


@promise
async def a_look_does_not_disturb(runtime: Runtime) -> None:
    async with await runtime.open_process(["sh", "-c", "echo ready; cat"]) as process:
        assert await line_of(process.read) == "ready"
        await runtime.inspect()
        await process.write(b"still here\n")
        assert await line_of(process.read) == "still here"


@promise
async def after_stop_all_is_lost(runtime: Runtime) -> None:
    assert await runtime.alive()
    async with await runtime.open_process(["sh", "-c", "echo ready; sleep 1000"]) as process:
        assert await line_of(process.read) == "ready"
        await asyncio.gather(runtime.stop(), runtime.stop())
        await raises(RuntimeLost, process.wait(timeout_s=PATIENCE_S))
    await runtime.stop()
    assert not await runtime.alive()
    for operation in (
        runtime.run(["true"]),
        runtime.open_process(["true"]),
        runtime.read("x"),
        runtime.write("x", b""),
        runtime.expose(80),
        runtime.forward(80),
        runtime.inspect(),
        runtime.reset(),
    ):
        await raises(RuntimeLost, operation)
