"""Rows from files and the hub: garbage is told with its place."""

import json
import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollwright.tasks import load_tasks, make_taskset
from rollwright.tasks.sources import hub_rows, read_rows
from rollwright.wire import UsageError

GOOD = b'{"question": "1 + 1?", "answer": "2"}\n'
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@pytest.fixture
def data(tmp_path):
    def write(content: bytes, name="rows.jsonl"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@settings(max_examples=40)
@given(rows=st.lists(st.dictionaries(st.text(), json_values), min_size=1, max_size=5), blank=st.booleans())
def test_rows_come_back_as_written(tmp_path_factory, rows, blank):
    path = tmp_path_factory.getbasetemp() / "rows.jsonl"
    gap = b"\n \t\r\n" if blank else b"\n"
    path.write_bytes(gap.join(json.dumps(row).encode() for row in rows))
    assert read_rows(path, ()) == rows


def test_bom_blank_lines_and_a_missing_last_newline_are_fine(data):
    rows = read_rows(data(b"\xef\xbb\xbf\n\r\n" + GOOD + b"   \n" + GOOD.strip()), ("question", "answer"))
    assert rows == [{"question": "1 + 1?", "answer": "2"}] * 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (GOOD + b'{"question": "a", "ans', "rows.jsonl, line 2: not valid JSON"),
        (GOOD + b"\n[1, 2]\n", "rows.jsonl, line 3: a row must be a JSON object, not list"),
        (GOOD + b'{"question": "\xff\xfe", "answer": "3"}', "rows.jsonl, line 2: not UTF-8 text (byte 15)"),
        (b"\x00\x01\x02", "line 1: not valid JSON"),
        (b"[" * 100_000, "line 1: not valid JSON"),
        (b"", "rows.jsonl is empty"),
        (b"\n\n  \n", "rows.jsonl is empty"),
        (b'{"question": "a", "solution": "b"}', "has no answer; it has question, solution"),
        (GOOD + b'{"x": 1}', "row 2 of"),
        (GOOD + b"{}", "has no question and no answer; it has nothing"),
        (GOOD + b'{"question": null, "answer": "1"}', "row 2 of"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_garbage_is_told_with_its_place(data, content, said):
    with pytest.raises(UsageError) as refused:
        read_rows(data(content), ("question", "answer"))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@given(content=st.binary(max_size=60))
def test_no_bytes_break_the_reader(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"rows\.jsonl"):
        read_rows(path, ("question", "answer"))


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_a_missing_file_is_told(tmp_path, name):
    with pytest.raises(UsageError, match="there is no data file"):
        read_rows(tmp_path / name, ())


def test_a_missing_library_names_its_extra(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install 'rollwright\[parquet\]'"):
        read_rows(data(b"PAR1", "rows.parquet"), ())
    with pytest.raises(UsageError, match=r"pip install 'rollwright\[hub\]'"):
        hub_rows("openai/gsm8k", "main", "test", ())


def test_parquet_rows(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    import pyarrow

    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([{"question": "a", "answer": "#### 1"}]), path)
    assert read_rows(path, ("question",)) == [{"question": "a", "answer": "#### 1"}]
    path.write_bytes(b"not parquet at all")
    with pytest.raises(UsageError, match="is not a Parquet file"):
        read_rows(path, ())


def stand_in_parquet(monkeypatch, read_table):
    module = types.ModuleType("pyarrow.parquet")
    module.read_table = read_table
    monkeypatch.setitem(sys.modules, "pyarrow", types.ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", module)


def test_a_parquet_file_the_library_refuses_is_told(data, monkeypatch):
    def read_table(path):
        raise ValueError("magic bytes\nnot found")

    stand_in_parquet(monkeypatch, read_table)
    with pytest.raises(UsageError, match="is not a Parquet file: magic bytes not found"):
        read_rows(data(b"x", "rows.parquet"), ())


def stand_in_hub(monkeypatch, load_dataset):
    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_the_hub_is_asked_for_dataset_config_and_split(monkeypatch):
    asked = []

    def load_dataset(*args, **options):
        asked.append((args, options))
        return [{"question": "1 + 1?", "answer": "So 2.\n#### 2"}]

    stand_in_hub(monkeypatch, load_dataset)
    tasks = load_tasks(make_taskset("gsm8k", {"source": "hub", "split": "train"}))
    assert asked == [(("openai/gsm8k", "main"), {"split": "train"})]
    assert [(task.id, task.answer) for task in tasks] == [("gsm8k-main-train-00000", "2")]


def test_all_subjects_of_math_come_from_the_hub(monkeypatch):
    row = {"problem": "1/2?", "solution": r"It is $\boxed{\frac{1}{2}}$.", "level": "Level 3", "type": "Algebra"}
    stand_in_hub(monkeypatch, lambda *args, **options: [row])
    tasks = load_tasks(make_taskset("math", {"source": "hub"}))
    assert len(tasks) == 7
    assert {task.answer for task in tasks} == {r"\frac{1}{2}"}
    assert tasks[0].info == {"subject": "Algebra", "level": 3}


def test_a_hub_that_fails_is_one_sentence(monkeypatch):
    def load_dataset(*args, **options):
        raise ConnectionError("no route\nto host")

    stand_in_hub(monkeypatch, load_dataset)
    with pytest.raises(UsageError, match="could not be loaded from the hub: ConnectionError: no route to host"):
        load_tasks(make_taskset("aime24", {"source": "hub"}))


def test_a_file_of_ones_own(data):
    path = data(b'{"question": "2 + 2?", "answer": "#### 4"}\n{"question": "3?", "answer": "3", "id": 17}\n')
    tasks = load_tasks(make_taskset("gsm8k", {"source": str(path)}))
    assert [(task.id, task.prompt, task.answer) for task in tasks] == [
        ("gsm8k-00000", "2 + 2?", "4"),
        ("17", "3?", "3"),
    ]


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("gsm8k", b'{"question": "a", "answer": "####"}', "nothing after ####"),
        ("math", b'{"problem": "a", "solution": "no box"}', "neither a column 'answer' nor"),
        ("aime24", b'{"question": "a", "answer": "1"}', "has no problem; it has answer, question"),
    ],
)
def test_rows_without_an_answer_are_told(data, name, row, said):
    with pytest.raises(UsageError) as refused:
        load_tasks(make_taskset(name, {"source": str(data(row))}))
    assert said in str(refused.value)
