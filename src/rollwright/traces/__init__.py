"""The growing record of a rollout, and the directory that finished ones are kept in."""

from .live import LiveTrace as LiveTrace
from .phases import Phase as Phase
from .runs import RunDirectory as RunDirectory
from .runs import read_traces as read_traces
