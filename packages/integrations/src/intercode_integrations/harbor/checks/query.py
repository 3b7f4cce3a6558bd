"""The scorer of an SQL task: the answer's effect on a copy of the database, compared with gold's.

A gold is either a query, whose rows count, or a change, whose tables count.
"""

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
MAX_STEPS = 200_000
"""Thousands of instructions of SQLite's virtual machine after which an answer is aborted."""


def to_json_value(value: object) -> object:
    """Return a value for JSON: bytes as their hash, floats without a fraction as integers."""
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, float) and value.is_integer() and abs(value) < 2.0**53:
        return int(value)
    return value


def hash_rows(rows: "Sequence[Sequence[object]]") -> str:
    """Return a hash of a table's rows that does not depend on their order."""
    lines = sorted(json.dumps([to_json_value(value) for value in row]) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def are_equal_rows(first_row: "list[object]", second_row: "list[object]") -> bool:
    """Return whether two rows are equal, with a tolerance for floating-point numbers."""
    return len(first_row) == len(second_row) and all(map(_are_equal_values, first_row, second_row))


def _are_equal_values(first_value: object, second_value: object) -> bool:
    if isinstance(first_value, (int, float)) and isinstance(second_value, (int, float)):
        return first_value == second_value or math.isclose(
            first_value, second_value, rel_tol=1e-6, abs_tol=1e-9
        )
    return type(first_value) is type(second_value) and first_value == second_value


def are_allowed_rows(rows: "list[list[object]]", allowed_rows: "list[list[object]]") -> bool:
    """Return whether the rows are some of the allowed rows, each of which may occur once."""
    remaining_counts = Counter(json.dumps(row) for row in allowed_rows)
    unmatched_rows = []
    for row in rows:
        row_text = json.dumps(row)
        if remaining_counts[row_text] > 0:
            remaining_counts[row_text] -= 1
        else:
            unmatched_rows.append(row)
    spare_rows = [
        json.loads(row_text) for row_text, count in remaining_counts.items() for _ in range(count)
    ]
    for row in unmatched_rows:
        matching_row = next(
            (candidate for candidate in spare_rows if are_equal_rows(row, candidate)), None
        )
        if matching_row is None:
            return False
        spare_rows.remove(matching_row)
    return True


def has_gold_rows(rows: "list[list[object]]", gold: dict) -> bool:  # type: ignore[type-arg]
    """Return whether an answer has gold's rows, and has them in gold's order if the order counts.

    `gold` has groups of rows, in order. A group contributes ``take`` of its ``rows``, in any order.
    """
    if len(rows) != sum(group["take"] for group in gold["groups"]):
        return False
    offset = 0
    for group in gold["groups"]:
        if not are_allowed_rows(rows[offset : offset + group["take"]], group["rows"]):
            return False
        offset += group["take"]
    return True


def run(database: sqlite3.Connection, text: str, max_rows: int) -> "tuple[int, list[list[object]]]":
    """Run statements; return the number of columns and up to `max_rows` rows of the last query."""
    column_count, rows, statement = 0, [], ""
    for piece in [*(part + ";" for part in text.split(";")[:-1]), text.rpartition(";")[2]]:
        statement += piece
        if piece.endswith(";") and not sqlite3.complete_statement(statement):
            continue
        cursor = database.execute(statement)
        statement = ""
        if cursor.description:
            column_count = len(cursor.description)
            rows = [[to_json_value(value) for value in row] for row in cursor.fetchmany(max_rows)]
    database.commit()
    return column_count, rows


def tables(database: sqlite3.Connection) -> "dict[str, str]":
    """Return a hash of the rows of each table and each view."""
    cursor = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    names = [name for (name,) in cursor if not name.startswith("sqlite_")]
    quoted_names = {name: name.replace('"', '""') for name in names}
    return {
        name: hash_rows(
            [list(row) for row in database.execute(f'SELECT * FROM "{quoted_names[name]}"')]
        )
        for name in names
    }


def solves(database: sqlite3.Connection, sql: str, gold: dict) -> bool:  # type: ignore[type-arg]
    """Return whether an answer has the same effect as a gold."""
    remaining_steps = iter(range(MAX_STEPS))
    database.set_progress_handler(lambda: next(remaining_steps, None) is None, 1000)
    try:
        max_rows = 1 + sum(group["take"] for group in gold.get("groups", ()))
        column_count, rows = run(database, sql, max_rows)
        if "tables" in gold:
            return bool(tables(database) == gold["tables"])
    except sqlite3.Error as error:
        print(error)
        return False
    return column_count == gold["columns"] and has_gold_rows(rows, gold)


def main() -> None:
    """Run the answer, and write the reward: 1 if it has the effect of any gold, otherwise 0."""
    script_folder, answer_path, reward = Path(__file__).parent, Path(ANSWER), 0
    golds = json.loads((script_folder / "golds.json").read_text())
    sql = answer_path.read_text(errors="replace") if answer_path.is_file() else ""
    for gold in golds if sql.strip() else ():
        with tempfile.TemporaryDirectory() as scratch_folder:
            database_copy = shutil.copy(script_folder / "database.sqlite", scratch_folder)
            database = sqlite3.connect(database_copy, isolation_level=None)
            reward = max(reward, int(solves(database, sql, gold)))
            database.close()
    Path(REWARD).write_text(f"{reward}\n")


if __name__ == "__main__":
    main()
