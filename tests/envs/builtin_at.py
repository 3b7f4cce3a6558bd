"""Try bundled tasks at another time: ``python builtin_at.py EVERY SECONDS ZONE``.

Every so many-th task of Bash, SQL and Python is tried with gold and with its second solution, whose
programs have a clock that is moved and another time zone. Prints those that are not worth all.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import intercode
from intercode.agents.builtin import ScriptedAgent
from intercode.evaluate import evaluate
from intercode.evaluate.moved_clock import Move, action_for
from intercode.task import Dataset, Task

SOLUTIONS = Path(__file__).parents[1] / "second_solutions"


def main(every: int, move: Move) -> None:
    for env in ("bash", "sql", "python"):
        tasks = intercode.load_dataset(env)
        tasks = Dataset(tasks[::every], env, databases=tasks.databases)
        second = json.loads((SOLUTIONS / f"{env}.json").read_text())
        before = [action_for(move)] if env == "bash" else []
        with intercode.make(env, data=tasks).unwrapped as solver:
            golds = {task.task_id: [*solver.solution(task)] for task in tasks}
        for name, solutions in (("gold", golds), ("second", second)):

            def agent(task: Task, solutions: dict[str, list[str]] = solutions) -> ScriptedAgent:
                return ScriptedAgent([*before, *solutions[task.task_id]])

            result = evaluate(tasks, agent, lambda: intercode.make(env, data=tasks, max_turns=100))
            assert len(result.outcomes) == len(tasks)
            for outcome in result.outcomes:
                if not outcome.success:
                    print(name, env, outcome.task_id, outcome.reward, outcome.error)


if __name__ == "__main__":
    main(int(sys.argv[1]), Move("", int(sys.argv[2]), sys.argv[3]))
