"""``intercode rescore``: a thin layer over the record's options."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.main import main
from intercode.records import read_manifest

from .conftest import Run, parsed, write

TASKS = [
    {"task_id": "hello", "query": "say hello", "gold": "echo hello"},
    {"task_id": "touch", "query": "make a file", "gold": "touch made"},
    {"task_id": "now", "query": "what time is it", "gold": "date +%N"},
]
FILES = """
def length(task, episode, sandbox):
    return 1.0 / len(episode.turns)

def tidy(task, episode, sandbox):
    return 0.0 if sandbox.changes() else 1.0
"""
SQL = [
    {"task_id": "all", "query": "?", "gold": "SELECT n FROM t", "db": "shop"},
    {"task_id": "some", "query": "?", "gold": "SELECT n FROM t WHERE n > 1", "db": "shop"},
]
ROWS = "CREATE TABLE t (n INTEGER);\nINSERT INTO t VALUES (1), (2), (3);\n"
AGENT = """
def make(task):
    return Agent()

class Agent:
    def act(self, observation, history):
        return "submit" if history else "SELECT DISTINCT n FROM t ORDER BY n DESC"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Bash run and a SQL run."""
    folder = tmp_path_factory.mktemp("made")
    write(folder / "tasks.json", TASKS)
    write(folder / "sql.json", SQL)
    (folder / "reward.py").write_text(FILES)
    (folder / "agent.py").write_text(AGENT)
    (folder / "shop.sql").write_text(ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        bash = ["bash", "--data", "tasks.json", "--timeout", "50", "--out", "bash"]
        sql = ["sql", "--data", "sql.json", "--databases", "shop.sql", "--out", "sql"]
        assert main(["run", *bash, "--limit", "3", "--quiet"]) == 0
        assert main(["run", *sql, "--agent", "agent.py:make", "--max-turns", "3", "--quiet"]) == 0
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, elsewhere: the working directory."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def rescored(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main(["rescore", "--trust", *arguments, "--quiet", "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_function_of_the_record_needs_nothing_else(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    # There is no database that actions could be done in.
    found = rescored(capsys, "sql", "--reward", "reward.py:length", "--databases", "gone.sql")
    assert found["ways"] == {"record": 2} and found["run"] == "sql-rescored-length"
    assert found["statistics"]["success_rate"] == 1.0
    assert (
        main(["rescore", "--trust", "sql", "--databases", "gone.sql", "--out", "x", "--quiet"]) == 2
    )
    assert "gone.sql" in capsys.readouterr().err and not (here / "x").exists()
    record = read_manifest(here / "sql-rescored-length")
    assert record["env"]["reward"] == "reward.py:length" and record["env"]["reward_digest"]
    assert record["rescored"]["digest"] == record["env"]["reward_digest"]


def test_a_named_reward_and_back(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rescored(capsys, "sql", "--reward", "bird-ex", "--workers", "2")
    assert found["ways"] == {"again": 2} and found["reward"] == "bird-ex"
    # BIRD compares sets of rows: DISTINCT and the order make no difference to it.
    assert found["statistics"]["success_rate"] == 0.5 == found["before"]["success_rate"]
    assert found["changes"] == [{"task_id": "some", "epoch": 0, "before": 0.8, "after": 0.0}]
    assert found["paired"]["difference"]["value"] == 0.0
    again = rescored(capsys, "sql", "--reward", "default", "--out", "same")
    assert again["changes"] == [] and again["reward"] == "default"
    assert main(["rescore", "--trust", "sql", "--reward", "bird", "--out", "x"]) == 2
    assert "known: bird-ex" in capsys.readouterr().err and not (here / "x").exists()


def test_what_is_printed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["rescore", "--trust", "bash", "--reward", "reward.py:tidy", "--quiet"]) == 1
    text = capsys.readouterr().out
    for line in (
        "reward: recorded default, now reward.py:tidy",
        "scored: 2 by executing the recorded actions again, 1 not reproducible",
        "on 2 tasks: success 100.0 % → 50.0 %, -50.0 points",
        "  now: not reproducible: turn 1 differs: recorded '",
        "compare: intercode report bash bash-rescored-tidy",
    ):
        assert line in text, text
    assert ["touch", "0", "1.00", "0.00", "no", "longer", "solved"] in [
        line.split() for line in text.splitlines()
    ]
    # Once more: what has a result keeps it, what was lost is tried again.
    assert rescored(capsys, "bash", "--reward", "reward.py:tidy", code=1)["ran"] == 1
    # It is a run: others read it.
    assert main(["report", "bash", "bash-rescored-tidy"]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("\n  env.reward") == printed.err.count("\n  ") == 2
    assert "env.reward: default and reward.py:tidy" in printed.err
    assert main(["show", "bash-rescored-tidy", "--task", "now"]) == 0
    assert main(["export", "bash-rescored-tidy", "--to", "jsonl"]) == 0
    assert '"way": "not reproducible"' in capsys.readouterr().out.replace('":"', '": "')
    # But it is not one to go on with by asking the agent.
    assert main(["resume", "--trust", "bash-rescored-tidy"]) == 2
    assert main(["run", "bash", "--out", "bash-rescored-tidy", "--quiet"]) != 0


def test_what_has_changed_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = [dict(task, query="?") for task in TASKS]
    write(here / "other.json", other)
    arguments = ["bash", "--reward", "reward.py:length", "--data", "other.json"]
    found = rescored(capsys, *arguments, code=2)
    assert [one["what"] for one in found["differences"]] == ["dataset.digest"]
    assert rescored(capsys, *arguments, "--accept", "dataset")["ways"] == {"record": 3}
    record = json.loads((here / "bash" / "run.json").read_text())
    record["env"]["limits"]["timeout"] = 90.0
    write(here / "bash" / "run.json", record)
    capsys.readouterr()
    assert main(["rescore", "--trust", "bash", "--reward", "reward.py:tidy", "--quiet"]) == 2
    assert "env.limits.timeout: recorded 90.0, now 50.0" in capsys.readouterr().err
    assert not (here / "bash-rescored-tidy").exists()
    accepted = ("--accept", "env.limits")
    found = rescored(capsys, "bash", "--reward", "reward.py:tidy", *accepted, code=1)
    session = read_manifest(Path(found["run"]))["sessions"][0]
    assert session["differs"] == {"env.limits.timeout": 50.0}
    assert session["locked"]["accepted"] == ["env.limits"]
    del record["sessions"][0]["options"]
    write(here / "bash" / "run.json", record)
    assert main(["rescore", "--trust", "bash", "--reward", "reward.py:length"]) == 2
    assert "In Python, use intercode.evaluate.rescore" in capsys.readouterr().err


def test_resume_says_what_goes_on_with_it(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(made)
    assert (
        main(
            [
                "rescore",
                "--trust",
                "bash",
                "--reward",
                "reward.py:length",
                "--out",
                "new",
                "--quiet",
            ]
        )
        == 0
    )
    capsys.readouterr()
    assert main(["resume", "--trust", "new"]) == 2
    told = capsys.readouterr().err
    assert "intercode rescore" in told and "--out new" in told


def test_a_benchmark_s_folder_that_has_moved_with_its_run(cli: Run, tmp_path: Path) -> None:
    cli("new", "shop")
    cli("run", "shop", "--limit", "2", "--agent", "oracle", "--out", "shop/runs/first", "--quiet")
    (tmp_path / "shop").rename(tmp_path / "moved")
    (tmp_path / "moved/runs/first").rename(tmp_path / "sent")
    named = ["--env", "moved"]
    single = [
        *("--data", "moved/tasks.jsonl", "--image", "./moved/Dockerfile"),
        *("--reward", "moved/reward.py:score"),
    ]
    for number, words in enumerate((named, single)):
        told = parsed(cli("rescore", "sent", *words, "--out", f"again-{number}", "--json"))
        assert told["statistics"]["successes"] == 2
    assert "nothing to do" in cli("resume", "sent", *named).stdout
    locked = cli("run", "moved", "--locked", "sent", "--out", "locked", "--limit", "2", "--json")
    assert parsed(locked)["statistics"]["successes"] == 2
    # Beside the folder, the record's own paths are found again, if it is trusted.
    (tmp_path / "sent").rename(tmp_path / "moved/runs/first")
    done = cli("rescore", "moved/runs/first", "--trust", "--out", "trusted")
    assert str(tmp_path / "moved/tasks.jsonl") in done.stderr
    # Digests decide, not the place.
    tasks = tmp_path / "moved/tasks.jsonl"
    tasks.write_text(tasks.read_text().replace("\n", " \n").replace("?", "??").replace(".", "!"))
    done = cli("rescore", "moved/runs/first", *named, "--out", "other", code=2)
    assert "dataset.digest" in done.stderr


def test_a_rewards_file_that_has_changed_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rescored(capsys, "sql", "--reward", "reward.py:length")
    (here / "reward.py").write_text(FILES + "\n")
    assert main(["rescore", "--trust", "sql", "--reward", "reward.py:length", "--quiet"]) == 2
    refusal = capsys.readouterr().err
    assert "holds another run: reward.py has changed since. " in refusal
    assert "(--out NEW)" in refusal
    new = ["--reward", "reward.py:length", "--out", "of-the-new-file"]
    assert main(["rescore", "--trust", "sql", *new, "--quiet"]) == 0, capsys.readouterr().err


def test_a_database_that_has_changed_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "shop.sql").write_text(ROWS + "CREATE TABLE more (n INTEGER);\n")
    run = ["run", "sql", "--data", "sql.json", "--databases", "shop.sql", "--quiet"]
    agent = ["--agent", "agent.py:make", "--max-turns", "3"]
    assert main([*run, *agent, "--out", "sql"]) == 2
    assert "database 'shop' (env.images.shop) has changed since" in capsys.readouterr().err
    assert main([*run, "--locked", "sql", "--trust", "--out", "of-the-new-database"]) == 2
    refusal = capsys.readouterr().err
    assert (
        "take the database's file as it was" in refusal and "image" not in refusal.split("fix")[1]
    )


@pytest.mark.parametrize("broken", ["CREATE TABLE t (n INTEGER);\nINSERT INTO t VALUES (1), (2;\n"])
def test_a_database_that_cannot_be_read_is_refused_before_any_work(
    here: Path, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    (here / "shop.sql").write_text(broken)
    run = ["run", "sql", "--data", "sql.json", "--databases", "shop.sql", "--quiet"]
    assert main([*run, "--out", "broken"]) == 2
    assert "database 'shop': near" in capsys.readouterr().err
    assert not (here / "broken").exists()


@pytest.mark.parametrize(
    ("run", "option", "name", "words"),
    [
        ("bash", "data", "tasks.json", ["rescore", "{}", "--trust"]),
        ("sql", "databases", "shop.sql", ["rescore", "{}", "--trust"]),
        ("bash", "data", "tasks.json", ["resume", "{}", "--trust"]),
        ("bash", "data", "tasks.json", ["run", "--locked", "{}", "--out", "again", "--trust"]),
    ],
)
def test_a_file_that_is_gone_is_named_with_what_gives_another(
    here: Path, made: Path, capsys: Any, run: str, option: str, name: str, words: list[str]
) -> None:
    record = here / run / "run.json"
    record.write_text(record.read_text().replace(str(made), str(here)))
    (here / "moved").mkdir()
    (here / name).rename(here / "moved" / name)
    words = [word.format(run) for word in words]
    assert main([*words, "--quiet"]) == 2
    told = capsys.readouterr().err
    assert f"{run}/run.json names {here}/{name}, which no longer exists. Give its new path" in told
    assert f"--{option} PATH" in told
    if words[0] == "rescore":
        moved = [f"--{option}", f"moved/{name}", "--out", "scores", "--quiet"]
        assert main([*words, *moved]) in (0, 1)  # an action of one cannot be repeated
        assert (here / "scores" / "episodes.jsonl").is_file()
    # Nothing is looked up for a record that is not trusted.
    assert main([word for word in words if word != "--trust"]) == 2
    assert "no longer exists. Give its new path" not in capsys.readouterr().err
