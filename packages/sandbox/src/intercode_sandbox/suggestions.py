"""Did you mean …? Words that are one or two letters from a known one."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that a misspelt one stands for; None: none does.

    Upper and lower case are alike. Of a word of up to four letters one may be wrong, of a longer
    one two; two neighbours in the wrong order count as one.
    """
    far = 1 if len(word) <= 4 else 2
    found = [(distance(word.lower(), one.lower()), one) for one in known]
    near = [(count, one) for count, one in found if count <= min(far, len(one) - 1)]
    return min(near)[1] if near else None


def meant(word: str, known: Iterable[str], *, listed: bool = True) -> str:
    """Return the end of a message: ``; did you mean 'bash'?``, or ``; known: bash, sql``.

    Args:
        word: The word that is not known.
        known: Those that are.
        listed: Whether they are listed if none is near.
    """
    known = sorted(known)
    if (found := nearest(word, known)) is not None:
        return f"; did you mean {found!r}?"
    return f"; known: {', '.join(known) or 'none'}" if listed else ""


def distance(one: str, other: str) -> int:
    """Count the letters to insert, delete, replace or swap with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]
