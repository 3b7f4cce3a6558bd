"""The export of InterCode's runs as results files of 2023.

The release's notebooks and `intercode_paper.results_files` read these files. The form of a file
depends on the strategy. ReAct's episodes have ``thoughts``, and ``execute[…]`` around commands.
They always end with an action that has the episode's reward. Episodes of Plan & Solve have
``steps``, in a file with metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from intercode.dialogues import RecordedDialogue, agent_talk
from intercode.episode import Episode, Turn
from intercode.errors import UsageError
from intercode.records import Outcome, ending_action

_TURNS = 10
"""The default limit of turns in all environments of 2023."""


def to_paper(episodes: Iterable[Episode], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a results file of 2023: task id → episode.

    Episodes without a score, which ended with an error, are omitted, as in 2023. The last turn gets
    the episode's reward, which scores the state after that turn. An answer becomes an additional
    last turn, and so does the end of an episode by ReAct or of an episode without turns.

    Args:
        episodes: The episodes of a run.
        manifest: The manifest of the run: its keys ``agent``, ``dataset`` and ``env`` are read.

    Raises:
        UsageError: A task has several attempts with a score.
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
        paper_episodes[episode.task_id] = _paper_record(episode, manifest)
    agent = manifest.get("agent", {})
    if str(agent.get("name", "")).startswith("plan-solve"):
        return {"meta": dict(agent), "logs": paper_episodes}
    return paper_episodes


def _paper_record(episode: Episode, manifest: Mapping[str, Any]) -> dict[str, Any]:
    dataset, env = manifest.get("dataset", {}), manifest.get("env", {})
    thoughts, steps = _notes_by_turn(episode, "thought"), _notes_by_turn(episode, "step")
    turns = _as_react(episode) if thoughts else _with_final_turn(episode)
    rewards = [turn.reward for turn in turns]
    note_columns: dict[str, list[Any]] = {}
    for column_name, notes_by_turn in (("thoughts", thoughts), ("steps", steps)):
        if notes_by_turn:
            note_columns[column_name] = [
                notes_by_turn.get(turn_index, "") for turn_index in range(len(turns))
            ]
    task_id = episode.task_id
    record = {
        "environment": f"ic_{episode.env}",
        "dataset": dataset.get("source") or dataset.get("name"),
        # The ids of 2023 were numbers, so the export writes a numeric id as a number.
        "task_id": int(task_id) if task_id.isascii() and task_id.isdigit() else task_id,
        "query": episode.query,
        "turn_history": {
            **note_columns,
            "actions": [turn.action for turn in turns],
            "observations": [turn.observation for turn in turns],
            "rewards": rewards,
            "valid_action": [turn.ok for turn in turns],
        },
        "summary": {
            "max_reward": max(rewards),
            "max_reward_idx": rewards.index(max(rewards)),
            # In 2023 a submission by ReAct after the last permitted turn did not count as a turn.
            "turns_taken": len(turns) - (bool(thoughts) and episode.status == "truncated"),
            "turns_max": env.get("max_turns") or _TURNS,
        },
    }
    level = Outcome.from_episode(episode).level
    return {**record, "hardness": level} if level else record


def _notes_by_turn(episode: Episode, note_kind: str) -> dict[int, str]:
    """Return the notes that an agent added to its calls to the model: turn → note.

    Args:
        episode: The episode.
        note_kind: The kind of the notes: ``thought``, or ``step`` for the step of a plan. Calls
            without such a note are omitted.
    """
    calls = (agent_talk(episode) or RecordedDialogue()).get("calls", ())
    return {call.get("turn", 0): str(call.get(note_kind)) for call in calls if note_kind in call}


def _as_react(episode: Episode) -> list[Turn]:
    # An empty action was not executed, so it gets no ``execute[…]``.
    turns = [
        replace(turn, action=f"execute[{turn.action}]") if turn.action else turn
        for turn in episode.turns
    ]
    return [*turns, Turn(ending_action(episode), "", episode.reward or 0.0)]


def _with_final_turn(episode: Episode) -> list[Turn]:
    turns = list(episode.turns)
    reward = episode.reward or 0.0
    if episode.answer is not None or not turns:
        return [*turns, Turn(ending_action(episode), "", reward)]
    turns[-1] = replace(turns[-1], reward=reward)
    return turns
