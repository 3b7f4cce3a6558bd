"""Two versions on one machine: the last single package, and this checkout's packages.

Both have one home: cache, locks, leases and run folders. Each is tested beside the other, as an
upgrade can be undone.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from first_hour.conftest import REPOSITORY, Someone, install, variables
from waiting import PATIENCE, eventually

BEFORE = "0b1157defd6da8c5577532839dd13c35e70b0682"
"""The last commit with a single package."""
BUILD_FILES = ("src", "hatch_build.py", "pyproject.toml", "README.md", "LICENSE")
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
TASKS = [{"task_id": name, "query": "Say hello.", "gold": "echo hello"} for name in ("a", "b")]
AGENT = """
import pathlib, time

class Agent:
    def act(self, observation, history):
        return "submit" if history else "echo hello"

def make(task):
    while task.task_id == "b" and not pathlib.Path("go").exists():
        time.sleep(0.05)
    return Agent()
"""
"""Begins the second task when a file is there: until then the run is in progress."""
HOLDER = """
import sys, intercode
from intercode.sandbox import get_provider

provider = get_provider()
sandbox = provider.start("host")
assert sandbox.exec(["sh", "-c", "echo content > /root/file"]).ok
snapshot = sandbox.snapshot()
sql = intercode.make("sql")
sql.reset(seed=0)
bash = intercode.make("bash", data="tasks.json")
bash.reset(options={"task_id": "a"})
bash.step("value=set; echo more > /root/note")
fork = bash.snapshot()
print("ready", flush=True)
if not sys.stdin.readline():
    sys.exit("no request")
for place in (sandbox, provider.start(snapshot)):
    assert place.exec(["cat", "/root/file"]).stdout == b"content\\n"
assert sql.step("SELECT 1")[4]["ok"]
assert "more set" in bash.step("cat /root/note; echo $value")[0].replace("\\n", " ")
bash.restore(fork)
assert "more set" in bash.step("cat /root/note; echo $value")[0].replace("\\n", " ")
print("all is there", flush=True)
"""
"""Holds a sandbox, a snapshot, a database and a fork, and uses all when asked."""


@pytest.fixture(scope="module")
def version_before(place: Path) -> Path:
    """A virtual environment with the version before."""
    git = ("git", "-C", str(REPOSITORY))
    if subprocess.run(
        [*git, "cat-file", "-e", BEFORE], capture_output=True, check=False
    ).returncode:
        pytest.skip("not for shallow clones: the commit of the version before is missing")
    archive = place / "before.tar"
    tree = place / "before-source"
    subprocess.run([*git, "archive", "-o", str(archive), BEFORE, *BUILD_FILES], check=True)
    tree.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(tree)], check=True)
    return install(place / "before", str(tree))


@pytest.fixture(params=["upgrade", "downgrade"])
def versions(
    request: pytest.FixtureRequest, version_before: Path, venv: Path, tmp_path: Path
) -> tuple[Someone, Someone]:
    """The version in use and the version that is installed beside it, with one home."""
    first, second = (version_before, venv)[:: 1 if request.param == "upgrade" else -1]
    users = [
        Someone(path, tmp_path, env={**variables(path, tmp_path), **NO_ENGINE})
        for path in (first, second)
    ]
    users[0].file("tasks.json", json.dumps(TASKS))
    users[0].file("agent.py", AGENT)
    return users[0], users[1]


@contextmanager
def background(someone: Someone, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command that a block ends."""
    path = str(someone.venv / "bin" / command[0])
    with subprocess.Popen(
        [path, *command[1:]],
        cwd=someone.home,
        env=someone.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def holder(someone: Someone) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds a sandbox, a snapshot, a database and a fork."""
    with background(someone, "python", "-c", HOLDER) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def rule_versions(text: str) -> dict[str, int]:
    """Return rule → version of a tree's tests/rule_versions/recorded.json."""
    return {name: entry["version"] for name, entry in json.loads(text)["rules"].items()}


@contextmanager
def half_a_run(someone: Someone) -> Iterator[subprocess.Popen[str]]:
    """Start a run of two episodes, of which the second waits."""
    tasks = ("--data", "tasks.json", "--agent", "agent.py:make")
    with background(someone, "intercode", "run", "bash", *tasks, "--out", "runs/half") as process:
        episodes = someone.home / "runs/half/episodes.jsonl"
        assert eventually(lambda: episodes.is_file() and episodes.stat().st_size)
        yield process


def report(someone: Someone, *command: str) -> Any:
    """Return the output of a command with ``--json``."""
    return json.loads(someone.run("intercode", *command, "--json").stdout)


def clean(someone: Someone, pid: int, *options: str) -> list[str]:
    """Clean; return the removed paths in the home, and those of a process's leases."""
    paths = report(someone, "clean", *options)["removed"]
    return [path for path in paths if str(someone.home) in path or f"/intercode-{pid}-" in path]


def cache_entries(home: Path, *folders: str) -> set[tuple[str, int]]:
    """Return names and inodes of what folders of the cache hold: a rebuilt entry has another."""
    return {
        (str(path.relative_to(home)), path.stat().st_ino)
        for folder in folders
        for path in (home / ".cache/intercode" / folder).iterdir()
    }


def test_a_sandbox_in_use(versions: tuple[Someone, Someone]) -> None:
    """Neither `doctor`, nor runs, nor `clean` of the other version disturb it."""
    first, second = versions
    with holder(first) as process:
        assert all(check["ok"] is not False for check in report(second, "doctor")["checks"])
        assert report(second, "run", "sql", "--limit", "1")["statistics"]["successes"] == 1
        assert clean(second, process.pid) == []
        report(second, "clean", "--all", "--yes")
        databases = first.home / ".cache/intercode/databases"
        assert [*databases.iterdir()], "they are in use"
        printed, _ = process.communicate("\n", timeout=PATIENCE)
        assert (printed, process.returncode) == ("all is there\n", 0)
    assert clean(second, process.pid) == [], "the process has removed what was its own"


def test_a_killed_process(versions: tuple[Someone, Someone]) -> None:
    """The other version removes what it has left, so that neither finds anything after."""
    first, second = versions
    with holder(first) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=PATIENCE)
    snapshots = first.home / ".cache/intercode/snapshots"
    entries = {str(path) for path in snapshots.iterdir()}
    assert entries
    assert entries <= {*clean(second, process.pid)}
    assert [*snapshots.iterdir()] == []
    for version in versions:
        assert clean(version, process.pid, "--dry-run") == []


def test_images_and_databases(versions: tuple[Someone, Someone]) -> None:
    """The other version takes them as they are, and makes none of its own beside them.

    Two kinds of databases may be made again. The names of mutated copies are digests alone, and
    the digests of the version before the four packages contained names of classes. The names of
    converted databases end with the converter's version.
    """
    first, second = versions
    entries = []
    for version in versions:
        report(version, "run", "sql", "--limit", "2")
        entries.append(cache_entries(first.home, "images", "databases"))
    assert entries[0] <= entries[1]
    contents = {Path(name).name.partition("-v")[0] for name, _ in entries[0]}
    unexpected = [
        name
        for name in (Path(name).name for name, _ in entries[1] - entries[0])
        if not re.fullmatch(r"[0-9a-f]{32}\.sqlite", name)
        and not (re.fullmatch(r"[0-9a-f]{32}-v\d+\.sqlite", name) and name[:32] in contents)
    ]
    assert unexpected == []
    for folder in ("images", "databases"):
        assert any(f"/{folder}/" in name for name, _ in entries[0])
    assert report(first, "images", "list") == report(second, "images", "list")


def test_a_run(versions: tuple[Someone, Someone]) -> None:
    """A run holds its lock while it is played; later it is read, resumed, rescored and exported."""
    first, second = versions
    with half_a_run(first) as process:
        assert [episode["task_id"] for episode in report(second, "show", "runs/half")] == ["a"]
        refused = second.run("intercode", "resume", "runs/half", "--trust", code=1)
        assert "another process is writing to the run" in refused.stderr
        assert clean(second, process.pid) == []
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=PATIENCE)
    second.file("go", "")
    resume = ("resume", "runs/half", "--trust")
    done = second.run("intercode", *resume, "--json", code=2)
    names = [difference["what"] for difference in json.loads(done.stdout)["differences"]]
    # Episodes of two versions of a rule cannot be one run, unless the user says so.
    record = "tests/rule_versions/recorded.json"
    git = ["git", "-C", str(REPOSITORY), "show", f"{BEFORE}:{record}"]
    earlier = rule_versions(subprocess.run(git, capture_output=True, check=True, text=True).stdout)
    current = rule_versions((REPOSITORY / record).read_text())
    manifest = json.loads((first.home / "runs/half/run.json").read_text())
    raised = [rule for rule in manifest["env"]["rules"] if earlier[rule] != current[rule]]
    assert names == [*(f"env.rules.{rule}" for rule in sorted(raised)), "versions.code"]
    accepted = [argument for name in names for argument in ("--accept", name)]
    resumed = report(second, *resume, *accepted)
    assert (resumed["ran"], resumed["finished"]) == (1, 2)
    for version in versions:
        assert report(version, "report", "runs/half")["statistics"]["successes"] == 2
        assert len(report(version, "show", "runs/half")) == 2
        again = ("--out", f"runs/again-{version.venv.name}", "--accept", "versions.code")
        rescored = report(version, "rescore", "runs/half", "--trust", *again)
        assert rescored["statistics"]["successes"] == 2
        exported = report(version, "export", "runs/half", "--to", "chat", "--out", "chat.jsonl")
        assert exported["episodes"] == 2


def test_a_benchmark(versions: tuple[Someone, Someone]) -> None:
    """A folder that `new` has written, with its options, is run by the other version."""
    first, second = versions
    first.run("intercode", "new", "mine", "--env", "sql")
    assert report(second, "run", "mine", "--limit", "1")["statistics"]["successes"] == 1


def test_an_agent_profile(versions: tuple[Someone, Someone]) -> None:
    """A profile that worked with the first version gives the same episodes with the other."""
    profile = """
        name = "mine"
        [run]
        command = ["sh", "-c", "touch /root/out"]
    """
    task = {"task_id": "out", "query": "Make /root/out.", "gold": "touch /root/out"}
    versions[0].file("mine.toml", profile)
    versions[0].file("tasks.json", json.dumps([task]))
    agent = ("--agent", "./mine.toml", "--model", "none")
    for version in versions:
        done = report(version, "run", "bash", "--data", "tasks.json", *agent)
        assert done["statistics"]["successes"] == 1
