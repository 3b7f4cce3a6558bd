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
from pathlib import Path

from intercode.cli.recorded_spec import add_recorded_options
from intercode.spec import How, ModelSpec, RunSpec, add_options, list_part_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options: those of ``run`` that may differ from session to session."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    add_options(parser, list_part_options(RunSpec), "epochs")
    add_options(
        parser.add_argument_group("how"), list_part_options(How), excluded_names="out locked"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="with the image 'host': refuse a machine that has changed (as always, if the run was "
        "made with --locked)",
    )
    budget_group = parser.add_argument_group("what it may take")
    add_options(budget_group, list_part_options(ModelSpec), "max_cost", "max_tokens")
    add_recorded_options(parser)
