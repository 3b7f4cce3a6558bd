"""Execution of ``intercode resume``, which runs the missing episodes of an interrupted run."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from intercode.cli import run
from intercode.cli.recorded_spec import recorded_spec
from intercode.errors import UsageError
from intercode.evaluate import RunResult
from intercode.evaluate.run_setup import plan, run_folder
from intercode.records import Outcome, RunRecordWriter, read_latest, read_manifest
from intercode.spec import read_arguments


def execute(args: argparse.Namespace) -> int:
    """Run the missing and the failed episodes, and print a summary with those of earlier sessions.

    Returns:
        The exit code of ``intercode run``.

    Raises:
        UsageError: The run cannot be resumed, or the command names fewer epochs than the record.
        TrustError: The record names code, paths or addresses that are neither repeated nor trusted.
        RunLockedError: Another process writes to the run.
    """
    folder = run_folder(args.run)
    manifest = read_manifest(folder)
    session = _last_session(folder, manifest)
    options = {**read_arguments(args), "out": folder, "locked": folder}
    spec = recorded_spec(folder, manifest, options, trust=args.trust, is_resume=True)
    if spec.epochs < (recorded_epochs := session["options"].get("epochs", 1)):
        raise UsageError(f"{folder} has {recorded_epochs} epochs: --epochs {spec.epochs} is fewer")
    watcher = run.make_watcher(spec)
    # The first session of a run has the key "locked" only if the user ran `run --locked`. Such a
    # run also refuses differences of the machine when it is resumed.
    is_strict = args.strict or "locked" in manifest["sessions"][0]
    resume_plan = replace(plan(spec, watcher), follows_machine=not is_strict)
    jobs = [(epoch, task.task_id, ()) for epoch in range(spec.epochs) for task in resume_plan.tasks]
    latest_outcomes = read_latest(folder, Outcome.from_episode)
    finished_outcomes = [
        latest_outcomes[job]
        for job in jobs
        if job in latest_outcomes and not latest_outcomes[job].failed
    ]
    if len(finished_outcomes) == len(jobs):
        return run.finish(spec, RunResult(finished_outcomes, len(jobs), 0, 0.0, folder=folder))
    # The constructor raises an error if another process writes to the run. This early call raises
    # the error before images are built or servers start.
    RunRecordWriter(folder).close()
    return run.finish(spec, run.carry_out(resume_plan, watcher))


def _last_session(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the last session in the record of a run.

    Raises:
        UsageError: ``intercode resume`` cannot continue the run, because it was rescored, made by a
            Python program, or played by an MCP client. The message names the alternative.
    """
    if rescored := manifest.get("rescored"):
        recording, folder_argument = shlex.quote(str(rescored["run"])), shlex.quote(str(folder))
        raise UsageError(
            f"{folder} is a rescored run: to add missing episodes, use 'intercode rescore "
            f"{recording} --out {folder_argument}' with the same reward"
        )
    session: dict[str, Any] = (manifest.get("sessions") or [{}])[-1]
    if "options" not in session:
        raise UsageError(
            f"{folder} was written by a Python program, so its record does not describe the run: "
            "call evaluate() again with the same arguments and the same out"
        )
    # An MCP client played the episodes: no command of InterCode can start the client.
    if session["options"].get("agent") == "mcp":
        raise UsageError(
            f"{folder} belongs to an MCP client, which 'intercode resume' cannot start: repeat "
            f"the original 'intercode mcp' command with --out {shlex.quote(str(folder))}"
        )
    return session
