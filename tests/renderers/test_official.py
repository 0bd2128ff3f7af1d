"""gpt-oss against the vendor's own renderer, which is not the chat template: two opinions that must agree."""

import json
import os
import subprocess
import sys

from rollwright.wire import ToolSpec
from vocabularies import package

from .cases import case_of
from .talks import Talker

TOOLS = (
    ToolSpec(
        "look",
        "Looks.",
        {
            "type": "object",
            "properties": {
                "at": {"type": "string", "description": "Where."},
                "far": {"type": "boolean"},
                "times": {"type": "integer"},
                "names": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["at"],
        },
    ),
)

# Runs beside the unpacked package, which the tests themselves do not import.
OFFICIAL = """
import json, sys
import openai_harmony as oh

encoding = oh.load_harmony_encoding(oh.HarmonyEncodingName.HARMONY_GPT_OSS)
Message, Role = oh.Message, oh.Role
about = oh.SystemContent.new().with_conversation_start_date("2024-07-26")
about = about.with_reasoning_effort(oh.ReasoningEffort.MEDIUM)


def messages(rows, tools):
    yield Message.from_role_and_content(Role.SYSTEM, about)
    told = rows[0][1] if rows[0][0] == "system" else ""
    if told or tools:
        content = oh.DeveloperContent.new()
        content = content.with_instructions(told) if told else content
        made = [oh.ToolDescription.new(name, text, parameters=schema) for name, text, schema in tools]
        yield Message.from_role_and_content(Role.DEVELOPER, content.with_function_tools(made) if made else content)
    for role, text, name in rows:
        if role == "user":
            yield Message.from_role_and_content(Role.USER, text)
        elif role in ("analysis", "final"):
            yield Message.from_role_and_content(Role.ASSISTANT, text).with_channel(role)
        elif role == "call":
            call = Message.from_role_and_content(Role.ASSISTANT, text).with_channel("commentary")
            yield call.with_recipient(f"functions.{name}").with_content_type("json")
        elif role == "tool":
            result = Message.from_author_and_content(oh.Author.new(Role.TOOL, f"functions.{name}"), text)
            yield result.with_recipient("assistant").with_channel("commentary")


for rows, tools in json.load(sys.stdin):
    talk = oh.Conversation.from_messages(list(messages(rows, tools)))
    print(json.dumps(encoding.render_conversation_for_completion(talk, Role.ASSISTANT)))
"""


def rows(messages):
    """What everybody says, one channel per row."""
    name = ""
    for message in messages:
        if message.role != "assistant":
            results = [part for part in message.parts if hasattr(part, "call_id")]
            text = "".join(part.text for result in results for part in result.content) if results else message.text
            yield message.role, json.dumps(text, ensure_ascii=False) if results else text, name
            continue
        if thought := message.reasoning or (message.tool_calls and message.text):
            yield "analysis", thought, ""
        for call in message.tool_calls:
            name = call.name
            yield "call", call.arguments, name
        if not message.tool_calls:
            yield "final", message.text, ""


def shown(messages):
    """Without the reasoning before a final answer. The two drop different parts of it, so neither is asked."""
    told = list(rows(messages))
    finals = [at for at, (channel, *_) in enumerate(told) if channel == "final"]
    last = finals[-1] if finals else -1
    return [row for at, row in enumerate(told) if row[0] != "analysis" or at > last]


def test_ids_are_those_of_the_vendors_own_renderer():
    talker = Talker(31, parallel=False, either=True)
    talker.specs = lambda: TOOLS
    talks = [messages for messages, _ in (talker.talk() for _ in range(200)) if messages[-1].role != "assistant"]
    offered = [(tool.name, tool.description, tool.parameters) for tool in TOOLS]
    asked = json.dumps([(shown(messages), offered) for messages in talks])
    place = {"PYTHONPATH": str(package("openai_harmony")), "TIKTOKEN_ENCODINGS_BASE": str(package("encodings"))}
    done = subprocess.run(
        [sys.executable, "-c", OFFICIAL],
        input=asked,
        env={**os.environ, **place},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    renderer = case_of("gptoss").renderer()
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(talks) > 100
    for messages, ids in zip(talks, told, strict=True):
        assert renderer.render(messages, TOOLS).ids.tolist() == ids
