"""Try bundled tasks at another time: ``python builtin_at.py EVERY SECONDS ZONE``.

Every so many-th task of Bash, SQL and Python is tried with gold and with its second solution, whose
programs have a clock that is moved and another time zone. Prints those that are not worth all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import intercode
from intercode.agents.builtin import ScriptedAgent
from intercode.evaluate import evaluate
from intercode.evaluate.clock_checks import ClockShift, action_for
from intercode.task import Dataset

SOLUTIONS = Path(__file__).parents[1] / "second_solutions"


def main(every: int, move: ClockShift) -> None:
    """Try the tasks of each environment."""
    for env in ("bash", "sql", "python"):
        data = intercode.load_dataset(env)
        tasks = Dataset(data[::every], env, databases=data.databases)
        made: Any = intercode.make(env, data=tasks).unwrapped
        with closing(made):
            golds = {task.task_id: made.solution(task) for task in tasks}
        before = [action_for(move)] if env == "bash" else []
        _try(env, tasks, "gold", golds, before)
        second = json.loads((SOLUTIONS / f"{env}.json").read_text())
        _try(env, tasks, "second", second, before)


def _try(
    env: str,
    tasks: Dataset,
    name: str,
    solutions: Mapping[str, Sequence[str]],
    before: Sequence[str],
) -> None:
    def make() -> Any:
        return intercode.make(env, data=tasks, max_turns=100).unwrapped

    result = evaluate(tasks, lambda task: ScriptedAgent([*before, *solutions[task.task_id]]), make)
    assert len(result.outcomes) == len(tasks) > 0
    for outcome in result.outcomes:
        if not outcome.success:
            print(name, env, outcome.task_id, outcome.reward, outcome.error)


if __name__ == "__main__":
    main(int(sys.argv[1]), ClockShift("", int(sys.argv[2]), sys.argv[3]))
