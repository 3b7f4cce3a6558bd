"""The bundled CTF puzzles: made from a seed, with flags and surroundings that are new for each.

A family of puzzles is a module; a puzzle is a function that draws what differs (`base.Draw`) and
returns the rest (`base.Puzzle`). The same seed gives the same tasks, byte for byte, on the same
machine; on another one, what its zlib, SQLite and C compiler make may differ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

from intercode.datasets.puzzles import crypto, encodings, forensics, hunts, reversing, services
from intercode.datasets.puzzles.base import Draw, Puzzle
from intercode.errors import TaskError
from intercode.task import Dataset, Task

__all__ = ["PUZZLES", "load"]

log = logging.getLogger(__name__)

PUZZLES: dict[str, Callable[[Draw], Puzzle]] = {
    make.__name__: make
    for make in (
        encodings.layers,
        encodings.tape,
        encodings.alphabet,
        encodings.blanks,
        crypto.letter,
        crypto.passwords,
        crypto.rsa,
        crypto.lottery,
        forensics.holiday,
        forensics.torn,
        forensics.camera,
        forensics.deleted,
        forensics.ledger,
        forensics.pixels,
        hunts.log,
        hunts.history,
        hunts.capture,
        reversing.checker,
        reversing.door,
        services.hosts,
        services.notes,
        services.inbox,
    )
}
"""Task id → what makes the puzzle."""


@lru_cache(maxsize=4)
def load(seed: int = 0) -> Dataset:
    """All puzzles, as tasks of the CTF environment.

    Those that cannot be made here, because there is no C compiler, are left out with a warning.

    Args:
        seed: Another one gives other flags, and other surroundings.
    """
    made = (_task(name, make, seed) for name, make in PUZZLES.items())
    return Dataset([task for task in made if task is not None], "ctf")


def _task(name: str, make: Callable[[Draw], Puzzle], seed: int) -> Task | None:
    try:
        return make(Draw.of(seed, name)).task(name)
    except TaskError as error:
        log.warning("the puzzle %r is left out: %s", name, error)
        return None
