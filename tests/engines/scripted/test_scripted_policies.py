"""What the scripted engine says: policy strings, wrong answers that keep their shape, transcripts."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.engines.scripted.config import Fault, ScriptedConfig
from rollwright.engines.scripted.conversations import draw
from rollwright.engines.scripted.policies import UNKNOWN, echo, make_policy, noisy, oracle, parse_policy
from rollwright.engines.scripted.spoil import spoil, spoil_text
from rollwright.engines.scripted.transcript import Transcript, write_transcript
from rollwright.wire import (
    EngineRefused,
    Message,
    ModelCall,
    Text,
    ToolCall,
    UsageError,
    assistant,
    system,
    tool_result,
    user,
)


def dice(asked=0, seed=0):
    return draw(seed, "test", b"", asked)


def call(*messages):
    return ModelCall("m", messages)


def adder(options):
    """A solver for 'a+b' that knows no other question."""

    def solve(messages):
        first, plus, second = messages[-1].text.partition("+")
        return assistant(f"{options['says']} {int(first) + int(second)}") if plus else None

    return solve


SOLVED = ScriptedConfig(solver=f"{__name__}:adder", solver_options={"says": "It is"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oracle", ("oracle", "")),
        (" noisy( 0.25 ) ", ("noisy", "0.25")),
        ("echo", ("echo", "")),
        ("transcript(a dir/x(1).jsonl)", ("transcript", "a dir/x(1).jsonl")),
        ("package.module:name", ("import", "package.module:name")),
        ("./some dir/file.py:name", ("import", "./some dir/file.py:name")),
    ],
)
def test_policy_strings(text, expected):
    assert parse_policy(text) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("orcale", "did you mean 'oracle'?"),
        ("noissy(0.3)", "did you mean 'noisy'?"),
        ("", "known are oracle"),
        ("noisy", "write 'noisy\\(0.3\\)'"),
        ("noisy(2)", "between 0 and 1"),
        ("noisy(nan)", "between 0 and 1"),
        ("echo(1)", "takes no argument"),
        ("transcript", "needs a file"),
        ("transcript(nowhere.jsonl)", "cannot be read"),
        ("nowhere_at_all:policy", "cannot be imported"),
        ("nowhere.py:policy", "there is no file"),
        ("json:lods", "did you mean 'json:loads'"),
        ("json:__doc__", "must be a callable"),
        ("oracle", "needs a solver"),
    ],
)
def test_a_bad_policy_is_one_sentence(text, sentence):
    with pytest.raises(UsageError, match=sentence):
        make_policy(ScriptedConfig(policy=text))


def test_a_policy_from_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from rollwright.wire import assistant\ndef shout(call, rng):\n    return assistant('HEY')\n")
    assert make_policy(ScriptedConfig(policy=f"{file}:shout"))(call(), dice()) == assistant("HEY")


@pytest.mark.parametrize("text", ["def broken(:\n", "import nothing_like_this\n"])
def test_a_file_that_does_not_import(tmp_path, text):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(UsageError, match="cannot be imported"):
        make_policy(ScriptedConfig(policy=f"{file}:shout"))


@pytest.mark.parametrize(
    "settings",
    [
        {"faults": {"rate_limit": 1.5}},
        {"faults": {"stall": 0.7, "server_error": 0.7}},
        {"latency_s": -1.0},
        {"chunk_chars": 0},
        {"routed_layers": 100000},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(UsageError):
        msgspec.convert(settings, ScriptedConfig)


def test_unknown_settings_are_refused():
    with pytest.raises(msgspec.ValidationError, match="polcy"):
        msgspec.convert({"polcy": "echo"}, ScriptedConfig)


def test_settings_survive_json():
    config = ScriptedConfig(faults={Fault.STALL: 0.5}, fault_script=(Fault.NONE, Fault.CUT_STREAM), models=("a",))
    assert msgspec.json.decode(msgspec.json.encode(config), type=ScriptedConfig) == config


def test_echo_says_the_last_thing_it_was_told():
    assert echo(call(system("s"), user("one"), assistant("two")), dice()) == assistant("one")
    assert echo(call(user("one"), tool_result("c", "three")), dice()) == assistant("three")
    assert echo(call(), dice()).parts == ()


def test_the_oracle_knows_or_says_that_it_does_not():
    play = make_policy(SOLVED)
    assert play(call(user("2+3")), dice()) == assistant("It is 5")
    assert play(call(user("why?")), dice()) == assistant(UNKNOWN)


def test_noise_comes_with_its_probability_and_never_helps():
    play = noisy(adder({"says": "It is"}), 0.3)
    said = [play(call(user("20+30")), dice(asked)) for asked in range(1000)]
    wrong = [message for message in said if message != assistant("It is 50")]
    assert 230 < len(wrong) < 370
    assert all(message.text.startswith("It is ") and len(message.text) == 8 for message in wrong)
    assert {noisy(adder({"says": ""}), 0.0)(call(user("1+1")), dice(n)).text for n in range(50)} == {" 2"}


def test_oracle_needs_no_factory_in_process():
    assert oracle(lambda messages: assistant("yes"))(call(), dice()) == assistant("yes")


marked = st.sampled_from(
    ["{}", "\\boxed{{{}}}", "so <answer>{}</answer>.", "because\n#### {}", "it is {}, says 1 man: \\boxed{{{}}}"]
)
answers = st.text("abcxyz 0123456789", min_size=1, max_size=30).filter(str.strip)


@given(marked, answers, st.integers())
def test_a_spoiled_answer_differs_inside_its_marks_only(mark, answer, seed):
    right = mark.replace("{}", answer).replace("{{", "{").replace("}}", "}")
    wrong = spoil_text(right, Random(seed))
    assert wrong != right
    head = mark[: mark.rindex("{}")].replace("{}", answer).replace("{{", "{")
    assert wrong.startswith(head)
    assert wrong.endswith(mark[mark.rindex("{}") + 2 :].replace("}}", "}"))


@pytest.mark.parametrize("arguments", ['{"a": 12}', '{"text": "hello", "n": "x"}', '{"path": "C:\\\\new \\"x\\" 7"}'])
def test_spoiled_arguments_stay_json(arguments):
    message = Message("assistant", (ToolCall("c", "f", arguments),))
    for seed in range(20):
        wrong = spoil(message, Random(seed)).tool_calls[0].arguments
        assert msgspec.json.decode(wrong).keys() == msgspec.json.decode(arguments).keys()
        assert wrong != arguments


def test_tool_calls_beside_text_are_left_alone():
    message = Message("assistant", (Text("I look"), ToolCall("c", "f", '{"a": 1}')))
    spoiled = spoil(message, Random(0))
    assert spoiled.tool_calls == message.tool_calls
    assert spoiled.text != message.text


def test_a_transcript_plays_each_recording_once_a_round(tmp_path):
    path = tmp_path / "t.jsonl"
    talks = [[user("hi"), assistant(first), user("and?"), assistant(f"{first}!")] for first in ("a", "b")]
    write_transcript(path, talks)
    play = make_policy(ScriptedConfig(policy=f"transcript({path})"))
    assert [play(call(user("hi")), dice(asked)).text for asked in range(4)] == ["a", "b", "a", "b"]
    assert play(call(user("hi"), assistant("b"), user("and?")), dice()).text == "b!"


def test_answers_without_prompts_are_played_by_turn():
    play = Transcript([[assistant("one"), assistant("two")]])
    assert play(call(user("anything")), dice()).text == "one"
    assert play(call(user("anything"), assistant("one"), user("more")), dice()).text == "two"
    with pytest.raises(EngineRefused, match="turn 3"):
        play(call(user("a"), assistant("one"), user("b"), assistant("two"), user("c")), dice())


def test_a_transcript_that_is_none_says_where(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"messages": []}\n\n{"messages": [{"role": "robot"}]}\n')
    with pytest.raises(UsageError, match="line 3 of transcript"):
        Transcript.load(path)
