"""The episodes of a report's page: packed a hundred at a time, unpacked when they are looked at.

So ten thousand of them are no burden, neither for this program nor for the browser.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from typing import Any

from intercode.episode import Episode

CHUNK = 100
"""Episodes that are packed together."""
LONGEST = 20_000
"""Characters that are kept of each text: its head and its tail."""
LINE = 160
"""Characters of a query in the list."""


class Episodes:
    """Takes the episodes of runs, one by one, and packs them."""

    def __init__(self) -> None:
        self._chunks: list[str] = []
        self._open: list[dict[str, Any]] = []
        self._rows: dict[tuple[int, int, str], dict[str, Any]] = {}

    def add(self, run: int, episode: Episode) -> None:
        """Take an episode; it replaces an earlier one of the same run, task and epoch."""
        key = (run, episode.epoch, episode.task_id)
        self._rows.pop(key, None)
        self._rows[key] = {
            "run": run,
            "chunk": len(self._chunks),
            "offset": len(self._open),
            "task": episode.task_id,
            "epoch": episode.epoch,
            "query": _line(episode.query),
            "status": episode.status,
            "success": episode.success,
            "reward": episode.reward,
            "turns": len(episode.turns),
            "seconds": episode.seconds,
        }
        self._open.append(_shortened(episode))
        if len(self._open) == CHUNK:
            self._close()

    def elements(self) -> str:
        """The elements of the page that hold them."""
        self._close()
        names = next(iter(self._rows.values()), {"task": ""})
        columns = {name: [row[name] for row in self._rows.values()] for name in names}
        packed = {"index": _packed(columns)}
        packed |= {f"chunk-{number}": text for number, text in enumerate(self._chunks)}
        return "\n".join(
            f'<script type="text/plain" id="{name}">{text}</script>'
            for name, text in packed.items()
        )

    def _close(self) -> None:
        if self._open:
            self._chunks.append(_packed(self._open))
            self._open = []


def _packed(data: Any) -> str:
    # Level 5 is three times as fast as the best and hardly larger; no clock in it.
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), 5, mtime=0)).decode("ascii")


def _shortened(episode: Episode) -> dict[str, Any]:
    score = episode.score
    return {
        "query": _cut(episode.query),
        "turns": [
            {
                "action": _cut(turn.action),
                "observation": _cut(turn.observation),
                "reward": turn.reward,
                "ok": turn.ok,
                "exit_code": turn.exit_code,
                "seconds": turn.seconds,
                "info": _all_cut(turn.info),
            }
            for turn in episode.turns
        ],
        "answer": _all_cut(episode.answer),
        "error": _all_cut(episode.error),
        "score": score
        and {"value": score.value, "parts": dict(score.parts), "detail": _all_cut(score.detail)},
        "metadata": _all_cut(episode.metadata),
    }


def _all_cut(value: Any) -> Any:
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, dict):
        return {str(key): _all_cut(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_all_cut(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # which JSON does not have
    return value


def _cut(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    head, tail = text[: LONGEST - LONGEST // 3], text[-(LONGEST // 3) :]
    left = len(text) - len(head) - len(tail)
    return f"{head}\n… {left} characters more: see 'intercode show' …\n{tail}"


def _line(text: str) -> str:
    """How a text begins, for the list."""
    line = " ".join(text[: 2 * LINE].split())
    return line if len(line) <= LINE else line[: LINE - 1] + "…"
