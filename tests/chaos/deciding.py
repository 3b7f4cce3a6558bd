"""Decide who is frozen, and for how long: by a seed and by what happens in a test.

A decision is a hash of the seed, the place (a test), the kind of event, what the process is, and
how many such events the place had before. The clock and the numbers of processes are no part of it:
the same test has the same freezes, alone or after others, as far as its own order is the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .freezing import Freezer
from .hearing import Event

VARIABLE = re.compile(rf"(?:{re.escape(tempfile.gettempdir())}|/dev/shm)/\S*|[0-9a-f]{{8,}}|\d+")
LONGEST_SHAPE = 160
PYTEST = "pytest"


class Settings(NamedTuple):
    """How much chaos."""

    seed: int
    chance: float
    """How probable a freeze is at an event."""
    longest: float
    """Seconds."""
    looks: float
    """How often a second one thread of each worker's processes is a candidate."""


class Decision(NamedTuple):
    """What happens at an event."""

    kind: str
    """`fork`, `exec`, `thread` (a new one), or `look` (a random one, at intervals)."""
    key: str
    seconds: float
    """0 if nobody is frozen."""
    choice: int
    """To choose a thread by, if there are several."""


def decide(settings: Settings, place: str, kind: str, shape: str, nth: int) -> Decision:
    """Decide about the n-th event of a kind, with processes of this shape, in a place."""
    key = f"{place} | {kind} | {shape} | {nth}"
    digest = hashlib.blake2b(f"{settings.seed} | {key}".encode()).digest()
    chance, share, choice = (int.from_bytes(digest[n : n + 8], "big") for n in (0, 8, 16))
    frozen = chance / 2**64 < settings.chance
    return Decision(kind, key, settings.longest * share / 2**64 if frozen else 0.0, choice)


def shape_of(pid: int) -> str:
    """Return what a process runs, without what differs each time; empty if it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    words = " ".join(words)[: 4 * LONGEST_SHAPE].split()
    return VARIABLE.sub("#", " ".join(words))[:LONGEST_SHAPE]


class Worker:
    """A process that runs tests: where it was when, and what was decided there."""

    def __init__(self, diary: Path) -> None:
        self._diary = open(diary)
        self._entries: list[tuple[int, str, str]] = [(0, "", "")]
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.members: dict[int, None] = {}
        """Its processes, in the order of their births."""

    def at(self, moment: int) -> tuple[str, str]:
        """Return the test and the place that were under way; empty between tests."""
        self._entries += [tuple(json.loads(line)) for line in self._diary]
        while len(self._entries) > 1 and self._entries[1][0] <= moment:
            del self._entries[0]
        return self._entries[0][1:]

    def decide(self, settings: Settings, place: str, kind: str, shape: str) -> Decision:
        """Decide about the next event of this kind and shape in a place."""
        nth = self.counts[place, kind, shape]
        self.counts[place, kind, shape] += 1
        return decide(settings, place, kind, shape, nth)

    def close(self) -> None:
        """Read no longer."""
        self._diary.close()


class Process:
    """A process of the tests."""

    def __init__(self, shape: str, worker: Worker | None) -> None:
        self.shape = shape
        self.worker = worker


class Chaos:
    """All processes of one run of pytest, and the freezes among them."""

    def __init__(
        self,
        settings: Settings,
        freezer: Freezer,
        pytest: int,
        folder: Path,
        log: Callable[[dict[str, object]], None],
    ) -> None:
        self._settings = settings
        self._freezer = freezer
        self._folder = folder
        self._log = log
        self._family = {pytest: Process(PYTEST, None)}
        self._workers: dict[int, Worker] = {}

    def heed(self, event: Event) -> None:
        """Take note of an event, and perhaps freeze whom it is about."""
        if event.kind == "fork":
            self._fork(event)
        elif process := self._family.get(event.process):
            if event.kind == "exec":
                process.shape = shape_of(event.process)
                self._perhaps_freeze(event, "exec", process)
            elif event.thread == event.process:
                del self._family[event.process]
                if process.worker:
                    process.worker.members.pop(event.process, None)

    def _fork(self, event: Event) -> None:
        parent = self._family.get(event.parent)
        if event.thread != event.process:
            process = self._family.get(event.process)
            if process and (self._worker_of(event.process, process)):
                self._perhaps_freeze(event, "thread", process)
        elif parent:
            worker = self._worker_of(event.parent, parent)
            process = self._family[event.process] = Process(parent.shape, worker)
            if worker:
                worker.members[event.process] = None
                self._perhaps_freeze(event, "fork", process)

    def _worker_of(self, pid: int, process: Process) -> Worker | None:
        """Return whose process it is; one that has a diary is itself a worker, from then on."""
        diary = self._folder / str(pid)
        if process.worker is None and diary.exists():
            process.shape = PYTEST
            process.worker = self._workers[pid] = Worker(diary)
            process.worker.members[pid] = None
        return process.worker

    def _perhaps_freeze(self, event: Event, kind: str, process: Process) -> None:
        if process.worker is None or not process.shape:
            return
        test, place = process.worker.at(event.time)
        if not place:
            return
        decision = process.worker.decide(self._settings, place, kind, process.shape)
        if decision.seconds:
            self._freeze(decision, test, event.thread, process, whole=kind != "thread")

    def look(self) -> None:
        """Perhaps freeze a thread of each worker's processes."""
        for worker in self._workers.values():
            test, place = worker.at(time.monotonic_ns())
            if not (place and worker.members):
                continue
            decision = worker.decide(self._settings, place, "look", "")
            if decision.seconds:
                members = [*worker.members]
                pid = members[decision.choice % len(members)]
                try:
                    threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
                except OSError:  # it is gone
                    continue
                thread = threads[decision.choice // len(members) % len(threads)]
                self._freeze(decision, test, thread, self._family[pid], whole=False)

    def _freeze(
        self, decision: Decision, test: str, pid: int, process: Process, *, whole: bool
    ) -> None:
        if self._freezer.freeze(pid, decision.seconds, whole=whole):
            entry: dict[str, object] = {"time": time.time(), "test": test}
            entry["seconds"] = round(decision.seconds, 3)
            entry.update(kind=decision.kind, process=process.shape, pid=pid, key=decision.key)
            self._log(entry)

    def close(self) -> None:
        """Thaw everything."""
        self._freezer.thaw(everything=True)
        for worker in self._workers.values():
            worker.close()
