"""Runs that 0.1.0 has written, in `runs-0.1.0`: every later version reads and resumes them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.commands.export import forms
from intercode.cli.main import main
from intercode.records import EPISODES, MANIFEST, read_episodes, read_manifest

HISTORY = Path(__file__).with_name("runs-0.1.0")
RUNS = sorted(path.parent.name for path in HISTORY.glob(f"*/{MANIFEST}"))
MACHINE = (
    *("versions", "host", "tools", "sandbox", "env.images", "env.engine"),
    "env.rules",  # 0.1.0 recorded no versions of rules
    "agent.language_model.prompt",  # templates take their words from the environment since
)
"""What is otherwise in a later version, or on another machine."""
COMPILED = "dataset.digest"
"""A difference between compilers: one puzzle is a program in C."""
CHANGED = ("dataset.digest", "dataset.version")
"""A difference between datasets: a verification of Bash and tests of SWE were changed since."""
Ask = Callable[..., Any]


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of such a run, in the working directory, with the script of its model."""
    shutil.copy(HISTORY / "rules.jsonl", tmp_path)
    shutil.copytree(HISTORY / request.param, tmp_path / request.param)
    monkeypatch.chdir(tmp_path)
    return Path(request.param)


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs a command that ends as it should; gives what it prints, read if that is JSON."""

    def asked(*arguments: object, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == code
        printed = capsys.readouterr().out
        return json.loads(printed) if "--json" in arguments else printed

    return asked


def machine_names(run: Path) -> tuple[str, ...]:
    """The names of what may differ from the run."""
    if run.name.startswith(("bash", "swe")):
        return (*MACHINE, *CHANGED)
    return (*MACHINE, COMPILED) if run.name.startswith("ctf") else MACHINE


def acceptance(run: Path) -> list[str]:
    """The options that accept these differences."""
    return [argument for name in machine_names(run) for argument in ("--accept", name)]


def recorded(run: Path) -> list[dict[str, Any]]:
    """The lines of the run as 0.1.0 has written it."""
    return [json.loads(line) for line in (HISTORY / run / EPISODES).read_bytes().splitlines()]


def keys(run: Path) -> list[tuple[int, str]]:
    return [(episode["epoch"], episode["task_id"]) for episode in recorded(run)]


def holds(now: Any, before: Any) -> bool:
    """Whether all that was there before is there now, whatever there is besides."""
    if isinstance(before, dict):
        return isinstance(now, dict) and all(
            key in now and holds(now[key], value) for key, value in before.items()
        )
    if isinstance(before, list):
        return len(now) == len(before) and all(map(holds, now, before))
    return bool(now == before)


def test_there_is_a_run_of_each_environment() -> None:
    kinds = {read_manifest(HISTORY / run)["env"]["env"] for run in RUNS}
    assert kinds == {"bash", "sql", "python", "ctf", "swe"}


def test_read(run: Path) -> None:
    assert read_manifest(run)["sessions"][0]["versions"]["intercode"] == "0.1.0"
    episodes = list(read_episodes(run / EPISODES))
    assert all(holds(e.to_dict(), line) for e, line in zip(episodes, recorded(run), strict=True))
    expected = 1.0 if run.name.endswith("oracle") else 0.0
    assert [episode.reward for episode in episodes] == [expected] * len(episodes)


def test_resume(run: Path, ask: Ask) -> None:
    """After a crash in the last episode's line, by another version than wrote the rest."""
    manifest = read_manifest(run)
    manifest["sessions"][0]["versions"]["code"] = "of another version"
    (run / MANIFEST).write_text(json.dumps(manifest))
    (run / EPISODES).write_bytes((run / EPISODES).read_bytes()[:-10])

    refused = ask("resume", run, "--trust", "--quiet", "--json", code=2)["differences"]
    assert "versions.code" in {difference["what"] for difference in refused}
    assert [d for d in refused if not d["what"].startswith(machine_names(run))] == []
    assert read_manifest(run) == manifest, "nothing was begun"

    done = ask("resume", run, "--trust", "--quiet", "--json", *acceptance(run))
    assert (done["ran"], done["finished"], done["planned"]) == (1, len(keys(run)), len(keys(run)))
    assert read_manifest(run)["sessions"][-1]["locked"]["accepted"] == list(machine_names(run))
    for now, before in zip(read_episodes(run / EPISODES), recorded(run), strict=True):
        assert (now.task_id, now.epoch, now.seed) == (
            *(before["task_id"], before["epoch"], before["seed"]),
        )
        assert [turn.action for turn in now.turns] == [turn["action"] for turn in before["turns"]]
        assert (now.status, now.reward) == (before["status"], before["score"]["value"])


def test_rescore(run: Path, ask: Ask) -> None:
    done = ask("rescore", run, "--trust", "--out", "again", "--quiet", "--json", *acceptance(run))
    way = "record" if run.name.startswith("ctf") else "again"
    assert (done["ways"], done["changes"]) == ({way: len(keys(run))}, [])
    assert done["statistics"]["successes"] == done["before"]["successes"]


def test_report(run: Path, ask: Ask) -> None:
    manifest = read_manifest(run)
    told = ask("report", run, "--json")
    assert holds(told["manifest"], manifest)
    assert told["statistics"]["episodes"] == len(keys(run))
    solved = [line for line in recorded(run) if line["score"]["value"] == 1.0]
    assert told["statistics"]["successes"] == len(solved)
    agent = manifest["agent"]["name"]
    assert f"agent {agent}" in ask("report", run, "--html", "page.html")
    assert agent in Path("page.html").read_text(encoding="utf-8")


def test_show(run: Path, ask: Ask) -> None:
    assert [(e["epoch"], e["task_id"]) for e in ask("show", run, "--json")] == keys(run)
    shown = ask("show", run, "--full")
    assert all(task in shown for _, task in keys(run))


@pytest.mark.parametrize("form", forms())
def test_export(run: Path, form: str, ask: Ask) -> None:
    whole = form == "inspect"  # which takes no --epoch
    which = [] if whole else ["--epoch", 0]
    done = ask("export", run, "--to", form, *which, "--out", "exported.json", "--json")
    assert done["episodes"] == sum(whole or epoch == 0 for epoch, _ in keys(run))
    assert done["errors"] == 0
    assert Path("exported.json").stat().st_size
