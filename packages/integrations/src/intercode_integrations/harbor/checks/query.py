"""Runs the answer on a copy of the database; compares its rows, or the tables, with gold's."""

import hashlib
import json
import math
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ANSWER, REWARD = "/logs/agent/answer.txt", "/logs/verifier/reward.txt"
MOST_STEPS = 200_000
"""Thousands of the engine's own instructions, after which an answer is given up."""


def plain(value: object) -> object:
    """Return a value as JSON has it; bytes by their hash."""
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, float) and value.is_integer() and abs(value) < 2.0**53:
        return int(value)
    return value


def state_of(rows: "Sequence[Sequence[object]]") -> str:
    """Return a hash of a table's rows, in any order."""
    lines = sorted(json.dumps([plain(value) for value in row]) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def alike(one: "list[object]", other: "list[object]") -> bool:
    """Return whether two rows are equal, numbers up to the last digits."""
    return len(one) == len(other) and all(map(_alike, one, other))


def _alike(one: object, other: object) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == other or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return type(one) is type(other) and one == other


def taken(rows: "list[list[object]]", allowed: "list[list[object]]") -> bool:
    """Return whether each row is one of those allowed, and each of those taken once at most."""
    left = Counter(json.dumps(row) for row in allowed)
    others = []
    for row in rows:
        key = json.dumps(row)
        if left[key] > 0:
            left[key] -= 1
        else:
            others.append(row)
    spare = [json.loads(key) for key, count in left.items() for _ in range(count)]
    for row in others:
        found = next((one for one in spare if alike(row, one)), None)
        if found is None:
            return False
        spare.remove(found)
    return True


def same_rows(rows: "list[list[object]]", gold: dict) -> bool:  # type: ignore[type-arg]
    """Return whether an answer has gold's rows; in gold's order, where that counts."""
    if len(rows) != sum(group["take"] for group in gold["groups"]):
        return False
    at = 0
    for group in gold["groups"]:
        if not taken(rows[at : at + group["take"]], group["rows"]):
            return False
        at += group["take"]
    return True


def run(database: sqlite3.Connection, text: str, most: int) -> "tuple[int, list[list[object]]]":
    """Run statements; return the columns and at most `most` rows of the last that gives any."""
    width, rows, statement = 0, [], ""
    for piece in [*(part + ";" for part in text.split(";")[:-1]), text.rpartition(";")[2]]:
        statement += piece
        if piece.endswith(";") and not sqlite3.complete_statement(statement):
            continue
        cursor = database.execute(statement)
        statement = ""
        if cursor.description:
            width = len(cursor.description)
            rows = [[plain(value) for value in row] for row in cursor.fetchmany(most)]
    database.commit()
    return width, rows


def tables(database: sqlite3.Connection) -> "dict[str, str]":
    """Return the hash of each table's and view's rows."""
    found = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    names = [name for (name,) in found if not name.startswith("sqlite_")]
    quoted = {name: name.replace('"', '""') for name in names}
    return {
        name: state_of([list(row) for row in database.execute(f'SELECT * FROM "{quoted[name]}"')])
        for name in names
    }


def solves(database: sqlite3.Connection, text: str, gold: dict) -> bool:  # type: ignore[type-arg]
    """Return whether an answer does what a gold does."""
    steps = iter(range(MOST_STEPS))
    database.set_progress_handler(lambda: next(steps, None) is None, 1000)
    try:
        most = 1 + sum(group["take"] for group in gold.get("groups", ()))
        width, rows = run(database, text, most)
        if "tables" in gold:
            return bool(tables(database) == gold["tables"])
    except sqlite3.Error as error:
        print(error)
        return False
    return width == gold["columns"] and same_rows(rows, gold)


def main() -> None:
    """Write 1 or 0."""
    here, answer, reward = Path(__file__).parent, Path(ANSWER), 0
    golds = json.loads((here / "golds.json").read_text())
    text = answer.read_text(errors="replace") if answer.is_file() else ""
    for gold in golds if text.strip() else ():
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy(here / "database.sqlite", folder)
            database = sqlite3.connect(copy, isolation_level=None)
            reward = max(reward, int(solves(database, text, gold)))
            database.close()
    Path(REWARD).write_text(f"{reward}\n")


if __name__ == "__main__":
    main()
