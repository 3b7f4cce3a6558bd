"""How long to wait before another try."""

from __future__ import annotations

import random

FIRST = 0.5
"""Seconds before the second try, if not otherwise said; doubled from then on."""
LONGEST = 60.0
"""Seconds of waiting of our own accord."""
PATIENCE = 300.0
"""Seconds of waiting that a server may ask for; a quota of a day is not waited for."""


def backoff(
    failures: int, retry_after: float | None, chance: random.Random, first: float = FIRST
) -> float | None:
    """Seconds to wait after so many failures, with jitter: workers are not to come back together.

    Args:
        failures: How many calls have failed, at least 1.
        retry_after: What the server asked for: never less is waited.
        chance: Where the jitter comes from.
        first: Seconds before the second try.

    Returns:
        ``None``: the server asks for more than is reasonable.
    """
    own: float = min(LONGEST, first * 2.0 ** min(failures - 1, 30)) * chance.uniform(0.5, 1.0)
    if retry_after is None:
        return own
    if retry_after > PATIENCE:
        return None
    return retry_after + own * 0.1
