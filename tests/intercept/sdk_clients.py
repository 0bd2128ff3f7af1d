"""The same small job by each official SDK: look at a picture, call two tools at once, answer. Each client speaks its
own dialect, keeps its own history and gives back what it heard in the end."""

import asyncio
import base64
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial

from sdks import anthropic, openai

PIXELS = b"\x89PNG not really" * 400
PICTURE = base64.b64encode(PIXELS).decode()
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def weather(arguments):
    return f"sunny in {arguments['city']}"


class ChatJob:
    dialect = "chat"
    vendor = "openai"
    tools = [{"type": "function", "function": {"name": "weather", "description": "tells", "parameters": SCHEMA}}]

    def address(self, door):
        return {"base_url": f"{door.url}/v1", "api_key": door.key}

    def opening(self, picture=True):
        url = {"url": f"data:image/png;base64,{PICTURE}"}
        shown = [{"type": "image_url", "image_url": url}] if picture else []
        return [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "What is this?"}, *shown]},
        ]

    def ask(self, client, history):
        return client.chat.completions.create(model="gpt-any", messages=history, tools=self.tools, temperature=0.5)

    def ask_stream(self, client, history):
        return client.chat.completions.stream(model="gpt-any", messages=history, tools=self.tools, temperature=0.5)

    def say(self, client, words, stream):
        asked = [{"role": "user", "content": words}]
        return client.chat.completions.create(model="gpt-any", messages=asked, stream=stream)

    def piece(self, event):
        return event.choices[0].delta.content or "" if event.choices else ""

    def heard(self, answer):
        return answer.choices[0].message

    def continued(self, message):
        calls = message.tool_calls or []
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": weather(json.loads(call.function.arguments))}
            for call in calls
        ]
        return [message.model_dump(exclude_none=True), *results], len(calls)

    def text(self, message):
        return message.content

    def final(self, stream):
        return stream.get_final_completion()


class ResponsesJob:
    dialect = "responses"
    vendor = "openai"
    tools = [{"type": "function", "name": "weather", "description": "tells", "parameters": SCHEMA, "strict": False}]

    address = ChatJob.address

    def opening(self, picture=True):
        url = f"data:image/png;base64,{PICTURE}"
        shown = [{"type": "input_image", "image_url": url, "detail": "auto"}] if picture else []
        return [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, *shown]},
        ]

    def ask(self, client, history):
        return client.responses.create(model="gpt-any", input=history, tools=self.tools, temperature=0.5)

    def ask_stream(self, client, history):
        return client.responses.stream(model="gpt-any", input=history, tools=self.tools, temperature=0.5)

    def say(self, client, words, stream):
        return client.responses.create(model="gpt-any", input=words, stream=stream)

    def piece(self, event):
        return event.delta if event.type == "response.output_text.delta" else ""

    def heard(self, answer):
        return answer

    def continued(self, answer):
        calls = [item for item in answer.output if item.type == "function_call"]
        # The parsed fields are the SDK's own and no part of its requests.
        said = [
            item.model_dump(exclude_none=True, exclude={"parsed_arguments"}, warnings=False) for item in answer.output
        ]
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": weather(json.loads(call.arguments))}
            for call in calls
        ]
        return [*said, *results], len(calls)

    def text(self, answer):
        return answer.output_text

    def final(self, stream):
        return stream.get_final_response()


class MessagesJob:
    dialect = "messages"
    vendor = "anthropic"
    tools = [{"name": "weather", "description": "tells", "input_schema": SCHEMA}]

    def address(self, door):
        return {"base_url": door.url, "api_key": door.key}

    def opening(self, picture=True):
        source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
        shown = [{"type": "image", "source": source}] if picture else []
        return [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, *shown]}]

    def _asking(self, history):
        return {
            "model": "claude-any",
            "max_tokens": 500,
            "system": "Be brief.",
            "messages": history,
            "tools": self.tools,
        }

    def ask(self, client, history):
        return client.messages.create(**self._asking(history))

    def ask_stream(self, client, history):
        return client.messages.stream(**self._asking(history))

    def say(self, client, words, stream):
        asked = [{"role": "user", "content": words}]
        return client.messages.create(model="claude-any", max_tokens=500, messages=asked, stream=stream)

    def piece(self, event):
        return event.delta.text if event.type == "content_block_delta" and event.delta.type == "text_delta" else ""

    def heard(self, answer):
        return answer

    def continued(self, answer):
        calls = [block for block in answer.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": weather(call.input)} for call in calls]
        said = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]}
        return ([said, {"role": "user", "content": results}] if results else [said]), len(calls)

    def text(self, answer):
        return answer.content[0].text

    def final(self, stream):
        return stream.get_final_message()


JOBS = {job.dialect: job for job in (ChatJob(), ResponsesJob(), MessagesJob())}


def blocking():
    return {"openai": openai.OpenAI, "anthropic": anthropic.Anthropic}


def awaited():
    return {"openai": openai.AsyncOpenAI, "anthropic": anthropic.AsyncAnthropic}


def async_client(job, door, **options):
    """A client of its own, which whoever asked for it closes."""
    return awaited()[job.vendor](**job.address(door), **{"max_retries": 0, "timeout": 30, **options})


class Desk:
    """Where many SDKs work at once. Each vendor's client is made once, because making one costs more than all that a
    test asks with it; each blocking one has a thread to wait in."""

    _AT_ONCE = 64

    async def __aenter__(self):
        self._stack, nowhere = AsyncExitStack(), {"base_url": "http://127.0.0.1:9", "api_key": "none"}
        self._made = {(vendor, True): make(**nowhere) for vendor, make in blocking().items()}
        for client in self._made.values():
            self._stack.callback(client.close)
        for vendor, make in awaited().items():
            self._made[vendor, False] = await self._stack.enter_async_context(make(**nowhere))
        self._threads = ThreadPoolExecutor(self._AT_ONCE)
        self._stack.callback(self._threads.shutdown, wait=False, cancel_futures=True)
        return self

    async def __aexit__(self, *_):
        await self._stack.aclose()

    async def work(self, dialect, door, *, stream, blocking, picture=True, **options):
        """The whole job. The last text, and how many tools were called at once."""
        return await self._done((work, work_async), dialect, door, blocking, options, stream=stream, picture=picture)

    async def say(self, dialect, door, words, *, stream, blocking, **options):
        """What the model says to a few words, whichever they are."""
        return await self._done((say, say_async), dialect, door, blocking, options, words=words, stream=stream)

    async def _done(self, ways, dialect, door, blocking, options, **asked):
        job = JOBS[dialect]
        options = {"max_retries": 0, "timeout": 30, **options}
        client = self._made[job.vendor, blocking].with_options(**job.address(door), **options)
        if not blocking:
            return await ways[1](job, client, **asked)
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(ways[0], job, client, **asked))


def work(job, client, *, stream, picture=True):
    history, tools = job.opening(picture), 0
    while True:
        if stream:
            with job.ask_stream(client, history) as events:
                for _ in events:
                    pass
                message = job.heard(job.final(events))
        else:
            message = job.heard(job.ask(client, history))
        more, called = job.continued(message)
        if not called:
            return job.text(message), tools
        history, tools = [*history, *more], max(tools, called)


async def work_async(job, client, *, stream, picture=True):
    history, tools = job.opening(picture), 0
    while True:
        if stream:
            async with job.ask_stream(client, history) as events:
                async for _ in events:
                    pass
                message = job.heard(await job.final(events))
        else:
            message = job.heard(await job.ask(client, history))
        more, called = job.continued(message)
        if not called:
            return job.text(message), tools
        history, tools = [*history, *more], max(tools, called)


def say(job, client, *, words, stream):
    answer = job.say(client, words, stream)
    if not stream:
        return job.text(job.heard(answer))
    with answer:
        return "".join(map(job.piece, answer))


async def say_async(job, client, *, words, stream):
    answer = await job.say(client, words, stream)
    if not stream:
        return job.text(job.heard(answer))
    async with answer:
        return "".join([job.piece(event) async for event in answer])
