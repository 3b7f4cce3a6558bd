"""Command-line agents of others, really installed, solve bundled tasks with a scripted model.

``INTERCODE_AGENTS`` names those that are checked; they are installed unless they are there.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import intercode
from intercode.cli.main import main
from intercode.episode import Episode
from intercode.errors import FetchError, ImageError
from intercode.models.base import Message, Usage
from intercode.models.prices import ModelPrice
from intercode.models.scripted import Line
from intercode.records import Outcome, read_episodes
from intercode_integrations.external_agents import agent_layers
from intercode_integrations.external_agents.profile import find_profile
from intercode_integrations.testing import ScriptedServer, shell
from intercode_sandbox import get_provider
from intercode_sandbox.native import cgroup
from open_resources import AHEAD, held

KEY = "sk-very-secret-0123456789"
PRICE = {"input": 2.5, "output": 10.0}
TRIES = 3
SUBMITS = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The line by which mini-swe-agent is told that its model has done the task."""
BASH = ("shop-07", "project-05", "archive-10")
FILES = ("fleet-04", "fleet-13", "fleet-14")
"""They ask for files only, not for what a command prints, which a terminal's screen surrounds."""
SWE = ("swe-duedate", "swe-keepsake", "swe-tidyconf")


def by_tool(gold: str, end: Line = Line("Done.")) -> list[Line]:  # noqa: B008 - frozen
    """Return the replies of a model that calls its agent's shell tool once."""
    return [shell(gold), end]


def by_keys(gold: str) -> list[Line]:
    """Return those of a model that types into a terminal, and is asked whether it is done."""
    typed = {"keystrokes": f"{gold}\n", "duration": 1.0}
    told = [{"commands": [typed], "task_complete": False}, {"commands": [], "task_complete": True}]
    return [Line(json.dumps({"analysis": "a", "plan": "p", **each})) for each in told]


def by_edits(gold: str) -> list[Line]:
    """Return the only one of a model that writes edits."""
    return [Line(f"I change it.\n\n{edits(gold)}")]


@dataclass(frozen=True)
class Driven:
    """How a model makes an agent solve a task.

    Attributes:
        replies: Makes its replies of gold; the last one is repeated.
        model: The model, by a name whose edit format the agent knows, if it has one.
        env: The environment of its kind of tasks.
        tasks: Of that kind.
        again: Whether its turns are commands with their output, which can be taken again.
    """

    replies: Callable[[str], list[Line]] = by_tool
    model: str = "openai-compatible/scripted"
    env: str = "bash"
    tasks: Sequence[str] = BASH
    again: bool = True


AGENTS = {
    "aider": Driven(by_edits, "openai-compatible/gpt-4o", "swe", SWE, again=False),
    "claude-code": Driven(model="anthropic/scripted"),
    "codex": Driven(),
    "mini-swe-agent": Driven(partial(by_tool, end=shell(f"echo {SUBMITS}"))),
    # It takes brackets in a command for colours, and gives up.
    "openhands": Driven(tasks=FILES),
    "terminus": Driven(by_keys, tasks=FILES, again=False),
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
            agent_layers.install(name, print)
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
    """Check that no sandbox, control group, mount or saved state is left."""
    mounts = held()["mounts"]
    yield
    left = held(get_provider("native"))
    assert left["sandboxes"] <= AHEAD
    assert left["cgroups"] <= AHEAD * len(list(cgroup.parents()))
    assert (left["mounts"], left["snapshots"]) == (mounts, 0)


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

    def say(messages: Sequence[Message]) -> Line:
        told = "\n".join(message.content for message in messages)
        gold = next((gold for query, gold in golds.items() if query in told), None)
        if gold is None:
            return Line("A title")  # what a client asks for itself
        replies = driven.replies(gold)
        said = sum(m.role == "assistant" for m in messages)
        return replies[min(said, len(replies) - 1)]

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
            assert gold in [turn.action.strip() for turn in episode.turns]
            assert all(turn.exit_code in (0, None) for turn in episode.turns[:1])
    outcomes = [Outcome.from_episode(episode) for episode in episodes]
    taken = Usage(sum(o.tokens_in or 0 for o in outcomes), sum(o.tokens_out or 0 for o in outcomes))
    counted = server.usage
    assert (taken.input_tokens, taken.output_tokens) == (
        counted.input_tokens,
        counted.output_tokens,
    )
    assert sum(o.cost or 0 for o in outcomes) == pytest.approx(
        ModelPrice(**PRICE).compute_cost(counted)
    )

    files = [path for path in run.rglob("*") if path.is_file()]
    assert files and not any(KEY.encode() in path.read_bytes() for path in files)
    for command in (["show"], ["report"], ["export", "--to", "chat"]):
        assert main([command[0], str(run), *command[1:]]) == 0
    code = 0 if driven.again else 1  # it is said to be not reproducible, and gets no new score
    assert (
        main(["rescore", "--trust", str(run), "--out", str(tmp_path / "again"), "--quiet"]) == code
    )
    again = list(read_episodes(tmp_path / "again/episodes.jsonl"))
    assert len(again) == len(episodes)
    assert all(one.success if driven.again else one.score is None for one in again)


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
        limit = ("--episode-seconds", "40")  # enough for a slow machine to start it
        [episode] = play(server, agent, tmp_path / "run", *limit, tasks=task)
    finally:
        never.set()
    assert episode.metadata["ended_by"] == "seconds" and episode.error is None
    assert episode.reward is not None and not episode.success


def test_one_whose_budget_is_spent_is_ended_and_scored(
    server: ScriptedServer, agent: str, price: Path, tmp_path: Path
) -> None:
    driven = AGENTS[agent]
    # An edit of text that is not there is asked for again.
    idle = "+++ b/keepsake/cache.py\n@@ @@\n-no such line\n+x" if driven.env == "swe" else "true"
    server.script = lambda _: driven.replies(idle)[0]
    options = ["--prices", str(price), "--episode-cost", "0.000001"]
    task = ["swe-keepsake"] if driven.env == "swe" else driven.tasks[:1]
    [episode] = play(server, agent, tmp_path / "run", *options, tasks=task)
    assert episode.metadata["ended_by"] == "cost" and episode.error is None
    # Those that were under way together are answered; whatever it asks for then is refused.
    assert len(server.exchanges) <= 3 and not episode.success


def test_one_that_calls_tools_is_told_of_a_skill_and_cannot_write_it(
    server: ScriptedServer, agent: str, tmp_path: Path
) -> None:
    driven = AGENTS[agent]
    if driven.replies in (by_edits, by_keys):
        pytest.skip(f"not for {agent}: its model calls no tools")
    skill = tmp_path / "greet"
    skill.mkdir()
    (skill / "SKILL.md").write_text("---\nname: greet\ndescription: How to greet.\n---\nWave.\n")
    home = f"{find_profile(agent).home_of_skills or '/skills'}/greet"
    tries = ("echo x >> SKILL.md", "touch new", "rm SKILL.md")
    steps = [f"cat {home}/SKILL.md", *(f"cd {home} && {each}" for each in tries)]
    replies = [*map(shell, steps), driven.replies("true")[-1]]

    def say(messages: Sequence[Message]) -> Line:
        return replies[min(sum(m.role == "assistant" for m in messages), len(replies) - 1)]

    server.script = say
    run = tmp_path / "run"
    [episode] = play(server, agent, run, "--skill", str(skill), tasks=driven.tasks[:1])
    assert episode.error is None and "Wave." in episode.turns[0].observation
    assert any("How to greet." in json.dumps(each.body) for each in server.exchanges[:2])
    for turn in episode.turns[1:]:
        assert "denied" in turn.observation or "Read-only" in turn.observation, turn
    assert len(episode.turns) == len(steps)
