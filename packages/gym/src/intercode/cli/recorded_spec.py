"""The spec of a recorded run, for commands that repeat the run.

A record may come from a stranger. Code, paths and addresses in the record are used only if the
command line repeats them, or has the option ``--trust``.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intercode.cli.terminal import safe
from intercode.records import MANIFEST
from intercode.spec import (
    AgentSpec,
    EnvSpec,
    ModelSpec,
    Options,
    RunSpec,
    add_environment_options,
    add_options,
    environment_options,
    list_record_effects,
    list_section_options,
)
from intercode.trust import DATA_OPTIONS, effects, listing

_GROUPS = (
    (AgentSpec, "agent recording prompt skill search_test"),
    (ModelSpec, "model base_url cache prices"),
    (EnvSpec, "data protocol judge_model judge_url"),
)
"""Parts of a spec, each with those of its options that name code, paths or addresses."""


JUDGE_OPTIONS = ("judge_model", "judge_url", "judge_votes")
AGENT_OPTIONS = ("recording", "prompt", "search_test", "model", "base_url", "cache", "preset")
"""Options of a recorded agent that are irrelevant if a command does not run the agent again."""


def add_trust(parser: argparse._ActionsContainer) -> None:
    """Add the option ``--trust`` to a parser, or to an argument group of a parser."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="use code, paths and addresses of the run's record, after printing them (API keys "
        "are never sent to a recorded address)",
    )


def add_recorded_options(parser: argparse.ArgumentParser, *, excluded_names: str = "") -> None:
    """Add ``--trust``, and the options with which a user repeats recorded code, paths, addresses.

    Args:
        parser: The command's parser.
        excluded_names: Names of options to omit, separated by spaces.
    """
    group = parser.add_argument_group(
        "recorded code, paths and addresses, to be repeated or trusted"
    )
    group.add_argument("--env", metavar="ENV", help="the environment, or its folder")
    for part, names in _GROUPS:
        options = list_section_options(part)
        add_options(
            group, {name: options[name] for name in names.split()}, excluded_names=excluded_names
        )
    add_environment_options(group, excluded_names=" ".join((excluded_names, *DATA_OPTIONS)))
    add_trust(group)


def recorded_spec(
    folder: Path,
    manifest: Mapping[str, Any],
    options: Options,
    *,
    trust: bool,
    is_resume: bool = False,
) -> RunSpec:
    """Return the spec of a recorded run, in which options of the command override recorded ones.

    If the record is trusted, the code, paths and addresses that come from the record are printed to
    standard error.

    Args:
        folder: The run's folder.
        manifest: The run's ``run.json``.
        options: The options of the command.
        trust: Whether code, paths and addresses may come from the record.
        is_resume: Whether the recorded run itself continues.

    Raises:
        TrustError: The record names code, paths or addresses that are neither repeated nor trusted.
    """
    record, manifest = safe(str(folder / MANIFEST)), _relocate_paths(manifest, folder.absolute())
    spec = RunSpec.from_record(manifest, options, trust=trust, is_resume=is_resume, record=record)
    if trust and (
        trusted_effects := list_record_effects(manifest, options, trust=True, is_resume=is_resume)
    ):
        print(safe(f"--trust: taken from {record}:\n{listing(trusted_effects)}"), file=sys.stderr)
    return spec


_PATH = re.compile(r"(?<![^:+])/[^:+]+")


def _relocate_paths(manifest: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a record in which the last session's options have the current paths of moved files.

    Data files often move together with the run's folder. For a recorded path that does not exist,
    the function searches the parents of the run's folder. There it looks for a file whose path has
    the same last parts. If several files match, the file with most equal parts counts.

    Args:
        manifest: The ``run.json``.
        folder: The absolute path of the run's current folder.
    """

    def relocate_match(match: re.Match[str]) -> str:
        path = Path(match[0])
        if path.exists():
            return match[0]
        path_tails = (Path(*path.parts[start:]) for start in range(1, len(path.parts)))
        locations = (
            location / path_tail for path_tail in path_tails for location in folder.parents[:-1]
        )
        return str(next((location for location in locations if location.exists()), path))

    def relocate_value(value: Any) -> Any:
        if isinstance(value, list):
            return [relocate_value(item) for item in value]
        return _PATH.sub(relocate_match, value) if isinstance(value, str) else value

    *earlier_sessions, last_session = manifest.get("sessions") or [{}]
    options = {
        name: relocate_value(value) for name, value in last_session.get("options", {}).items()
    }
    return {**manifest, "sessions": [*earlier_sessions, {**last_session, "options": options}]}


def repeated_options(spec: RunSpec) -> str:
    """Return the options that a later command needs to repeat a run without ``--trust``.

    The options repeat the code, paths and addresses that the run's record will contain. If any of
    these has no option, the result is ``--trust``. The result begins with a space, unless the
    result is empty.
    """
    record_effects = effects(
        {**spec.recorded(), **({"on": spec.run_options.on} if spec.run_options.on else {})}
    )
    option_names = {"on", "env", *environment_options()}
    option_names |= {name for _, names in _GROUPS for name in names.split()}
    if any(
        effect.option not in option_names and effect.words[0] != "-o" for effect in record_effects
    ):
        return " --trust"
    return "".join(f" {safe(shlex.join(effect.words))}" for effect in record_effects)
