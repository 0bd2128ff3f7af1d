"""Rollwright runs the rollouts that reinforcement learning on language models feeds on."""

__version__ = "0.1.0"
