"""Execution of ``intercode score``, which scores predictions of another program."""

from __future__ import annotations

import argparse
from pathlib import Path

from intercode.agents.builtin import read_predictions
from intercode.cli import run
from intercode.cli.terminal import print_message
from intercode.errors import UsageError
from intercode.records import read_manifest
from intercode.spec import read_arguments
from intercode_sandbox.units import format_count


def execute(args: argparse.Namespace) -> int:
    """Score the predictions as a run, print the summary, and warn about tasks without predictions.

    Returns:
        The exit code of ``intercode run``.

    Raises:
        UsageError: A named task has no prediction.
    """
    if args.env is not None and not args.predictions.is_file() and Path(args.env).is_file():
        args.predictions, args.env = Path(args.env), str(args.predictions)
    texts = read_predictions(args.predictions)
    if unknown_ids := sorted(set(args.tasks or ()) - texts.keys()):
        raise UsageError(f"{args.predictions} has no prediction for {unknown_ids[0]}")
    prediction_options = {
        "agent": "predictions",
        "recording": args.predictions,
        "tasks": args.tasks or [*texts],
    }
    spec = run.assign_folder(
        run.make_spec({**read_arguments(args), **prediction_options}, trust=args.trust)
    )
    code = run.run_and_print(spec)
    total = int(read_manifest(Path(str(spec.run_options.out)))["dataset"]["tasks"])
    if args.tasks is None and (shortfall := total - len(texts)) > 0:
        print_message(
            f"intercode: warning: {shortfall} of {format_count(total, 'task')} have no "
            "prediction, and are not counted in these rates"
        )
    return code
