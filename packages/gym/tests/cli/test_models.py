"""Models of this machine on the command line: listed, fetched, run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from intercode.cli.main import main
from intercode.models.local import server
from intercode.models.local.catalog import entries
from models import local_server

Tell = pytest.CaptureFixture[str]
TASKS = [{"task_id": f"t{n}", "query": f"say {n}", "gold": f"echo {n}"} for n in range(4)]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that says 2 and submits; tasks are in the working directory."""
    monkeypatch.chdir(tmp_path)
    local_server.prepare(tmp_path, monkeypatch)
    (tmp_path / "tasks.json").write_text(json.dumps(TASKS))
    return local_server.write_model(tmp_path / "weights", "`echo 2`", "`submit`")


def test_a_run_has_its_model_s_weights_in_the_record(path: Path, capsys: Tell) -> None:
    run = ("run", "bash", "--data", "tasks.json", "--agent", "try-again", "--out", "run")
    run += ("--no-examples",)  # the stand-in counts replies
    model = ("--model", "local/weights/small.gguf", "--workers", "2", "--max-cost", "0.01")
    assert main([*run, *model]) == 0
    assert "25.0 %" in capsys.readouterr().out
    assert not server._shared_servers
    told = json.loads(Path("run/run.json").read_text())["agent"]["language_model"]
    assert told["model"] == "local/weights/small.gguf"
    assert len(told["weights"]) == 64
    assert json.loads(path.with_name("params.json").read_text())["n_parallel"] == 2
    # Other weights are another run.
    path.write_bytes(local_server.header(layers=3))
    assert main([*run, *model]) == 2
    assert "weights" in capsys.readouterr().err


def test_nothing_is_started_where_nothing_is_left_to_do(path: Path) -> None:
    run = ["run", "bash", "--data", "tasks.json", "--agent", "try-again", "--out", "run", "--quiet"]
    model = ["--model", "local/weights/small.gguf"]
    assert main([*run, *model]) == 0
    path.with_name("broken").touch()
    assert main([*run, *model]) == 0


def test_models_are_listed_fetched_and_removed(path: Path, capsys: Tell) -> None:
    assert main(["models", "list"]) == 0
    told = capsys.readouterr().out
    assert all(entry.name in told for entry in entries()) and " here " not in told
    assert main(["models", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["path"] is None
    assert main(["models", "fetch", "smollm2-135m", "--from", str(path)]) == 1
    assert "SHA-256 is" in capsys.readouterr().err
    assert main(["models", "fetch", "smollm2-135M", "--from", str(path)]) == 2
    assert "did you mean 'smollm2-135m'" in capsys.readouterr().err
    assert main(["models", "fetch", "smollm2-135m", "qwen3-4b", "--from", str(path)]) == 2
    assert main(["models", "remove", "local/smollm2-135m"]) == 0
    assert "no such model" in capsys.readouterr().out
