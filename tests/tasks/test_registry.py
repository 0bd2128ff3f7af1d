"""Tasksets by name, import path and file; every mistake is one sentence."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from rollwright.tasks import Task, Taskset, find_taskset, load_tasks, make_taskset, registry, reward, taskset_names
from rollwright.wire import UsageError

BUILTIN = ["aime24", "gsm8k", "math", "reverse-text", "wordle"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "sums.py"

ONE = """
from rollwright.tasks import Task, Taskset

class Mine(Taskset, frozen=True):
    size: int = 2
    def tasks(self):
        return [Task(id=str(n), prompt=str(n)) for n in range(self.size)]
"""


@pytest.fixture
def written(tmp_path):
    def write(source, name="mine.py"):
        path = tmp_path / name
        path.write_text(source)
        return path

    return write


def test_builtin_names_are_known_and_named_after_themselves():
    assert set(BUILTIN) <= set(taskset_names())
    assert [find_taskset(name).name for name in BUILTIN] == BUILTIN


def test_an_import_path_names_a_class():
    assert find_taskset("rollwright.tasks.builtin.gsm8k:Gsm8k") is find_taskset("gsm8k")


def test_a_file_names_its_only_taskset(written):
    path = written(ONE)
    kind = find_taskset(str(path))
    assert kind.__name__ == "Mine"
    assert find_taskset(f"{path}:Mine") is kind
    assert [task.id for task in load_tasks(make_taskset(str(path), {"size": "3"}))] == ["0", "1", "2"]


def test_a_changed_file_is_read_again(written):
    first = find_taskset(str(written(ONE)))
    second = find_taskset(str(written(ONE.replace("size: int = 2", "size: int = 5"))))
    assert (first().size, second().size) == (2, 5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "gsm9k",
            "taskset 'gsm9k' is not known (it is a name, file.py or package.module:Class); did you mean 'gsm8k'?",
        ),
        ("reverse_text", "did you mean 'reverse-text'?"),
        ("qqqq", "there is aime24, gsm8k"),
        ("", "taskset '' is not known"),
        ("nowhere.at.all:Thing", "could not be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("rollwright.tasks.builtin.gsm8k:Gsm9k", "has no 'Gsm9k'; did you mean 'Gsm8k'?"),
        ("rollwright.tasks:Task", "names Task, which is not a Taskset"),
        ("rollwright.tasks:Taskset", "is not a Taskset"),
        ("no/such/file.py", "taskset file no/such/file.py cannot be read: No such file"),
        (":", "could not be imported: ValueError"),
    ],
)
def test_unknown_names_are_told_with_the_next_step(name, said):
    with pytest.raises(UsageError) as refused:
        find_taskset(name)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1", "defines no Taskset"),
        ("from rollwright.tasks import Taskset", "defines no Taskset"),
        (ONE + ONE.replace("Mine", "Other"), "defines 2 tasksets; name one: "),
        ("x = (", "does not run: SyntaxError"),
        ("1 / 0", "does not run: ZeroDivisionError: division by zero"),
        ("import not_a_module_at_all", "does not run: ModuleNotFoundError"),
        ("raise SystemExit(3)", "does not run: SystemExit: 3"),
        ("x = '\0'", "does not run"),
    ],
)
def test_files_that_cannot_be_used_say_why(written, source, said):
    path = written(source, f"odd_{abs(hash(source))}.py")
    for _ in range(2):  # A failure leaves no half-made module behind.
        with pytest.raises(UsageError) as refused:
            find_taskset(str(path))
        assert said in str(refused.value)
    kept = [name for name in sys.modules if name.startswith(f"rollwright_file_{path.stem}_")]
    assert bool(kept) is ("does not run" not in said)


def test_a_plugin_that_does_not_import_names_its_cause(monkeypatch):
    broken = EntryPoint("broken", "rollwright_no_such_plugin:Broken", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group, name="broken": [broken] if name == "broken" else [])
    with pytest.raises(UsageError, match="taskset 'broken' could not be imported: ModuleNotFoundError"):
        find_taskset("broken")


def test_two_plugins_of_one_name_are_told_apart(monkeypatch):
    both = [EntryPoint("twin", f"{module}:Twin", registry.GROUP) for module in ("left", "right")]
    monkeypatch.setattr(registry, "entry_points", lambda group, name: both)
    with pytest.raises(UsageError, match="claimed by left:Twin and right:Twin"):
        find_taskset("twin")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sorce": "hub"}, "taskset 'gsm8k' has no setting 'sorce'; did you mean 'source'?"),
        ({"zzz": 1}, "there is source, split, system"),
        ({"source": ["a"]}, "a setting of taskset 'gsm8k' is wrong: Expected `str`"),
    ],
)
def test_wrong_settings_are_told(options, said):
    with pytest.raises(UsageError) as refused:
        make_taskset("gsm8k", options)
    assert said in str(refused.value)


def test_settings_may_be_text_from_a_command_line():
    assert make_taskset("reverse-text", {"count": "7", "seed": 3}).count == 7


def test_finding_one_plugin_imports_no_other():
    program = (
        "import sys; from rollwright.tasks import find_taskset; find_taskset('wordle'); "
        "print(sorted(name for name in sys.modules if name.startswith('rollwright.tasks.builtin.')))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == "['rollwright.tasks.builtin.wordle', 'rollwright.tasks.builtin.words']"


def tasks_of(tasks):
    class Fixed(Taskset, frozen=True):
        def tasks(self):
            return tasks() if callable(tasks) else tasks

    return Fixed()


def test_tasks_are_checked_when_loaded():
    class Broken(Task, frozen=True):
        @reward
        def correct(self, repyl):
            return 1

    def raising():
        yield Task(id="a")
        raise KeyError("column")

    for tasks, said in [
        ([], "taskset 'Fixed' has no tasks"),
        ([Task(id="a"), Task(id="b"), Task(id="a")], "2 tasks with the id 'a'"),
        ([{"id": "a"}], "yields dict, which is not a Task"),
        ([Broken(id="a")], "reward 'correct' of Broken asks for 'repyl'"),
        (raising, "could not be read: KeyError: 'column'"),
        (None, "could not be read: TypeError"),
    ]:
        with pytest.raises(UsageError) as refused:
            load_tasks(tasks_of(tasks))
        assert said in str(refused.value)
    with pytest.raises(UsageError, match="has no method 'tasks'"):
        load_tasks(Taskset())


def test_the_example_is_a_taskset_that_works():
    tasks = load_tasks(make_taskset(str(EXAMPLE), {"largest": 4}))
    assert len(tasks) == 10
    assert all(task.correct(task.oracle(task.opening()).text) for task in tasks)
    assert not any(task.correct("") or task.correct("I think 99") for task in tasks)
