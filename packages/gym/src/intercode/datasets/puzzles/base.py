"""Parts of puzzles: a seeded draw of names and flags, and the conversion of puzzles to tasks."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from intercode.task import Task

_WORDS = """
amber anchor apron badger barrel basil beacon birch bishop blanket bramble brass bridge bucket
butter cabin canal candle canvas carbon castle cedar cellar chalk cherry cinder clover cobalt comet
copper coral cradle crystal dagger daisy delta ember falcon fennel ferry fiddle flint forest
fountain gable garnet ginger glacier granite hammer harbour hazel helmet heron hollow indigo island
ivory jasmine jigsaw juniper kernel kestrel kettle ladder lagoon lantern lemon lichen lobster maple
marble meadow mirror mustard needle nickel nutmeg oyster paddle parcel pebble pepper pewter pigeon
pillow plover pocket quartz quiver raven ribbon saddle saffron sandal sparrow spindle tunnel velvet
"""
_PEOPLE = """
ada bela carl dora emil fay gus hana ivan jude kira leon mona nils olga pia rosa sven
"""


class SeededRandom(random.Random):
    """A source of everything that depends on the seed."""

    flags: SeededRandom
    """The source of flags: a separate one with a secret, otherwise this one."""

    @classmethod
    def from_seed(cls, seed: int, name: str, secret: str = "") -> SeededRandom:
        """Return the source of a puzzle, with the same draws in every version of Python.

        Args:
            seed: The seed of all puzzles.
            name: The puzzle's name, which keeps puzzles independent of each other's draws.
            secret: A secret on which only the flags depend; empty: flags depend on the seed alone.
        """
        draw = cls(f"{seed}/{name}")
        draw.flags = cls(f"{secret}/{seed}/{name}") if secret else draw
        return draw

    def flag(self) -> str:
        """Draw a new flag, such as ``intercode{amber_heron_1f09ac}``."""
        default_flag = self._flag()  # always drawn: later draws must not depend on the secret
        return default_flag if self.flags is self else self.flags._flag()

    def _flag(self) -> str:
        return f"intercode{{{self.word()}_{self.word()}_{self.getrandbits(24):06x}}}"

    def word(self) -> str:
        """Draw a plain word."""
        return self.choice(_WORDS.split())

    def words(self, count: int) -> list[str]:
        """Draw different words."""
        return self.sample(_WORDS.split(), count)

    def people(self, count: int) -> list[str]:
        """Draw different first names, in lower case."""
        return self.sample(_PEOPLE.split(), count)

    def sentence(self) -> str:
        """Draw five to nine words in the form of a sentence."""
        return " ".join(self.words(self.randint(5, 9))).capitalize() + "."

    def address(self) -> str:
        """Draw an IPv4 address from the range that is reserved for tests (RFC 2544)."""
        return f"198.{self.choice((18, 19))}.{self.randrange(256)}.{self.randrange(1, 255)}"


@dataclass(frozen=True)
class Puzzle:
    """The specific part of a CTF task; the rest of the task is the same for all puzzles."""

    query: str
    flag: str
    solution: tuple[str, ...]
    """Commands; the last one prints the flag."""
    level: str
    """``easy``, ``medium`` or ``hard``."""
    category: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    accepted_flags: tuple[str, ...] = ()
    """Other accepted forms of the flag."""
    wrong_flags: tuple[str, ...] = ()
    """Texts that an agent could mistake for the flag."""
    requires: tuple[str, ...] = ("python3",)
    """Debian packages that the solution needs in addition to Bash and coreutils."""
    flag_files: tuple[str, ...] = ()
    """Files that contain the whole flag as plain text, in base64, in hexadecimal or reversed."""
    setup: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further `metadata` of the task: subtasks, a service."""

    def task(self, name: str) -> Task:
        """Return the puzzle as a task, with binary files in base64 as ``metadata.binary_files``."""
        text = {path: content for path, content in self.files.items() if isinstance(content, str)}
        binary = {
            path: base64.b64encode(content).decode()
            for path, content in self.files.items()
            if isinstance(content, bytes)
        }
        metadata: dict[str, Any] = {
            "solution": list(self.solution),
            "wrong": list(self.wrong_flags),
            "requires": list(self.requires),
            "flag_in": list(self.flag_files),
            **({"binary_files": binary} if binary else {}),
            **self.facts,
        }
        return Task(
            name,
            self.query,
            (self.flag, *self.accepted_flags),
            setup=self.setup,
            files=text,
            tags=(self.level, self.category),
            metadata=metadata,
        )


def python(program: str) -> str:
    """Return a command that runs a Python program."""
    return f"python3 - <<'END'\n{program.strip()}\nEND"
