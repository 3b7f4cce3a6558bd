"""The episode loop, by the Bash environment in real sandboxes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from intercode.envs.bash import BashEnv
from intercode.episode import Episode, Score
from intercode.errors import (
    RewardError,
    TaskError,
    UsageError,
)
from intercode.task import Dataset, Task
from intercode_sandbox import Limits, SandboxBackend
from waiting import eventually, new_marker, sleepers

from .conftest import TASKS, MakeEnv


def play(env: BashEnv, task_id: str, *actions: str) -> float:
    env.reset(options={"task_id": task_id})
    for action in actions:
        env.step(action)
    _, reward, terminated, truncated, _ = env.step("submit")
    assert (terminated, truncated) == (True, False)
    assert env.episode.reward == reward
    return reward


@pytest.mark.parametrize(
    ("task_id", "actions", "reward"),
    [
        ("count", ["ls w | wc -l"], 1.0),
        ("count", ["cd w", "ls", "ls | wc -l"], 1.0),
        ("count", ["n=3", "echo $n"], 1.0),
        ("count", ["echo 3; exit"], 1.0),
        ("count", ["ls w | wc -l", "true"], 0.0),
        ("count", ["echo 4"], 0.0),
        ("count", ["true"], 0.0),
        ("count", [], 0.0),
        ("count", ["touch mine; ls w | wc -l"], 0.5),
        ("count", ["rm -r w; echo 3"], 0.5),
        ("count", ["touch /tmp/mine ~/.bash_history; ls w | wc -l"], 1.0),
        ("sort", ["sort in.txt > out.txt"], 1.0),
        ("sort", ["sort -o out.txt in.txt; echo noise"], 1.0),
        ("sort", ["printf 'a\\nb\\n' > out.txt"], 1.0),
        ("sort", ["cp in.txt out.txt"], 0.0),
        ("sort", ["sort in.txt > out.txt; chmod 600 out.txt"], 0.0),
        ("sort", ["mkdir out.txt"], 0.0),
        ("sort", ["ln -s in.txt out.txt"], 0.0),
        ("sort", ["true"], 0.0),
        ("sort", [], 0.0),
        ("remove", ["rm -r old"], 1.0),
        ("remove", ["true"], 0.0),
        ("remove", ["test() { true; }; export -f test; alias test=true; PATH=/x"], 0.0),
    ],
)
def test_rewards(make_env: MakeEnv, task_id: str, actions: list[str], reward: float) -> None:
    assert play(make_env(), task_id, *actions) == reward


def test_an_episode_as_the_agent_sees_it(make_env: MakeEnv) -> None:
    env = make_env()
    observation, info = env.reset(options={"task_id": "count"})
    query = "How many files are in w?"
    known = {"task_id": "count", "turn": 0, "turns_left": 10}
    assert (observation, info) == (query, {**known, "query": query, "tags": ()})
    assert env.step("ls w; false") == (
        "a\nb\nc\n", 0.0, False, False,
        {"task_id": "count", "turn": 1, "turns_left": 9, "ok": False, "exit_code": 1},
    )  # fmt: skip
    assert env.step("ls w | wc -l")[:4] == ("3\n", 0.0, False, False)
    assert env.step(" submit\n") == (
        "", 1.0, True, False,
        {
            "task_id": "count", "turn": 2, "turns_left": 8, "outcome": "solved",
            "success": True, "parts": {"files": 1.0, "output": 1.0},
        },
    )  # fmt: skip


def test_an_episode_as_it_is_kept(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(seed=5, options={"task_id": "count"})
    env.step("printf 'a\\377'; exit 3")
    env.step("echo 3")
    env.step("submit")
    episode = env.episode
    assert (episode.env, episode.task_id, episode.seed) == ("bash", "count", 5)
    assert (episode.status, episode.success, episode.error) == ("submitted", True, None)
    assert [(turn.action, turn.ok, turn.exit_code) for turn in episode.turns] == [
        ("printf 'a\\377'; exit 3", False, 3), ("echo 3", True, 0),
    ]  # fmt: skip
    assert episode.turns[0].observation.startswith("a\udcff")
    assert episode.seconds > 0 < episode.started
    assert episode.metadata["image"] == "host"
    assert Episode.from_json(episode.to_json()) == episode


def test_submit_is_exact_in_bash(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(options={"task_id": "count"})
    for action in ("submit 3", "submitted", "echo submit", "Submit"):
        _, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated, truncated) == (0.0, False, False)
    assert len(env.episode.turns) == 4


def test_submit_with_an_answer_where_the_environment_takes_one(make_env: MakeEnv) -> None:
    class AnswerEnv(BashEnv):
        takes_answer = True

    def reward(task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        return Score(float(episode.answer == "the flag"))

    env = AnswerEnv(TASKS, reward=reward)
    env.reset()
    assert env.step("submit  the flag ")[1] == 1.0
    env.reset()
    assert env.step("submit")[1] == 0.0
    env.close()


def test_a_reward_in_every_turn(make_env: MakeEnv) -> None:
    env = make_env(reward_every_turn=True)
    for task_id, wrong, right in (
        ("count", "echo 4", "echo 3"), ("remove", "ls", "rm -r old"),
    ):  # fmt: skip
        env.reset(options={"task_id": task_id})
        assert env.step(wrong)[1:4] == (0.0, False, False)
        assert env.step(f"x=kept; {right}")[1:4] == (1.0, False, False)
        assert env.step("echo $x")[0] == "kept\n"
        assert [turn.reward for turn in env.episode.turns][:2] == [0.0, 1.0]


def test_every_episode_is_fresh(make_env: MakeEnv) -> None:
    env = make_env()
    for _ in range(2):
        env.reset(options={"task_id": "count"})
        assert env.step("ls -A; echo -$x-; pwd")[0] == "w\n--\n/root\n"
        env.step("x=1; cd /; touch /root/leak /srv/leak; rm -r /root/w")


def test_files_are_written_before_the_setup(make_env: MakeEnv) -> None:
    task = Task("t", "q", ("true",), setup="cp a/b c", files={"a/b": "x"})
    env = make_env(Dataset([task]))
    env.reset()
    assert env.step("cat c; ls -d a")[0] == "xa\n"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"setup": "echo oops >&2; exit 4"}, "task 't': setup failed with exit code 4: oops"),
        ({"setup": "fi"}, "task 't': setup failed with exit code 2: .*syntax error"),
        ({"files": {"/etc": "x"}}, "task 't': file '/etc' cannot be written"),
    ],
)
def test_a_task_that_cannot_be_prepared(make_env: MakeEnv, fields: Any, says: str) -> None:
    env = make_env(Dataset([Task("t", "q", ("true",), **fields)]))
    with pytest.raises(TaskError, match=says):
        env.reset()
    assert env.episode.status == "error"
    assert env.episode.score is None


def test_what_stands_against_the_start(make_env: MakeEnv, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="small: task 't' has neither 'gold' nor 'verif"):
        make_env(Dataset([TASKS[0], Task("t", "q")], "small"))
    with pytest.raises(TaskError, match="holds no tasks"):
        make_env(Dataset([]))
    with pytest.raises(UsageError, match="max_turns"):
        make_env(max_turns=0)
    with pytest.raises(UsageError, match="render_mode"):
        make_env(render_mode="human")
    with pytest.raises(UsageError, match="provider"):
        make_env(sandbox="no such")


def test_what_ran_has_ended_when_a_reset_returns(make_env: MakeEnv) -> None:
    env, marker = make_env(TASKS), new_marker()
    for options in ({}, {"task_id": "no such task"}):
        env.reset(options={"task_id": "count"})
        env.step(f"sleep {marker} & true")
        assert eventually(lambda: sleepers(marker))
        with pytest.raises(LookupError) if options else nullcontext():
            env.reset(options=options)
        assert sleepers(marker) == []


@pytest.mark.parametrize("ending", ["submit", "skip"])
def test_what_ran_has_ended_when_the_episode_has(make_env: MakeEnv, ending: str) -> None:
    env, marker = make_env(TASKS), new_marker()
    env.reset(options={"task_id": "count"})
    env.step(f"sleep {marker} & true")
    assert eventually(lambda: sleepers(marker))
    env.step(ending)
    assert sleepers(marker) == []


def test_gold_in_shared_memory(make_env: MakeEnv) -> None:
    env = make_env(Dataset([Task("t", "q", ("echo 1 > /dev/shm/x",))]))
    assert play(env, "t", ":") == 0.0
    assert play(env, "t", "echo 1 > /dev/shm/x") == 1.0


def test_gold_that_fails_is_an_error_and_never_a_reward(make_env: MakeEnv) -> None:
    env = make_env(Dataset([Task("t", "q", ("sleep 999",))]),
                   limits=Limits(timeout=0.3))  # fmt: skip  # allow limit: it sleeps on
    env.reset()
    with pytest.raises(RewardError, match="gold ran into the time limit"):
        env.step("submit")
    assert (env.episode.status, env.episode.score) == ("error", None)


def test_a_task_s_own_time_limit(make_env: MakeEnv) -> None:
    env = make_env(
        Dataset([Task("t", "q", ("true",), timeout=1.0)]), max_turns=30
    )  # allow limit: it is asked again until that was enough
    env.reset()
    shown = ""
    while not shown:  # a machine may stand still for as long as that
        observation, _, _, truncated, info = env.step("echo so far; sleep 99")
        shown, _, note = observation.partition("[")
        assert note.startswith("timed out after 1 s")
        assert info["timed_out"] is True
        assert not truncated
    assert shown == "so far\n"


def test_gold_is_never_in_the_agent_s_sandbox(make_env: MakeEnv) -> None:
    env = make_env(Dataset([Task("t", "q", ("echo gold-9f3a",))]), reward_every_turn=True)
    env.reset()
    env.step("true")
    # The brackets keep the search from finding itself.
    places = (
        "/etc /home /root /run /srv /tmp /var /dev/shm /proc/[0-9]*/environ /proc/[0-9]*/cmdline"
    )
    found = env.step(f"env; set; grep -rls gold-9f3[a] {places} 2>/dev/null")[0]
    assert "HOME=/root" in found
    assert not [line for line in found.splitlines() if line.startswith("/") or "gold-9f3a" in line]


@pytest.mark.parametrize("end", ["submit", "true"])
def test_nothing_runs_any_more_when_an_episode_is_scored(make_env: MakeEnv, end: str) -> None:
    running: list[list[int]] = []

    def reward(task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        running.append(sandbox.processes())
        return Score(1.0)

    env = make_env(reward=reward, max_turns=2)
    env.reset()
    env.step("sleep 77 & setsid sleep 78 &")
    env.step(end)
    assert running == [[]]
