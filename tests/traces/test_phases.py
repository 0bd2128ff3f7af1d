"""Each second of a rollout belongs to one phase, however many are open."""

from hypothesis import given
from hypothesis import strategies as st

from rollwright.traces import LiveTrace, Phase
from rollwright.wire import Stop


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


STEPS = st.lists(
    st.tuples(st.sampled_from([*Phase]), st.integers(0, 5), st.integers(0, 4), st.integers(0, 10)), max_size=20
)


@given(STEPS)
def test_phases_add_up_to_no_more_than_the_wall(steps):
    clock = Clock()
    trace = LiveTrace("t", 0, clock=clock)
    open_ones = []
    for phase, seconds, leave, queued in steps:
        block = trace.phase(phase)
        block.__enter__()
        open_ones.append(block)
        clock.now += seconds
        trace.queued(min(queued, seconds))
        if open_ones and leave % 2:
            open_ones.pop(leave % len(open_ones)).__exit__(None, None, None)
        clock.now += 1
    for block in open_ones:
        block.__exit__(None, None, None)
    timing = trace.freeze(Stop.FINISHED).timing
    phases = [getattr(timing, phase.value) for phase in Phase]
    assert all(seconds >= 0 for seconds in phases)
    assert sum(phases) <= timing.total_s + 1e-9


def test_calls_that_overlap_count_once_and_tools_get_the_rest():
    clock = Clock()
    trace = LiveTrace("t", 0, clock=clock)
    program, first, second = trace.phase(Phase.TOOL), trace.phase(Phase.MODEL), trace.phase(Phase.MODEL)
    program.__enter__()
    clock.now = 2.0
    first.__enter__()
    clock.now = 3.0
    second.__enter__()
    clock.now = 5.0
    first.__exit__(None, None, None)
    clock.now = 6.0
    second.__exit__(None, None, None)
    clock.now = 10.0
    program.__exit__(None, None, None)
    timing = trace.freeze(Stop.FINISHED).timing
    assert (timing.tool_s, timing.model_s, timing.total_s) == (6.0, 4.0, 10.0)
