"""Random conversations from a seed: unicode, spaces and newlines at every edge, empty texts, calls alone and in
parallel, nested arguments, reasoning or none. Plain code, because thousands of them are made in a second."""

import json
import random

from rollwright.wire import Image, Message, Reasoning, Text, ToolCall, ToolResult, ToolSpec

WORDS = (
    "a", "the", "Weather", " is", " in", "Paris", "42", " 3.14", "-", ".", ",", "?", "!", ":", " ", "  ", "\n", "\n\n",
    "\t", "\r\n", "é", "naïve", "日本語", "天気", "Привет", "שלום", "🙂", "👩\u200d👩\u200d👧", "ﬁ", "\u00a0", "\u200b",
    "\u3000", "<", ">", "</", "|", "{", "}", '"', "\\", "'", "`", "```python\n", "def f(x):\n    return x\n", "<b>",
    "&amp;", "$x^2$", "_", "*", "#", "http://x.y/z?q=1", "I'll", "don't", "user", "assistant", "system", "0x1F", "%",
    "...", "  indented", "trailing  ", "\n\n\n",
)  # fmt: skip
"""All in composed form, so that what a tokenizer with NFC decodes is what was written."""
LOOSE = ("e\u0301", "A\u030a", "\u1100\u1161", "\u0338", "ẛ̣")
"""In decomposed form: such a tokenizer writes them another way."""
NAMES = ("get_weather", "search", "run", "f", "calc.add", "read-file")
TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")


class Talker:
    """Makes conversations. `literals` are control strings to be put inside texts."""

    def __init__(
        self,
        seed,
        *,
        literals=(),
        loose=False,
        reasoning=True,
        parallel=True,
        late_system=False,
        tools=True,
        images=False,
        strict=False,
        either=False,
        heeds=False,
    ):
        self.random = random.Random(seed)
        self.words = WORDS + (LOOSE if loose else ())
        self.literals = tuple(literals)
        self.reasoning = reasoning
        self.parallel = parallel
        self.late_system = late_system
        self.tools = tools
        self.images = images
        self.either = either
        """Tools are described, and beside a call there is reasoning or a text, not both."""
        self.heeds = heeds or strict
        """A call is answered by its results before anybody speaks."""
        self.strict = strict
        """Ids have nine letters."""

    def text(self, most=6):
        pick = self.random.random
        chosen = self.random.choices(self.words, k=int(pick() * (most + 1)))
        if self.literals and pick() < 0.3:
            chosen.insert(int(pick() * (len(chosen) + 1)), self.random.choice(self.literals))
        return "".join(chosen)

    def content(self, most=6):
        """A text, or texts and images in any order."""
        if not self.images or self.random.random() < 0.8:
            return (Text(self.text(most)),)
        image = Image(f"{self.random.getrandbits(256):064x}", "image/png")
        return (Text(self.text(most)), image, Text(self.text(most)))[self.random.randint(0, 1) :]

    def value(self, kind, depth=0):
        pick = self.random
        if kind == "string":
            return self.text(4)
        if kind == "integer":
            return pick.randint(-(10**6), 10**9)
        if kind == "number":
            return pick.choice([pick.random(), 1e-9, 2.0, 1e22])
        if kind == "boolean":
            return pick.random() < 0.5
        if kind == "null":
            return None
        inner = "string" if depth > 1 else pick.choice(TYPES)
        if kind == "array":
            return [self.value(inner, depth + 1) for _ in range(pick.randint(0, 3))]
        return {self.text(1) or "k": self.value(inner, depth + 1) for _ in range(pick.randint(0, 2))}

    def specs(self):
        if not self.tools or self.random.random() < 0.4:
            return ()
        return tuple(self._spec(name) for name in self.random.sample(NAMES, self.random.randint(1, 2)))

    def _spec(self, name):
        fields = {f"p{at}": {"type": self.random.choice(TYPES)} for at in range(self.random.randint(0, 3))}
        schema = {"type": "object", "properties": fields, "required": list(fields)[:1]}
        return ToolSpec(name, self.text(3) or "d" * self.either, schema)

    def call(self, specs, id):
        spec = self.random.choice(specs)
        fields = spec.parameters["properties"].items()
        arguments = {name: self.value(schema["type"]) for name, schema in fields if self.random.random() < 0.8}
        return ToolCall(id, spec.name, json.dumps(arguments, ensure_ascii=False))

    def answer(self, specs=(), turn=0, most_calls=3):
        pick = self.random
        parts = []
        if self.reasoning and pick.random() < 0.6:
            parts.append(Reasoning(self.text()))
        if pick.random() < 0.8:
            parts.append(Text(self.text()))
        if specs and pick.random() < 0.6:
            count = pick.randint(1, most_calls) if self.parallel else 1
            parts += [self.call(specs, f"call_{turn:0{1 + self.strict}}_{at}") for at in range(count)]
        if self.either and len(parts) > 2:
            del parts[pick.randint(0, 1)]
        return Message("assistant", tuple(parts))

    def results(self, message):
        return [Message("tool", (ToolResult(call.id, self.content(8)),)) for call in message.tool_calls]

    def talk(self, most_turns=4):
        """Messages and tools. Begins with a user after an optional system; may end anywhere."""
        pick = self.random
        specs = self.specs()
        messages = [Message("system", (Text(self.text()),))] if pick.random() < 0.5 else []
        messages.append(Message("user", self.content()))
        for _ in range(pick.randint(0, most_turns)):
            messages.append(self.answer(specs, len(messages)))
            heard = self.results(messages[-1])
            if heard and (self.heeds or pick.random() < 0.85):
                messages += heard
            else:
                messages.append(Message("user", self.content()))
            if self.late_system and pick.random() < 0.1:
                messages.append(Message("system", (Text(self.text()),)))
        if pick.random() < 0.2:
            messages.append(self.answer(specs, len(messages)))
        return messages, specs
