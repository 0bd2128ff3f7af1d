"""What of an agent's requests is kept as a fixture: their shape, the words that are ours, and marks for all else.

A vendor's prompts and tool descriptions are not ours to copy. Each is replaced by a mark that is the same wherever the
same text stood, so that what follows what can still be seen. Keys, ids and paths of one machine are replaced, too.
"""

import hashlib
import json
import re

KEPT_HEADERS = {
    "accept", "anthropic-beta", "anthropic-version", "authorization", "content-type", "idempotency-key", "originator",
    "session-id", "thread-id", "user-agent", "x-api-key", "x-app", "x-claude-code-session-id", "x-client-request-id",
    "x-session-affinity", "x-session-id", "x-stainless-lang", "x-stainless-retry-count",
}  # fmt: skip
SECRETS = {"authorization": "Bearer KEY", "x-api-key": "KEY"}

_SHORT = 48
_WORDS = re.compile(r"[A-Za-z]{2,} [A-Za-z]{2,}")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|ses_\w{20,}|\b[0-9a-f]{32,64}\b")
_PROSE = {"description", "definition"}


class Scrubber:
    """One run of one agent. `ours` are texts that we wrote: they stay wherever they stand."""

    def __init__(self, ours):
        self.ours = ours
        self.ids = {}

    def request(self, method, path, headers, body):
        kept = {name.lower(): value for name, value in headers if name.lower() in KEPT_HEADERS}
        if "user-agent" in kept:
            kept["user-agent"] = re.sub(r"\([^)]*\)", "(...)", kept["user-agent"])
        kept = {name: self._text(SECRETS.get(name, value)) for name, value in kept.items()}
        return {"method": method, "path": path, "headers": dict(sorted(kept.items())), "body": self.value(body)}

    def value(self, value, key=""):
        if isinstance(value, dict):
            return {name: self.value(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner, key) for inner in value]
        return self._said(value, key) if isinstance(value, str) else value

    def _said(self, text, key):
        if any(text.strip() == word for word in self.ours):
            return text
        if key == "arguments":  # What our script said, as the agent wrote it anew.
            return self._text(text)
        is_prose = key in _PROSE or len(text) > _SHORT or "\n" in text or _WORDS.search(text)
        return _mark(self._text(text)) if is_prose else self._text(text)

    def _text(self, text):
        return _ID.sub(lambda found: self.ids.setdefault(found[0], f"id-{len(self.ids) + 1}"), text)


def _mark(text):
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"<text {digest}, {len(text)} characters>"


def write(path, agent, version, dialect, requests):
    told = {"agent": agent, "version": version, "dialect": dialect, "requests": requests}
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
