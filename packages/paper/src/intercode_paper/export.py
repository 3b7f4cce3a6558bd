"""The files of 2023, from runs of ours, as the release's notebooks and `results` read them.

A strategy had a form of its own: ReAct's episodes have ``thoughts``, write ``execute[…]`` around
commands, and always end by an action, whose reward is the episode's; those of Plan & Solve have
``steps``, and their file describes itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from intercode.dialogues import Talk, agent_talk
from intercode.episode import Episode, Turn
from intercode.errors import UsageError
from intercode.records import Outcome, ending_action

_TURNS = 10
"""The default number of turns of every environment of 2023."""


def to_paper(episodes: Iterable[Episode], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file of 2023: task id → episode. Errors are left out, as they were then.

    Where only the end was rewarded the last turn has the final reward, which is of its state.
    An answer, or an end without any turn, makes a turn of its own.

    Raises:
        UsageError: There are several attempts at a task.
    """
    paper_episodes: dict[str, Any] = {}
    for episode in episodes:
        if episode.score is None:
            continue
        if episode.task_id in paper_episodes:
            raise UsageError(
                "the format of 2023 has a single attempt at each task, but the run has several "
                f"at {episode.task_id!r}: choose one with --epoch N"
            )
        paper_episodes[episode.task_id] = _paper(episode, manifest)
    agent = manifest.get("agent", {})
    if str(agent.get("name", "")).startswith("plan-solve"):
        return {"meta": dict(agent), "logs": paper_episodes}
    return paper_episodes


def _paper(episode: Episode, manifest: Mapping[str, Any]) -> dict[str, Any]:
    dataset, env = manifest.get("dataset", {}), manifest.get("env", {})
    thoughts, steps = _notes(episode, "thought"), _notes(episode, "step")
    turns = _as_react(episode) if thoughts else _with_the_end(episode)
    rewards = [turn.reward for turn in turns]
    history: dict[str, list[Any]] = {}
    for name, notes in (("thoughts", thoughts), ("steps", steps)):
        if notes:
            history[name] = [notes.get(number, "") for number in range(len(turns))]
    task_id = episode.task_id
    record = {
        "environment": f"ic_{episode.env}",
        "dataset": dataset.get("source") or dataset.get("name"),
        # A number where it is a row, as all of them were.
        "task_id": int(task_id) if task_id.isascii() and task_id.isdigit() else task_id,
        "query": episode.query,
        "turn_history": {
            **history,
            "actions": [turn.action for turn in turns],
            "observations": [turn.observation for turn in turns],
            "rewards": rewards,
            "valid_action": [turn.ok for turn in turns],
        },
        "summary": {
            "max_reward": max(rewards),
            "max_reward_idx": rewards.index(max(rewards)),
            # ReAct's submit after the last turn was none, then.
            "turns_taken": len(turns) - (bool(thoughts) and episode.status == "truncated"),
            "turns_max": env.get("max_turns") or _TURNS,
        },
    }
    level = Outcome.of(episode).level
    return {**record, "hardness": level} if level else record


def _notes(episode: Episode, name: str) -> dict[int, str]:
    """Map each turn to a note of its call to the model."""
    calls = (agent_talk(episode) or Talk()).get("calls", ())
    return {call.get("turn", 0): str(call.get(name)) for call in calls if name in call}


def _as_react(episode: Episode) -> list[Turn]:
    # A turn without any code stays as it is: it was not executed.
    turns = [
        replace(turn, action=f"execute[{turn.action}]") if turn.action else turn
        for turn in episode.turns
    ]
    return [*turns, Turn(ending_action(episode), "", episode.reward or 0.0)]


def _with_the_end(episode: Episode) -> list[Turn]:
    turns = list(episode.turns)
    reward = episode.reward or 0.0
    if episode.answer is not None or not turns:
        return [*turns, Turn(ending_action(episode), "", reward)]
    turns[-1] = replace(turns[-1], reward=reward)
    return turns
