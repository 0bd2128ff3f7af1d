"""Where metrics go. These two need nothing; `.prometheus`, `.wandb` and `.otel` are imported by those who use them."""

from .console import ConsoleSink as ConsoleSink
from .jsonl import JsonlSink as JsonlSink
