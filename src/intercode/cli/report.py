"""The summary of a finished run, or of one that is going on; of several, and what sets them apart.

Examples:
  intercode report runs/20250101-120000-bash-oracle
  intercode report RUN --json | jq .statistics.success_rate
  intercode report RUN OTHER             (warns if they were not made of the same)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intercode.cli import _summary
from intercode.cli._text import print_json, safe
from intercode.evaluate.drift import Difference, differences
from intercode.evaluate.log import latest, read_manifest
from intercode.evaluate.report import Outcome

_COMPARED_ON_PURPOSE = ("agent", "seed")
_SHOWN = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", type=Path, nargs="+", metavar="RUN", help="the run's folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Print the summaries, and warn of runs that cannot be compared."""
    manifests = [read_manifest(run) for run in args.run]
    apart = {
        str(run): differences(manifests[0], manifest, _COMPARED_ON_PURPOSE)
        for run, manifest in zip(args.run[1:], manifests[1:], strict=True)
    }
    if args.json:
        found = [_as_json(run, manifest) for run, manifest in zip(args.run, manifests, strict=True)]
        print_json(found[0] if len(found) == 1 else {"runs": found, "differences": _plain(apart)})
        return 0
    texts: list[str] = []
    for run, manifest in zip(args.run, manifests, strict=True):
        if len(manifests) > 1:
            texts.append(f"{safe(str(run))}:")
        texts += [_summary.facts(manifest), _summary.as_text(_outcomes(run))]
    print("\n\n".join(texts))
    for run, found_apart in apart.items():
        _warn(str(args.run[0]), run, found_apart)
    return 0


def _outcomes(run: Path) -> list[Outcome]:
    return list(latest(run, Outcome.of).values())


def _as_json(run: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    return {"run": str(run), "manifest": manifest, **_summary.as_json(_outcomes(run))}


def _plain(apart: dict[str, list[Difference]]) -> dict[str, list[dict[str, Any]]]:
    return {
        run: [
            {name: value for name, value in asdict(one).items() if name != "advice"}
            for one in found
        ]
        for run, found in apart.items()
    }


def _warn(first: str, other: str, found: Sequence[Difference]) -> None:
    if not found:
        return
    lines = [f"  {one.what}: {_said(one.recorded)} and {_said(one.now)}" for one in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"  … and {len(found) - _SHOWN} more (--json has them all)")
    text = f"{first} and {other} were not made of the same:\n" + "\n".join(lines)
    print(f"\nintercode: warning: {safe(text)}", file=sys.stderr)


def _said(value: object) -> str:
    return "nothing" if value is None else str(value)
