# ruff: noqa: ASYNC251
"""A stall is noticed, its stack is kept, its cause is told."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.telemetry import new_event_loop
from rollwright.telemetry.cputime import ThreadMeter, ThreadUse, parse_schedstat, parse_stat
from rollwright.telemetry.watchdog import Evidence, StallKind, StallWatchdog, classify

HAS_SCHEDSTAT = os.path.exists(f"/proc/self/task/{threading.get_native_id()}/schedstat")


def evidence(cpu=0.0, delay=0.0, slices=0, process=0.0, late=0.0, wall=1.0):
    return Evidence(
        wall_s=wall, loop_cpu_s=cpu, run_delay_s=delay, slices=slices, process_cpu_s=process, watchdog_late_s=late
    )


CASES = {
    "computes": (evidence(cpu=0.9, process=0.9, slices=90), StallKind.LOOP_BLOCKED),
    "computes while others do too": (evidence(cpu=0.6, process=1.8, slices=300), StallKind.LOOP_BLOCKED),
    "holds the GIL in C, so the watchdog is late too": (
        evidence(cpu=0.95, process=0.95, late=0.9),
        StallKind.LOOP_BLOCKED,
    ),
    "sits in a call": (evidence(cpu=0.001, slices=2, process=0.01), StallKind.LOOP_BLOCKED),
    "sits in a call while a thread computes": (evidence(cpu=0.001, slices=2, process=0.9), StallKind.LOOP_BLOCKED),
    "many small waits, nobody computes": (evidence(cpu=0.05, slices=900, process=0.06), StallKind.LOOP_BLOCKED),
    "waits for the GIL": (evidence(cpu=0.05, slices=200, process=0.95), StallKind.GIL_STARVED),
    "waits for the GIL on a busy machine": (
        evidence(cpu=0.01, delay=0.3, slices=90, process=0.3),
        StallKind.GIL_STARVED,
    ),
    "queues for a CPU": (evidence(cpu=0.1, delay=0.85, slices=20, process=0.1), StallKind.CPU_STARVED),
    "is stopped with all others": (evidence(late=0.97, process=0.001), StallKind.CPU_STARVED),
    "no schedstat, computes": (evidence(cpu=0.9, delay=None, slices=None, process=0.9), StallKind.LOOP_BLOCKED),
    "no schedstat, waits for the GIL": (
        evidence(cpu=0.05, delay=None, slices=None, process=0.9),
        StallKind.GIL_STARVED,
    ),
    "nothing known, somebody computes": (
        evidence(cpu=None, delay=None, slices=None, process=0.9),
        StallKind.LOOP_BLOCKED,
    ),
    "nothing known, nothing ran": (
        evidence(cpu=None, delay=None, slices=None, process=0.0, late=0.9),
        StallKind.CPU_STARVED,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_follows_from_the_evidence(name):
    seen, kind = CASES[name]
    assert classify(seen) is kind


share = st.one_of(st.none(), st.floats(0, 2))


@given(share, share, st.one_of(st.none(), st.integers(0, 5000)), st.floats(0, 64), st.floats(0, 2), st.floats(0, 100))
def test_every_evidence_has_a_verdict(cpu, delay, slices, process, late, wall):
    assert classify(evidence(cpu, delay, slices, process, late, wall)) in StallKind


def test_the_kernel_s_words_are_read():
    assert parse_schedstat("1500000000 250000000 42\n") == ThreadUse(cpu_s=1.5, run_delay_s=0.25, slices=42)
    stat = "7 (a) b (c)) R 1 1 1 0 -1 4 127 0 0 0 150 50 0 0 20 0 1 0 124180"
    assert parse_stat(stat, 100) == ThreadUse(cpu_s=2.0)


def test_a_meter_reads_another_thread_and_survives_its_end():
    working, enough = threading.Event(), threading.Event()

    def work():
        working.set()
        while not enough.is_set():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    working.wait(10)
    meter = ThreadMeter(thread.ident, thread.native_id)
    try:
        before = meter.read()
        deadline = time.monotonic() + 20
        while meter.read().cpu_s <= before.cpu_s:
            assert time.monotonic() < deadline
    finally:
        enough.set()
        thread.join()
    # The kernel's thread ends a moment after Python's; then there is nothing to read, and no error.
    while HAS_SCHEDSTAT and meter.read() != ThreadUse():
        assert time.monotonic() < deadline
    meter.close()


def culprit_sleeps():
    time.sleep(0.4)


def culprit_computes():
    until = time.thread_time() + 0.4
    while time.thread_time() < until:
        sum(range(1000))


async def stall_of(culprit):
    """The first stall that is blamed on `culprit`. A watchdog that gets no CPU in time has no stack: then once more."""
    dog = StallWatchdog(0.1)
    dog.start()
    named = []
    async with asyncio.timeout(20):
        while not named:
            await asyncio.sleep(0.05)
            culprit()
            await asyncio.sleep(0.05)
            named = [stall for stall in dog.stalls if culprit.__name__ in stall.stack]
    await dog.aclose()
    return named[0]


@pytest.mark.blocks_loop
@pytest.mark.parametrize("culprit", [culprit_sleeps, culprit_computes])
@pytest.mark.parametrize("factory", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "uvloop"])
def test_a_blocked_loop_is_named_with_its_stack(culprit, factory):
    with asyncio.Runner(loop_factory=factory) as runner:
        before = time.time()
        stall = runner.run(stall_of(culprit))
    assert stall.duration_s > 0.25
    assert before <= stall.started + 1e-3
    # A machine that gives this process no CPU for most of the stall is told apart, and is right to be.
    assert stall.kind in (StallKind.LOOP_BLOCKED, StallKind.CPU_STARVED)


async def test_it_closes_its_files_even_when_closing_is_cancelled():
    def open_files():
        return set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()

    # The default executor's thread is there before the count.
    await asyncio.to_thread(int)
    before = open_files()
    dog = StallWatchdog()
    dog.start()
    closing = asyncio.create_task(dog.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(20):
        while open_files() != before:
            await asyncio.sleep(0.01)
    await dog.aclose()
    assert "rollwright-watchdog" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.blocks_loop
async def test_the_list_of_stalls_is_bounded_and_the_count_is_not():
    dog = StallWatchdog(0.02, keep=2)
    dog.start()
    async with asyncio.timeout(20):
        while sum(dog.counts.values()) < 5:
            time.sleep(0.05)
            await asyncio.sleep(0.02)
    await dog.aclose()
    assert len(dog.stalls) == 2


CHILD = """
    import asyncio, json, sys, threading, time
    from rollwright.telemetry import LoopLagMonitor, run
    {helpers}
    async def main():
        async with LoopLagMonitor(stall_over_s=0.1) as monitor:
            await asyncio.sleep(0.1)
            {body}
            for _ in range(500):
                if any(stall.duration_s > {over} for stall in monitor.stalls): break
                await asyncio.sleep(0.02)
        longest = max(monitor.stalls, key=lambda stall: stall.duration_s)
        print(json.dumps([longest.kind, longest.duration_s]), flush=True)
    asyncio.run(main())
"""


def child_of(body, helpers="", over=0.3):
    script = textwrap.dedent(CHILD).format(body=body, helpers=textwrap.dedent(helpers), over=over)
    return [sys.executable, "-c", script]


@pytest.mark.skipif(not HAS_SCHEDSTAT, reason="this kernel does not tell how a thread is scheduled")
def test_a_stopped_process_is_not_the_loop_s_fault():
    body = 'print("ready", flush=True)'
    with subprocess.Popen(child_of(body), stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGSTOP)
        # Not a wait for something: this is the length of the outage.
        time.sleep(0.6)
        child.send_signal(signal.SIGCONT)
        kind, duration_s = json.loads(child.communicate(timeout=60)[0])
    assert kind == StallKind.CPU_STARVED
    assert duration_s > 0.3


HOLD_THE_GIL = """
    # Writing out a huge number is one call that never lets the interpreter go. Enlarge it until that takes long enough.
    sys.set_int_max_str_digits(0)
    power, cpu_s = 100_000, 0.0
    while cpu_s < 0.4:
        power = power * 3 // 2
        huge, began = 7 ** power, time.thread_time()
        str(huge)
        cpu_s = time.thread_time() - began
"""


@pytest.mark.skipif(not HAS_SCHEDSTAT, reason="this kernel does not tell how a thread is scheduled")
def test_a_thread_that_holds_the_interpreter_is_not_the_loop_s_fault():
    body = "threading.Thread(target=str, args=(huge,)).start()"
    result = subprocess.run(child_of(body, HOLD_THE_GIL), capture_output=True, text=True, timeout=60)
    kind, _ = json.loads(result.stdout)
    # Two busy processes on one core may starve the loop of CPU instead; the loop itself is innocent either way.
    assert kind in (StallKind.GIL_STARVED, StallKind.CPU_STARVED)
