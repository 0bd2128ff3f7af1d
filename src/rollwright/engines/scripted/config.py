"""The settings of the scripted engine. What a policy string means is said in `policies`."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from rollwright.wire import UsageError


class Fault(StrEnum):
    """What goes wrong with one request."""

    NONE = "none"
    """Nothing: for places in a fault script."""
    RATE_LIMIT = "rate_limit"
    """429 with Retry-After."""
    SERVER_ERROR = "server_error"
    """500."""
    CUT_STREAM = "cut_stream"
    """Half of the answer, then the connection is closed."""
    STALL = "stall"
    """Half of a streamed answer, or nothing of a whole one, then silence until the client leaves."""
    MALFORMED_JSON = "malformed_json"
    """200 with JSON that does not parse: the whole body, or one event in the middle of a stream."""


class ScriptedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that plays a script. The same settings give the same answers, in whatever order the calls come."""

    policy: str = "oracle"
    """What it says: oracle, noisy(P), echo, transcript(FILE.jsonl), package.module:callable or file.py:callable."""
    solver: str = ""
    """Where oracle and noisy get right answers: module:factory. factory(solver_options) gives a callable from the
    messages of a call to the answer, or to None where it does not know one."""
    solver_options: dict[str, Any] = {}
    """What the solver's factory is called with, as JSON."""
    seed: int = 0
    """Seed of everything that is drawn."""
    latency_s: float = 0.0
    """Mean time that an answer takes after its first token."""
    latency_jitter_s: float = 0.0
    """The latency is drawn evenly from the mean minus this to the mean plus this, never below 0."""
    first_token_s: float = 0.0
    """Time before the first token."""
    chunk_chars: int = 32
    """Most characters of one streamed event."""
    faults: dict[Fault, float] = {}
    """Probability of each kind of fault, drawn for each request."""
    fault_script: tuple[Fault, ...] = ()
    """Faults of the first requests in order of arrival; later requests follow the probabilities."""
    retry_after_s: float = 1.0
    """What a rate limit tells the client to wait."""
    stall_s: float = 600.0
    """Longest silence of a stall; then the connection is closed."""
    tokens: bool = False
    """Give token ids, logprobs and routed experts to calls that ask for them."""
    rerender: bool = False
    """Render earlier answers anew instead of using the ids that were sampled: the drift of a chat endpoint."""
    routed_layers: int = 0
    """Layers of routed experts in token mode; 0 is a model without experts."""
    routed_topk: int = 0
    """Experts per token and layer."""
    routed_dtype: Literal["u1", "u2"] = "u1"
    """uint8 or uint16."""
    tokenizer: str = ""
    """A tokenizer.json or its directory: also serve /inference/v1/generate and /v1/completions, which take ids of this
    vocabulary and give ids. Empty: neither path is served."""
    family: str = "qwen3"
    """How conversations are written in those ids."""
    context_tokens: int = 0
    """Most ids of a conversation on those paths; 0 is no limit and is not told."""
    models: tuple[str, ...] = ()
    """Names that are served; empty takes every name."""
    key_env: str = ""
    """Environment variable that holds the expected API key; empty takes every key."""
    log_calls: int = 1024
    """How many calls the log keeps; older ones are dropped."""
    max_body_mb: float = 64.0
    """Largest request body."""

    def __post_init__(self) -> None:
        if any(not 0.0 <= chance <= 1.0 for chance in self.faults.values()) or sum(self.faults.values()) > 1.0:
            raise UsageError("engine.scripted.faults: the probabilities must be between 0 and 1, and so must their sum")
        times = (self.latency_s, self.latency_jitter_s, self.first_token_s, self.retry_after_s, self.stall_s)
        if min(times) < 0.0:
            raise UsageError("engine.scripted: times must not be negative")
        if self.chunk_chars < 1 or self.log_calls < 0 or self.max_body_mb <= 0.0:
            raise UsageError(
                "engine.scripted: chunk_chars and max_body_mb must be positive, log_calls must not be negative"
            )
        if self.context_tokens < 0:
            raise UsageError("engine.scripted.context_tokens must not be negative")
        if not 0 <= self.routed_layers <= 512 or not 0 <= self.routed_topk <= 64:
            raise UsageError("engine.scripted: routed_layers must be within 0..512 and routed_topk within 0..64")
