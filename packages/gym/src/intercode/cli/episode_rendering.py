"""Formatting of an episode as text for the terminal.

The text contains the turns with the model's replies, the ending, and the reasons of the reward.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from intercode.cli.terminal import (
    LINES,
    dollars,
    duration,
    indent,
    number,
    one_line,
    safe,
    shorten,
    size,
)
from intercode.dialogues import (
    RecordedDialogue,
    RecordedMessage,
    RecordedModelCall,
    agent_talk,
    find_branch,
)
from intercode.envs.traits import find_prompt
from intercode.episode import Episode, Turn, TurnChanges
from intercode.evaluate.summary import UNKNOWN
from intercode.records import JudgeSummary, ending_action
from intercode.report.reward_reasons import explain_reward
from intercode_sandbox.units import format_count


def render(
    episode: Episode, lines: int | None = LINES, *, reasons: bool = False, messages: bool = False
) -> str:
    """Return an episode as text: the task, the turns or the dialogue, and the ending.

    Args:
        episode: A finished episode.
        lines: The maximum number of lines for each output of a program and each reply of a model;
            None: all lines, and the traceback of an error.
        reasons: Whether to include the reasons of a reward below 1.0, which may quote gold.
        messages: Whether to include the dialogue with the model instead of the turns.
    """
    epoch = f", epoch {episode.epoch}" if episode.epoch else ""
    sections = [
        f"── {safe(episode.task_id)}{epoch} ── {mark(episode)}",
        indent(safe(episode.query), "  "),
    ]
    sections += _dialogue_lines(episode, lines) if messages else _turn_texts(episode, lines)
    sections += _tree_lines(episode)
    sections.append(f"  {ending(episode)}")
    if reasons:
        for sentence, text in explain_reward(episode):
            sections.append(indent(safe(sentence), "    "))
            sections += [indent(_limit_lines(text, lines), "      ")] if text.strip() else []
    if lines is None and (trace := episode.metadata.get("traceback")):
        sections.append(indent(safe(str(trace)).rstrip("\n"), "    "))
    return "\n".join([*sections, ""])


def mark(episode: Episode) -> str:
    """Return an episode's outcome, and the judge's model if a judge decided the success."""
    if not episode.success:
        return episode.outcome or UNKNOWN
    judgement = JudgeSummary.from_episode(episode)
    return (
        "solved"
        if judgement is None or not judgement.same
        else f"solved, judged by {judgement.model}"
    )


def ending(episode: Episode) -> str:
    """Return a line about an episode's end: status, answer, reward with its parts, duration.

    For an episode with status ``error``, the line has only the error.
    """
    if episode.status == "error":
        return f"error: {safe(episode.error or '')}"
    answer = "" if episode.answer is None else f" {safe(episode.answer)!r}"
    text = f"{safe(episode.status)}{answer}: reward {number(episode.reward, 3)}"
    if episode.score is not None and episode.score.parts:
        part_scores = ", ".join(f"{safe(k)} {number(v, 3)}" for k, v in episode.score.parts.items())
        text += f" ({part_scores})"
    return f"{text} · {duration(episode.seconds)}"


def _limit_lines(text: str, lines: int | None) -> str:
    return safe(text).rstrip("\n") if lines is None else shorten(text, lines)


# Turns


def _turn_texts(episode: Episode, lines: int | None) -> Iterator[str]:
    """Yield the texts of replies and turns: before each turn, the model's reply that led to it.

    The reply that submitted or skipped comes last.
    """
    talk, prompt = agent_talk(episode) or RecordedDialogue(), find_prompt(episode.env)
    for index, turn in enumerate(episode.turns):
        yield from _reply_lines(talk, index, turn.action, lines)
        yield _turn_text(turn, lines, prompt)
    last_action = ending_action(episode) if episode.status in ("submitted", "skipped") else ""
    yield from _reply_lines(talk, len(episode.turns), last_action, lines)


def _reply_lines(
    talk: RecordedDialogue, turn: int, action: str, lines: int | None
) -> Iterator[str]:
    """Yield the model's words for a turn.

    For each call to the model, the words are its thought if recorded, else its reply without the
    action, which the turn itself shows. Of several replies to choose from, only the chosen one is
    included.
    """
    calls = [call for call in talk.get("calls", ()) if call.get("turn") == turn]
    chosen_sample = next((call["chosen"] for call in calls if "chosen" in call), None)
    for call in calls:
        if "error" in call:
            yield f"  the model gave no answer: {safe(call['error'])}"
        if "reply" not in call or (
            chosen_sample is not None and call.get("sample") != chosen_sample
        ):
            continue
        label = "thought" if "thought" in call else "reply"
        reply = talk["messages"][call["reply"]]
        text = call["thought"] if "thought" in call else _strip_action(reply, action)
        if text.strip():
            yield indent(f"{label}: {_limit_lines(text.strip(), lines)}", "  ")


def _strip_action(reply: RecordedMessage, action: str) -> str:
    """Return a reply without its action. If `action` is empty, return reply and tool calls."""
    content = reply["content"]
    if not action.strip():
        return "\n".join([content, *_tool_calls(reply)]).strip()
    if content.strip() == action.strip():
        return ""
    fence_pattern = rf"```[\w+-]*\s*{re.escape(action.strip())}\s*```"
    return re.sub(fence_pattern, "", content, count=1)


def _turn_text(turn: Turn, lines: int | None, prompt: str) -> str:
    space = " " * (len(prompt) + 2)
    action = indent(safe(turn.action), space).replace(space, f"  {prompt}", 1)
    if turn.info.get("invalid"):
        action = "  (no action)"
    notes = []
    if turn.exit_code:
        notes.append(f"exit {turn.exit_code}")
    if turn.seconds >= 1:
        notes.append(duration(turn.seconds))
    if notes:
        action += f"   [{', '.join(notes)}]"
    observation = _limit_lines(turn.observation, lines)
    blocks = [action, *([indent(observation, "    ")] if observation else [])]
    return "\n".join([*blocks, *_change_lines(turn.changes, lines)])


_WIDTH = 60
"""Maximum width of an action in the list of a tree search's states, in characters."""
_SIGNS = {"added": "+", "modified": "~", "deleted": "-"}


def _change_lines(changes: TurnChanges | None, lines: int | None) -> Iterator[str]:
    """Yield a line for each path that a turn changed, at most `lines`, and the number of others."""
    files = () if changes is None else changes.files
    listed_files = files if lines is None else files[:lines]
    for file in listed_files:
        size_text = f"  {size(file.size)}" if file.type == "file" and file.size else ""
        yield f"    {_SIGNS[file.kind]} {safe(file.path)}{'/' * (file.type == 'dir')}{size_text}"
    if changes is not None and (remaining_count := len(files) - len(listed_files) + changes.cut):
        yield f"    … {format_count(remaining_count, 'path')} more"


def _tree_lines(episode: Episode) -> Iterator[str]:
    """Yield a line for each state of a tree search below the root: its judgement and its action.

    A heading with the number of tried actions comes first. The lines of a state's children follow
    the state with more indentation. ``*`` marks the states of the branch that became the episode.
    Without a tree search, the function yields no line.
    """
    branch = find_branch(episode)
    if branch is None:
        return
    search = episode.metadata["search"]
    nodes = search["nodes"]
    action_count = format_count(search.get("tried", 0), "action")
    yield f"  {safe(str(search.get('agent')))}: {action_count} tried"

    def subtree_lines(parent: int, depth: int) -> Iterator[str]:
        for index, node in enumerate(nodes):
            if node.get("parent") == parent and index > parent:
                text = number(node.get("judgement")) if node.get("judgement") is not None else "-"
                action = one_line(safe(node.get("action", "")), _WIDTH) or "(no action)"
                loss_note = f"  ({one_line(safe(node['lost']), _WIDTH)})" if "lost" in node else ""
                mark = "*" if index in branch else " "
                yield f"  {'  ' * depth}{mark} {text:>4}  {action}{loss_note}"
                yield from subtree_lines(index, depth + 1)

    yield from subtree_lines(0, 0)


# The dialogue


def _dialogue_lines(episode: Episode, lines: int | None) -> Iterator[str]:
    """Yield every message to and from the model once, in the order of first appearance."""
    if (talk := agent_talk(episode)) is None or not talk.get("messages"):
        yield f"  (no messages are recorded: agent {safe(episode.agent)})"
        return
    if tools := talk.get("tools"):
        yield f"  tools: {', '.join(safe(str(tool.get('name'))) for tool in tools)}"
    replies = {call["reply"]: call for call in talk.get("calls", ()) if "reply" in call}
    for index, message in enumerate(talk["messages"]):
        usage_text = f" {_reply_usage(replies[index])}" if index in replies else ""
        message_texts = [_limit_lines(message["content"], lines), *map(safe, _tool_calls(message))]
        yield f"  [{safe(message['role'])}]{usage_text}"
        yield indent("\n".join(filter(None, message_texts)), "    ")


def _tool_calls(message: RecordedMessage) -> list[str]:
    return [
        f"→ {call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}"
        for call in message.get("tool_calls", ())
    ]


def _reply_usage(call: RecordedModelCall) -> str:
    """Return a text with the tokens, the cost and the duration of a model's reply."""
    cost = call.get("cost")
    counts = call.get("input_tokens", 0), call.get("output_tokens", 0)
    facts = [f"{counts[0]} tokens in, {counts[1]} out" if any(counts) else "tokens not reported"]
    facts += [dollars(cost)] if cost is not None else []
    facts += ["from the cache"] if call.get("cached") else [duration(call.get("seconds", 0.0))]
    return f"({', '.join(facts)})"
