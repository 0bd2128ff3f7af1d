"""Chat formats as tables, and how to find the one of a model."""

from __future__ import annotations

import hashlib
import re

from .deepseek import DEEPSEEK_V4, DEEPSEEK_V4_FLASH
from .deepseek3 import DEEPSEEK_V3, DEEPSEEK_V3_0324
from .deepseek31 import DEEPSEEK_V3_1
from .gemma import GEMMA3
from .gemma4 import GEMMA4
from .glm import GLM4_5, GLM4_7, GLM5_2, GLM5_3
from .harmony import GPT_OSS
from .kimi import KIMI_K2
from .llama import LLAMA3
from .minimax import MINIMAX_M2
from .mistral import MISTRAL_NEMO
from .nemotron import NEMOTRON3, NEMOTRON3_ULTRA
from .qwen import QWEN2_5, QWEN3, QWEN3_INSTRUCT
from .qwen35 import QWEN3_5, QWEN3_5_NOTHINK, QWEN3_6, QWEN3_8
from .table import Family as Family

FAMILIES: tuple[Family, ...] = (
    QWEN2_5,
    QWEN3,
    QWEN3_INSTRUCT,
    QWEN3_5,
    QWEN3_5_NOTHINK,
    QWEN3_6,
    QWEN3_8,
    LLAMA3,
    GEMMA3,
    GEMMA4,
    MISTRAL_NEMO,
    GPT_OSS,
    DEEPSEEK_V3,
    DEEPSEEK_V3_0324,
    DEEPSEEK_V3_1,
    DEEPSEEK_V4,
    DEEPSEEK_V4_FLASH,
    MINIMAX_M2,
    KIMI_K2,
    NEMOTRON3,
    NEMOTRON3_ULTRA,
    GLM4_5,
    GLM4_7,
    GLM5_2,
    GLM5_3,
)


def fingerprint(template: str) -> str:
    """What a chat template is known by. Line ends and outer space may differ, nothing else."""
    text = template.replace("\r\n", "\n").strip()
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def by_template(template: str) -> Family | None:
    """The family whose table was proven against this very template."""
    print_ = fingerprint(template)
    return next((family for family in FAMILIES if print_ in family.fingerprints), None)


def by_name(model: str) -> Family | None:
    """The family that a model's name tells. The first pattern that is found decides."""
    name = model.lower()
    return next((family for family in FAMILIES if any(re.search(pattern, name) for pattern in family.models)), None)
