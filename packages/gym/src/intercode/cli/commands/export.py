"""Export a run in another format.

formats:
  paper    the JSON of 2023, for its notebooks and for 'intercode replay'
  chat     JSON lines of OpenAI's messages, for fine-tuning
  csv      a table: a row for each episode, or with --turns for each turn; control characters are
           escaped, and a ' stands before text that a spreadsheet would read as a formula
  parquet  the same unescaped, for pandas and Arrow (needs intercode-gym[duckdb])
  jsonl    the complete episodes, the last attempt of each
  inspect  the log of Inspect AI, for 'inspect view' and its data frames

Examples:
  intercode export RUN --to chat --solved --out train.jsonl
  intercode export RUN --to chat --style chat --out train.jsonl  (a run of the oracle, to train on)
  intercode export RUN --to paper --out ic_bash_multiturn_mine_10_turns.json
  intercode export RUN --to csv --turns > turns.csv
  intercode export RUN --to parquet --tokens --out tokens.parquet
  intercode export RUN --to inspect --out logs      (a folder, in which Inspect finds the log)
"""

from __future__ import annotations

import argparse
from pathlib import Path

from intercode.registry import EXPORTS, MESSAGES
from intercode.spec import natural

FORMS = ("chat", "csv", "parquet", "jsonl", "inspect")
"""The formats that this package implements; `EXPORTS` has the formats of other packages."""


def forms() -> list[str]:
    """Return all formats, including those of InterCode packages that are not installed."""
    return [*sorted({*EXPORTS.homes, *EXPORTS.names()} - {*FORMS}), *FORMS]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument("--to", choices=forms(), required=True, help="the format, see above")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="output file (default: standard output)"
    )
    parser.add_argument("--solved", action="store_true", help="only episodes with reward 1.0")
    parser.add_argument(
        "--epoch", type=natural, metavar="N", help="only this attempt at each task, from 0"
    )
    parser.add_argument(
        "--style",
        choices=MESSAGES.names(),
        help="for chat, if the agent was not a model: write the episodes as dialogues of try-again "
        "(chat) or tool-calling (tools) (default: plain)",
    )
    parser.add_argument(
        "--turns", action="store_true", help="for csv and parquet: a row for each turn"
    )
    parser.add_argument(
        "--tokens",
        action="store_true",
        help="for parquet: token ids, log-probabilities and mask, if the run recorded them",
    )
    parser.add_argument(
        "--redact",
        action="store_true",
        help="also redact secrets in dialogues (see docs/gym/run-folder.md)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a summary of the export as one JSON object"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="for --style chat and tools: import the recorded environment from an installed "
        "package",
    )
