"""Hooks get what they ask for by name, whatever the order; what they may not ask for is refused when they are read."""

import inspect
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.tasks import Task, call_hook, call_scores, group_reward, hooks_of, metric, reward, stop, tool
from rollwright.tasks.marks import GROUP_NAMES, ROLLOUT_NAMES, HookKind
from rollwright.wire import Score, TaskBroken

SUPPLIES = {name: object() for name in ROLLOUT_NAMES}
numbers = count()


def task_with(source: str, **names) -> type[Task]:
    """A fresh task type whose body is `source`."""
    body: dict = {"__annotations__": {}, "__module__": __name__}
    exec(source, {"reward": reward, "metric": metric, "stop": stop, "group_reward": group_reward, "tool": tool}, body)
    return type(Task)(f"T{next(numbers)}", (Task,), body)


@given(
    asked=st.lists(st.sampled_from(ROLLOUT_NAMES), unique=True).flatmap(st.permutations),
    keyword_only=st.booleans(),
    is_async=st.booleans(),
    name=st.sampled_from(["setup", "finalize", "respond"]),
)
async def test_every_subset_in_every_order_gets_the_right_objects(asked, keyword_only, is_async, name):
    arguments = ", ".join(["self", *(["*"] if keyword_only and asked else []), *asked])
    pairs = ", ".join(f"{want!r}: {want}" for want in asked)
    kind = task_with(f"{'async ' if is_async else ''}def {name}({arguments}): return (self, {{{pairs}}})")
    task = kind(id="a")
    hook = getattr(hooks_of(kind), name)
    assert hook.wants == tuple(asked)
    assert hook.is_async is is_async
    assert await call_hook(hook, task, SUPPLIES) == (task, {want: SUPPLIES[want] for want in asked})
    assert hooks_of(kind).needs_runtime is ("runtime" in asked)


@given(name=st.from_regex(r"[a-z]{1,8}", fullmatch=True).filter(lambda name: name not in ROLLOUT_NAMES))
def test_unknown_names_are_refused_with_hook_argument_and_known_names(name):
    if (
        name in ("self", "as", "in", "is", "or", "if", "not", "and", "for", "def", "del", "try")
        or not name.isidentifier()
    ):
        return
    try:
        kind = task_with(f"@reward\ndef correct(self, {name}): return 1")
    except SyntaxError:
        return
    with pytest.raises(TaskBroken) as refused:
        hooks_of(kind)
    said = str(refused.value)
    assert f"reward 'correct' of {kind.__name__} asks for {name!r}" in said
    assert all(known in said for known in ROLLOUT_NAMES)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("@reward\ndef r(self, *args): return 1", "cannot be given by name"),
        ("@reward\ndef r(self, **kwargs): return 1", "cannot be given by name"),
        ("@reward\ndef r(self, reply, /): return 1", "cannot be given by name"),
        ("@reward\ndef r(): return 1", "no 'self'"),
        ("@staticmethod\n@reward\ndef r(reply): return 1", "must be a plain method"),
        ("@group_reward\ndef r(self, reply): return 1", "traces, states"),
        ("@reward\ndef r(self, traces): return 1", "trace, state, runtime, reply"),
        ("@reward\ndef setup(self): return 1", "a name with its own meaning"),
        ("@reward\ndef r(self, tolerance=0.1): return 1", "asks for 'tolerance'"),
    ],
)
def test_hooks_that_cannot_be_called_are_refused_when_read(source, complaint):
    kind = task_with(source)
    with pytest.raises(TaskBroken, match=complaint):
        hooks_of(kind)


@pytest.mark.parametrize("weight", ["1", float("nan"), float("inf"), None, True])
def test_weights_are_finite_numbers(weight):
    with pytest.raises(TaskBroken, match="finite number"):
        reward(weight=weight)


def test_only_plain_functions_are_marked():
    with pytest.raises(TaskBroken, match="plain method"):
        reward(staticmethod(lambda: 1))


def test_kinds_weights_and_order():
    class Base(Task, frozen=True):
        @reward
        def first(self):
            return 1

        @metric()
        def seen(self):
            return 1

        @stop
        def enough(self):
            return True

    class Child(Base, frozen=True):
        @group_reward(weight=0.5)
        def together(self, traces):
            return [1] * len(traces)

        @reward(weight=2)
        def second(self):
            return 1

        @reward(weight=3)
        def first(self):
            return 1

        @tool
        def look(self, runtime):
            return ""

        def helper(self, anything):
            return anything

    hooks = hooks_of(Child)
    assert [(hook.name, hook.weight) for hook in hooks.rewards] == [("first", 3.0), ("second", 2.0)]
    assert [(hook.name, hook.weight) for hook in hooks.group_rewards] == [("together", 0.5)]
    assert [hook.name for hook in hooks.metrics] == ["seen"]
    assert [hook.name for hook in hooks.stops] == ["enough"]
    assert [hook.kind for hook in hooks.tools] == [HookKind.TOOL]
    assert hooks.needs_runtime
    assert hooks.setup is None


def test_an_override_must_say_that_it_is_a_reward_or_take_it_away():
    class Base(Task, frozen=True):
        @reward
        def correct(self):
            return 1

    class Forgot(Base, frozen=True):
        def correct(self):
            return 0

    class Without(Base, frozen=True):
        correct = None

    with pytest.raises(TaskBroken, match="'correct' of Forgot overrides a reward of Base"):
        hooks_of(Forgot)
    assert hooks_of(Without).rewards == ()


async def test_signatures_are_read_once_for_a_type(monkeypatch):
    class Busy(Task, frozen=True):
        @reward
        def one(self, reply):
            return len(reply)

        @reward
        async def two(self, state, trace):
            return 1

    read = []
    real = inspect.signature
    monkeypatch.setattr(inspect, "signature", lambda function, **more: (read.append(function), real(function))[1])
    for _ in range(50):
        hooks = hooks_of(Busy)
        scores = await call_scores(hooks.rewards, Busy(id="a"), {**SUPPLIES, "reply": "four"})
    assert scores == {"one": Score(4.0, 1.0), "two": Score(1.0, 1.0)}
    assert sorted(function.__name__ for function in read) == ["one", "two"]
    assert hooks_of(Busy) is hooks


async def test_a_name_that_is_not_there_yet_is_the_tasks_fault():
    class Early(Task, frozen=True):
        def setup(self, reply):
            return reply

    with pytest.raises(TaskBroken, match="setup 'setup' of Early wants 'reply'"):
        await call_hook(hooks_of(Early).setup, Early(id="a"), {"state": {}})


def test_the_names_are_what_the_docs_say():
    assert (ROLLOUT_NAMES, GROUP_NAMES) == (
        ("trace", "state", "runtime", "reply"),
        ("traces", "states", "members"),
    )
