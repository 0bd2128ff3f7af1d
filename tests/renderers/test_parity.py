"""A renderer gives the ids of the model's own template and tokenizer, for thousands of random conversations."""

import numpy as np
import pytest

from rollwright.renderers.contract import RenderOptions
from rollwright.wire import UsageError

from .cases import CASES
from .oracle import Refused

pytestmark = pytest.mark.parametrize("case", CASES, ids=str)


class Reader:
    """An engine that knows the ids of these texts. Encoding is half of the time of these tests, and what the template
    gave has its own ids, so beyond the first `encoded` texts something that is no id stands for all of them: a renderer
    that asks for the same text, whole, and adds nothing, gives back just that."""

    def __init__(self, engine, texts, encoded):
        self._engine = engine
        self.known = dict(zip(texts, engine.encode_many(texts[:encoded]), strict=False))
        for at, text in enumerate(texts[encoded:], 1):
            self.known.setdefault(text, np.array([-at], np.int32))

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def encode(self, text):
        found = self.known.get(text)
        return self._engine.encode(text) if found is None else found


def compare(case, seed, count, encoded):
    """Renders `count` conversations both ways. Returns how many the template took, and those that differ."""
    oracle, ways, talks, texts = case.oracle(), list(case.ways()), case.talks(seed, count), []
    for at, (messages, tools) in enumerate(talks):
        try:
            texts.append(oracle.text(messages, tools, prompt=asks(messages), **ways[at % len(ways)][1]))
        except Refused:
            texts.append(None)
    engine = Reader(case.engine(), [text for text in texts if text is not None], encoded)
    renderers = [case.renderer(engine, **ours) for ours, _ in ways]
    differing = []
    for at, ((messages, tools), text) in enumerate(zip(talks, texts, strict=True)):
        try:
            ids = renderers[at % len(ways)].render(messages, tools, prompt=asks(messages)).ids
        except UsageError:
            ids = None
        if not same(ids, text, engine):
            differing.append((messages, tools, text, ids))
    return count - texts.count(None), differing


def same(ids, text, engine):
    if ids is None or text is None:
        return ids is text is None
    # A renderer that asks for the text in pieces is held to the ids of the whole.
    return np.array_equal(ids, engine.known[text]) or np.array_equal(ids, engine.encode_many([text])[0])


def asks(messages):
    return messages[-1].role != "assistant"


def test_ids_are_those_of_the_template(case):
    rendered, differing = compare(case, seed=5, count=case.count, encoded=case.count // 10)
    assert differing[:1] == []
    assert rendered > 0.9 * case.count


@pytest.mark.soak
def test_ids_are_those_of_the_template_in_the_long_run(case):
    for seed in range(5):
        rendered, differing = compare(case, seed=1000 + seed, count=case.count, encoded=case.count)
        assert differing[:1] == []
        assert rendered > 0.9 * case.count


def test_literal_texts_without_control_strings_render_like_the_template(case):
    oracle, engine, renderer = case.oracle(), case.engine(), case.renderer()
    assert renderer.options == RenderOptions()
    for messages, tools in case.talks(6, 100, literals=False):
        try:
            text = oracle.text(messages, tools, prompt=asks(messages))
        except Refused:
            continue
        assert renderer.render(messages, tools, prompt=asks(messages)).ids.tolist() == engine.encode(text).tolist()
