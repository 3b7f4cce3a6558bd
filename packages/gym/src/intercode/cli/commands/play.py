"""Try tasks yourself: type commands, SQL or Python, read the agent's observations, and submit.

Ctrl-C stops the running command, not the task; in SQL, Ctrl-C quits.

Examples:
  intercode play bash
  intercode play sql --engine postgresql
  intercode play python
  intercode play bash --task shop-03
  intercode play bash --data tasks.json --image debian:bookworm
"""

from __future__ import annotations

import argparse

from intercode.spec import (
    EnvSpec,
    RunSpec,
    add_environment,
    add_environment_options,
    add_options,
    list_section_options,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_environment(parser)
    add_options(parser, list_section_options(RunSpec), "limit", "tasks", "seed")
    environment_group = parser.add_argument_group("environment")
    add_options(environment_group, list_section_options(EnvSpec), excluded_names="secret")
    add_environment_options(environment_group)
    parser.add_argument(
        "--json", action="store_true", help="print the episodes as a JSON list at the end"
    )
