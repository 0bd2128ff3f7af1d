"""Boxes that are containers of a Docker-compatible engine, spoken to over its API. No program is forked for it."""

from .config import DockerConfig as DockerConfig
