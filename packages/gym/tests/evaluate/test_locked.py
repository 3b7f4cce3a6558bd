"""Runs that are held to what an earlier one was made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.main import main
from intercode.errors import UsageError
from intercode.evaluate import evaluate
from intercode.evaluate.manifest import package_versions
from intercode.evaluate.manifest_diff import DriftError, differences
from intercode.evaluate.tool_versions import tool_versions
from intercode.records import read_manifest
from intercode_sandbox import get_provider

from .fakes import Factory, dataset

TASKS = [
    {"task_id": "hello", "query": "say hello", "gold": "echo hello"},
    {"task_id": "touch", "query": "make a file", "gold": "touch made"},
    {"task_id": "skip", "query": "make another", "gold": "touch other"},
]
AGENT = """
def make(task):
    return Agent()

class Agent:
    def act(self, observation, history):
        return "submit"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in it, made with relative paths, and what it was made from."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "tasks.json").write_text(json.dumps(TASKS))
    (folder / "agent.py").write_text(AGENT)
    (folder / "leave").write_text("skip  not today\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = [
            "--agent",
            "agent.py:make",
            "--seed",
            "3",
            "--timeout",
            "7",
            "--exclude",
            "leave",
        ]
        assert (
            main(["run", "bash", "--data", "tasks.json", *options, "--quiet", "--out", "run"]) == 0
        )
    return folder


def run(*arguments: object) -> int:
    return main(["run", "--quiet", *map(str, arguments)])


def test_what_a_run_was_made_of_is_recorded(made: Path) -> None:
    [session] = read_manifest(made / "run")["sessions"]
    assert session["options"] == {
        "agent": f"{made}/agent.py:make",
        "data": f"{made}/tasks.json",
        "env": "bash",
        "epochs": 1,
        "protocol": "default",
        "seed": 3,
        "timeout": 7.0,
    }
    assert session["sandbox"] == get_provider().facts()  # type: ignore[attr-defined]
    assert session["tools"] == tool_versions(get_provider(), ["host"])
    assert session["versions"].items() >= package_versions().items()


def test_the_same_again(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--trust", "--locked", made / "run" / "run.json", "--out", "again") == 0
    before, now = read_manifest(made / "run"), read_manifest(Path("again"))
    assert differences(before, now) == []
    for field in ("env", "seed", "excluded"):
        assert now[field] == before[field]
    assert now["sessions"][0]["options"] == before["sessions"][0]["options"]
    assert now["sessions"][0]["locked"] == {"run": f"{made}/run/run.json", "accepted": []}
    assert now["agent"]["digest"] == before["agent"]["digest"] != ""


def test_an_image_of_a_file(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Dockerfile").write_text("FROM host\nCOPY Dockerfile /srv/\n")
    options = ["--data", made / "tasks.json", "--agent", "noop", "--image", "./Dockerfile"]
    assert run("bash", *options, "--out", "run") == 0
    monkeypatch.chdir(made)
    assert run("--trust", "--locked", tmp_path / "run", "--out", tmp_path / "again") == 0
    with (tmp_path / "Dockerfile").open("a") as file:
        file.write("COPY Dockerfile /opt/\n")
    assert run("--trust", "--locked", tmp_path / "run", "--out", tmp_path / "other") == 2


def test_another_agent_on_the_same(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--agent", "oracle", "--task", "touch", "--out", out]
    assert run("--trust", "--locked", made / "run", *options) == 0
    now = read_manifest(out)
    assert now["agent"]["name"] == "oracle" and now["seed"] == 3
    assert now["sessions"][0]["settings"]["tasks"] == ["touch"]
    assert now["sessions"][0]["locked"]["accepted"] == ["agent"]


def test_what_was_said_to_a_model_is_for_models_only(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rules.jsonl").write_text('{"say": "submit"}\n')
    who = ["--agent", "try-again", "--model", "scripted/rules.jsonl", "--max-tokens", "99999"]
    assert run("--trust", "--locked", made / "run", *who, "--out", "talked") == 0
    assert run("--trust", "--locked", "talked", "--out", "again") == 0
    before, now = read_manifest(Path("talked")), read_manifest(Path("again"))
    assert now["agent"] == before["agent"] and differences(before, now) == []
    assert run("--trust", "--locked", "talked", "--agent", "noop", "--out", "other") == 0
    assert "model" not in read_manifest(Path("other"))["sessions"][0]["options"]


@pytest.mark.parametrize(
    ("options", "what", "recorded", "now"),
    [
        (["--timeout", "8"], "env.limits.timeout", 7.0, 8.0),
        (["--image", "host+./more.sh"], "env.images.host", None, None),
    ],
)
def test_other_options_are_refused(
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    what: str,
    recorded: Any,
    now: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("more.sh").write_text("touch /more")
    assert run("--trust", "--locked", made / "run", *options, "--out", "x", "--json") == 2
    told = capsys.readouterr()
    found = {one["what"]: one for one in json.loads(told.out)["differences"]}
    assert what in found and what in told.err and "to fix it: " in told.err
    if recorded is not None:
        assert (found[what]["recorded"], found[what]["now"]) == (recorded, now)
    assert not Path("x").exists(), "nothing was begun"


def test_other_tasks_and_another_agents_file_are_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {name: (made / name).read_text() for name in ("tasks.json", "agent.py")}
    try:
        (made / "tasks.json").write_text(texts["tasks.json"].replace("say", "Say"))
        (made / "agent.py").write_text(texts["agent.py"] + "# another\n")
        assert run("--trust", "--locked", made / "run", "--out", tmp_path / "x") == 2
        told = capsys.readouterr().err
        assert "intercode: error: 2 things would not be as in the recorded run" in told
        assert "agent.digest: " in told and "dataset.digest: " in told
        assert f"take the tasks as they were, from {made}/tasks.json" in told
        accept = ["--accept", "agent.digest", "--accept", "dataset"]
        assert run("--trust", "--locked", made / "run", *accept, "--out", tmp_path / "y") == 0
    finally:
        for name, text in texts.items():
            (made / name).write_text(text)
    locked = read_manifest(tmp_path / "y")["sessions"][0]["locked"]
    assert locked["accepted"] == ["agent.digest", "dataset"]


def test_a_lock_is_one_of_a_run(made: Path, tmp_path: Path) -> None:
    assert run("bash", "--accept", "host") == 2
    assert run("--trust", "--locked", tmp_path) == 2


def test_a_password_is_not_recorded(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from intercode.spec import portable

    assert portable("mysql://me:se:cr@et@db/x") == "mysql://me:***@db/x"
    manifest = read_manifest(made / "run")
    manifest["sessions"][0]["options"]["engine"] = portable("mysql://me:secret@db")
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    assert run("--trust", "--locked", tmp_path) == 2
    assert "give --engine again" in capsys.readouterr().err


def test_from_python(tmp_path: Path) -> None:
    tasks, other = dataset(2), dataset(3)
    evaluate(tasks, "noop", Factory(tasks), out=tmp_path)
    locked = read_manifest(tmp_path)
    assert evaluate(tasks, "noop", Factory(tasks), locked=locked).complete
    with pytest.raises(DriftError) as caught:
        evaluate(other, "noop", Factory(other), locked=locked)
    assert [found.what for found in caught.value.differences] == ["dataset.digest"]
    assert isinstance(caught.value, UsageError)


def test_report_warns_of_runs_that_differ(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = read_manifest(made / "run")
    other["sessions"][0]["tools"]["host"]["git"] = "1.0"
    other["agent"]["name"] = "else"
    (tmp_path / "run.json").write_text(json.dumps(other))
    (tmp_path / "episodes.jsonl").write_bytes((made / "run" / "episodes.jsonl").read_bytes())
    assert main(["report", str(made / "run"), str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "Success by agent and environment" in told.out
    assert "differ in their conditions:\n  tools.host.git: " in told.err and "agent" not in told.err
    assert main(["report", str(made / "run"), str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["runs"]) == 2
    [[difference]] = report["differences"].values()
    assert difference["what"] == "tools.host.git" and difference["now"] == "1.0"
    assert main(["report", str(made / "run"), str(made / "run")]) == 0
    assert "warning" not in capsys.readouterr().err
