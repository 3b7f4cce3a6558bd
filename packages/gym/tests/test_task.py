from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from intercode.errors import InterCodeError, TaskError, TaskNotFoundError
from intercode.task import Dataset, Task

text = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30)
filled = text.filter(lambda value: value.strip())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
tasks = st.builds(
    Task,
    task_id=filled,
    query=filled,
    gold=st.lists(filled, max_size=3).map(tuple),
    setup=st.none() | filled,
    verification=st.none() | filled,
    files=st.dictionaries(filled, text, max_size=3),
    image=st.none() | filled,
    timeout=st.none() | st.floats(min_value=0.001, max_value=1e6),
    tests=st.lists(filled, max_size=2).map(tuple),
    db=st.none() | filled,
    tags=st.lists(filled, max_size=2).map(tuple),
    may_change=st.lists(text.map("/{}".format).filter(lambda g: ".." not in g), max_size=2).map(
        tuple
    ),
    metadata=st.dictionaries(text.filter(lambda key: key not in ROWS), json_values, max_size=3),
)
ROWS = {"task_id": "a", "query": "q"}


@given(tasks)
def test_a_task_survives_json(task: Task) -> None:
    assert Task.from_dict(json.loads(json.dumps(task.to_dict()))) == task
    assert pickle.loads(pickle.dumps(task)) == task
    assert hash(copy.deepcopy(task)) == hash(task)


@given(st.dictionaries(st.sampled_from([*Task.__dataclass_fields__, "other"]), json_values))
def test_any_row_is_a_task_or_a_task_error(row: dict[str, Any]) -> None:
    try:
        task = Task.from_dict(row, 7)
    except TaskError as error:
        assert str(error).startswith("field '")
    else:
        assert Task.from_dict(task.to_dict()) == task


def test_the_2023_row_gets_its_number_and_its_list_is_one_solution() -> None:
    assert Task.from_dict({"query": "q", "gold": ["cd /a", "ls"]}, 5) == Task(
        "5", "q", ("cd /a;ls",)
    )
    assert Task.from_dict({"query": "q", "gold": "ls"}, 0) == Task("0", "q", ("ls",))


def test_a_row_with_an_id_lists_alternatives() -> None:
    assert Task.from_dict({"task_id": 3, "query": "q", "gold": ["a", "b"]}) == Task(
        "3", "q", ("a", "b")
    )


def test_unknown_fields_are_kept_and_null_is_absent() -> None:
    task = Task.from_dict({**ROWS, "hint": "x", "metadata": {"wrong": ["w"]}, "setup": None})
    assert task.metadata == {"hint": "x", "wrong": ["w"]}
    assert task.setup is None


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("query", None, "missing"),
        ("query", 3, "must be text, not a number"),
        ("query", " \n", "must not be empty"),
        ("query", "a\0b", "NUL"),
        ("query", "\ud800", "surrogate"),
        ("task_id", 1.5, "must be text"),
        ("task_id", True, "must be text, not true or false"),
        ("task_id", "", "must not be empty"),
        ("gold", {"a": 1}, "must be text or a list of texts, not an object"),
        ("gold", ["ok", 3], "must be text, not a number"),
        ("gold", "ls \0", "NUL"),
        ("setup", ["a"], "must be text, not a list"),
        ("verification", "", "must not be empty"),
        ("files", ["a"], "must be an object"),
        ("files", {"a": 1}, "must be text"),
        ("files", {"": "x"}, "must not be empty"),
        ("timeout", "soon", "must be a number of seconds"),
        ("memory", 10, "must be at least 32M, and 10 is 10 bytes; did you mean 10G"),
        ("processes", "3", "must be a whole number"),
        ("timeout", 0, "above 0"),
        ("timeout", float("inf"), "at most 1000000"),
        ("timeout", True, "must be a number"),
        ("tags", 3, "must be text or a list"),
        ("metadata", "x", "must be an object"),
        ("may_change", {}, "must be text or a list"),
        ("may_change", ["/etc/hosts", "etc"], "must hold absolute paths without '..', not 'etc'"),
        ("may_change", "/root/../etc", "must hold absolute paths without '..'"),
    ],
)
def test_a_bad_field_is_named(field: str, value: object, says: str) -> None:
    with pytest.raises(TaskError, match=f"field '{field}' .*{says}"):
        Task.from_dict({**ROWS, field: value})


@pytest.mark.parametrize(
    ("glob", "path", "expected"),
    [
        ("/etc/hosts", "/etc/hosts", True),
        ("/etc/hosts", "/etc/hosts.allow", False),
        ("/etc", "/etc/apt/sources.list", True),
        ("/etc/", "/etc/hosts", True),
        ("/etc/*", "/etc/apt/sources.list", True),
        ("/etc/*/x", "/etc/a/b/x", False),
        ("/home/*/.bash*", "/home/dev/.bashrc", True),
        ("/root/.[a-c]*", "/root/.bashrc", True),
        ("/root/.?", "/root/.bashrc", False),
        ("/", "/etc/hosts", True),
    ],
)
def test_what_an_answer_is_expected_to_change(glob: str, path: str, expected: bool) -> None:
    task = Task("a", "q", may_change=(glob, "/none"))
    assert task.expects(path) is expected
    assert not Task("a", "q").expects(path)
    assert task.shown().may_change == ()


def test_a_field_given_twice_is_refused() -> None:
    with pytest.raises(TaskError, match="'hint' is given twice"):
        Task.from_dict({**ROWS, "hint": 1, "metadata": {"hint": 2}})


def test_constructing_checks_too() -> None:
    with pytest.raises(TaskError, match="field 'query'"):
        Task("a", "")
    with pytest.raises(ValueError, match="field 'gold'"):
        Task("a", "q", gold=("",))


def numbered(count: int) -> Dataset:
    return Dataset(
        [
            Task(str(number), f"q{number}", tags=("even",) * (1 - number % 2))
            for number in range(count)
        ],
        "d",
    )


def test_a_dataset_is_a_sequence_with_ids() -> None:
    data = numbered(4)
    assert len(data) == 4
    assert [task.task_id for task in data] == ["0", "1", "2", "3"]
    assert data[1] is data["1"] is data.by_id(1)
    assert data[-1].task_id == "3"
    assert data[1:3] == Dataset(list(data)[1:3])
    assert data[0] in data
    assert repr(data) == "Dataset('d', 4 tasks)"


def test_an_unknown_id() -> None:
    with pytest.raises(TaskNotFoundError, match="no task has the id '9'") as caught:
        numbered(2)["9"]
    assert isinstance(caught.value, InterCodeError)
    assert isinstance(caught.value, LookupError)


def test_duplicate_ids_are_refused() -> None:
    with pytest.raises(TaskError, match=r"row 2, field 'task_id': 'a' is already the id of row 1"):
        Dataset([Task("a", "q"), Task("a", "r")])


def test_filter_keeps_the_order_and_the_name() -> None:
    even = numbered(6).filter(lambda task: "even" in task.tags)
    assert [task.task_id for task in even] == ["0", "2", "4"]
    assert even.name == "d"


@given(st.integers(0, 30), st.integers(), st.integers(0, 40))
def test_order_is_a_permutation_and_sample_its_beginning(size: int, seed: int, count: int) -> None:
    data = numbered(size)
    order = data.order(seed)
    assert sorted(order) == list(range(size))
    assert order == numbered(size).order(seed)
    assert [int(task.task_id) for task in data.sample(count, seed)] == order[:count]


def test_order_differs_by_seed_and_never_changes_between_versions() -> None:
    assert numbered(6).order(0) == [1, 3, 4, 2, 5, 0]
    assert numbered(6).order(1) != numbered(6).order(0)


def test_digest_is_of_the_tasks_and_their_order() -> None:
    data = numbered(3)
    assert data.digest == Dataset(list(data), "another name").digest
    assert data.digest != data[::-1].digest
    assert data.digest != data[:2].digest
    assert len(data.digest) == 64


def test_an_empty_selection_is_still_a_dataset() -> None:
    assert len(numbered(3).filter(lambda task: False)) == 0
    assert len(Dataset([]).sample(3)) == 0
