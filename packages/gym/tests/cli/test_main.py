"""The frame of all commands: help, errors, exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from intercode.cli.main import COMMANDS, main

from .conftest import Run, command


def test_help_names_every_command(cli: Run) -> None:
    told = cli("--help").stdout
    assert all(name in told for name in COMMANDS.names(packages=False))
    assert cli("--version").stdout.startswith("intercode ")


HEAVY = {
    *("gymnasium", "numpy", "multiprocessing", "concurrent", "sqlite3", "docker", "mcp", "ray"),
    *("intercode.evaluate", "intercode.interpreters", "intercode.databases", "intercode.report"),
    *("intercode.envs.base", "intercode.agents.language", "intercode.rewards.gold"),
}
"""Modules that help needs none of: each, with what it imports, takes as long as help may."""
NEEDED = {"images": {"concurrent"}}
"""Command → those that its help does need."""
ASK = """
import contextlib, io, json, sys
import intercode_console
for words in json.loads(sys.argv[1]):
    sys.argv = ["intercode", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        intercode_console.main()
print(*sys.modules)
"""


def imported(*commands: list[str]) -> set[str]:
    """What a process has imported that was asked for help, and no more."""
    run = [sys.executable, "-c", ASK, json.dumps(commands)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    return modules | {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("name", ["", *COMMANDS.names(packages=False)])
def test_help_imports_nothing_heavy(name: str) -> None:
    words = [name] if name else []
    modules = imported([*words, "--help"], [*words, "--help-all"], [*words, "--no-such-option"])
    assert "intercode.cli.main" in modules
    assert modules & HEAVY == NEEDED.get(name, set())
    assert not name or any(module.endswith(f".{name}") for module in modules), "it was imported"


def test_help_of_the_module_imports_nothing_heavy() -> None:
    """As of the script, though Python imports the package before the module begins."""
    run = [sys.executable, "-X", "importtime", "-m", "intercode.cli", "run", "--help"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "intercode.spec" in modules and not modules & HEAVY


COMMAND = """
import gymnasium

print("at import", "intercode-bash-v0" in gymnasium.registry)

class Command:
    configure = staticmethod(lambda parser: None)

    def execute(args):
        print("when it runs", "intercode-swe-v0" in gymnasium.registry)
        return 0
"""


def test_a_command_of_a_file_finds_the_ids_of_gymnasium(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(COMMAND)
    run = [sys.executable, "-m", "intercode.cli", f"{tmp_path}/own.py:Command"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["at import True", "when it runs True"]


def test_code_that_a_command_runs_finds_the_ids_of_gymnasium(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "import gymnasium\nprint('found', 'intercode-bash-v0' in gymnasium.registry)\n"
        "def make(task):\n    raise RuntimeError('it is not to act')\n"
    )
    words = ["run", "bash", "--limit", "1", "--agent", f"{tmp_path}/agent.py:make"]
    run = [sys.executable, "-m", "intercode.cli", *words, "--out", f"{tmp_path}/run"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert "found True" in done.stdout


@pytest.mark.parametrize("name", COMMANDS.names(packages=False))
def test_every_command_has_examples_and_json(cli: Run, name: str) -> None:
    told = cli(name, "--help").stdout
    assert "Examples:" in told and f"intercode {name}" in told
    if name in ("agents", "images", "models"):
        told = cli(name, "list", "--help").stdout
    assert "--json" in told


@pytest.mark.parametrize("name", ["run", "sweep", "score"])
def test_help_is_on_one_screen_and_another_has_all(
    cli: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, long = cli(name, "--help").stdout, cli(name, "--help-all").stdout
    assert len(short.splitlines()) <= 60
    assert short.splitlines()[0].endswith("[options]") and "--help-all" in short
    options = [re.findall(r"^  (--?[a-z][a-z-]*)", text, re.MULTILINE) for text in (short, long)]
    assert {"--limit", "--timeout"} <= {*options[0]} < {*options[1]}
    assert "--permute-columns" in options[1]
    assert f"shows all {len(options[1])} options" in short
    assert "\nsql:\n" in long


def test_every_command_is_in_one_group(cli: Run) -> None:
    told = cli("--help").stdout.partition("try:\n")[2]
    installed = {name for name in COMMANDS.names() if not COMMANDS.is_foreign(name)}
    expected = sorted(installed | COMMANDS.homes.keys())
    assert sorted(re.findall(r"^  ([a-z]+)  ", told, re.MULTILINE)) == expected


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nope"], "there is no command 'nope'"),
        (["rnu"], "there is no command 'rnu'; did you mean 'run'?"),
        (["--vresion"], "there is no option --vresion; did you mean '--version'?"),
        (["run", "--agnet", "oracle"], "there is no option --agnet; did you mean '--agent'?"),
        (["run", "--nope"], "there is no option --nope\n"),
        (["run", "bash", "sql"], "unexpected argument 'sql'"),
        (
            ["run", "bash", "--sandbox", "dokcer"],
            "sandbox provider 'dokcer'; did you mean 'docker'?",
        ),
        (["images", "list", "--jsno"], "there is no option --jsno; did you mean '--json'?"),
        (["images", "lst"], "there is no 'lst'; did you mean 'list'?"),
        (["run", "bahs"], "there is no environment 'bahs'; did you mean 'bash'?"),
        (["run", "bash", "--agent", "orcale"], "no agent 'orcale'; did you mean 'oracle'?"),
        (["run", "python", "--data", "mbp"], "'mbp' is neither .*; did you mean 'mbpp'?"),
        (["run", "bash", "--task", "archive-0l"], "'archive-0l'; did you mean 'archive-01'?"),
        (["datasets", "fetch", "spidre"], "no dataset 'spidre'; did you mean 'spider'?"),
        (["run", "sql", "--engine", "mysq"], "no engine 'mysq'; did you mean 'mysql'?"),
        (["run", "bash", "--image", "hots"], "no image called 'hots'; did you mean 'host'?"),
        (["run", "bash", "--memory", "10"], "must be at least 32M, and 10 is 10 bytes; did you"),
        (["run"], "name an environment, such as 'bash': bash, ctf"),
        (["run", "nope"], "there is no environment 'nope'"),
        (["run", "./nope"], "there is no folder or file ./nope"),
        (["run", "nope/"], "there is no folder or file nope/"),
        (["run", "nope.jsonl"], "there is no folder or file nope.jsonl"),
        (
            ["run", __file__],
            f"not an environment: name one, such as intercode run bash --data {__file__}",
        ),
        (["run", "sql", "--agent", "ReAct", "--model", "openai/x"], "did you mean 'react'?"),
        (
            ["run", "sql", "--agent", "plan_solve", "--model", "openai/x"],
            "did you mean 'plan-solve'?",
        ),
        (["run", "bash", "--env", "sql"], "two environments are given"),
        (["run", "bash", "--workers", "0"], "--workers"),
        (["run", "bash", "--memory", "lots"], "--memory"),
        (["run", "bash", "--data", "none.json"], "none.json"),
    ],
)
def test_wrong_usage(cli: Run, arguments: list[str], told: str) -> None:
    done = cli(*arguments, code=2)
    assert told in done.stderr or re.search(told, done.stderr)
    assert done.stdout == "" and "Traceback" not in done.stderr
    *lines, last = done.stderr.splitlines()
    is_about_data = "--data" in arguments or "--task" in arguments
    assert is_about_data or re.fullmatch(r"see 'intercode( \w+)* --help'", last)
    assert len(lines) <= 1 or "--image" in arguments


def test_no_command_shows_the_help(cli: Run) -> None:
    assert "machine:" in cli(code=2).stdout


def test_debug_shows_where(cli: Run) -> None:
    assert "Traceback" in cli("--debug", "run", "nope", code=1).stderr
    assert "Traceback" in cli("run", "nope", "--debug", code=1).stderr


def test_a_failure_is_one_line(cli: Run) -> None:
    done = cli("report", "nowhere", code=2)
    assert done.stderr.startswith("intercode: error: nowhere is not the folder of a run: run.json")
    assert done.stderr.count("\n") == 1


def test_a_broken_pipe_within_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(args: object) -> int:
        raise BrokenPipeError(32, "Broken pipe")  # as of a sandbox that has died

    monkeypatch.setattr("intercode.cli.clean.execute", broken)
    assert main(["clean"]) == 1
    told = capfd.readouterr().err
    assert told.startswith("intercode: error: a sandbox or a server closed its connection")
    assert told.count("\n") == 1


def test_a_closed_pipe_is_quiet(cli: Run, data: Path, tmp_path: Path) -> None:
    cli("run", "bash", "--data", data, "--out", "run", "--quiet")
    shell = " ".join(command("show", tmp_path / "run", "--json")) + " | head -c 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell}"], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
