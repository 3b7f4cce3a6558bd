"""The option `network`, from Python, a benchmark's folder and the command line."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode.cli.main import main
from intercode.errors import UsageError

TASK = {"query": "x", "gold": "true", "image": "host"}


def tasks(folder: Path, **fields: Any) -> Path:
    path = folder / "tasks.json"
    path.write_text(json.dumps([{**TASK, **fields}]))
    return path


def test_a_verification_reaches_what_the_agent_does(tmp_path: Path, port: int) -> None:
    """Also one that runs in a copy, as the agent has changed a tool's settings."""
    fetch = f"curl -sSfo /dev/null http://127.0.0.1:{port}/"
    data = tasks(tmp_path, verification=fetch)
    with closing(intercode.make("bash", data=data, network=f"127.0.0.1:{port}")) as env:
        env.reset()
        assert env.step(f"{fetch} && echo silent >> ~/.curlrc && echo there")[0] == "there\n"
        assert env.step("submit")[1] == 1.0
        env.reset()
        assert "network_refused" not in env.unwrapped.episode.metadata


@pytest.mark.parametrize("language", ["bash", "python"])
def test_what_was_refused_is_recorded(tmp_path: Path, language: str) -> None:
    actions = {
        "bash": "curl -s http://evil.example/",
        "python": "import urllib.request as u\ntry: u.urlopen('http://evil.example/')\n"
        "except Exception as e: print(e.read().decode())",
    }
    more = {} if language == "bash" else {"gold": "x = 1", "tests": ["assert True"]}
    data = tasks(tmp_path, **more)
    with closing(intercode.make(language, data=data, network=["pypi.org", "*.example.org"])) as env:
        env.reset()
        said = env.step(actions[language])[0]
        assert "evil.example:80 cannot be reached from here" in said and "pypi.org" in said
        env.step("submit")
        refused = {"evil.example:80: not listed": 1}
        assert env.unwrapped.episode.metadata["network_refused"] == refused


def test_a_folder_says_it(tmp_path: Path) -> None:
    tasks(tmp_path)
    (tmp_path / "intercode.toml").write_text(
        'env = "bash"\ntasks = "tasks.json"\nnetwork = ["pypi.org"]\n'
    )
    with closing(intercode.make(str(tmp_path))) as env:
        env.reset()
        assert env.step("echo $https_proxy")[0] == "http://127.0.0.1:3128\n"


@pytest.mark.parametrize("wrong", ["intranet", ["10.0.0.1"], 5, [5]])
def test_what_makes_no_sense_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(UsageError, match="network"):
        intercode.make("bash", network=wrong)


def test_the_command_line(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tasks(tmp_path, gold=f"curl -sSf http://127.0.0.1:{port}/tasks.json")
    run = ["run", "bash", "--data", str(data), "--json", "--out"]
    assert main([*run, "one", "--network", f"127.0.0.1:{port}"]) == 0
    recorded = json.loads((tmp_path / "one" / "run.json").read_text())
    assert recorded["sessions"][-1]["options"]["network"] == f"127.0.0.1:{port}"
    # It was without a value once: an environment that comes after it is none.
    assert main(["run", "--network", "bash", "--data", str(data), "--json", "--out", "two"]) == 0
    assert json.loads((tmp_path / "two" / "run.json").read_text())["sessions"][-1]["options"][
        "network"
    ]
    capsys.readouterr()
    assert main([*run, "three", "--network", "intranet"]) == 2
    assert "'intranet' is not a host: give HOST:PORT" in capsys.readouterr().err
    assert not (tmp_path / "three").exists()
