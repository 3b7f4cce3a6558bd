"""Parts that all puzzles share: random names and flags, and the conversion to tasks."""

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
    """A source of random values for a puzzle, which depend on a seed."""

    flags: SeededRandom
    """The source of the flag's random values. With a secret, it is a separate source; without a
    secret, it is this source itself."""

    @classmethod
    def from_seed(cls, seed: int, name: str, secret: str = "") -> SeededRandom:
        """Return a puzzle's source of random values.

        The seed is a text, so the values do not depend on the hash seed of the process. Python
        guarantees equal values in all versions only for the method ``random``.

        Args:
            seed: The seed of all puzzles.
            name: The puzzle's name. Since the source depends on the name, a change of one puzzle
                does not change the values of other puzzles.
            secret: A secret on which only the flags depend; empty: flags depend only on the seed.
        """
        draw = cls(f"{seed}/{name}")
        draw.flags = cls(f"{secret}/{seed}/{name}") if secret else draw
        return draw

    def flag(self) -> str:
        """Draw a new flag, such as ``intercode{amber_heron_1f09ac}``."""
        # This flag is drawn even if a secret gives another one: later values must be the same with
        # and without a secret.
        default_flag = self._flag()
        return default_flag if self.flags is self else self.flags._flag()

    def _flag(self) -> str:
        return f"intercode{{{self.word()}_{self.word()}_{self.getrandbits(24):06x}}}"

    def word(self) -> str:
        """Draw a word from a list of English words."""
        return self.choice(_WORDS.split())

    def words(self, count: int) -> list[str]:
        """Draw `count` different words from a list of English words."""
        return self.sample(_WORDS.split(), count)

    def people(self, count: int) -> list[str]:
        """Draw `count` different first names in lower case."""
        return self.sample(_PEOPLE.split(), count)

    def sentence(self) -> str:
        """Draw five to nine words in the form of a sentence."""
        return " ".join(self.words(self.randint(5, 9))).capitalize() + "."

    def address(self) -> str:
        """Draw an IPv4 address from the range that is reserved for tests (RFC 2544)."""
        return f"198.{self.choice((18, 19))}.{self.randrange(256)}.{self.randrange(1, 255)}"


@dataclass(frozen=True)
class CtfPuzzle:
    """The part of a CTF task that is specific to a puzzle. `task` adds the rest."""

    query: str
    flag: str
    solution: tuple[str, ...]
    """The commands that solve the puzzle. The last command prints the flag."""
    level: str
    """The difficulty: ``easy``, ``medium`` or ``hard``."""
    category: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    accepted_flags: tuple[str, ...] = ()
    """Other accepted forms of the flag."""
    wrong_flags: tuple[str, ...] = ()
    """Texts that an agent could mistake for the flag, and that are not accepted."""
    requires: tuple[str, ...] = ("python3",)
    """Debian packages that the solution needs in addition to Bash and coreutils."""
    flag_files: tuple[str, ...] = ()
    """Names of files that contain the whole flag as plain text, in base64, in hexadecimal, or
    reversed."""
    setup: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of the task's `metadata`, such as subtasks or a service."""

    def task(self, name: str) -> Task:
        """Return the puzzle as a task with the id `name`.

        The task has binary files in base64 under ``metadata.binary_files``.
        """
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
    """Return a shell command that runs the text of a Python program."""
    return f"python3 - <<'END'\n{program.strip()}\nEND"
