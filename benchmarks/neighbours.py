"""Honest episodes beside a hostile sandbox, by what that one makes and ends all the time.

    python benchmarks/neighbours.py [--seconds N] [--blocks N] [--making N] [NAME …]

A neighbour has a sandbox in which 200 processes make as many things of one kind as they can, for
`--making` seconds; then it is closed, and the next one begins: `endings.py` has the makers.
Meanwhile honest Bash episodes are played. The figure of a maker is the rate beside it, as a ratio
to the mean rate of the two blocks before and after it, beside a neighbour whose 200 processes only
loop, at the same limits, and which is closed as often. An attempt that fails for whatever reason is
lost.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import intercode
from endings import HEAD, MAKERS, PROCESSES, indented
from episodes import ECHO
from intercode.errors import InterCodeError
from intercode.task import Dataset
from intercode_sandbox import Limits
from intercode_sandbox.native.provider import NativeProvider
from rows import Row

BUSY = "busy loop"
SHARE = 0.8
"""The rate beside a maker that is asked for, as a share of the rate beside a busy loop."""


class Neighbour(threading.Thread):
    """Somebody whose sandboxes make things of one kind, and are closed, one after the other."""

    def __init__(self, name: str, making: float) -> None:
        super().__init__(name=f"neighbour: {name}")
        body = indented(MAKERS[name])
        self._script = HEAD.format(seconds=making, workers=PROCESSES, body=body)
        self._over = threading.Event()
        self.begun = threading.Event()
        self.ends = 0

    def run(self) -> None:
        with closing(NativeProvider()) as provider:
            while not self._over.is_set():
                sandbox = provider.start(limits=Limits(timeout=600))
                self.begun.set()
                maker = sandbox.popen(
                    ["python3", "-c", self._script], channels={1: "w"}, merge_stderr=True
                )
                with open(maker.fds[1], "rb", closefd=False) as out:
                    out.readline()  # all have made what they could
                sandbox.close()
                self.ends += 1

    def end(self) -> None:
        """Stop after the present sandbox, and wait until it is closed."""
        self._over.set()
        self.join()


@dataclass(frozen=True, slots=True)
class Block:
    """Some seconds of honest episodes beside one neighbour."""

    rate: float
    lost: int
    ends: int


def block(env: intercode.InterCodeEnv, name: str, seconds: float, making: float) -> Block:
    """Play beside a neighbour for some seconds."""
    neighbour = Neighbour(name, making)
    neighbour.start()
    neighbour.begun.wait()
    played = lost = 0
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        try:
            env.reset()
            env.step("echo hello")
            lost += env.step("submit")[1] != 1.0
        except InterCodeError as error:
            print(f"lost beside {name}: {error}", file=sys.stderr)
            lost += 1
        played += 1
    rate = played / (time.monotonic() - begin)
    neighbour.end()
    return Block(rate, lost, neighbour.ends)


def measure(names: Sequence[str], seconds: float, blocks: int, making: float) -> list[Row]:
    """Play beside each maker, between two blocks beside a busy loop."""
    ratios: dict[str, list[float]] = {name: [] for name in names}
    busy: list[float] = []
    lost: dict[str, int] = dict.fromkeys((BUSY, *names), 0)
    ends: dict[str, int] = dict.fromkeys((BUSY, *names), 0)
    with closing(intercode.make("bash", data=Dataset([ECHO]))) as env:
        block(env, BUSY, seconds, making)  # the first sandboxes, the gold, the caches
        before = block(env, BUSY, seconds, making)
        for _ in range(blocks):
            for name in names:
                beside = block(env, name, seconds, making)
                after = block(env, BUSY, seconds, making)
                ratios[name].append(2 * beside.rate / (before.rate + after.rate))
                busy.append(before.rate)
                lost[BUSY] += after.lost
                lost[name] += beside.lost
                ends[name] += beside.ends
                before = after
    rows = [Row(f"beside a {BUSY}", busy, "/s", note=f"{lost[BUSY]} lost")]
    for name, values in ratios.items():
        rows.append(
            Row(
                f"{name} / {BUSY}",
                values,
                "",
                f"> {SHARE}, none lost",
                statistics.median(values) > SHARE and not lost[name],
                f"{lost[name]} lost, {ends[name]} sandboxes",
            )
        )
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of a block")
    parser.add_argument("--blocks", type=int, default=2, help="beside each maker")
    parser.add_argument("--making", type=float, default=1.0, help="seconds of each neighbour")
    parser.add_argument("names", nargs="*", metavar="NAME", help="makers of endings.py")
    args = parser.parse_args()
    names = args.names or [name for name in MAKERS if name != BUSY]
    rows = measure(names, args.seconds, args.blocks, args.making)
    for row in rows:
        print(row)
    return int(any(row.ok is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
