"""Score predictions that were made elsewhere: a file of them goes in, scores come out.

Each is run as one action in a fresh place of its task, and submitted: plain seq2seq, without any
interaction. For CTF a prediction is the flag, for SWE a patch. The file has JSON Lines: objects
with task_id and prediction (or, as for SWE-bench, instance_id and model_patch). Tasks that it does
not have are not tried.

Examples:
  intercode score predictions.jsonl bash
  intercode score predictions.jsonl sql --data spider --workers 4 --json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from intercode.agents.builtin import read_predictions
from intercode.cli import run
from intercode.cli.terminal import tell
from intercode.errors import UsageError
from intercode.records import read_manifest
from intercode.spec import add_environment, given
from intercode.units import counted


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options: those of ``run`` that have to do with tasks."""
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS", help="JSON Lines")
    add_environment(parser)
    run.add_tasks(parser)


def execute(args: argparse.Namespace) -> int:
    """Run, and print the summary; say how many tasks have no prediction."""
    if args.env is not None and not args.predictions.is_file() and Path(args.env).is_file():
        args.predictions, args.env = Path(args.env), str(args.predictions)
    texts = read_predictions(args.predictions)
    if unknown := sorted(set(args.tasks or ()) - texts.keys()):
        raise UsageError(f"{args.predictions} has no prediction for {unknown[0]}")
    own = {"agent": "predictions", "recording": args.predictions, "tasks": args.tasks or [*texts]}
    spec = run.placed(run.spec_of({**given(args), **own}, trust=args.trust))
    code = run.run_and_print(spec)
    total = int(read_manifest(Path(str(spec.how.out)))["dataset"]["tasks"])
    if args.tasks is None and (missing := total - len(texts)) > 0:
        tell(
            f"intercode: warning: {missing} of {counted(total, 'task')} have no prediction: they "
            "do not count in these rates"
        )
    return code
