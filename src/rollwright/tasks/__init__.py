"""Tasks and where they come from, with their hooks: setup, respond, tools, rewards, metrics. Runs no rollout itself."""

from .calls import call_group as call_group
from .calls import call_hook as call_hook
from .calls import call_respond as call_respond
from .calls import call_scores as call_scores
from .calls import call_stops as call_stops
from .calls import call_tool as call_tool
from .hooks import Hooks as Hooks
from .hooks import hooks_of as hooks_of
from .marks import Hook as Hook
from .marks import HookKind as HookKind
from .marks import group_reward as group_reward
from .marks import metric as metric
from .marks import reward as reward
from .marks import stop as stop
from .marks import tool as tool
from .registry import find_taskset as find_taskset
from .registry import make_taskset as make_taskset
from .registry import taskset_names as taskset_names
from .task import Task as Task
from .task import TraceView as TraceView
from .taskset import Taskset as Taskset
from .taskset import load_tasks as load_tasks
from .tools import ToolHook as ToolHook
from .tools import ToolRefusal as ToolRefusal
