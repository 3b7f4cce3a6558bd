"""The tokens in a record, and in its export, are those that the model saw and made.

The tokenizer merges across the borders of turns, so that a text has other tokens than its parts:
whoever tokenized what was recorded again would train on what was never generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

import intercode
from intercode.agents.strategies import TRY_AGAIN
from intercode.cli.main import main
from intercode.evaluate import evaluate
from intercode.models.base import Message, Reply, Settings, TokenTrace, Tool
from intercode_integrations.trl import Rollouts

MERGED = ("submit", "sub", "``", "`<", "\n<", "\x03<", "t:", "it\n", "pwd", "\x03")
"""Tokens of several characters, of which some lie across the border of two turns."""
FIRST = 0x2000
ENDS = FIRST + MERGED.index("\x03")


def encode(text: str) -> list[int]:
    """Tokenize a text as a whole: the longest token first."""
    ids, at = list[int](), 0
    while at < len(text):
        found = max((one for one in MERGED if text.startswith(one, at)), key=len, default="")
        ids.append(FIRST + MERGED.index(found) if found else ord(text[at]))
        at += len(found) or 1
    return ids


def decode(ids: Sequence[int]) -> str:
    return "".join(MERGED[one - FIRST] if one >= FIRST else chr(one) for one in ids)


def generated(text: str) -> tuple[list[int], list[float]]:
    """Tokenize a reply as a model might make it: letter by letter, to an end."""
    ids = [*map(ord, text), ENDS]
    return ids, [-(1 + at % 7) / 8 for at in range(len(ids))]


def block(action: str) -> str:
    return f"```bash\n{action}\n```"


def exported(run: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    out = run.parent / "tokens.parquet"
    assert main(["export", str(run), "--to", "parquet", "--tokens", "--out", str(out)]) == 0
    capsys.readouterr()
    found: Any = duckdb.sql(f"SELECT * FROM '{out}' ORDER BY task_id, epoch, part")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


class Trainer:
    """The parts of TRL's trainer that rollouts use, with the tokenizer above."""

    max_completion_length = 2000
    eos_token_ids = (ENDS,)
    chat_template = None
    chat_template_kwargs: dict[str, Any] = {}  # noqa: RUF012 - TRL's has it so

    def __init__(self) -> None:
        self.processing_class = self
        self.made: list[list[int]] = []

    def apply_chat_template(self, messages: Sequence[Any], **_: Any) -> str:
        return "".join(f"<{one['content']}\x03" for one in messages) + "<"

    def _tokenize_prompts(self, prompts: Sequence[Any]) -> tuple[list[list[int]]]:
        return ([encode(self.apply_chat_template(prompt)) for prompt in prompts],)

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": encode(text)}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return decode(ids).replace("\x03", "")

    def _generate_single_turn(self, prompts: Any, *_: Any, **__: Any) -> Any:
        told = [decode(ids).count("Output:") for ids in prompts]
        replies = [generated(block("submit" if turns else "pwd")) for turns in told]
        self.made += [ids for ids, _ in replies]
        return [ids for ids, _ in replies], [logprobs for _, logprobs in replies]


@pytest.mark.parametrize("shared", [0, 1])
def test_what_is_exported_is_what_trl_trains_on(
    shared: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, trainer = intercode.load_dataset("generated-bash:count=2"), Trainer()
    rollouts = Rollouts("bash", data=data, record=tmp_path / "run", shared_turns=shared)
    prompts = [row["prompt"] for row in rollouts.rows() for _ in range(2)]
    batches = [rollouts(prompts, trainer), rollouts(prompts, trainer)]
    rollouts.close()
    rows = exported(tmp_path / "run", capsys)
    assert len(rows) == 8 and {row["part"] for row in rows} == {1}
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    trained = [
        tuple(batch[name][number] for name in names)  # type: ignore[index]
        for batch in batches
        for number in range(4)
    ]
    assert sorted(tuple(row[name] for name in names) for row in rows) == sorted(trained)
    for row in rows:
        assert len(row["completion_ids"]) == len(row["logprobs"]) == len(row["env_mask"])
        mine = [i for i, own in zip(row["completion_ids"], row["env_mask"], strict=True) if own]
        assert mine in (trainer.made[-1], generated(block("pwd"))[0] + trainer.made[-1])
        whole = row["prompt_ids"] + row["completion_ids"]
        assert encode(decode(whole)) != whole, "the tokenizer does not show a drift"


class Server:
    """A model behind a server that is sent messages, and tokenizes the whole dialogue each time."""

    name = "merging"

    def __init__(self, faithful: bool) -> None:
        self.calls: list[TokenTrace] = []
        self.faithful = faithful
        """Whether it keeps the tokens of its replies."""

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),  # noqa: B008 - frozen
        tools: Sequence[Tool] = (),
    ) -> Reply:
        assert settings.trace
        turns = sum(one.role == "assistant" for one in messages)
        text = block("submit" if turns == 2 else "pwd")
        prompt = encode("".join(f"<{one.content}\x03" for one in messages) + "<")
        if self.faithful and self.calls:
            last = self.calls[-1]
            prompt = [*last.prompt, *last.ids, *encode(f"<{messages[-1].content}\x03<")]
        ids, logprobs = generated(text)
        self.calls.append(TokenTrace(tuple(prompt), tuple(ids), tuple(logprobs)))
        return Reply(text, trace=self.calls[-1])


@pytest.mark.parametrize("faithful", [True, False])
def test_what_is_exported_is_what_a_server_had(
    faithful: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, server = intercode.load_dataset("generated-bash:count=1"), Server(faithful)
    agents = TRY_AGAIN(server, settings=Settings(trace=True))

    def make() -> Any:
        return intercode.make("bash", data=data).unwrapped

    evaluate(data, agents, make, out=tmp_path / "run")
    rows = exported(tmp_path / "run", capsys)
    assert len(server.calls) == 3
    if faithful:
        (row,) = rows
        last = server.calls[-1]
        assert row["turns"] == [1, 2, 3]
        assert (*row["prompt_ids"], *row["completion_ids"]) == (*last.prompt, *last.ids)
        assert row["env_mask"].count(1) == sum(len(one.ids) for one in server.calls)
    else:  # each prompt has other tokens than were generated: nothing is joined
        assert [row["turns"] for row in rows] == [[1], [2], [3]]
        for row, call in zip(rows, server.calls, strict=True):
            told = TokenTrace.parse(row["prompt_ids"], row["completion_ids"], row["logprobs"])
            assert told == call and set(row["env_mask"]) == {1}
