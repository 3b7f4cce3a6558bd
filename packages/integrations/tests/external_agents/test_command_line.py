"""Language models from the command line: options, budgets, predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from intercode.agents.builtin import action_for, read_predictions
from intercode.cli.main import main
from intercode.envs.swe import apply_patch
from intercode.envs.traits import find_traits
from intercode.errors import RecordError
from intercode.models.scripted import Line
from intercode.records import read_episodes
from intercode_integrations.external_agents.profile import find_profile
from intercode_integrations.testing import ScriptedServer

KEY = "sk-very-secret-0123456789"
TASKS = [{"task_id": f"t{n}", "query": f"say {n}", "gold": f"echo {n}"} for n in range(4)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", KEY)
    (tmp_path / "tasks.json").write_text(json.dumps(TASKS))
    return tmp_path


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    def say(messages: Any) -> Line:
        spoken = sum(message.role == "assistant" for message in messages)
        number = next(n for n in range(4) if f"say {n}" in messages[1].content)
        return Line("submit" if spoken else f"```bash\necho {number}\n```")

    with ScriptedServer(say, key=KEY) as running:
        yield running


def run(server: ScriptedServer, *options: str, code: int = 0, agent: str = "try-again") -> Any:
    command = ["run", "bash", "--data", "tasks.json", "--agent", agent, "--quiet", "--out", "run"]
    where = ["--model", "openai-compatible/test", "--base-url", server.url]
    assert main([*command, *where, *options]) == code
    return json.loads(Path("run/run.json").read_text())


def test_what_is_asked_for_is_recorded_but_no_secret(
    server: ScriptedServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = run(server, "--temperature", "0.5", "--cache", "replies", "--reply-tokens", "99")
    known = manifest["agent"]["language_model"]
    assert manifest["agent"]["name"] == "try-again"
    assert known["model"] == "openai-compatible/test"
    assert (known["settings"]["temperature"], known["settings"]["max_tokens"]) == (0.5, 99)
    assert all(episode.success for episode in read_episodes(folder / "run" / "episodes.jsonl"))
    body = server.exchanges[-1].body
    assert (body["temperature"], body["model"]) == (0.5, "test")
    asked = len(server.exchanges)
    run(
        server,
        "--temperature",
        "0.5",
        "--epochs",
        "2",
        "--cache",
        "replies",
        "--reply-tokens",
        "99",
    )
    assert len(server.exchanges) > asked, "another epoch has another seed"
    for path in folder.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path
    told = capsys.readouterr()
    assert KEY not in told.out + told.err


def test_tokens_are_recorded_if_asked_for(server: ScriptedServer, folder: Path) -> None:
    run(server, "--record-tokens")
    for episode in read_episodes(folder / "run" / "episodes.jsonl"):
        for call in episode.metadata["model"]["calls"]:
            assert len(call["token_ids"]) == len(call["logprobs"]) > 0
            assert len(call["prompt_token_ids"]) == call["input_tokens"] > 0
    options = ["--to", "parquet", "--tokens", "--out", "tokens.parquet"]
    assert main(["export", "run", *options]) == 0
    parts: Any = duckdb.sql("SELECT sum(len(turns)), sum(list_sum(env_mask)) FROM 'tokens.parquet'")
    made = sum(
        len(call["token_ids"])
        for episode in read_episodes(folder / "run" / "episodes.jsonl")
        for call in episode.metadata["model"]["calls"]
    )
    assert parts.fetchall() == [(8, made)]
    assert main(["export", "run", *options, "--turns"]) == 2


def test_a_budget_ends_the_run_which_can_be_gone_on_with(
    server: ScriptedServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.exchanges.clear()
    run(server, "--max-tokens", "1500", "--reply-tokens", "100", code=1)
    spent = sum(exchange.usage.total for exchange in server.exchanges if exchange.usage)
    assert 0 < spent <= 1500
    assert "the rest of the budget is too small" in capsys.readouterr().out
    run(server, "--reply-tokens", "100")
    episodes = list(read_episodes(folder / "run" / "episodes.jsonl"))
    failed = [e.metadata["error_type"] for e in episodes if e.status == "error"]
    assert failed == ["BudgetError"] and len(episodes) == 5


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--agent", "try-again"], "needs --model"),
        (["--agent", "noop", "--model", "openai/x"], "takes no --model"),
        (["--agent", "noop", "--dialogue-limit", "3"], "takes no --dialogue-limit"),
        (["--agent", "predictions"], "needs --recording"),
        (["--agent", "react", "--model", "x"], "PROVIDER/NAME"),
        (["--agent", "react", "--model", "scripted/r", "--recording", "x"], "takes no --recording"),
        *[
            (
                ["--agent", name, "--recording", "x"],
                "takes no --recording; agents with this option: p",
            )
            for name in ("oracle", "noop", "random")
        ],
        (
            ["--recording", "x"],
            "agent oracle takes no --recording; agents with this option: predictio",
        ),
        (["--agent", "cli:echo {qery}"], "no placeholder {qery} (did you mean {query}?)"),
        (["--agent", "cli:echo --url={ulr}"], "no placeholder {ulr} (did you mean {url}?)"),
    ],
)
def test_refusals(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "bash", *options]) == 2
    assert told in capsys.readouterr().err
    assert not Path("runs").exists()


def test_braces_of_a_program_are_its_own(caplog: pytest.LogCaptureFixture) -> None:
    mine = "cli:sh -c 'echo ${mode} {{qery}} {print} {x,y} {query}' {a}"
    assert find_profile(mine).run.command[2:] == (
        "echo ${mode} {{qery}} {print} {x,y} {query}",
        "{a}",
    )
    assert not caplog.text
    code = 'cli:python3 -c \'mode = "a b"; print(f"{mode}")\''
    for _ in range(2):
        assert find_profile(code).run.command[2] == 'mode = "a b"; print(f"{mode}")'
    assert caplog.text.count("no placeholder {mode} (did you mean {model}?); it is left") == 1


def test_predictions_are_scored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"task_id": "t1", "prediction": "```bash\necho 1\n```"},
        {"task_id": "t2", "prediction": "echo 1"},
        {"task_id": "t3", "prediction": ""},
    ]
    path = folder / "predictions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ["--data", "tasks.json", "--json", "--quiet", "--out", "run"]
    assert main(["score", str(path), "bash", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["planned"], told["statistics"]["successes"]) == (3, 1)
    rewards = {e.task_id: e.success for e in read_episodes(folder / "run" / "episodes.jsonl")}
    assert rewards == {"t1": True, "t2": False, "t3": False}
    assert main(["score", str(path), "bash", "--task", "t0"]) == 2
    assert "no prediction for t0" in capsys.readouterr().err


def test_a_prediction_may_hold_any_character(folder: Path) -> None:
    line = json.dumps({"task_id": "t", "prediction": "a\u2028b\x85c"}, ensure_ascii=False)
    (folder / "p.jsonl").write_text(f"{line}\r\n\n", encoding="utf-8")
    assert read_predictions(folder / "p.jsonl") == {"t": "a\u2028b\x85c"}


def test_what_a_prediction_is_depends_on_the_environment() -> None:
    assert (
        action_for(find_traits("ctf"), "flag{x}\n")
        == action_for(find_traits("ctf"), "submit flag{x}")
        == "submit flag{x}"
    )
    assert action_for(find_traits("swe"), "diff") == apply_patch("diff")
    assert action_for(find_traits("sql"), "Gibberish.") == "Gibberish."


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "contains no predictions"),
        ("{", "p.jsonl:1: not JSON"),
        ("[]", "expected an object"),
        ('{"task_id": "a"}', "field 'prediction' is missing"),
        ('{"instance_id": "a", "model_patch": 3}', "must be a text, not int"),
        ('{"task_id": "a", "prediction": ""}\n' * 2, "p.jsonl:2: task 'a' has two"),
    ],
)
def test_what_is_no_file_of_predictions(folder: Path, text: str, told: str) -> None:
    (folder / "p.jsonl").write_text(text)
    with pytest.raises(RecordError, match=told):
        read_predictions(folder / "p.jsonl")
