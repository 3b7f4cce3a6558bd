"""Runs of models: one budget over all sessions, and an end where no episode could go well."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.main import main
from intercode.evaluate.spending import read_spending
from intercode.models import Message, Usage
from intercode.models.prices import ModelPrice
from intercode.models.scripted import Line
from intercode.records import EPISODES, read_episodes, read_manifest
from intercode_integrations.testing import Fault, ScriptedServer, first, status

KEY = "sk-very-secret-0123456789"
TASKS = [{"task_id": f"t{n}", "query": f"say {n}", "gold": f"echo {n}"} for n in range(6)]
MODEL = "openai-compatible/test"
PRICE = ModelPrice(input=1000.0, output=2000.0)
Tell = pytest.CaptureFixture[str]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """Solves every task in two turns; its prices and the tasks are in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", KEY)
    (tmp_path / "tasks.json").write_text(json.dumps(TASKS))
    prices = {"models": {MODEL: {"input": PRICE.input, "output": PRICE.output}}}
    (tmp_path / "prices.json").write_text(json.dumps(prices))

    def say(messages: Sequence[Message]) -> Line:
        spoken = sum(message.role == "assistant" for message in messages)
        number = next(n for n in range(6) if f"say {n}" in messages[1].content)
        return Line("submit" if spoken else f"```bash\necho {number}\n```")

    with ScriptedServer(say, key=KEY) as running:
        yield running


def begin(server: ScriptedServer, *options: object) -> int:
    what = ["run", "bash", "--data", "tasks.json", "--agent", "try-again", "--model", MODEL]
    where = ["--base-url", server.url, "--prices", "prices.json", "--reply-tokens", 50]
    return main([*map(str, (*what, *where, *options)), "--quiet", "--out", "run"])


def resume(*options: object) -> int:
    where = read_manifest(Path("run"))["sessions"][0]["options"]["base_url"]
    at = [] if "--base-url" in options else ["--base-url", where]
    return main(["resume", "run", "--trust", "--quiet", *at, *map(str, options)])


def named_again(server: ScriptedServer) -> str:
    """Return the end of the command that resumes the run."""
    folder = Path.cwd()
    return f" --base-url {server.url} --data {folder}/tasks.json --prices {folder}/prices.json"


def episodes() -> list[Any]:
    return list(read_episodes(Path("run", EPISODES)))


def solved() -> int:
    return sum(episode.success for episode in episodes())


@pytest.mark.parametrize(
    ("option", "limit", "more", "enough"),
    [("--max-tokens", 1500, 2000, 9000), ("--max-cost", 1.5, 2.0, 9.0)],
)
def test_a_budget_is_the_runs_and_not_the_sessions(
    server: ScriptedServer, capsys: Tell, option: str, limit: float, more: float, enough: float
) -> None:
    def taken() -> float:
        usage = server.usage
        return usage.total if option == "--max-tokens" else PRICE.compute_cost(usage)

    assert begin(server, option, limit) == 1
    told = capsys.readouterr().out
    assert f"stopped: {MODEL}: the rest of the budget is too small: the next call may " in told
    assert f" is left. Raise {option}, or shorten replies with --reply-tokens\n" in told.replace(
        "are left", "is left"
    )
    # The error of each episode in flight is the same, and is told once.
    assert told.count("the rest of the budget") == 1
    assert re.search(r"\nmodel: \d+ calls, [\d,]+ tokens in, [\d,]+ out, \$\d\.\d+\n", told)
    assert told.endswith(f"resume with: intercode resume run{named_again(server)}\n")
    done, spent = solved(), taken()
    assert 0 < done < 5 and limit / 4 < spent <= limit
    assert resume() == 1, "nothing is left of it"
    assert taken() <= limit and solved() == done
    assert resume(option, more) == 1
    assert spent < taken() <= more and done < solved() < 6
    known = read_spending(Path("run"))
    assert (known.tokens, known.cost) == (
        server.usage.total,
        pytest.approx(PRICE.compute_cost(server.usage)),
    )
    assert resume(option, enough) == 0
    assert solved() == 6
    assert resume() == 0
    manifest = json.loads(Path("run/run.json").read_text())
    name = option[2:].replace("-", "_")
    limits = [session["options"][name] for session in manifest["sessions"]]
    assert limits == [limit, limit, more, enough]


def test_without_a_price_tokens_are_told(server: ScriptedServer, capsys: Tell) -> None:
    Path("prices.json").write_text('{"models": {}}')
    assert begin(server) == 0
    usage = server.usage
    told = f"model: 12 calls, {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out\n"
    assert told in capsys.readouterr().out
    assert resume() == 0, "also of a run with nothing left to do"
    assert told in capsys.readouterr().out


def test_what_nobody_told_counts_as_what_was_set_aside(server: ScriptedServer) -> None:
    assert begin(server) == 0
    line = json.loads(Path("run", EPISODES).read_text().splitlines()[0])
    talk = line["metadata"]["model"]
    first, second = talk["calls"]
    usage = Usage(first["input_tokens"], first["output_tokens"])
    Path("run", EPISODES).write_text(json.dumps(line) + "\n")
    whole = read_spending(Path("run"))
    second |= {"input_tokens": 0, "output_tokens": 0, "cost": None}
    talk["calls"].append({"turn": 2, "sent": [0], "error": "ModelUnavailableError"})
    line["metadata"]["earlier"] = [{**talk, "calls": [{**first, "cost": None}]}]
    Path("run", EPISODES).write_text(json.dumps(line) + "\n")
    size = sum(len(talk["messages"][n]["content"]) + 16 for n in second["sent"])
    found = read_spending(Path("run"), PRICE, 50)
    assert found.tokens == 2 * usage.total + size + 50 > whole.tokens
    assert found.cost == pytest.approx(
        2 * PRICE.compute_cost(usage) + PRICE.compute_cost(Usage(size, 50))
    )
    second["cached"] = True
    Path("run", EPISODES).write_text(json.dumps(line) + "\n")
    assert read_spending(Path("run")).tokens == 2 * usage.total


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (status(401), "check the key"),
        (status(404), "check the model's name and the base URL"),
        (Fault("status", 429, body='{"error": {"code": "insufficient_quota"}}'), "no money left"),
    ],
)
def test_what_would_fail_for_all_ends_the_run(
    server: ScriptedServer, capsys: Tell, fault: Fault, told: str
) -> None:
    server.plan = first(*[fault] * 20)
    assert begin(server, "--workers", 2) == 1
    said = capsys.readouterr().out
    assert f"stopped: {MODEL}: HTTP " in said and told in said
    errors = [episode.metadata["error_type"] for episode in episodes()]
    assert errors == ["ModelAccessError"] * len(errors) and len(errors) <= 2, "those in flight"
    assert said.endswith(
        f"{6 - len(errors)} episodes are missing, {len(errors)} ended in an error\n"
        f"resume with: intercode resume run{named_again(server)}\n"
    )
    assert resume("--json") == 1
    said = capsys.readouterr()
    assert told in json.loads(said.out)["stopped"] and told in said.err
    server.plan = first()
    assert resume() == 0
    assert solved() == 6


def test_the_server_is_in_another_place_now(server: ScriptedServer) -> None:
    assert begin(server, "--limit", 1) == 0
    with ScriptedServer(server.script, key=KEY) as other:
        assert resume("--base-url", other.url, "--epochs", 2) == 0
        assert len(other.exchanges) == 2 and server.url != other.url
