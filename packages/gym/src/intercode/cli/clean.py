"""Remove the remains of killed runs: control groups, containers, snapshots, half-built images.

With --all, also remove everything that InterCode can rebuild: images, packed folders, converted
databases, prepared servers, and its images in Docker's engine. The command shows the freed size and
asks first.

Runs, fetched datasets and models, and files that a running process uses always stay.

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
from intercode_sandbox.host_files import cache_root, empty_folder, tree_size
from intercode_sandbox.native.snapshot import endings, sweep
from intercode_sandbox.units import format_count

_FOLDERS = {
    "databases": "converted databases",
    "servers": "prepared database servers",
    "docker": "the Python of containers",
}
"""Folder in the cache → description of its content. A folder is emptied only if no running process
uses it."""


@dataclass(frozen=True, slots=True)
class RemovableFiles:
    """A kind of files that the command can remove."""

    what: str
    """The description in the table."""
    removed: tuple[str, ...]
    """The paths or names of the files."""
    size: int
    """The size of the files in bytes. Containers and control groups count as 0."""
    in_use: bool = False
    """Whether a running process uses the files, which therefore stay."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--all",
        action="store_true",
        help="also remove images, databases and everything else that can be rebuilt",
    )
    parser.add_argument(
        "--yes", action="store_true", help="with --all: do not ask for confirmation"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be removed, and remove nothing"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Remove the remains of killed runs; with ``--all``, also everything that can be rebuilt.

    The removed paths are printed; with ``--all``, a table of the numbers and sizes instead.

    Returns:
        The exit code 0.

    Raises:
        UsageError: A confirmation is needed, but the standard input is not a terminal.
    """
    if args.all:
        return _clean_all(args)
    removed_paths = _sweep_remains(args.dry_run)
    if args.json:
        print_json(_cleanup_facts(args.dry_run, removed_paths))
        return 0
    for path in removed_paths:
        print(safe(path))
    for entry in endings():
        print(f"process {entry.pid}: a closed sandbox that the kernel still ends, which is kept")
    verb = "would remove" if args.dry_run else "removed"
    print(
        f"{verb} {format_count(len(removed_paths), 'thing')}"
        if removed_paths
        else "nothing was left"
    )
    return 0


def _clean_all(args: argparse.Namespace) -> int:
    may_ask = sys.stdin.isatty() and not args.json
    if not (args.dry_run or args.yes or may_ask):
        raise UsageError(
            "clean --all needs a confirmation on a terminal: add --yes, or --dry-run to list "
            "what would be removed"
        )
    plan = _remove_unused(dry_run=True)
    if not args.json:
        _print_parts(plan)
    if not args.dry_run:
        if any(part.removed for part in plan) and not args.yes and not _ask_confirmation():
            print("nothing was removed")
            return 0
        # The sizes of the remains can be measured only before the removal, so the first part comes
        # from the dry run.
        plan = [
            plan[0],
            *_remove_unused(dry_run=False)[1:],
        ]
    total_bytes = sum(part.size for part in plan)
    if args.json:
        removed_paths = [path for part in plan for path in part.removed]
        parts = [asdict(part) for part in plan]
        print_json(
            {**_cleanup_facts(args.dry_run, removed_paths), "size": total_bytes, "parts": parts}
        )
    else:
        print(f"{'would free' if args.dry_run else 'freed'} {size(total_bytes)}")
    return 0


def _cleanup_facts(dry_run: bool, removed_paths: Sequence[str]) -> dict[str, Any]:
    ending = [asdict(entry) for entry in endings()]
    return {"dry_run": dry_run, "removed": [*removed_paths], "ending": ending}


def _remove_unused(dry_run: bool) -> list[RemovableFiles]:
    """Remove all remains and rebuildable files that no running process uses.

    Args:
        dry_run: Whether to list the files without removing them.

    Returns:
        The kinds of files, with the removed or removable paths.
    """
    root = cache_root()
    remains = _sweep_remains(dry_run)
    cache_paths = [path for path in map(Path, remains) if path.is_relative_to(root)]
    removed_images = images.prune(include_recent=True, dry_run=dry_run)
    digests = {image.digest for image in removed_images}
    removed_sources = images.prune_sources(
        include_recent=True, dry_run=dry_run, excluded_digests=digests
    )
    parts = [
        RemovableFiles("remains of killed runs", tuple(remains), sum(map(tree_size, cache_paths))),
        RemovableFiles(
            "images",
            tuple(image.name for image in removed_images),
            sum(image.size for image in removed_images),
        ),
        RemovableFiles(
            "packed folders and repositories",
            tuple(str(source.path) for source in removed_sources),
            sum(source.size for source in removed_sources),
        ),
    ]
    for name, description in _FOLDERS.items():
        folder = root / name
        paths = tuple(str(path) for path in sorted(folder.glob("*")))
        freed_bytes = empty_folder(folder, dry_run)
        parts.append(
            RemovableFiles(
                description,
                paths if freed_bytes is not None else (),
                freed_bytes or 0,
                freed_bytes is None,
            )
        )
    engine_images = [] if parts[-1].in_use else prune(dry_run)
    total_size = sum(size for _, size in engine_images)
    names = tuple(f"image {name}" for name, _ in engine_images)
    return [
        *parts,
        RemovableFiles("images in Docker's engine", names, total_size, parts[-1].in_use),
    ]


def _sweep_remains(dry_run: bool) -> list[str]:
    paths = sweep(dry_run) + sweep_all(dry_run)
    # A dry run omits half-built images: only the removal takes the lock that distinguishes them
    # from images that another process is building now.
    return paths + ([] if dry_run else [str(path) for path in images.sweep()])


def _print_parts(parts: Sequence[RemovableFiles]) -> None:
    rows = [
        (part.what, str(len(part.removed)), size(part.size), "in use: kept" if part.in_use else "")
        for part in parts
    ]
    print(table(("what", "number", "size", ""), rows, left_columns=1))


def _ask_confirmation() -> bool:
    try:
        return input("Remove them? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
