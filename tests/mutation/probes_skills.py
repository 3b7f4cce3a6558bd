"""Probes of what a skill may bring along."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from intercode.agents import skills
from intercode.errors import UsageError

from .tools import one_of


def _written(folder: str, name: str, body: str = "body") -> Path:
    home = Path(folder) / name
    home.mkdir()
    (home.parent / "secret").write_text("secret")
    (home / "SKILL.md").write_text(f"---\nname: {name}\ndescription: x\n---\n{body}\n")
    return home


def _refused(
    body: str = "body", name: str = "greet", prepare: Callable[[Path], object] = lambda home: None
) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        home = _written(folder, name, body)
        prepare(home)
        try:
            skills.read(home)
        except UsageError:
            return one_of("refused", holds="refused", gone="taken")
        return one_of("taken", holds="refused", gone="taken")


def skill_link() -> bool:
    return _refused(body="[a](../secret)")


def skill_symlink() -> bool:
    return _refused(prepare=lambda home: (home / "notes.md").symlink_to("../secret"))


def skill_fifo() -> bool:
    return _refused(prepare=lambda home: os.mkfifo(home / "pipe"))


def skill_size() -> bool:
    skills.SIZE = 10
    return _refused()


def skill_files() -> bool:
    skills.FILES = 0
    return _refused()


def skill_text() -> bool:
    return _refused(body="x" * skills.TEXT)


def skill_name() -> bool:
    return _refused(name="greet me")


def skill_read_only() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        layer = skills.read(_written(folder, "greet")).layer()
    with tarfile.open(layer) as tar:
        modes = {member.mode & 0o222 for member in tar if member.isfile()}
    return one_of(str(bool(modes - {0})), holds="False", gone="True")
