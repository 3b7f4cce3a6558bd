"""Score a recorded run again, with another reward or a newer version of the same one.

A record is data: its code, paths and addresses are used only if you repeat them, or with --trust,
which prints them first. An API key is sent only to an address that you give.

The recorded run stays unchanged. The result is a new run for 'report', 'show' and 'export', with
the recorded dialogues, actions and costs; only the scores are new.

A reward function that needs only the task and the episode is computed from the record. For any
other reward, the recorded actions are executed again, each episode in a fresh sandbox or database.
Tasks, images, engine and limits must be the same. If an observation differs (a date, a random
number, a time limit), the episode is an error without a reward, listed as not reproducible.

Examples:
  intercode rescore runs/mine --reward reward.py:score
  intercode rescore runs/sql --reward bird-ex --out runs/sql-bird --workers 4
  intercode rescore runs/sql --reward default
  intercode rescore runs/mine --reward judge --judge-model openai/gpt-4o
  intercode rescore runs/mine                         (the same reward, in its current version)
  intercode rescore runs/mine --json | jq .changes
  intercode report runs/mine runs/mine-rescored-score

exit code: 0 if every episode with a recorded result has a new one; 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from intercode.cli.recorded_spec import AGENT_OPTIONS, JUDGE_OPTIONS, add_recorded_options
from intercode.spec import (
    EnvSpec,
    ModelSpec,
    RunOptions,
    add_options,
    list_section_options,
)


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
    add_options(parser, list_section_options(EnvSpec), *JUDGE_OPTIONS)
    add_options(parser, list_section_options(ModelSpec), "prices", "max_cost", "max_tokens")
    parser.add_argument(
        "--out", metavar="DIR", help="the new run's folder (default: RUN-rescored-NAME)"
    )
    add_options(
        parser,
        list_section_options(RunOptions),
        "workers",
        "retries",
        "quiet",
        "json",
        "accept",
        "model_timeout",
    )
    add_recorded_options(
        parser, excluded_names=" ".join(("reward prices", *JUDGE_OPTIONS, *AGENT_OPTIONS))
    )
