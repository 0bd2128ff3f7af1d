"""Where a box stands: every order of events leaves it usable, or says why it is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.runtimes.standing import Standing, State, check_argv
from rollwright.wire import RuntimeFault, RuntimeLost

EVENTS = ("begin_start", "end_start", "begin_reset", "end_reset", "lose", "stop", "check_running")


@given(st.lists(st.sampled_from(EVENTS), max_size=12))
def test_what_was_lost_or_stopped_is_never_used_again(events):
    standing, over = Standing("box"), False
    for event in events:
        before = standing.state
        try:
            getattr(standing, event)()
        except RuntimeFault:
            assert standing.state is before, "what is refused changes nothing"
        over = over or event in ("lose", "stop")
        assert not (over and standing.running)
    assert standing.state is not State.LOST or "stop" not in events


def test_a_reset_under_which_the_box_was_stopped_says_so():
    standing = Standing("box")
    for step in (standing.begin_start, standing.end_start, standing.begin_reset, standing.stop):
        step()
    with pytest.raises(RuntimeLost, match="box is stopped"):
        standing.end_reset()


@pytest.mark.parametrize("argv", ["ls", [], [""], ["-c"], ["a", "b\0"]])
def test_what_is_no_command_is_refused(argv):
    with pytest.raises(RuntimeFault):
        check_argv(argv)
    check_argv(["ls", "-l", ""])
