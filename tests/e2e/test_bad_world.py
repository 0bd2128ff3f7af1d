"""An evaluation in a world that misbehaves: one clear sentence each, no traceback, and nothing finished is lost."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from forked import python
from rollwright.traces import read_traces

TASKSET = '''
from rollwright.tasks import Task, Taskset, reward

class One(Task):
    @reward
    def score(self, reply: str):
        match self.prompt:
            case "nan": return float("nan")
            case "none": return None
            case "raise": return 1 / 0
            case "text": return "high"
        return 1.0

class Ones(Taskset):
    prompts: str = "a b c d e f"
    """Words to ask."""

    def tasks(self):
        return [One(id=f"{n}-{word}", prompt=word) for n, word in enumerate(self.prompts.split())]
'''


def said(text: bytes) -> bytes:
    head = b'{"id":"1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop",'
    return head + b'"message":{"role":"assistant","content":"' + text + b'"}}]}'


@asynccontextmanager
async def endpoint(answer):
    """A model server whose answer to a prompt is bytes, a status, or a broken connection."""

    async def handle(request):
        asked = (await request.json())["messages"][-1]["content"]
        given = answer(asked, request)
        if isinstance(given, int):
            return web.json_response({"error": {"message": "no"}}, status=given)
        if given is None:
            request.transport.close()
            return web.Response()
        return web.Response(body=given, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
def evaluate(tmp_path):
    (tmp_path / "ones.py").write_text(TASKSET)

    async def evaluate(base_url, *more):
        argv = ["-m", "rollwright", "eval", "ones.py", "-m", "m", "--base-url", base_url, "-o", "run", "--json"]
        done = await asyncio.to_thread(
            python, *argv, "--engine.relay.max-retries", "1", *more, cwd=tmp_path, timeout=60
        )
        assert "Traceback" not in done.stderr, done.stderr
        summary = json.loads(done.stdout.splitlines()[-1]) if done.stdout else None
        return done.returncode, summary, done.stderr

    return evaluate


def finished(tmp_path):
    return sorted(trace.task_id for trace in read_traces(tmp_path / "run"))


BAD_ANSWERS = {
    "not UTF-8": said(b"caf\xe9"),
    "half a surrogate pair": said(b"\\ud800"),
    "cut JSON": said(b"yes")[:-9],
    "not an object": b"[1, 2]",
    "nothing": b"",
    "an error page": b"<html>502</html>",
    "closed connection": None,
    "refused": 400,
}


@pytest.mark.parametrize("kind", BAD_ANSWERS)
async def test_a_bad_answer_fails_its_own_rollout_only(evaluate, tmp_path, kind):
    def answer(asked, request):
        return BAD_ANSWERS[kind] if asked == "c" else said(b"yes")

    async with endpoint(answer) as url:
        code, summary, err = await evaluate(url)
    assert (code, summary["finished"], summary["failures"]) == (1, 5, {"engine": 1}), err
    assert len(finished(tmp_path)) == 5


async def test_odd_but_valid_answers_are_kept_as_they_are(evaluate, tmp_path):
    async with endpoint(lambda asked, request: said(b"\\u0000\\ud83d\\ude42 \xf0\x9f\x99\x82 \\\\n")) as url:
        code, summary, err = await evaluate(url)
    assert (code, summary["finished"]) == (0, 6), err
    assert {trace.reply for trace in read_traces(tmp_path / "run")} == {"\0🙂 🙂 \\n"}


async def test_a_wrong_key_costs_one_sentence(evaluate, tmp_path):
    async with endpoint(lambda asked, request: 401) as url:
        code, summary, err = await evaluate(url)
    assert (code, summary) == (1, None)
    assert err.count("\n") == 1
    assert "OPENAI_API_KEY" in err
    assert not (tmp_path / "run").exists()


async def test_an_endpoint_that_dies_in_the_middle_loses_nothing(evaluate, tmp_path):
    served = 0

    def answer(asked, request):
        nonlocal served
        served += 1
        return said(b"yes") if served <= 4 else None

    async with endpoint(answer) as url:
        code, summary, _ = await evaluate(url, "-c", "1")
        # The probe is the first of the four.
        assert (code, summary["finished"], summary["failures"]) == (1, 3, {"engine": 3})
        kept = finished(tmp_path)
        served = 0
        code, summary, _ = await evaluate(url, "-c", "1", "--resume")
    assert (code, summary["finished"]) == (0, 6)
    assert set(kept) < set(finished(tmp_path))


async def test_rewards_that_are_no_numbers_fail_their_rollout_in_one_sentence(evaluate, tmp_path):
    async with endpoint(lambda asked, request: said(b"yes")) as url:
        code, summary, err = await evaluate(url, "--taskset.prompts", "a nan none raise text b")
    assert (code, summary["finished"], summary["failures"]) == (1, 2, {"task": 4})
    assert "reward 'score' of One returned nan; return a finite number" in err
    assert "reward 'score' of One returned None; return a finite number" in err
    assert "reward 'score' of One raised ZeroDivisionError: division by zero" in err
    assert finished(tmp_path) == ["0-a", "5-b"]


async def test_an_empty_dataset_is_said(evaluate, tmp_path):
    code, summary, err = await evaluate("http://127.0.0.1:9", "--taskset.prompts", "")
    assert (code, summary) == (2, None)
    assert err.count("\n") == 1
    assert "no tasks" in err
