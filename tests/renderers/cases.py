"""The families under test: for each its table, a vocabulary, the templates it must equal, and what they accept."""

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rollwright.renderers import load_engine
from rollwright.renderers.contract import PARITY, Reason, RenderOptions, ThinkingPolicy
from rollwright.renderers.families import (
    deepseek,
    deepseek3,
    deepseek31,
    gemma,
    gemma4,
    glm,
    harmony,
    kimi,
    llama,
    minimax,
    mistral,
    nemotron,
    qwen,
    qwen35,
)
from rollwright.renderers.ranks import byte_vocabulary
from rollwright.renderers.render import TableRenderer
from rollwright.wire import Message, Reasoning, Text, ToolCall
from vocabularies import template, vocabulary

from .oracle import Oracle
from .talks import Talker


@cache
def _engine(name):
    return load_engine(byte_vocabulary(name) if isinstance(name, tuple) else vocabulary(name))


@dataclass(frozen=True)
class Case:
    """One template of one family."""

    template: str
    family: Any
    vocabulary: str
    arguments: str = "object"
    given: dict = field(default_factory=dict)
    """What the oracle's template is told beside the conversation."""
    talker: dict = field(default_factory=dict)
    """What its conversations may hold."""
    thinking: tuple = (None,)
    keeps: str = ""
    """The template's own name for keeping all reasoning, and the value that keeps it."""
    keeping: bool = True
    declines: frozenset = frozenset({Reason.THINKING_DROPPED})
    """Why extensions of its conversations may be declined."""
    late_text: bool = False
    """The template shows the text of an answer that calls after the results, where no model can have sampled it."""
    tells: Any = lambda message: True
    """Whether the format can tell this answer from others."""

    canonical: Any = None
    """An answer as the format can show it, where that is more than trimming."""

    def __str__(self):
        return self.template

    @property
    def literals(self):
        """Control strings and pieces of them, to be said inside texts."""
        return tuple(self.family.stops) + CONTROLS

    @property
    def count(self):
        """How many conversations each template of a family takes, so that the family has two thousand."""
        name = self.family.name.removesuffix("-nothink")
        return 2000 // sum(case.family.name.removesuffix("-nothink") == name for case in CASES)

    def oracle(self):
        return Oracle(template(self.template), arguments=self.arguments, **self.given)

    def engine(self):
        return _engine(self.vocabulary)

    def renderer(self, engine=None, metrics=None, **options):
        return TableRenderer(self.family, engine or self.engine(), RenderOptions(**options), metrics)

    def ways(self):
        """Options of ours, and the same in the template's words."""
        for thinking in self.thinking:
            told = {} if thinking is None else {"enable_thinking": thinking}
            yield {"thinking": thinking, "literal": PARITY}, told
            if self.keeps:
                yield (
                    {"thinking": thinking, "literal": PARITY, "history": ThinkingPolicy.KEEP},
                    {**told, self.keeps: self.keeping},
                )

    def talks(self, seed, count, *, literals=True):
        talker = Talker(seed, literals=self.literals if literals else (), loose=True, **self.talker)
        return [talker.talk() for _ in range(count)]


def tells_xml(message):
    """Bare values end at the first closing tag, so a value that holds one cannot be told."""
    return not any("</parameter>" in call.arguments or "</function>" in call.arguments for call in message.tool_calls)


def numbered(message):
    """An answer whose calls are known by their tool and their number."""
    calls = [
        ToolCall(f"functions.{call.name}:{at}", call.name, call.arguments) for at, call in enumerate(message.tool_calls)
    ]
    return Message("assistant", (*((Text(message.text),) if message.text else ()), *calls))


def tells_invoke(message):
    """A value ends at the first closing tag, and a name of a parameter at the first quote."""
    return not any("parameter>" in call.arguments or "invoke" in call.arguments for call in message.tool_calls)


def words_alone(message):
    """An answer in a format that shows calls and answers in ways that no model samples."""
    return Message("assistant", (Text(message.text),) if message.text else ())


def call_or_words(message):
    """An answer where text beside a call is reasoning."""
    text, reasoning, calls = message.text, message.reasoning, message.tool_calls
    if calls and text and not reasoning:
        text, reasoning = "", text
    parts = (Reasoning(reasoning),) if reasoning else ()
    return Message("assistant", (*parts, *((Text(text),) if text else ()), *calls))


def words_without_a_tail(message):
    """An answer whose text has no space at its end, and reasoning that is more than space."""
    text, reasoning = message.text.rstrip(), message.reasoning
    parts = (Reasoning(reasoning),) if reasoning.strip() else ()
    return Message("assistant", (*parts, *((Text(text),) if text else ()), *message.tool_calls))


def tells_pairs(message):
    """The same for values between the tags of a pair. The name ends where the first tag begins."""
    return not any("arg_value>" in call.arguments or "arg_key>" in call.arguments for call in message.tool_calls)


def tells_gemma(message):
    """Keys of arguments are bare, so they hold no sign of the format; and strings hold no quote."""
    found = []
    for call in message.tool_calls:
        json.loads(call.arguments, object_pairs_hook=lambda pairs: found.extend(key for key, _ in pairs))
    signs = any(sign in key for key in found for sign in ":,{}[]") or any(key != key.rstrip() for key in found)
    return not signs and not any('<|"|>' in call.arguments.replace('\\"', '"') for call in message.tool_calls)


def sorted_calls(message):
    """An answer whose arguments are sorted by their keys, and whose text is trimmed, or not there beside calls."""
    calls = tuple(ToolCall(call.id, call.name, sorted_json(call.arguments)) for call in message.tool_calls)
    text = "" if calls else message.text.strip()
    parts = (Reasoning(message.reasoning),) if message.reasoning else ()
    return Message("assistant", (*parts, *((Text(text),) if text else ()), *calls))


def sorted_json(text):
    def ordered(pairs):
        return dict(sorted(dict(pairs).items(), key=lambda pair: pair[0].lower()))

    return json.dumps(json.loads(text, object_pairs_hook=ordered), ensure_ascii=False)


def bare_words(message):
    """An answer without space around its text and its reasoning."""
    text, reasoning = message.text.strip(), message.reasoning.strip()
    parts = (Reasoning(reasoning),) if reasoning else ()
    return Message("assistant", (*parts, *((Text(text),) if text else ()), *message.tool_calls))


CONTROLS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|im_start|>",
    "<|im_start|>assistant\n", "<|endoftext|>", "<think>\n\n</think>\n\n", "<|im_sta",
    "<|start_header_id|>", "<|python_tag|>", "<|begin_of_text|>", "<start_of_turn>", "<start_of_turn>model\n",
    "<start_of_image>",
    "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]{",
    "<｜User｜>", "<｜tool", "｜DSML｜", "]~b]", "<minimax:tool_call>",
    "<|user|>", "<|assistant|>\n", "<arg_key>", "</arg_value>",
    "<|channel|>", "<|message|>", "<|end|>", "<|start|>assistant",
    "<|turn>", "<turn|>\n", "<|channel>", "<channel|>", "<|tool_response>", '<|"|>',
)  # fmt: skip

QWEN3 = {"family": qwen.QWEN3, "vocabulary": "qwen3", "arguments": "text"}
THINKING = (None, True, False)
LATE = {"late_system": True}

XML = {"vocabulary": "qwen3_5", "talker": {"images": True}, "thinking": THINKING, "tells": tells_xml}

LLAMA = {
    "vocabulary": "llama3_2",
    "given": {"date_string": "26 Jul 2024", "bos_token": "<|begin_of_text|>"},
    "talker": {"late_system": True, "parallel": False, "reasoning": False},
}

GEMMA = {
    "vocabulary": "gemma3",
    "given": {"bos_token": "<bos>"},
    "talker": {"tools": False, "reasoning": False, "images": True},
    # Its vocabulary writes a space as this sign, and cannot tell the two apart.
    "tells": lambda message: "▁" not in message.text,
}

# Its own vocabulary cannot be had.
GEMMA4 = {
    "vocabulary": (
        "<bos>",
        "<eos>",
        "<|turn>",
        "<turn|>",
        "<|think|>",
        "<|channel>",
        "<channel|>",
        "<|tool>",
        "<tool|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|tool_response>",
        "<tool_response|>",
        '<|"|>',
        "<|image|>",
    ),
    "given": {"bos_token": "<bos>"},
    "talker": {"images": True, "late_system": True, "heeds": True},
    "late_text": True,
    "thinking": THINKING,
    "declines": frozenset({Reason.THINKING_DROPPED, Reason.HEAD_MOVED}),
    "tells": tells_gemma,
    "canonical": sorted_calls,
}

MISTRAL = {
    "vocabulary": "mistral_nemo",
    "given": {"bos_token": "<s>", "eos_token": "</s>"},
    "talker": {"reasoning": False, "strict": True},
    "declines": frozenset({Reason.HEAD_MOVED}),
}

GPT_OSS = {
    "vocabulary": "gptoss",
    "given": {"strftime_now": lambda form: "2024-07-26", "reasoning": "thinking"},
    "talker": {"parallel": False, "either": True},
    "canonical": call_or_words,
}

# Its own vocabulary cannot be had; this one has the same tags as tokens.
NEMOTRON = {
    "vocabulary": "qwen3",
    "talker": {"late_system": True},
    "thinking": THINKING,
    "keeps": "truncate_history_thinking",
    "keeping": False,
    "tells": tells_xml,
    "canonical": words_without_a_tail,
}

BOS = {"bos_token": "<｜begin▁of▁sentence｜>"}

DEEPSEEK_V3 = {
    "vocabulary": "deepseek_v3",
    "arguments": "text",
    "talker": {"late_system": True, "reasoning": False},
    "declines": frozenset({Reason.HEAD_MOVED, Reason.ROLE_NOT_APPENDED}),
}

DEEPSEEK_V3_1 = {
    "vocabulary": "deepseek_v3",
    "given": BOS,
    "thinking": THINKING,
    "talker": LATE,
    # This vocabulary has no tokens for the tags of reasoning.
    "tells": lambda message: "think>" not in message.text + message.reasoning,
    "declines": frozenset({Reason.THINKING_DROPPED, Reason.HEAD_MOVED}),
}

DEEPSEEK_V4 = {
    "vocabulary": "deepseek_v4",
    "given": BOS,
    "thinking": THINKING,
    "keeps": "drop_thinking",
    "keeping": False,
    "tells": tells_invoke,
    "declines": frozenset({Reason.THINKING_DROPPED, Reason.HEAD_MOVED}),
}

# Its own vocabulary cannot be had, so bytes and its control strings check structure and seams.
MINIMAX = {
    "vocabulary": (
        "]~!b[",
        "]~b]",
        "[e~[",
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        "<think>",
        "</think>",
    ),
    "tells": tells_invoke,
}

GLM = {
    "vocabulary": (
        "<|endoftext|>",
        "[gMASK]",
        "<sop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    "talker": {"heeds": True},
    "thinking": THINKING,
    "declines": frozenset({Reason.THINKING_DROPPED, Reason.STOPPED_OTHERWISE}),
    "tells": tells_pairs,
    "canonical": bare_words,
}

KIMI = {
    "vocabulary": (
        "[EOS]",
        "<|im_end|>",
        "<|im_user|>",
        "<|im_assistant|>",
        "<|im_system|>",
        "<|im_middle|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ),
    "talker": {"late_system": True, "reasoning": False},
    "canonical": numbered,
}

CASES = [
    Case("qwen2_5", qwen.QWEN2_5, "qwen2_5", talker=LATE),
    Case("qwen3", **QWEN3, thinking=THINKING, talker=LATE),
    Case("Qwen-Qwen3-0.6B", **QWEN3, thinking=THINKING, talker=LATE),
    Case("qwen3_instruct_2507", qwen.QWEN3_INSTRUCT, "qwen3", arguments="text", talker=LATE),
    Case("qwen3_5_think", qwen35.QWEN3_5, **XML),
    Case("qwen3_5_nothink", qwen35.QWEN3_5_NOTHINK, **XML),
    Case("qwen3_6", qwen35.QWEN3_6, **XML, keeps="preserve_thinking"),
    Case("qwen3_8", qwen35.QWEN3_8, **XML, keeps="preserve_thinking"),
    # The template of 3.3 is that of 3.1, to the letter.
    Case("llama3_1", llama.LLAMA3, **LLAMA),
    Case("llama3_2", llama.LLAMA3, **LLAMA),
    Case("gemma3", gemma.GEMMA3, **GEMMA),
    Case("gemma4_v5", gemma4.GEMMA4, **GEMMA4),
    Case("mistralai-Mistral-Nemo-Instruct-2407", mistral.MISTRAL_NEMO, **MISTRAL),
    Case("gptoss", harmony.GPT_OSS, **GPT_OSS),
    Case("deepseek_v3", deepseek3.DEEPSEEK_V3, **DEEPSEEK_V3, given=BOS | {"hollow": None}, canonical=words_alone),
    Case("deepseek-v3-0324", deepseek3.DEEPSEEK_V3_0324, **DEEPSEEK_V3, given=BOS),
    Case("deepseek-ai-DeepSeek-V3.1", deepseek31.DEEPSEEK_V3_1, **DEEPSEEK_V3_1),
    Case("deepseek-ai-DeepSeek-V4", deepseek.DEEPSEEK_V4, **DEEPSEEK_V4),
    Case("deepseek-ai-DeepSeek-V4-Flash-0731", deepseek.DEEPSEEK_V4_FLASH, **DEEPSEEK_V4),
    Case("moonshotai-Kimi-K2", kimi.KIMI_K2, **KIMI),
    Case("MiniMax-M2", minimax.MINIMAX_M2, **MINIMAX),
    Case("glm4moe", glm.GLM4_5, **GLM),
    Case("GLM-4.6", glm.GLM4_5, **GLM),
    Case("GLM-4.7-Flash", glm.GLM4_7, **GLM, keeps="clear_thinking", keeping=False),
    Case("glm-5", glm.GLM4_7, **GLM, keeps="clear_thinking", keeping=False),
    Case("glm-5.2", glm.GLM5_2, **GLM, keeps="clear_thinking", keeping=False),
    Case("glm-5.3", glm.GLM5_3, **GLM, keeps="clear_thinking", keeping=False),
    Case("nemotron_3_nano", nemotron.NEMOTRON3, **NEMOTRON),
    Case("nemotron_3_super", nemotron.NEMOTRON3, **NEMOTRON),
    Case("nemotron_3_ultra", nemotron.NEMOTRON3_ULTRA, **NEMOTRON),
    Case("nemotron_3_5_lightning", nemotron.NEMOTRON3_ULTRA, **NEMOTRON),
]


def case_of(name):
    return next(case for case in CASES if case.template == name)
