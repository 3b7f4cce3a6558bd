"""An episode, turn by turn, for people."""

from __future__ import annotations

from intercode.cli._text import duration, indented, number, safe, shortened
from intercode.envs.traits import prompt_of
from intercode.episode import Episode, Turn
from intercode.records import Judged

LINES = 12
"""Lines of an observation that are shown unless all are asked for."""


def render(episode: Episode, lines: int | None = LINES) -> str:
    """What was asked, done and seen, and how it ended.

    Args:
        episode: A finished episode.
        lines: Lines shown of each observation; None shows all.
    """
    epoch = f", epoch {episode.epoch}" if episode.epoch else ""
    parts = [
        f"── {safe(episode.task_id)}{epoch} ── {mark(episode)}",
        indented(safe(episode.query), "  "),
    ]
    prompt = prompt_of(episode.env)
    parts += [_turn(turn, lines, prompt) for turn in episode.turns]
    parts.append(f"  {ending(episode)}")
    if lines is None and (trace := episode.metadata.get("traceback")):
        parts.append(indented(safe(str(trace)).rstrip("\n"), "    "))
    return "\n".join([*parts, ""])


def mark(episode: Episode) -> str:
    """How it ended, in a word."""
    if episode.status == "error":
        return "error"
    if not episode.success:
        return "not solved"
    judged = Judged.of(episode)
    return "solved" if judged is None or not judged.same else f"solved, judged by {judged.model}"


def ending(episode: Episode) -> str:
    """How it ended, in a line."""
    if episode.status == "error":
        return f"error: {safe(episode.error or '')}"
    answer = "" if episode.answer is None else f" {safe(episode.answer)!r}"
    text = f"{episode.status}{answer}: reward {number(episode.reward, 3)}"
    if episode.score is not None and episode.score.parts:
        parts = ", ".join(f"{safe(k)} {number(v, 3)}" for k, v in episode.score.parts.items())
        text += f" ({parts})"
    return f"{text} · {duration(episode.seconds)}"


def _turn(turn: Turn, lines: int | None, prompt: str) -> str:
    space = " " * (len(prompt) + 2)
    action = indented(safe(turn.action), space).replace(space, f"  {prompt}", 1)
    notes = []
    if turn.exit_code:
        notes.append(f"exit {turn.exit_code}")
    if turn.seconds >= 1:
        notes.append(duration(turn.seconds))
    if notes:
        action += f"   [{', '.join(notes)}]"
    seen = (
        safe(turn.observation).rstrip("\n") if lines is None else shortened(turn.observation, lines)
    )
    return f"{action}\n{indented(seen, '    ')}" if seen else action
