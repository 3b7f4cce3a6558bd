"""What an agent may try to have its failure count as ours: none of it is an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from intercode.envs.python import PythonEnv
from intercode.task import Dataset, Task

from .haste import haste
from .python_tasks import ADD, attempt, failures

PYTHON = "/opt/own/python"
TEST = ("assert add(1, 2) == 3",)
TASKS = Dataset(
    [
        Task("own", "q", (ADD,), setup=f"mkdir /opt/own; ln -s $(which python3) {PYTHON}",
             tests=TEST),
        Task("helper", "q", (ADD,), files={"helper.py": "X = 1"}, tests=TEST,
             metadata={"setup_code": "import helper"}),
        Task("many", "q", (ADD,), tests=TEST * 6),
        Task("program", "q", (ADD,), metadata={"stdio": [{"stdin": "", "stdout": "3"}]}),
    ]
)  # fmt: skip
GONE = f"import os\nos.remove('{PYTHON}')\n"
WAYS = {
    "removed": GONE,
    "a folder": GONE + f"os.mkdir('{PYTHON}')",
    "no program": GONE + f"open('{PYTHON}', 'w').write('x')\nos.chmod('{PYTHON}', 0o755)",
}


@pytest.fixture(scope="module")
def env() -> Iterator[PythonEnv]:
    made = PythonEnv(TASKS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def own() -> Iterator[PythonEnv]:
    made = PythonEnv(TASKS, python=PYTHON)
    yield made
    made.close()


@pytest.mark.parametrize("way", WAYS)
def test_an_interpreter_that_the_agent_has_done_away_with(own: PythonEnv, way: str) -> None:
    assert attempt(own, "own", WAYS[way], ADD) == 0.0
    assert "has no Python" in failures(own)["0"]
    own.reset(options={"task_id": "own"})
    assert "its program is gone" in own.step(f"{WAYS[way]}\nos._exit(0)")[0]
    _, reward, terminated, _, _ = own.step(ADD)
    assert (reward, terminated, own.episode.status) == (0.0, True, "ended")


def test_a_home_that_the_agent_has_removed(own: PythonEnv) -> None:
    gone = "import os, shutil\nshutil.rmtree(os.getcwd())"
    assert attempt(own, "own", gone, ADD) == 1.0
    assert attempt(own, "own", f"{gone}\nos._exit(0)", ADD) == 1.0


def test_setup_code_that_the_agent_has_broken(env: PythonEnv) -> None:
    gone = "import os\nos.remove('helper.py')\nos._exit(0)"
    assert attempt(env, "helper", gone, ADD) == 1.0
    assert "names are lost" in env.episode.turns[0].observation


@pytest.mark.parametrize(("name", "depth"), [("d", 1200), ("d" * 200, 40)])
def test_folders_too_deep_for_a_copy(name: str, depth: int) -> None:
    """Without all of its files, nothing is scored; at the end, no copy is needed."""
    deep = f"\nimport os\nfor _ in range({depth}): os.mkdir('{name}'); os.chdir('{name}')\n"
    env = PythonEnv(TASKS, reward_every_turn=True)
    env.reset(options={"task_id": "many"})
    assert env.step(ADD + deep)[1] == 0.0
    assert env.step("submit")[1] == 1.0
    env.close()


def test_setup_code_that_does_not_end_any_more(
    env: PythonEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intercode.interpreters.python._PRELUDE_SECONDS", 3600.0)
    endless = "import os\nopen('helper.py', 'w').write('while True: pass')\nos._exit(0)"
    env.reset(options={"task_id": "helper"})
    with haste(env):
        assert "names are lost" in env.step(endless)[0]
    assert env.step(ADD)[4]["ok"]


def test_files_of_terabytes_that_hold_nothing() -> None:
    holes = "\nfor n in range(1000): open(f'/tmp/{n}', 'wb').truncate(1 << 30)"
    env = PythonEnv(TASKS, reward_every_turn=True)
    env.reset(options={"task_id": "many"})
    assert env.step(ADD + holes)[1] == 1.0
    env.close()


def test_who_takes_long_to_load_and_then_ends_is_not_waited_for_at_each_test(
    env: PythonEnv,
) -> None:
    slow = "import os, time\ntime.sleep(0.4)\ndef add(a, b): os._exit(0)"  # allow sleep: too long
    env.reset(options={"task_id": "many"})
    assert env.step(slow)[4]["ok"]
    with haste(env):
        assert env.step("submit")[1] == 0.0
    assert "not run: 3 tests" in failures(env)["5"]


def test_a_program_that_floods_the_channel_is_stopped_at_once(env: PythonEnv) -> None:
    flood = "import os\nfor fd in range(3, 1024):\n    try: os.write(fd, b'\\xff' * 9)\n"
    flood += "    except OSError: pass\nwhile True: pass"
    assert attempt(env, "program", flood) == 0.0
    assert failures(env)["0"] == "it sent what no program sends"
