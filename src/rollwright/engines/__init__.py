"""Clients of models, a scripted engine, and small local models."""

from .contract import Engine as Engine
