"""``run --locked``: options from a run's record, and what has changed since, shown."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intercode.cli import _agents
from intercode.cli._text import print_json
from intercode.errors import ImageError, UsageError
from intercode.evaluate.drift import DriftError
from intercode.records import MANIFEST, read_manifest
from intercode.sandbox.images.base import parse

_OF_THE_CALL = {
    *("accept", "debug", "env_option", "exclude", "json", "locked", "out", "quiet", "retries"),
    *("max_connections", "max_sandboxes", "run", "show", "workers"),
}
"""Options that say nothing of what is run, or that the record has under another name."""
_DEFAULTS = {"agent": "oracle", "epochs": 1, "protocol": "default", "seed": 0}
"""Of options that must be known to have been given."""
_GIVEN_MAY_DIFFER = {
    **dict.fromkeys(("agent", "model", "preset", "prompt", "recording", "temperature"), "agent"),
    "seed": "seed",
    "exclude": "excluded",
}
"""Option → what it says in the record: who gives it wants just that to be another."""
_PATHS = {"cache", "prices", "prompt", "recording"}
_TOGETHER = (("limit", "tasks"),)
"""Of these, none is taken over if one was given."""
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/]*@")
_HIDDEN = r"\1:***@"


class Lock:
    """What a run is held to.

    Args:
        args: The command's options; those that were not given are taken from the record.

    Raises:
        RecordError: The run's record cannot be read.
        UsageError: The record does not hold an option as it was given.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.manifest: dict[str, Any] | None = None
        self.accept: list[str] = list(args.accept or ())
        if args.locked is None:
            if self.accept:
                raise UsageError("--accept says what may differ from --locked RUN: name that, too")
        else:
            folder = args.locked.parent if args.locked.name == MANIFEST else args.locked
            self.manifest = read_manifest(folder)
            given = {name for name in _GIVEN_MAY_DIFFER if getattr(args, name) is not None}
            self.accept += sorted({_GIVEN_MAY_DIFFER[name] for name in given})
            _take_over(args, self.manifest)
        for name, value in _DEFAULTS.items():
            if getattr(args, name) is None:
                setattr(args, name, value)

    @property
    def excluded(self) -> Mapping[str, str]:
        """The tasks that the recorded run has left out, if this one is held to it."""
        found: dict[str, str] = (self.manifest or {}).get("excluded", {})
        return found

    def context(self, args: argparse.Namespace) -> dict[str, Any]:
        """What the new run's record is to say of its options, and of what it was held to."""
        facts: dict[str, Any] = {"options": _recorded(args)}
        if self.manifest is not None:
            facts["locked"] = {"run": str(args.locked.absolute()), "accepted": self.accept}
        return facts


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--locked`` and ``--accept``; the options that a record can fill lose their defaults."""
    group = parser.add_argument_group("the same as before")
    group.add_argument(
        "--locked",
        type=Path,
        metavar="RUN",
        help="a run's folder: take what is not given from its record, and refuse to run on "
        "anything else than it did",
    )
    add_accept(group)
    parser.set_defaults(**dict.fromkeys(_DEFAULTS))


def add_accept(group: argparse._ActionsContainer) -> None:
    """``--accept``."""
    group.add_argument(
        "--accept",
        action="append",
        metavar="NAME",
        help="what may differ from it, by its name or the beginning of it: host, tools.host.git",
    )


def show(args: argparse.Namespace, error: DriftError) -> None:
    """The differences as JSON, if that was asked for."""
    if args.json:
        found = [asdict(difference) for difference in error.differences]
        print_json({"locked": str(args.locked), "differences": found})


def _take_over(args: argparse.Namespace, manifest: Mapping[str, Any]) -> None:
    """Fill the options that were not given."""
    args.env = args.env or args.env_option
    given = {name for name, value in vars(args).items() if value is not None}
    given |= {name for group in _TOGETHER if given & {*group} for name in group}
    if given & {"agent", "preset"}:  # what was said to the other agent means nothing to this one
        given |= _agent_options()
    sessions = manifest.get("sessions") or [{}]
    for name, value in sessions[-1].get("options", {}).items():
        if name in given:
            continue
        if isinstance(value, str) and "***@" in value:
            raise UsageError(f"the record has no password: give --{name.replace('_', '-')} again")
        setattr(args, name, Path(value) if name in _PATHS else value)


def _agent_options() -> set[str]:
    parser = argparse.ArgumentParser()
    _agents.add_options(parser)
    return {*vars(parser.parse_args([]))}


def _recorded(args: argparse.Namespace) -> dict[str, Any]:
    """The options as plain data that mean the same in any folder, without passwords."""
    options = {**vars(args), "env": args.env or args.env_option}
    return {
        name: _PORTABLE.get(name, _plain)(value)
        for name, value in sorted(options.items())
        if name not in _OF_THE_CALL and value is not None
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value.absolute())
    return _PASSWORD.sub(_HIDDEN, value) if isinstance(value, str) else value


def _place(value: str) -> str:
    """A path that there is, made absolute; a name or a URL stays."""
    path = Path(value).expanduser()
    looks_like_a_path = "/" in value or bool(path.suffix)
    return str(path.absolute()) if looks_like_a_path and path.exists() else str(_plain(value))


def _code(value: str) -> str:
    """``file.py:name`` with the file's absolute path."""
    file, colon, name = value.rpartition(":")
    return f"{_place(file)}{colon}{name}" if file.endswith(".py") else value


def _image(value: str) -> str:
    try:
        return str(parse(value))
    except ImageError:  # a name of another provider's
        return value


_PORTABLE: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("data", "databases", "env", "repositories"), _place),
    **dict.fromkeys(("agent", "reward"), _code),
    "image": _image,
}
