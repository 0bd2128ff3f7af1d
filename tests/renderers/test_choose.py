"""Which renderer a model gets: its template decides, then its name, and never a table that was not proven."""

import pytest

from rollwright.renderers.choose import renderer_for
from rollwright.renderers.families import FAMILIES, by_name, by_template, fingerprint
from rollwright.wire import UsageError
from vocabularies import template

from .cases import CASES, case_of


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_template_that_was_proven_decides(case):
    assert by_template(template(case.template)) is case.family


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5"),
        ("Qwen/Qwen3-8B", "qwen3"),
        ("qwen3-30b-a3b", "qwen3"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-instruct-2507"),
        ("google/gemma-3-27b-it", "gemma3"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo"),
        ("openai/gpt-oss-120b", "gpt-oss"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron3"),
        ("nvidia/NVIDIA-Nemotron-3-Ultra", "nemotron3-ultra"),
        ("zai-org/GLM-4.5-Air", "glm4.5"),
        ("zai-org/GLM-4.7-Flash", "glm4.7"),
        ("zai-org/GLM-5", "glm4.7"),
        ("zai-org/GLM-5-FP8", "glm4.7"),
        ("zai-org/GLM-5.2", "glm5.2"),
        ("zai-org/GLM-5.3", "glm5.3"),
        ("google/gemma-4-31B-it", "gemma4"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3-0324"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3.1"),
    ],
)
def test_a_name_tells_the_family(model, family):
    found = by_name(model)
    assert found is not None
    assert found.name == family


@pytest.mark.parametrize(
    "model",
    [
        "Qwen/Qwen3-Coder-30B",
        "Qwen/Qwen3-VL-8B",
        "Qwen/Qwen3-4B-Thinking-2507",
        "google/gemma-3n-E4B-it",
        "deepseek-ai/DeepSeek-V3.2",
        "zai-org/GLM-5.1",
        "zai-org/GLM-5.3-Flash",
        "gpt-2",
        "",
    ],
)
def test_a_name_that_only_sounds_alike_tells_nothing(model):
    assert by_name(model) is None


def test_no_two_families_claim_one_template():
    prints = [print_ for family in FAMILIES for print_ in family.fingerprints]
    assert len(prints) == len(set(prints))
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_the_template_is_stronger_than_the_name():
    case = case_of("qwen3")
    chosen = renderer_for(case.engine(), template=template("qwen3"), model="Qwen/Qwen2.5-7B")
    assert chosen.family == "qwen3"


def test_line_ends_are_no_difference_and_words_are():
    text = "{{ messages }}\n{{ x }}"
    assert fingerprint(text) == fingerprint(text.replace("\n", "\r\n") + "\n")
    assert fingerprint(text) != fingerprint(text.replace("x", "y"))


@pytest.mark.parametrize("other", ["llama3_1"])
def test_a_vocabulary_of_another_family_is_refused(other):
    with pytest.raises(UsageError, match="im_end"):
        renderer_for(case_of(other).engine(), template=template("qwen3"))
