"""``intercode datasets``, as a user types it."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from datasets import layouts
from file_server import Place, serve

from .conftest import TASKS, Run, command, keys, parsed, write

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
    shown = [line.split() for line in cli("datasets", "list", env=env).stdout.splitlines()]
    assert ["spider", "to", "fetch", "CC", "BY-SA", "4.0"] in [line[:6] for line in shown]
    assert ["sql", "bundled", "MIT"] in [line[:3] for line in shown]
    listed = parsed(cli("datasets", "list", "--json", env=env))["datasets"]
    for entry in listed:
        keys(entry, ENTRY)
    assert all(entry["present"] == entry["bundled"] for entry in listed)
    assert {"bash", "sql"} <= {entry["name"] for entry in listed if entry["present"]}


def test_fetch_info_validate(cli: Run, env: dict[str, str], archive: bytes) -> None:
    with serve(Place(archive)) as place:
        done = cli("datasets", "fetch", "bird", "--from", place.url, env=env)
    assert done.stdout.startswith("bird: 3 tasks, from ")
    assert "CC BY-SA 4.0" in done.stderr
    facts = parsed(cli("datasets", "info", "bird", "--json", env=env))
    keys(facts, f"{ENTRY} splits tasks tags")
    assert "dev" in facts["splits"]
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
        "noop_mean_reward garbage_successes garbage_mean_reward constants solved_by_constants "
        "seconds problems doubts slow leaks usage",
    )
    assert (report["env"], report["tasks"], report["valid"]) == ("sql", 3, True)


def test_a_review_that_there_is_not(cli: Run) -> None:
    said = cli("datasets", "validate", "sql", "--reviewed", code=2).stderr
    assert "--reviewed: there is no review of the golds of 'sql'" in said


def test_fetch_that_fails(cli: Run, env: dict[str, str]) -> None:
    with serve(Place(b"", answers=[404])) as place:
        done = cli("datasets", "fetch", "bird", "--from", place.url, code=1, env=env)
        assert "404 Not Found" in done.stderr
        wanted = ["--from", place.url, "--checksum", "00" * 32]
        done = cli("datasets", "fetch", "bird", *wanted, code=1, env=env)
    assert "has changed" in done.stderr
    assert cli("datasets", "fetch", "sql", code=2, env=env).stdout == ""
    assert "known: " in cli("datasets", "info", "no_such", code=2, env=env).stderr


def test_what_is_not_fetched(cli: Run, env: dict[str, str]) -> None:
    done = cli("datasets", "validate", "spider", code=2, env=env)
    assert "intercode datasets fetch spider" in done.stderr
    assert "here      to fetch" in cli("datasets", "info", "spider", env=env).stdout


BAD = [
    {"task_id": "free", "query": "do nothing", "verification": "true", "gold": "true"},
    {"task_id": "fails", "query": "solve", "verification": "test -e /none", "gold": "true"},
    {"task_id": "broken", "query": "set up", "gold": "true", "setup": "exit 3"},
]


def test_the_progress_counts_no_trick_that_ran_gold_alone(cli: Run, tmp_path: Path) -> None:
    sound = {
        "task_id": "clean",
        "query": "Write yes to /root/out.",
        "gold": "echo yes > /root/out",
        "verification": "grep -qx yes /root/out",
    }
    done = cli("datasets", "validate", write(tmp_path / "sound.json", [sound]), "--env", "bash")
    assert "1 of 1 task is valid" in done.stdout
    assert "solved by a wrong answer 0" in done.stderr
    assert "solved by a wrong answer 1" not in done.stderr


def test_validate_finds_what_is_wrong(cli: Run, tmp_path: Path) -> None:
    data = write(tmp_path / "bad.json", [*TASKS[:2], *BAD])
    listed = ["--write-exclude", "broken.json"]
    done = cli("datasets", "validate", data, "--env", "bash", "--workers", 2, *listed, code=1)
    assert "free: doing nothing scores 1.00" in done.stdout
    assert "free: a wrong answer scores 1.00" in done.stdout
    assert "fails: gold scores 0.00" in done.stdout
    assert "broken: gold cannot be scored:" in done.stdout
    assert "constants solve 1 of 5 tasks: true 1, echo 0 1, echo 1 1" in done.stdout
    assert "2 of 5 tasks are valid" in done.stdout
    assert "not solved by gold 2  solved by a wrong answer 1" in done.stderr, (
        "and it says how it goes"
    )
    assert "broken.json: 3 tasks to exclude" in done.stderr
    few = [*(argument for name in ("hello", "fails") for argument in ("--task", name))]
    report = parsed(cli("datasets", "validate", data, "--json", "-q", *few, code=1))
    assert [problem["task_id"] for problem in report["problems"]] == ["fails"]
    keys(report["problems"][0], "task_id kind problem reward error_type")
    assert not report["valid"] and report["complete"]

    ran = cli("run", "bash", "--data", data, "--exclude", "broken.json", "--out", "r", "--quiet")
    assert "3 tasks excluded" in ran.stdout
    manifest = parsed(cli("report", "r", "--json"))["manifest"]
    assert sorted(manifest["excluded"]) == ["broken", "fails", "free"]
    assert manifest["excluded"]["fails"].startswith("gold scores 0.00")
    assert "3 tasks excluded" in cli("report", "r").stdout
    again = ["run", "bash", "--data", data, "--out", "r"]
    assert "excluded.fails was" in cli(*again, code=2).stderr, "it is another run now"


def test_exclusion_lists_that_do_not_fit(cli: Run, tmp_path: Path) -> None:
    data = write(tmp_path / "tasks.json", TASKS)
    run = ["run", "bash", "--data", data, "--quiet", "--task", "hello", "--exclude"]
    other = {"tasks": {"touch": "why"}, "dataset": "other", "digest": "0" * 64}
    done = cli(*run, write(tmp_path / "other.json", other))
    assert "was made for other (00000000), and this is tasks (" in done.stderr
    (tmp_path / "unknown.txt").write_text("nope  a reason\n")
    assert "names tasks that are not in tasks: nope" in cli(*run, "unknown.txt", code=2).stderr
    (tmp_path / "all.txt").write_text("hello\n")
    assert "are excluded" in cli(*run, "all.txt", code=2).stderr
    assert "cannot be read" in cli(*run, "missing.txt", code=2).stderr


def test_validate_is_interrupted(cli: Run, tmp_path: Path) -> None:
    slow = [{"task_id": str(n), "query": "wait", "gold": "echo begun; sleep 1"} for n in range(40)]
    data = write(tmp_path / "slow.json", slow)
    arguments = ["datasets", "validate", data, "--write-exclude", "list.json", "--workers", 2]
    with subprocess.Popen(
        command(*arguments),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        while "not solved by gold" not in (line := process.stderr.readline()) and line:
            pass  # after some seconds it says how it goes
        process.send_signal(signal.SIGINT)
        shown, said = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130
    assert "but not all were tried" in shown
    assert "list.json is not written" in said and not (tmp_path / "list.json").exists()


def test_the_environment_first_and_the_tasks_by_an_option(cli: Run, data: Path) -> None:
    given = ["--data", data, "--task", "hello", "--json", "-q"]
    assert parsed(cli("validate", "bash", *given))["env"] == "bash"
    told = cli("validate", "bash", *given, "--env", "sql", code=2).stderr
    assert "two environments are given: 'bash' and 'sql'" in told


def test_options_are_not_abbreviated(cli: Run) -> None:
    told = cli("run", "bash", "--dat", "tasks.json", code=2).stderr
    assert "there is no option --dat; did you mean '--data'?" in told


def test_without_gold_nothing_is_said_of_its_time(tmp_path: Path, cli: Run) -> None:
    task = {"task_id": "a", "query": "q", "verification": "test -e /root/x"}
    data = str(write(tmp_path / "tasks.json", [task]))
    assert "gold takes at most" not in cli("validate", data, "--quiet", code=1).stdout
