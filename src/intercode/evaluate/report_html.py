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
from intercode.evaluate.table import Table
from intercode.files import write_whole

_STATES = ("solved", "not solved", "truncated", "skipped", "ended", "error")


def write_page(
    path: Path,
    runs: Sequence[Run],
    sections: Sequence[tuple[str, Sequence[Table]]],
    episodes: Episodes,
    warnings: Sequence[str] = (),
    details: Sequence[tuple[str, Sequence[Table]]] = (),
) -> None:
    """Write the page.

    Args:
        path: The file.
        runs: What it reports on.
        sections: Headings, and the tables under them.
        episodes: Those of the runs.
        warnings: What the reader must know first; all but the first line is folded away.
        details: More such, folded away if there are several.

    Raises:
        RecordError: It cannot be written.
    """
    text = page(runs, sections, episodes, warnings, details)
    try:
        write_whole(path, text)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}") from error


def page(
    runs: Sequence[Run],
    sections: Sequence[tuple[str, Sequence[Table]]],
    episodes: Episodes,
    warnings: Sequence[str] = (),
    details: Sequence[tuple[str, Sequence[Table]]] = (),
) -> str:
    """The page's text; see `write_page`."""
    style, script, template = (_file(name) for name in ("page.css", "list.js", "page.html"))
    script = f"{script}\n{_file('episode.js')}"
    labels = [printable(f"{run.label}: {run.where}") for run in runs]
    blocks = [*sections, *(details if len(details) == 1 else ())]
    parts = [_warning(warning) for warning in warnings]
    pictures = _figures(runs)
    for number, (heading, tables) in enumerate(blocks):
        parts.append(f'<h2 id="part-{number}">{_text(heading)}</h2>')
        for table in tables:
            parts.append(to_html(table))
            if table.title == tables[0].title and number == 0:
                parts.append(pictures)
    folded = details if len(details) > 1 else ()
    if folded:
        parts.append('<h2 id="runs">Each run</h2>')
        parts += [_folded(heading, "".join(map(to_html, tables))) for heading, tables in folded]
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    contents = [(f"part-{number}", heading) for number, (heading, _) in enumerate(blocks)]
    contents[1:1] = [("turns", "Success against turns")] if pictures else []
    contents += [("runs", "Each run")] if folded else []
    return Template(template).substitute(
        version=__version__,
        policy=policy,
        title=_text(labels[0] if len(labels) == 1 else f"{len(labels)} runs"),
        count=f"{sum(len(run.outcomes) for run in runs):,}",
        contents="".join(f'<a href="#{to}">{_text(name)}</a>\n' for to, name in contents),
        style=style,
        report="\n".join(parts),
        runs="".join(
            f'<option value="{n}">{_text(name)}</option>' for n, name in enumerate(labels)
        ),
        states="".join(f"<option>{state}</option>" for state in _STATES),
        data=episodes.elements(),
        script=script,
    )


def _figures(runs: Sequence[Run]) -> str:
    """Success against turns: a picture for each environment, in each the same colours."""
    labels = list(dict.fromkeys(printable(run.label) for run in runs))
    colours = {label: number for number, label in enumerate(labels)}
    found = []
    for where in dict.fromkeys(run.where for run in runs):
        series = {printable(run.label): by_turn(run.outcomes) for run in runs if run.where == where}
        title = printable(f"{where}: success within so many turns")
        if picture := curves({k: v for k, v in series.items() if v}, colours, title):
            found.append(f"<figure>{picture}<figcaption>{_text(where)}</figcaption></figure>")
    if not found:
        return ""
    note = "Solved within so many turns, of the scored episodes; bands are 95 % intervals."
    figures = "".join(found)
    return (
        f'<h3 id="turns">Success against turns</h3>\n<div class="figures">{figures}</div>'
        f'<p class="note">{note}</p>\n'
    )


def _warning(text: str) -> str:
    first, _, rest = text.partition("\n")
    if not rest:
        return f'<p class="warning">{_text(first)}</p>'
    return f'<div class="warning">{_folded(first, f"<pre>{_text(rest)}</pre>")}</div>'


def _folded(heading: str, inner: str) -> str:
    return f"<details><summary>{_text(heading)}</summary>\n{inner}</details>"


def _file(name: str) -> str:
    return (resources.files("intercode.evaluate") / "html" / name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape("\n".join(map(printable, text.split("\n"))))


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
