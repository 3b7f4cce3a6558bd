"""What is exported is read by those that it is for: a replay, pandas' CSV, DuckDB."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import pytest

import intercode
from intercode import records
from intercode.cli.main import main
from intercode.cli.terminal import safe
from intercode.episode import Episode, Score, Turn
from intercode.errors import RecordWriteError
from intercode.evaluate.manifest import describe
from intercode.report.export import to_chat, write_parquet

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
            excluded_tasks={},
        ),
        **more,
    }
    (folder / records.MANIFEST).write_text(json.dumps(manifest))
    (folder / records.EPISODES).write_text("".join(f"{e.to_json()}\n" for e in found))
    return folder


def export(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main(["export", *map(str, arguments)]) == 0
    return capsys.readouterr().out


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
        (["--to", "parquet", "--tokens", "--turns", "--out", "x"], 2, "own kind: omit --turns"),
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


def test_a_temporary_folder_that_has_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(RecordWriteError, match=r"cannot write .*table: .*No such file"):
        write_parquet(tmp_path / "table", {"a": "BIGINT"}, [{"a": 1}])
