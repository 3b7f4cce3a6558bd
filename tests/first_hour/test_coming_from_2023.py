"""A script of 2023 with one import changed, and a loop of legacy gym, really installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from first_hour.conftest import REPOSITORY, Someone, pip

GYM = "gym==0.26.2"
QUICK_START = """\
import readline
from intercode_paper.compat import bash_build_docker, bash_image_name, bash_test_data, BashEnv

if __name__ == '__main__':
    bash_build_docker()
    env = BashEnv(bash_image_name, data_path=bash_test_data, traj_dir="logs/", verbose=True)
    try:
        for idx in range(2):
            env.reset()
            obs, done = env.observation, False
            while not done:
                action = input('> ')
                obs, reward, done, info = env.step(action)
    finally:
        env.close()
"""


@pytest.fixture(scope="module")
def gym(venv: Path) -> Iterator[None]:
    """Legacy gym, beside the wheel."""
    python = str(venv / "bin/python")
    pip(python, "install", GYM)
    yield
    pip(python, "uninstall", "--yes", "gym")


def test_the_quick_start_of_2023(someone: Someone) -> None:
    someone.file("run_bash.py", QUICK_START)
    typed = "cd /testbed\nls\nsubmit\npwd\nsubmit\n"
    said = someone.run("python", "run_bash.py", stdin=typed).stdout
    assert "Observation: dir1" in said and said.count("Reward: ") == 2
    assert len(list((someone.home / "logs/logs_ic_bash").glob("log_*.json"))) == 2


def test_the_loop_of_gym(someone: Someone, gym: None) -> None:
    page = (REPOSITORY / "docs/2023/coming-from-2023.md").read_text()
    (loop,) = re.findall(r"```python\n(import gym\n.*?)```", page, re.DOTALL)
    other_way = loop.replace("import gym\nimport intercode\n", "import intercode\nimport gym\n")
    assert other_way != loop
    for script in (loop, other_way):
        someone.file("loop.py", f"{script}print(done, info['TimeLimit.truncated'])\n")
        assert someone.run("python", "loop.py").stdout == "True True\n"


def test_other_environments_in_gym(root: Someone, gym: None) -> None:
    root.file(
        "all.py",
        "import gym\n"
        "for name in ('ctf', 'python', 'sql', 'swe'):\n"
        "    env = gym.make(f'intercode-{name}-v0', seed=1)\n"
        "    env.reset()\n"
        "    observation, reward, done, info = env.step('submit')\n"
        "    print(name, reward, done)\n"
        "    env.close()\n",
    )
    said = root.run("python", "all.py").stdout
    assert said.split("\n")[:-1] == [f"{name} 0.0 True" for name in ("ctf", "python", "sql", "swe")]


def test_an_old_import_says_the_new_one(root: Someone) -> None:
    said = root.run(
        "python",
        "-c",
        "try:\n from intercode.envs import BashEnv\nexcept ImportError as error: print(error)",
    ).stdout
    assert "from intercode_paper.compat import BashEnv" in said
