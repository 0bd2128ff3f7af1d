"""Images beside ids: found in a call, written for the server, and what the server made of them checked.

A prompt holds one placeholder per image. The server is sent the pixels, widens each placeholder to as many ids as the
model takes for it, and tells the ids that it showed to the model: those are the prompt on record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rollwright.dialects import Images
from rollwright.dialects.images import get_data_url
from rollwright.renderers.tape import Placeholder, Tape
from rollwright.wire import EngineRefused, Image, Message, ToolResult, WireError
from rollwright.wire.arrays import Ids
from rollwright.wire.messages import Part

_ITEM = np.dtype(np.int32).itemsize


def shown(messages: Sequence[Message]) -> dict[str, Image]:
    """The images of a conversation by their hash."""
    return {image.sha256: image for message in messages for image in _images(message.parts)}


def _images(parts: Sequence[Part]) -> Iterator[Image]:
    for part in parts:
        if isinstance(part, Image):
            yield part
        elif isinstance(part, ToolResult):
            yield from _images(part.content)


async def content_parts(tape: Tape, known: dict[str, Image], images: Images) -> tuple[dict[str, Any], ...]:
    """The images of a tape as servers take them, in the order of their placeholders. EngineRefused if the store does
    not have one."""
    wanted = [known[place.sha256] for place in tape.images]
    try:
        if all(images.resident(image) is not None for image in wanted):
            return _written(wanted, images)
        # What is not in memory is read from a disk.
        return await asyncio.to_thread(_written, wanted, images)
    except (WireError, OSError) as error:
        raise EngineRefused(f"an image of the call cannot be sent: {error}") from error


def _written(wanted: Sequence[Image], images: Images) -> tuple[dict[str, Any], ...]:
    # Flatter than in chats: the address stands beside the type.
    return tuple({"type": "image_url", "url": get_data_url(images, image)} for image in wanted)


def widens(wide: Ids, narrow: Ids, places: Sequence[Placeholder]) -> bool:
    """Whether `wide` is `narrow` with something in the place of each image and nothing else changed."""
    starts = [place.start for place in places]
    stops = [place.stop for place in places]
    texts = [narrow[start:stop] for start, stop in zip([0, *stops], [*starts, len(narrow)], strict=True)]
    first, *between, last = texts
    if not np.array_equal(wide[: len(first)], first):
        return False
    at, end = len(first), len(wide) - len(last)
    for text in between:
        found = _find(wide, text, at + 1)
        if found is None:
            return False
        at = found + len(text)
    return at < end and np.array_equal(wide[end:], last)


def _find(ids: Ids, part: Ids, start: int) -> int | None:
    """Where `part` first stands in `ids`, from `start` on."""
    data, wanted = ids.tobytes(), part.tobytes()
    at = data.find(wanted, start * _ITEM)
    while at >= 0 and at % _ITEM:
        at = data.find(wanted, at + 1)
    return at // _ITEM if at >= 0 else None
