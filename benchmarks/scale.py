"""A capacity model of the Ray executor: episodes a second of 1 to 1,000 nodes, and the first limit.

A small simulation of one driver and its stations, from figures that ``bench.py --only cluster``
measures on three nodes. The driver does as `intercode_integrations.ray.driver`, in one thread:
it hands out batches whose size follows the time of recent episodes, waits, looks at all calls
under way, takes the answers, and writes. ``python benchmarks/scale.py --help`` lists all figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from heapq import heappop, heappush
from random import Random

from intercode_integrations.ray.driver import BATCH_SECONDS, MAX_BATCH_JOBS

NODES = (1, 10, 100, 1_000)
FULL = 0.9
"""The share of its time from which on a resource counts as full."""


@dataclass(frozen=True)
class Measured:
    """The figures from which all else is computed: medians of three runs on two cores."""

    episodes: float = 30.6
    """Oracle's episodes a second of one core: "one process with 2 workers", halved."""
    many: float = 129e-6
    """Driver's seconds for an episode of large batches: "the driver's thread, for each of many"."""
    alone: float = 913e-6
    """Driver's seconds for an episode in a batch of its own: "the same, one in a batch"."""
    byte: float = 5.75e-9
    """Driver's seconds for each further byte of a record: "the driver's thread, for a longer"."""
    record: float = 413.0
    """Bytes of the record to which `many` and `alone` belong: "the record of an episode"."""
    look: float = 1.17e-6
    """Driver's seconds for a look at a call under way, twice a round: "a driver's look"."""
    post: float = 0.5e-6
    """Driver's seconds for a look at a station, once a round: the lists of `_hand_out`, alone."""
    trip: float = 3.93e-3
    """Seconds between two batches at a station: "what a call of its own adds"."""
    cluster: float = 0.0
    """Seconds that a cluster adds to an episode otherwise: "what the cluster adds", none found."""
    ledger: float = 1.52e-3
    """Ledger's seconds for a call of a model: "the ledger's CPU time"."""
    sync: float = 0.3e-3
    """Seconds until a small write is on the driver's disk: "a small record, written and synced"."""
    disk: float = 322e6
    """Bytes a second of the driver's disk: "the disk, written and synced"."""
    network: float = 1.25e9
    """Bytes a second that reach the driver's object store. Assumed: ten gigabits."""
    answers: float = 1000.0
    """Answers a second of the model's servers, all together. Assumed."""


@dataclass(frozen=True)
class Load:
    """The episodes of a run."""

    name: str
    each: int
    """Episodes of a run for each worker."""
    workers: int = 1
    """Episodes at a time for each core."""
    turns: int = 0
    """Calls of the model."""
    thought: float = 0.0
    """Seconds of each."""
    elsewhere: float = 0.0
    """Seconds in which neither model nor core is asked: a download, a long `sleep`."""
    record: float = 413.0
    """Bytes of a record."""

    def seconds(self, m: Measured) -> float:
        """Return the time of an episode on a node whose cores its workers share."""
        core = 1 / m.episodes
        waits = self.turns * (self.thought + m.ledger) + self.elsewhere
        return max(core * self.workers, core + waits) + m.cluster


def loads(thought: float = 0.2, turns: int = 5, slow: float = 30.0, workers: int = 4) -> list[Load]:
    """Return the loads of the table."""
    return [
        Load("oracle", each=200),
        Load("agent", 10, workers, turns, thought, record=5_000),
        Load("slow agent", 10, workers, turns, thought, slow - turns * thought, record=20_000),
    ]


@dataclass
class Line:
    """A resource that serves one after the other."""

    free: float = 0.0
    busy: float = 0.0

    def serve(self, now: float, seconds: float) -> float:
        """Return the moment at which what comes now is served."""
        self.busy += seconds
        self.free = max(self.free, now) + seconds
        return self.free


@dataclass
class Driver:
    """The driver's thread, as its loop and `_batch` are."""

    m: Measured
    load: Load
    workers: int
    stations: int
    left: int
    """Episodes that were not handed out."""
    now: float = 0.0
    each: float = 0.0
    """The time of an episode, of late: `_seconds`."""
    calls: list[tuple[float, float, int]] = field(default_factory=list)
    """End, seconds at the station and episodes of each that is under way, as a heap."""
    lines: dict[str, Line] = field(
        default_factory=lambda: {name: Line() for name in ("ledger", "model", "network")}
    )
    thread: float = 0.0
    """Seconds in which it worked, without the disk's."""
    disk: float = 0.0
    batches: int = 0
    done: list[tuple[float, int, dict[str, float]]] = field(default_factory=list)
    """Each time it has written: the moment, the episodes so far, and how long each has worked."""
    chance: Random = field(default_factory=lambda: Random(0))

    def run(self) -> None:
        """Play all episodes."""
        while self.left or self.calls:
            self._work(self.m.post * self.stations)
            while self.left and len(self.calls) < self.workers:
                self._hand_out()
            self.now = max(self.now, self.calls[0][0])  # it sleeps until the first is there
            self._work(2 * self.m.look * len(self.calls))
            self._receive()

    def _work(self, seconds: float) -> None:
        self.thread += seconds
        self.now += seconds

    @property
    def _call(self) -> float:
        """Seconds for a batch: `alone` is a whole one's, `many` has its share of one of 64."""
        return (self.m.alone - self.m.many) / (1 - 1 / MAX_BATCH_JOBS)

    def _hand_out(self) -> None:
        fair = self.left // (2 * self.workers)
        size = int(BATCH_SECONDS / self.each) if self.each else 1
        count = max(1, min(size, fair, MAX_BATCH_JOBS, self.left))
        self.left -= count
        self.batches += 1
        self._work(self._call / 2)
        spread = self.chance.uniform(0.5, 1.5)  # else all batches would end at once
        end = self.now + self.m.trip + count * self.load.seconds(self.m) * spread
        asked = count * self.load.turns
        for name, seconds in (
            ("ledger", asked * self.m.ledger),
            ("model", asked / self.m.answers),
            ("network", count * self.load.record / self.m.network),
        ):
            if seconds:
                end = max(end, self.lines[name].serve(self.now, seconds))
        took = end - self.now - self.m.trip
        heappush(self.calls, (end, took, count))

    def _receive(self) -> None:
        """Take all answers that are there, and write them at once."""
        ready = []
        while self.calls and self.calls[0][0] <= self.now:
            ready.append(heappop(self.calls))
        longer = self.m.byte * (self.load.record - self.m.record)
        each = self.m.many - self._call / MAX_BATCH_JOBS + longer
        for _, took, count in ready:
            self._work(self._call / 2 + count * each)
            self.each = 0.8 * self.each + 0.2 * took / count if self.each else took / count
        number = sum(count for _, _, count in ready)
        writing = self.m.sync + number * self.load.record / self.m.disk
        self.disk += writing
        self.now += writing
        worked = {"driver": self.thread, "disk": self.disk}
        worked |= {name: line.busy for name, line in self.lines.items()}
        before = self.done[-1][1] if self.done else 0
        self.done.append((self.now, before + number, worked))


@dataclass(frozen=True)
class Result:
    """The throughput of a cluster under a load."""

    load: str
    nodes: int
    workers: int
    rate: float
    """Episodes a second, without the beginning and the end of the run."""
    share: float
    """`rate` as a share of what the nodes would give if nothing else were full."""
    batch: float
    """Episodes of a batch, on average."""
    full: str
    """The resource that is full; the nodes, if no other is."""
    used: dict[str, float]
    """Resource → the share of the time in which it works."""


def simulate(load: Load, nodes: int, cores: float, m: Measured, least: int) -> Result:
    """Play a run, with one station for each core.

    Args:
        load: The episodes.
        nodes: The nodes.
        cores: Of each.
        m: The figures.
        least: Episodes of the run, so that chance makes no difference.
    """
    stations = round(nodes * cores)
    workers = stations * load.workers
    total = max(load.each * workers, least)
    driver = Driver(m, load, workers, stations, left=total)
    driver.run()
    middle = [one for one in driver.done if 0.25 * total <= one[1] <= 0.75 * total]
    (began, first, before), (end, last, after) = middle[0], middle[-1]
    rate = (last - first) / (end - began)
    used = {name: (after[name] - before[name]) / (end - began) for name in after}
    most = max(used, key=lambda name: used[name])
    return Result(
        load.name,
        nodes,
        workers,
        rate,
        share=rate * load.seconds(m) / workers,
        batch=total / driver.batches,
        full=most if used[most] > FULL else "nodes",
        used=used,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cores", type=int, default=16, help="of a node (16)")
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--thought", type=float, default=0.2, help="seconds of an answer (0.2)")
    parser.add_argument("--turns", type=int, default=5, help="answers of an episode (5)")
    parser.add_argument("--slow", type=float, default=30.0, help="seconds of a slow episode (30)")
    parser.add_argument("--workers", type=int, default=4, help="agents for each core (4)")
    parser.add_argument("--least", type=int, default=100_000, help="episodes of a run (100000)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    for one in fields(Measured):
        parser.add_argument(
            f"--{one.name}", type=float, default=one.default, help=argparse.SUPPRESS
        )
    args = parser.parse_args(argv)
    m = Measured(**{one.name: getattr(args, one.name) for one in fields(Measured)})
    results = [
        simulate(load, nodes, args.cores, m, args.least)
        for load in loads(args.thought, args.turns, args.slow, args.workers)
        for nodes in args.nodes
    ]
    if args.json:
        print(json.dumps([asdict(one) for one in results], indent=2))
        return 0
    print(
        f"{'load':12}{'nodes':>6}{'workers':>9}{'episodes/s':>12}{'of ideal':>10}{'batch':>7}  full"
    )
    for one in results:
        print(
            f"{one.load:12}{one.nodes:6}{one.workers:9}{one.rate:12,.1f}{one.share:10.0%}"
            f"{one.batch:7.1f}  {one.full}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
