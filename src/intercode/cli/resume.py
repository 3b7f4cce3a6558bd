"""Go on with a run: only what has no result yet, or ended in an error, is run.

Options that are not given are those of the run's last session, as its record has them. What it is
run on must be as it was (tasks, environment, images, agent, code, machine): what is not is listed,
and nothing is run. A run of several attempts at each task can be given more of them.

What --max-cost and --max-tokens allow is for the whole run, with what is spent already.

Examples:
  intercode resume runs/mine
  intercode resume runs/mine --epochs 5 --workers 8
  intercode resume runs/mine --max-cost 20
  intercode resume runs/mine --accept host        (the machine's kernel is another one now)

exit code: 0 if every episode has a result, whatever it is; 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from intercode.cli import _agents, _ended, _locked, _options, run
from intercode.errors import UsageError
from intercode.evaluate import RunResult
from intercode.evaluate.manifest import check_format
from intercode.records import MANIFEST, Outcome, RecordWriter, latest, read_manifest


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options: those of ``run`` that may differ from session to session."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--epochs",
        type=_options.positive,
        metavar="N",
        help="attempts at each task: as many or more",
    )
    run.add_how(parser)
    _agents.add_budget(parser.add_argument_group("what it may take"))
    where = parser.add_argument_group("where it is now")
    where.add_argument("--base-url", metavar="URL", help="of the model's server")
    where.add_argument("--judge-url", metavar="URL", help="of the judge's")
    where.add_argument("--engine", metavar="URL", help="of the database server, with its password")
    where.add_argument("--repositories", metavar="DIR|URL", help="for SWE")
    _locked.add_accept(parser)
    everything = argparse.ArgumentParser()
    run.configure(everything)
    defaults = {**vars(everything.parse_args([])), "workers": None, "retries": None}
    parser.set_defaults(**defaults)


def execute(args: argparse.Namespace) -> int:
    """Run what is missing, and print the summary of all."""
    folder = args.run.parent if args.run.name == MANIFEST else args.run
    _fill(args, folder, _last_session(folder))
    plan = run.plan(args)
    jobs = [(epoch, task.task_id) for epoch in range(args.epochs) for task in plan.tasks]
    known = latest(folder, Outcome.of)
    done = [known[job] for job in jobs if job in known and not known[job].failed]
    if len(done) == len(jobs):
        return _ended.finish(args, folder, RunResult(done, len(jobs), 0, 0.0, folder=folder))
    RecordWriter(
        folder
    ).close()  # refuses before anything is started if another process writes to it
    return _ended.finish(args, *run.carry_out(args, plan))


def _last_session(folder: Path) -> dict[str, Any]:
    """What the record has of the last call that worked on a run.

    Raises:
        RecordError: There is no run.
        UsageError: It was not made by a command.
    """
    recorded = read_manifest(folder)
    check_format(recorded, folder)
    if rescored := recorded.get("rescored"):
        recording, out = shlex.quote(str(rescored["run"])), shlex.quote(str(folder))
        raise UsageError(
            f"{folder} is a run scored again: what is missing comes by 'intercode rescore "
            f"{recording} --out {out}' and the reward that it was scored with"
        )
    session: dict[str, Any] = (recorded.get("sessions") or [{}])[-1]
    if "options" not in session:
        raise UsageError(
            f"{folder} was made in Python, so its record does not say how to make the same again: "
            "call evaluate() again with what it was called with, and the same out"
        )
    return session


def _fill(args: argparse.Namespace, folder: Path, session: dict[str, Any]) -> None:
    """What is not given, of what no lock takes over.

    Raises:
        UsageError: Less is asked for than was before.
    """
    before = session["options"].get("epochs", 1)
    if (args.epochs or before) < before:
        raise UsageError(f"{folder} was to have {before} epochs: --epochs {args.epochs} is fewer")
    settings = session["settings"]
    args.workers = args.workers or settings["workers"]
    for name in ("max_connections", "max_sandboxes"):
        setattr(args, name, getattr(args, name) or settings.get(name))
    args.retries = settings["max_retries"] if args.retries is None else args.retries
    args.out = args.locked = folder
