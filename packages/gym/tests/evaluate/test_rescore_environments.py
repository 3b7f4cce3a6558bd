"""Runs of each environment scored again, held against fresh ones."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode.evaluate import evaluate
from intercode.evaluate.rescore import rescore
from intercode.task import Dataset, Task

from .recorded import Make, Scripted, found, result_of


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled databases as Spider lays them out, each with another one to agree on."""
    folder = tmp_path_factory.mktemp("suite")
    builtin = Path(intercode.__file__).parent / "datasets" / "builtin" / "databases"
    for dump in builtin.glob("*.sql"):
        (folder / dump.stem).mkdir()
        for name in (dump.stem, "other"):
            with sqlite3.connect(folder / dump.stem / f"{name}.sqlite") as connection:
                connection.executescript(dump.read_text())
                if name == "other":
                    connection.execute("PRAGMA foreign_keys = OFF")
                    for (table,) in connection.execute(
                        "SELECT name FROM sqlite_master WHERE type = 'table'"
                    ).fetchall():
                        connection.execute(f'DELETE FROM "{table}" WHERE rowid % 3 = 0')
            connection.close()
    return folder


@pytest.fixture(scope="module")
def tasks() -> Dataset:
    everything = intercode.load_dataset("sql")
    return everything.filter(lambda t: "sqlite" in t.metadata.get("engines", ("sqlite",)))


def sometimes_wrong(task: Task) -> Scripted:
    """Right, wrong in one of several ways, or right by the data only."""
    gold = task.gold[0]
    chance = random.Random(task.task_id)
    ways = [
        [gold],
        ["SELECT 1 WHERE 0", gold],
        [gold, "SELECT 1"],
        ["SELECT 1"],
        [f"SELECT * FROM ({gold.rstrip(';')}) UNION ALL SELECT * FROM ({gold.rstrip(';')})"],
        [],
    ]
    return Scripted(chance.choice(ways))


sometimes_wrong.needs_gold = True  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def sql_run(tmp_path_factory: pytest.TempPathFactory, tasks: Dataset, suite: Path) -> Path:
    folder = tmp_path_factory.mktemp("sql") / "run"
    evaluate(tasks, sometimes_wrong, sql(tasks, suite), out=folder, settings={"env": "sql"})
    return folder


def sql(tasks: Dataset, suite: Path, **options: Any) -> Make:
    return lambda: intercode.make("sql", data=tasks, databases=suite, **options)


@pytest.mark.parametrize("reward", ["bird-ex", "spider-test-suite"])
def test_a_sql_run_is_scored_as_a_fresh_one_under_that_reward(
    reward: str, sql_run: Path, tasks: Dataset, suite: Path, tmp_path: Path
) -> None:
    make = sql(tasks, suite, reward=reward)
    again = rescore(sql_run, tasks, reward, make, out=tmp_path / "again", workers=2)
    fresh = evaluate(tasks, sometimes_wrong, make, out=tmp_path / "fresh", settings={"env": "sql"})
    one, other = found(tmp_path / "again"), found(tmp_path / "fresh")
    assert one.keys() == other.keys()
    assert [result_of(one[key]) for key in one] == [result_of(other[key]) for key in one]
    assert again.statistics.success_rate == fresh.statistics.success_rate
    # Golds that change tables are no question to BIRD: errors here as there.
    assert again.ways.keys() <= {"again", "failed"} and again.changes
    assert again.ways.get("failed", 0) == fresh.statistics.errors == len(again.lost)


def test_turns_are_scored_anew_where_every_turn_was(
    tasks: Dataset, suite: Path, tmp_path: Path
) -> None:
    some = tasks.filter(lambda task: task.task_id.startswith("orders"))
    first = sql(some, suite, reward_every_turn=True)
    evaluate(some, sometimes_wrong, first, out=tmp_path / "run", settings={"env": "sql"})
    make = sql(some, suite, reward_every_turn=True, reward="bird-soft-f1")
    result = rescore(tmp_path / "run", some, "bird-soft-f1", make, out=tmp_path / "again")
    evaluate(some, sometimes_wrong, make, out=tmp_path / "fresh", settings={"env": "sql"})
    one, other = found(tmp_path / "again"), found(tmp_path / "fresh")
    assert [result_of(one[key]) for key in one] == [result_of(other[key]) for key in one]
    assert any(turn.reward == 1 for episode in one.values() for turn in episode.turns[:-1])
    assert result.ways["again"] > 5


def length(task: Task, episode: Any, place: Any) -> float:
    """Of the record alone."""
    return 1.0 / (1 + len(episode.turns))


def test_ctf_needs_no_sandbox(tmp_path: Path) -> None:
    flags = intercode.load_dataset("ctf")
    some = [task.task_id for task in flags][:2]

    def guesses(task: Task) -> Scripted:
        right = task.task_id == some[0]
        flag = flags.by_id(task.task_id).gold[0]
        return Scripted(["ls", "submit wrong", f"submit {flag if right else 'no'}"])

    make: Make = lambda: intercode.make("ctf", data=flags)  # noqa: E731
    evaluate(flags, guesses, make, tasks=some, out=tmp_path / "ctf", settings={"env": "ctf"})
    result = rescore(tmp_path / "ctf", flags, out=tmp_path / "ctf-again")
    assert result.ways == {"record": 2} and not result.changes
    assert [outcome.success for outcome in result.outcomes] == [True, False]
    again = rescore(tmp_path / "ctf", flags, lambda *_, **__: 0.5, make)
    assert [r.after.reward for r in again.results] == [0.5, 0.5]


def test_python_is_scored_again(tmp_path: Path) -> None:
    result, first, again = rescore_python(tmp_path)
    assert result.ways == {"again": 2} and not result.changes
    assert [outcome.success for outcome in result.outcomes] == [True, False]
    assert first == again


def rescore_python(folder: Path, **options: Any) -> tuple[Any, list[Any], list[Any]]:
    """Run two tasks and rescore them; return the result, and the episodes of each run."""
    source = Dataset(
        [
            Task(name, "?", tests=("assert f(2) == 4",), gold=("def f(x): return x * 2",))
            for name in ("right", "wrong")
        ]
    )

    def codes(task: Task) -> Scripted:
        return Scripted([f"def f(x): return x * {2 if task.task_id == 'right' else 3}", "f(1)"])

    def make() -> Any:
        return intercode.make("python", data=source, **options)

    evaluate(source, codes, make, out=folder / "run", settings={"env": "python", **options})
    result = rescore(folder / "run", source, None, make, out=folder / "again")
    first, again = (found(folder / name) for name in ("run", "again"))
    assert first.keys() == again.keys()
    return result, [*map(result_of, first.values())], [*map(result_of, again.values())]
