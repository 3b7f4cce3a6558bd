"""Measurements: one file of ``benchmarks/results`` for the figures of one command.

A measurement has the command, the machine, the commit and the day, and rows with their spread. Its
sources are the files whose code the figures depend on, each glob with a digest. A measurement whose
sources have another digest is stale: run its command again, or confirm it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rows import spread

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
EMPTY = ("", None)
TIMES = "\N{MULTIPLICATION SIGN}"
"""The unit of a ratio."""
RUN = "bench.json"
"""The last run of ``make bench``, with all of its rows; git ignores it."""
RESCORED = "recorded-2023.json"
"""The counts of ``intercode replay --rescore``, for docs/results.md."""


@dataclass(frozen=True)
class Figure:
    """A row of a measurement.

    A row of a range has no median, only its lowest and highest value.
    """

    unit: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    description: str = ""
    bench: str = ""
    """Name of the row of ``make bench`` that renews this figure."""
    floor: str = ""
    """Name of the row by which that row is divided, where the figure is a ratio."""


@dataclass(frozen=True)
class Measurement:
    """The figures of one command.

    Attributes:
        description: The measured work.
        command: The command that measures it.
        machine: The machine, and its other load.
        commit: The commit that was measured.
        date: The day, in ISO 8601.
        rows: Name → figure.
        together: Names of the measurements that pages show beside this one. All are renewed by one
            run, or none.
        sources: Glob of files, relative to the project → digest of their content.
        origin: How the rows came here, if the command did not write them.
        confirmations: Confirmations after a change of the sources: day, reason, changed sources.
    """

    description: str
    command: str
    machine: str
    commit: str
    date: str
    rows: Mapping[str, Figure]
    together: Sequence[str] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    confirmations: Sequence[Mapping[str, str]] = field(default_factory=tuple)

    def changes(self, root: Path = ROOT) -> list[str]:
        """Return the globs whose files have changed since the measurement or its confirmation."""
        return [
            glob
            for glob, recorded_digest in self.sources.items()
            if digest(glob, root) != recorded_digest
        ]

    def confirm(self, date: str, reason: str, root: Path = ROOT) -> Measurement:
        """Return the measurement with the present sources, and the reason why its rows hold."""
        entry = {"date": date, "reason": reason, "sources": ", ".join(self.changes(root))}
        return replace(
            self, sources=digests(self.sources, root), confirmations=[*self.confirmations, entry]
        )

    def renew(
        self, run: Mapping[str, Mapping[str, Any]], facts: Mapping[str, str], root: Path = ROOT
    ) -> Measurement | None:
        """Return the measurement with the figures of a run, or nothing if the run lacks a row.

        Args:
            run: Name → row of ``make bench``.
            facts: The run's machine, commit and date.
            root: The project's folder.
        """
        names = {name for row in self.rows.values() for name in (row.bench, row.floor) if name}
        if not all(row.bench for row in self.rows.values()) or not names <= run.keys():
            return None
        rows = {name: _renew(row, run) for name, row in self.rows.items()}
        sources = digests(self.sources, root)
        return replace(self, **facts, rows=rows, sources=sources, origin="", confirmations=())


def _renew(row: Figure, run: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Return a row with the figures of a run: a ratio is taken round by round."""
    values = _rounds(run[row.bench]["figure"])
    unit = run[row.bench]["unit"]
    if row.floor:
        floors = _rounds(run[row.floor]["figure"])
        values, unit = [value / floor for value, floor in zip(values, floors, strict=True)], TIMES
    value, low, high = spread(values)
    return replace(row, value=value, low=low, high=high, unit=unit)


def _rounds(figure: float | Sequence[float]) -> Sequence[float]:
    return figure if isinstance(figure, Sequence) else [figure]


def digest(glob: str, root: Path = ROOT) -> str:
    """Return a digest of the names and the content of the files of a glob.

    Raises:
        FileNotFoundError: The glob has no file.
    """
    files = sorted(path for path in root.glob(glob) if path.is_file())
    if not files:
        raise FileNotFoundError(f"{glob}: a source of a measurement that is missing in {root}")
    content = hashlib.sha256()
    for file in files:
        content.update(f"\0{file.relative_to(root)}\0".encode() + file.read_bytes())
    return content.hexdigest()[:16]


def digests(globs: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """Return glob → digest."""
    return {glob: digest(glob, root) for glob in globs}


def read(folder: Path = RESULTS) -> dict[str, Measurement]:
    """Read the measurements of a folder: name → measurement."""
    measurements = {}
    for path in sorted(folder.glob("*.json")):
        if path.name not in (RUN, RESCORED):
            fields = json.loads(path.read_text())
            rows = {name: Figure(**row) for name, row in fields.pop("rows").items()}
            measurements[path.stem] = Measurement(rows=rows, **fields)
    return measurements


def write(name: str, measurement: Measurement, folder: Path = RESULTS) -> None:
    """Write a measurement's file: a line for each row, without empty fields."""
    fields = asdict(measurement)
    rows = [
        f"  {_dump(row)}: {_dump({key: cell for key, cell in cells.items() if cell not in EMPTY})}"
        for row, cells in fields.pop("rows").items()
    ]
    lines = [f" {_dump(key)}: {_dump(value)}" for key, value in fields.items() if value]
    lines.append(' "rows": {\n' + ",\n".join(rows) + "\n }")
    (folder / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def figures(measurements: Mapping[str, Measurement]) -> dict[str, Figure]:
    """Return all rows, as pages name them: ``measurement.row``."""
    return {
        f"{name}.{row}": figure
        for name, measurement in measurements.items()
        for row, figure in measurement.rows.items()
    }


def list_stale(measurements: Mapping[str, Measurement], root: Path = ROOT) -> list[str]:
    """Return a sentence for each measurement whose sources have changed since."""
    return [
        f"{name}: {', '.join(changes)} changed since {_day(measurement)}. Measure again "
        f"({measurement.command}), or, if the figures hold: scripts/figures --confirm {name}"
        for name, measurement in measurements.items()
        if (changes := measurement.changes(root))
    ]


def _day(measurement: Measurement) -> str:
    """Return the day of the last confirmation, or else of the measurement."""
    return max([measurement.date, *(entry["date"] for entry in measurement.confirmations)])


def renew(report: Mapping[str, Any], folder: Path = RESULTS, root: Path = ROOT) -> list[str]:
    """Write the measurements whose rows a run of ``make bench`` has; return their names.

    A measurement is left as it is, and a line on stderr says so, if the run lacks rows of another
    that pages show beside it.
    """
    facts = report["facts"]
    load = f"load {facts['load'][0]:.1f}"
    machine = f"{facts['cpus']} cores, {facts['machine']}, {load}"
    run_facts = {"machine": machine, "commit": facts["commit"], "date": facts["time"][:10]}
    rows = {row["name"]: row for row in report["rows"]}
    renewals = {
        name: renewal
        for name, measurement in read(folder).items()
        if (renewal := measurement.renew(rows, run_facts, root))
    }
    names = []
    for name, renewal in renewals.items():
        if missing_names := [other for other in renewal.together if other not in renewals]:
            print(f"not renewed: {name}: without {', '.join(missing_names)}", file=sys.stderr)
        else:
            write(name, renewal, folder)
            names.append(name)
    return names
