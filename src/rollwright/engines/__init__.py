"""Clients of models, a scripted engine, and small local models."""

from .config import EngineConfig as EngineConfig
from .config import LocalConfig as LocalConfig
from .config import RelayConfig as RelayConfig
from .config import TokensConfig as TokensConfig
from .contract import Ear as Ear
from .contract import Engine as Engine
from .contract import tell as tell
from .factory import open_engine as open_engine
from .function import FunctionEngine as FunctionEngine
from .proofs import prove_tokens as prove_tokens
