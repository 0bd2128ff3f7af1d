"""The games among our own tasksets, the oracle that plays all of them, and the arithmetic of the data we wrote."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.tasks import call_respond, call_scores, hooks_of, load_tasks, make_taskset
from rollwright.tasks.builtin.answers import ANSWER_CHARS, sayable
from rollwright.tasks.builtin.math import boxed_in
from rollwright.tasks.builtin.wordle import FIRST_GUESS, OPENING, best_guess, guess_in, marks_of, search
from rollwright.tasks.builtin.words import ANSWERS
from rollwright.tasks.oracle import solver
from rollwright.wire import UsageError, assistant, system, user

NAMES = ["aime24", "gsm8k", "math", "reverse-text", "wordle"]


def tasks_of(name, **options):
    return load_tasks(make_taskset(name, options))


async def scores_of(task, reply="", state=None):
    hooks = hooks_of(type(task))
    supplies = {"reply": reply, "state": {} if state is None else state}
    scores = await call_scores((*hooks.rewards, *hooks.metrics), task, supplies)
    return {name: score.value for name, score in scores.items()}


@pytest.mark.parametrize(("name", "least"), list(zip(NAMES, [15, 60, 30, 500, 150], strict=True)))
def test_offline_sets_are_large_enough_and_all_different(name, least):
    tasks = tasks_of(name)
    assert len(tasks) >= least
    assert all(task.opening()[0].role == "system" and task.opening()[-1].role == "user" for task in tasks)
    if name != "wordle":
        assert len({task.prompt for task in tasks}) == len(tasks)
    assert [task.id for task in tasks_of(name)] == [task.id for task in tasks]


def test_only_mathematics_needs_a_runtime():
    needs = {name: hooks_of(type(tasks_of(name)[0])).needs_runtime for name in NAMES}
    assert needs == {"aime24": True, "gsm8k": True, "math": True, "reverse-text": False, "wordle": False}


EQUATION = re.compile(r"((?:\d+\s*[-+*/]\s*)+\d+) = (\d+)")


@pytest.mark.parametrize("task", tasks_of("gsm8k"), ids=lambda task: task.id)
def test_the_arithmetic_of_our_word_problems_is_right(task):
    equations = EQUATION.findall(task.solution)
    assert len(equations) == task.solution.count("=") > 0
    for left, right in equations:
        assert eval(left) == int(right)  # Digits and operators only, by the pattern above.
    assert equations[-1][1] == task.answer.replace(",", "")


def test_answers_with_separators_and_levels_are_there():
    assert sum("," in task.answer for task in tasks_of("gsm8k")) >= 3
    assert all(0 <= int(task.answer) <= 999 for task in tasks_of("aime24"))
    levels = Counter(task.info["level"] for task in tasks_of("math"))
    assert set(levels) == {1, 2, 3, 4, 5}
    assert len({task.info["subject"] for task in tasks_of("math")}) == 7
    assert all(boxed_in(task.solution) == task.answer for task in tasks_of("math"))


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so $\boxed{5}$, no, $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed 7$", "7"),
        (r"\boxed{never closed", ""),
        ("no box", ""),
        (r"\boxed", ""),
    ],
)
def test_the_last_box_of_a_solution(solution, answer):
    assert boxed_in(solution) == answer


@given(reply=st.text(st.characters(), max_size=200))
def test_what_goes_on_argv_can_go_on_argv(reply):
    said = sayable(reply)
    assert "\0" not in said
    assert said.encode("utf-8").decode() == said
    assert len(said) == len(reply)


def test_a_megabyte_of_answer_is_judged_by_its_end():
    said = sayable("x" * 2**20 + "#### 42")
    assert len(said) == ANSWER_CHARS
    assert said.endswith("#### 42")
    assert len(sayable("\U0001f600" * 2**20).encode()) < 128 * 1024


@pytest.mark.parametrize("name", NAMES)
def test_the_solver_finds_the_task_of_every_conversation(name):
    solve = solver({"taskset": name})
    for task in tasks_of(name):
        found = solve.find(task.opening())
        assert found.prompt == task.prompt
        assert solve(task.opening()) == task.oracle(task.opening())
        # Other harnesses bring their own system message, or none.
        assert solve.find((system("You are an agent."), user(task.prompt), assistant("hm"), user("go on"))) is found
    assert solve((user("What else?"),)) is None
    assert solve(()) is None


def test_the_solver_takes_the_tasksets_options():
    solve = solver({"taskset": "reverse-text", "options": {"count": 1, "seed": 5}})
    (task,) = tasks_of("reverse-text", count=1, seed=5)
    assert solve(task.opening()).text == f"<reversed>{task.text[::-1]}</reversed>"


async def test_reverse_text_rewards_likeness():
    for task in tasks_of("reverse-text", count=25):
        right = task.text[::-1]
        assert await scores_of(task, task.oracle(()).text) == {"likeness": 1.0, "exact": 1.0}
        assert await scores_of(task, f"  {right}\n") == {"likeness": 1.0, "exact": 1.0}
        almost = await scores_of(task, f"<reversed>{right[:-1]}</reversed>")
        assert (0.8 < almost["likeness"] < 1.0, almost["exact"]) == (True, 0.0)
        assert await scores_of(task, "") == {"likeness": 0.0, "exact": 0.0}
        assert (await scores_of(task, "<reversed>0123456789</reversed>"))["likeness"] == 0.0


async def test_a_megabyte_of_reversed_text_is_cheap():
    (task,) = tasks_of("reverse-text", count=1)
    scores = await scores_of(task, task.text[::-1] * 50_000)
    assert 0.0 < scores["likeness"] < 0.7
    assert scores["exact"] == 0.0


def test_reverse_text_is_stable_when_more_is_asked_for():
    few, many = tasks_of("reverse-text", count=5), tasks_of("reverse-text", count=50)
    assert many[:5] == few
    assert tasks_of("reverse-text", count=5, seed=1) != few
    assert all(3 <= len(task.text.split()) <= 4 for task in tasks_of("reverse-text", min_words=3, max_words=4))


@pytest.mark.parametrize("options", [{"min_words": 0}, {"min_words": 5, "max_words": 4}, {"count": 0}])
def test_reverse_text_refuses_settings_that_make_no_texts(options):
    with pytest.raises(UsageError):
        tasks_of("reverse-text", **options)


def naive_marks(guess, word):
    """The rule as one would play it with a pencil: cross out letters that were used."""
    left, marks = list(word), ["-"] * len(word)
    for place in range(len(word)):
        if guess[place] == word[place]:
            marks[place] = "G"
            left[place] = "_"
    for place in range(len(word)):
        if marks[place] == "-" and guess[place] in left:
            marks[place] = "Y"
            left[left.index(guess[place])] = "_"
    return "".join(marks)


@given(guess=st.text("abc", min_size=5, max_size=5), word=st.text("abc", min_size=5, max_size=5))
def test_marks_equal_the_naive_rule_with_many_duplicate_letters(guess, word):
    assert marks_of(guess, word) == naive_marks(guess, word)


@pytest.mark.parametrize(
    ("guess", "word", "marks"),
    [
        ("eerie", "beech", "YG---"),
        ("llama", "label", "GYY--"),
        ("speed", "abide", "--Y-Y"),
        ("geese", "eagle", "YY--G"),
        ("apple", "apple", "GGGGG"),
    ],
)
def test_marks_by_hand(guess, word, marks):
    assert marks_of(guess, word) == marks


def test_words_are_five_small_letters_each_once():
    assert all(re.fullmatch("[a-z]{5}", word) for word in ANSWERS)
    assert len(set(ANSWERS)) == len(ANSWERS)


async def play(task, policy):
    hooks = hooks_of(type(task))
    messages, state = list(task.opening()), {}
    task.setup(state)
    for _ in range(20):
        reply = policy(messages)
        messages.append(reply)
        more = await call_respond(hooks.respond, task, {"state": state, "reply": reply.text})
        if not more:
            return await scores_of(task, reply.text, state)
        messages += more
    raise AssertionError("the game did not end")


async def test_the_oracle_wins_every_game():
    solve = solver({"taskset": "wordle"})
    for task in tasks_of("wordle"):
        scores = await play(task, solve)
        assert (scores["solved"], scores["closeness"], scores["malformed"]) == (1.0, 1.0, 0.0)
        assert 1 <= scores["turns"] <= 6


@pytest.mark.parametrize("said", ["", "I give up", "<guess>zz</guess>", "<guess>zzzzz</guess>", "<guess>ängst</guess>"])
async def test_a_game_that_is_not_won_ends_and_is_not_rewarded(said):
    (task,) = [task for task in tasks_of("wordle") if task.word == "apple"]
    scores = await play(task, lambda messages: assistant(said))
    assert (scores["solved"], scores["closeness"], scores["turns"]) == (0.0, 0.0, 6.0)
    assert scores["malformed"] == (0.0 if said == "<guess>zzzzz</guess>" else 6.0)


async def test_closeness_counts_letters_in_place():
    (task,) = [task for task in tasks_of("wordle", max_guesses=1) if task.word == "stone"]
    assert await play(task, lambda messages: assistant("<guess>Store</guess>")) == {
        "solved": 0.0,
        "closeness": 0.8,
        "turns": 1.0,
        "malformed": 0.0,
    }


def test_the_last_guess_counts():
    assert guess_in("<guess>apple</guess> or rather <guess> GRAPE </guess>") == "grape"


def test_the_first_guess_is_the_one_a_search_finds():
    assert best_guess(()) == FIRST_GUESS == search(())


def test_marks_that_fit_no_word_still_give_a_guess():
    assert best_guess((("zzzzz", "GGGGG"),)) in ANSWERS


def test_wordle_refuses_no_guesses():
    with pytest.raises(UsageError, match="at least 1 guess"):
        tasks_of("wordle", max_guesses=0)
    assert tasks_of("wordle")[0].prompt == OPENING
