"""The 2023 CTF environment, quirk by quirk, in a real sandbox; and every flag of the release."""

import pytest

import intercode
from intercode.datasets import load
from intercode.envs.ctf import CtfEnv
from intercode.errors import TaskError, UsageError
from intercode.task import Dataset, Task
from intercode_paper.ctf_env import WRONG, PaperCtfEnv, split

from .upstream import UPSTREAM

needs_flags = pytest.mark.skipif(
    not (UPSTREAM / "data/ctf/ic_ctf.json").is_file(), reason=f"no recorded runs in {UPSTREAM}"
)
FLAG = "picoCTF{0n3_Fl4g}"
TASKS = Dataset(
    [
        Task("3", "Find it.", (FLAG,), files={"note.txt": "nothing\n"}, setup="chmod 600 *"),
        Task("far", "Find it out there.", (FLAG,), tags=("network",)),
    ],
    "puzzles",
)


@pytest.fixture
def env(provider):
    made = PaperCtfEnv(TASKS, sandbox=provider, max_turns=20)
    made.reset(options={"task_id": "3"})
    yield made
    made.close()


@pytest.mark.parametrize(
    ("action", "argv"),
    [
        ("echo $X", [b"/bin/bash", b"-c", b"echo $X"]),
        (' echo "a  b" \\" ', [b"/bin/bash", b"-c", b'echo "a  b" \\"']),
        ("echo 'a b' c", [b"/bin/bash", b"-c", b"echo a", b"b c"]),
        ("awk '{print $1}'", [b"/bin/bash", b"-c", b"awk {print", b"$1}"]),
        ("echo it's", None),
        ("python3 -c \"print('a')\"", [b"python3", b"-c", b"print('a')"]),
        ("python -c 'print(1)' x|cat", [b"python", b"-c", b"print(1)", b"x|cat"]),
        ("python3 x.py 'a b'", [b"/bin/bash", b"-c", b"python3 x.py a", b"b"]),
    ],
)
def test_how_an_action_becomes_a_process(action, argv):
    assert split(action) == (None if argv is None else tuple(argv))


def test_an_action_is_a_process_in_the_task_s_folder(env):
    assert env.step("pwd; cat note.txt")[0] == "/ctf/3\nnothing\n"
    env.step("X=1; mkdir deep")
    assert env.step('echo "<$X>"')[0] == "<>\n"
    env.step("cd deep")
    assert env.step("pwd")[0] == "/ctf/3/deep\n"
    assert env.step("cd ..; ls")[0] == "deep\nnote.txt\n"
    assert "chdir to cwd" in env.step("ls")[0], "it went where `..; ls` leads"
    env.step("cd /ctf/3")
    assert env.step("echo it's")[0] == "Malformed command"
    assert env.step("echo 'a  b' c")[0] == "a\n"
    assert env.step("python3 -c \"print('a  b'.upper()); import os; print(os.getcwd())\"")[0] == (
        "A  B\n/ctf/3\n"
    )


def test_flags(env):
    for wrong in ("submit picoCTF{x}", f"submit the {FLAG}", f"submitted x{FLAG}"):
        observation, reward, terminated, truncated, info = env.step(wrong)
        assert (observation, reward, terminated, truncated) == (WRONG, 0.0, False, False)
        assert info["ok"] is False
    assert env.step(f"submit  {FLAG.swapcase()} and more")[:4] == ("", 1.0, True, False)
    assert env.episode.answer == FLAG.swapcase()


def test_any_number_of_flags_but_not_of_turns(env):
    for _ in range(19):
        assert env.step("submit x")[:2] == (WRONG, 0.0)
    assert env.step("submit x")[1:4] == (0.0, False, True)
    assert env.episode.reward == 0.0


@pytest.mark.parametrize("end", ["submit", "skip"])
def test_giving_up(env, end):
    assert env.step(end)[:4] == ("", 0.0, True, False)


def test_what_2023_did_not_know(provider):
    with pytest.raises(UsageError, match="no protocol"):
        intercode.make("ctf", protocol="2022")
    task = Task("t", "q", (FLAG,), metadata={"service": "x"})
    with pytest.raises(TaskError, match="task 't', field 'service': the paper protocol has no"):
        intercode.make("ctf", protocol="paper", data=Dataset([task]))
    with pytest.raises(TaskError, match="task 'far' needs the network"):
        PaperCtfEnv(TASKS, sandbox=provider).reset(options={"task_id": "far"})
    with pytest.raises(UsageError, match="no option 'attempts'"):
        PaperCtfEnv(TASKS, attempts=3)


@needs_flags
@pytest.mark.parametrize("kind", [PaperCtfEnv, CtfEnv])
def test_every_flag_of_the_release_is_right(kind, provider):
    """Task 15's lacks a backslash, two tasks share one, and one is a number."""
    tasks = load("ic-ctf", root=UPSTREAM)
    env = kind(tasks, sandbox=provider, network=True)
    rewards = {}
    for task in tasks:
        env.reset(options={"task_id": task.task_id})
        rewards[task.task_id] = env.step(f"submit {task.gold[0]}")[1]
    env.close()
    assert len(rewards) == 100
    assert [task for task, reward in rewards.items() if reward != 1.0] == []
