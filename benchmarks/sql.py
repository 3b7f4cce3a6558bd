"""The SQL environment against the raw drivers, and the comparison of rows, in one run."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import intercode
from floors import median_ms
from intercode.databases import get_engine
from intercode.databases.base import StatementResult
from intercode.task import Dataset, Task
from rows import Row, against, below

MIB = 1 << 20
COUNT = "SELECT COUNT(*) FROM filled"


def make_database(path: Path, rows: int) -> None:
    """A table of so many rows of about 100 bytes each, and an empty one."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE filled (id INTEGER PRIMARY KEY, words TEXT)")
        connection.execute("CREATE TABLE empty (id INTEGER)")
        values = ((n, f"row {n} ".ljust(90, ".")) for n in range(rows))
        connection.executemany("INSERT INTO filled VALUES (?, ?)", values)
        connection.commit()


def reading(folder: Path) -> Dataset:
    """A task over a small database, which is read."""
    make_database(folder / "small.sqlite", 100)
    return Dataset([Task("small", "?", gold=(COUNT,), db="small")], databases=str(folder))


@contextmanager
def environment(folder: Path, engine: Any) -> Iterator[Any]:
    """The SQL environment itself, over the databases ``small`` and ``large`` of a folder."""
    make_database(folder / "small.sqlite", 100)
    make_database(folder / "large.sqlite", 100_000)
    tasks = [Task(name, "?", gold=("SELECT 1",), db=name) for name in ("small", "large")]
    dataset = Dataset(tasks, databases=str(folder))
    env: Any = intercode.make("sql", data=dataset, engine=engine, max_turns=10**9)
    with closing(env):
        yield env


def resets(env: Any, name: str, action: str, repeats: int) -> float:
    """The median time of a reset after an episode that took this action."""
    times = []
    for _ in range(repeats):
        env.reset(options={"task_id": name})
        env.step(action)
        times.append(median_ms(lambda: env.reset(options={"task_id": name}), 1))
    return sorted(times)[repeats // 2]


def different() -> Iterator[str]:
    """Statements of which no two are the same, so that nothing can be remembered."""
    return (f"SELECT {n}" for n in count())


def sqlite() -> list[Row]:
    """SQLite embedded: its steps and resets, against the driver in this process."""
    raw = sqlite3.connect(":memory:")
    statements = different()
    driver = median_ms(lambda: raw.execute(next(statements)).fetchall(), 2000)
    raw.close()
    with tempfile.TemporaryDirectory() as name, closing(get_engine("sqlite")) as engine:
        folder = Path(name)
        with environment(folder, engine) as env:
            env.reset(options={"task_id": "large"})
            step = median_ms(lambda: env.step(next(statements)), 2000)
            write = "INSERT INTO empty VALUES (1)"
            small = resets(env, "small", write, 50)
            large = resets(env, "large", write, 50)
        size = (folder / "large.sqlite").stat().st_size
        copy = folder / "copy"
        floor = median_ms(lambda: shutil.copyfile(folder / "large.sqlite", copy), 20)
    return [
        below("hot loop: SQLite, step of SELECT 1", step, 0.5, "ms",
              f"{step / driver:.0f} x the driver"),
        below("SQLite: reset after writing, 12 KiB", small, 5, "ms"),
        below(f"SQLite: reset after writing, {size / MIB:.0f} MiB", large, 5 + floor, "ms",
              f"a copy of the file: {floor:.1f} ms"),
    ]  # fmt: skip


def mariadb() -> list[Row]:
    """A managed MariaDB: steps and resets, against the driver's own round trip."""
    import pymysql

    with (
        tempfile.TemporaryDirectory() as name,
        closing(get_engine("mysql")) as engine,
        environment(Path(name), engine) as env,
    ):
        env.reset(options={"task_id": "small"})
        connection = pymysql.connect(**engine._server.connect_args)  # type: ignore[attr-defined]
        cursor = connection.cursor()
        statements = different()

        def trip() -> None:
            cursor.execute(next(statements))
            cursor.fetchall()

        # In turns, so that both meet the same moods of the machine.
        pairs = [
            (median_ms(trip, 300), median_ms(lambda: env.step(next(statements)), 300))
            for _ in range(7)
        ]
        driver, step = zip(*pairs, strict=True)
        read = resets(env, "small", COUNT, 50)
        write = resets(env, "small", "INSERT INTO empty VALUES (1)", 20)
        connection.close()
    return [
        Row("PyMySQL: round trip of SELECT 1", driver, "ms", "the driver"),
        against("hot loop: MariaDB, step of SELECT 1", step, "the driver", driver, 1.5),
        below("MariaDB: reset after reading", read, 2, "ms"),
        Row("MariaDB: reset after writing", write, "ms"),
    ]


def comparing() -> list[Row]:
    """Comparing two results: no step may be quadratic."""
    from intercode.rewards.sql_compare import compare

    rows = []
    for size in (1_000, 10_000, 100_000):
        one = [(n, f"name {n % 977}", n / 7, None if n % 5 else n) for n in range(size)]
        other = one.copy()
        random.Random(0).shuffle(other)
        columns = ("id", "name", "share", "maybe")
        gold, answer = StatementResult(columns, one, size), StatementResult(columns, other, size)
        took = median_ms(lambda: compare(gold, answer, ordered=False), 5)  # noqa: B023
        rows.append(Row(f"comparing {size:,} rows with as many", took, "ms"))
    middle = rows[1]
    middle.target, middle.ok = "< 100 ms", middle.value < 100
    return rows


def replays(upstream: Path) -> list[Row]:
    """A recorded file of 2023, done again on two workers."""
    results = upstream / "data/results/sql/gpt-3.5/ic_sql_multiturn_gpt-3.5_10_turns.json"
    rows = []
    for engine, limit in (("sqlite", 60.0), ("mysql", 120.0)):
        done = subprocess.run(
            [sys.executable, "-m", "intercode.cli", "replay", "--env", "sql", "--json", "--quiet",
             "--upstream", str(upstream), "--results", str(results), "--engine", engine,
             "--workers", "2"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        report = json.loads(done.stdout)
        share = 100 * report["reward_equal"] / report["turns"]
        note = f"{report['turns']} turns, {share:.2f} % of the rewards equal"
        rows.append(below(f"replay on {engine}, 2 workers", report["seconds"], limit, "s", note))
    return rows
