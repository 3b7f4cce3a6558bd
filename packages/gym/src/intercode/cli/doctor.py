"""Execution of ``intercode doctor``: checks of the machine, and their findings."""

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
from intercode.cli.terminal import indent, print_json, safe
from intercode.errors import SandboxError, UsageError
from intercode.evaluate.manifest import package_versions, read_output, version
from intercode.registry import INTEGRATIONS, PAPER
from intercode_console import find_conflict
from intercode_sandbox.doctor import (
    DOCKER_SANDBOX,
    MachineCheck,
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
    """Run all checks of the machine, and print their findings.

    Returns:
        The exit code: 0 if at least one sandbox provider works, 1 if not.
    """
    if args.apparmor:
        print(apparmor_profile(sys.executable), end="")
        return 0
    groups = {
        "python": run_check("python", _check_python, False),
        "native": check_native(),
        "docker": check_docker(),
        "machine": _check_machine(),
    }
    start_results = {
        "native": _all_pass(groups["native"]),
        "docker": any(finding.ok for finding in groups["docker"] if finding.name == DOCKER_SANDBOX),
    }
    play_checks = {
        name: [check for play_case in _PLAY_CASES for check in _check_environment(*play_case, name)]
        for name, does_start in start_results.items()
        if does_start and _all_pass(groups["python"])
    }
    if play_checks:
        groups["environments"] = [check for checks in play_checks.values() for check in checks]
    backends = {
        name: name in play_checks and _all_pass(play_checks[name]) for name in start_results
    }
    usable = any(backends.values())
    if args.json:
        rows = [
            {"group": name, **asdict(finding)}
            for name, findings in groups.items()
            for finding in findings
        ]
        print_json({"usable": usable, "sandboxes": backends, "checks": rows})
    else:
        _print(groups)
        print(_verdict(start_results, backends))
    return 0 if usable else 1


def _print(groups: Mapping[str, Sequence[MachineCheck]]) -> None:
    width = max(len(finding.name) for checks in groups.values() for finding in checks)
    commands = set()
    for checks in groups.values():
        for finding in checks:
            detail = indent(safe(finding.detail), " " * (width + 8)).lstrip()
            print(f"{_MARKS[finding.ok]}  {finding.name:{width}}  {detail}")
            if finding.fix and not finding.ok and finding.fix not in commands:
                commands.add(finding.fix)
                print(f"{'':{width + 6}}  to fix it: {safe(finding.fix)}")
        print()


def _all_pass(checks: Sequence[MachineCheck]) -> bool:
    return all(check.ok is not False for check in checks)


def _verdict(start_results: Mapping[str, bool], backends: Mapping[str, bool]) -> str:
    if any(backends.values()):
        options_text = " or ".join(
            f"--sandbox {name}" for name, is_available in backends.items() if is_available
        )
        return f"Sandboxes can be used: {options_text}."
    if any(start_results.values()):
        return "Sandboxes start, but tasks fail: see FAIL above."
    return "Sandboxes cannot be used on this machine yet."


def _check_python() -> list[MachineCheck]:
    is_supported = sys.version_info >= (3, 11)
    return [
        _check_intercode(),
        *(_check_package(name, content) for name, content in _PACKAGES.items()),
        MachineCheck(
            "python",
            is_supported,
            platform.python_version(),
            "" if is_supported else "install Python 3.11",
        ),
        MachineCheck("gymnasium", True, version("gymnasium")),
    ]


_PACKAGES = {
    "intercode-sandbox": "sandboxes",
    INTEGRATIONS: "adapters, servers, gateway, external agents",
    PAPER: "protocol of 2023",
}
"""Name of a package of the project → description of its content."""


def _check_package(name: str, content: str) -> MachineCheck:
    if find_spec(name.replace("-", "_")) is None:
        return MachineCheck(name, None, f"not installed: no {content}", f"pip install {name}")
    return MachineCheck(name, True, f"{version(name)}: {content}")


def _check_intercode() -> MachineCheck:
    commit = package_versions().get("commit", "")
    detail = f"{__version__}{commit and f', commit {commit[:12]}'}"
    if conflict := find_conflict():
        return MachineCheck(
            "intercode", False, f"{detail}; {conflict.meaning}", " && ".join(conflict.commands)
        )
    return MachineCheck("intercode", True, detail)


_PLAY_CASES: tuple[tuple[str, str, str, Sequence[str]], ...] = (
    ("bash", "echo works", "works", ["bash"]),
    ("sql", "SELECT 'works'", "works", []),
    ("python", "print('works')", "works", []),
    ("ctf", "echo works", "works", ["bash"]),
    ("swe", "git log --oneline", " ", ["bash", "git"]),
)
"""The environments to check. Each entry has the environment's name, an action, a text that its
observation must contain, and the programs of the host that the image needs."""


def _check_environment(
    name: str, action: str, expected_text: str, programs: Sequence[str], sandbox: str = "native"
) -> list[MachineCheck]:
    """Check an environment: an action and the gold of a bundled task run in a sandbox.

    Args:
        name: The environment's name.
        action: An action that runs first.
        expected_text: A text that the action's observation must contain.
        programs: The programs of the host that the image needs. If a program is missing, the
            environment is not tested.
        sandbox: The sandbox provider.
    """
    label = f"env {name}" if sandbox == "native" else f"env {name} on {sandbox}"
    missing_programs = [program for program in programs if not shutil.which(program)]
    if missing_programs:
        detail = f"not tested without {' and '.join(missing_programs)}"
        return [MachineCheck(label, None, detail, install_command(" ".join(missing_programs)))]
    return run_check(label, lambda: _play_task(label, name, action, expected_text, sandbox), False)


def _play_task(
    label: str, name: str, action: str, expected_text: str, sandbox: str
) -> MachineCheck:
    with closing(cast("InterCodeEnv[Any]", make(name, sandbox=sandbox))) as env:
        env.reset(seed=0)
        task = env.dataset[env.episode.task_id]
        observation = env.step(action)[0]
        if expected_text not in observation:
            error = SandboxError(f"{action!r} was answered by {observation!r}")
            return failed_check(label, False, error)
        for step in env.solution(task):
            observation, reward, terminated, truncated, _ = env.step(step)
            if terminated or truncated:
                break
        episode = env.episode
    if reward != 1.0:
        detail = f"the solution of task {task.task_id!r} scored {reward:g}, not 1: "
        score = episode.score.detail if episode.score is not None else {}
        return failed_check(label, False, SandboxError(f"{detail}{score or observation!r}"))
    return MachineCheck(label, True, "a task was played to its reward")


# Programs, packages, database servers, disk space


_RUNS_BYTES = 1 << 30
_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True, slots=True)
class _RequiredProgram:
    name: str
    purpose: str
    consequence: str
    root_only: bool = False


_PROGRAMS = (
    _RequiredProgram(
        "bash", "tasks in the image 'host'", "no Bash, CTF or SWE tasks in the image 'host'"
    ),
    _RequiredProgram("git", "repositories of SWE tasks, images of them", "no SWE tasks"),
    _RequiredProgram("gcc", "a bundled puzzle in C", "the bundled CTF puzzle 'door' is excluded"),
    _RequiredProgram(
        "debootstrap", "images debian:SUITE", "no images debian:SUITE", root_only=True
    ),
    _RequiredProgram(
        "skopeo", "images docker://NAME, pulled without Docker", "no images docker://NAME"
    ),
)
_EXTRAS = (
    # Each entry has a Python module, its distribution, the extra of intercode-gym, and the purpose.
    ("yaml", "pyyaml", "yaml", "tasks in YAML"),
    ("duckdb", "duckdb", "duckdb", "--engine duckdb"),
)


def _check_machine() -> list[MachineCheck]:
    """Check optional programs, packages and database servers, and the disk space.

    A missing program, package or server is a note, not a failure.
    """
    return [
        *(
            finding
            for requirement in _PROGRAMS
            for finding in run_check(requirement.name, partial(_check_program, requirement), None)
        ),
        *(
            finding
            for requirement in _EXTRAS
            for finding in run_check(requirement[2], partial(_check_extra, *requirement), None)
        ),
        MachineCheck("sqlite", True, f"{sqlite3.sqlite_version}: --engine sqlite, the default"),
        *run_check("mysql", partial(_check_server, "mysql", "pymysql", "mariadb-server"), None),
        *run_check(
            "postgresql", partial(_check_server, "postgresql", "psycopg", "postgresql"), None
        ),
        *run_check("runs", _check_disk_space, None),
    ]


def _check_program(program: _RequiredProgram) -> MachineCheck:
    if program.root_only and os.geteuid():
        return MachineCheck(program.name, None, f"{program.consequence}: only root can build them")
    # After a plain `su`, root's PATH lacks the sbin folders. Programs that only root can use are
    # therefore searched in SEARCH_PATH.
    path = shutil.which(program.name, path=SEARCH_PATH if program.root_only else None)
    if path is None:
        detail = f"not installed: {program.consequence}"
        return MachineCheck(program.name, None, detail, install_command(program.name))
    version_text = _read_version(path)
    return MachineCheck(program.name, True, f"{version_text or path}: for {program.purpose}")


def _read_version(path: str | Path) -> str:
    """Return the version that a program prints with ``--version``; empty if it prints none."""
    match = _VERSION.search(read_output([path, "--version"]))
    return match[0] if match else ""


def _check_extra(module: str, distribution: str, extra: str, purpose: str) -> MachineCheck:
    if find_spec(module) is None:
        command = f"pip install 'intercode-gym[{extra}]'"
        return MachineCheck(f"extra {extra}", None, f"not installed: no {purpose}", command)
    return MachineCheck(
        f"extra {extra}", True, f"{distribution} {version(distribution)}: {purpose}"
    )


def _check_server(engine: str, driver: str, package: str) -> MachineCheck:
    """Check whether a database server and its Python driver are installed; start no server."""
    url_hint = f"--engine {engine} needs the URL of a server"
    if find_spec(driver) is None:
        command = f"pip install 'intercode-gym[{engine}]'"
        return MachineCheck(engine, None, f"no driver: no --engine {engine}", command)
    from intercode.databases.servers.private_server import RECIPES

    try:
        recipe = RECIPES[engine]()
    except UsageError:
        return MachineCheck(
            engine, None, f"no server is installed: {url_hint}", install_command(package)
        )
    version_text = _read_version(recipe.binary)
    detail = f"{recipe.product} {version_text}, driver {version(driver)}: --engine {engine}"
    return MachineCheck(engine, True, f"{detail} starts servers of its own")


def _check_disk_space() -> MachineCheck:
    folder = Path.cwd()
    runs_path = f"{folder / 'runs'}"
    if not os.access(folder, os.W_OK):
        return MachineCheck("runs", None, f"{runs_path} cannot be written", "cd /a/folder/of/yours")
    free_bytes = shutil.disk_usage(folder).free
    detail = f"{runs_path}: {free_bytes / 2**30:.1f} GiB free"
    if free_bytes >= _RUNS_BYTES:
        return MachineCheck("runs", True, detail)
    command = f"df -h {folder}  # and free some space, or name another folder by --out"
    return MachineCheck("runs", None, f"{detail}: a long run keeps every observation", command)
