"""Scores of other versions of a rule: neither compared nor mixed, until they are scored again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.main import main
from intercode.records import EPISODES, MANIFEST, read_manifest
from intercode.rewards.bash import BashReward

from .conftest import write

TASKS = [
    {"task_id": "hello", "query": "say hello", "gold": "echo hello"},
    {"task_id": "touch", "query": "make a file", "gold": "touch made"},
]
REWARD = """
def half(task, episode, sandbox, default):
    return default(task, episode, sandbox).value / 2
half.VERSION = 7

def whole(task, episode, sandbox):
    return 1.0
"""
Tell = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("versions")
    write(folder / "tasks.json", TASKS)
    (folder / "reward.py").write_text(REWARD)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run("first", "oracle") == 0
        assert run("same", "noop") == 0
        assert run("half", "oracle") == 0
        episodes = folder / "half" / EPISODES
        episodes.write_bytes(episodes.read_bytes().splitlines(keepends=True)[0])
        patch.setattr(BashReward, "VERSION", 2)
        assert run("newer", "noop") == 0
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, folder := tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


def run(out: str, agent: str, *more: str) -> int:
    common = ["--data", "tasks.json", "--agent", agent, "--out", out, "--quiet"]
    return main(["run", "bash", *common, *more])


def report(capsys: Tell, *runs: str) -> tuple[dict[str, Any], str]:
    """The comparisons, and what is warned of."""
    capsys.readouterr()
    assert main(["report", *runs]) == 0
    told = capsys.readouterr().err
    assert main(["report", *runs, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["comparisons"], told


def edit(folder: Path, change: Any) -> None:
    manifest = read_manifest(folder)
    change(manifest)
    write(folder / MANIFEST, manifest)


def test_the_record_names_each_rule(here: Path) -> None:
    assert read_manifest(here / "first")["env"]["rules"] == {"answer": 1, "bash": 1, "command": 2}
    assert read_manifest(here / "newer")["env"]["rules"]["bash"] == 2


def test_runs_are_compared_only_within_a_version(here: Path, capsys: Tell) -> None:
    compared, told = report(capsys, "first", "same", "newer")
    assert list(compared) == ["same"]
    assert "first and newer differ in their conditions:\n  env.rules.bash: 1 and 2\n" in told
    assert "intercode rescore RUN" in told
    compared, told = report(capsys, "first", "same")
    assert list(compared) == ["same"] and "rules" not in told


def test_a_run_goes_on_under_its_rules(
    here: Path, capsys: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BashReward, "VERSION", 2)
    assert main(["resume", "--trust", "half", "--quiet"]) == 2
    told = capsys.readouterr().err
    assert "env.rules.bash: recorded 1, now 2" in told and "intercode rescore" in told
    assert run("half", "oracle") != 0
    told = capsys.readouterr().err
    assert "env.rules.bash was 1 and is now 2" in told and "intercode rescore" in told
    monkeypatch.setattr(BashReward, "VERSION", 1)
    assert run("half", "oracle") == 0


def test_a_rescored_run_is_of_the_new_version(
    here: Path, capsys: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BashReward, "VERSION", 2)
    assert main(["rescore", "--trust", "first", "--out", "again", "--quiet"]) == 0
    assert read_manifest(here / "again")["env"]["rules"]["bash"] == 2
    compared, told = report(capsys, "newer", "again")
    assert list(compared) == ["again"] and "rules" not in told
    # What the new version changes is what one asks of a run and its own rescoring.
    compared, told = report(capsys, "first", "again")
    assert list(compared) == ["again"] and "env.rules.bash: 1 and 2" in told
    assert "not compared" not in told
    monkeypatch.setattr(BashReward, "VERSION", 3)
    assert main(["rescore", "--trust", "first", "--out", "again", "--quiet"]) == 2
    assert "env.rules.bash was 2 and is now 3" in capsys.readouterr().err


def test_a_record_from_before_versions(here: Path, capsys: Tell) -> None:
    for name in ("first", "same"):
        edit(here / name, lambda manifest: manifest["env"].pop("rules"))
    compared, told = report(capsys, "first", "same")
    assert list(compared) == ["same"] and "rules" not in told
    compared, told = report(capsys, "first", "newer")
    assert not compared and "env.rules.bash: nothing and 2" in told
    assert main(["rescore", "--trust", "first", "--out", "again", "--quiet"]) == 0
    assert read_manifest(here / "again")["env"]["rules"]["bash"] == 1


def test_the_version_of_a_reward_of_ones_own(here: Path) -> None:
    for name, rules in (
        ("half", {"answer": 1, "bash": 1, "command": 2, "half": 7}),
        ("whole", None),  # the digest of its file identifies it
    ):
        out = f"own-{name}"
        assert (
            main(["rescore", "--trust", "first", "--reward", f"reward.py:{name}", "--out", out])
            == 0
        )
        assert read_manifest(here / out)["env"].get("rules") == rules


def test_datasets_have_versions_too(here: Path, capsys: Tell) -> None:
    for agent in ("oracle", "noop"):
        assert main(["run", "sql", "--limit", "2", "--agent", agent, "--out", agent]) == 0
    assert read_manifest(here / "oracle")["dataset"]["version"] == 1
    edit(here / "noop", lambda manifest: manifest["dataset"].pop("version"))
    assert list(report(capsys, "oracle", "noop")[0]) == ["noop"]  # the digest is the same
    edit(here / "noop", lambda manifest: manifest["dataset"].update(version=2))
    compared, told = report(capsys, "oracle", "noop")
    assert not compared and "dataset.version: 1 and 2" in told
    assert "version" not in read_manifest(here / "first")["dataset"]
