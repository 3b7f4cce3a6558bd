"""`intercode resume`: what has no result is run, on the same as before, or nothing is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluate.fakes import Factory, dataset
from intercode.cli.main import main
from intercode.evaluate import evaluate
from intercode.records import EPISODES, MANIFEST, RunRecordWriter, read_episodes, read_manifest
from intercode_sandbox.host_files import remove_tree
from intercode_sandbox.images.cache import ImageCache

TASKS = [{"task_id": f"t{n}", "query": f"say {n}", "gold": f"echo {n}"} for n in range(3)]
AGENT = """
from pathlib import Path

UP = Path(__file__).parent / "up"

class Agent:
    needs_gold = True

    def __init__(self, task):
        self.task = task

    def act(self, observation, history):
        if self.task.task_id == "t1" and not UP.exists():
            raise ConnectionError("the service is down")
        return "submit" if history else self.task.gold[0]

make = Agent
"""
RUN = ["run", "bash", "--data", "tasks.json", "--agent", "agent.py:make", "--out", "run", "--quiet"]
Tell = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with tasks and an agent in it."""
    (tmp_path / "tasks.json").write_text(json.dumps(TASKS))
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def begun(folder: Path) -> Path:
    """A run of which one episode ended in an error; what was in its way is gone."""
    assert main([*RUN, "--workers", "2", "--retries", "1", "--timeout", "7"]) == 1
    (folder / "up").touch()
    return folder / "run"


def test_a_run_of_an_mcp_client_names_the_command_that_continues_it(
    begun: Path, capsys: Tell
) -> None:
    file = begun / MANIFEST
    manifest = json.loads(file.read_text())
    manifest["sessions"][-1]["options"]["agent"] = "mcp"
    file.write_text(json.dumps(manifest))
    for more in ((), ("--agent", "mcp"), ("--trust",)):
        assert main(["resume", "run", *more]) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "repeat the original 'intercode mcp' command with --out run" in told


def resume(*arguments: object) -> int:
    return main(["resume", "run", "--trust", "--quiet", *map(str, arguments)])


def ran(run: Path) -> list[tuple[int, str]]:
    return [(e.epoch, e.task_id) for e in read_episodes(run / EPISODES)]


def change(run: Path, how: Callable[[dict[str, Any]], None]) -> None:
    """Alter the record."""
    manifest = read_manifest(run)
    how(manifest)
    (run / MANIFEST).write_text(json.dumps(manifest))


def test_errors_are_tried_again_from_anywhere_and_epochs_added(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Tell
) -> None:
    capsys.readouterr()
    monkeypatch.chdir("/")
    assert main(["resume", str(begun / MANIFEST), "--json", "--trust"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["ran"] == 1 and "2 of 3 episodes are done" in told.err
    assert ran(begun).count((0, "t1")) == 2
    monkeypatch.chdir(tmp_path)
    assert resume("--epochs", 2) == 0
    assert sorted(ran(begun)[4:]) == [(1, "t0"), (1, "t1"), (1, "t2")]
    first, second, third = read_manifest(begun)["sessions"]
    for session in (second, third):
        assert session["settings"]["workers"] == 2 and session["settings"]["max_retries"] == 1
        assert session["options"] == {**first["options"], "epochs": session["settings"]["epochs"]}
        assert session["locked"] == {"run": str(begun), "accepted": []}
    assert resume("--epochs", 1) == 2
    assert "has 2 epochs: --epochs 1 is fewer" in capsys.readouterr().err


def test_errors_that_remain(begun: Path, folder: Path, capsys: Tell) -> None:
    (folder / "up").unlink()
    assert resume() == 1
    told = capsys.readouterr().out
    again = f"--agent {folder}/agent.py:make --data {folder}/tasks.json"
    assert told.endswith(f"1 ended in an error\nresume with: intercode resume run {again}\n")
    assert resume("--json") == 1
    assert capsys.readouterr().err.endswith(f"resume with: intercode resume run {again}\n")


def test_nothing_to_do(begun: Path, capsys: Tell) -> None:
    assert resume() == 0
    # Whoever has nothing to run need not have what it was run on, and may not write there.
    change(begun, lambda manifest: manifest["sessions"][1]["host"].update(release="0.1"))
    before = {path.name: path.read_bytes() for path in begun.iterdir()}
    capsys.readouterr()
    with RunRecordWriter(begun):
        assert resume() == 0
        assert capsys.readouterr().out.endswith("nothing to do: every episode has a result\n")
        assert resume("--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ran"], told["finished"], told["planned"], told["stopped"]) == (0, 3, 3, None)
    assert {path.name: path.read_bytes() for path in begun.iterdir()} == before


@pytest.mark.parametrize("tail", [b"", b'{"task_id": "t0", "que'])
def test_killed_before_its_first_episode_had_ended(begun: Path, tail: bytes) -> None:
    (begun / EPISODES).write_bytes(tail)
    change(begun, lambda manifest: manifest["sessions"][0].update(finished=None))
    assert resume() == 0
    assert sorted(ran(begun)) == [(0, "t0"), (0, "t1"), (0, "t2")]


def test_killed_amid_a_line(begun: Path) -> None:
    lines = (begun / EPISODES).read_bytes()
    (begun / EPISODES).write_bytes(lines[:-5])
    assert resume() == 0
    assert {(0, "t0"), (0, "t1"), (0, "t2")} == {*ran(begun)}


def test_another_writer_is_at_work(begun: Path, capsys: Tell) -> None:
    before = (begun / MANIFEST).read_bytes()
    with RunRecordWriter(begun):
        assert resume() == 1
    assert "another process is writing" in capsys.readouterr().err
    assert (begun / MANIFEST).read_bytes() == before


def without_options(manifest: dict[str, Any]) -> None:
    del manifest["sessions"][0]["options"]


def with_a_password(manifest: dict[str, Any]) -> None:
    manifest["sessions"][0]["options"]["engine"] = "mysql://me:***@db/x"


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        (without_options, 2, "was written by a Python program"),
        (lambda manifest: manifest.update(sessions=[]), 2, "was written by a Python program"),
        (lambda manifest: manifest.update(format=0), 2, "another version of intercode"),
        (with_a_password, 2, "give --engine again"),
    ],
)
def test_records_that_do_not_do(
    begun: Path, capsys: Tell, how: Callable[[dict[str, Any]], None], code: int, told: str
) -> None:
    change(begun, how)
    assert resume() == code
    assert told in capsys.readouterr().err


def test_what_is_no_run(folder: Path, capsys: Tell) -> None:
    assert main(["resume", "nothing"]) == 2
    assert "nothing is not the folder of a run" in capsys.readouterr().err
    tasks = dataset(2)
    evaluate(tasks, "noop", Factory(tasks), out="run", limit=1)
    assert resume() == 2
    assert "call evaluate() again" in capsys.readouterr().err
    assert evaluate(tasks, "noop", Factory(tasks), out="run").complete


def test_what_has_changed_is_refused_unless_accepted(
    begun: Path, folder: Path, capsys: Tell
) -> None:
    tasks = folder / "tasks.json"
    tasks.write_text(tasks.read_text().replace("say 1", "do say 1"))
    assert resume("--json") == 2
    told = capsys.readouterr()
    assert "1 thing would not be as in the recorded run:\n  dataset.digest: " in told.err
    assert [found["what"] for found in json.loads(told.out)["differences"]] == ["dataset.digest"]
    assert len(ran(begun)) == 3
    assert resume("--accept", "dataset") == 0
    manifest = read_manifest(begun)
    now = manifest["sessions"][1]
    assert now["locked"]["accepted"] == ["dataset"]
    assert list(now["differs"]) == ["dataset.digest"]
    assert now["differs"]["dataset.digest"] != manifest["dataset"]["digest"]
    assert [e.query for e in read_episodes(begun / EPISODES)][-1] == "do say 1"


@pytest.fixture
def grown(machine: Path, begun: Path) -> Path:
    """The same, after a program was installed on this machine."""
    (machine / "bin/jq").touch()
    ImageCache.default()._memory.clear()
    return begun


def test_a_machine_that_has_changed_is_said_and_recorded(grown: Path, capsys: Tell) -> None:
    capsys.readouterr()
    assert resume() == 0
    told = capsys.readouterr().err
    assert told.count("intercode: warning: this machine has changed since the run began") == 1
    assert "/bin/jq installed. " in told and "--strict" in told
    manifest = read_manifest(grown)
    now = manifest["sessions"][1]
    assert now["differs"]["env.images.host"] != manifest["env"]["images"]["host"]
    [changed] = now["differs"]["machine"]
    assert changed.endswith("/bin/jq installed") and now["locked"]["accepted"] == []


def test_without_the_former_image_its_digest_is_named(grown: Path, capsys: Tell) -> None:
    former = read_manifest(grown)["env"]["images"]["host"]
    remove_tree(ImageCache.default().images / former)
    assert resume() == 0
    assert f"env.images.host: recorded {former}, now " in capsys.readouterr().err


def test_strictly_the_machine_must_be_the_same(grown: Path, machine: Path, capsys: Tell) -> None:
    assert resume("--strict") == 2
    told = capsys.readouterr().err
    assert "1 thing would not be as in the recorded run:\n  env.images.host: " in told
    assert "the images 'base' and 'debian:…' do not follow the machine" in told
    assert len(ran(grown)) == 3
    (machine / "bin/jq").unlink()
    ImageCache.default()._memory.clear()
    assert resume("--strict") == 0


def test_a_run_made_with_locked_stays_strict(grown: Path, capsys: Tell) -> None:
    change(grown, lambda run: run["sessions"][0].update(locked={"run": "/x", "accepted": []}))
    assert resume() == 2
    assert "env.images.host: " in capsys.readouterr().err


def test_only_the_machine_is_followed(grown: Path, folder: Path, capsys: Tell) -> None:
    tasks = folder / "tasks.json"
    tasks.write_text(tasks.read_text().replace("say 1", "do say 1"))
    assert resume() == 2
    assert "1 thing would not be as in the recorded run:\n  dataset" in capsys.readouterr().err
