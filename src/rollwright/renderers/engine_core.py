"""The engine over the raw `tokenizers` core, with what it has learned of short words."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

import numpy as np
import orjson
from tokenizers import Tokenizer

from rollwright.wire import UsageError
from rollwright.wire.arrays import Ids

from .engine_bytes import ByteTable, byte_level, metaspace
from .engine_words import MAX_CHARS, MAX_PIECE_CHARS, control_pattern, splits_plainly, word_memo


class Vocabulary:
    """A `tokenizer.json`, held by a tokenizer that nobody else can reach."""

    def __init__(self, data: bytes, content: str) -> None:
        # One string per call is the rule here, and handing it to another thread costs more than encoding it. The value
        # is read at each call and cannot be given in any other way; a person who has set it is obeyed.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.content = content
        self.core = _parse(data)
        added = self.core.get_added_tokens_decoder()
        self.specials: Mapping[str, int] = MappingProxyType({token.content: id for id, token in added.items()})
        self.reserved = frozenset(token.content for token in added.values() if token.special)
        self.size = max(self.core.get_vocab_size(), max(added, default=-1) + 1)
        alphabet = _alphabet(self.core)
        self.bytes = ByteTable(self.core.id_to_token, alphabet)
        if alphabet is byte_level:
            # Added tokens are written as they are, so a letter like é in one is no byte of its own.
            self.bytes.update((id, token.content.encode()) for id, token in added.items())
        self.controls = control_pattern(self.specials) if splits_plainly(self.core) else None
        """Finds control strings; None where what is beside them changes how text is encoded."""
        self.memo = word_memo(self.core, self.encode_whole) if self.controls is not None else None

    def remembered(self, pieces: list[str], max_chars: int) -> list[Sequence[int] | None]:
        """The ids of texts and control strings, which take turns; None for texts that the tokenizer has to encode."""
        memo, specials = self.memo, self.specials
        if memo is None:
            return [(specials[piece],) if at % 2 else None for at, piece in enumerate(pieces)]
        return [
            (specials[piece],)
            if at % 2
            else memo.encode(piece)
            if len(piece) <= max_chars and piece.isascii()
            else None
            for at, piece in enumerate(pieces)
        ]

    def encode_whole(self, text: str) -> list[int]:
        """Batch form, since only that lets go of the GIL."""
        (encoding,) = self.core.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids


class CoreEngine:
    """The reference, and what the faster engines share with it: everything but encoding."""

    kind = "tokenizers"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.content = vocabulary.content
        self.specials = vocabulary.specials
        self.reserved = vocabulary.reserved
        self.size = vocabulary.size
        self._core = vocabulary.core
        self._bytes = vocabulary.bytes

    def encode(self, text: str) -> Ids:
        vocabulary = self.vocabulary
        text = well_formed(text)
        if vocabulary.controls is None:
            return np.array(vocabulary.encode_whole(text), np.int32)
        pieces = vocabulary.controls.split(text)
        known = vocabulary.remembered(pieces, MAX_CHARS if len(text) <= MAX_CHARS else MAX_PIECE_CHARS)
        if unknown := [at for at, ids in enumerate(known) if ids is None]:
            encodings = self._core.encode_batch_fast([pieces[at] for at in unknown], add_special_tokens=False)
            for at, encoding in zip(unknown, encodings, strict=True):
                known[at] = encoding.ids
        return np.array([*chain.from_iterable(ids for ids in known if ids)], np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        if self.vocabulary.memo is not None and sum(map(len, texts)) <= MAX_CHARS:
            return [CoreEngine.encode(self, text) for text in texts]
        encodings = self._core.encode_batch_fast([well_formed(text) for text in texts], add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def decode(self, ids: Ids) -> str:
        return self._bytes.join(ids).decode(errors="replace")

    def token_bytes(self, id: int) -> bytes:
        return self._bytes[id]

    def special(self, text: str) -> int:
        try:
            return self.specials[text]
        except KeyError:
            raise UsageError(f"the vocabulary has no token {text!r}; it is not of this family") from None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.content[:12]} {self.size} tokens>"


def well_formed(text: str) -> str:
    """`text` with U+FFFD for half characters, which JSON can carry and no vocabulary knows."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _parse(data: bytes) -> Tokenizer:
    try:
        core = Tokenizer.from_buffer(data)
    except Exception as error:  # The library raises bare Exceptions.
        raise UsageError(f"this is no tokenizer.json that `tokenizers` can read: {error}") from error
    # Some files carry the truncation and padding of whoever saved them.
    core.no_truncation()
    core.no_padding()
    return core


def _alphabet(core: Tokenizer) -> Callable[[str], bytes]:
    decoder = core.decoder
    state = orjson.loads(decoder.__getstate__()) if decoder is not None else {}
    kinds = {part["type"] for part in state.get("decoders", [state]) if "type" in part}
    if "ByteLevel" in kinds:
        return byte_level
    if kinds & {"Metaspace", "ByteFallback"}:
        return metaspace
    raise UsageError("this tokenizer is neither byte-level nor metaspace, so its tokens have no bytes of their own")
