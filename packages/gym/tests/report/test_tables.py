"""The table of agents and environments."""

from __future__ import annotations

from pathlib import Path

from intercode.records import Outcome
from intercode.report.runs import RecordedRun
from intercode.report.tables import by_agent, matrix


def run(agent: str, env: str, *solved: bool, failed: int = 0) -> RecordedRun:
    outcomes = [
        Outcome(
            f"t{n}",
            0,
            "submitted",
            float(good),
            good,
            n + 1,
            1.0,
            "solved" if good else "not-solved",
        )
        for n, good in enumerate(solved)
    ]
    outcomes += [Outcome(f"e{n}", 0, "error", None, False, 0, 1.0, "lost") for n in range(failed)]
    return RecordedRun(Path(agent, env), {"env": {"env": env}}, outcomes, agent)


def test_rows_and_columns() -> None:
    runs = [run("a", "bash", True, False), run("a", "sql", True, failed=1), run("b", "sql", False)]
    table = matrix(runs)
    assert [name for name, _ in table.columns] == ["", "bash", "sql", "all"]
    assert table.cells() == [
        ["tasks", "2", "2", "4"],
        ["a", "50.0 %", "100.0 %", "66.7 %"],
        ["  95 % interval", "9 - 91", "21 - 100", "21 - 94"],
        ["  turns", "1.5", "1.0", "1.3"],
        ["  errors", "0", "1", "1"],
        ["b", "-", "0.0 %", "0.0 %"],
        ["  95 % interval", "-", "0 - 79", "0 - 79"],
        ["  turns", "-", "1.0", "1.0"],
        ["  errors", "-", "0", "0"],
    ]


def test_tasks_of_one_name_are_not_one_task() -> None:
    runs = [run("a", "bash", True), run("a", "sql", False)]
    assert [o.task_id for o in by_agent(runs)["a"]] == ["bash/t0", "sql/t0"]
