"""Tokenizer engines: one per content, never changed by anyone, exact in ids and bytes."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

import tiny
from rollwright.renderers import engine as engines
from rollwright.renderers import engine_fast, engine_words, load_engine
from rollwright.renderers.engine_core import CoreEngine
from rollwright.renderers.engine_probe import probe_texts, prove_equal
from rollwright.renderers.ranks import byte_vocabulary, merges_of, read_ranks, tokenizer_json
from rollwright.wire import UsageError
from vocabularies import vocabulary

_LATER = ("llama3_1", "mistral_nemo", "deepseek_v3", "deepseek_v4", "gptoss", "qwen2_5", "qwen3_5")
MODELS = ["qwen3", "gemma3", *(pytest.param(name, marks=pytest.mark.soak) for name in _LATER)]
ASCII_HARD = (
    "'s",
    "'LL",
    "  ",
    "\n\n",
    "\r\n",
    "\t",
    " 12345",
    "<|im_end|>",
    "<think>",
    "<|im_end",
    "\x1c",
    "\x85",
    "_a",
    "aB",
)
FAST = ["fastokens", "tiktoken"]


def had(kind):
    if find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed")
    return kind


# One per content.


def test_one_content_is_one_engine(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tiny.VOCABULARY)
    by_bytes = load_engine(tiny.VOCABULARY)
    assert load_engine(tmp_path) is by_bytes
    assert load_engine(str(tmp_path / "tokenizer.json")) is by_bytes
    assert load_engine(byte_vocabulary(["<a>"])) is not by_bytes


def test_threads_that_ask_at_once_share_one_build(monkeypatch):
    data = byte_vocabulary(["<one-build>"])
    builds, gate = [], threading.Barrier(8)
    build = engines._build
    monkeypatch.setattr(engines, "_build", lambda *args: builds.append(args) or build(*args))

    def ask(_):
        gate.wait()
        return load_engine(data)

    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(ask, range(8)))
    assert len(found) == len(builds) == 1


def test_a_failed_build_fails_whoever_waits_and_can_be_tried_again(monkeypatch):
    data, build = byte_vocabulary(["<second-try>"]), engines._build
    begun, asked = threading.Event(), threading.Event()

    def breaks_once(*args):
        if begun.is_set():
            return build(*args)
        begun.set()
        asked.wait(10)
        raise MemoryError("no room")

    class Waiter(engines.Future):
        def result(self, timeout=None):
            if threading.current_thread() is not first:
                asked.set()
            return super().result(timeout)

    monkeypatch.setattr(engines, "_build", breaks_once)
    monkeypatch.setattr(engines, "Future", Waiter)
    failures = []

    def ask():
        try:
            load_engine(data)
        except MemoryError as error:
            failures.append(error)

    first, second = threading.Thread(target=ask), threading.Thread(target=ask)
    first.start()
    begun.wait(10)
    second.start()
    first.join(10)
    second.join(10)
    assert len(failures) == 2
    assert load_engine(data).encode("a").tolist() == [97]


@pytest.mark.parametrize("data", [b"", b"{}", b"no json", json.dumps({"model": {"type": "Nonsense"}}).encode()])
def test_a_file_that_is_no_tokenizer_is_a_usage_error(data):
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        load_engine(data)


def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        load_engine(tmp_path)


def test_a_tokenizer_without_bytes_is_refused():
    words = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
    with pytest.raises(UsageError, match="neither byte-level nor metaspace"):
        load_engine(json.dumps(words).encode())


def test_an_unknown_kind_is_a_usage_error():
    with pytest.raises(UsageError, match="'sentencepiece' is not known"):
        load_engine(tiny.VOCABULARY, kind="sentencepiece")


def test_truncation_and_padding_of_whoever_saved_the_file_are_dropped():
    core = Tokenizer.from_buffer(tiny.VOCABULARY)
    core.enable_truncation(3)
    core.enable_padding(length=20)
    assert len(load_engine(core.to_str().encode()).encode("abcdefgh" * 5)) > 20


# Ids and bytes.


@given(st.text(max_size=40))
def test_text_survives(text):
    engine = tiny.engine()
    ids = engine.encode(text)
    assert ids.dtype == np.int32
    assert engine.decode(ids) == text
    assert b"".join(engine.token_bytes(id) for id in ids.tolist()) == text.encode()


@given(st.lists(st.text(max_size=20), max_size=5))
def test_many_texts_are_each_on_their_own(texts):
    engine = tiny.engine()
    assert [ids.tolist() for ids in engine.encode_many(texts)] == [engine.encode(text).tolist() for text in texts]


@given(st.text(st.characters(codec=None, categories=["L", "Cs"]), max_size=20))
def test_half_characters_become_replacements(text):
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert tiny.engine().decode(tiny.engine().encode(text)) == whole


def test_control_strings_are_found_and_named():
    engine = tiny.engine()
    end = engine.special("<|im_end|>")
    assert engine.encode("a<|im_end|>b").tolist() == [97, end, 98]
    assert engine.token_bytes(end) == b"<|im_end|>"
    assert set(engine.specials) == set(tiny.CONTROLS) == engine.reserved
    with pytest.raises(UsageError, match="has no token"):
        engine.special("<|nothing|>")


@pytest.mark.parametrize("id", [-1, 10**6, 2**31 - 1])
def test_an_id_that_is_no_token_has_no_bytes(id):
    assert tiny.engine().token_bytes(id) == b""


@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_those_of_the_vocabulary(name):
    path = vocabulary(name)
    engine, reference = load_engine(path), Tokenizer.from_file(str(path))
    for id in range(0, engine.size, 101):
        assert engine.token_bytes(id).decode(errors="replace") == reference.decode([id], skip_special_tokens=False)
    for text in probe_texts(list(engine.specials)):
        ids = engine.encode(text)
        assert ids.tolist() == reference.encode(text, add_special_tokens=False).ids
        assert engine.decode(ids) == reference.decode(ids.tolist(), skip_special_tokens=False)


@given(st.lists(st.one_of(st.text(st.characters(max_codepoint=127)), st.sampled_from(ASCII_HARD)), max_size=12))
@pytest.mark.parametrize("name", ["qwen3", *(pytest.param(name, marks=pytest.mark.soak) for name in _LATER)])
def test_words_that_are_remembered_are_those_of_the_tokenizer(name, pieces):
    engine = load_engine(vocabulary(name))
    text = "".join(pieces)
    assert engine.encode(text).tolist() == engine.vocabulary.encode_whole(text)


def test_words_are_remembered_within_a_budget(monkeypatch):
    memo = tiny.engine().vocabulary.memo
    monkeypatch.setattr(engine_words, "_MAX_WORDS", 50)
    for number in range(500):
        tiny.engine().encode(f"word{number} {'x' * 200}")
        assert len(memo) <= 51
    assert all(len(word) <= 64 for word in memo)


@pytest.mark.parametrize("pattern", [r"\p{P}+|.", r"[\p{M}]+|.", r"[^\p{M}]|x", "(", r"\w+|\W", r"(?<=a+)b|.", "a|b"])
def test_an_expression_that_python_reads_otherwise_is_left_to_the_tokenizer(pattern):
    ranks = {bytes([byte]): byte for byte in range(256)}
    try:
        vocabulary = load_engine(tokenizer_json(ranks, pattern, {})).vocabulary
    except UsageError:
        return
    for text in ("a_b é, -- x\n", "".join(map(chr, range(128)))):
        assert CoreEngine(vocabulary).encode(text).tolist() == vocabulary.encode_whole(text)


# Faster engines.


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize("name", ["qwen3", pytest.param("llama3_1", marks=pytest.mark.soak)])
def test_a_faster_engine_gives_the_same_ids(kind, name):
    slow, fast = load_engine(vocabulary(name)), load_engine(vocabulary(name), kind=had(kind))
    assert fast.kind == kind
    assert fast.vocabulary is slow.vocabulary, "the vocabulary is held once"

    @given(
        st.lists(st.one_of(st.text(max_size=20), st.sampled_from([*slow.specials, " ", "\n", "\u0338"])), max_size=8)
    )
    def same(pieces):
        text = "".join(pieces)
        assert fast.encode(text).dtype == np.int32
        assert fast.encode(text).tolist() == slow.encode(text).tolist()
        assert [ids.tolist() for ids in fast.encode_many(pieces)] == [slow.encode(piece).tolist() for piece in pieces]

    same()


@pytest.mark.parametrize("kind", FAST)
def test_an_engine_that_gives_other_ids_is_refused(kind, monkeypatch):
    """One wrong id in one rare text is enough."""
    cls = engine_fast._ENGINES[had(kind)]

    class Wrong(cls):
        def encode(self, text):
            ids = super().encode(text)
            return ids + 1 if "\u1e9b\u0323" in text else ids

    monkeypatch.setitem(engine_fast._ENGINES, kind, Wrong)
    data = byte_vocabulary([f"<wrong-{kind}>"])
    with pytest.raises(UsageError, match="gives other ids than tokenizers"):
        load_engine(data, kind=kind)
    assert load_engine(data, kind="auto").kind != kind


def test_auto_takes_what_is_installed(monkeypatch):
    for kind in FAST:
        monkeypatch.setitem(sys.modules, kind, None)
    data = byte_vocabulary(["<auto>"])
    assert load_engine(data, kind="auto").kind == "tokenizers"
    with pytest.raises(UsageError, match=r"rollwright\[fast\]"):
        load_engine(data, kind="fastokens")


@pytest.mark.parametrize("name", ["gemma3"])
def test_tiktoken_refuses_what_it_cannot_say(name):
    had("tiktoken")
    with pytest.raises(UsageError, match="tiktoken does not normalize text"):
        load_engine(vocabulary(name), kind="tiktoken")


def test_the_probe_corpus_is_the_same_everywhere_and_holds_the_hard_texts():
    texts = list(probe_texts(["<a>", "<b>"]))
    assert texts == list(probe_texts(["<b>", "<a>"]))
    everything = "".join(texts)
    for hard in ("  \n", "\t\t", "\r\n", "0123456789" * 9, "中" * 99, "👩‍👩‍👧‍👦", "<a>", "a" * 999, "\x00", "e\u0301"):
        assert hard in everything
    prove_equal(tiny.engine(), lambda text: tiny.engine().encode(text).tolist(), ["<a>"], "itself")


# Ranks.


@pytest.mark.soak
def test_ranks_become_a_tokenizer_that_agrees_with_tiktoken():
    had("tiktoken")
    import tiktoken

    place = vocabulary("qwen3_5").parent
    engine = load_engine(place)
    split = json.loads((place / "tokenizer.json").read_bytes())["pre_tokenizer"]["pretokenizers"][0]
    ranks = read_ranks((place / "ranks.tiktoken").read_bytes())
    official = tiktoken.Encoding(
        "q", pat_str=split["pattern"]["Regex"], mergeable_ranks=ranks, special_tokens=dict(engine.specials)
    )
    for text in probe_texts(()):
        if text.isascii():
            assert engine.encode(text).tolist() == official.encode(text, allowed_special="all")


def test_merges_follow_the_ranks():
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"ab": 3, b"abc": 4, b"xyz": 5}
    assert merges_of(ranks) == [(b"a", b"b"), (b"ab", b"c")]


@pytest.mark.parametrize("data", [b"no-base64! 1", b"YQ==", b"YQ== x"])
def test_a_file_that_holds_no_ranks_is_a_usage_error(data):
    with pytest.raises(UsageError, match="no file of token ranks"):
        read_ranks(data)


def test_a_written_tokenizer_normalizes_where_asked():
    ranks = {bytes([byte]): byte for byte in range(256)}
    plain, nfc = (load_engine(tokenizer_json(ranks, r"\p{L}+|.", {}, nfc=nfc)) for nfc in (False, True))
    assert plain.decode(plain.encode("e\u0301")) == "e\u0301"
    assert nfc.decode(nfc.encode("e\u0301")) == "é"
