"""A report as one HTML file that needs nothing else: no network, no other file.

What agents and programs wrote is hostile. In the page's tables it is escaped. The episodes are in
it as Base64, which cannot end the element that holds it; the page's own script, the only one that
its policy allows to run, sets them as text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from intercode import __version__
from intercode.errors import RecordError
from intercode.evaluate.report import by_turn
from intercode.evaluate.report_episodes import Episodes
from intercode.evaluate.report_formats import printable, to_html
from intercode.evaluate.report_runs import Run
from intercode.evaluate.report_svg import curves
from intercode.evaluate.report_tables import Table

_STATES = ("solved", "not solved", "truncated", "skipped", "error")


def write_page(
    path: Path,
    runs: Sequence[Run],
    sections: Sequence[tuple[str, Sequence[Table]]],
    episodes: Episodes,
    warnings: Sequence[str] = (),
) -> None:
    """Write the page.

    Args:
        path: The file.
        runs: What it reports on.
        sections: Headings, and the tables under them.
        episodes: Those of the runs.
        warnings: What the reader must know first.

    Raises:
        RecordError: It cannot be written.
    """
    text = page(runs, sections, episodes, warnings)
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}") from error


def page(
    runs: Sequence[Run],
    sections: Sequence[tuple[str, Sequence[Table]]],
    episodes: Episodes,
    warnings: Sequence[str] = (),
) -> str:
    """The page's text; see `write_page`."""
    folder = resources.files("intercode.evaluate") / "html"
    style, script, template = (
        (folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "page.html")
    )
    labels = [printable(f"{run.label}: {run.where}") for run in runs]
    figure = curves({label: by_turn(run.outcomes) for label, run in zip(labels, runs, strict=True)})
    parts = [f'<p class="warning">{_text(warning)}</p>' for warning in warnings]
    if figure:
        parts.append(f"<h2>Success against turns</h2>\n{figure}")
    for heading, tables in sections:
        parts.append(f"<h2>{_text(heading)}</h2>")
        parts += [to_html(table) for table in tables]
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    names = enumerate(labels)
    return Template(template).substitute(
        version=__version__,
        policy=policy,
        title=_text(labels[0] if len(labels) == 1 else f"{len(labels)} runs"),
        style=style,
        report="\n".join(parts),
        runs="".join(f'<option value="{number}">{_text(name)}</option>' for number, name in names),
        states="".join(f"<option>{state}</option>" for state in _STATES),
        data=episodes.elements(),
        script=script,
    )


def _text(text: str) -> str:
    return escape("\n".join(map(printable, text.split("\n"))))


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
