"""``--reviewed`` from end to end, on the file systems of 2023's data, which debootstrap makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from databases.upstream import UPSTREAM, needs_upstream
from intercode.records import EPISODES, read_episodes
from intercode_sandbox.host_files import cache_root

from .conftest import Run, parsed


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with datasets of its own, and all else of this machine's: images take minutes."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for part in cache_root().glob("*"):
        if part.name != "datasets":
            (folder / part.name).symlink_to(part)
    return folder


@needs_upstream
def test_reviewed(cli: Run, tmp_path: Path, cache: Path) -> None:
    """The review decides what is right, what is no trial, and is named wherever results are."""
    (cache / "datasets").mkdir()
    (cache / "datasets" / "nl2bash").symlink_to(UPSTREAM)
    env = {"INTERCODE_CACHE": str(cache)}
    arguments = ["--data", "nl2bash", "--reviewed", "--task", "fs1-31", "--task", "fs1-2"]
    told = parsed(cli("run", "bash", *arguments, "--json", "--out", "run", env=env))
    assert told["dataset"]["name"] == "nl2bash (reviewed)"
    # One cannot be graded; the other's published gold is wrong, and the oracle takes ours.
    assert told["excluded"]["fs1-2"].startswith("missing: ")
    assert (told["planned"], told["statistics"]["successes"]) == (1, 1)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["dataset"]["name"] == "nl2bash (reviewed)"
    assert "nl2bash (reviewed)" in cli("report", "run", env=env).stdout

    by_review = read_episodes(tmp_path / "run" / EPISODES)
    plain = ["--data", "nl2bash", "--task", "fs1-31", "--json", "--out", "plain"]
    assert parsed(cli("run", "bash", *plain, env=env))["dataset"]["name"] == "nl2bash"
    published = read_episodes(tmp_path / "plain" / EPISODES)
    assert [one.turns[0].action for one in by_review] != [one.turns[0].action for one in published]

    refused = cli("run", "bash", "--reviewed", code=2)
    assert "--reviewed: there is no review of the golds of 'bash'" in refused.stderr
