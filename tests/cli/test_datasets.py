"""``intercode datasets``, as a user types it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datasets import layouts
from datasets.place import Place, serve

from .conftest import TASKS, Run, keys, parsed, write

ENTRY = "name title licence home url sha256 size bundled present folder advice"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A cache of the test's own."""
    return {"INTERCODE_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    layouts.bird(tmp_path / "in" / "dev")
    return Path(shutil.make_archive(str(tmp_path / "bird"), "zip", tmp_path / "in")).read_bytes()


def test_list(cli: Run, env: dict[str, str]) -> None:
    shown = cli("datasets", "list", env=env).stdout
    assert "spider         to fetch  CC BY-SA 4.0" in shown
    assert "sql            bundled   MIT" in shown
    listed = parsed(cli("datasets", "list", "--json", env=env))["datasets"]
    for entry in listed:
        keys(entry, ENTRY)
    present = {entry["name"] for entry in listed if entry["present"]}
    assert present == {"bash", "sql"}


def test_fetch_info_validate(cli: Run, env: dict[str, str], archive: bytes) -> None:
    with serve(Place(archive)) as place:
        done = cli("datasets", "fetch", "bird", "--from", place.url, env=env)
    assert done.stdout.startswith("bird: 3 tasks, from ")
    assert "CC BY-SA 4.0" in done.stderr
    facts = parsed(cli("datasets", "info", "bird", "--json", env=env))
    keys(facts, f"{ENTRY} tasks tags")
    assert facts["present"] and facts["folder"].startswith(env["INTERCODE_CACHE"])
    assert facts["tags"] == {"simple": 1, "moderate": 1, "challenging": 1}
    shown = cli("datasets", "info", "bird", env=env).stdout
    assert "tasks     3" in shown and "here      here" in shown
    again = parsed(cli("datasets", "fetch", "bird", "--json", env=env))
    keys(again, f"{ENTRY} tasks")
    report = parsed(cli("datasets", "validate", "bird", "--json", "-q", "--workers", 2, env=env))
    keys(
        report,
        "dataset digest env tasks complete valid oracle_successes noop_successes "
        "noop_mean_reward seconds problems",
    )
    assert (report["env"], report["tasks"], report["valid"]) == ("sql", 3, True)


def test_fetch_that_fails(cli: Run, env: dict[str, str]) -> None:
    with serve(Place(b"", answers=[404])) as place:
        done = cli("datasets", "fetch", "bird", "--from", place.url, code=1, env=env)
        assert "404 Not Found" in done.stderr
        wanted = ["--from", place.url, "--checksum", "00" * 32]
        done = cli("datasets", "fetch", "bird", *wanted, code=1, env=env)
    assert "is not what it was" in done.stderr
    assert cli("datasets", "fetch", "sql", code=2, env=env).stdout == ""
    assert "known: " in cli("datasets", "info", "no_such", code=2, env=env).stderr


def test_what_is_not_fetched(cli: Run, env: dict[str, str]) -> None:
    done = cli("datasets", "validate", "spider", code=2, env=env)
    assert "intercode datasets fetch spider" in done.stderr
    assert "here      to fetch" in cli("datasets", "info", "spider", env=env).stdout


def test_validate_finds_what_is_wrong(cli: Run, tmp_path: Path) -> None:
    bad = [
        {"task_id": "free", "query": "do nothing", "verification": "true", "gold": "true"},
        {"task_id": "fails", "query": "solve", "verification": "test -e /none", "gold": "true"},
        {"task_id": "broken", "query": "set up", "gold": "true", "setup": "exit 3"},
    ]
    data = write(tmp_path / "bad.json", [*TASKS[:2], *bad])
    done = cli("datasets", "validate", data, "--env", "bash", code=1)
    assert "free: doing nothing scores 1.00" in done.stdout
    assert "fails: gold scores 0.00" in done.stdout
    assert "broken: gold cannot be scored:" in done.stdout
    assert "2 of 5 tasks are as they should be" in done.stdout
    report = parsed(cli("datasets", "validate", data, "--json", "-q", code=1))
    assert {problem["task_id"] for problem in report["problems"]} == {"free", "fails", "broken"}
    assert not report["valid"] and report["complete"]
    assert parsed(cli("datasets", "validate", data, "--json", "-q", "--limit", 2))["valid"]
