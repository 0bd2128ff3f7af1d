"""Any program: what it is told and how, what its end means, and that it is ended where it does not end by itself."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollwright.harnesses import Limits, harness_config, make_harness, programs
from rollwright.harnesses.command import NAMES, filled
from rollwright.tasks import Task
from rollwright.wire import EngineUnavailable, Layer, Stop, UsageError

from .playing import rolled_out

# Asks the model once and prints the answer, with nothing but what its environment says.
ASK = """
import json, os, sys, urllib.request
prompt = sys.stdin.read()
body = json.dumps({"model": sys.argv[1], "messages": [{"role": "user", "content": prompt}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


class Plain(Task, frozen=True):
    pass


def python(code, *words, **settings):
    return {"argv": [sys.executable, "-c", code, *words], **settings}


async def run(settings, answer=lambda call: "ok", *, prompt="Go.", **options):
    task = Plain(id="p", prompt=prompt)
    return await rolled_out("command", answer, task=task, settings=settings, **options)


async def test_the_usual_variables_lead_to_the_model():
    seen = []

    def answer(call):
        seen.append((call.model, call.messages[-1].text))
        return "ok"

    prompt = "Say ok. {key} {prompt} \u00e4\n$(id)"
    trace = await run(python(ASK, "{model}"), answer, prompt=prompt)
    assert (trace.stop, trace.reply, trace.failure) == (Stop.FINISHED, "ok", None)
    assert seen == [("scripted", prompt)]


async def test_names_are_filled_in_everywhere():
    code = ASK + "open('told', 'w').write(json.dumps([sys.argv[1:], os.environ['MINE'], prompt]))"

    class Told(Task, frozen=True):
        async def finalize(self, runtime, state) -> None:
            state["told"] = json.loads(await runtime.read("told"))
            words, mine, stdin = state["told"]
            assert words == ["scripted", "{prompt} is {key}", "Be brief. {nothing}"]
            assert mine.startswith("http://127.0.0.1:")
            assert mine.endswith(" scripted")
            assert stdin == "<{prompt} is {key}>"

    settings = python(code, "{model}", "{prompt}", "{system} {nothing}", env={"MINE": "{base_url} {model}"})
    task = Told(id="t", system="Be brief.", prompt="{prompt} is {key}")
    trace = await rolled_out("command", lambda call: "ok", task=task, settings={**settings, "stdin": "<{prompt}>"})
    assert trace.failure is None, trace.failure


@given(st.text(max_size=40), st.dictionaries(st.sampled_from(NAMES), st.text(max_size=20)))
def test_what_is_filled_in_is_not_looked_at_again(text, given_values):
    known = {name: given_values.get(name, "") for name in NAMES}
    pieces = [text.replace("{", "<"), "{key}", "{prompt}"]
    assert filled("".join(pieces), known) == pieces[0] + known["key"] + known["prompt"]


def test_a_key_on_a_command_line_is_refused():
    with pytest.raises(UsageError, match=r"put it into a variable"):
        harness_config("command", {"argv": ["agent", "--key={key}"]})
    with pytest.raises(UsageError, match="needs a program"):
        make_harness(harness_config("command"))


async def test_a_program_that_breaks_fails_its_rollout_with_its_last_words():
    trace = await run(python(ASK + "\nsys.exit('x' * 9000 + 'the end')", "m"))
    assert (trace.stop, trace.failure.layer) == (Stop.FAILED, Layer.HARNESS)
    assert trace.failure.message.startswith("command: ended with 1; the end of its stderr: xxx")
    assert trace.failure.message.endswith("xxxthe end")
    assert len(trace.failure.message) < 2000


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"argv": ["true"]}, "it ended without an answer from its model"),
        ({"argv": ["no-such-program"]}, "ended with 127"),
    ],
)
async def test_a_program_that_asks_nothing_has_done_nothing(settings, told):
    trace = await run(settings)
    assert trace.failure.layer is Layer.HARNESS
    assert told in trace.failure.message


async def test_an_engine_that_fails_is_the_engines_fault_whatever_the_program_says():
    def answer(call):
        raise EngineUnavailable("away")

    for code in (ASK, f"try:\n    exec({ASK!r})\nexcept Exception: pass"):
        trace = await run(python(code, "m"), answer)
        assert (trace.failure.layer, trace.failure.message) == (Layer.ENGINE, "away")


async def test_a_program_that_does_not_take_no_for_an_answer_is_ended(monkeypatch):
    monkeypatch.setattr(programs, "GRACE_S", 0.2)
    code = f"""
import os, time
while True:
    try:
        exec({ASK!r})
    except Exception:
        time.sleep(0.01)
"""
    trace = await run(python(code, "m"), limits=Limits(max_turns=1))
    assert (trace.stop, trace.failure, len(trace.calls)) == (Stop.TURNS_SPENT, None, 1)
