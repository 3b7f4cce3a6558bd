"""Suggestions for misspelt names: known words that differ by one or two letters."""

from __future__ import annotations

from collections.abc import Iterable

_MAX_LENGTH = 64
"""The maximum length of a word for which a suggestion is sought: the time of a comparison grows
with the square of the length."""


def nearest_word(word: str, words: Iterable[str]) -> str | None:
    """Return the known word nearest to a misspelt word; None: no word is near enough.

    Case is ignored. A word of up to four letters may have one wrong letter, a longer word two. Two
    neighbours in the wrong order count as one wrong letter (Damerau-Levenshtein distance). No
    word is near a word of more than 64 letters.
    """
    if len(word) > _MAX_LENGTH:
        return None
    max_distance = 1 if len(word) <= 4 else 2
    lower_word = word.lower()
    distances = [
        (distance(lower_word, candidate.lower()), candidate)
        for candidate in words
        if abs(len(candidate.lower()) - len(lower_word)) <= max_distance
    ]
    matches = [
        (edit_count, candidate)
        for edit_count, candidate in distances
        if edit_count <= min(max_distance, len(candidate) - 1)
    ]
    return min(matches)[1] if matches else None


def hint_text(word: str, names: Iterable[str], *, listed: bool = True) -> str:
    """Return a suggestion to append to an error message on an unknown word.

    Examples are ``; did you mean 'bash'?`` and ``; known: bash, sql``.

    Args:
        word: The unknown word.
        names: The known words.
        listed: Whether to list the known words if none is near.
    """
    names = sorted(names)
    if (match := nearest_word(word, names)) is not None:
        return f"; did you mean {match!r}?"
    return f"; known: {', '.join(names) or 'none'}" if listed else ""


def distance(first_word: str, second_word: str) -> int:
    """Return the Damerau-Levenshtein distance of two words.

    The distance is the least number of edits that turn one word into the other. An edit inserts,
    deletes or replaces a letter, or swaps two neighbours.
    """
    previous_row: list[int] = []
    row = list(range(len(second_word) + 1))
    for i, first_letter in enumerate(first_word, 1):
        previous_row, older_row, row = row, previous_row, [i]
        for j, second_letter in enumerate(second_word, 1):
            cost = min(
                previous_row[j] + 1,
                row[j - 1] + 1,
                previous_row[j - 1] + (first_letter != second_letter),
            )
            if (
                i > 1
                and j > 1
                and first_letter == second_word[j - 2]
                and second_letter == first_word[i - 2]
            ):
                cost = min(cost, older_row[j - 2] + 1)
            row.append(cost)
    return row[-1]
