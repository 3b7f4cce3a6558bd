"""``intercode new``: what it writes works as it is, by the commands that its README names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from intercode import InterCodeEnv, UsageError, make
from intercode.cli.new import kinds
from intercode.project import find_benchmark, read
from warm import Warm

from .conftest import Run, keys, parsed


def bash(warm: Warm, command: str, folder: Path) -> str:
    """What a command prints; as in a terminal of a person who types nothing."""
    done = warm.run(
        ["bash", "-c", command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    assert not re.search("^intercode: ", done.stderr, re.MULTILINE)  # no warning about itself
    return done.stdout


def test_there_is_a_beginning_for_every_environment() -> None:
    assert kinds() == ["bash", "ctf", "python", "sql", "swe"]


@pytest.mark.parametrize("env", ["bash", "ctf", "python", "sql", "swe"])
def test_from_new_to_valid_by_the_readme(env: str, tmp_path: Path, warm: Warm) -> None:
    assert "intercode validate ." in bash(warm, f"intercode new shop --env {env}", tmp_path)
    folder = tmp_path / "shop"
    readme = (folder / "README.md").read_text()
    assert "{{" not in readme
    named = re.findall(r"^- `([^`]+)`: ", readme, re.MULTILINE)
    assert {"README.md", *named} == {path.name for path in folder.iterdir()}
    commands = re.findall(r"^\$ (.+)$", readme, re.MULTILINE)
    assert len(commands) == 5
    printed = {command: bash(warm, command, folder) for command in commands}
    assert "3 of 3 tasks are valid" in printed["intercode validate ."]
    assert "6 passed" in printed["python -m pytest -q test_tasks.py"]
    assert re.search(r"all +3 +100\.0 %", printed["intercode run . --agent oracle"])
    assert re.search(r"all +3 +0\.0 %", printed["intercode run . --agent noop"])
    query = json.loads((folder / "tasks.jsonl").read_text().splitlines()[0])["query"]
    assert query in printed["intercode play ."]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Path:
    folder = tmp_path_factory.mktemp("new")
    bash(warm, "intercode new shop", folder)
    return folder / "shop"


def test_the_folder_is_an_environment_in_python(
    shop: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # its paths do not depend on where one is
    env = make(str(shop), max_turns=2)
    assert isinstance(env, InterCodeEnv) and env.max_turns == 2
    env.reset(options={"task_id": "archive"})
    env.step("grep ^2023 /srv/shop/orders.log > /srv/shop/orders-2023.log")
    assert env.step("submit")[1] == 0.5  # one of the two files
    assert env.episode.score is not None
    assert env.episode.score.detail == {"wrong": ["/srv/shop/orders.log"]}
    env.close()


@pytest.mark.parametrize(
    "trick",
    [
        "mkdir /root/answer",
        "mkfifo /root/answer",
        "ln -s /dev/zero /root/answer",
        "head -c 1000000 /dev/zero > /root/answer",
        "ln -s answer /root/answer",
        "printf '\\377' > /root/answer; chmod 0 /root/answer",
    ],
)
def test_the_reward_that_is_written_scores_whatever_it_finds(shop: Path, trick: str) -> None:
    env = make(str(shop))
    env.reset(options={"task_id": "pears"})
    env.step(trick)
    assert env.step("submit")[1] == 0.0
    env.close()


def test_gold_gets_into_no_image(shop: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(shop, folder)
    with (folder / "Dockerfile").open("a") as file:
        file.write("COPY . /srv/all\n")
    (folder / "__pycache__").mkdir(exist_ok=True)  # as Python leaves it of the reward
    (folder / "__pycache__" / "reward.cpython-310.pyc").write_bytes(b"pears")
    env = make(str(folder))
    env.reset()
    assert env.step("ls /srv/all")[0].split() == ["Dockerfile", "files"]
    assert env.step("grep -rl pears /srv")[0].count("tasks") == 0
    env.close()


def test_what_is_written_can_be_told_by_programs(cli: Run, tmp_path: Path) -> None:
    told = parsed(cli("new", "riddles", "--env", "ctf", "--json"))
    keys(told, "folder env files")
    assert told["folder"] == str(tmp_path / "riddles") and told["env"] == "ctf"
    assert all((tmp_path / "riddles" / name).is_file() for name in told["files"])
    assert read(tmp_path / "riddles").env == "ctf"
    assert [path.name for path in tmp_path.iterdir()] == ["riddles"]  # and nothing beside it


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../shop", "is not a benchmark's name"),
        ("2shop", "is not a benchmark's name"),
        ("a b", "is not a benchmark's name"),
        ("bash", "already the name of an environment"),
        ("mbpp", "already the name of an environment or a dataset"),
        ("taken", "already exists"),
        ("dangling", "already exists"),
    ],
)
def test_a_name_that_is_no_good_is_refused(
    cli: Run, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    assert message in cli("new", name, code=2).stderr
    assert {path.name for path in tmp_path.iterdir()} == {"taken", "dangling"}


def test_an_environment_that_there_is_not_is_refused(cli: Run) -> None:
    assert "fish" in cli("new", "shop", "--env", "fish", code=2).stderr


def test_options_on_the_command_line_come_first(cli: Run, shop: Path, tmp_path: Path) -> None:
    result = parsed(cli("run", shop, "--limit", 1, "--json", "--quiet", "--max-turns", 3))
    manifest = json.loads((Path(tmp_path, result["run"]) / "run.json").read_text())
    assert manifest["env"]["max_turns"] == 3
    assert manifest["env"]["reward"] == str(shop / "reward.py:score")
    assert manifest["env"]["reward_digest"]
    assert result["statistics"]["success_rate"] == 1.0


def test_a_run_is_held_to_the_reward_that_it_had(cli: Run, shop: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(shop, folder)
    cli("run", "shop", "--quiet", "--limit", 1, "--out", "first")
    cli("run", "shop", "--locked", "first", "--quiet", "--out", "second")
    with (folder / "reward.py").open("a") as file:
        file.write("# kinder\n")
    assert (
        "env.reward_digest" in cli("run", "shop", "--locked", "first", "--out", "x", code=2).stderr
    )
    told = cli("run", "shop", "--limit", 1, "--out", "first", code=2).stderr
    assert "reward.py has changed since" in told


def test_a_folder_without_the_file_that_says_what_it_is_is_none(cli: Run, shop: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read.*intercode new"):
        read(shop / "files")
    with pytest.raises(UsageError, match="no environment"):
        make(str(shop / "files"))
    for command in ("run", "play", "validate"):
        assert (
            "'intercode new' creates such a folder" in cli(command, shop / "files", code=2).stderr
        )


def test_the_file_of_a_benchmark_alone_is_told(cli: Run, shop: Path, tmp_path: Path) -> None:
    """Its environment and options are the folder's: without them other tasks are tried."""
    folder = shutil.copytree(shop, tmp_path / "copy")
    (folder / "intercode.toml").write_text('env = "sql"\ntasks = "data/t.jsonl"')
    (folder / "data").mkdir()
    shutil.copy(folder / "tasks.jsonl", folder / "data" / "t.jsonl")
    (folder / "data" / "other.jsonl").write_text('{"query": "?", "gold": "echo 1"}')
    for command in ("run", "play", "validate"):
        for file in ("copy/tasks.jsonl", "copy/data/t.jsonl", folder / "tasks.jsonl"):
            told = cli(command, file, code=2).stderr
            assert told.startswith(f"intercode: error: {file}: ") and "name the folder" in told
        assert "name the folder" not in cli(command, "copy/data/other.jsonl", code=None).stderr
    named = ["--data", "copy/tasks.jsonl", "--quiet", "--limit", 1]
    for words in (["run", "bash", *named], ["validate", "bash", *named]):
        assert "the options of copy/intercode.toml are not used" in cli(*words, code=None).stderr
    (folder / "intercode.toml").write_text("no toml")
    assert "name the folder" not in cli("validate", "copy/data/t.jsonl", code=None).stderr


@pytest.mark.parametrize("words", ["view", "serve bash", "gateway", "mcp bash --http"])
def test_a_port_that_there_is_not_is_refused(cli: Run, words: str) -> None:
    assert "at most 65535, not 99999" in cli(*words.split(), "--port", 99999, code=2).stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "not a regular file"),
        (b"#" * (1 << 20) + b"\n", "more than 1,048,576 bytes"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"\xff", "codec can't decode"),
    ],
)
def test_a_folder_that_a_stranger_has_prepared_is_refused(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    """Neither read without end nor taken for the folder of a file below."""
    (tmp_path / "below").mkdir()
    tasks = tmp_path / "below" / "tasks.jsonl"
    tasks.write_text('{"query": "?", "gold": "echo 1"}')
    if content is None:
        os.mkfifo(tmp_path / "intercode.toml")
    else:
        (tmp_path / "intercode.toml").write_bytes(content)
    with pytest.raises(UsageError, match=reason):
        read(tmp_path)
    assert find_benchmark(tasks) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="not for an ordinary user: it gives a file away")
def test_another_users_benchmark_has_no_file_of_ours(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    tasks = tmp_path / "below" / "tasks.jsonl"
    tasks.write_text('{"query": "?", "gold": "echo 1"}')
    (tmp_path / "intercode.toml").write_text('env = "bash"\ntasks = "below/tasks.jsonl"')
    assert find_benchmark(tasks) == tmp_path
    beside = tmp_path / "tasks.jsonl"
    beside.write_bytes(tasks.read_bytes())
    assert find_benchmark(beside) == tmp_path
    os.chown(tmp_path / "intercode.toml", 12345, 12345)
    assert find_benchmark(tasks) is None and find_benchmark(beside) is None
    os.chown(tasks, 12345, 12345)
    assert find_benchmark(tasks) == tmp_path
