"""The model that the SDKs talk to: two tools at once, then an answer. A server in another process loads this file too,
so it imports nothing of the tests."""

import asyncio
import re
from pathlib import Path

from rollwright.wire import ToolCall, assistant

CITIES = ("Oslo", "Łódź")
ANSWER = "It is sunny in Oslo and sunny in Łódź."
WAITED = "Here it is."
_GATE = re.compile("Wait for '([^']+)'")
_LOOK_S = 0.02


def wait_for(path):
    """What to say to the model, so that it says nothing before there is such a file."""
    return f"Wait for '{path}'."


def policy(call, rng=None):
    # Formats differ in who says a tool's result; that it was heard is all that counts.
    heard = str([message.parts for message in call.messages if message.role != "assistant"])
    if all(f"sunny in {city}" in heard for city in CITIES):
        return assistant(ANSWER)
    calls = (ToolCall(f"call_{n}", "weather", f'{{"city": "{city}"}}') for n, city in enumerate(CITIES))
    return assistant("Let me see.", *calls)


async def patient(call, rng=None):
    """The same, after what it is told to wait for."""
    gate = _GATE.search(call.messages[-1].text)
    if gate is None:
        return policy(call)
    while not Path(gate[1]).exists():
        await asyncio.sleep(_LOOK_S)
    return assistant(WAITED)
