"""The HTML page of the viewer, which shows runs in the browser.

The page contains a JavaScript app. The data is either in the page itself, or comes from a server.

Texts of agents and programs are untrusted. The page contains them as Base64, or as JSON in which
``<`` is escaped, so a text cannot end the element that contains it. The content security policy of
the page permits no script but the app, which inserts the texts as text, not as HTML.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from intercode import __version__
from intercode.episode import Episode
from intercode.errors import RecordWriteError
from intercode.records import Key, Outcome, episode_key
from intercode.report.recorded_tasks import RecordedTask
from intercode.report.runs import RecordedRun
from intercode.report.text import escape_unprintable
from intercode.report.verdict import BaselineComparison
from intercode.report.viewer_episodes import EpisodeRow, columns, make_body, make_row
from intercode.report.viewer_overview import overview
from intercode_sandbox.host_files import write_atomically

STYLES = ("app", "overview", "episode")
"""The names of the app's style sheets, in the order in which `app` joins them."""
CHUNK = 100
"""The number of episodes that are compressed together, as a chunk."""
MODULES = (
    *("dom", "address", "terminal", "text", "source", "grid", "charts", "overview"),
    *(
        "lists",
        "changes",
        "diff",
        "reasons",
        "turns",
        "episode",
        "compare",
        "save",
        "share",
        "main",
    ),
)
"""The names of the app's JavaScript modules, in the order in which `app` joins them. While a module
is loaded, it may use only earlier modules; its functions may also call later modules."""


class CompressedEpisodes:
    """The episodes of a page, compressed in chunks of a hundred.

    The browser expands a chunk when it shows one of its episodes. Therefore neither this program
    nor the browser needs much memory for ten thousand episodes.

    Args:
        hide_gold: Whether to omit all texts that may quote gold.
        shown_gold: The numbers of the runs whose agents received gold.
        find_task: Returns the task of an episode by the number of its run and its id; None: the
            page has no tasks.
    """

    def __init__(
        self,
        *,
        hide_gold: bool = False,
        shown_gold: Iterable[int] = (),
        find_task: Callable[[int, str], RecordedTask] | None = None,
    ) -> None:
        self._hide_gold, self._shown_gold = hide_gold, {*shown_gold}
        self._find_task = None if hide_gold else find_task
        self._chunks: list[str] = []
        self._open_episodes: list[Any] = []
        self._rows: dict[tuple[int, Key], tuple[int, EpisodeRow]] = {}

    def add(self, run: int, episode: Episode) -> None:
        """Add an episode of a run, or replace the episode if it was recorded before.

        Args:
            run: The number of the run, counted from 0.
            episode: The episode.
        """
        key = (run, episode_key(episode))
        self._rows.pop(key, None)
        row_number = len(self._chunks) * CHUNK + len(self._open_episodes)
        self._rows[key] = (row_number, make_row(run, episode, Outcome.from_episode(episode)))
        shown_gold = run in self._shown_gold
        task = None if self._find_task is None else self._find_task(run, episode.task_id)
        self._open_episodes.append(
            make_body(episode, task, hide_gold=self._hide_gold, shown_gold=shown_gold)
        )
        if len(self._open_episodes) == CHUNK:
            self._close()

    def page_data(self) -> dict[str, str]:
        """Return the data of the episodes: id of an HTML element → text of the element."""
        self._close()
        index = {"at": [row_number for row_number, _ in self._rows.values()], "chunk": CHUNK}
        index["columns"] = columns([row for _, row in self._rows.values()])
        chunks = {f"chunk-{chunk_number}": text for chunk_number, text in enumerate(self._chunks)}
        return {"index": _pack(index), **chunks}

    def _close(self) -> None:
        if self._open_episodes:
            self._chunks.append(_pack(self._open_episodes))
            self._open_episodes = []


def write_page(
    path: Path,
    runs: Sequence[RecordedRun],
    episodes: CompressedEpisodes,
    comparisons: Sequence[BaselineComparison] | None = None,
) -> None:
    """Write a page that needs neither a network nor other files.

    Args:
        path: The path of the file.
        runs: The reported runs.
        episodes: The episodes of the runs.
        comparisons: The result of `intercode.report.verdict.compare_with_baselines` for the runs;
            None: this function compares the runs.

    Raises:
        RecordWriteError: The file cannot be written.
    """
    report = overview(runs, comparisons)
    try:
        write_atomically(path, page(report["title"], report, episodes.page_data()))
    except OSError as error:
        raise RecordWriteError(f"cannot write {path}: {error.strerror}") from error


def page(title: str, data: Any, page_data: Mapping[str, str], machine: str = "") -> str:
    """Return a page as HTML.

    Args:
        title: The page's title.
        data: The report, from `overview`; None: a server provides it.
        page_data: Further data: id of an HTML element → Base64 text of the element.
        machine: The name of the machine whose server provides the page; empty: a file.
    """
    script, style = app()
    elements = [
        f'<script type="text/plain" id="{name}">{text}</script>' for name, text in page_data.items()
    ]
    return Template(_file("index.html")).substitute(
        version=__version__,
        policy=policy(is_live=data is None),
        machine=escape(escape_unprintable(machine)),
        title=escape(escape_unprintable(title)),
        style=style,
        # In JSON, the characters <, > and & occur only in strings, where escapes are valid.
        report=re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", _json(data)),
        data="\n".join(elements),
        script=script,
    )


def policy(*, is_live: bool) -> str:
    """Return a page's content security policy, which permits only its own script and style.

    Args:
        is_live: Whether the page may connect to its own server.
    """
    hashes = [base64.b64encode(hashlib.sha256(asset.encode()).digest()).decode() for asset in app()]
    return (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        f"{'connect-src ' + _SELF + '; ' if is_live else ''}base-uri 'none'; form-action 'none'"
    )


_SELF = "'self'"


@cache
def app() -> tuple[str, str]:
    """Return the script of the app, joined from all modules, and its style, from all sheets."""
    lines = [line for name in MODULES for line in _file(f"{name}.js").splitlines()]
    script_lines = [
        line.removeprefix("export ") for line in lines if not line.startswith("import ")
    ]
    style = "".join(_file(f"{name}.css") for name in STYLES)
    return "\n".join(['"use strict";', *script_lines, ""]), style


def _file(name: str) -> str:
    return (resources.files("intercode.report") / "app" / name).read_text(encoding="utf-8")


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def _pack(data: Any) -> str:
    # Compression level 5 is three times as fast as level 9, and its output is hardly larger.
    # Without a time stamp (`mtime=0`), equal data have equal output.
    compressed_data = gzip.compress(_json(data).encode("ascii"), 5, mtime=0)
    return base64.b64encode(compressed_data).decode("ascii")
