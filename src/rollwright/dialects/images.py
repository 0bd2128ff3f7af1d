"""Images by content: bytes are kept once, messages hold their hash. This store is unbounded and lives in memory."""

from __future__ import annotations

import binascii
import re
from base64 import b64encode
from hashlib import sha256
from typing import Protocol

from rollwright.wire import Image, WireError

_MEDIA_TYPE = re.compile(r"image/[A-Za-z0-9.+-]{1,40}")


class Images(Protocol):
    def put(self, data: bytes, media_type: str) -> Image: ...
    def get(self, image: Image) -> bytes:
        """WireError if the store does not have it."""
        ...


class MemoryImages:
    """Each content is stored once, however often it is put."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def put(self, data: bytes, media_type: str) -> Image:
        digest = sha256(data).hexdigest()
        self._contents.setdefault(digest, bytes(data))
        return Image(digest, media_type)

    def get(self, image: Image) -> bytes:
        try:
            return self._contents[image.sha256]
        except KeyError:
            raise WireError(f"image {image.sha256[:12]} is not in this store of {len(self)} images") from None

    def __len__(self) -> int:
        return len(self._contents)


def put_base64(images: Images, text: str, media_type: str) -> Image:
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise WireError(f"an image has the media type {media_type[:60]!r}; it must be image/...")
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except (ValueError, binascii.Error) as error:
        raise WireError(f"an image is not valid base64: {error}") from error
    return images.put(data, media_type)


def get_base64(images: Images, image: Image) -> str:
    return b64encode(images.get(image)).decode("ascii")


def put_data_url(images: Images, url: str) -> Image:
    """Only data URLs carry bytes; nothing here fetches an address."""
    head, comma, text = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise WireError(f"images must come as data:image/...;base64 URLs, got {url[:60]!r}")
    return put_base64(images, text, head[len("data:") : -len(";base64")].split(";")[0])


def get_data_url(images: Images, image: Image) -> str:
    return f"data:{image.media_type};base64,{get_base64(images, image)}"
