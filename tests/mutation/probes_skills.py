"""Probes of what a skill may bring along."""

from __future__ import annotations

import tempfile
from pathlib import Path

from intercode.agents import skills
from intercode.errors import UsageError

from .tools import one_of


def _refused(body: str = "body", target: str = "") -> bool:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "greet"
        home.mkdir()
        (home.parent / "secret").write_text("secret")
        (home / "SKILL.md").write_text(f"---\nname: greet\ndescription: x\n---\n{body}\n")
        if target:
            (home / "notes.md").symlink_to(target)
        try:
            skills.read(home)
        except UsageError:
            return one_of("refused", holds="refused", gone="taken")
        return one_of("taken", holds="refused", gone="taken")


def skill_link() -> bool:
    return _refused(body="[a](../secret)")


def skill_symlink() -> bool:
    return _refused(target="../secret")
