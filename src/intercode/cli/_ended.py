"""What came of a run: its summary, and how to go on with it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from intercode.cli import _summary
from intercode.cli._text import duration, print_json, safe
from intercode.evaluate import RunResult
from intercode.evaluate.judged import judge_of
from intercode.records import read_manifest

TAGS = 8
"""Shown at a run's end; 'intercode report' shows all."""


def finish(args: argparse.Namespace, out: Path, result: RunResult) -> int:
    """Print what came of a run; the exit code."""
    if args.json:
        _print_json(out, result)
    else:
        _print(args.workers, out, result)
    if rest := _rest(out, result):
        print(rest, file=sys.stderr if args.json else sys.stdout)
    if result.cut_short:
        return 130
    return 0 if result.complete else 1


def resume(out: Path) -> str:
    """The command that goes on with a run."""
    return f"intercode resume {shlex.quote(safe(str(out)))}"


def _rest(out: Path, result: RunResult) -> str:
    """What is left to do, and why; empty if that is nothing."""
    missing, errors = result.planned - len(result.outcomes), result.statistics.errors
    left = [f"{missing} episode{'s are' if missing > 1 else ' is'} missing"] if missing else []
    left += [f"{errors} ended in an error"] if errors else []
    if not left:
        return "" if result.ran else "nothing to do: every episode has a result"
    why = f"stopped: {safe(result.stopped)}\n" if result.stopped else ""
    why += "interrupted: " if result.cut_short else ""
    return f"{why}{', '.join(left)}\ngo on with: {resume(out)}"


def _print_json(out: Path, result: RunResult) -> None:
    manifest = read_manifest(out)
    print_json(
        {
            "run": str(out),
            "env": manifest["env"]["env"],
            "agent": manifest["agent"]["name"],
            "dataset": manifest["dataset"],
            "excluded": manifest.get("excluded", {}),
            "planned": result.planned,
            "finished": len(result.outcomes),
            "ran": result.ran,
            "seconds": result.seconds,
            "episodes_per_second": _rate(result),
            "interrupted": result.cut_short,
            "stopped": result.stopped,
            **_summary.as_json(result.outcomes, judge_of(manifest, result.outcomes)),
        }
    )


def _print(workers: int, out: Path, result: RunResult) -> None:
    manifest = read_manifest(out)
    text = _summary.as_text(result.outcomes, TAGS, judge_of(manifest, result.outcomes))
    print(_summary.facts(manifest), text, sep="\n\n", end="\n\n")
    count = "1 worker" if workers == 1 else f"{workers} workers"
    seconds, rate = duration(result.seconds), _rate(result)
    print(f"{result.ran} episodes in {seconds} ({rate:.1f}/s, {count})")
    print(f"run: {out}")


def _rate(result: RunResult) -> float:
    return result.ran / result.seconds if result.seconds else 0.0
