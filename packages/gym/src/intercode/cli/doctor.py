"""Check the machine, and print the findings."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from intercode import __version__, make
from intercode.cli.terminal import indented, print_json, safe
from intercode.errors import SandboxError, UsageError
from intercode.evaluate.manifest import package_versions, read_output, version
from intercode.registry import INTEGRATIONS, PAPER
from intercode_console import clash
from intercode_sandbox.doctor import (
    DOCKER_SANDBOX,
    Check,
    check_docker,
    check_native,
    failed_check,
    run_check,
)
from intercode_sandbox.images.base import SEARCH_PATH
from intercode_sandbox.native.preflight import apparmor_profile
from intercode_sandbox.privileges import install_command

if TYPE_CHECKING:
    from intercode.envs.base import InterCodeEnv

_MARKS = {True: "ok  ", None: "note", False: "FAIL"}


def execute(args: argparse.Namespace) -> int:
    """Run all checks and print them."""
    if args.apparmor:
        print(apparmor_profile(sys.executable), end="")
        return 0
    groups = {
        "python": run_check("python", _python, False),
        "native": check_native(),
        "docker": check_docker(),
        "machine": _machine(),
    }
    starts = {
        "native": _all_pass(groups["native"]),
        "docker": any(found.ok for found in groups["docker"] if found.name == DOCKER_SANDBOX),
    }
    plays = {
        name: [check for play in _PLAYS for check in _environment(*play, name)]
        for name, does_start in starts.items()
        if does_start and _all_pass(groups["python"])
    }
    if plays:
        groups["environments"] = [check for checks in plays.values() for check in checks]
    backends = {name: name in plays and _all_pass(plays[name]) for name in starts}
    usable = any(backends.values())
    if args.json:
        rows = [{"group": name, **asdict(found)} for name, of in groups.items() for found in of]
        print_json({"usable": usable, "sandboxes": backends, "checks": rows})
    else:
        _print(groups)
        print(_verdict(starts, backends))
    return 0 if usable else 1


def _print(groups: Mapping[str, Sequence[Check]]) -> None:
    width = max(len(found.name) for checks in groups.values() for found in checks)
    fixes = set()
    for checks in groups.values():
        for found in checks:
            detail = indented(safe(found.detail), " " * (width + 8)).lstrip()
            print(f"{_MARKS[found.ok]}  {found.name:{width}}  {detail}")
            if found.fix and not found.ok and found.fix not in fixes:
                fixes.add(found.fix)
                print(f"{'':{width + 6}}  to fix it: {safe(found.fix)}")
        print()


def _all_pass(checks: Sequence[Check]) -> bool:
    return all(check.ok is not False for check in checks)


def _verdict(starts: Mapping[str, bool], backends: Mapping[str, bool]) -> str:
    if any(backends.values()):
        how = " or ".join(f"--sandbox {name}" for name, works in backends.items() if works)
        return f"Sandboxes can be used: {how}."
    if any(starts.values()):
        return "Sandboxes start, but not all that needs them works: see FAIL above."
    return "Sandboxes cannot be used on this machine yet."


def _python() -> list[Check]:
    good = sys.version_info >= (3, 11)
    return [
        _intercode(),
        *(_package(name, content) for name, content in _PACKAGES.items()),
        Check("python", good, platform.python_version(), "" if good else "install Python 3.11"),
        Check("gymnasium", True, version("gymnasium")),
    ]


_PACKAGES = {
    "intercode-sandbox": "sandboxes",
    INTEGRATIONS: "adapters, servers, gateway, agents of others",
    PAPER: "protocol of 2023",
}
"""The packages beside this one → their content."""


def _package(name: str, content: str) -> Check:
    if find_spec(name.replace("-", "_")) is None:
        return Check(name, None, f"not installed: no {content}", f"pip install {name}")
    return Check(name, True, f"{version(name)}: {content}")


def _intercode() -> Check:
    commit = package_versions().get("commit", "")
    detail = f"{__version__}{commit and f', commit {commit[:12]}'}"
    if found := clash():
        return Check("intercode", False, f"{detail}; {found.meaning}", " && ".join(found.commands))
    return Check("intercode", True, detail)


_PLAYS: tuple[tuple[str, str, str, Sequence[str]], ...] = (
    ("bash", "echo works", "works", ["bash"]),
    ("sql", "SELECT 'works'", "works", []),
    ("python", "print('works')", "works", []),
    ("ctf", "echo works", "works", ["bash"]),
    ("swe", "git log --oneline", " ", ["bash", "git"]),
)
"""An environment, an action in one of its tasks, a part of the observation, and the programs that
the image has from this machine."""


def _environment(
    name: str, action: str, expected: str, programs: Sequence[str], sandbox: str = "native"
) -> list[Check]:
    """Play a bundled task of an environment to its reward, on a back end."""
    label = f"env {name}" if sandbox == "native" else f"env {name} on {sandbox}"
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        detail = f"not tried without {' and '.join(missing)}"
        return [Check(label, None, detail, install_command(" ".join(missing)))]
    return run_check(label, lambda: _play(label, name, action, expected, sandbox), False)


def _play(label: str, name: str, action: str, expected: str, sandbox: str) -> Check:
    with closing(cast("InterCodeEnv[Any]", make(name, sandbox=sandbox))) as env:
        env.reset(seed=0)
        task = env.dataset[env.episode.task_id]
        observation = env.step(action)[0]
        if expected not in observation:
            error = SandboxError(f"{action!r} was answered by {observation!r}")
            return failed_check(label, False, error)
        for step in env.solution(task):
            observation, reward, ended, truncated, _ = env.step(step)
            if ended or truncated:
                break
        episode = env.episode
    if reward != 1.0:
        detail = f"the solution of task {task.task_id!r} scored {reward:g}, not 1: "
        score = episode.score.detail if episode.score is not None else {}
        return failed_check(label, False, SandboxError(f"{detail}{score or observation!r}"))
    return Check(label, True, "a task was played to its reward")


# Programs, packages, database servers, room


_RUNS_BYTES = 1 << 30
_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True, slots=True)
class _Program:
    name: str
    needed_for: str
    lacking: str
    root_only: bool = False


_PROGRAMS = (
    _Program("bash", "tasks in the image 'host'", "no Bash, CTF or SWE tasks in the image 'host'"),
    _Program("git", "repositories of SWE tasks, images of them", "no SWE tasks"),
    _Program("gcc", "a bundled puzzle in C", "the bundled CTF puzzle 'door' is left out"),
    _Program("debootstrap", "images debian:SUITE", "no images debian:SUITE", root_only=True),
    _Program("skopeo", "images docker://NAME, pulled without Docker", "no images docker://NAME"),
)
_EXTRAS = (
    # What is imported, what is installed, the extra, what it is for.
    ("yaml", "pyyaml", "yaml", "tasks in YAML"),
    ("duckdb", "duckdb", "duckdb", "--engine duckdb"),
)


def _machine() -> list[Check]:
    """Check what is optional: without it everything else works, so that it is a note."""
    return [
        *(each for one in _PROGRAMS for each in run_check(one.name, partial(_program, one), None)),
        *(each for one in _EXTRAS for each in run_check(one[2], partial(_extra, *one), None)),
        Check("sqlite", True, f"{sqlite3.sqlite_version}: --engine sqlite, the default"),
        *run_check("mysql", partial(_server, "mysql", "pymysql", "mariadb-server"), None),
        *run_check("postgresql", partial(_server, "postgresql", "psycopg", "postgresql"), None),
        *run_check("runs", _room_for_runs, None),
    ]


def _program(program: _Program) -> Check:
    if program.root_only and os.geteuid():
        return Check(program.name, None, f"{program.lacking}: only root can build them")
    # Root after a plain `su` has no sbin on its path: what only root runs is looked up where it is.
    path = shutil.which(program.name, path=SEARCH_PATH if program.root_only else None)
    if path is None:
        detail = f"not installed: {program.lacking}"
        return Check(program.name, None, detail, install_command(program.name))
    said = _says_version(path)
    return Check(program.name, True, f"{said or path}: for {program.needed_for}")


def _says_version(path: str | Path) -> str:
    """A program's version, as it says itself."""
    match = _VERSION.search(read_output([path, "--version"]))
    return match[0] if match else ""


def _extra(module: str, distribution: str, extra: str, needed_for: str) -> Check:
    if find_spec(module) is None:
        fix = f"pip install 'intercode-gym[{extra}]'"
        return Check(f"extra {extra}", None, f"not installed: no {needed_for}", fix)
    return Check(f"extra {extra}", True, f"{distribution} {version(distribution)}: {needed_for}")


def _server(engine: str, driver: str, package: str) -> Check:
    """Whether servers of our own can be started, and any can be talked to."""
    without = f"--engine {engine} needs the URL of a server"
    if find_spec(driver) is None:
        fix = f"pip install 'intercode-gym[{engine}]'"
        return Check(engine, None, f"no driver: no --engine {engine}", fix)
    from intercode.databases.servers.private import RECIPES

    try:
        found = RECIPES[engine]()
    except UsageError:
        return Check(engine, None, f"no server is installed: {without}", install_command(package))
    said = _says_version(found.binary)
    detail = f"{found.product} {said}, driver {version(driver)}: --engine {engine}"
    return Check(engine, True, f"{detail} starts servers of its own")


def _room_for_runs() -> Check:
    folder = Path.cwd()
    where = f"{folder / 'runs'}"
    if not os.access(folder, os.W_OK):
        return Check("runs", None, f"{where} cannot be written", "cd /a/folder/of/yours")
    free = shutil.disk_usage(folder).free
    detail = f"{where}: {free / 2**30:.1f} GiB free"
    if free >= _RUNS_BYTES:
        return Check("runs", True, detail)
    fix = f"df -h {folder}  # and make room, or name another folder by --out"
    return Check("runs", None, f"{detail}: a long run keeps every observation", fix)
