"""Folders with an intercode.toml, and what installed packages register."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intercode import (
    Dataset,
    InterCodeEnv,
    Limits,
    TaskError,
    UsageError,
    load_dataset,
    make,
    make_vec,
)
from intercode.evaluate import run_setup
from intercode.project import read
from intercode.registry import ENVS
from intercode.spec import RunSpec

TASKS = '{"task_id": "a", "query": "Print a.", "gold": "echo a"}\n'
MAZE = """
from intercode import InterCodeEnv

def score(task, episode, sandbox):
    return len(episode.turns) / 4

class Maze(InterCodeEnv):
    name = "maze"

    def __init__(self, data, *, doors=2, image="host", max_turns=10):
        self.doors = doors
        super().__init__(data, image=image, reward=score, max_turns=max_turns)
"""


def write(folder: Path, text: str, **files: str) -> Path:
    files = {"tasks.jsonl": TASKS, "intercode.toml": text, **files}
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'env' is missing"),
        ("env = 3", "'env' must be text, not 3"),
        ('env = "fish"', "no environment 'fish'; known: bash, ctf"),
        ('env = "bash:paper"', "no environment 'bash:paper'"),
        ("env = ", "Invalid value"),
        ('env = "bash"\ncolour = 1', "no option 'colour'; known: .*reward"),
        ('env = "bash"\nattempts = 1', "'bash' has no option 'attempts'"),
        ('env = "sql"\nimage = "host"', "'sql' has no option 'image'"),
        ('env = "bash"\ndata = "x"', "no option 'data'"),
        ('env = "bash"\nsplit = 3', "'split' must be text, not 3"),
        ('env = "bash"\nmax_turns = "3"', "'max_turns' must be a whole number, not '3'"),
        ('env = "bash"\nnetwork = 1', "'network' must be true, false or text, not 1"),
        ('env = "bash"\nmax_turns = true', "'max_turns' must be a whole number, not True"),
        ('env = "bash"\ntimeout = 0', "'timeout' must be a number of seconds"),
        ('env = "bash"\nmemory = "1K"', "'memory' must be at least 32M, and 1K is 1,024 bytes"),
        ('env = "bash"\nmax_turns = 0', "'max_turns' must be at least 1, not 0"),
        ('env = "bash"\nmax_turn = 3', "no option 'max_turn'; did you mean 'max_turns'"),
        ('env = "bahs"', "no environment 'bahs'; did you mean 'bash'"),
        ('env = "env.py:Maze"', "there is no file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(write(tmp_path, text))
    assert str(tmp_path) in str(caught.value)


def test_paths_begin_in_the_folder(tmp_path: Path) -> None:
    found = read(write(tmp_path, 'env = "bash"\nimage = "host+./a.sh"\nreward = "r.py:f"'))
    assert found.tasks == str(tmp_path / "tasks.jsonl")
    assert found.options == {
        "default_image": f"host+{tmp_path}/a.sh",
        "reward": f"{tmp_path}/r.py:f",
    }
    found = read(write(tmp_path, 'env = "bash"\nimage = "debian:bookworm"\ntasks = "mbpp"'))
    assert found.tasks == "mbpp" and found.options == {"default_image": "debian:bookworm"}
    text = 'env = "swe"\nrepositories = "https://example.org/a"\ntimeout = 5'
    found = read(write(tmp_path, text))
    assert found.options == {"repositories": "https://example.org/a"}
    assert found.limits == {"timeout": 5}


def test_the_file_that_the_documentation_shows_can_be_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[1] / "docs" / "gym" / "own-environment.md"
    shown = page.read_text().partition("```toml\n")[2].partition("```")[0]
    found = read(write(tmp_path, shown))
    assert found.limits == {"timeout": 30} and found.options["max_turns"] == 20


def test_limits_are_written_alike_everywhere(tmp_path: Path) -> None:
    text = 'env = "bash"\nmemory = "1.5G"\ntimeout = "20s"\ndisk = 2000000\ncapabilities = ["kill"]'
    folder = write(tmp_path, text)
    numbers = {"memory": 1536 << 20, "timeout": 20, "disk": 2000000}
    assert read(folder).limits == {**numbers, "capabilities": ("kill",)}
    tasks = load_dataset(folder / "tasks.jsonl")
    own = [replace(tasks[0], memory="256M", processes=50)]  # type: ignore[arg-type]
    for more in ({"timeout": 30}, {"limits": {"timeout": "30"}}):
        with closing(make(str(folder), data=Dataset(own), **more)) as env:
            env.reset()
            assert env.workspace.limits == Limits(
                timeout=30,
                memory=256 << 20,
                disk=2000000,
                processes=50,
                capabilities=("kill",),
            )
    own = [replace(tasks[0], capabilities=("sys_chroot",))]
    with closing(make(str(folder), data=Dataset(own), capabilities="fowner,sys_chroot")) as env:
        env.reset()
        assert env.workspace.limits.capabilities == ("sys_chroot",)
    for more in ({}, {"capabilities": "fowner"}):  # the folder's, or the caller's, are the most
        with (
            closing(make(str(folder), data=Dataset(own), **more)) as env,
            pytest.raises(TaskError, match="sys_chroot are not among the configured ones"),
        ):
            env.reset()


def test_limits_hold_and_what_a_caller_gives_comes_first(tmp_path: Path) -> None:
    text = 'env = "bash"\ntimeout = 0.2\nmax_turns = 1\nreward = "nothing.py:score"'
    # Not the default: gold would have to be done in that moment, too.
    nothing = "def score(task, episode, sandbox):\n    return 0.0\n"
    folder = str(write(tmp_path, text, **{"nothing.py": nothing}))
    env = make(folder)
    env.reset()
    _, _, _, truncated, info = env.step("sleep 20")
    assert info["timed_out"] and truncated
    env.close()
    many = make_vec(folder, num_envs=2, max_turns=2)
    many.reset(seed=0)
    assert not many.step(("true", "true"))[3].any()
    many.close()


def test_two_folders_of_a_process_may_use_one_name(tmp_path: Path) -> None:
    found = []
    for doors in ("2", "3"):
        (folder := tmp_path / doors).mkdir()
        maze = MAZE.replace("doors=2", f"doors={doors}")
        env = make(str(write(folder, 'env = "maze.py:Maze"', **{"maze.py": maze})))
        found.append((env.name, env.doors))  # type: ignore[attr-defined]
        env.close()
    assert found == [("maze", 2), ("maze", 3)]


def test_a_folder_has_an_environment_of_its_own(tmp_path: Path) -> None:
    folder = write(tmp_path, 'env = "maze.py:Maze"\ndoors = 3', **{"maze.py": MAZE})
    for _ in range(2):  # read again, it is the same
        env = make(str(folder))
    assert isinstance(env, InterCodeEnv) and env.name == "maze"
    assert env.doors == 3  # type: ignore[attr-defined]
    env.reset()
    env.step("true")
    assert env.step("submit")[1] == 0.25
    env.close()
    many = make_vec(str(folder), num_envs=2)  # though it takes no cache
    many.close()
    run = [sys.executable, "-m", "intercode.cli", "run", ".", "--quiet"]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "maze · agent oracle" in done.stdout and "0.250" in done.stdout


def test_an_environment_without_a_name_of_its_own_is_refused(tmp_path: Path) -> None:
    for name in ("bash", "Maze 1"):
        source = MAZE.replace('"maze"', repr(name))
        folder = write(tmp_path, 'env = "maze.py:Maze"', **{"maze.py": source})
        with pytest.raises(UsageError, match="needs its own 'name'"):
            read(folder)
    assert ENVS.get("bash").__module__ == "intercode.envs.bash"


PACKAGE = {
    "mazes.py": f"{MAZE}\n\ndef load():\n    from intercode import Dataset, Task\n"
    "    return Dataset([Task('m', 'Find the way out.', gold=('true',))], 'mazes')\n",
    "mazes-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: mazes\nVersion: 1.0\n",
    "mazes-1.0.dist-info/entry_points.txt": """\
[intercode.environments]
mazes = mazes:Maze
bash = mazes:Maze
bash:paper = mazes:Maze

[intercode.commands]
serve = mazes:Maze

[intercode.datasets]
mazes = mazes:load

[intercode.rewards]
bash:quarter = mazes:score
""",
}

PROGRAM = """
import intercode
from intercode.registry import ENVS
from intercode.spec import RunSpec

env = intercode.make("mazes", data="mazes", doors=5)
env.reset()
env.step("true")
print(env.name, env.doors, env.step("submit")[1])
env.close()
env = intercode.make("bash", data="mazes", reward="quarter")
env.reset()
print(type(env).__name__, env.step("submit")[1])
env.close()
# None takes the name of what another package of ours has.
from intercode.cli.main import COMMANDS
assert ENVS.is_foreign("mazes") and not ENVS.is_foreign("bash:paper")
assert not COMMANDS.is_foreign("serve")
"""


def test_an_installed_package_registers(tmp_path: Path) -> None:
    for name, content in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    # The current directory is on the path of both, as where packages are installed would be.
    assert python("-c", PROGRAM) == "maze 5 0.25\nBashEnv 0.0\n"
    said = python("-m", "intercode.cli", "run", "mazes", "--quiet", "--max-turns", "3")
    assert "mazes · agent oracle, shown gold · mazes (1 task," in said
    assert "1 of 1" not in said


def test_the_bundled_datasets_come_before_a_package_s() -> None:
    assert load_dataset("bash").name == "bash"


def test_a_split_of_its_tasks(tmp_path: Path) -> None:
    """The folder names one; whoever names another, or other data, gets those."""
    rows = [f'{TASKS.rstrip()[:-1]}, "split": "{name}"}}' for name in ("train", "test")]
    tasks = "\n".join(row.replace('"a"', f'"{n}"', 1) for n, row in enumerate(rows))
    folder = write(tmp_path, 'env = "bash"\nsplit = "test"', **{"tasks.jsonl": tasks})

    def ids(**options: Any) -> list[str]:
        with closing(make(folder, **options)) as env:
            return [task.task_id for task in env.unwrapped.dataset]

    assert ids() == ["1"]
    assert ids(split="train") == ["0"]
    assert ids(data=folder / "tasks.jsonl") == ["0", "1"]
    with closing(make_vec(folder, num_envs=1)) as envs:
        assert [task.task_id for task in envs.envs[0].unwrapped.dataset] == ["1"]
    for given, found in {
        (): ["1"],
        (("split", "train"),): ["0"],
        (("data", str(folder / "tasks.jsonl")),): ["0", "1"],
    }.items():
        spec = RunSpec.from_layers({"env": str(folder), **dict(given)})
        assert [task.task_id for task in run_setup.load(spec)[1]] == found
    with pytest.raises(TaskError, match="no split 'dev': its splits are train, test"):
        run_setup.load(RunSpec.from_layers({"env": str(folder), "split": "dev"}))
