"""A renderer gives the ids of the model's own template and tokenizer, for thousands of random conversations."""

import numpy as np
import pytest

from rollwright.renderers.contract import RenderOptions
from rollwright.wire import UsageError

from .cases import CASES
from .oracle import Refused

pytestmark = pytest.mark.parametrize("case", CASES, ids=str)


def compare(case, seed, count):
    """Renders `count` conversations both ways and returns those that differ."""
    oracle, engine = case.oracle(), case.engine()
    ways = list(case.ways())
    renderers = [case.renderer(**ours) for ours, _ in ways]
    texts, tapes, differing = [], [], []
    for at, (messages, tools) in enumerate(case.talks(seed, count)):
        _, told = ways[at % len(ways)]
        prompt = messages[-1].role != "assistant"
        try:
            texts.append(oracle.text(messages, tools, prompt=prompt, **told))
        except Refused:
            with pytest.raises(UsageError):
                renderers[at % len(ways)].render(messages, tools, prompt=prompt)
            continue
        tapes.append((messages, renderers[at % len(ways)].render(messages, tools, prompt=prompt)))
    for ids, (messages, tape) in zip(engine.encode_many(texts), tapes, strict=True):
        if not np.array_equal(ids, tape.ids):
            differing.append((messages, engine.decode(ids), engine.decode(tape.ids)))
    return len(texts), differing


def test_ids_are_those_of_the_template(case):
    rendered, differing = compare(case, seed=5, count=2000)
    assert differing[:1] == []
    assert rendered > 1800


@pytest.mark.soak
def test_ids_are_those_of_the_template_in_the_long_run(case):
    for seed in range(5):
        rendered, differing = compare(case, seed=1000 + seed, count=2000)
        assert differing[:1] == []
        assert rendered > 1800


def test_literal_texts_without_control_strings_render_like_the_template(case):
    oracle, engine, renderer = case.oracle(), case.engine(), case.renderer()
    assert renderer.options == RenderOptions()
    for messages, tools in case.talks(6, 100, literals=False):
        prompt = messages[-1].role != "assistant"
        try:
            text = oracle.text(messages, tools, prompt=prompt)
        except Refused:
            continue
        assert renderer.render(messages, tools, prompt=prompt).ids.tolist() == engine.encode(text).tolist()
