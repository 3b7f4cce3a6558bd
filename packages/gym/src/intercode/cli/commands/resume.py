"""Resume a run: execute only episodes without a result, or with an error.

The record of the run's last session supplies the missing options. Tasks, environment, images,
agent, code and machine must be unchanged: otherwise the differences are listed, and nothing runs.
With the image 'host', the machine may have changed: a warning and the record list the changes.
--epochs can add attempts at each task.

A record is data: its code, paths and addresses are used only if you repeat them, or with --trust,
which prints them first. An API key is sent only to an address that you give.

--max-cost and --max-tokens limit the whole run, including earlier sessions.

Examples:
  intercode resume runs/mine
  intercode resume runs/mine --epochs 5 --workers 8
  intercode resume runs/mine --data tasks.json --agent agent.py:make     (the values of the record)
  intercode resume runs/mine --trust              (everything in the record, for your own run)
  intercode resume runs/mine --max-cost 20
  intercode resume runs/mine --strict             (only on an unchanged machine)
  intercode resume runs/mine --accept host        (despite another kernel on this machine)

exit code: 0 if every episode has a result, solved or not; 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from intercode.cli.recorded_spec import add_recorded_options
from intercode.spec import ModelSpec, RunOptions, RunSpec, add_options, list_section_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options: the options of ``run`` that may differ between sessions."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    add_options(parser, list_section_options(RunSpec), "epochs")
    add_options(
        parser.add_argument_group("execution"),
        list_section_options(RunOptions),
        excluded_names="out locked",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="with the image 'host': refuse to continue if the machine has changed (always so for "
        "a run that was made with --locked)",
    )
    budget_group = parser.add_argument_group("limits of the whole run")
    add_options(budget_group, list_section_options(ModelSpec), "max_cost", "max_tokens")
    add_recorded_options(parser)
