"""The CTF environment: flags, attempts, subtasks, services, and where flags are not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intercode.envs.ctf import CtfEnv
from intercode.errors import TaskError, TaskNotFoundError, UsageError
from intercode.evaluate import evaluate
from intercode.task import Dataset, Task

from .haste import haste

FLAG = "flag{7h3_0n1y_0n3}"

SERVER = """
import socketserver, sys
flag = sys.stdin.read()
class Door(socketserver.StreamRequestHandler):
    def handle(self):
        told = flag if self.rfile.readline() == b"sesame\\n" else "no\\n"
        self.wfile.write(told.encode())
socketserver.TCPServer(("127.0.0.1", 9000), Door).serve_forever()
"""
ASK = "exec 9<>/dev/tcp/127.0.0.1/9000 && echo {} >&9 && cat <&9"

# Reads whatever it can of every process and of the places where our own files could lie.
SEARCH = """
import os
wanted, found = b"".join([b"flag{7h3_", b"0n1y_0n3}"]), []
def look(path):
    try:
        with open(path, "rb") as file:
            if wanted in file.read(1 << 24):
                found.append(path)
    except OSError:
        pass
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "mountinfo", "status", "comm", "auxv", "stack"):
        look(f"/proc/{pid}/{name}")
    try:
        fds = [int(n) for n in os.listdir(f"/proc/{pid}/fd") if pid != str(os.getpid())]
    except OSError:
        fds = []
    for fd in fds:
        try:
            kind = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:  # closed meanwhile
            continue
        if not kind.startswith(("pipe:", "socket:", "/dev/")):
            look(f"/proc/{pid}/fd/{fd}")
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as mem:
            for line in maps if pid != str(os.getpid()) else ():
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                try:
                    mem.seek(start)
                    if wanted in mem.read(end - start):
                        found.append(f"{pid}: {line}")
                except (OSError, ValueError, OverflowError):
                    pass
    except OSError:
        pass
for top in set(os.listdir("/")) - {"proc", "sys", "usr"}:
    look(f"/{top}")
    for folder, _, files in () if os.path.islink(f"/{top}") else os.walk(f"/{top}"):
        for name in files:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                look(path)
print(found)
"""

TASKS = Dataset(
    [
        Task("find", "Find it.", (FLAG, "flag{other}"), files={"a/note.txt": "nothing\n"}),
        Task(
            "parts",
            "Find it, in two parts.",
            (FLAG,),
            metadata={
                "subtasks": [{"name": "who", "answer": "bob"}, {"name": "when", "answer": "noon"}]
            },
        ),
        Task(
            "door",
            "Open the door.",
            (FLAG,),
            files={"server.py": SERVER},
            metadata={
                "service": "exec python3 server.py",
                "service_input": FLAG,
                "health": ASK.format("hello"),
                "solution": [ASK.format("sesame")],
            },
        ),
        Task("web", "Find it out there.", (FLAG,), tags=("network",)),
    ],
    "puzzles",
)
MakeCtf = Callable[..., CtfEnv]


@pytest.fixture
def make_ctf() -> Iterator[MakeCtf]:
    """Makes environments that are closed when the test ends."""
    made: list[CtfEnv] = []

    def make(data: Any = TASKS, task: str | None = None, **options: Any) -> CtfEnv:
        env = CtfEnv(data, **options)
        made.append(env)
        env.reset(options={"task_id": task} if task else {})
        return env

    yield make
    for env in made:
        env.close()


def test_the_flag_ends_it(make_ctf: MakeCtf) -> None:
    env = make_ctf(task="find")
    assert env.step("pwd; cat a/note.txt")[0] == "/ctf\nnothing\n"
    assert env.step("cd -")[3:] == (
        False,
        {"task_id": "find", "turn": 2, "turns_left": 8, "ok": False, "exit_code": 1},
    )
    assert env.step("submit   flag{other} ")[:4] == ("", 1.0, True, False)
    assert env.episode.answer == "flag{other}"


def test_wrong_flags_use_up_the_attempts(make_ctf: MakeCtf) -> None:
    env = make_ctf(task="find")
    observation, reward, *ended, info = env.step("submit flag{7H3_0N1Y_0N3}")
    assert (observation, reward, ended) == (
        "That is not the flag. 2 more attempts.\n",
        0.0,
        [False, False],
    )
    assert info == {"task_id": "find", "turn": 1, "turns_left": 9, "ok": False}
    assert env.step("echo on")[0] == "on\n"
    assert env.step("submit x")[0] == "That is not the flag. 1 more attempt.\n"
    assert env.step("submit x")[1:3] == (0.0, True)
    assert [turn.action for turn in env.episode.turns] == [
        "submit flag{7H3_0N1Y_0N3}",
        "echo on",
        "submit x",
    ]
    assert (env.episode.status, env.episode.answer) == ("submitted", "x")


def test_the_flag_at_the_last_attempt(make_ctf: MakeCtf) -> None:
    env = make_ctf(task="find", attempts=2)
    env.step("submit x")
    assert env.step(f"submit {FLAG}")[1:3] == (1.0, True)


@pytest.mark.parametrize("attempts", [0, None])
def test_attempts_without_end(make_ctf: MakeCtf, attempts: int | None) -> None:
    env = make_ctf(task="find", attempts=attempts, max_turns=20)
    for _ in range(19):
        assert env.step("submit x")[:3] == ("That is not the flag.\n", 0.0, False)
    assert env.step("submit x")[3]


def test_submit_alone_and_skip_end_it(make_ctf: MakeCtf) -> None:
    env = make_ctf(task="find")
    assert env.step("submit")[:3] == ("", 0.0, True)
    env.reset(options={"task_id": "find"})
    assert env.step("skip")[:3] == ("", 0.0, True)


def test_subtasks(make_ctf: MakeCtf) -> None:
    env = make_ctf(task="parts", attempts=1, reward_every_turn=True)
    observation, reward, terminated, _, info = env.step("submit bob")
    assert observation == "That is right, for a part of the task (who). Go on.\n"
    assert (reward, terminated, info["ok"]) == (0.99 / 2, False, True)
    assert env.step("true")[1] == 0.99 / 2
    *_, info = env.step("submit wrong")
    assert info["parts"] == {"flag": 0.0, "subtasks": 0.5}
    assert env.episode.reward == 0.99 / 2


def test_a_service(make_ctf: MakeCtf) -> None:
    env = make_ctf(task="door")
    ask, enter = ASK.format("x"), ASK.format("sesame")
    assert env.step(ask)[0] == "no\n"
    with haste(env):
        assert env.step("sleep 30")[4]["timed_out"]
    assert env.step("exit")[4]["restarted"]
    if os.geteuid() == 0:  # else a sandbox has one user, and the agent may kill the service
        env.step("pkill python3; kill -9 -1")
    assert env.step(enter)[0] == FLAG
    assert env.step(f"submit {FLAG}")[1] == 1.0
    assert env.workspace.processes() == []  # it ended with the episode


def test_no_agent_has_the_rights_to_look_into_a_service() -> None:
    task = Task("t", "q", ("flag{x}",), metadata={"service": "sleep 9"}, capabilities=("kill",))
    for wrong in ("dac_override", "fowner", *(("setuid",) if os.geteuid() == 0 else ())):
        tasks = Dataset([replace(task, capabilities=("kill", wrong))])
        with closing(CtfEnv(tasks)) as env:
            with pytest.raises(TaskError, match=f"with the capabilities {wrong} the agent could"):
                env.check(tasks[0])
            env.check(task)


def test_a_service_that_does_not_come_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intercode.envs.ctf.HEALTH_TIMEOUT", 0)
    facts = {"service": "exit 1", "health": "echo no door >&2; false"}
    env = CtfEnv(Dataset([Task("t", "q", (FLAG,), metadata=facts)]))
    with pytest.raises(
        TaskError, match=r"task 't': 'metadata\.health' failed: exit code 1: no door"
    ):
        env.reset()
    assert env.episode.status == "error"
    env.close()


@pytest.mark.parametrize("task", ["find", "parts", "door"])
def test_the_flag_is_nowhere_in_the_sandbox(make_ctf: MakeCtf, task: str) -> None:
    if task == "door" and os.geteuid():
        pytest.skip("needs root: an ordinary user's sandbox has one user only")
    env = make_ctf(task=task, max_turns=20)
    env.step("submit x")
    env.workspace.write_file("/tmp/search.py", SEARCH.encode())
    assert env.step("env; set; cat /proc/*/cmdline")[0].count(FLAG) == 0
    assert env.step("python3 /tmp/search.py")[0] == "[]\n"
    # The search itself finds: in a file, a variable and the memory of a process.
    env.step(f"export F={FLAG}; echo $F > /tmp/f; sleep 100 & true")
    found = env.step("python3 /tmp/search.py")[0]
    assert "/tmp/f" in found and "/environ" in found and "[heap]" in found


def test_tasks_for_the_network_are_left_out(make_ctf: MakeCtf) -> None:
    env = make_ctf()
    assert [task.task_id for task in env.dataset] == ["find", "parts", "door"]
    with pytest.raises(TaskError, match="task 'web' needs the network"):
        env.reset(options={"task_id": "web"})
    with pytest.raises(TaskNotFoundError):
        env.reset(options={"task_id": "none"})
    assert make_ctf(task="web", network=True).episode.task_id == "web"
    with pytest.raises(TaskError, match="every task needs the network"):
        CtfEnv(TASKS[3:])


def test_assets_make_the_same_image_wherever_they_lie(make_ctf: MakeCtf, tmp_path: Path) -> None:
    images = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "x.bin").write_bytes(b"\xff\0")
        (folder / "link").symlink_to("x.bin")
        env = make_ctf(Dataset([Task("t", "q", (FLAG,), metadata={"assets": str(folder)})]))
        assert env.step("wc -c < link")[0] == "2\n"
        images.append(env.image(env.dataset[0]))
    assert images[0] == images[1]
    env = CtfEnv(Dataset([Task("t", "q", (FLAG,), metadata={"assets": str(tmp_path / "no")})]))
    with pytest.raises(TaskError, match=r"'metadata\.assets': there is no"):
        env.check(env.dataset[0])
    env.close()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"directory": "here"}, "must be absolute"),
        ({"directory": 7}, "must be text"),
        ({"service": ["x"]}, "must be text"),
        ({"health": {}}, "must be text"),
    ],
)
def test_malformed_tasks_are_refused_before_any_work(facts: Any, message: str) -> None:
    env = CtfEnv(Dataset([Task("t", "q", (FLAG,), metadata=facts)]))
    with pytest.raises(TaskError, match=message):
        env.check(env.dataset[0])
    env.close()


def test_usage() -> None:
    with pytest.raises(UsageError, match="attempts must be at least 0, not -1"):
        CtfEnv(TASKS, attempts=-1)
    with pytest.raises(TaskError, match="task 't' has no flag"):
        CtfEnv(Dataset([Task("t", "q")]))
    with pytest.raises(TaskError, match=r"'metadata\.solution' must be a list of texts"):
        CtfEnv(Dataset([Task("t", "q", (FLAG,), metadata={"solution": "ls"})]))


def test_the_oracle_submits_the_flag_and_doing_nothing_is_worth_nothing() -> None:
    tasks = TASKS[:3]
    result = evaluate(tasks, "oracle", lambda: CtfEnv(tasks))
    assert [outcome.reward for outcome in result.outcomes] == [1.0, 1.0, 1.0]
    result = evaluate(tasks, "noop", lambda: CtfEnv(tasks))
    assert [outcome.reward for outcome in result.outcomes] == [0.0, 0.0, 0.0]
