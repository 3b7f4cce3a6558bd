"""List, fetch and remove models that run on this machine.

The name of a fetched model is local/NAME; your own file has the name local/PATH.gguf. Both need a
package: pip install 'intercode-gym[local]'

Examples:
  intercode models list
  intercode models fetch qwen2.5-coder-1.5b
  intercode models fetch smollm2-135m --from ~/Downloads/SmolLM2-135M-Instruct.Q4_1.gguf
  intercode models remove qwen2.5-coder-1.5b

exit code: 0 on success; 1 if a model could not be fetched; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from intercode.cli.parser import add_action
from intercode.cli.terminal import ProgressLine, print_json, safe, show_bytes, size, table
from intercode.errors import UsageError
from intercode.models.local import server, store
from intercode.models.local.catalog import LocalModelEntry, entries, find_entry


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add_action(actions, "list", "list the known models and their state")
    fetch = add_action(actions, "fetch", "download models")
    fetch.add_argument("name", nargs="+", help="a model's name, from 'intercode models list'")
    fetch.add_argument(
        "--from",
        dest="origin",
        default="",
        metavar="URL|FILE",
        help="another URL of the same file, or a copy on this machine",
    )
    fetch.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    remove = add_action(actions, "remove", "remove models")
    remove.add_argument("name", nargs="+", help="a model's name")


def execute(args: argparse.Namespace) -> int:
    """Execute the subcommand; return 0."""
    {"list": _list, "fetch": _fetch, "remove": _remove}[args.action](args)
    return 0


def _list(args: argparse.Namespace) -> None:
    if args.json:
        print_json(
            {"folder": str(store.folder()), "models": [_entry_facts(model) for model in entries()]}
        )
        return
    rows = [
        (
            safe(entry.name),
            "here" if store.home(entry).is_file() else "",
            size(entry.size),
            size(entry.size + server.BUFFERS),
            "" if entry.speed is None else f"{entry.speed:.0f}",
            entry.licence,
            safe(entry.repository),
        )
        for entry in entries()
    ]
    titles = ("model", "", "size", "memory", "tokens/s", "licence", "from huggingface.co")
    print(table(titles, rows, left_columns=2))


def _fetch(args: argparse.Namespace) -> None:
    selected_entries = _find_entries(args)
    if args.origin and len(selected_entries) > 1:
        raise UsageError("--from FILE has the weights of a single model: name only that model")
    line = ProgressLine(args.quiet)
    progress = show_bytes(line)
    try:
        for entry in selected_entries:
            store.fetch(
                entry,
                origin=args.origin,
                report_line=None if args.quiet else lambda text: line.announce(safe(text)),
                progress=None if args.quiet else progress,
            )
    finally:
        line.clear()
    if args.json:
        print_json({"fetched": [_entry_facts(entry) for entry in selected_entries]})
        return
    for entry in selected_entries:
        print(f"local/{entry.name}  {size(entry.size)}  {safe(str(store.home(entry)))}")


def _remove(args: argparse.Namespace) -> None:
    freed_sizes = {
        entry.name: count
        for entry in _find_entries(args)
        if (count := store.remove(entry)) is not None
    }
    if args.json:
        print_json({"removed": freed_sizes})
        return
    for name, count in freed_sizes.items():
        print(f"removed {name}, {size(count)}")
    if not freed_sizes:
        print("no such model was here")


def _find_entries(args: argparse.Namespace) -> list[LocalModelEntry]:
    """Return the catalog entries of the models that the arguments name.

    A name may have the prefix ``local/``.
    """
    return [find_entry(name.removeprefix("local/")) for name in args.name]


def _entry_facts(entry: LocalModelEntry) -> dict[str, Any]:
    path = store.home(entry)
    facts: dict[str, Any] = msgspec.to_builtins(entry)
    return {**facts, "url": entry.url, "path": str(path) if path.is_file() else None}
