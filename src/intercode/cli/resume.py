"""Resume a run: only what has no result yet, or ended in an error, is run.

Options that are not given come from the record of the run's last session. Tasks, environment,
images, agent, code and machine must be as they were: differences are listed, and nothing is run.
If the image is 'host', the machine may have changed: a warning says what, and the record keeps it.
More attempts at each task can be asked for.

A record is data: code, paths and addresses that it names are used only if you give them again, or
with --trust, which prints them first. An API key goes to no address that you do not give.

--max-cost and --max-tokens are for the whole run, with all that it has spent already.

Examples:
  intercode resume runs/mine
  intercode resume runs/mine --epochs 5 --workers 8
  intercode resume runs/mine --data tasks.json --agent agent.py:make     (as in the record)
  intercode resume runs/mine --trust              (all of it, if the run is your own)
  intercode resume runs/mine --max-cost 20
  intercode resume runs/mine --strict             (on an unchanged machine, or not at all)
  intercode resume runs/mine --accept host        (the machine's kernel is another one now)

exit code: 0 if every episode has a result, whatever it is; 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from intercode.cli import run
from intercode.cli.recorded import add_named_again, recorded_spec
from intercode.errors import UsageError
from intercode.evaluate import RunResult
from intercode.evaluate.prepare import plan, run_folder
from intercode.records import Outcome, RecordWriter, latest, read_manifest
from intercode.spec import How, ModelSpec, RunSpec, add_options, given, options_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options: those of ``run`` that may differ from session to session."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    add_options(parser, options_of(RunSpec), "epochs")
    add_options(parser.add_argument_group("how"), options_of(How), less="out locked")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="with the image 'host': refuse a machine that has changed (as always, if the run was "
        "made with --locked)",
    )
    may_take = parser.add_argument_group("what it may take")
    add_options(may_take, options_of(ModelSpec), "max_cost", "max_tokens")
    add_named_again(parser)


def execute(args: argparse.Namespace) -> int:
    """Run what is missing, and print the summary of all."""
    folder = run_folder(args.run)
    manifest = read_manifest(folder)
    session = _last_session(folder, manifest)
    options = {**given(args), "out": folder, "locked": folder}
    spec = recorded_spec(folder, manifest, options, trust=args.trust, resumes=True)
    if spec.epochs < (before := session["options"].get("epochs", 1)):
        raise UsageError(f"{folder} was to have {before} epochs: --epochs {spec.epochs} is fewer")
    watcher = run.watcher_of(spec)
    # The run's first session is held to another run only by `run --locked`.
    held = args.strict or "locked" in manifest["sessions"][0]
    asked = replace(plan(spec, watcher), follows_machine=not held)
    jobs = [(epoch, task.task_id, ()) for epoch in range(spec.epochs) for task in asked.tasks]
    known = latest(folder, Outcome.of)
    done = [known[job] for job in jobs if job in known and not known[job].failed]
    if len(done) == len(jobs):
        return run.finish(spec, RunResult(done, len(jobs), 0, 0.0, folder=folder))
    RecordWriter(
        folder
    ).close()  # refuses before anything is started if another process writes to it
    return run.finish(spec, run.carry_out(asked, watcher))


def _last_session(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what the record has of the last call that worked on a run.

    Raises:
        RecordError: There is no run that this version can read.
        UsageError: It was not made by a command.
    """
    if rescored := manifest.get("rescored"):
        recording, out = shlex.quote(str(rescored["run"])), shlex.quote(str(folder))
        raise UsageError(
            f"{folder} is a run scored again: what is missing comes by 'intercode rescore "
            f"{recording} --out {out}' and the reward that it was scored with"
        )
    session: dict[str, Any] = (manifest.get("sessions") or [{}])[-1]
    if "options" not in session:
        raise UsageError(
            f"{folder} was made in Python, so its record does not say how to make the same again: "
            "call evaluate() again with what it was called with, and the same out"
        )
    return session
