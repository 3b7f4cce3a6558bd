"""What a stranger's data names lies in its folder, and lifts no limit of the operator's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import intercode
from envs import swe_tasks
from intercode import InterCodeEnv
from intercode.datasets import load
from intercode.envs.stage import CEILINGS, SandboxStage, resolve_limits
from intercode.errors import ImageError, TaskError
from intercode.task import Dataset, Task
from intercode_sandbox import Limits
from intercode_sandbox.images import resolve
from intercode_sandbox.path_containment import resolve_data_path

SECRET = "secret-of-the-operator"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an operator's home folder, with a folder of data in it and what data must not reach."""
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    (home / "private").mkdir()
    (home / "private" / "key").write_text(SECRET)
    archive(home / "private" / "private.tar.gz", home / "private" / "key")
    (home / "private" / "setup.sh").write_text("true\n")
    (home / "data-more").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    return home


def archive(place: Path, content: Path) -> None:
    with tarfile.open(place, "w:gz") as tar:
        tar.add(content, "srv/key")


def task_file(home: Path, **task: Any) -> Path:
    path = home / "data" / "tasks.json"
    path.write_text(
        json.dumps([{"task_id": "one", "query": "What is it?", "gold": "true", **task}])
    )
    return path


def refuses(env: str, path: Path, **options: Any) -> str:
    """Return why a task cannot be tried; nothing was started for it, and nothing is told of it."""

    def check() -> None:
        with closing(intercode.make(env, data=path, **options)) as made:
            made.unwrapped.check(made.unwrapped.dataset["one"])

    with pytest.raises((TaskError, ImageError)) as caught:
        check()
    assert SECRET not in str(caught.value)
    return str(caught.value)


# -- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "image",
    [
        "host+{home}/private/private.tar.gz", "host+~/private/private.tar.gz",
        "host+../private/private.tar.gz", "host+./link.tar.gz", "host+./folder/private.tar.gz",
        "host+./inner/../../private/setup.sh", "host+./own.tar.gz+../private/setup.sh",
        "host+{home}/data/../private/setup.sh", "host+../data-more/x.tar.gz",
        "{home}/private", "~/private", "../private", "./folder", "/", "~",
        "{home}/private/Dockerfile", "../private/Dockerfile", "./folder/Dockerfile",
        "./Dockerfile-link", "./linked", "oci:{home}/private", "oci:~/private",
        "dockerfile:../private/Dockerfile",
    ],
)  # fmt: skip
@pytest.mark.parametrize("env", ["bash", "python"])
def test_images_are_made_from_the_data_s_folder(home: Path, env: str, image: str) -> None:
    data = home / "data"
    (data / "inner").mkdir()
    archive(data / "own.tar.gz", home / "private" / "setup.sh")
    (data / "link.tar.gz").symlink_to(home / "private" / "private.tar.gz")
    (data / "folder").symlink_to("../private")
    (home / "private" / "Dockerfile").write_text("FROM host\nCOPY key /key\n")
    (data / "Dockerfile-link").symlink_to("../private/Dockerfile")
    (data / "linked").mkdir()
    (data / "linked" / "Dockerfile").symlink_to("../../private/Dockerfile")
    more = {"tests": ["assert True"]} if env == "python" else {}
    path = task_file(home, image=image.format(home=home), **more)
    assert "data must not name files outside of it" in refuses(env, path)


def test_an_image_of_the_data_s_own_is_found_from_any_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive(home / "data" / "own.tar.gz", home / "private" / "key")
    path = task_file(home, image="host+./own.tar.gz", gold="cat /srv/key")
    monkeypatch.chdir(tmp_path)
    with closing(intercode.make("bash", data=path)) as env:
        env.reset()
        assert env.step("cat /srv/key")[0].strip() == SECRET  # which it has brought itself


def test_a_program_and_the_command_may_name_any_place(home: Path) -> None:
    image = f"host+{home}/private/private.tar.gz"
    task = Task("one", "?", ("cat /srv/key",), image=image)
    for made in (
        intercode.make("bash", data=Dataset([task])),
        intercode.make("bash", data=task_file(home), image=image),
    ):
        with closing(made) as env:
            env.reset()
            assert env.step("cat /srv/key")[0].strip() == SECRET


def test_no_protocol_stage_or_part_of_a_dataset_lets_an_image_in(home: Path) -> None:
    more = {"gold": "def f():\n    return 1", "tests": ["assert f() == 1"]}
    tasks = load(task_file(home, image="host+../private/setup.sh", **more))
    parts = (
        tasks,
        tasks[:1],
        tasks.sample(1),
        tasks.filter(lambda _: True),
        tasks.limit_timeouts(1.0),
    )
    ways: list[Callable[[Dataset], Any]] = [
        *(lambda part, env=env: intercode.make(env, data=part) for env in ("bash", "ctf")),
        lambda part: InterCodeEnv(part, SandboxStage("native"), reward=lambda *_: 0.0),
        lambda part: InterCodeEnv(part, reward=lambda *_: 0.0),
    ]

    for way in ways:
        for part in parts:
            refuses_the_image(part, way)


def refuses_the_image(part: Dataset, way: Callable[[Dataset], Any]) -> None:
    with (
        pytest.raises(TaskError, match="data must not name files outside of it"),
        closing(way(part)) as env,
    ):
        env.unwrapped.check(env.unwrapped.dataset["one"])


def test_a_data_file_says_no_folder_of_its_own(home: Path) -> None:
    task = load(task_file(home, folder="/"))["one"]
    assert task.folder == home / "data"
    assert task.metadata == {"folder": "/"} and "folder" not in replace(task, metadata={}).to_dict()


@pytest.mark.parametrize(
    "lines",
    [
        "FROM {home}/private", "FROM ../private", "FROM ~/private", "FROM host+../private/x.tar.gz",
        "FROM host+{home}/private/private.tar.gz", "FROM ./folder",
        "FROM host\nCOPY --from=../private key /key", "FROM host\nCOPY --from={home}/private / /x",
        "FROM host\nCOPY ../private/key /key", "FROM host\nCOPY link /key",
        "FROM host\nADD folder/key /key", "FROM host\nCOPY folder/key /key",
        "FROM host\nRUN --mount=type=bind,from=../private,target=/x cat /x/key > /key",
        "FROM host\nRUN --mount=type=bind,source=../private,target=/x cat /x/key > /key",
    ],
)  # fmt: skip
def test_a_dockerfile_of_the_data_s_copies_nothing_else(home: Path, lines: str) -> None:
    data = home / "data"
    (data / "link").symlink_to("../private/key")
    (data / "folder").symlink_to("../private")
    (data / "Dockerfile").write_text(f"{lines.format(home=home)}\n")
    path = task_file(home, image="./Dockerfile")
    with closing(intercode.make("bash", data=path)) as env:
        try:
            env.reset()
        except (TaskError, ImageError) as error:
            assert SECRET not in str(error)
            return
        found = env.step("cat /key /key/* /x/* 2>&1")[0]
        assert SECRET not in found, found


# -- repositories --------------------------------------------------------------------------------


def repository(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "file").write_text(SECRET)
    run = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-C", str(folder)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*run, *words], check=True)
    done = subprocess.run([*run, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def swe_file(home: Path, **facts: str) -> Path:
    known = swe_tasks.task(**facts)
    return task_file(home, gold=swe_tasks.GOLD, metadata=dict(known.metadata))


def linked(data: Path, private: Path) -> None:
    (data / "link").symlink_to(private)


def linked_inside(data: Path, private: Path) -> None:
    (data / "link").mkdir()
    (data / "link" / ".git").symlink_to(private / ".git")


def named_in_a_file(data: Path, private: Path) -> None:
    (data / "link").mkdir()
    (data / "link" / ".git").write_text(f"gitdir: {private}/.git\n")


def borrowed(data: Path, private: Path) -> None:
    repository(data / "link")
    (data / "link" / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")


def borrowed_by_a_link(data: Path, private: Path) -> None:
    repository(data / "link")
    os.rename(data / "link/.git/objects", data / "link/.git/own")
    (data / "link/.git/objects").symlink_to(private / ".git/objects")


def shared_by_a_bare_one(data: Path, private: Path) -> None:
    (data / "link/objects").mkdir(parents=True)
    (data / "link/refs").mkdir()
    (data / "link/HEAD").write_text("ref: refs/heads/main\n")
    (data / "link/commondir").write_text(f"{private}/.git\n")


@pytest.mark.parametrize(
    "given",
    [
        "~/private", "{home}/private", "../private", "./x/../../private", "file://{home}/private",
        "ssh://host/private", "https://127.0.0.1:9/private.git", "git@github.com:me/private.git",
        "{home}/private/private.tar.gz", "~/private/private.tar.gz",
        linked, linked_inside, named_in_a_file, borrowed, borrowed_by_a_link, shared_by_a_bare_one,
    ],
    ids=lambda given: given if isinstance(given, str) else given.__name__,
)  # fmt: skip
def test_repositories_lie_in_the_data_s_folder(
    home: Path, given: str | Callable[[Path, Path], None]
) -> None:
    commit = repository(home / "private")
    if not isinstance(given, str):
        given(home / "data", home / "private")
        given = "./link"
    why = refuses("swe", swe_file(home, repository=given.format(home=home), base_commit=commit))
    assert re.search("data must not name files|data must not make|refused the repository", why), why


def test_a_repository_s_address_may_begin_as_the_command_says(home: Path) -> None:
    commit = repository(home / "private")
    path = swe_file(home, repository=f"file://{home}/private", base_commit=commit)
    with closing(intercode.make("swe", data=path, repositories=f"file://{home}")) as env:
        env.unwrapped.check(env.unwrapped.dataset["one"])
    assert "--repositories" in refuses("swe", path, repositories=f"file://{home}/priv")


# -- other files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("assets", ["{home}/private", "../private", "~/private", "./link", "/"])
def test_a_puzzle_s_assets_lie_in_the_data_s_folder(home: Path, assets: str) -> None:
    (home / "data" / "link").symlink_to("../private")
    path = task_file(home, gold="flag", metadata={"assets": assets.format(home=home)})
    refuses("ctf", path)


@pytest.mark.parametrize("db", ["../private/key", "{home}/private/key", "~/private/key", "link"])
def test_databases_lie_in_their_folder(home: Path, db: str) -> None:
    (home / "private" / "key.sqlite").write_bytes(b"")
    (home / "data" / "link.sqlite").symlink_to("../private/key.sqlite")
    path = task_file(home, gold="SELECT 1", db=db.format(home=home))
    refuses("sql", path, databases=home / "data")


@given(
    parts=st.lists(st.sampled_from(["..", ".", "a", "link", "out", "loop", "", "~"]), max_size=6)
)
def test_no_path_leads_out(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp() / "paths" / "data"
    if not folder.exists():
        (folder / "a").mkdir(parents=True)
        (folder / "link").symlink_to("a")
        (folder / "out").symlink_to("..")
        (folder / "loop").symlink_to("loop")
    try:
        found = resolve_data_path(folder, "/".join(parts))
    except ValueError:
        return
    assert os.path.realpath(found).startswith(str(folder.resolve()))


# -- limits --------------------------------------------------------------------------------------


def test_a_limit_that_is_set_is_the_most_that_a_task_has() -> None:
    task = Task("one", "?", memory=512 << 20, disk="10T", processes=30_000)
    limits = resolve_limits(task, Limits.merge({"memory": "64M", "disk": "1G", "processes": 256}))
    assert (limits.memory, limits.disk, limits.processes) == (64 << 20, 1 << 30, 256)
    assert resolve_limits(task, Limits(memory="2G", disk="2G", processes=9)).memory == 512 << 20


@pytest.mark.parametrize(
    "asked", [{"memory": "10T"}, {"disk": "10T"}, {"processes": 30_000}], ids=str
)
def test_data_has_a_ceiling(home: Path, asked: dict[str, Any]) -> None:
    (name,) = asked
    assert f"--{name}" in refuses("bash", task_file(home, **asked))
    most = Task("one", "?", **{name: CEILINGS[name]})
    assert getattr(resolve_limits(most, None), name) == CEILINGS[name]


def test_capabilities_that_were_set_are_all_that_there_are() -> None:
    task = Task("one", "?", capabilities=["chown"])
    assert resolve_limits(task, None).capabilities == ("chown",)
    assert resolve_limits(task, Limits.merge({"capabilities": "chown,kill"})).capabilities == (
        "chown",
    )
    for few in ("", "kill"):
        with pytest.raises(TaskError, match="chown"):
            resolve_limits(task, Limits.merge({"capabilities": few}))


def test_a_timeout_that_is_set_is_the_longest(home: Path) -> None:
    path = task_file(home, timeout=1000)
    for options, seconds in (({}, 1000), ({"timeout": 5}, 5), ({"timeout": 2000}, 1000)):
        with closing(intercode.make("bash", data=path, **options)) as env:
            assert env.unwrapped.dataset["one"].timeout == seconds


@pytest.mark.timeout(60)  # reading a FIFO never ends
@pytest.mark.parametrize("image", ["host+{}/f.tar.gz", "host+{}/f.sh", "{}/f.Dockerfile"])
def test_a_fifo_of_data_is_refused(home: Path, image: str) -> None:
    os.mkfifo(home / "data" / Path(image).name)
    with pytest.raises(ImageError, match="not a regular file"):
        resolve(image.format(home / "data"))
