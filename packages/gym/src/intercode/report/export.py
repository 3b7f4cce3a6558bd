"""Exports of runs to formats of other programs: dialogues for training, and tables.

The module `intercode.report.inspect_export` exports a run as a log of Inspect AI. The package
``intercode-paper`` exports a run in the format of the 2023 release.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from intercode.agents.transcripts import as_plain_messages
from intercode.dialogues import RecordedDialogue, RecordedModelCall, agent_talk
from intercode.envs.traits import check_imported, find_max_turns, find_traits
from intercode.episode import Episode
from intercode.errors import RecordWriteError, UsageError
from intercode.models.base import as_openai
from intercode.records import Outcome
from intercode.registry import MESSAGES
from intercode.sql_identifiers import quote_identifier
from intercode.task import Task
from intercode_sandbox.host_files import atomic_file

if TYPE_CHECKING:
    from pandas import DataFrame

_TEXT, _COUNT, _NUMBER = "VARCHAR", "INTEGER", "DOUBLE"
EPISODE_COLUMNS = {
    **{"task_id": _TEXT, "epoch": _COUNT, "env": _TEXT, "agent": _TEXT, "seed": "BIGINT"},
    **{
        "status": _TEXT,
        "outcome": _TEXT,
        "success": "BOOLEAN",
        "reward": _NUMBER,
        "parts": _TEXT,
        "turns": _COUNT,
    },
    **{"solved_at": _COUNT, "invalid": _COUNT, "unexecuted": _COUNT, "started": _NUMBER},
    **dict.fromkeys(("seconds", "action_seconds", "model_seconds"), _NUMBER),
    **{"tokens_in": "BIGINT", "tokens_out": "BIGINT", "cost": _NUMBER},
    **dict.fromkeys(("place", "level", "tags", "error_type", "error", "answer", "query"), _TEXT),
}
"""Columns of a table of episodes: name → SQL type. ``parts`` and ``tags`` are JSON texts."""
_PANDAS_TYPES = {
    **{_TEXT: "string", _COUNT: "Int64", "BIGINT": "Int64", _NUMBER: "float64"},
    "BOOLEAN": "boolean",
}
"""SQL type → pandas type. Each permits missing values."""

TURN_COLUMNS = {
    **{"task_id": _TEXT, "epoch": _COUNT, "turn": _COUNT, "action": _TEXT, "observation": _TEXT},
    **{"reward": _NUMBER, "ok": "BOOLEAN", "exit_code": _COUNT, "seconds": _NUMBER},
}
"""Columns of a table of turns: name → SQL type. The turns are numbered from 1."""

_IDS = "INTEGER[]"
TOKEN_COLUMNS = {
    **{"task_id": _TEXT, "epoch": _COUNT, "part": _COUNT, "reward": _NUMBER, "success": "BOOLEAN"},
    **{"turns": _IDS, "prompt_ids": _IDS, "completion_ids": _IDS, "logprobs": "DOUBLE[]"},
    "env_mask": _IDS,
}
"""Columns of a table of tokens: name → SQL type. The names are those of rollouts in the library
TRL."""


def to_chat(
    episode: Episode,
    style: str = "plain",
    env: Mapping[str, Any] = MappingProxyType({}),
    *,
    trust: bool = False,
) -> dict[str, Any]:
    """Return a dialogue for fine-tuning a model: messages in OpenAI's format, and the reward.

    The dialogue consists of the messages of the last answered call to the model, and the reply. If
    the agent is not a language model (the oracle, for example), the record has no messages. The
    dialogue is then composed from the actions and observations of the episode.

    Args:
        episode: The episode.
        style: The style of a composed dialogue, as for `InterCodeEnv.messages`. In ``plain``, the
            query and the observations are messages of the user, and the actions are messages of the
            assistant. In ``chat`` and ``tools``, the messages are those that the agents
            ``try-again`` and ``tool-calling`` would receive. A fine-tuned model can then act as one
            of these agents.
        env: The environment's facts in the run's record.
        trust: Whether the record may name an environment whose module is not imported yet.

    Returns:
        ``messages``, ``task_id``, ``epoch``, ``outcome``, ``reward``, ``success``, and ``tools`` if
        the model had tools.

    Raises:
        TrustError: The record names an environment whose module is not imported yet, and the record
            is not trusted. The style ``plain`` needs no environment.
    """
    model = agent_talk(episode) or RecordedDialogue()
    messages = _recorded_messages(model) or _render_messages(episode, style, env, trust=trust)
    dialogue: dict[str, Any] = {
        "messages": messages,
        "task_id": episode.task_id,
        "epoch": episode.epoch,
        "outcome": episode.outcome,
        **_result(episode),
    }
    if tools := model.get("tools"):
        dialogue["tools"] = [{"type": "function", "function": tool} for tool in tools]
    return escape_values(dialogue)


def _render_messages(
    episode: Episode, style: str, env: Mapping[str, Any], *, trust: bool
) -> list[dict[str, Any]]:
    # The renderer `intercode.agents.transcripts.plain` would replace undecodable bytes. Here they
    # remain, and `escape_values` converts them to readable text.
    if style == "plain":
        return [*map(as_openai, as_plain_messages(episode))]
    env_key = episode.env, str(env.get("protocol", "default"))
    check_imported(*env_key, trust=trust)
    turns = env.get("max_turns") or find_max_turns(*env_key)
    facts = {"name": episode.env, "traits": find_traits(*env_key), "max_turns": turns}
    task = Task(episode.task_id, episode.query)
    messages: list[dict[str, Any]] = MESSAGES.get(style)(
        SimpleNamespace(**facts, episode=episode), task
    )
    return messages


def _recorded_messages(model: RecordedDialogue) -> list[dict[str, Any]]:
    messages = model.get("messages", [])
    for call in reversed(model.get("calls", [])):
        if "reply" in call:
            return [_message(messages[n]) for n in [*call.get("sent", ()), call["reply"]]]
    return []


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    chat_message = {"role": message["role"], "content": message["content"]}
    if calls := message.get("tool_calls"):
        chat_message["tool_calls"] = [
            {
                "id": call["call_id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": _arguments(call["arguments"])},
            }
            for call in calls
        ]
    if "call_id" in message:
        chat_message["tool_call_id"] = message["call_id"]
    return chat_message


def _arguments(arguments: Mapping[str, Any]) -> str:
    raw_arguments = arguments.get("_raw")
    return raw_arguments if isinstance(raw_arguments, str) else json.dumps(arguments)


def episode_row(episode: Episode) -> dict[str, Any]:
    """Return the row of an episode in the table with `EPISODE_COLUMNS`."""
    outcome = Outcome.from_episode(episode)
    part_scores = {} if episode.score is None or outcome.failed else dict(episode.score.parts)
    special = {
        "parts": json.dumps(part_scores),
        "tags": json.dumps(outcome.tags),
        **_result(episode),
    }
    row = {
        name: getattr(outcome if hasattr(outcome, name) else episode, name)
        for name in EPISODE_COLUMNS
        if name not in special
    }
    return escape_values({name: {**row, **special}[name] for name in EPISODE_COLUMNS})


def to_frame(episodes: Iterable[Episode]) -> DataFrame:
    """Return a pandas data frame with a row for each episode and the columns `EPISODE_COLUMNS`.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise UsageError(
            "to_pandas() needs pandas, which is not installed: "
            "pip install 'intercode-gym[notebook]'"
        ) from error
    frame = pandas.DataFrame(map(episode_row, episodes), columns=[*EPISODE_COLUMNS])
    return frame.astype({name: _PANDAS_TYPES[kind] for name, kind in EPISODE_COLUMNS.items()})


def _result(episode: Episode) -> dict[str, Any]:
    """Return the reward and the success of an episode.

    Both are None if the episode has no result: a mean over the column would count a 0.
    """
    success = None if episode.reward is None else episode.success
    return {"reward": episode.reward, "success": success}


def turn_rows(episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield the rows of an episode's turns in the table with `TURN_COLUMNS`.

    If the episode has no result, the reward of every turn is None.
    """
    turn_columns = [name for name in TURN_COLUMNS if name not in ("task_id", "epoch", "turn")]
    unscored = {"reward": None} if episode.reward is None else {}
    for turn_number, turn in enumerate(episode.turns, 1):
        key = {"task_id": episode.task_id, "epoch": episode.epoch, "turn": turn_number}
        yield escape_values(
            {**key, **{name: getattr(turn, name) for name in turn_columns}, **unscored}
        )


def token_rows(episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield the rows of an episode's recorded tokens in the table with `TOKEN_COLUMNS`.

    Calls without recorded tokens, and calls whose reply the agent discarded, are omitted.

    A row holds the tokens of a dialogue as one sequence. If the prompt of a call does not begin
    with the sequence so far, another row starts. The server has then, for example, tokenised the
    dialogue again. Therefore a row contains only tokens that the model received or generated.
    """
    calls = (agent_talk(episode) or RecordedDialogue()).get("calls", ())
    token_calls = [
        call
        for call in calls
        if "prompt_token_ids" in call and "token_ids" in call and not call.get("discarded")
    ]
    key = {"task_id": episode.task_id, "epoch": episode.epoch}
    result = _result(episode)
    for sequence_number, sequence in enumerate(_sequences(token_calls), 1):
        row = {**key, **result, "part": sequence_number, **sequence}
        yield escape_values({name: row[name] for name in TOKEN_COLUMNS})


def _sequences(calls: Iterable[RecordedModelCall]) -> list[dict[str, Any]]:
    sequences: list[dict[str, Any]] = []
    for call in calls:
        prompt, ids = call["prompt_token_ids"], call["token_ids"]
        token_prefix = (
            [*sequences[-1]["prompt_ids"], *sequences[-1]["completion_ids"]] if sequences else []
        )
        if not sequences or prompt[: len(token_prefix)] != token_prefix:
            token_prefix = prompt
            empty_columns: dict[str, Any] = {"completion_ids": [], "logprobs": [], "env_mask": []}
            sequences.append({"turns": [], "prompt_ids": prompt, **empty_columns})
        sequence, shown_tokens = sequences[-1], prompt[len(token_prefix) :]
        sequence["turns"].append(call.get("turn", 0) + 1)
        sequence["completion_ids"] += [*shown_tokens, *ids]
        sequence["env_mask"] += [0] * len(shown_tokens) + [1] * len(ids)
        has_logprobs = sequence["logprobs"] is not None and "logprobs" in call
        sequence["logprobs"] = (
            [*sequence["logprobs"], *[0.0] * len(shown_tokens), *call["logprobs"]]
            if has_logprobs
            else None
        )
    return sequences


def escape_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return values in which lone surrogates in texts are escaped: other programs refuse these."""
    return {name: _escape_value(value) for name, value in values.items()}


def _escape_value(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return escape_values(value)
    return [_escape_value(item) for item in value] if isinstance(value, list) else value


def write_parquet(
    path: Path, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Write a table as a Parquet file, with DuckDB.

    Args:
        path: The path of the file.
        columns: Name of a column → SQL type.
        rows: The rows: name of a column → value of a JSON type.

    Raises:
        UsageError: DuckDB is not installed.
        RecordWriteError: The file cannot be written.
    """
    try:
        import duckdb
    except ImportError as error:
        raise UsageError(
            "Parquet is written by DuckDB, which is not installed: "
            "pip install 'intercode-gym[duckdb]', or choose --to csv"
        ) from error
    types = ", ".join(f"{name}: '{kind}'" for name, kind in columns.items())
    # The temporary file is not in the folder of `path`: DuckDB interprets a * or [ in a source's
    # path as a pattern.
    try:
        with (
            tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".jsonl") as lines,
            atomic_file(path) as temporary_path,
            duckdb.connect() as connection,
        ):
            lines.writelines(f"{json.dumps(row)}\n" for row in rows)
            lines.flush()
            source, target = (
                quote_identifier(lines.name, "'"),
                quote_identifier(str(temporary_path), "'"),
            )
            connection.execute(
                f"COPY (SELECT * FROM read_json({source}, columns = {{{types}}}, "
                "format = 'newline_delimited', maximum_object_size = 1073741824)) "
                f"TO {target} (FORMAT parquet)"
            )
    except (duckdb.Error, OSError) as error:
        raise RecordWriteError(f"cannot write {path}: {error}") from error
