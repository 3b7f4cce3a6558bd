"""What is kept of an episode as it goes on, and what of it is shown."""

from __future__ import annotations

from typing import Any

from intercode.episode import Episode, Score, Turn, decode
from intercode.interpreters.base import Execution

_SHOWN = ("timed_out", "restarted", "truncated")
"""What `info` takes over from an execution: nothing that differs from run to run."""


def turn_of(action: str, execution: Execution) -> Turn:
    """The record of an action and of what came of it."""
    info = dict(execution.info)
    if execution.notes:
        info["output"] = decode(execution.output)  # what a reward compares
    return Turn(
        str(action),
        execution.observation,
        ok=execution.ok,
        exit_code=execution.exit_code,
        seconds=execution.seconds,
        info=info,
    )


def info_of(
    episode: Episode, turn: Turn | None = None, score: Score | None = None
) -> dict[str, Any]:
    """The `info` of `reset` and `step`."""
    info: dict[str, Any] = {"task_id": episode.task_id, "turn": len(episode.turns)}
    if turn is not None:
        info["ok"] = turn.ok
        if turn.exit_code is not None:
            info["exit_code"] = turn.exit_code
        info.update({key: turn.info[key] for key in _SHOWN if key in turn.info})
    if score is not None:
        info["success"] = score.value == 1.0
        info["parts"] = dict(score.parts)
    return info


def rendered(episode: Episode, prompt: str) -> str:
    """The episode as a terminal would show it."""
    lines = [f"# {episode.query}"]
    for turn in episode.turns:
        lines += [f"{prompt}{turn.action}", turn.observation.rstrip("\n")]
    if episode.status != "running":
        lines.append(f"# {episode.status}, reward {episode.reward}")
    return "\n".join(line for line in lines if line) + "\n"
