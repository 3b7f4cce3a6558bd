"""List, fetch and validate datasets, and export their tasks.

Examples:
  intercode datasets list
  intercode datasets info spider
  intercode datasets fetch spider
  intercode datasets fetch bird --from ~/Downloads/dev.zip
  intercode datasets fetch spider --from ../shared/upstream     (a folder is linked to)
  intercode datasets validate sql --workers 2
  intercode datasets validate tasks.json --env bash --json
  intercode datasets validate mbpp --workers 2 --write-exclude broken.json
  intercode datasets export bash --to harbor --out tasks

exit code: 0 on success; 1 if a dataset could not be fetched, a task is not valid or a task could
not be exported; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Any

from intercode.cli.commands import export_tasks, validate
from intercode.cli.parser import add_action
from intercode.cli.terminal import ProgressLine, print_json, safe, show_bytes, size, table
from intercode.datasets import accepts_option, splits
from intercode.datasets.catalog import DatasetCatalogEntry, entries, find
from intercode.errors import TaskError, UsageError
from intercode.registry import DATASETS
from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from intercode.task import Dataset


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    add_action(actions, "list", "list the named datasets")

    info = add_action(actions, "info", "show a dataset's licence, source and state")
    info.add_argument("name", metavar="NAME")

    fetch = add_action(actions, "fetch", "download a dataset from its authors' address")
    fetch.add_argument("name", metavar="NAME")
    fetch.add_argument(
        "--from",
        dest="origin",
        default="",
        metavar="URL|PATH",
        help="another URL of the same archive, the archive as a file, or a folder to link to",
    )
    fetch.add_argument("--checksum", default="", metavar="HEX", help="SHA-256 of the archive")
    fetch.add_argument("--force", action="store_true", help="fetch a dataset again that is present")
    fetch.add_argument("-q", "--quiet", action="store_true", help="show no progress")

    checks = actions.add_parser(
        "validate",
        help="check that gold solves every task, twice alike, and that no wrong answer does",
    )
    validate.configure(checks)

    exports = actions.add_parser("export", help="write tasks as folders for another framework")
    export_tasks.configure(exports)


def execute(args: argparse.Namespace) -> int:
    """Execute the subcommand; return its exit code."""
    if args.action in ("validate", "export"):
        name = "export_tasks" if args.action == "export" else args.action
        return int(import_module(f"intercode.cli.{name}").execute(args))
    {"list": _list, "info": _info, "fetch": _fetch}[args.action](args)
    return 0


def _list(args: argparse.Namespace) -> None:
    if args.json:
        print_json({"datasets": [_as_json(entry) for entry in entries()]})
        return
    rows = [
        (
            safe(entry.name),
            _presence_text(entry),
            entry.licence,
            safe(entry.home),
            safe(entry.title),
        )
        for entry in entries()
    ]
    print(table(("name", "", "licence", "from", "what"), rows, left_columns=5))


def _info(args: argparse.Namespace) -> None:
    entry = find(args.name)
    facts: dict[str, Any] = {**_as_json(entry), "splits": []}
    if accepts_option(entry.name, "split"):
        facts["splits"] = splits(entry.name)
    if facts["present"]:
        facts |= _tag_counts(entry.name)
    if args.json:
        print_json(facts)
        return
    fields = {
        "what": entry.title,
        "licence": entry.licence,
        "home": entry.home,
        "archive": f"{entry.url} ({size(entry.size)})" if entry.url else "",
        "sha256": entry.sha256,
        "here": _presence_text(entry),
        "folder": facts["folder"] or "",
        "splits": ", ".join(facts["splits"]),
        "tasks": str(facts.get("tasks", "")),
        "tags": ", ".join(f"{tag} {count}" for tag, count in facts.get("tags", {}).items()),
        "to get it": entry.advice,
    }
    for key, value in fields.items():
        if value:
            print(f"{key:10}{safe(value)}")


def _fetch(args: argparse.Namespace) -> None:
    from intercode.datasets.fetch import fetch

    line = ProgressLine(args.quiet)
    try:
        dataset = fetch(
            args.name,
            origin=args.origin,
            sha256=args.checksum,
            force=args.force,
            report_line=None if args.quiet else lambda text: line.announce(safe(text)),
            progress=None if args.quiet else show_bytes(line),
        )
    finally:
        line.clear()
    if args.json:
        print_json({**_as_json(find(args.name)), "tasks": len(dataset)})
    else:
        print(
            f"{safe(args.name)}: {format_count(len(dataset), 'task')}, from "
            f"{safe(dataset.source or '')}"
        )


def _as_json(entry: DatasetCatalogEntry) -> dict[str, Any]:
    folder = _dataset_folder(entry)
    return {
        "name": entry.name,
        "title": entry.title,
        "licence": entry.licence,
        "home": entry.home or None,
        "url": entry.url or None,
        "sha256": entry.sha256 or None,
        "size": entry.size or None,
        "bundled": entry.bundled,
        "present": entry.bundled or folder is not None,
        "folder": folder,
        "advice": entry.advice or None,
    }


def _dataset_folder(entry: DatasetCatalogEntry) -> str | None:
    """Return the folder of a dataset that was fetched or comes with a package; None if absent."""
    from intercode.datasets.files import find_installed, home

    download_folder = None if entry.bundled else home(entry.name)
    if download_folder is not None and download_folder.exists():
        return str(download_folder)
    package_folder = find_installed(entry.package) if entry.package else None
    return str(package_folder) if package_folder else None


def _presence_text(entry: DatasetCatalogEntry) -> str:
    if entry.bundled:
        return "bundled"
    if _dataset_folder(entry):
        return "here"
    return "to fetch" if entry.url else "to get"


def _tag_counts(name: str) -> dict[str, Any]:
    """Return the number of tasks in a dataset, in total and for the 12 most frequent tags.

    The result is empty if the dataset cannot be loaded without options.
    """
    try:
        dataset: Dataset = DATASETS.get(name)()
    except (TaskError, UsageError, TypeError):
        # This loader needs options, such as a version, and cannot be called without them.
        return {}
    tags = Counter(tag for task in dataset for tag in task.tags)
    return {"tasks": len(dataset), "tags": dict(tags.most_common(12))}
