"""Remove the remains of killed runs: control groups, containers, snapshots, half-built images.

With --all also all that InterCode has made and can make again: images, packed folders, converted
databases, prepared servers, and its images in Docker's engine. It shows what that frees, and asks.

What a living process uses is never touched, nor are runs and fetched datasets.

Examples:
  intercode clean
  intercode clean --dry-run
  intercode clean --all
  intercode clean --all --yes
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from intercode.cli.terminal import print_json, safe, size, table
from intercode.errors import UsageError
from intercode_sandbox import images
from intercode_sandbox.docker.images import prune
from intercode_sandbox.docker.provider import sweep_all
from intercode_sandbox.files import cache_root, empty_folder, tree_size
from intercode_sandbox.native.snapshot import endings, sweep
from intercode_sandbox.units import format_count

_FOLDERS = {
    "databases": "converted databases",
    "servers": "prepared database servers",
    "docker": "the Python of containers",
}
"""Folders of the cache, which are removed whole if no living process uses them."""


@dataclass(frozen=True, slots=True)
class Freed:
    """One kind of things, and how much room they take."""

    what: str
    removed: tuple[str, ...]
    size: int
    in_use: bool = False


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--all", action="store_true", help="also images, databases and all that can be made again"
    )
    parser.add_argument("--yes", action="store_true", help="with --all: do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Sweep, and say what was found."""
    if args.all:
        return _everything(args)
    found = _remains(args.dry_run)
    if args.json:
        print_json(_facts(args.dry_run, found))
        return 0
    for path in found:
        print(safe(path))
    for entry in endings():
        print(f"process {entry.pid}: a closed sandbox that the kernel still ends, which is kept")
    did = "would remove" if args.dry_run else "removed"
    print(f"{did} {format_count(len(found), 'thing')}" if found else "nothing was left")
    return 0


def _everything(args: argparse.Namespace) -> int:
    may_ask = sys.stdin.isatty() and not args.json
    if not (args.dry_run or args.yes or may_ask):
        raise UsageError("clean --all asks on a terminal: add --yes, or --dry-run to see what goes")
    plan = _free(dry_run=True)
    if not args.json:
        _show(plan)
    if not args.dry_run:
        if any(part.removed for part in plan) and not args.yes and not _agreed():
            print("nothing was removed")
            return 0
        plan = [plan[0], *_free(dry_run=False)[1:]]  # how large remains were is known before
    total = sum(part.size for part in plan)
    if args.json:
        removed = [path for part in plan for path in part.removed]
        parts = [asdict(part) for part in plan]
        print_json({**_facts(args.dry_run, removed), "size": total, "parts": parts})
    else:
        print(f"{'would free' if args.dry_run else 'freed'} {size(total)}")
    return 0


def _facts(dry_run: bool, removed: Sequence[str]) -> dict[str, Any]:
    ending = [asdict(entry) for entry in endings()]
    return {"dry_run": dry_run, "removed": [*removed], "ending": ending}


def _free(dry_run: bool) -> list[Freed]:
    """Remove everything that no living process uses, or say what that would be."""
    root = cache_root()
    remains = _remains(dry_run)
    own = [path for path in map(Path, remains) if path.is_relative_to(root)]
    built = images.prune(include_recent=True, dry_run=dry_run)
    digests = {image.digest for image in built}
    packed = images.prune_sources(include_recent=True, dry_run=dry_run, excluded_digests=digests)
    parts = [
        Freed("remains of killed runs", tuple(remains), sum(map(tree_size, own))),
        Freed("images", tuple(image.name for image in built), sum(image.size for image in built)),
        Freed(
            "packed folders and repositories",
            tuple(str(source.path) for source in packed),
            sum(source.size for source in packed),
        ),
    ]
    for name, what in _FOLDERS.items():
        folder = root / name
        there = tuple(str(path) for path in sorted(folder.glob("*")))
        freed = empty_folder(folder, dry_run)
        parts.append(Freed(what, there if freed is not None else (), freed or 0, freed is None))
    of_engine = [] if parts[-1].in_use else prune(dry_run)
    sizes = sum(size for _, size in of_engine)
    names = tuple(f"image {name}" for name, _ in of_engine)
    return [*parts, Freed("images in Docker's engine", names, sizes, parts[-1].in_use)]


def _remains(dry_run: bool) -> list[str]:
    found = sweep(dry_run) + sweep_all(dry_run)
    # A half-built image is only told from one that is being built by taking its lock.
    return found + ([] if dry_run else [str(path) for path in images.sweep()])


def _show(parts: Sequence[Freed]) -> None:
    rows = [
        (part.what, str(len(part.removed)), size(part.size), "in use: kept" if part.in_use else "")
        for part in parts
    ]
    print(table(("what", "number", "size", ""), rows, left=1))


def _agreed() -> bool:
    try:
        return input("Remove them? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
