from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from intercode.datasets.files import load_file
from intercode.errors import TaskError
from intercode.task import Task
from sources import ROOT

ISSUE_FORM = {
    "task_id": "bash_001",
    "query": "Find all files larger than 100MB and delete them.",
    "setup": "mkdir test_files; fallocate -l 150M test_files/big.txt",
    "verification": "test ! -f test_files/big.txt",
}


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_one_object_or_a_list(tmp_path: Path) -> None:
    one = load_file(write(tmp_path, "one.json", json.dumps(ISSUE_FORM)))
    many = load_file(write(tmp_path, "many.json", json.dumps([ISSUE_FORM])))
    assert one == many
    assert one[0] == Task(**ISSUE_FORM)
    assert (one.name, one.source) == ("one", str(tmp_path / "one.json"))


def test_a_canary_is_no_task(tmp_path: Path) -> None:
    rows = [{"canary": "keep out"}, {"query": "q", "gold": "a"}, {"query": "q", "canary": "x"}]
    for name, text in {
        "t.json": json.dumps(rows),
        "t.jsonl": "\n".join(map(json.dumps, rows)),
    }.items():
        first, second = load_file(write(tmp_path, name, text))
        assert (first.task_id, second.metadata) == ("0", {"canary": "x"})


def test_whatever_holds_golds_carries_the_canary() -> None:
    root = ROOT
    files = [*(root / "packages/gym/src/intercode/datasets").rglob("*.json*")]
    files += [*(root / "benchmarks/graders").rglob("*.jsonl")]
    assert len(files) > 20
    without = [file for file in files if b"InterCode canary GUID 5b1d6c1e" not in file.read_bytes()]
    assert not without


def test_all_formats_say_the_same(tmp_path: Path) -> None:
    rows = [
        {"task_id": "a", "query": "list, all", "gold": "ls", "timeout": 2.5, "hint": "x"},
        {"task_id": "b", "query": 'say "hi"', "gold": "echo\thi"},
    ]
    table = [["task_id", "query", "gold", "timeout", "hint"]]
    table += [[str(row.get(key, "")) for key in table[0]] for row in rows]

    def delimited(mark: str) -> str:
        quoted = [['"' + cell.replace('"', '""') + '"' for cell in line] for line in table]
        return "\r\n".join(mark.join(line) for line in quoted)

    contents = {
        "t.json": json.dumps(rows, indent=1),
        "t.jsonl": "\n".join(json.dumps(row) for row in rows) + "\n\n",
        "t.csv": "\ufeff" + delimited(","),
        "t.tsv": delimited("\t"),
        "t.yaml": json.dumps(rows),  # JSON is YAML, save for tabs, which it escapes
    }
    loaded = {name: load_file(write(tmp_path, name, text)) for name, text in contents.items()}
    for name, data in loaded.items():
        assert list(data) == list(loaded["t.json"]), name
        assert data.digest == loaded["t.json"].digest
    assert loaded["t.csv"][0].timeout == 2.5
    assert loaded["t.csv"][1].gold == ("echo\thi",)


LAUGHS = "  a0: &a0 [x]\n" + "".join(
    f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
"""A list of a thousand million values, in aliases."""
BAD = [
    ("t.json", "{nonsense", "not JSON: .*line 1 column 2"),
    ("t.json", "", "not JSON"),
    ("t.json", "[" * 100_000, "nested too deeply"),
    ("t.json", "[]", "holds no tasks"),
    ("t.json", '"text"', "must hold an object or a list of objects, not str"),
    (
        "t.json",
        '[{"query": "a", "timout": 1}]',
        "row 1, there is no field 'timout'; did you mean 'timeout'",
    ),
    ("t.csv", "query,Verification\na,b", r"row 1 \(line 2\), .* did you mean 'verification'"),
    ("t.jsonl", '{"query": "a", "setpu": "b"}', "did you mean 'setup'"),
    ("t.json", '{"tasks": [{"query": "a"}]}', "with such a list under 'tasks': write the list"),
    ("t.json", "[3]", "row 1 must be an object, not int"),
    ("t.json", '[{"query": "a"}, {"gold": "ls"}]', "row 2, field 'query' is missing"),
    ("t.json", '[{"query": "a"}, {"query": ["b"]}]', "row 2, field 'query' must be text"),
    ("t.json", '[{"query": "a\\u0000"}]', "row 1, field 'query' holds a NUL"),
    (
        "t.json",
        '[{"query": "a"}, {"query": "b", "task_id": 0}]',
        "row 2, field 'task_id': '0' is al",
    ),
    ("t.json", '[{"query": "a", "query": "b"}]', "field 'query' is given twice"),
    ("t.json", b'[{"query": "\xff"}]', "not UTF-8 at byte 12"),
    ("t.jsonl", '{"query": "a"}\n\n{"query"', r"row 2 \(line 3\): not JSON"),
    ("t.jsonl", '{"query": "a"}\n\n{}', r"row 2 \(line 3\), field 'query' is missing"),
    ("t.jsonl", "\n", "holds no tasks"),
    ("t.csv", "", "holds no tasks"),
    ("t.csv", "query,query\na,b", "line 1: the header"),
    ("t.csv", "query,gold\na,b\na", r"row 2 \(line 3\): has 1 cells, the header 2"),
    ("t.csv", 'query\n"a', "line 2: unexpected end"),
    ("t.csv", "query\na\0b", "NUL in line 2"),
    ("t.csv", "query,timeout\na,soon", r"row 1 \(line 2\), field 'timeout' must be a number"),
    ("t.tsv", "gold\nls", "field 'query' is missing"),
    ("t.yaml", "a: [", "not YAML: .*line 1"),
    ("t.yaml", "", "must hold an object or a list of objects, not NoneType"),
    ("t.yaml", "query: 2023", "row 1, field 'query' must be text, not a number"),
    ("t.yaml", "query: a\nquery: b", "field 'query' is given twice"),
    ("t.yaml", "query: a\nmetadata: {5: b}", "the key 5 is not a text"),
    ("t.yaml", "query: a\nmetadata: {b: !!set {c, d}}", "holds a set, which JSON has not"),
    ("t.yaml", "query: a\nmetadata: {b: !!bool c}", "not YAML: 'c'"),
    ("t.yaml", 'query: a\nmetadata: {b: !!int ""}', "not YAML"),
    ("t.yaml", "query: a\nmetadata: {b: &b [*b]}", "nested too deeply: more than 128"),
    ("t.yaml", "&a\nquery: a\nmetadata: {b: *a}", "nested too deeply: more than 128"),
    ("t.yaml", f"query: a\nmetadata:\n{LAUGHS}", "aliases expand to too much"),
    ("t.yaml", f"query: a\nmetadata: {{b: 0x{'f' * 400}}}", "a number has too many digits"),
    ("t.json", f'[{{"query": "a", "b": {"[" * 300}{"]" * 300}}}]', "nested too deeply: more than"),
    ("t.jsonl", f'{{"query": "a", "b": {"[" * 300}{"]" * 300}}}', r"row 1 \(line 1\): nested too"),
    ("t.json", f'[{{"query": "a", "timeout": {"9" * 400}}}]', "a number has too many digits"),
    ("t.pkl", pickle.dumps([ISSUE_FORM]), "pickle is refused, because reading it runs code"),
    ("t.xlsx", "", "unknown format .xlsx; known: .csv, .json"),
    ("t", "", "unknown format"),
]


def test_dates_and_aliases_of_yaml_are_plain_data(tmp_path: Path) -> None:
    text = "- &a {query: 2023-01-01, tags: &t [b], metadata: {day: 2023-01-02, t: *t}}\n"
    data = load_file(write(tmp_path, "t.yaml", f"{text}- {{<<: *a, task_id: c, query: d}}"))
    assert [task.query for task in data] == ["2023-01-01", "d"]
    assert data[1].metadata == {"day": "2023-01-02", "t": ["b"]}


@pytest.mark.parametrize(("name", "content", "says"), BAD)
def test_a_bad_file_is_refused(tmp_path: Path, name: str, content: str | bytes, says: str) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(TaskError, match=says) as caught:
        load_file(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_file_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"none\.json: cannot be read: No such file"):
        load_file(tmp_path / "none.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(TaskError, match="cannot be read: Is a directory"):
        load_file(tmp_path / "folder.json")


def test_yaml_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(TaskError, match=r"pip install 'intercode-gym\[yaml\]'"):
        load_file(write(tmp_path, "t.yaml", "query: a"))


@given(st.binary(max_size=60), st.sampled_from(["json", "jsonl", "csv", "tsv", "yaml"]))
def test_any_bytes_are_a_dataset_or_a_task_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"any.{suffix}"
    path.write_bytes(content)
    try:
        assert len(load_file(path)) > 0
    except TaskError as error:
        assert str(path) in str(error)


def test_fields_of_ones_own_are_kept_and_known(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('[{"query": "a", "hardness": 1}, {"query": "b", "origin": 2}]')
    data = load_file(tmp_path / "t.json")
    assert data.kept == ["hardness", "origin"] and data[0].metadata == {"hardness": 1}
    # A name that is near one of ours can still be used, where there is no doubt.
    task = Task.from_dict({"query": "a", "metadata": {"timout": 1}})
    assert task.metadata == {"timout": 1}


def test_cells_of_a_table_with_line_ends_of_windows(tmp_path: Path) -> None:
    file = tmp_path / "tasks.csv"
    file.write_bytes(b'task_id,query,gold\r\na,loop,"for i in 1 2; do\r\necho $i\r\ndone"\r\n')
    assert load_file(file)[0].gold == ("for i in 1 2; do\necho $i\ndone",)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.jsonl", '{"qeury": "x"}', "field 'query' is missing: rename 'qeury'"),
        ("a.jsonl", '{"Query": "x"}', "field 'query' is missing: rename 'Query'"),
        ("a.jsonl", '{"instruction": "x"}', "field 'query' is missing: rename 'instruction'"),
        ("a.jsonl", '{"gold": "x"}', "field 'query' is missing$"),
        ("a.csv", "task_id;query;gold\na;b;c\n", "line 1: the cells are separated by ';', not ','"),
        ("a.tsv", "task_id,query\na,b\n", "field 'query' is missing"),
        ("a.jsonl", '[{"query": "x"}]', "must be an object, not list: rename the file to .json$"),
        ("a.json", '{"query": "x"}\n{"query": "y"}\n', "object in each line: rename the file to"),
        ("a.json", '{"query": "x"} x', "not JSON: Extra data"),
    ],
)
def test_a_near_miss_says_what_to_rename(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        load_file(write(tmp_path, name, text))


def test_a_cell_of_a_table_may_be_long(tmp_path: Path) -> None:
    long = "x" * 300_000
    assert load_file(write(tmp_path, "a.csv", f"query,gold\nq,{long}\n"))[0].gold == (long,)
