"""Command-line agents of others, really installed, solve bundled tasks with a scripted model.

``INTERCODE_AGENTS`` names those that are checked; they are installed unless they are there.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import intercode
from intercode.agents.outside import layers
from intercode.cli.main import main
from intercode.episode import Episode
from intercode.errors import FetchError, ImageError
from intercode.models.base import Usage
from intercode.models.prices import Price
from intercode.models.scripted import Line
from intercode.records import Outcome, read_episodes
from intercode.sandbox import get_provider
from intercode.testing import ScriptedServer, shell
from soak.held import AHEAD, held

KEY = "sk-very-secret-0123456789"
PRICE = {"input": 2.5, "output": 10.0}
TRIES = 3
BASH = ("shop-07", "project-05", "archive-10")
SWE = ("swe-duedate", "swe-keepsake", "swe-tidyconf")


@dataclass(frozen=True)
class Driven:
    """How a model makes an agent solve a task.

    Attributes:
        model: The model, by a name whose edit format the agent knows, if it has one.
        env: The environment of its kind of tasks.
        tasks: Of that kind.
        end: The reply after the action.
    """

    model: str = "openai-compatible/scripted"
    env: str = "bash"
    tasks: Sequence[str] = BASH
    end: Line = Line("Done.")  # noqa: RUF009 - frozen

    def solve(self, gold: str) -> list[Line]:
        """Return the replies that solve a task."""
        if self.env == "swe":
            return [Line(f"I change it.\n\n{edits(gold)}")]  # there are replies in its prompt
        return [shell(gold), self.end]


AGENTS = {
    "aider": Driven("openai-compatible/gpt-4o", "swe", SWE),
    "claude-code": Driven("anthropic/scripted"),
    "codex": Driven(),
    "mini-swe-agent": Driven(end=shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
}
CHOSEN = os.environ.get("INTERCODE_AGENTS", "aider mini-swe-agent").split()


def edits(patch: str) -> str:
    """Write a patch as the blocks of Aider's edit format ``diff``, one for each hunk."""
    blocks, path = [], ""
    old, new = list[str](), list[str]()
    for line in [*patch.splitlines(), "@@"]:
        if line.startswith(("@@", "diff --git ")):
            if old or new:
                texts = "\n".join(old), "\n".join(new)
                block = "<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE".format(*texts)
                blocks.append(f"{path}\n```\n{block}\n```")
            old, new = [], []
        elif line.startswith("+++ b/"):
            path = line.removeprefix("+++ b/")
        elif not line.startswith(("index ", "--- a/")):
            old += [line[1:]] if line[:1] != "+" else []
            new += [line[1:]] if line[:1] != "-" else []
    return "\n\n".join(blocks)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(key=KEY) as running:
        yield running


@pytest.fixture(scope="module", params=CHOSEN)
def agent(request: pytest.FixtureRequest) -> str:
    """Install an agent; an index that fails once is asked again."""
    name: str = request.param
    for left in reversed(range(TRIES)):
        try:
            layers.install(name, print)
            break
        except (FetchError, ImageError):
            if not left:
                raise
    return name


@pytest.fixture(scope="module")
def price(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices") / "prices.json"
    prices = {driven.model: PRICE for driven in AGENTS.values()}
    path.write_text(json.dumps({"models": prices}))
    return path


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Check that no sandbox, mount, process or control group is left."""
    yield
    assert held(get_provider("native"))["sandboxes"] <= AHEAD


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_COMPATIBLE_API_KEY"):
        monkeypatch.setenv(name, KEY)


def play(
    server: ScriptedServer, agent: str, out: Path, *options: str, tasks: Sequence[str]
) -> list[Episode]:
    driven = AGENTS[agent]
    url = server.root if driven.model.startswith("anthropic/") else server.url
    server.exchanges.clear()
    args = ["run", driven.env, "--agent", agent, "--model", driven.model, "--base-url", url]
    args += [word for task in tasks for word in ("--task", task)]
    assert main([*args, "--out", str(out), "--quiet", "--workers", "2", *options]) == 0
    return list(read_episodes(out / "episodes.jsonl"))


def test_it_solves_tasks_of_its_kind_and_every_command_reads_its_record(
    server: ScriptedServer, agent: str, price: Path, tmp_path: Path
) -> None:
    driven = AGENTS[agent]
    golds = {t.query: str(t.gold[0]) for t in intercode.load_dataset(driven.env)}

    def say(messages: Sequence[intercode.models.Message]) -> Line:
        told = "\n".join(message.content for message in messages)
        gold = next((gold for query, gold in golds.items() if query in told), None)
        if gold is None:
            return Line("A title")  # what a client asks for itself
        replies = driven.solve(gold)
        return replies[min(sum(m.role == "assistant" for m in messages), len(replies) - 1)]

    server.script = say
    run = tmp_path / "run"
    episodes = play(server, agent, run, "--prices", str(price), tasks=driven.tasks)
    assert {e.task_id for e in episodes} == {*driven.tasks}
    for episode in episodes:
        assert episode.success and episode.status == "submitted", episode
        assert episode.metadata["outside"]["exit_code"] == 0
        assert episode.metadata["model"]["calls"], "its dialogue is kept"
        if driven.env == "bash":
            gold = golds[episode.query]
            assert gold in [turn.action for turn in episode.turns]
            assert all(turn.exit_code in (0, None) for turn in episode.turns[:1])
    outcomes = [Outcome.of(episode) for episode in episodes]
    taken = Usage(sum(o.tokens_in or 0 for o in outcomes), sum(o.tokens_out or 0 for o in outcomes))
    counted = server.usage
    assert (taken.input_tokens, taken.output_tokens) == (
        counted.input_tokens,
        counted.output_tokens,
    )
    assert sum(o.cost or 0 for o in outcomes) == pytest.approx(Price(**PRICE).of(counted))

    files = [path for path in run.rglob("*") if path.is_file()]
    assert files and not any(KEY.encode() in path.read_bytes() for path in files)
    for command in (["show"], ["report"], ["export", "--to", "chat"]):
        assert main([command[0], str(run), *command[1:]]) == 0
    # What edits files by itself cannot be done again, and is not taken for nothing.
    code = 0 if driven.env == "bash" else 1
    assert main(["rescore", str(run), "--out", str(tmp_path / "again"), "--quiet"]) == code
    again = list(read_episodes(tmp_path / "again/episodes.jsonl"))
    assert len(again) == len(episodes)
    assert all(one.success if driven.env == "bash" else one.score is None for one in again)


def test_one_whose_model_never_answers_is_ended_and_scored(
    server: ScriptedServer, agent: str, tmp_path: Path
) -> None:
    never = threading.Event()

    def say(_: object) -> Line:
        never.wait()
        return Line()

    server.script = say
    try:
        task = AGENTS[agent].tasks[:1]
        [episode] = play(server, agent, tmp_path / "run", "--episode-seconds", "15", tasks=task)
    finally:
        never.set()
    assert episode.metadata["ended_by"] == "seconds" and episode.error is None
    assert episode.reward is not None and not episode.success


def test_one_whose_budget_is_spent_is_ended_and_scored(
    server: ScriptedServer, agent: str, price: Path, tmp_path: Path
) -> None:
    # Aider asks again once its model has named a file.
    named = "I need to see keepsake/cache.py first."
    server.script = lambda _: shell("true") if AGENTS[agent].env == "bash" else Line(named)
    options = ["--prices", str(price), "--episode-cost", "0.000001"]
    task = ["swe-keepsake"] if AGENTS[agent].env == "swe" else BASH[:1]
    [episode] = play(server, agent, tmp_path / "run", *options, tasks=task)
    assert episode.metadata["ended_by"] == "cost" and episode.error is None
    assert Outcome.of(episode).calls == 1 and not episode.success
