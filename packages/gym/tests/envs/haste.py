"""A time limit for what is to run into it, and for nothing else: a busy machine keeps none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any


@contextmanager
def haste(
    env: Any,
    seconds: float = 0.3,  # allow limit: only for what has no end
) -> Iterator[None]:
    """Have the running episode's task another time limit while the block runs."""
    state = env.episode_state
    task = state.task
    state._task = replace(task, timeout=seconds)
    try:
        yield
    finally:
        state._task = task
