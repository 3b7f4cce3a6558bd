"""When two outputs count as equal, and how alike they are when they do not."""

from __future__ import annotations

from collections import Counter

from intercode.episode import Episode


def normalise(text: str) -> str:
    """The text without what no reader of a terminal sees.

    Windows line ends become plain ones; spaces and tabs at the end of a line go, and so do empty
    lines at the end of the text. Nothing else: case, order, and space within a line count.
    """
    lines = [line.rstrip(" \t\r\v\f") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join(lines)


def similarity(one: str, other: str) -> float:
    """How much of two texts is the same, in [0, 1]: the share of words, counted with repeats.

    It is Dice's coefficient, 2·|common| / (|one| + |other|), which takes time linear in the
    texts. Only for partial credit: equal values do not mean equal texts.
    """
    if one == other:
        return 1.0
    ours, theirs = Counter(one.split()), Counter(other.split())
    total = ours.total() + theirs.total()
    return 2 * (ours & theirs).total() / total if total else 0.0


def last_output(episode: Episode) -> str | None:
    """What the last action printed, without what we told the agent about it; None before any."""
    for turn in reversed(episode.turns):
        if turn.info.get("executed", True):
            return str(turn.info.get("output", turn.observation))
    return None
