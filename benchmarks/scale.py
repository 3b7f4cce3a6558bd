"""What 10, 100 and 1,000 nodes would give, and what would break first: a simulation.

Each worker goes round and round: its node's processors, the model, the driver, the driver's disk.
Every station has a queue; times are exponential. The figures are those of ``cluster.py``: by
default those of docs/explanation/scale.md, or another machine's::

    python benchmarks/bench.py --only cluster
    python benchmarks/scale.py benchmarks/results/bench.json
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from random import Random

ROUNDS = 6
"""Episodes of each worker; those of the first half are not counted."""
SIZES = (10, 100, 1000)
CORES, CALLS_AT_ONCE = 16, 2000
"""Assumed: the processors of a node, and the calls that a model's servers answer at once."""


@dataclass(frozen=True)
class Figures:
    """Measured on one machine, in seconds and bytes."""

    here: float
    """Episodes a second, of one process on all its cores, of which there are two."""
    added: float
    """Seconds that a cluster adds to an episode."""
    taken: float
    """Episodes a second that a driver takes and writes, in batches."""
    alone: float
    """The same, with one episode in a batch, as it is if episodes take longer than a second."""
    look: float
    """Seconds in which a driver looks at one call under way."""
    record: float
    """Bytes of an episode's record."""
    disk: float
    """Bytes a second that the disk takes."""

    @property
    def cpu(self) -> float:
        """Seconds that an episode takes of a processor."""
        return 2 / self.here


NAMES = {
    "here": ("episodes, one process with 2 workers", 1.0),
    "added": ("what the cluster adds to an episode", 1e-3),
    "taken": ("free episodes that a driver takes and writes", 1.0),
    "alone": ("the same, one in a batch", 1.0),
    "look": ("a driver's look at a call under way", 1e-6),
    "record": ("the record of an episode", 1.0),
    "disk": ("the disk, written and synced", 1e6),
}
"""Figure → its row in a benchmark's results, and its unit."""
MEASURED = Figures(0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Station:
    """A place that workers come through."""

    name: str
    seconds: float
    """The time of an episode there, on the average."""
    servers: float = inf
    """Episodes at a time, in each copy."""
    copies: int = 1
    """A worker always comes to the same one."""


@dataclass(frozen=True)
class Outcome:
    rate: float
    """Episodes a second."""
    busy: dict[str, float]
    """Station → the share of its time in which it works."""


def simulate(
    stations: Sequence[Station],
    workers: int,
    rounds: int = ROUNDS,
    draw: Callable[[float], float] | None = None,
) -> Outcome:
    """Let workers go round.

    Args:
        stations: The stations, in order.
        workers: The number of workers.
        rounds: Episodes of each.
        draw: A mean → a time; default: exponential.
    """
    chance = Random(1)
    draw = draw or (lambda mean: chance.expovariate(1 / mean) if mean else 0.0)
    free = [[station.servers] * station.copies for station in stations]
    queues = [[deque[int]() for _ in range(station.copies)] for station in stations]
    busy = [0.0] * len(stations)
    ends: list[tuple[float, int, int]] = []
    now, done, since = 0.0, 0, 0.0

    def arrive(worker: int, at: int) -> None:
        copy = worker % stations[at].copies
        if free[at][copy]:
            free[at][copy] -= 1
            begin(worker, at)
        else:
            queues[at][copy].append(worker)

    def begin(worker: int, at: int) -> None:
        seconds = draw(stations[at].seconds)
        busy[at] += seconds
        heappush(ends, (now + seconds, worker, at))

    for worker in range(workers):
        arrive(worker, 0)
    while done < workers * rounds:
        now, worker, at = heappop(ends)
        copy = worker % stations[at].copies
        if queues[at][copy]:
            begin(queues[at][copy].popleft(), at)
        else:
            free[at][copy] += 1
        if at == len(stations) - 1:
            done += 1
            if done == workers * (rounds // 2):
                since, busy = now, [0.0] * len(stations)
        arrive(worker, (at + 1) % len(stations))
    elapsed = now - since
    shares = {
        station.name: seconds / (station.servers * station.copies * elapsed)
        for station, seconds in zip(stations, busy, strict=True)
        if station.servers < inf
    }
    return Outcome(workers * (rounds - rounds // 2) / elapsed, shares)


@dataclass(frozen=True)
class Kind:
    """A kind of run: what an episode takes, as assumed."""

    name: str
    workers: int
    """On each node."""
    turns: int = 1
    """As many times the processors, and the record, of an episode of one command."""
    latency: float = 0.0
    """Seconds of a model's call, one in each turn."""


KINDS = (
    Kind("one command, no model", CORES),
    Kind("8 turns of 2 s", 64, 8, 2.0),
)


def cluster_of(nodes: int, kind: Kind, figures: Figures) -> list[Station]:
    """The stations of a cluster."""
    cpu, thought = kind.turns * figures.cpu, kind.turns * kind.latency
    take = 1 / (figures.alone if cpu + thought > 1 else figures.taken)
    return [
        Station("nodes", cpu, CORES, nodes),
        Station("overhead", figures.added),
        Station("model", thought, CALLS_AT_ONCE),
        Station("driver", take, 1),
        Station("disk", kind.turns * figures.record / figures.disk, 1),
    ]


def measured(results: Path) -> Figures:
    """Read the figures from a benchmark's results."""
    rows = {row["name"]: row["value"] for row in json.loads(results.read_text())["rows"]}
    return Figures(**{name: rows[row] * unit for name, (row, unit) in NAMES.items()})


def main() -> None:
    """Print a table."""
    figures = measured(Path(sys.argv[1])) if len(sys.argv) > 1 else MEASURED
    print(f"{'':24}{'nodes':>6}{'workers':>9}{'episodes/s':>12}{'a node':>9}  busiest")
    for kind in KINDS:
        for nodes in SIZES:
            workers = nodes * kind.workers
            found = simulate(cluster_of(nodes, kind, figures), workers)
            shares = sorted(found.busy.items(), key=lambda one: -one[1])
            busiest = ", ".join(f"{name} {share:.0%}" for name, share in shares[:2])
            print(
                f"{kind.name:24}{nodes:6}{workers:9}{found.rate:12.0f}{found.rate / nodes:9.2f}  "
                f"{busiest}"
            )


if __name__ == "__main__":
    main()
