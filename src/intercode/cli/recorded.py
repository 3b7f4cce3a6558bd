"""The spec of a recorded run for a command, which names again, or trusts, what acts in a record."""

from __future__ import annotations

import argparse
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
    effects_of,
    environment_options,
    options_of,
)
from intercode.trust import INERT, effects, listing

_GROUPS = (
    (AgentSpec, "agent recording prompt skill search_test"),
    (ModelSpec, "model base_url cache prices"),
    (EnvSpec, "data protocol judge_model judge_url"),
)
"""Parts of a spec, and their options that can act."""


def add_trust(parser: argparse._ActionsContainer) -> None:
    """Add ``--trust``."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="take code, paths and addresses from the run's record, too: they are printed first "
        "(no key goes to a recorded address)",
    )


def add_named_again(parser: argparse.ArgumentParser, *, less: str = "") -> None:
    """Add the options that name again what a record does not decide by itself, and ``--trust``."""
    group = parser.add_argument_group("what acts in the record, given again, or trusted")
    group.add_argument("--env", metavar="ENV", help="the environment, or its folder")
    for part, names in _GROUPS:
        options = options_of(part)
        add_options(group, {name: options[name] for name in names.split()}, less=less)
    add_environment_options(group, less=" ".join((less, *INERT)))
    add_trust(group)


def recorded_spec(
    folder: Path,
    manifest: Mapping[str, Any],
    options: Options,
    *,
    trust: bool,
    resumes: bool = False,
) -> RunSpec:
    """Make the spec of a recorded run, with options over it; print first what trust permits.

    Raises:
        TrustError: The record acts, and it is neither given again nor trusted.
    """
    record = safe(str(folder / MANIFEST))
    spec = RunSpec.from_record(manifest, options, trust=trust, resumes=resumes, record=record)
    if trust and (found := effects_of(manifest, options, trust=True, resumes=resumes)):
        print(safe(f"--trust: by {record}, this command\n{listing(found)}"), file=sys.stderr)
    return spec


def words_again(spec: RunSpec) -> str:
    """Return the words by which a later command names again what acts in a spec's record."""
    found = effects({**spec.recorded(), **({"on": spec.how.on} if spec.how.on else {})})
    known = {"on", "env", *environment_options()}
    known |= {name for _, names in _GROUPS for name in names.split()}
    if any(effect.option not in known and effect.words[0] != "-o" for effect in found):
        return " --trust"
    return "".join(f" {safe(shlex.join(effect.words))}" for effect in found)
