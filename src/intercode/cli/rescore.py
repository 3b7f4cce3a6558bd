"""Score a recorded run again, with another reward, or with a newer version of the same.

The run stays as it is; the result is a run of its own, for 'report', 'show' and 'export'. What the
agent was told, did and took is taken over, and only what it is worth is new.

A function of one's own that looks at nothing but the task and the episode is worked out from the
record. For any other reward the recorded actions are done again, each episode in a fresh sandbox or
database, as they were recorded: the same tasks, images, engine and limits, or nothing is done. An
episode in which an observation comes out otherwise (a date, a random number, a time limit) is
listed as not reproducible: it is an error, and has no reward.

Examples:
  intercode rescore runs/mine --reward reward.py:score
  intercode rescore runs/sql --reward bird-ex --out runs/sql-bird --workers 4
  intercode rescore runs/sql --reward default
  intercode rescore runs/mine --reward judge --judge-model openai/gpt-4o
  intercode rescore runs/mine                         (its own reward, as it is now)
  intercode rescore runs/mine --json | jq .changes
  intercode report runs/mine runs/mine-rescored-score

exit code: 0 if every episode that had a result has one; 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from intercode.cli import _agents, _environment, _judge, _locked, _options, _rescored, run
from intercode.cli._progress import Watcher
from intercode.cli._text import print_json
from intercode.errors import UsageError
from intercode.evaluate.drift import DriftError
from intercode.evaluate.new_reward import DEFAULT
from intercode.evaluate.rescore import rescore
from intercode.evaluate.runner import select
from intercode.records import MANIFEST, read_manifest

_WHERE = ("data", "databases", "engine", "repositories")
"""Options that say where something is now."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--reward",
        metavar="FILE:NAME",
        help="your own function, reward.py:score; for Bash also judge; for SQL also bird-ex, "
        "bird-soft-f1, bird-r-ves or spider-test-suite; or default, the environment's own "
        "(default: the run's)",
    )
    _options.add_judge(parser)
    parser.add_argument("--prices", type=Path, metavar="FILE", help="of models that we do not know")
    _agents.add_budget(parser)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the new run's folder (default: RUN-rescored-NAME)"
    )
    parser.add_argument(
        "--workers", type=_options.positive, default=1, metavar="N", help="episodes at a time"
    )
    parser.add_argument(
        "--retries",
        type=_options.natural,
        default=2,
        metavar="N",
        help="new attempts when a sandbox fails (default: 2)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    where = parser.add_argument_group("where it is now, if not where it was")
    where.add_argument("--data", metavar="FILE", help="the tasks")
    where.add_argument("--databases", metavar="PATH", help="for SQL: the tasks' databases")
    where.add_argument("--engine", metavar="URL", help="for SQL: the server, with its password")
    where.add_argument("--repositories", metavar="DIR|URL", help="for SWE: the repositories")
    parser.add_argument(
        "--accept",
        action="append",
        metavar="NAME",
        help="what may differ from the record, by its name or the beginning of it: env.limits",
    )


def execute(args: argparse.Namespace) -> int:
    """Score, and print what has changed."""
    folder = args.run.parent if args.run.name == MANIFEST else args.run
    manifest = read_manifest(folder)
    options = _recorded_options(args, folder, manifest)
    name = _environment.chosen(options)
    out = args.out or Path(f"{folder}-rescored-{_label(options.reward)}")
    budget = _judge.budget_of(options, out) if options.reward == _judge.NAME else None
    everything = _environment.load_all(options, options.data or name)
    dataset = _environment.narrowed(options, name, everything)

    @cache
    def setting() -> _environment.Setting:
        tasks = select(dataset, options.tasks, options.limit, manifest.get("excluded", {}))
        return _environment.prepare(options, name, dataset, tasks, budget)

    # Whether it scores every turn is the agent's to ask for, and taken over.
    asked = {"reward_every_turn"} & manifest["env"].keys()
    of_agent = {name: manifest["env"][name] for name in asked}
    try:
        result = rescore(
            folder,
            dataset,
            setting().judge if options.reward == _judge.NAME else options.reward,
            lambda: setting().make(),
            out=out,
            workers=args.workers,
            settings=lambda: {**setting().facts, **of_agent},
            every_turn=bool(options.more.get("reward_every_turn")),
            progress=Watcher(quiet=args.quiet),
            max_retries=args.retries,
            context=lambda: setting().context(),
            accept=args.accept or (),
        )
    except DriftError as error:
        if args.json:
            found = [asdict(difference) for difference in error.differences]
            print_json({"rescored": str(folder), "differences": found})
        raise
    except KeyboardInterrupt:
        print(f"stopped; what was finished is in {out}", file=sys.stderr)
        raise
    _rescored.show(args, folder, out, result)
    if result.cut_short:
        return 130
    return 1 if result.lost or len(result.outcomes) < result.planned else 0


def _recorded_options(
    args: argparse.Namespace, folder: Path, manifest: Mapping[str, Any]
) -> argparse.Namespace:
    """Those of the recorded run, as ``intercode run`` would have them; what is given counts.

    Raises:
        UsageError: The record has none.
    """
    if "options" not in (manifest.get("sessions") or [{}])[-1]:
        raise UsageError(
            f"{folder} was not made by 'intercode run': its record does not say how to make its "
            "environment. From Python: intercode.evaluate.rescore"
        )
    parser = argparse.ArgumentParser()
    run.configure(parser)
    options = parser.parse_args([])
    options.locked, options.reward = folder, args.reward
    for name in (*_WHERE, *_judge.OPTIONS, "prices"):
        setattr(options, name, getattr(args, name))
    _locked.Lock(options)
    options.more = getattr(options, "more", {})
    options.max_cost, options.max_tokens = args.max_cost, args.max_tokens
    if options.reward != _judge.NAME:
        for name in (*_judge.OPTIONS, *_judge.TAKES_TOO):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} is for --reward judge")
            setattr(options, name, None)  # the recorded run's
    if options.reward == DEFAULT:
        options.reward = None
    return options


def _label(reward: str | None) -> str:
    """A reward's name, as part of a folder's."""
    return re.sub(r"[^\w.-]+", "-", (reward or DEFAULT).rpartition(":")[2])
