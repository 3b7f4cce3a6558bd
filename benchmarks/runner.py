"""The runner: its own work per turn, episodes a second, memory over many, reading them back."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import intercode
from floors import median_ms
from idle import IdleEnv, tasks
from intercode import datasets
from intercode.agents import registry
from intercode.agents.base import AgentFactory
from intercode.agents.builtin import ScriptedAgent
from intercode.episode import Episode
from intercode.evaluate import Progress, RunResult, evaluate
from intercode.models import get_model
from intercode.records import EPISODES, read_episodes
from intercode.rewards.gold import GoldCache
from intercode.task import Dataset
from processes import Roles
from rows import Row, below

EPISODES_AT_ALL, ONE_LINERS, WORKERS = 10_000, 200, 8
RULES = """{"turn": 0, "say": "```bash\\necho hello\\n```"}\n{"say": "submit"}\n"""
SERVER = """
import sys
from intercode.models.scripted import Line
from intercode_integrations.testing import ScriptedServer
with ScriptedServer(lambda _: Line("```bash\\necho hello\\n```")) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


def measure() -> list[Row]:
    """All of it."""
    # Nobody has to know that what is scripted has no price.
    logging.getLogger("intercode.models.remote").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "rules.jsonl").write_text(RULES)
        return [*own_work(folder), *one_liners(folder), *many(folder)]


def own_work(folder: Path) -> list[Row]:
    """CPU time per turn, the record's writing included, where nothing else takes any."""
    idle = ("an agent that does nothing", lambda task: ScriptedAgent(["true"] * 50), 200, 50)
    model = ("try-again, scripted model", scripted("try-again", folder), 1000, 1)
    return [per_turn(*who, folder / "own") for who in (idle, model)]


def per_turn(name: str, agent: AgentFactory, episodes: int, turns: int, out: Path) -> Row:
    """CPU time of a run by the number of its turns."""
    data = tasks(episodes)
    before = time.process_time()
    run(data, agent, lambda: IdleEnv(data), out / name, workers=2)
    ms = 1e3 * (time.process_time() - before) / (episodes * turns)
    note = f"{episodes} episodes of {turns} turn{'s' * (turns > 1)}, all of their CPU time"
    return below(f"runner's CPU per turn, {name}", ms, 1, "ms", note)


def one_liners(folder: Path) -> list[Row]:
    """Episodes of one turn in Bash a second: model in the process, and at the end of a socket."""
    easy = [t for t in datasets.load("bash") if "easy" in t.tags and not t.verification]
    data = Dataset(easy[:20], name="one-liners")

    gold = GoldCache()  # one for all workers, as the command has it

    def env() -> Any:
        return intercode.make("bash", data=data, cache_gold=gold).unwrapped

    def rate(model: Any, name: str) -> float:
        agent = registry.get("single-turn", model=model)
        run(data, agent, env, folder / f"{name}-warm", epochs=1)
        result = run(data, agent, env, folder / name, epochs=ONE_LINERS // len(data))
        return result.ran / result.seconds

    with get_model(f"scripted/{folder / 'rules.jsonl'}") as model:
        inside = rate(model, "inside")
    with server() as url, get_model("openai-compatible/any", base_url=url) as model:
        outside = rate(model, "outside")
    floor = sandbox_ms(env)
    most = 1e3 * (os.cpu_count() or 1) / floor
    note = f"{100 * inside / most:.0f} % of what {os.cpu_count()} cores make of it"
    return [
        Row("reset, an echo, submit: CPU time, all processes", floor, "ms"),
        fast("episodes of one turn, scripted model", inside, note),
        fast("the same, model over HTTP", outside, f"{100 * outside / most:.0f} %"),
    ]


def sandbox_ms(env: Callable[[], Any], episodes: int = 40) -> float:
    """What an episode takes of the processors without any runner."""
    one = env()
    for number in range(episodes + 5):
        if number == 5:
            roles = Roles()
        one.reset()
        one.step("echo hello")
        one.step("submit")
    took = sum(roles.taken().values())
    one.close()
    return 1e3 * took / episodes


def many(folder: Path) -> list[Row]:
    """Memory and rate over many episodes; the report of them; reading them back."""
    out, watch = folder / "many", Watch()
    data = tasks(EPISODES_AT_ALL)
    agent = scripted("try-again", folder)
    run(data, agent, lambda: IdleEnv(data), out, progress=watch)
    growth = watch.memory[-1] - watch.memory[len(watch.memory) // 2]
    rates = watch.rates
    first, last = (sum(part) / len(part) for part in (rates[:5], rates[-5:]))
    size = (out / EPISODES).stat().st_size
    reading = median_ms(lambda: sum(1 for _ in read_episodes(out / EPISODES)), 1) / 1e3
    command = [str(Path(sys.executable).parent / "intercode"), "report", str(out)]
    report = median_ms(lambda: subprocess.run(command, check=True, capture_output=True), 1) / 1e3
    note = f"{size / 1e6:.0f} MB"
    return [
        below("memory gained in the second 5,000 of 10,000 episodes", growth, 8, "MiB"),
        below(
            "first 2,500 episodes' rate / last 2,500's", first / last, 1.25, "", f"{last:.0f} /s"
        ),
        below("reading 10,000 episodes back", reading, 2, "s", note),
        below("intercode report over 10,000 episodes", report, 10, "s", note),
    ]


class Watch(Progress):
    """Looks at memory and rate every so often."""

    EVERY = 500

    def __init__(self) -> None:
        self.memory: list[float] = []
        self.rates: list[float] = []
        self._count, self._since = 0, time.monotonic()

    def episode(self, episode: Episode) -> None:
        """Count it."""
        self._count += 1
        if self._count % self.EVERY == 0:
            now = time.monotonic()
            self.memory.append(memory())
            self.rates.append(self.EVERY / (now - self._since))
            self._since = now


def run(
    data: Dataset,
    agent: AgentFactory,
    env: Callable[[], Any],
    out: Path,
    workers: int = WORKERS,
    **options: Any,
) -> RunResult:
    """A run on the disk; all must have a result."""
    result = evaluate(data, agent, env, workers=workers, out=out, **options)
    if not result.complete:
        raise SystemExit(f"episodes without a result: {result.statistics}")
    return result


def scripted(strategy: str, folder: Path) -> AgentFactory:
    """A strategy with a model that answers at once."""
    return registry.get(strategy, model=get_model(f"scripted/{folder / 'rules.jsonl'}"))


@contextmanager
def server() -> Iterator[str]:
    """The URL of a model in a process of its own."""
    os.environ.setdefault("OPENAI_API_KEY", "none")
    child = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin and child.stdout
    try:
        yield child.stdout.readline().strip()
    finally:
        child.stdin.close()
        child.wait()


def fast(name: str, rate: float, note: str) -> Row:
    """Episodes a second."""
    return Row(name, rate, "/s", ">= 100 /s, goal 400 /s", rate >= 100, note)


def memory() -> float:
    """What this process holds, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20
