"""Execution of ``intercode export``, which converts a run to another format."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from intercode.cli.commands.export import FORMS
from intercode.cli.terminal import print_json, safe
from intercode.episode import Episode
from intercode.errors import RecordWriteError, UsageError
from intercode.records import last_attempts, read_manifest
from intercode.redaction import SecretRedactor
from intercode.registry import EXPORTS
from intercode.report import export
from intercode.report.text import escape_formula
from intercode_sandbox.host_files import atomic_file
from intercode_sandbox.units import format_count

Convert = Callable[[Iterable[Episode], dict[str, Any]], Any]
"""A function that converts episodes, and the ``run.json`` of their run, to JSON data."""
_UNSCORED_FORMS = ("csv", "parquet", "jsonl", "inspect")
"""Formats that include episodes without a score."""


def execute(args: argparse.Namespace) -> int:
    """Write the run to a file or the standard output, and print the number of episodes.

    Returns:
        The exit code 0.

    Raises:
        UsageError: The options do not fit the format, or no selected episode has recorded tokens.
        RecordError: The run cannot be read.
        RecordWriteError: The file cannot be written.
    """
    convert: Convert | None = None if args.to in FORMS else EXPORTS.get(args.to)
    if args.turns and args.to not in ("csv", "parquet"):
        raise UsageError("--turns is for csv and parquet")
    if args.style and args.to != "chat":
        raise UsageError("--style is for chat")
    if args.tokens and args.to != "parquet":
        raise UsageError(f"--tokens is for --to parquet, not --to {args.to}")
    if args.tokens and args.turns:
        raise UsageError("--tokens writes rows of its own kind: omit --turns")
    # A record of an earlier version may contain secrets, so exports are redacted again.
    redactor = SecretRedactor(includes_dialogues=args.redact)
    manifest = redactor.facts(read_manifest(args.run))
    if args.to == "inspect":
        _prepare_inspect(args, manifest)
    if args.out is None and (args.to == "parquet" or args.json):
        raise UsageError("give the file with --out FILE")
    episode_selection = _ExportSelection(args, redactor)
    if args.tokens:
        _check_tokens(args.run, _ExportSelection(args, redactor))
    try:
        if args.to == "parquet":
            from intercode.report.export import write_parquet

            write_parquet(args.out, *_columns_and_rows(args, episode_selection))
        else:
            with _open_output(args.out) as file:
                _write(args, file, episode_selection, manifest, convert)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise RecordWriteError(f"cannot write {args.out}: {error.strerror or error}") from error
    if args.json:
        export_summary = {"run": str(args.run), "to": args.to, "out": str(args.out)}
        token_facts = {"without_tokens": episode_selection.tokenless_count} if args.tokens else {}
        print_json(
            {
                **export_summary,
                "episodes": episode_selection.count,
                "errors": episode_selection.errors,
                **token_facts,
            }
        )
    else:
        omissions_text = (
            f", {episode_selection.errors} without a result left out"
            if episode_selection.errors
            else ""
        )
        omissions_text += (
            f", {episode_selection.tokenless_count} without recorded tokens left out"
            if episode_selection.tokenless_count
            else ""
        )
        print(
            f"{format_count(episode_selection.count, 'episode')}{omissions_text}", file=sys.stderr
        )
    return 0


def _prepare_inspect(args: argparse.Namespace, manifest: dict[str, Any]) -> None:
    """Check the options of an Inspect log; if ``--out`` is a folder, append the log's file name.

    An Inspect log contains the results of a whole run, so options that select episodes would make
    them wrong.

    Raises:
        UsageError: An option selects episodes, or the file's name does not end in ``.json``.
    """
    from intercode.report.inspect_export import file_name

    if args.solved or args.epoch is not None:
        raise UsageError(
            "an Inspect log contains the results of the whole run: omit the options that select "
            "episodes"
        )
    if args.out is not None and args.out.is_dir():
        args.out /= file_name(manifest)
    if args.out is not None and args.out.suffix != ".json":
        raise UsageError(
            f"Inspect recognises logs by their suffix: end {args.out} in .json ('inspect log "
            "convert' makes .eval of it)"
        )


def _check_tokens(run: Path, episodes: _ExportSelection) -> None:
    """Refuse to export a table of tokens if no episode has recorded tokens.

    Raises:
        UsageError: Episodes are selected, but none has recorded tokens.
    """
    if next(iter(episodes), None) is None and episodes.tokenless_count:
        raise UsageError(
            f"no episode of {run} has token ids (of {episodes.tokenless_count}): a model's run "
            "has them with 'intercode run … --record-tokens' and a server that reports them, such "
            "as vLLM"
        )


def _has_tokens(episode: Episode) -> bool:
    return next(export.token_rows(episode), None) is not None


class _ExportSelection:
    """The episodes to export, with secrets redacted, and the numbers of omitted episodes.

    Iteration counts the episodes, so each object is iterated once.
    """

    def __init__(self, args: argparse.Namespace, redactor: SecretRedactor) -> None:
        self._args = args
        self._redactor = redactor
        self.count = 0
        self.errors = 0
        """The number of episodes that the format omits, for lack of a score."""
        self.tokenless_count = 0
        """The number of episodes that a table of tokens omits, for lack of recorded tokens."""

    def iterate_all_episodes(self) -> Iterator[Episode]:
        """Yield all episodes of the run, also those not selected, with secrets redacted."""
        return map(self._redactor.episode, last_attempts(self._args.run))

    def __iter__(self) -> Iterator[Episode]:
        for episode in last_attempts(self._args.run):
            if self._args.epoch not in (None, episode.epoch):
                continue
            if self._args.solved and not episode.success:
                continue
            if episode.score is None and self._args.to not in _UNSCORED_FORMS:
                self.errors += 1
                continue
            if self._args.tokens and not _has_tokens(episode):
                self.tokenless_count += 1
                continue
            self.count += 1
            yield self._redactor.episode(episode)


def _write(
    args: argparse.Namespace,
    file: TextIO,
    selection: _ExportSelection,
    manifest: dict[str, Any],
    convert: Convert | None,
) -> None:
    if convert is not None:
        json.dump(convert(selection, manifest), file, indent=4)
        file.write("\n")
    elif args.to == "csv":
        columns, rows = _columns_and_rows(args, selection)
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(_escape_row, rows))
    elif args.to == "inspect":
        from intercode.report.inspect_export import to_inspect

        file.writelines(to_inspect(selection.iterate_all_episodes(), manifest, selection))
    elif args.to == "chat":
        style, env = args.style or "plain", manifest.get("env", {})
        conversations = (
            export.to_chat(episode, style, env, trust=args.trust) for episode in selection
        )
        file.writelines(f"{json.dumps(conversation)}\n" for conversation in conversations)
    else:
        file.writelines(f"{episode.to_json()}\n" for episode in selection)


def _escape_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table with harmless texts.

    Escaped texts start no formula in a spreadsheet, and control no terminal.
    """
    return {
        name: escape_formula(safe(value)) if isinstance(value, str) else value
        for name, value in row.items()
    }


def _columns_and_rows(
    args: argparse.Namespace, selection: Iterable[Episode]
) -> tuple[dict[str, str], Iterator[dict[str, Any]]]:
    if args.tokens:
        tokens = (row for episode in selection for row in export.token_rows(episode))
        return export.TOKEN_COLUMNS, tokens
    if args.turns:
        turns = (row for episode in selection for row in export.turn_rows(episode))
        return export.TURN_COLUMNS, turns
    return export.EPISODE_COLUMNS, map(export.episode_row, selection)


@contextmanager
def _open_output(path: Path | None) -> Iterator[TextIO]:
    """Yield an open file for writing, or the standard output if the path is None.

    The file appears at the path only after all of it was written.
    """
    if path is None:
        yield sys.stdout
        return
    with (
        atomic_file(path) as temporary_path,
        temporary_path.open("w", encoding="utf-8", newline="") as file,
    ):
        yield file
