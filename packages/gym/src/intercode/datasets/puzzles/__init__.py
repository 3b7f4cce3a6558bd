"""Bundled CTF puzzles, generated from a seed and a run's secret.

Each module has puzzles of a kind, such as cryptography. A puzzle is a function that receives a
source of random values (`intercode.datasets.puzzles.base.SeededRandom`) and returns an
`intercode.datasets.puzzles.base.CtfPuzzle`. The same seed and secret give the same tasks, byte for
byte, on the same machine. On other machines, zlib, SQLite and the C compiler may produce other
bytes.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import lru_cache

from intercode.datasets.puzzles import crypto, encodings, forensics, reversing, searches, services
from intercode.datasets.puzzles.base import CtfPuzzle, SeededRandom
from intercode.errors import TaskError
from intercode.task import Dataset, Task

__all__ = ["PUZZLES", "load"]

log = logging.getLogger(__name__)

PUZZLES: dict[str, Callable[[SeededRandom], CtfPuzzle]] = {
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
"""Id of a task → the function that generates its puzzle."""


def load(seed: int = 0, secret: str | None = None) -> Dataset:
    """Load all puzzles as tasks of the CTF environment.

    A puzzle that cannot be generated is omitted with a warning. One puzzle, for instance, needs a C
    compiler on the host.

    Args:
        seed: The seed of all random values.
        secret: A text on which the flags also depend, so no model can have seen the flags in its
            training data. None: a random secret of this process. Empty: the flags depend only on
            the seed.

    Returns:
        The dataset.
    """
    return _load(seed, _process_secret() if secret is None else secret)


@lru_cache(maxsize=4)
def _load(seed: int, secret: str) -> Dataset:
    tasks = (_task(name, make_puzzle, seed, secret) for name, make_puzzle in PUZZLES.items())
    return Dataset([task for task in tasks if task is not None], "ctf")


@lru_cache(maxsize=1)
def _process_secret() -> str:
    return secrets.token_hex(8)


def _task(
    name: str, make_puzzle: Callable[[SeededRandom], CtfPuzzle], seed: int, secret: str
) -> Task | None:
    try:
        return make_puzzle(SeededRandom.from_seed(seed, name, secret)).task(name)
    except TaskError as error:
        log.warning("the puzzle %r is left out: %s", name, error)
        return None
