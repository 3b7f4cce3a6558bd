"""Transcripts of episodes as chat messages, in the format that InterCode's agents use for prompts.

Training, logs and `InterCodeEnv.messages` use these transcripts. The record of an agent with a
language model already contains the agent's dialogue. This module makes the dialogue for all other
agents, and for running episodes, which a model can continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from intercode.agents.conversation import (
    ObservationClipper,
    PromptContext,
    StrategyPrompts,
    fence_action,
    turn_values,
)
from intercode.envs.tools import read_call, sendable
from intercode.episode import Episode, Turn
from intercode.models.base import Message, as_openai
from intercode.records import ending_action
from intercode.task import Task
from intercode.tool_calls import ToolCall

_ENDED = ("submitted", "skipped")


def chat(env: Any, task: Task) -> list[dict[str, Any]]:
    """Return an environment's episode as the dialogue of the agent ``try-again``."""
    return [*map(as_openai, as_chat(PromptContext.from_env(env, task), env.episode))]


def tools(env: Any, task: Task) -> list[dict[str, Any]]:
    """Return an environment's episode as the dialogue of the agent ``tool-calling``."""
    return [*map(as_openai, as_calls(PromptContext.from_env(env, task), env.episode))]


def plain(env: Any, task: Task) -> list[dict[str, Any]]:
    """Return only the query, actions and observations of an environment's episode."""
    return [
        {"role": m.role, "content": sendable(m.content)} for m in as_plain_messages(env.episode)
    ]


def as_plain_messages(episode: Episode) -> Iterator[Message]:
    """Yield the query and observations as messages of the user, actions as the assistant's."""
    message_text = episode.query
    for turn in episode.turns:
        yield Message("user", message_text)
        yield Message("assistant", turn.action)
        message_text = turn.observation
    if episode.status in _ENDED:
        yield Message("user", message_text)
        yield Message("assistant", ending_action(episode))
    elif episode.status == "running":
        yield Message("user", message_text)


def as_chat(scene: PromptContext, episode: Episode) -> Iterator[Message]:
    """Yield the messages of the agent ``try-again``, whose actions are fenced blocks."""
    prompt, language = StrategyPrompts("try_again"), scene.language
    yield from _opening_messages(prompt, scene)
    for turn_number, turn in enumerate(episode.turns, 1):
        yield Message("assistant", fence_action(turn.action, language))
        yield Message("user", _render_observation(prompt, scene, episode.turns[:turn_number]))
    if episode.status in _ENDED:
        yield Message("assistant", fence_action(ending_action(episode), language))


def as_calls(scene: PromptContext, episode: Episode) -> Iterator[Message]:
    """Yield the messages of the agent ``tool-calling``, whose actions are tool calls."""
    prompt = StrategyPrompts("tool_calling")
    yield from _opening_messages(prompt, scene)
    for turn_index, turn in enumerate(episode.turns):
        if turn.info.get("invalid"):
            yield Message("assistant", "")
            yield Message(
                "user", _render_observation(prompt, scene, episode.turns[: turn_index + 1])
            )
            continue
        observation = _render_observation(prompt, scene, episode.turns[: turn_index + 1])
        call = _tool_call(scene, turn.action, turn_index)
        yield Message("assistant", "", (call,))
        yield Message("tool", observation, call_id=call.call_id)
    if episode.status in _ENDED:
        yield Message(
            "assistant", "", (_tool_call(scene, ending_action(episode), len(episode.turns)),)
        )


def _opening_messages(prompt: StrategyPrompts, scene: PromptContext) -> Iterator[Message]:
    values: dict[str, Any] = {**scene.values(), "show_reward": False}
    yield Message("system", sendable(prompt.render("system", **values)))
    yield Message("user", sendable(prompt.render("task", **values)))


def _render_observation(
    prompt: StrategyPrompts, scene: PromptContext, turns: Sequence[Turn]
) -> str:
    """Render the observation of the last turn."""
    observation = ObservationClipper()(turns[-1].observation.rstrip("\n"))
    values = {**scene.values(), "show_reward": False, **turn_values(turns)}
    return sendable(prompt.render("observation", **{**values, "observation": observation}))


def _tool_call(scene: PromptContext, action: str, call_number: int) -> ToolCall:
    name, arguments = read_call(action, scene.traits)
    return ToolCall(f"call_{call_number}", name, {key: sendable(v) for key, v in arguments.items()})
