"""Runs of the protocol of 2023 scored again."""

from __future__ import annotations

from pathlib import Path

import pytest

import intercode
from evaluate.recorded import Make, Scripted
from evaluate.test_rescore_environments import length, rescore_python
from intercode.errors import UsageError
from intercode.evaluate import evaluate
from intercode.evaluate.rescore import rescore
from intercode.task import Dataset, Task


def test_python_is_scored_again(tmp_path: Path) -> None:
    """Gold stays in the agent's names, so that the wrong episode may be a success, too."""
    result, first, again = rescore_python(tmp_path, protocol="paper", reward_every_turn=True)
    assert result.ways == {"again": 2} and not result.changes
    assert first == again


def test_a_paper_run_has_the_rewards_of_the_paper(tmp_path: Path) -> None:
    simple = Dataset([Task("a", "?", gold=("echo a",)), Task("b", "?", gold=("touch /root/b",))])
    make: Make = lambda: intercode.make(  # noqa: E731
        "bash", data=simple, protocol="paper", image="host"
    )
    settings = {"env": "bash", "protocol": "paper"}
    evaluate(simple, lambda _: Scripted(["echo a"]), make, out=tmp_path / "p", settings=settings)
    result = rescore(tmp_path / "p", simple, None, make)
    assert result.ways == {"again": 2} and not result.changes
    assert rescore(tmp_path / "p", simple, length).ways == {"record": 2}

    tasks = intercode.load_dataset("sql")
    one = [tasks[0].task_id]
    paper: Make = lambda: intercode.make("sql", data=tasks, protocol="paper")  # noqa: E731
    settings = {"env": "sql", "protocol": "paper"}
    evaluate(tasks, "oracle", paper, out=tmp_path / "s", tasks=one, settings=settings)
    with pytest.raises(UsageError, match="episodes share state"):
        rescore(tmp_path / "s", tasks, None, paper)
    assert rescore(tmp_path / "s", tasks, length).ways == {"record": 1}
