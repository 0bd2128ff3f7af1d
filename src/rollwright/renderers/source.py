"""A model's own chat template and control strings, from the files that come beside its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rollwright.wire import UsageError


class _Named(msgspec.Struct):
    name: str
    template: str


class _Settings(msgspec.Struct):
    chat_template: str | list[_Named] | None = None


def read_template(source: str | Path) -> str:
    """The template in `chat_template.jinja` or `tokenizer_config.json`, beside a tokenizer.json or in its directory.
    Empty if there is none. Of several, the one that is called default."""
    place = Path(source)
    place = place if place.is_dir() else place.parent
    try:
        if (place / "chat_template.jinja").is_file():
            return (place / "chat_template.jinja").read_text()
        if not (place / "tokenizer_config.json").is_file():
            return ""
        settings = msgspec.json.decode((place / "tokenizer_config.json").read_bytes(), type=_Settings)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"the chat template beside {str(source)!r} cannot be read: {error}") from error
    found = settings.chat_template
    if isinstance(found, list):
        return next((named.template for named in found if named.name == "default"), "")
    return found or ""


class ModelTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Control strings that a template asks for by name, and what ends an answer."""

    pairs: tuple[tuple[str, str], ...] = ()
    """Names and control strings: bos_token, eos_token and the like."""
    stop_ids: tuple[int, ...] = ()
    """Ends of an answer by the model's generation settings."""

    @property
    def named(self) -> Mapping[str, str]:
        return dict(self.pairs)


def read_tokens(source: str | Path) -> ModelTokens:
    """From `tokenizer_config.json` and `generation_config.json`, where they are there."""
    place = Path(source)
    place = place if place.is_dir() else place.parent
    settings, generation = (_read(place / name) for name in ("tokenizer_config.json", "generation_config.json"))
    named = {}
    for name, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            named[name] = text
    ends = generation.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    return ModelTokens(tuple(named.items()), tuple(id for id in ends if isinstance(id, int)))


def _read(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.is_file() else {}
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"the settings {str(path)!r} cannot be read: {error}") from error
