"""The model that the SDKs talk to: two tools at once, then an answer. A server in another process loads this file too,
so it imports nothing of the tests."""

from rollwright.wire import ToolCall, assistant

CITIES = ("Oslo", "Łódź")
ANSWER = "It is sunny in Oslo and sunny in Łódź."


def policy(call, rng=None):
    # Formats differ in who says a tool's result; that it was heard is all that counts.
    heard = str([message.parts for message in call.messages if message.role != "assistant"])
    if all(f"sunny in {city}" in heard for city in CITIES):
        return assistant(ANSWER)
    calls = (ToolCall(f"call_{n}", "weather", f'{{"city": "{city}"}}') for n, city in enumerate(CITIES))
    return assistant("Let me see.", *calls)
