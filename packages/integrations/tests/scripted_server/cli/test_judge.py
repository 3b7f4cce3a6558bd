"""``--reward judge``: a run that is judged, how it is called, and what it takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.main import main
from intercode.evaluate.spending import read_spending
from intercode.models.prices import ModelPrice
from intercode_integrations.testing import ScriptedServer, status
from rewards.judges import judged_by, numbers

TASKS = [
    {"task_id": f"t{n}", "query": f"say {n}", "gold": f"echo {n}", "tags": ["says"]}
    for n in range(6)
]
AGENT = """
ACTIONS = {"t0": "echo 0", "t1": "echo It is 1", "t2": "echo It is 3", "t3": "touch x; echo 3"}

class Speaker:
    def __init__(self, task):
        self.action = ACTIONS.get(task.task_id, "echo It is " + task.query.split()[-1])

    def act(self, observation, history):
        return "submit" if history else self.action

make = Speaker
"""
MODEL = "openai-compatible/referee"
NAME = f"success (judged by {MODEL})"
PRICE = ModelPrice(input=1000.0, output=2000.0)
Tell = pytest.CaptureFixture[str]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """An honest judge; tasks, agent and prices are in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", "sk-very-secret-0123456789")
    prices = {"models": {MODEL: {"input": PRICE.input, "output": PRICE.output}}}
    (tmp_path / "tasks.json").write_text(json.dumps(TASKS))
    (tmp_path / "prices.json").write_text(json.dumps(prices))
    (tmp_path / "agent.py").write_text(AGENT)
    with ScriptedServer(judged_by(numbers)) as running:
        yield running


def run(server: ScriptedServer, *options: object, out: str = "run") -> int:
    what = ["run", "bash", "--data", "tasks.json", "--agent", "agent.py:make", "--out", out]
    judge = ["--reward", "judge", "--judge-model", MODEL, "--judge-url", server.url]
    return main([*map(str, (*what, *judge, "--prices", "prices.json", *options)), "--quiet"])


def told(capsys: Tell, *command: object) -> Any:
    capsys.readouterr()
    assert main([*map(str, command), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_judged_run_is_called_so_wherever_its_rate_stands(
    server: ScriptedServer, capsys: Tell
) -> None:
    assert run(server) == 0
    said = capsys.readouterr().out
    assert f"judged by {MODEL}" in said and NAME in said
    env = json.loads(Path("run/run.json").read_text())["env"]
    assert env["reward"] == "judge"
    assert env["judge"] == {"model": MODEL, "votes": 3, "version": 1}
    usage = server.usage

    found = told(capsys, "report", "run")
    assert found["judge"] == {
        **{"model": MODEL, "asked": 4, "same": 3, "split": 0, "steered": 0, "malformed": 0},
        "success_by_execution": pytest.approx(1 / 6),
        **{"tokens_in": usage.input_tokens, "tokens_out": usage.output_tokens},
        "cost": pytest.approx(PRICE.compute_cost(usage)),
    }
    for stats in (found["statistics"], found["tags"]["says"]):
        assert stats["judged_success_rate"] == pytest.approx(4 / 6)
        assert stats["cost"] is None, "the agent's, which is no model"
        assert not {key for key in stats if key.startswith("success")}
    assert found["judged_turns"] and not {"turns", "attempts"} & found.keys()

    assert main(["report", "run", "--html", "page.html"]) == 0
    said, page = capsys.readouterr().out, Path("page.html").read_text()
    for text in (said, page):
        assert NAME in text and "3 by its word; by execution alone 16.7 %" in text
    assert f"{usage.input_tokens:,}" in said and f"{PRICE.compute_cost(usage):,.4f}" in said
    for form in ((), ("--csv",), ("--markdown",), ("--plot",)):
        plain = ["run", "bash", "--data", "tasks.json", "--agent", "agent.py:make"]
        if not form:
            assert main([*plain, "--out", "plain", "--quiet"]) == 0
        capsys.readouterr()
        assert main(["report", "plain", "run", *form]) == 0
        said = capsys.readouterr().out
        assert "agent.py:make, judged by" in said and f"judged by {MODEL}" in said
    assert main(["export", "run", "--to", "inspect", "--out", "log.json"]) == 0
    log = json.loads(Path("log.json").read_text())
    assert [score["name"] for score in log["results"]["scores"]] == [NAME, "reward"]
    assert {*log["samples"][0]["scores"]} == {NAME, "reward"}
    assert "judge" not in told(capsys, "report", "plain")


def test_a_recorded_run_is_judged_afterwards(server: ScriptedServer, capsys: Tell) -> None:
    plain = ["run", "bash", "--data", "tasks.json", "--agent", "agent.py:make", "--out", "plain"]
    assert main([*plain, "--prices", "prices.json", "--quiet"]) == 2, "of no use to this agent"
    assert main([*plain, "--quiet"]) == 0
    judge = ["--reward", "judge", "--judge-model", MODEL, "--judge-url", server.url]
    assert main(["rescore", "--trust", "plain", *judge, "--judge-votes", "1", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert f"rescored, judged by {MODEL}" in said and "reward: recorded default, now judge" in said
    assert "success 16.7 % → 66.7 %" in said
    found = told(capsys, "report", "plain-rescored-judge")
    assert found["manifest"]["env"]["judge"]["votes"] == 1
    assert found["judge"]["tokens_in"] == server.usage.input_tokens
    assert len(server.exchanges) == 3 * 4 + 2
    # And back: by execution alone, with nothing of the judge's.
    assert run(server) == 0
    assert (
        main(["rescore", "--trust", "run", "--reward", "default", "--out", "back", "--quiet"]) == 0
    )
    found = told(capsys, "report", "back")
    assert found["statistics"]["success_rate"] == pytest.approx(1 / 6)
    assert "judge" not in found and "judge" not in found["manifest"]["env"]


def test_judging_afterwards_has_a_budget_of_its_own(server: ScriptedServer, capsys: Tell) -> None:
    plain = ["run", "bash", "--data", "tasks.json", "--agent", "agent.py:make", "--out", "plain"]
    assert main([*plain, "--quiet"]) == 0
    judge = ["--judge-model", MODEL, "--judge-url", server.url, "--prices", "prices.json"]
    again = [
        "rescore",
        "--trust",
        "plain",
        "--reward",
        "judge",
        *judge,
        "--out",
        "judged",
        "--quiet",
    ]
    assert main([*again, "--max-cost", "9"]) == 1
    assert 0 < PRICE.compute_cost(server.usage) <= 9 and "BudgetError" in capsys.readouterr().out
    assert main([*again, "--max-cost", "9"]) == 1
    assert PRICE.compute_cost(server.usage) <= 9, "with what it took before"
    assert main([*again, "--max-cost", "90"]) == 0
    assert told(capsys, "report", "judged")["judge"]["same"] == 3
    assert main(["show", "judged", "--task", "t1"]) == 0
    assert f"── t1 ── solved, judged by {MODEL}" in capsys.readouterr().out
    assert main(["rescore", "--trust", "judged", "--reward", "judge"]) == 2
    assert main(["rescore", "--trust", "plain", "--max-cost", "1", "--out", "x"]) == 2
    assert "--max-cost is for --reward judge" in capsys.readouterr().err


def test_what_it_takes_is_of_the_runs_budget(server: ScriptedServer, capsys: Tell) -> None:
    assert run(server, "--max-tokens", 9000) == 1
    assert f"stopped: {MODEL}: the rest of the budget is too small: " in capsys.readouterr().out
    assert 0 < server.usage.total <= 9000
    before = read_spending(Path("run"))
    assert before.tokens == server.usage.total
    assert before.cost == pytest.approx(PRICE.compute_cost(server.usage))
    assert main(["resume", "--trust", "run", "--judge-url", server.url, "--quiet"]) == 1
    assert server.usage.total <= 9000
    assert (
        main(
            [
                "resume",
                "--trust",
                "run",
                "--judge-url",
                server.url,
                "--max-tokens",
                "90000",
                "--quiet",
            ]
        )
        == 0
    )
    assert read_spending(Path("run")).tokens == server.usage.total


def test_a_server_that_fails_is_an_error_tried_again(server: ScriptedServer, capsys: Tell) -> None:
    for_good = status(500, x_should_retry="false")
    server.plan = lambda number: for_good
    assert run(server) == 1
    found = capsys.readouterr().out
    assert "Episodes without a result: 4 ModelError. Rates and means exclude them" in found
    server.plan = lambda number: None
    assert main(["resume", "--trust", "run", "--judge-url", server.url, "--quiet"]) == 0
    found = told(capsys, "report", "run")["statistics"]
    assert (found["episodes"], found["errors"], found["judged_successes"]) == (6, 0, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["bash", "--reward", "judge"], "--reward judge needs --judge-model"),
        (["bash", "--judge-votes", "3"], "--judge-votes is for --reward judge"),
        (["sql", "--reward", "judge", "--judge-model", MODEL], "has no reward 'judge'"),
        (["bash", "--reward", "judge", "--judge-model", "gpt"], "PROVIDER/NAME"),
        (
            ["bash", "--reward", "judge", "--judge-model", MODEL, "--max-cost", "1"],
            "the price of openai-compatible/referee is unknown",
        ),
    ],
)
def test_what_makes_no_sense(
    server: ScriptedServer, capsys: Tell, options: list[str], message: str
) -> None:
    url = ["--judge-url", server.url] if "--judge-model" in options else []
    assert main(["run", *options, *url, "--out", "run", "--quiet"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("run").exists()


def test_another_judge_is_another_run(server: ScriptedServer, capsys: Tell) -> None:
    assert run(server) == 0
    assert run(server, "--judge-votes", "1") == 2
    assert "env.judge.votes was 3 and is now 1" in capsys.readouterr().err
