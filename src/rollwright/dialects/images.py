"""What dialects ask of an image store, and the two ways in which images stand in requests. Messages hold the hash of an
image; its bytes are kept once, in the base64 that they came in, since every engine over HTTP wants that again."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Protocol

import msgspec

from rollwright.wire import Image, WireError

_MEDIA_TYPE = re.compile(r"image/[A-Za-z0-9.+-]{1,40}")


class Images(Protocol):
    def put(self, data: bytes, media_type: str) -> Image: ...
    def get(self, image: Image) -> bytes:
        """WireError if the store does not have it."""
        ...

    def put_text(self, encoded: str, media_type: str) -> tuple[Image, bytes]:
        """Put base64; WireError if it is none. The SHA-256 of the text comes along where `get_text` gives exactly this
        text back and it is long enough to be worth cutting out of a request; empty bytes otherwise."""
        ...

    def get_text(self, image: Image) -> bytes:
        """The base64 of an image. WireError if the store does not have it."""
        ...

    def resident(self, image: Image) -> bytes | None:
        """The base64 of an image if that costs nothing, because it is in memory."""
        ...


class Hashes:
    """Images of which only the hash is kept: for readers that do not look at pictures."""

    def put(self, data: bytes, media_type: str) -> Image:
        return Image(sha256(data).hexdigest(), media_type)

    def put_text(self, encoded: str, media_type: str) -> tuple[Image, bytes]:
        return self.put(decode(encoded, media_type), media_type), b""

    def get(self, image: Image) -> bytes:
        raise WireError(f"image {image.sha256[:12]} was not kept")

    get_text = get

    def resident(self, image: Image) -> bytes | None:
        return None


def check_media_type(media_type: str) -> None:
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise WireError(f"an image has the media type {media_type[:60]!r}; it must be image/...")


def decode(encoded: str, media_type: str) -> bytes:
    check_media_type(media_type)
    try:
        # Four times as fast as binascii, and stricter.
        return msgspec.convert(encoded, bytes)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise WireError(f"an image is not valid base64: {error}") from error


def encode(data: bytes) -> bytes:
    return msgspec.json.encode(data)[1:-1]


def is_canonical(encoded: str, data: bytes) -> bool:
    """Whether `encode(data)` is this text. The reader admits no other freedom than the unused bits of the end."""
    last = len(data) % 3 or 3
    return not data or encode(data[-last:]) == encoded[-4:].encode("ascii")


def split_data_url(url: str) -> tuple[str, str]:
    """The base64 and the media type. Only data URLs carry bytes; nothing here fetches an address."""
    head, comma, encoded = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise WireError(f"images must come as data:image/...;base64 URLs, got {url[:60]!r}")
    return encoded, head[len("data:") : -len(";base64")].split(";")[0]


def get_base64(images: Images, image: Image) -> str:
    return images.get_text(image).decode("ascii")


def get_data_url(images: Images, image: Image) -> str:
    return f"data:{image.media_type};base64,{get_base64(images, image)}"
