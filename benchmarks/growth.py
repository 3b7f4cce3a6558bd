"""Growth: what an episode costs beside many sandboxes that are merely alive.

One process plays blocks of episodes in turns with few and with many environments alive. Each
figure is a ratio of two neighbouring blocks, so that a busy minute meets both. Other sandboxes of
the machine count as alive, too: the figures hold for a machine that has few of them. CPU is without
that of the kernel's own threads, of which the rate tells.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import intercode
from episodes import ECHO
from intercode.task import Dataset
from processes import cpu_seconds
from rows import Row, spread

FEW, MANY = 8, 1000
WARM = 10
SHARE = 0.8
"""The rate beside many that is asked for, as a share of the rate beside few."""


def play(env: Any, episodes: int) -> None:
    """Play complete episodes of one turn."""
    for _ in range(episodes):
        env.reset()
        env.step("echo hello")
        if env.step("submit")[1] != 1.0:
            raise SystemExit("an echo was not rewarded")


class Population:
    """Environments that are alive: the first few of them play, all others are idle."""

    def __init__(self, players: int) -> None:
        self.players = players
        self.envs: list[Any] = []
        self.data = Dataset([ECHO])

    def resize(self, count: int) -> float:
        """Have so many environments, each with a sandbox and a shell: the seconds that it took."""
        begin = time.perf_counter()
        while len(self.envs) < count:
            env = intercode.make("bash", data=self.data)
            env.reset()
            env.step("true")
            self.envs.append(env)
        while len(self.envs) > count:
            self.envs.pop().close()
        return time.perf_counter() - begin

    def block(self, episodes: int) -> tuple[float, float]:
        """Play that many episodes: episodes a second, and milliseconds of CPU of each."""
        each = episodes // self.players
        with ThreadPoolExecutor(self.players) as pool:
            # Until its spawner has ids and cgroups for all that are about to start and to end.
            list(pool.map(lambda env: play(env, WARM), self.envs[: self.players]))
            cpu, begin = cpu_seconds(), time.perf_counter()
            list(pool.map(lambda env: play(env, each), self.envs[: self.players]))
            seconds = time.perf_counter() - begin
            cpu = cpu_seconds() - cpu
        return each * self.players / seconds, 1e3 * cpu / (each * self.players)


def measure(rounds: int, episodes: int, many: int, players: int) -> list[Row]:
    """Play in turns beside few and beside many."""
    population = Population(players)
    figures: dict[int, list[tuple[float, float]]] = {FEW: [], many: []}
    opened: list[float] = []
    opening: list[float] = []
    try:
        for number in range(rounds):
            for count in (FEW, many) if number % 2 == 0 else (many, FEW):
                grows = 0 < len(population.envs) < count
                before, seconds = cpu_seconds(), population.resize(count)
                if grows:
                    opened.append(seconds)
                    opening.append(1e3 * (cpu_seconds() - before) / (many - FEW))
                figures[count].append(population.block(episodes))
    finally:
        population.resize(0)
    pairs = list(zip(figures[FEW], figures[many], strict=True))
    shares = [beside[0] / alone[0] for alone, beside in pairs]
    return [
        Row(f"{many - FEW} more environments opened", opened, "s"),
        Row("the same, CPU of each, without shells", opening, "ms"),
        *(Row(f"episodes beside {n}", [rate for rate, _ in figures[n]], "/s") for n in figures),
        *(Row(f"CPU of each beside {n}", [cpu for _, cpu in figures[n]], "ms") for n in figures),
        Row(
            f"rate beside {many} / beside {FEW}",
            shares,
            "",
            f"> {SHARE}",
            spread(shares)[0] > SHARE,
        ),
        Row(f"CPU beside {many} / beside {FEW}", [b[1] / a[1] for a, b in pairs], ""),
    ]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=400, help="of a block")
    parser.add_argument("--many", type=int, default=MANY, help="environments alive")
    parser.add_argument("--players", type=int, default=FEW, help="environments that play at once")
    args = parser.parse_args()
    rows = measure(args.rounds, args.episodes, args.many, args.players)
    for row in rows:
        print(row)
    return int(any(row.ok is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
