"""Checks of what is optional on a machine: programs, packages, database servers, room."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from intercode.errors import UsageError
from intercode.evaluate.manifest import version
from intercode.sandbox.doctor import Check

_SECONDS = 10.0
_RUNS_BYTES = 1 << 30
_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True, slots=True)
class _Program:
    name: str
    needed_for: str
    lacking: str
    package: str = ""
    """If it is called otherwise."""
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
    ("dockerfile", "dockerfile", "images", "Dockerfiles on the native sandbox"),
)


def check() -> list[Check]:
    """All of them; what is not there is a note, as everything else works without it."""
    return [
        *(_program(program) for program in _PROGRAMS),
        *(_extra(*extra) for extra in _EXTRAS),
        Check("sqlite", True, f"{sqlite3.sqlite_version}: --engine sqlite, the default"),
        _server("mysql", "pymysql", "mariadb-server"),
        _server("postgresql", "psycopg", "postgresql"),
        _room_for_runs(),
    ]


def installing(package: str) -> str:
    """The command that installs a system package, as Debian calls it."""
    command = "apt-get install" if shutil.which("apt-get") else "install the system's package of"
    return f"{'sudo ' if os.geteuid() and shutil.which('sudo') else ''}{command} {package}"


def _program(program: _Program) -> Check:
    path = shutil.which(program.name)
    if path is None:
        detail = f"not installed: {program.lacking}"
        return Check(program.name, None, detail, installing(program.package or program.name))
    if program.root_only and os.geteuid():
        return Check(program.name, None, f"{program.lacking}: only root can build them")
    said = _says_version(path)
    return Check(program.name, True, f"{said or path}: for {program.needed_for}")


def _says_version(path: str | Path) -> str:
    """A program's version, as it says itself."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _VERSION.search(done.stdout) if done.returncode == 0 else None
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
        return Check(engine, None, f"no server is installed: {without}", installing(package))
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
