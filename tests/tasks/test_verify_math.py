"""The verifier of the mathematics sets: every problem we ship, answers of all kinds, and the way through a runtime."""

import asyncio
import json
import subprocess

import msgspec
import pytest

from rollwright.runtimes import Ending, ExecResult, SubprocessConfig, SubprocessRuntime
from rollwright.runtimes.provision import provision
from rollwright.tasks import call_scores, hooks_of, load_tasks, make_taskset
from rollwright.tasks.builtin.answers import VERIFIER, MathTask
from rollwright.wire import RuntimeFault, TaskBroken

SETS = ["gsm8k", "aime24", "math"]

DRIVER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import verify_math
assert list(verify_math.warmup())
print(json.dumps([verify_math.main(argv) for argv in json.load(sys.stdin)]))
"""

# The same questions twice: as they are answered, and with every answer parsed by a library that nobody touched.
TWICE = """
import json, re, sys
import sympy.parsing.sympy_parser as sympy_parser
untouched = sympy_parser.parse_expr.__defaults__
sys.path.insert(0, sys.argv[1])
import verify_math
def answer(argv):
    try:
        return verify_math.main(argv)
    except Exception as error:
        return repr(error)
cases = json.load(sys.stdin)
usual = [answer(argv) for argv in cases]
lent = sympy_parser.parse_expr.__defaults__ != untouched
verify_math.PLAIN_NUMBER = verify_math.BOXED_INTEGER = re.compile("(?!)")
sympy_parser.parse_expr.__defaults__ = untouched
print(json.dumps({"lent": lent, "usual": usual, "parsed": [answer(argv) for argv in cases]}))
"""


@pytest.fixture(scope="module")
def python():
    """The interpreter with the script's dependencies."""
    try:
        return asyncio.run(provision(VERIFIER))
    except RuntimeFault as error:
        pytest.skip(f"the verifier's dependencies cannot be had here: {error}")


RIGHT = [
    ("number", "1,000", "1000"),
    ("number", "1000", "The total is 1,000."),
    ("number", "1000", "#### $1,000.00"),
    ("number", "1000", r"\boxed{1{,}000}"),
    ("number", "1000", r"\boxed{\$1,000}"),
    ("number", "18", r"\boxed{18\text{ dollars}}"),
    ("number", "18", "#### 18 dollars\nNot 20, as I thought."),
    ("number", "18", "#### Step 1\nDouble nine.\n#### Step 2\n#### **18**"),
    ("number", "18", "### Sum\n#### Result\nIt is 18"),
    ("number", "-3", "#### -3"),
    ("number", "-3", "#### \u22123"),
    ("number", "3", "10-3"),
    ("number", "0.5", "The share is 1/2"),
    ("boxed", "20,100", r"\boxed{20100}"),
    ("boxed", "20100", r"\boxed{20{,}100}"),
    ("boxed", r"\frac{1}{2}", r"\boxed{0.5}"),
    ("boxed", r"\frac{1}{2}", r"\fbox{\dfrac12}"),
    ("boxed", "(1, 200)", r"\boxed{(1,200)}"),
    ("boxed", r"\{-2, 0, 2\}", r"\boxed{\{0, 2, -2\}}"),
    ("boxed", r"\text{Thursday}", r"\boxed{\text{Thursday}}"),
    ("boxed", "x^2 - 2x - 15", r"\boxed{(x-5)(x+3)}"),
    ("boxed", "5", r"\boxed{x = 5}"),
    ("boxed", "25", r"\boxed{025}"),
    ("boxed", r"3\sqrt{2}", r"First \boxed{1}. Corrected: \boxed{\sqrt{18}}"),
    ("boxed", r"\sqrt{5}", r"So the answer is $\sqrt{5}$."),
]
WRONG = [
    ("number", "4", "3/4"),
    ("number", "42", "#### 43\n42"),
    ("number", "1000", "#### 1"),
    ("boxed", "[-2, 5]", r"\boxed{(-2, 5)}"),
    ("boxed", "(3, 6)", r"\boxed{(6, 3)}"),
    ("boxed", r"\frac{1}{3}", r"\boxed{0.3}"),
    ("boxed", "7", r"\boxed{7} or rather \boxed{8}"),
    ("boxed", "7", "{" * 20_000),
    ("boxed", "7", "\\boxed{" * 2_500),
    ("boxed", "7", r"\boxed{" + "(" * 5_000 + ")" * 5_000 + "}"),
    ("number", "7", "####" + " " * 19_000),
    ("number", "7", "#" * 20_000),
    ("number", "7", "9" * 20_000),
    ("boxed", "7", "\ufffd\x01\x7f\u202e"),
]


NONSENSE = (r"\boxed{-12345}", "#### -12345", "I do not know.", r"\boxed{}", r"\boxed{\frac{", "")


def shipped():
    """Every problem we ship, with its own answer in two forms, and with answers that are wrong for all of them."""
    for name in SETS:
        for task in load_tasks(make_taskset(name, {})):
            yield (task.style, task.answer, task.oracle(()).text), "1.0"
            yield (task.style, task.answer, f"Hence it is $\\boxed{{ {task.answer} }}$. Done {{"), "1.0"
            for wrong in NONSENSE:
                yield (task.style, task.answer, wrong), "0.0"


def test_every_shipped_problem_and_answers_of_all_kinds(python):
    """In one process that serves them all one after the other, as a warm worker would."""
    expected = [*shipped(), *((case, "1.0") for case in RIGHT), *((case, "0.0") for case in WRONG)]
    cases = json.dumps([case for case, _ in expected])
    command = [python, "-c", DRIVER, str(VERIFIER.parent)]
    done = subprocess.run(command, input=cases, capture_output=True, text=True, timeout=120, check=True)
    verdicts = json.loads(done.stdout)
    assert len(verdicts) == len(expected) > 1000
    assert [case for (case, want), got in zip(expected, verdicts, strict=True) if got != want] == []
    assert done.stderr == ""


NUMBERS = [
    "0",
    "-0",
    "007",
    "-007",
    "18",
    "-18",
    "1,000",
    "12.50",
    "-3.0",
    "0.000",
    "5%",
    "$5",
    "1/2",
    ".5",
    "",
    "x",
    "3/0",
]
NUMBERS += ["999999999999999", "-999999999999999", "1000000000000000", "123456789012345678", "\u0663", "1 000"]
FORMS = ["#### {}", "It is {}.", "\\boxed{{{}}}", "\\boxed{{ {} }}", "\\boxed{{{}.0}}", "\\boxed{{{}\\%}}", "#### {}0"]
FORMS += [
    "\\boxed{{+{}}}",
    "\\boxed{{--{}}}",
    "#### -{}",
    "#### ${}",
    "\\boxed{{x={}}}",
    "\\boxed{{\\frac{{{}}}{{1}}}}",
]


def numbers():
    """Each number asked for in each form, as it is and as the next one: plain, odd, and none at all."""
    for place, gold in enumerate(NUMBERS):
        for style in ("number", "boxed"):
            for said in (gold, NUMBERS[place - 1]):
                yield from ((style, gold, form.format(said)) for form in FORMS)


def test_what_is_answered_without_the_parser_is_what_the_parser_says(python):
    cases = [*(case for case, _ in shipped()), *RIGHT, *WRONG, *numbers()]
    command = [python, "-c", TWICE, str(VERIFIER.parent)]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, timeout=120, check=True)
    told = json.loads(done.stdout)
    assert [*zip(cases, told["usual"], strict=True)] == [*zip(cases, told["parsed"], strict=True)]
    assert told["lent"], "the parser gathers its names for every number"


async def scores_of(task, reply, runtime, state=None):
    hooks = hooks_of(type(task))
    supplies = {"reply": reply, "state": {} if state is None else state, "runtime": runtime}
    scores = await call_scores((*hooks.rewards, *hooks.metrics), task, supplies)
    return {name: score.value for name, score in scores.items()}


async def test_scores_through_a_runtime(python):
    task = load_tasks(make_taskset("gsm8k", {}))[46]
    assert task.answer == "1,000"
    async with SubprocessRuntime(SubprocessConfig()) as runtime:
        good = await scores_of(task, "x" * 2**20 + "\0\udc80 #### 1000", runtime)
        bad = await scores_of(task, "\0 #### 1001", runtime)
        with pytest.raises(TaskBroken, match=r"the verifier of task 'odd' ended with code 1: .*no mathematics"):
            await scores_of(MathTask(id="odd", answer="  "), "5", runtime)
    assert good == {"correct": 1.0, "verify_timed_out": 0.0}
    assert bad == {"correct": 0.0, "verify_timed_out": 0.0}


class Scripted:
    """A runtime of which only `run_script` is asked for."""

    def __init__(self, result):
        self.result = result
        self.asked = []

    async def run_script(self, script, args=(), *, env=None, stdin=b"", timeout_s=60.0, warm=False):
        self.asked.append((script, args, warm))
        return self.result


EXITED = ExecResult(Ending.EXITED, 0, b"1.0\n", b"")
TASK = MathTask(id="t", answer="5")


async def test_the_judge_is_asked_once_and_warm():
    runtime = Scripted(EXITED)
    assert await scores_of(TASK, "5", runtime) == {"correct": 1.0, "verify_timed_out": 0.0}
    assert runtime.asked == [(VERIFIER, ["boxed", "5", "5"], True)]


async def test_no_answer_needs_no_judge():
    runtime = Scripted(EXITED)
    assert await scores_of(TASK, " \n", runtime) == {"correct": 0.0, "verify_timed_out": 0.0}
    assert runtime.asked == []


async def test_an_answer_that_cannot_be_judged_in_time_is_wrong_and_counted():
    runtime = Scripted(ExecResult(Ending.TIMED_OUT, 124, b"", b""))
    assert await scores_of(TASK, r"\boxed{9^{9^{9^9}}}", runtime) == {"correct": 0.0, "verify_timed_out": 1.0}


@pytest.mark.parametrize(
    "change",
    [
        {"exit_code": 1, "stdout": b"", "stderr": b"ImportError: no such module"},
        {"stdout": b"2.0"},
        {"stdout": b""},
        {"stdout": b"\xff\xfe"},
        {"ending": Ending.SIGNALLED, "exit_code": 139, "stdout": b"1.0"},
    ],
    ids=str,
)
async def test_a_verifier_that_breaks_is_not_a_wrong_answer(change):
    with pytest.raises(TaskBroken, match="the verifier of task 't' ended with code"):
        await scores_of(TASK, "5", Scripted(msgspec.structs.replace(EXITED, **change)))
