"""Results of real models on two cores: ``python benchmarks/real_models.py MODEL …``.

Each row is a run of ``intercode run``, whose command is printed with it; a row that is there is
resumed. Tasks of a row that has a number are drawn by the seed, the same for all agents. At the
end all rows in the folder are printed as a table of Markdown. Nothing of the tasks or the
transcripts is in the table. Spider and NL2Bash are fetched first: ``intercode datasets fetch``.
"""

from __future__ import annotations

import argparse
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from intercode import Episode, load_dataset
from intercode.evaluate.statistics import wilson
from intercode.evaluate.task_selection import ungradable_tasks
from intercode.failure_modes import is_repeat
from intercode.report.runs import read_runs

SEED = 28
TURNS = 6
REPLY = 200
"""Tokens of a reply, at most."""
AGENTS = ("single-turn", "try-again", "react", "plan-solve", "tool-calling")


@dataclass(frozen=True)
class Row:
    """A run of one agent on one set of tasks."""

    data: str
    env: str
    agent: str
    count: int | None = None
    """Tasks that are drawn; None: all."""
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder."""
        more = "".join(f"-{option.lstrip('-').replace('/', '-')}" for option in self.options)
        return f"{self.data}-{self.agent}{more}".replace(":", "-").replace("=", "-")


def rows() -> Iterator[Row]:
    """Yield all rows, the most telling first."""
    for more in ((), ("--context", "schema")):
        for agent in ("try-again", "single-turn"):
            yield Row("spider", "sql", agent, 100, ("--reviewed", *more))
    for env in ("bash", "sql", "python"):
        for agent in AGENTS:
            yield Row(f"{env}-starter:split=test", env, agent)
    for env in ("bash", "sql", "python"):
        for agent in ("single-turn", "try-again"):
            yield Row(env, env, agent, 40)
    for agent in ("single-turn", "try-again"):
        yield Row("nl2bash", "bash", agent, 50, ("--reviewed",))


def command(row: Row, model: str, out: Path) -> list[str]:
    """Return the command that makes a row."""
    reviewed = {"reviewed": True} if "--reviewed" in row.options else {}
    told = ["intercode", "run", row.env, "--data", row.data, "--agent", row.agent]
    told += ["--model", model, "--seed", str(SEED), *row.options]
    told += ["--max-turns", str(TURNS), "--reply-tokens", str(REPLY), "--workers", "2"]
    if row.count is not None:
        dataset = load_dataset(row.data, **reviewed)
        skipped = ungradable_tasks(dataset)
        ids = sorted(task.task_id for task in dataset if task.task_id not in skipped)
        drawn = random.Random(SEED).sample(ids, min(row.count, len(ids)))
        told += [part for task_id in sorted(drawn) for part in ("--task", task_id)]
    return [*told, "--out", str(out), "--quiet"]


def line(folder: Path) -> str:
    """Return the row of a run."""
    repeated: list[bool] = []

    def count(_: int, episode: Episode) -> None:
        turns = episode.turns
        repeated.extend([False, *map(is_repeat, turns, turns[1:])][: len(turns)])

    (run,) = read_runs([folder], count)
    scored = [outcome for outcome in run.outcomes if not outcome.failed]
    if not (n := len(scored)):
        return f"| {folder.parent.name} | {folder.name} | every episode failed |"
    solved = sum(outcome.success for outcome in scored)
    low, high = wilson(solved, n)
    first = sum(outcome.solved_at == 1 for outcome in scored)
    cells = [
        *(folder.parent.name, folder.name, f"{solved} of {n}", f"{solved / n:.0%}"),
        *(f"[{low:.0%}, {high:.0%}]", f"{first / n:.0%}", f"{fmean(repeated or [0]):.0%}"),
    ]
    return f"| {' | '.join(cells)} |"


def main(given: Sequence[str] | None = None) -> None:
    """Run what is not there, and print all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="names, as --model takes them")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/real-models"))
    args = parser.parse_args(given)
    for model in args.models:
        for row in rows():
            out = args.out / model.rpartition("/")[2] / row.name
            if args.only not in row.name:
                continue
            told = command(row, model, out)
            if (out / "run.json").exists():
                told = ["intercode", "resume", str(out), "--quiet"]
            print("$", shlex.join(told), flush=True)
            done = subprocess.run([sys.executable, "-m", "intercode.cli", *told[1:]], check=False)
            if done.returncode:
                print(f"ended with {done.returncode}", flush=True)
    print("| model | run | solved | | 95 % | in one turn | repeats |\n" + "|---" * 7 + "|")
    for folder in sorted(args.out.glob("*/*/episodes.jsonl")):
        print(line(folder.parent))


if __name__ == "__main__":
    main()
