"""Collects what is recorded, from the package as it is: subject → what is to be in its file."""

from __future__ import annotations

import argparse
import importlib
import inspect
import io
import json
import os
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium

from intercode import registry
from intercode.agents.registry import AGENTS
from intercode.cli.main import COMMANDS, main
from intercode.cli.parser import CommandParser
from intercode.databases import ENGINES
from intercode.envs.base import INTERPRETERS
from intercode.envs.options import list_constructor_options
from intercode.evaluate.agent_setup import PROVIDERS as AGENT_PROVIDERS
from intercode.models.remote import MODELS
from intercode_paper import presets
from intercode_sandbox import Limits
from intercode_sandbox.images.debian import RECIPES
from intercode_sandbox.images.resolve import SCHEMES
from intercode_sandbox.lazy_imports import PROJECT_MODULES
from intercode_sandbox.providers import PROVIDERS

from .commands import ENDINGS, NOT_READ, TYPED, WITH_JSON, lay_out
from .shape import ABSENT, Shape, shape

ROOT = Path(__file__).parents[2]
REGISTRIES = {
    "agents": AGENTS,
    "agent providers": AGENT_PROVIDERS,
    "commands": COMMANDS,
    "datasets": registry.DATASETS,
    "engines": ENGINES,
    "environments": registry.ENVS,
    "executors": registry.EXECUTORS,
    "image schemes": SCHEMES,
    "interpreters": INTERPRETERS,
    "models": MODELS,
    "rewards": registry.REWARDS,
    "sandboxes": PROVIDERS,
    "vectors": registry.VECTORS,
}
RUNS = {
    **{
        env: [f"sweep/{env}-{agent}" for agent in ("oracle", "random")]
        for env in ("bash", "sql", "python", "ctf", "swe")
    },
    "model": ["model"],
    "resumed": ["run"],
    "rescored": ["rescored"],
}
"""Kind of run → the folders of such runs that the commands leave."""
DATA_IN_RUN = (
    ".agent.options",
    ".env.images",
    ".env.rules",
    ".excluded",
    ".sessions[].differs",
    ".sessions[].tools",
    ".sessions[].tools.*",
)
"""The objects in run.json whose keys are data."""
DATA_IN_EPISODE = (".score.detail.failed",)
"""The same in a line of episodes.jsonl."""
DATA_IN_OUTPUT = (
    *(".by_hardness", ".by_task", ".comparisons", ".differences", ".env", ".excluded"),
    *(".left_out", ".sandboxes", ".turns", ".ways"),
    *(f"{run}.{groups}" for run in ("", ".runs[]") for groups in ("levels", "places", "tags")),
)
"""The objects in what commands print whose keys are data."""
STATISTICS = (".before", ".levels.*", ".places.*", ".statistics", ".tags.*")
"""Ends of the paths of statistics, which are recorded once for all."""
MANIFEST = ".manifest"
"""End of the path of what is in `run.json`, which is recorded as such."""
OF_THE_MACHINE = {
    ".checks[].ok": "boolean | null",
    ".removed[]": "absent | string",
    ".sessions[].versions.commit": "absent | string",
    ".usage[].memory": "integer | null",
}
"""Types that are not the same everywhere: a checkout has a commit, not all have control groups."""
Files = dict[str, dict[str, Any]]


def collect(folder: Path) -> Files:
    """Everything; `folder` is where commands are run."""
    found = {"names": names(), "options": options()}
    lay_out(folder)
    with _within(folder):
        codes, outputs = run_commands()
        manifests, episodes = shapes_of_runs(folder)
        session = json.loads((folder / "plain" / "run.json").read_text())["sessions"][0]
    found["options"]["intercode run bash --limit 1, as recorded"] = session["options"]
    return {
        **found,
        "exit-codes": codes,
        "json-output": outputs,
        "run.json": manifests,
        "episodes.jsonl": episodes,
    }


def names() -> dict[str, Any]:
    """What can be imported, registered and asked for by name."""
    groups: list[str] = []
    installed = metadata.entry_points

    def entry_points(*, group: str) -> list[EntryPoint]:
        """Return those of our packages: this machine may have others."""
        groups.append(group)
        points = installed(group=group)
        return [point for point in points if point.module.partition(".")[0] in PROJECT_MODULES]

    with patch("importlib.metadata.entry_points", entry_points):
        registered = {kind: registry.names() for kind, registry in REGISTRIES.items()}
    return {
        **registered,
        "entry points": sorted(groups),
        "gymnasium": sorted(name for name in gymnasium.registry if name.startswith("intercode")),
        "image recipes": sorted(RECIPES),
        "presets": sorted(presets.names()),
        **public_names(),
    }


def public_names() -> dict[str, list[str]]:
    """The ``__all__`` of each module that the Python API's page lists, by module."""
    listed = runpy.run_path(str(ROOT / "scripts/site_api.py"))["modules"]()
    modules = map(importlib.import_module, listed)
    return {m.__name__: sorted(m.__all__) for m in modules if hasattr(m, "__all__")}


def options() -> dict[str, Any]:
    """Each command's options, and the parameters of each environment."""
    found = {}
    for command in ("", *COMMANDS.names(packages=False)):
        found |= _of_parser(_parser(command))
    environments = {}
    for name in registry.ENVS.names(packages=False):
        kind = registry.ENVS.get(name)
        takes = {one.name: one.default for one in list_constructor_options(kind).values()}
        takes["data"] = next(iter(inspect.signature(kind).parameters.values())).default
        environments[f"environment {name}"] = {
            one: f"default {default!r}" for one, default in sorted(takes.items())
        }
    return found | environments | {"limits": Limits().to_dict()}


class _ParsingError(Exception):
    """Carries a command's parser from where it is about to be used."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def _parser(command: str) -> argparse.ArgumentParser:
    """The parser that a command really uses, on a machine with many cores."""
    parse_args = CommandParser.parse_args

    def stop(parser: CommandParser, *arguments: Any) -> Any:
        if parser.prog == f"intercode {command}".strip():
            raise _ParsingError(parser)
        return parse_args(parser, *arguments)

    with (
        patch.object(CommandParser, "parse_args", stop),
        patch("os.sched_getaffinity", lambda pid: set(range(64))),
    ):
        try:
            main([command] if command else [])
        except _ParsingError as found:
            return found.parser
    raise AssertionError(f"intercode {command} has parsed no options")


def _of_parser(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """A parser's options by their names, and those of its sub-commands."""
    found: dict[str, Any] = {parser.prog: {}}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                found |= _of_parser(sub)
        elif not isinstance(action, argparse._HelpAction):
            name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
            found[parser.prog][name] = _option(action)
    return found


def _option(action: argparse.Action) -> str:
    takes = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.metavar
    if action.nargs == 0:
        takes = "flag"
    facts = [
        str(takes or action.dest),
        f"nargs {action.nargs}" if action.nargs else "",
        "repeated" if isinstance(action, argparse._AppendAction) else "",
        # Whether a positional of any number is required differs between versions of Python.
        "required" if action.required and action.nargs != "*" else "",
        "" if action.default in (None, False) else f"default {action.default!r}",
    ]
    return "; ".join(filter(None, facts))


def run_commands() -> tuple[dict[str, int], dict[str, Shape]]:
    """Exit codes by command, and the shapes of what is printed with ``--json``."""
    codes, outputs = {}, {}
    statistics: list[dict[str, Any]] = []

    def part(path: str, value: dict[str, Any]) -> str | None:
        if path.endswith(MANIFEST):
            return "run.json"
        if not path.endswith(STATISTICS):
            return None
        statistics.append(value)
        return "statistics"

    for command in WITH_JSON:
        codes[command], printed = _run(command)
        value = json.loads(printed)
        values = value if isinstance(value, list) else [value]
        outputs[command] = shape(values, data=DATA_IN_OUTPUT, declared=OF_THE_MACHINE, part=part)
    for command in ENDINGS:
        codes[command] = _run(command)[0]
    codes[f"{NOT_READ} | true"] = _unread(NOT_READ)
    return codes, {**outputs, "statistics": shape(statistics)}


def _run(command: str) -> tuple[int, str]:
    """A command's exit code and output."""
    out, told = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(told), patch("sys.stdin", io.StringIO(TYPED)):
        try:
            code = main(shlex.split(command))
        except SystemExit as error:  # argparse's way
            code = int(error.code or 0)
    return code, out.getvalue()


def _unread(command: str) -> int:
    """The exit code of a command whose output has no reader."""
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, "-m", "intercode.cli", *shlex.split(command)]
    with os.fdopen(writing, "wb") as unread:
        return subprocess.run(
            argv, stdout=unread, stderr=subprocess.DEVNULL, check=False
        ).returncode


def shapes_of_runs(folder: Path) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """The shapes of `run.json` and of the lines of `episodes.jsonl`, by kind of run.

    Of runs that are not for Bash, only what is otherwise than for Bash.
    """
    manifests, episodes = {}, {}
    for kind, runs in RUNS.items():
        read = [json.loads((folder / run / "run.json").read_text()) for run in runs]
        manifests[kind] = shape(read, data=DATA_IN_RUN, declared=OF_THE_MACHINE)
        lines = [
            line
            for run in runs
            for line in (folder / run / "episodes.jsonl").read_bytes().splitlines()
        ]
        episodes[kind] = shape(map(json.loads, lines), data=DATA_IN_EPISODE)
    return _against_first(manifests), _against_first(episodes)


def _against_first(shapes: dict[str, Shape]) -> dict[str, Shape]:
    """The first shape; of the others, where they differ from it."""
    first = next(iter(shapes))
    return {
        kind: one
        if kind == first
        else {
            path: one.get(path, ABSENT)
            for path in one.keys() | shapes[first].keys()
            if one.get(path) != shapes[first].get(path)
        }
        for kind, one in shapes.items()
    }


@contextmanager
def _within(folder: Path) -> Iterator[None]:
    """With `folder` as the working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
