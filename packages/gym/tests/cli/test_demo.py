"""`intercode demo` from end to end: all environments, the page, what is said last, Ctrl-C."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from intercode.cli import demo as demo_module
from intercode.cli.commands import demo, run
from intercode.cli.demo import suggest_model_command
from intercode.cli.main import main
from ordinary import ordinary_user
from waiting import eventually

from .conftest import Run, command, keys, parsed
from .test_terminal import ESCAPES, on_terminal

VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY")
NONE_SET = dict.fromkeys(VARIABLES, "")
ENVS = ("bash", "sql", "python", "ctf", "swe")
RUNS = sorted(f"{env}-{agent}" for env in ENVS for agent in ("oracle", "scripted", "random"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def shown(folder: Path) -> str:
    """What a demo of two tasks each prints; its runs are in ``demo``."""
    done = subprocess.run(
        command("demo", "--limit", 2, "--out", "demo", "--workers", 2),
        cwd=folder,
        env={**os.environ, **NONE_SET},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split()[0] for line in done.stderr.splitlines()]
    assert rows == list(ENVS), done.stderr
    return done.stdout


def test_an_episode_a_table_and_a_plot(shown: str) -> None:
    head, _, rest = shown.partition("Three agents, all scripted, on the first 2 bundled tasks:")
    assert "── archive-01 ── solved\n" in head
    assert head.count("\n  $ ") >= 2, "it is wrong at first"
    lines = rest.splitlines()
    table = {line[:20].strip(): line[20:].split() for line in lines[:14]}
    assert table["tasks"] == ["2", "2", "2", "2", "2", "10"]
    assert table["oracle"] == ["100.0", "%"] * 6
    assert table["random"] == ["0.0", "%"] * 6
    assert "try-again (scripted)" in table
    assert rest.count("\n  errors                     0         0") == 3
    assert "100 % ┤●──" in rest and "  0 % ┤■──" in rest and "● oracle" in rest
    assert "'scripted' is not a language model" in rest
    assert max(map(len, lines[:-6])) <= 80


def test_what_is_kept(shown: str, folder: Path) -> None:
    assert sorted(path.name for path in (folder / "demo").iterdir()) == sorted(
        [*RUNS, "report.html"]
    )
    page = (folder / "demo" / "report.html").read_text()
    assert "Side by side" in page and "try-again (scripted)" in page and "curves" in page
    address = f"every episode, in a browser: {(folder / 'demo' / 'report.html').resolve().as_uri()}"
    assert shown.rstrip().splitlines()[-1] == address
    told = re.search(r"an episode in the terminal: (.+)", shown)
    assert told is not None
    done = subprocess.run(shlex.split(told[1]), cwd=folder, capture_output=True, text=True)
    assert "── archive-01 ── solved" in done.stdout, done.stderr


def test_a_plot_for_each_environment(shown: str, folder: Path, cli: Run) -> None:
    runs = [folder / "demo" / name for name in RUNS]
    told = cli("report", *runs, "--plot", env={"COLUMNS": "60"}).stdout
    titles = re.findall(r"^(\w+): success within a number of turns$", told, re.MULTILINE)
    assert titles == sorted(ENVS)
    assert told.count("100 % ┤●") == len(ENVS) and max(map(len, told.splitlines())) < 60
    plain = cli("report", runs[0], "--plot", env={"PYTHONIOENCODING": "ascii"}).stdout
    assert plain.isascii() and "100 % |*" in plain
    cli("report", "--paper", ".", "--plot", code=2)


def test_the_last_lines_without_a_key(shown: str) -> None:
    why, command_line, address = shown.splitlines()[-3:]
    assert "on this machine" in why
    assert " demo --model local/" in command_line
    assert address.startswith("every episode, in a browser: file://")


def test_going_on_as_json(shown: str, folder: Path) -> None:
    """Nothing is left to do, so this is quick."""
    done = subprocess.run(
        command("demo", "--limit", 2, "--out", "demo", "--json", "--quiet"),
        cwd=folder,
        env={**os.environ, **NONE_SET, "OPENAI_API_KEY": "sk-secret"},
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    assert done.stderr == ""
    told = parsed(done)
    keys(told, "out page seconds runs turns left_out next")
    assert sorted(Path(one["run"]).name for one in told["runs"]) == RUNS
    for one in told["runs"]:
        keys(one, "run env agent statistics tags failure_modes errors")
        assert one["statistics"]["episodes"] == 2 and one["errors"] == []
    assert list(told["turns"]) == ["oracle", "try-again (scripted)", "random"]
    assert told["turns"]["oracle"][-1]["value"] == 1.0 and told["left_out"] == {}
    assert "--model openai/" in told["next"] and "secret" not in done.stdout


def test_on_a_terminal(shown: str, folder: Path) -> None:
    told = on_terminal(folder, b"", "demo", "--limit", 2, "--out", "demo")
    for env in ENVS:
        assert f"{env}  preparing" in told
        assert re.search(rf"{env} +2 of \d+ tasks  oracle 100.0 %  try-again", told)
    assert "\x1b" not in ESCAPES.sub("", told)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, " demo --model local/"),
        ({"OPENAI_API_KEY": "sk-secret"}, "--model openai/gpt-5-mini --max-cost 1"),
        ({"ANTHROPIC_API_KEY": "secret"}, "--model anthropic/claude-"),
        (
            {"OPENAI_BASE_URL": "http://host:8000/v1"},
            "--model openai-compatible/NAME --base-url http://host:8000/v1 ",
        ),
        (
            {"OPENAI_BASE_URL": "http://host/v1", "OPENAI_API_KEY": "sk-secret"},
            "--model openai/NAME --max-tokens ",
        ),
    ],
)
def test_the_command_for_a_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.setenv(name, variables.get(name, ""))
    why, proposed = suggest_model_command()
    assert expected in proposed and "secret" not in proposed + why
    assert all(name in why for name in list(variables)[:1])
    words = shlex.split(proposed)
    parser = argparse.ArgumentParser()
    name = "run" if variables else "demo"
    (run if variables else demo).configure(parser)
    taken = parser.parse_args(words[words.index(name) + 1 :])
    assert taken.model
    if variables:
        assert (taken.env, taken.agent, taken.limit) == ("bash", "try-again", 20)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "intercode")])
    assert suggest_model_command()[1].rpartition("&& ")[2].startswith(f"bin/intercode {name} ")


def test_a_key_that_can_be_none_is_refused_first(cli: Run, tmp_path: Path) -> None:
    done = cli("demo", code=2, env={**NONE_SET, "OPENAI_BASE_URL": "localhost:8000"})
    assert "http://" in done.stderr and not (tmp_path / "runs").exists()


def test_no_sandboxes_at_all() -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; cd "$HOME"; exec "$@"'
    with ordinary_user() as user:
        argv = [*user.prefix, "unshare", "-Urm", "sh", "-c", forbid, "sh", *command("demo")]
        done = subprocess.run(argv, env=user.env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "To fix it: `sysctl -w user.max_user_namespaces=" in done.stderr
    assert "`intercode doctor` tells more" in done.stderr and "Traceback" not in done.stderr


def test_ctrl_c_and_the_rest(tmp_path: Path) -> None:
    options = ["--limit", 1, "--out", "demo", "--workers", 2]
    with subprocess.Popen(
        command("demo", *options),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        assert eventually((tmp_path / "demo" / "bash-oracle" / "run.json").exists)
        # As a terminal does it: to the whole foreground process group.
        os.killpg(child.pid, signal.SIGINT)
        _, noise = child.communicate(timeout=60)
    assert child.returncode == 130 and "Traceback" not in noise, noise
    assert "stopped; the finished episodes are in demo. To resume:" in noise
    assert not (tmp_path / "demo" / "report.html").exists()
    last = noise.strip().splitlines()[-1]
    assert last.endswith(" demo --out demo --limit 1")
    done = subprocess.run(shlex.split(last), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "demo" / "report.html").exists(), done.stderr


def test_an_environment_that_is_left_out_is_in_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_module, "ENVS", ("bash", "nope"))
    assert main(["demo", "--limit", "1", "--json", "--quiet", "--out", str(tmp_path / "out")]) == 1
    assert "nope" in json.loads(capsys.readouterr().out)["left_out"]["nope"]
