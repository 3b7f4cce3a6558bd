"""The bundled puzzles, played: their solutions find the flag, nothing else scores, none leaks."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from intercode.datasets import puzzles
from intercode.envs.ctf import CtfEnv
from intercode.errors import TaskError
from intercode.evaluate import evaluate
from intercode.task import Dataset, Task

SEEDS = (0, 1)
TASKS = {seed: puzzles.load(seed) for seed in SEEDS}

# Reads all that the agent can: every file outside the machine's programs, and of every process
# what shows. It gets what it looks for on its standard input, and says where it was.
SEARCH = """
import json, os, sys
wanted = [text.encode() for text in json.load(sys.stdin)]
found = set()
def look(path):
    try:
        with open(path, "rb") as file:
            data = file.read(1 << 24)
    except OSError:
        return
    data = data.lower()
    if any(text.lower() in data for text in wanted):
        found.add(path)
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "comm", "status", "mountinfo", "mounts"):
        look(f"/proc/{pid}/{name}")
device = os.stat("/").st_dev
for folder, folders, files in os.walk("/"):
    folders[:] = [
        name for name in folders
        if os.lstat(os.path.join(folder, name)).st_dev == device
        or folder == "/" and name in ("dev", "tmp", "run")
    ]
    for name in files:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not os.path.islink(path):
            look(path)
print(json.dumps(sorted(found)))
"""


@pytest.fixture(scope="module", params=SEEDS)
def env(request: pytest.FixtureRequest) -> Iterator[CtfEnv]:
    env = CtfEnv(seed=request.param, max_turns=20)
    assert env.dataset == TASKS[request.param]
    yield env
    env.close()


every_task = pytest.mark.parametrize("task_id", [task.task_id for task in TASKS[0]])


def needles(flag: str) -> list[str]:
    """A flag as it is, reversed, in hexadecimal, and in base64 wherever in a text it begins."""
    data = flag.encode()
    shifted = [base64.b64encode(bytes(n) + data).decode() for n in range(3)]
    return [flag, flag[::-1], data.hex(), *(text[4:].rstrip("=")[:-1] for text in shifted)]


def places(env: CtfEnv, wanted: list[str]) -> set[str]:
    given = json.dumps(wanted).encode()
    done = env.workspace.exec(["python3", "-c", SEARCH], stdin=given, timeout=60)
    assert done.ok, done.stderr
    return set(json.loads(done.stdout))


@every_task
def test_the_flag_is_where_the_puzzle_puts_it_and_the_solution_finds_it(
    env: CtfEnv, task_id: str
) -> None:
    task = env.dataset[task_id]
    env.reset(options={"task_id": task_id})
    allowed = {f"/ctf/{path}" for path in task.metadata["flag_in"]}
    wanted = [text for flag in task.gold for text in needles(flag)]
    if os.geteuid() == 0 or "service" not in task.metadata:  # else there is but one user
        assert places(env, wanted) == allowed
    said = [env.step(command)[0] for command in task.metadata["solution"]]
    assert task.gold[0] in said[-1], said
    for subtask in task.metadata.get("subtasks", ()):
        assert "right, for a part" in env.step(f"submit {subtask['answer']}")[0]
    assert env.step(f"submit {task.gold[-1]}")[1:3] == (1.0, True)


def test_the_search_finds(env: CtfEnv) -> None:
    flag = "intercode{some_flag_012345}"
    env.reset(options={"task_id": "torn"})
    env.step("mkdir -p /srv/a")
    for name, text in enumerate(["plain", *needles(flag)]):
        env.workspace.write_file(f"/srv/a/{name}", f"x{text}x".encode())
    # A process has its variables when it is another program than the shell.
    run = "sleep 60 & until grep -q HERE= /proc/$!/environ; do sleep 0.01; done"
    assert env.step(f"export HERE={flag}; {run}")[4]["ok"]
    found = places(env, needles(flag))
    assert {f"/srv/a/{n}" for n in range(1, 7)} <= found and "/srv/a/0" not in found
    assert any(path.endswith("/environ") for path in found)


def play(task: Task, env: CtfEnv, *actions: str) -> float:
    env.reset(options={"task_id": task.task_id})
    for action in actions:
        if env.step(action)[2]:
            break
    else:
        env.step("submit")
    assert env.episode.score is not None
    return env.episode.score.value


@every_task
def test_neither_decoys_nor_doing_nothing_solve_it(task_id: str) -> None:
    tasks = TASKS[0]
    env = CtfEnv(Dataset([tasks[task_id]]), attempts=0, max_turns=20)
    guesses = [f"submit {text}" for text in tasks[task_id].metadata["wrong"]]
    assert play(tasks[task_id], env, *guesses) < 1.0
    env.close()


def test_the_oracle_solves_all_and_doing_nothing_none() -> None:
    tasks = TASKS[0]
    for agent, reward in (("oracle", 1.0), ("noop", 0.0)):
        result = evaluate(tasks, agent, CtfEnv, workers=2)
        assert [outcome.reward for outcome in result.outcomes] == [reward] * len(tasks)


def test_services_run_as_another_user_whose_secret_the_agent_cannot_read(env: CtfEnv) -> None:
    if os.geteuid():
        return  # an ordinary user's sandbox has one user only
    env.reset(options={"task_id": "notes"})
    # The brackets keep the search from finding itself.
    pids = env.step("grep -l 'server[.]py' /proc/[0-9]*/cmdline | cut -d / -f 3")[0].split()
    assert pids
    for pid in pids:
        assert env.step(f"cat /proc/{pid}/environ /proc/{pid}/fd/0; kill {pid}")[4]["ok"] is False
    assert env.step("python3 ask.py guest/welcome")[4]["ok"]


def test_binary_files_that_make_no_sense_are_refused() -> None:
    for rows in ({"a": "no base64!"}, {"a": 7}, ["a"], {7: "YQ=="}):
        env = CtfEnv(Dataset([Task("t", "q", ("f",), metadata={"binary_files": rows})]))
        with pytest.raises(
            TaskError, match=r"task 't': 'metadata\.binary_files' must be an object"
        ):
            env.check(env.dataset[0])
        env.close()
    facts = {"binary_files": {"/proc/x/y": "YQ=="}}
    env = CtfEnv(Dataset([Task("t", "q", ("f",), metadata=facts)]))
    with pytest.raises(TaskError, match="task 't': file '/proc/x/y' cannot be written"):
        env.reset()
    env.close()


@pytest.mark.filterwarnings("error")
def test_gymnasium() -> None:
    env = gymnasium.make("intercode-ctf-v0", seed=5)
    assert env.unwrapped.dataset == puzzles.load(5)  # type: ignore[attr-defined]
    check_env(env)
    env.close()
