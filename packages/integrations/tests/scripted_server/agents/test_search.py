"""Search over forks, by `intercode run` against a scripted server, in real sandboxes."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import intercode
from agents.talking import fenced, spoken
from intercode.cli.main import main
from intercode.dialogues import agent_talk
from intercode.episode import Episode
from intercode.models import Message
from intercode.models.scripted import Line
from intercode.records import Outcome, read_episodes
from intercode_integrations.testing import ScriptedServer
from soak.killed import intercode as command, kill
from waiting import PATIENCE

TASK = {"task_id": "door", "query": "Open the door.", "verification": "test -e /root/open"}
JUDGES = "0 (hopeless)"


class Model:
    """Proposes in each state one action after the other, and calls a state with `key` good."""

    def __init__(self, *proposals: str) -> None:
        self._next = itertools.cycle(proposals)
        self.judged: list[str] = []

    def __call__(self, messages: Sequence[Message]) -> Line:
        last = messages[-1].content
        if JUDGES in last:
            self.judged.append(last)
            state = "\n".join(message.content for message in messages[2:])
            return Line("I say 9." if "gold" in state else "2")
        if "opened" in last:
            return Line(f"Thought: done.\nAction:\n{fenced('submit', 'bash')}")
        action = "touch /root/open; echo opened gold" if "key" in last else next(self._next)
        return Line(f"Thought: on.\nAction:\n{fenced(action, 'bash')}")


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


def run(
    server: ScriptedServer, tmp_path: Path, model: Model, *options: str, code: int = 0
) -> Episode:
    server.script = model
    data = tmp_path / "tasks.json"
    data.write_text(json.dumps([TASK]))
    out = tmp_path / "run"
    args = ["run", "bash", "--data", str(data), "--out", str(out), "--quiet"]
    args += ["--model", "openai-compatible/test", "--base-url", server.url]
    assert main([*args, "--temperature", "1", *options]) == code
    return next(read_episodes(out / "episodes.jsonl"))


def actions(episode: Episode) -> list[str]:
    return [turn.action for turn in episode.turns]


def tree(episode: Episode) -> dict[str, Any]:
    found: dict[str, Any] = episode.metadata["search"]
    return found


@pytest.mark.parametrize("order", ["beam", "best-first"])
def test_the_branch_that_looks_best_is_chosen(
    server: ScriptedServer, tmp_path: Path, order: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model("cd /tmp; echo nothing", "cd /tmp; echo a gold key", "rm -rf /tmp/*; ls /gone")
    episode = run(server, tmp_path, model, "--agent", "tree-search", "--search", order)
    assert episode.status == "submitted" and episode.success and episode.fork is None
    assert actions(episode) == ["cd /tmp; echo a gold key", "touch /root/open; echo opened gold"]
    search = tree(episode)
    nodes = search["nodes"]
    first = [node for node in nodes if node["parent"] == 0]
    assert [node["judgement"] for node in first] == [0.2, 0.9, 0.2]
    assert nodes[search["chosen"]]["action"] == "submit"
    assert search["tried"] == sum(node["action"] not in ("", "submit") for node in nodes)
    # What all branches took is counted, and belongs to a state.
    outcome = Outcome.from_episode(episode)
    assert outcome.tokens_in is not None and outcome.tokens_out is not None
    assert sum(n["tokens"] for n in nodes) == outcome.tokens_in + outcome.tokens_out
    assert outcome.calls == len(episode.metadata["model"]["calls"]) > 6
    # The dialogue that is shown is the branch's, without what others said.
    talk = agent_talk(episode)
    assert talk is not None and len(talk["calls"]) == 3
    capsys.readouterr()
    assert main(["show", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    assert "  tree-search: " in told and "* 0.90  cd /tmp; echo a gold key\n" in told
    assert "    0.20  cd /tmp; echo nothing\n" in told
    assert main(["report", str(tmp_path / "run")]) == 0


def test_equal_proposals_are_taken_once(server: ScriptedServer, tmp_path: Path) -> None:
    episode = run(server, tmp_path, Model("echo a gold key"), "--agent", "tree-search")
    assert tree(episode)["tried"] == 2 and episode.success


def test_a_visible_test_judges_in_a_fork_of_its_own(server: ScriptedServer, tmp_path: Path) -> None:
    model = Model("echo no", "touch /tmp/seen; echo a gold key")
    test = "rm /tmp/seen && touch /tmp/tested"
    options = ["--agent", "tree-search", "--samples", "2", "--search-test", test]
    episode = run(server, tmp_path, model, *options, "--keep-diffs")
    assert episode.success and not model.judged
    assert [node["judgement"] for node in tree(episode)["nodes"][:3]] == [None, 0.0, 1.0]
    touched = {file.path for turn in episode.turns for file in turn.changes.files}  # type: ignore[union-attr]
    assert touched == {"/tmp/seen", "/root/open"}


def test_the_reward_is_in_no_judgement(server: ScriptedServer, tmp_path: Path) -> None:
    # Three ends, of which the right one is called the worst: so a wrong one is handed in.
    model = Model("touch /root/open", "echo gold", "echo nothing")
    options = ["--agent", "tree-search", "--max-turns", "1"]
    episode = run(server, tmp_path, model, *options)
    assert actions(episode) == ["echo gold"]
    assert (episode.status, episode.reward) == ("truncated", 0.0)
    assert not any(word in text for text in model.judged for word in ("reward", "success"))


@pytest.mark.parametrize(
    ("options", "tried"),
    [
        (["--search-depth", "1"], 3),
        (["--search-budget", "4"], 4),
        (["--episode-tokens", "1"], 3),
        (["--search-width", "1", "--max-turns", "2"], 6),
    ],
)
def test_limits_end_a_search(
    server: ScriptedServer, tmp_path: Path, options: list[str], tried: int
) -> None:
    model = Model(*(f"echo {n}" for n in range(50)))
    episode = run(server, tmp_path, model, "--agent", "tree-search", *options)
    assert tree(episode)["tried"] == tried
    assert episode.score is not None and not episode.success
    assert episode.metadata.get("ended_by") == ("tokens" if "--episode-tokens" in options else None)


def test_best_of_n_branches_where_it_is_told_to(server: ScriptedServer, tmp_path: Path) -> None:
    model = Model("echo start", "echo no; echo opened", "echo a gold key", "echo 0; echo opened")
    options = ["--agent", "best-of-n", "--samples", "3", "--search-from", "1"]
    episode = run(server, tmp_path, model, *options)
    assert episode.success and actions(episode) == [
        *["echo start", "echo a gold key", "touch /root/open; echo opened gold"]
    ]
    search = tree(episode)
    assert search["tried"] == 5
    ends = [node for node in search["nodes"] if node["action"] == "submit"]
    assert [node["judgement"] for node in ends] == [0.2, 0.9, 0.2]
    assert episode.metadata["fork"]["turn"] == 1


def test_what_cannot_be_forked_continues_as_one(server: ScriptedServer, tmp_path: Path) -> None:
    # Neither its state can be carried, nor do its actions come out alike again.
    first = "sleep 1000 & echo $RANDOM$RANDOM a key"
    model = Model(first, first + " ", first + ";")
    options = ["--agent", "tree-search", "--search-width", "1"]
    episode = run(server, tmp_path, model, *options)
    assert episode.success
    assert episode.turns[0].action.startswith("sleep")


PROPOSED = {
    "sql": ("SELECT 'nothing'", "SELECT 'a gold key'", "DROP TABLE IF EXISTS patients"),
    "python": ("found = None", "found = 'a gold key'; print(found)", "1 / 0"),
    "ctf": ("echo nothing", "echo a gold key", "rm -rf /"),
}


@pytest.mark.parametrize("env", [*PROPOSED])
def test_other_environments_are_searched(server: ScriptedServer, tmp_path: Path, env: str) -> None:
    """SQL's by their state, Python's by their actions, and one whose answer ends it."""
    with closing(intercode.make(env)) as made:
        task, language = made.dataset[0], made.traits.language
    args = ["run", env, "--task", task.task_id, "--out", str(tmp_path / "run"), "--quiet"]
    gold = task.gold[0]
    if env == "ctf":  # whose own flags differ each time
        data = tmp_path / "tasks.json"
        data.write_text(json.dumps([{"task_id": task.task_id, "query": "?", "gold": "flag{a}"}]))
        args, gold = [*args, "--data", str(data)], "submit flag{a}"
    proposals = itertools.cycle(PROPOSED[env])

    def model(messages: Sequence[Message]) -> Line:
        if JUDGES in messages[-1].content:
            said = "\n".join(message.content for message in messages[2:])
            return Line("9" if "gold key" in said else "1")
        turn = spoken(messages)
        action = "submit" if turn > 1 else gold if turn else next(proposals)
        return Line(f"Thought: on.\nAction:\n{fenced(action, language)}")

    server.script = model
    args += ["--model", "openai-compatible/test", "--base-url", server.url]
    assert main([*args, "--agent", "tree-search", "--temperature", "1"]) == 0
    (episode,) = read_episodes(tmp_path / "run" / "episodes.jsonl")
    assert episode.success
    taken = [action.strip() for action in actions(episode)]
    assert taken == [PROPOSED[env][1], gold.strip()][: len(taken)] and taken
    nodes = tree(episode)["nodes"]
    assert [node["judgement"] for node in nodes if node["parent"] == 0] == [0.1, 0.9, 0.1]
    assert not any(node.get("lost") for node in nodes)


def test_a_run_that_is_killed_within_a_search_is_resumed(
    server: ScriptedServer, tmp_path: Path
) -> None:
    held, asked = threading.Event(), threading.Event()
    model = Model("echo nothing", "echo a gold key", "echo no")

    def script(messages: Sequence[Message]) -> Line:
        said = "\n".join(message.content for message in messages)
        if "window" in said and spoken(messages) and not held.is_set():
            asked.set()  # forks of the second task run now, and more are to come
            assert held.wait(PATIENCE)
        return model(messages)

    server.script = script
    tasks = [TASK, {**TASK, "task_id": "window", "query": "Open the window."}]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    out = tmp_path / "run"
    args = ["run", "bash", "--data", tmp_path / "tasks.json", "--out", out, "--quiet"]
    args += ["--model", "openai-compatible/test", "--base-url", server.url, "--workers", "1"]
    args += ["--agent", "tree-search", "--temperature", "1"]
    process = subprocess.Popen(command(*args))
    try:
        assert asked.wait(PATIENCE)
        kill(process)
    finally:
        held.set()
        process.kill()
        process.wait()
    assert [episode.task_id for episode in read_episodes(out / "episodes.jsonl")] == ["door"]
    assert main(["resume", "--trust", str(out), "--quiet"]) == 0
    episodes = [*read_episodes(out / "episodes.jsonl")]
    assert [episode.task_id for episode in episodes] == ["door", "window"]
    assert all(episode.success for episode in episodes)
    first, second = (tree(episode) for episode in episodes)
    assert (first["tried"], len(first["nodes"])) == (second["tried"], len(second["nodes"]))


def test_wrong_options_are_refused(server: ScriptedServer, tmp_path: Path) -> None:
    data = tmp_path / "tasks.json"
    data.write_text(json.dumps([TASK]))
    common = ["run", "bash", "--data", str(data), "--model", "openai-compatible/test"]
    common += ["--base-url", server.url, "--out", str(tmp_path / "run")]
    assert main([*common, "--agent", "tree-search"]) == 2  # equal proposals, at temperature 0
    warm = [*common, "--temperature", "1"]
    assert main([*warm, "--agent", "tree-search", "--choose", "vote"]) == 2
    assert main([*warm, "--agent", "react", "--search-width", "3"]) == 2
