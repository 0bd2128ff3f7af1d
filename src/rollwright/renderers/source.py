"""A model's own chat template, from the files that come beside its tokenizer."""

from __future__ import annotations

from pathlib import Path

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
