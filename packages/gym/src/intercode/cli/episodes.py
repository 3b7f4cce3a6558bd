"""An episode as text: turns with what the model said, the end, and the reason of the reward."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from intercode.cli.terminal import (
    LINES,
    dollars,
    duration,
    indented,
    number,
    one_line,
    safe,
    shortened,
    size,
)
from intercode.envs.traits import prompt_of
from intercode.episode import Episode, Turn, TurnChanges
from intercode.evaluate.summary import UNKNOWN
from intercode.records import Judged, ending_of
from intercode.report.why import explain_reward
from intercode.talks import Call, RecordedMessage, Talk, branch_of, talk_of
from intercode_sandbox.units import format_count


def render(
    episode: Episode, lines: int | None = LINES, *, reasons: bool = False, messages: bool = False
) -> str:
    """Return an episode as text: the task, the turns, and how it ended.

    Args:
        episode: A finished episode.
        lines: Lines shown of each text of a program or a model; None shows all.
        reasons: Whether to give the reasons of a reward below 1.0. They may quote gold.
        messages: Whether to show, instead of the turns, the dialogue as the model saw it.
    """
    epoch = f", epoch {episode.epoch}" if episode.epoch else ""
    parts = [
        f"── {safe(episode.task_id)}{epoch} ── {mark(episode)}",
        indented(safe(episode.query), "  "),
    ]
    parts += _dialogue(episode, lines) if messages else _turns(episode, lines)
    parts += _tree(episode)
    parts.append(f"  {ending(episode)}")
    if reasons:
        for sentence, text in explain_reward(episode):
            parts.append(indented(safe(sentence), "    "))
            parts += [indented(_cut(text, lines), "      ")] if text.strip() else []
    if lines is None and (trace := episode.metadata.get("traceback")):
        parts.append(indented(safe(str(trace)).rstrip("\n"), "    "))
    return "\n".join([*parts, ""])


def mark(episode: Episode) -> str:
    """Return an episode's outcome."""
    if not episode.success:
        return episode.outcome or UNKNOWN
    judged = Judged.of(episode)
    return "solved" if judged is None or not judged.same else f"solved, judged by {judged.model}"


def ending(episode: Episode) -> str:
    """Return how an episode ended, in a line."""
    if episode.status == "error":
        return f"error: {safe(episode.error or '')}"
    answer = "" if episode.answer is None else f" {safe(episode.answer)!r}"
    text = f"{safe(episode.status)}{answer}: reward {number(episode.reward, 3)}"
    if episode.score is not None and episode.score.parts:
        parts = ", ".join(f"{safe(k)} {number(v, 3)}" for k, v in episode.score.parts.items())
        text += f" ({parts})"
    return f"{text} · {duration(episode.seconds)}"


def _cut(text: str, lines: int | None) -> str:
    return safe(text).rstrip("\n") if lines is None else shortened(text, lines)


# Turns


def _turns(episode: Episode, lines: int | None) -> Iterator[str]:
    """Yield each turn, with what the model said before it; then what it said before the end."""
    talk, prompt = talk_of(episode) or Talk(), prompt_of(episode.env)
    for at, turn in enumerate(episode.turns):
        yield from _said(talk, at, turn.action, lines)
        yield _turn(turn, lines, prompt)
    last = ending_of(episode) if episode.status in ("submitted", "skipped") else ""
    yield from _said(talk, len(episode.turns), last, lines)


def _said(talk: Talk, turn: int, action: str, lines: int | None) -> Iterator[str]:
    """Yield the thought of each call of a turn, or the words around the action in its reply."""
    calls = [call for call in talk.get("calls", ()) if call.get("turn") == turn]
    chosen = next((call["chosen"] for call in calls if "chosen" in call), None)
    for call in calls:
        if "error" in call:
            yield f"  the model gave no answer: {safe(call['error'])}"
        if "reply" not in call or (chosen is not None and call.get("sample") != chosen):
            continue
        label = "thought" if "thought" in call else "reply"
        reply = talk["messages"][call["reply"]]
        text = call["thought"] if "thought" in call else _around(reply, action)
        if text.strip():
            yield indented(f"{label}: {_cut(text.strip(), lines)}", "  ")


def _around(reply: RecordedMessage, action: str) -> str:
    """Return what a reply says without its action; all of it if it holds no action."""
    content = reply["content"]
    if not action.strip():
        return "\n".join([content, *_tool_calls(reply)]).strip()
    if content.strip() == action.strip():
        return ""
    fenced = rf"```[\w+-]*\s*{re.escape(action.strip())}\s*```"
    return re.sub(fenced, "", content, count=1)


def _turn(turn: Turn, lines: int | None, prompt: str) -> str:
    space = " " * (len(prompt) + 2)
    action = indented(safe(turn.action), space).replace(space, f"  {prompt}", 1)
    if turn.info.get("invalid"):
        action = "  (no action)"
    notes = []
    if turn.exit_code:
        notes.append(f"exit {turn.exit_code}")
    if turn.seconds >= 1:
        notes.append(duration(turn.seconds))
    if notes:
        action += f"   [{', '.join(notes)}]"
    seen = _cut(turn.observation, lines)
    parts = [action, *([indented(seen, "    ")] if seen else [])]
    return "\n".join([*parts, *_changes(turn.changes, lines)])


_WIDTH = 60
"""Columns of an action where a search is listed."""
_SIGNS = {"added": "+", "modified": "~", "deleted": "-"}


def _changes(changes: TurnChanges | None, lines: int | None) -> Iterator[str]:
    """Yield a line for each path that a turn has changed."""
    files = () if changes is None else changes.files
    shown = files if lines is None else files[:lines]
    for file in shown:
        has = f"  {size(file.size)}" if file.type == "file" and file.size else ""
        yield f"    {_SIGNS[file.kind]} {safe(file.path)}{'/' * (file.type == 'dir')}{has}"
    if changes is not None and (left := len(files) - len(shown) + changes.cut):
        yield f"    … {format_count(left, 'path')} more"


def _tree(episode: Episode) -> Iterator[str]:
    """Yield the states that a search has tried, each below the one that it came from."""
    branch = branch_of(episode)
    if branch is None:
        return
    search = episode.metadata["search"]
    nodes = search["nodes"]
    yield f"  {safe(str(search.get('agent')))}: {format_count(search.get('tried', 0), 'action')} tried"

    def below(parent: int, depth: int) -> Iterator[str]:
        for at, node in enumerate(nodes):
            if node.get("parent") == parent and at > parent:
                judged = number(node.get("judgement")) if node.get("judgement") is not None else "-"
                action = one_line(safe(node.get("action", "")), _WIDTH) or "(no action)"
                fate = f"  ({one_line(safe(node['lost']), _WIDTH)})" if "lost" in node else ""
                yield f"  {'  ' * depth}{'*' if at in branch else ' '} {judged:>4}  {action}{fate}"
                yield from below(at, depth + 1)

    yield from below(0, 0)


# The dialogue


def _dialogue(episode: Episode, lines: int | None) -> Iterator[str]:
    """Yield every message to and from the model, in the order in which it was first sent."""
    if (talk := talk_of(episode)) is None or not talk.get("messages"):
        yield f"  (no messages are recorded: agent {safe(episode.agent)})"
        return
    if tools := talk.get("tools"):
        yield f"  tools: {', '.join(safe(str(tool.get('name'))) for tool in tools)}"
    replies = {call["reply"]: call for call in talk.get("calls", ()) if "reply" in call}
    for at, message in enumerate(talk["messages"]):
        took = f" {_took(replies[at])}" if at in replies else ""
        told = [_cut(message["content"], lines), *map(safe, _tool_calls(message))]
        yield f"  [{safe(message['role'])}]{took}"
        yield indented("\n".join(filter(None, told)), "    ")


def _tool_calls(message: RecordedMessage) -> list[str]:
    return [
        f"→ {call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}"
        for call in message.get("tool_calls", ())
    ]


def _took(call: Call) -> str:
    """Return the tokens, cost and time of a reply."""
    cost = call.get("cost")
    counts = call.get("input_tokens", 0), call.get("output_tokens", 0)
    parts = [f"{counts[0]} tokens in, {counts[1]} out" if any(counts) else "tokens not reported"]
    parts += [dollars(cost)] if cost is not None else []
    parts += ["from the cache"] if call.get("cached") else [duration(call.get("seconds", 0.0))]
    return f"({', '.join(parts)})"
