"""What is exported is read by those that it is for: a replay, pandas' CSV, DuckDB."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

import intercode
from intercode import records
from intercode.cli.main import main
from intercode.cli.terminal import safe
from intercode.episode import Episode, Score, Turn
from intercode.evaluate.manifest import describe
from intercode.records import load_actions
from intercode.report.export import to_chat
from intercode_paper.results import load_results
from intercode_paper.tables import rates

ODD = 'odd \udcff "quoted", line\nand = more \u202e'


def episodes() -> list[Episode]:
    def made(task: str, *rewards: float, score: float | None = None, **more: Any) -> Episode:
        turns = [
            Turn(f"cat {n} {ODD}", f"seen {n} {ODD}", reward=r, ok=n > 0, exit_code=n, seconds=0.5)
            for n, r in enumerate(rewards)
        ]
        status = more.pop("status", "submitted")
        found = Episode(task, f"do {task}", "sql", "me", 7, turns=turns, status=status, **more)
        found.score = None if score is None else Score(score, {"rows": score})
        return found

    tagged = {"tags": ["hard", "join"], "image": "db"}
    return [
        made("1", 0.0, 0.0, score=None, status="error", error="lost"),
        made("0", 0.0, 0.0, score=1.0, metadata=tagged),
        made("1", 0.25, 0.5, score=0.5, status="truncated"),  # tried again
        made("flag", 0.0, score=1.0, answer="flag{x}"),
        made("none", score=0.0, status="skipped"),
        made("lost", 0.0, score=None, status="error", error="the sandbox died"),
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("run"), episodes())


def write(folder: Path, found: list[Episode], **more: Any) -> Path:
    manifest = {
        **describe(
            dataset={"name": "mine", "source": "mine.json", "digest": "d", "tasks": 9},
            env={"env": "sql", "max_turns": 4},
            agent={"name": "noop", "options": {}, "digest": ""},
            needs_gold=False,
            seed=0,
            excluded={},
        ),
        **more,
    }
    (folder / records.MANIFEST).write_text(json.dumps(manifest))
    (folder / records.EPISODES).write_text("".join(f"{e.to_json()}\n" for e in found))
    return folder


def export(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main(["export", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_form_of_2023(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sql" / "mine" / "ic_sql_multiturn_mine_4_turns.json"
    path.parent.mkdir(parents=True)
    assert main(["export", str(run), "--to", "paper", "--out", str(path)]) == 0
    assert "4 episodes, 1 without a result left out" in capsys.readouterr().err
    found = {episode.task_id: episode for episode in load_results(path).episodes}
    assert list(found) == ["0", "1", "flag", "none"]
    assert {task for task, episode in found.items() if episode.success} == {"0", "flag"}
    assert [turn.reward for turn in found["0"].turns] == [0.0, 1.0]
    assert [turn.reward for turn in found["1"].turns] == [0.25, 0.5]
    assert found["0"].turns[1].action == f"cat 1 {ODD}"
    assert found["0"].turns[0].valid is False and found["0"].hardness == "hard"
    raw = json.loads(path.read_text())
    assert raw["1"]["task_id"] == 1 and raw["flag"]["task_id"] == "flag"
    assert raw["1"]["summary"] == {
        "max_reward": 0.5,
        "max_reward_idx": 1,
        "turns_taken": 2,
        "turns_max": 4,
    }
    actions = load_actions(path)
    assert actions["flag"][-1] == "submit flag{x}" and actions["none"] == ["skip"]
    whole = [rate for rate in rates(tmp_path) if rate.group == "all"]
    assert [(r.strategy, r.successes, r.episodes) for r in whole] == [
        ("single turn", 0, 4),
        ("try again", 2, 4),
    ]


def thinking(note: str) -> list[Episode]:
    """As a model that notes something at each of its calls leaves them."""
    found = episodes()[1:5]  # solved, truncated, with an answer, skipped at once
    found[0].turns.insert(1, Turn("", "no code", ok=False, info={"invalid": True}))
    for episode in found:
        calls = [{"turn": n, note: f"why {n}"} for n in range(len(episode.turns) + 1)]
        episode.metadata["model"] = {"calls": [*calls, {"turn": 9, "error": "BudgetError"}]}
    return found


def test_react_in_the_form_of_2023(tmp_path: Path) -> None:
    path = tmp_path / "ic_sql_react_4_turns.json"
    run = write(tmp_path, thinking("thought"))
    assert main(["export", str(run), "--to", "paper", "--out", str(path)]) == 0
    read = {episode.task_id: episode for episode in load_results(path).episodes}
    for episode in thinking("thought"):
        found = read[episode.task_id]
        assert found.react and found.max_reward == episode.reward
        assert found.thoughts == tuple(f"why {n}" for n in range(len(episode.turns) + 1))
        *turns, last = found.turns
        assert [turn.command for turn in turns] == [t.action or None for t in episode.turns]
        assert [turn.observation for turn in turns] == [t.observation for t in episode.turns]
        assert last.command is not None and last.command.startswith(("submit", "skip"))
        assert last.reward == episode.reward
    raw = json.loads(path.read_text())
    assert raw["0"]["turn_history"]["actions"][0] == f"execute[cat 0 {ODD}]"
    assert len({len(values) for values in raw["0"]["turn_history"].values()}) == 1
    assert [raw[task]["summary"]["turns_taken"] for task in ("0", "1")] == [4, 2]
    assert load_actions(path)["0"] == [f"cat 0 {ODD}", f"cat 1 {ODD}", "submit"]


def test_plan_and_solve_in_the_form_of_2023(tmp_path: Path) -> None:
    path = tmp_path / "ic_sql_plan_solve_4_turns.json"
    agent = {"name": "plan-solve-refine", "options": {}, "digest": ""}
    run = write(tmp_path, thinking("step"), agent=agent)
    assert main(["export", str(run), "--to", "paper", "--out", str(path)]) == 0
    recorded = load_results(path)
    assert recorded.meta == agent
    found = {episode.task_id: episode for episode in recorded.episodes}
    assert found["0"].thoughts == ("why 0", "why 1", "why 2") and not found["0"].react
    assert [turn.command for turn in found["1"].turns] == [f"cat {n} {ODD}" for n in (0, 1)]
    assert {task: e.max_reward for task, e in found.items()} == {
        "0": 1.0,
        "1": 0.5,
        "flag": 1.0,
        "none": 0.0,
    }


def test_several_attempts_at_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = episodes()[1]
    second.epoch = 1
    run = write(tmp_path, [episodes()[1], second])
    assert main(["export", str(run), "--to", "paper"]) == 2
    assert "--epoch N" in capsys.readouterr().err
    assert len(json.loads(export(capsys, run, "--to", "paper", "--epoch", 1))) == 1


def test_dialogues_without_a_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = export(capsys, run, "--to", "chat", "--solved").splitlines()
    one, other = map(json.loads, lines)
    assert [message["role"] for message in one["messages"]] == ["user", "assistant"] * 3
    assert one["messages"][0]["content"] == "do 0"
    assert one["messages"][2]["content"].startswith("seen 0 odd \\udcff")
    assert one["messages"][-1]["content"] == "submit"
    assert other["messages"][-1]["content"] == "submit flag{x}"
    assert (one["task_id"], one["reward"], one["success"]) == ("0", 1.0, True)


def test_dialogues_of_a_model_are_what_it_was_sent() -> None:
    episode = episodes()[1]
    call = {"call_id": "c", "name": "sql", "arguments": {"statement": "SELECT 1"}}
    episode.metadata["model"] = {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "left out"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "1", "call_id": "c"},
            {"role": "assistant", "content": "done"},
        ],
        "calls": [
            {"sent": [0, 1], "reply": 2},
            {"sent": [0, 2, 3], "reply": 4},
            {"sent": [0, 2, 3, 4], "error": "ModelUnavailableError"},
        ],
        "tools": [{"name": "sql", "description": "run", "parameters": {"type": "object"}}],
    }
    told = to_chat(episode)
    assert told["messages"] == [
        {"role": "system", "content": "be brief"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "sql", "arguments": '{"statement": "SELECT 1"}'},
                }
            ],
        },
        {"role": "tool", "content": "1", "tool_call_id": "c"},
        {"role": "assistant", "content": "done"},
    ]
    assert told["tools"][0]["function"]["name"] == "sql"
    call["arguments"] = {"_raw": "{not json"}
    assert to_chat(episode)["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{not json"


@pytest.mark.parametrize("turns", [False, True])
def test_tables(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], turns: bool) -> None:
    options = ["--turns"] if turns else []
    rows = list(csv.DictReader(io.StringIO(export(capsys, run, "--to", "csv", *options))))
    path = tmp_path / "it's [1].parquet"
    told = json.loads(export(capsys, run, "--to", "parquet", "--out", path, "--json", *options))
    assert (told["episodes"], told["errors"]) == (5, 0)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    path = path.rename(tmp_path / "plain.parquet")
    relation = duckdb.read_parquet(str(path))
    assert relation.columns == list(rows[0])
    found = [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]
    assert len(found) == len(rows) == (6 if turns else 5)
    for row, other in zip(rows, found, strict=True):
        for name, value in other.items():
            assert row[name] == ("" if value is None else safe(str(value))), name
    if turns:
        assert [row["turn"] for row in found] == [1, 2, 1, 2, 1, 1]
        assert found[1]["action"] == f"cat 1 {ODD}".replace("\udcff", "\\udcff")
        return
    first, second, *_, last = found
    assert (first["success"], first["level"], json.loads(first["tags"])) == (
        True,
        "hard",
        ["hard", "join"],
    )
    assert (second["reward"], json.loads(second["parts"])) == (0.5, {"rows": 0.5})
    assert (last["reward"], last["error"], last["status"]) == (None, "the sandbox died", "error")


@pytest.mark.defends("host leak")
def test_a_table_steers_neither_a_spreadsheet_nor_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program or a model has written each of its texts."""
    hostile = "=HYPERLINK(1)\x1b]0;t\x07\x9b2J\u202e\r"
    episode = Episode(hostile, hostile, hostile, hostile, status="error", error=hostile)
    episode.turns = [Turn(hostile, hostile, exit_code=-1)]
    episode.answer, episode.metadata = hostile, {"tags": [hostile], "image": hostile}
    episode.metadata["error_type"] = hostile
    run = write(tmp_path, [episode])
    for options in ([], ["--turns"]):
        text = export(capsys, run, "--to", "csv", *options)
        assert all(char == "\n" or char.isprintable() for char in text)
        (row,) = csv.DictReader(io.StringIO(text))
        assert "'=HYPERLINK(1)\\x1b" in text and not [
            cell for cell in row.values() if cell[:1] == "="
        ]
        assert not options or row["exit_code"] == "-1"


def test_whole_episodes(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = export(capsys, run, "--to", "jsonl").splitlines()
    assert [Episode.from_json(line) for line in lines] == episodes()[1:]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--to", "parquet"], 2, "--out FILE"),
        (["--to", "csv", "--json"], 2, "--out FILE"),
        (["--to", "chat", "--turns"], 2, "--turns is for csv"),
        (["--to", "chat", "--tokens"], 2, "--tokens is for --to parquet, not --to chat"),
        (["--to", "csv", "--tokens"], 2, "--tokens is for --to parquet, not --to csv"),
        (["--to", "parquet", "--tokens", "--turns", "--out", "x"], 2, "leave out --turns"),
        (["--to", "parquet", "--tokens", "--out", "x"], 2, "has token ids (of 5): a model's run"),
        (["--to", "chat", "--out", "no/such/file"], 1, "cannot write no/such/file"),
        (["--to", "parquet", "--out", "no/such/file"], 1, "cannot write no/such/file"),
    ],
)
def test_what_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, told: str
) -> None:
    assert main(["export", str(run), *arguments]) == code
    assert told in capsys.readouterr().err


def test_episodes_without_tokens_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, told, discarded = episodes()[1:4]
    call = {"prompt_token_ids": [1, 2], "token_ids": [3], "logprobs": [-0.5], "turn": 0}
    told.metadata["model"] = {"messages": [], "calls": [call]}
    discarded.metadata["model"] = {"messages": [], "calls": [{**call, "discarded": True}]}
    run, out = write(tmp_path, [bare, told, discarded]), tmp_path / "tokens.parquet"
    options = [str(run), "--to", "parquet", "--tokens", "--out", str(out)]
    assert main(["export", *options]) == 0
    assert capsys.readouterr().err == "1 episode, 2 without recorded tokens left out\n"
    found: Any = duckdb.sql(f"SELECT task_id, completion_ids FROM '{out}'")
    assert found.fetchall() == [("1", [3])]
    counts = json.loads(export(capsys, *options, "--json"))
    assert (counts["episodes"], counts["without_tokens"]) == (1, 2)
    assert main(["export", *options[:-1], str(tmp_path / "none"), "--epoch", "7"]) == 0


@pytest.mark.parametrize("style", ["chat", "tools", "plain"])
def test_dialogues_of_the_oracle_are_told_as_a_model_would_have_had_them(style: str) -> None:
    env: Any = intercode.make("bash").unwrapped
    env.reset(index=0)
    for action in env.solution(env.dataset[0]):
        env.step(action)
    assert to_chat(env.episode, style, {"max_turns": None})["messages"] == env.messages(style)
    if style == "chat":
        told = to_chat(env.episode, style, {"max_turns": 4})["messages"]
        assert "You have 4 turns" in told[0]["content"]
    env.close()
