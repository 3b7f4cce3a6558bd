"""The bundled CTF puzzles: made from a seed, and a secret that only a run knows.

A family of puzzles is a module; a puzzle is a function that draws what differs (`base.Draw`) and
returns the rest (`base.Puzzle`). The same two give the same tasks, byte for byte, on the same
machine; on another one, what its zlib, SQLite and C compiler make may differ.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import lru_cache

from intercode.datasets.puzzles import crypto, encodings, forensics, reversing, searches, services
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
        searches.log,
        searches.history,
        searches.capture,
        reversing.checker,
        reversing.door,
        services.hosts,
        services.notes,
        services.inbox,
    )
}
"""Task id → the function that makes the puzzle."""


def load(seed: int = 0, secret: str | None = None) -> Dataset:
    """Load all puzzles, as tasks of the CTF environment.

    Those that cannot be made here, because there is no C compiler, are left out with a warning.

    Args:
        seed: Everything but the flags follows from it.
        secret: Flags are made from it, too, so that no model can have seen them; None: one that is
            drawn once for this process; empty: the seed alone.
    """
    return _load(seed, _process_secret() if secret is None else secret)


@lru_cache(maxsize=4)
def _load(seed: int, secret: str) -> Dataset:
    tasks = (_task(name, make, seed, secret) for name, make in PUZZLES.items())
    return Dataset([task for task in tasks if task is not None], "ctf")


@lru_cache(maxsize=1)
def _process_secret() -> str:
    return secrets.token_hex(8)


def _task(name: str, make: Callable[[Draw], Puzzle], seed: int, secret: str) -> Task | None:
    try:
        return make(Draw.of(seed, name, secret)).task(name)
    except TaskError as error:
        log.warning("the puzzle %r is left out: %s", name, error)
        return None
