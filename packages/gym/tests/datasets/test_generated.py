"""Generated tasks: the same everywhere, without an end, apart by split, and each of them sound."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import intercode
from intercode import datasets
from intercode.cli.main import main
from intercode.datasets.generated import KINDS, SPLITS, load_generated, task
from intercode.datasets.generated.sampling import _WORDS, TaskNamePool
from intercode.errors import TaskError, TaskNotFoundError, UsageError
from intercode.task import LOOKS, Dataset, Task

DIGEST = "ca1187d7effb53eca1d2089a1492e602ed61ba2bf87da7d79d2a993292526c7d"
"""Of the tasks of `digest`: they must not change, as runs name them by seed and index."""


def digest() -> str:
    tasks = [
        task(kind, index, seed=3, difficulty=difficulty, split=split)
        for kind in KINDS
        for difficulty in (2, 3)
        for split in SPLITS
        for index in range(3)
    ]
    return Dataset(tasks).digest


@pytest.fixture(scope="module", params=KINDS)
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    env = intercode.make(request.param, data=load_generated(request.param, count=1)).unwrapped
    yield env
    env.close()


def test_the_tasks_are_those_of_other_machines_and_versions() -> None:
    assert digest() == DIGEST
    source = Path(intercode.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", "from datasets.test_generated import digest; print(digest())"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (source, *sys.path))),
            "PYTHONHASHSEED": "7",
            "TZ": "Asia/Tokyo",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == DIGEST


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_depends_on_its_index_alone_and_there_is_no_last_one(kind: str) -> None:
    few, more = load_generated(kind, seed=5, count=3), load_generated(kind, seed=5, count=7)
    assert list(more)[:3] == list(few) and len(more) == 7
    assert few.at(6) == more[6] == few.by_id(more[6].task_id)
    far = few.at(10**9)
    assert far == task(kind, 10**9, seed=5) == few.by_id(far.task_id)
    other = load_generated(kind, seed=6, count=7)
    assert not {one.task_id for one in more} & {one.task_id for one in other}
    assert [one.query for one in more] != [one.query for one in other]
    with pytest.raises(TaskNotFoundError):
        few.by_id(other[0].task_id)
    with pytest.raises(TaskNotFoundError):
        few.at(-1)


def words(one: Task) -> set[str]:
    """The words that a task is made with, and the numbers of two digits that it tells."""
    content = "".join(f"{path} {text}" for path, text in one.files.items())
    text = f"{one.query} {one.gold} {one.tests} {content}".lower()
    told = re.findall(r"\b\d\d\b", f"{one.query} {one.gold}")
    return {*told, *(set(re.findall(r"[a-z]{4,}", text)) & set(_WORDS))}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_no_split_has_what_is_held_out_of_another(kind: str, difficulty: int) -> None:
    seen: dict[str, set[str]] = {}
    pairs: dict[str, set[tuple[str, str]]] = {}
    operations: dict[str, set[str]] = {}
    for split in SPLITS[: 4 if difficulty > 1 else 3]:
        tasks = load_generated(kind, difficulty=difficulty, split=split, count=150)
        seen[split] = set().union(*map(words, tasks))
        done = [one.metadata["operations"] for one in tasks]
        assert {len(one) for one in done} == {difficulty}
        pairs[split] = {pair for one in done for pair in pairwise(one)}
        operations[split] = set().union(*done)
    assert all(seen.values())
    assert not seen["train"] & seen["validation"]
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]
    if difficulty == 2:
        assert pairs["compositions"]
        assert not pairs["compositions"] & (pairs["train"] | pairs["validation"] | pairs["test"])
        assert operations["compositions"] <= operations["train"] | set(_known(kind))
        train = TaskNamePool.from_split("train")
        assert seen["compositions"] <= {*train.words, *map(str, train.numbers)}


def _known(kind: str) -> set[str]:
    """Operations that longer tasks of the training split have."""
    tasks = (
        *load_generated(kind, difficulty=2, count=500),
        *load_generated(kind, difficulty=3, count=500),
    )
    return {name for one in tasks for name in one.metadata["operations"]}


def test_pools_share_nothing() -> None:
    one, *others = (TaskNamePool.from_split(split) for split in ("train", "validation", "test"))
    for first, second in ((one, others[0]), (one, others[1]), (others[0], others[1])):
        for name in TaskNamePool.__slots__:
            assert not set(getattr(first, name)) & set(getattr(second, name)), name
    for pool in (one, *others):
        assert {number % 2 for number in pool.numbers} == {0, 1}
        assert len(pool.words) >= 16 and len(pool.numbers) >= 12
    assert {len(word) for word in _WORDS} == {4} and len(set(_WORDS)) == len(_WORDS)


@pytest.mark.parametrize("kind", KINDS)
def test_questions_and_solutions_are_short_and_plain(kind: str) -> None:
    for difficulty, longest in ((1, 80), (2, 100), (4, 140)):
        for one in load_generated(kind, difficulty=difficulty, count=60):
            assert (one.query + one.gold[0]).isascii() and "\n" not in one.gold[0]
            assert len(one.query) <= 200 and len(one.gold[0]) <= longest
            assert one.gold[0] not in one.metadata["wrong"] != []


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    difficulty=st.integers(1, 4),
    split=st.sampled_from(SPLITS),
    index=st.integers(0, 2**40),
)
def test_gold_solves_every_task_and_its_mutants_do_not(
    env: Any, seed: int, difficulty: int, split: str, index: int
) -> None:
    difficulty = max(difficulty, 2) if split == "compositions" else difficulty
    data = load_generated(env.name, seed=seed, difficulty=difficulty, split=split, count=1)
    playing: Any = env if env.name != "sql" else intercode.make("sql", data=data).unwrapped
    playing.dataset = data
    one = data.at(index)
    wrong = [[action, "submit"] for action in one.metadata["wrong"]]
    looked = [[*one.metadata[LOOKS], "submit"]] if LOOKS in one.metadata else []
    solution = playing.solution(one)
    assert len(solution) == 2 + len(looked)
    for actions in (solution, ["submit"], *wrong, *looked):
        playing.reset(index=index)
        for action in actions:
            _, reward, *_ = playing.step(action)
        assert (reward == 1.0) == (actions == solution), (one.to_dict(), actions)
    if playing is not env:
        playing.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_oracle_looks_at_tells_what_the_question_does_not(kind: str) -> None:
    data = load_generated(kind, difficulty=2, count=120).filter(lambda one: LOOKS in one.metadata)
    assert len(data) >= 3
    env: Any = intercode.make(kind, data=data[:1]).unwrapped
    query, _ = env.reset()
    solution = env.solution(data[0])
    shown, *_ = env.step(solution[0])
    found = re.findall(r"[a-z]{4,}|\d\d", shown)[-1]
    env.close()
    assert found in solution[1] and found not in query


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracles_episodes_are_whole_dialogues(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run, out = (
        f"generated-{kind}:difficulty=2,seed=2,count=40",
        tmp_path / "r",
        tmp_path / "c",
    )
    oracle = ["--agent", "oracle", "--quiet", "--workers", "2"]
    looks = [one for one in datasets.load(data) if LOOKS in one.metadata][:2]
    rest = [one for one in datasets.load(data) if LOOKS not in one.metadata][:2]
    named = [part for one in (*looks, *rest) for part in ("--task", one.task_id)]
    assert main(["run", kind, "--data", data, *named, *oracle, "--out", str(run)]) == 0
    assert main(["export", str(run), "--to", "chat", "--solved", "--out", str(out)]) == 0
    capsys.readouterr()
    told = {
        row["task_id"]: row["messages"] for row in map(json.loads, out.read_text().splitlines())
    }
    assert looks and told.keys() == {one.task_id for one in (*looks, *rest)}
    for one in (*looks, *rest):
        said = [message["content"] for message in told[one.task_id]]
        assert said[0] == one.query
        assert said[1::2] == [*one.metadata.get(LOOKS, ()), one.gold[0], "submit"]
        assert [m["role"] for m in told[one.task_id]] == ["user", "assistant"] * (len(said) // 2)


def test_by_name_with_options() -> None:
    name = "generated-bash:seed=4,difficulty=2,count=9"
    assert datasets.load(name) == load_generated("bash", seed=4, difficulty=2, count=9)
    assert datasets.load(name, "test") == load_generated(
        "bash", seed=4, difficulty=2, count=9, split="test"
    )
    assert datasets.load_seeded(name, 8) == datasets.load(name)
    assert datasets.load_seeded("generated-sql:count=2", 8) == load_generated(
        "sql", seed=8, count=2
    )
    assert datasets.splits(name) == list(SPLITS)
    assert datasets.accepts_option(name, "split") and not datasets.accepts_option(name, "secret")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("generated-bash:difficulty=9", "must be 1 to 4, not 9"),
        ("generated-bash:split=compositions", "must be 2 to 4, not 1"),
        ("generated-bash:split=trian", "did you mean 'train'"),
        ("generated-bash:count=0", "count must be"),
        ("generated-bash:seed=one", "seed must be a whole number"),
        ("generated-bash:level=2", "no option 'level': its options are seed"),
        ("generated-bash:seed=1,seed=2", "each once, not 'seed=2'"),
        ("generated-bash:seed=1,count", "expected OPTION=VALUE"),
    ],
)
def test_options_that_make_no_sense(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        datasets.load(name)


def test_an_option_beside_and_within_the_name() -> None:
    with pytest.raises(UsageError, match="'split' is given twice"):
        datasets.load("generated-bash:split=test", "train")


def test_databases_come_back_after_the_cache_was_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path))
    folder = Path(load_generated("sql", count=1).databases or "")
    held = {path.name: path.read_text() for path in folder.iterdir()}
    assert folder.is_relative_to(tmp_path) and len(held) == 64
    for path in folder.iterdir():
        path.unlink()
    load_generated("sql", count=1)
    assert {path.name: path.read_text() for path in folder.iterdir()} == held
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskError, match="cannot be written"):
        load_generated("sql", count=1)
