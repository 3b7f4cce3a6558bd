from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from intercode.episode import (
    Episode,
    FileChange,
    Score,
    Tokens,
    Turn,
    TurnChanges,
    decode,
    encode,
)
from intercode.errors import RecordError

any_text = st.binary(max_size=200).map(decode)
numbers = st.floats(allow_nan=False)
ids = st.lists(st.integers(0, 2**18), max_size=3).map(tuple)
tokens = st.builds(Tokens, ids=ids, prompt=ids)
changes = st.builds(
    TurnChanges,
    files=st.lists(
        st.builds(
            FileChange, path=any_text, kind=st.just("added"), type=st.just("file"), text=any_text
        ),
        max_size=2,
    ).map(tuple),
    cut=st.integers(0, 9),
)
infos = st.dictionaries(st.text(max_size=5), st.booleans() | st.integers() | any_text, max_size=3)
turns = st.builds(
    Turn,
    action=any_text,
    observation=any_text,
    reward=numbers,
    ok=st.booleans(),
    exit_code=st.none() | st.integers(0, 255),
    seconds=numbers,
    info=infos,
    tokens=st.none() | tokens,
    changes=st.none() | changes,
)
scores = st.builds(
    Score, value=numbers, parts=st.dictionaries(st.text(max_size=5), numbers), detail=infos
)
episodes = st.builds(
    Episode,
    task_id=any_text,
    query=any_text,
    env=any_text,
    seed=st.none() | st.integers(),
    turns=st.lists(turns, max_size=3),
    status=st.sampled_from(["submitted", "skipped", "truncated", "error", "running"]),
    answer=st.none() | any_text,
    score=st.none() | scores,
    error=st.none() | any_text,
    started=numbers,
    seconds=numbers,
    metadata=infos,
)


@given(episodes)
def test_an_episode_survives_json_exactly(episode: Episode) -> None:
    line = episode.to_json()
    assert line.isascii()
    assert "\n" not in line
    assert Episode.from_json(line) == episode
    assert Episode.from_json(line.encode()).to_json() == line


@given(st.binary())
def test_every_byte_of_an_observation_survives(output: bytes) -> None:
    episode = Episode("t", "q", "bash", turns=[Turn("cat x", decode(output))])
    assert encode(Episode.from_json(episode.to_json()).turns[0].observation) == output


def test_a_line_says_nothing_of_fields_that_most_records_do_not_have() -> None:
    line = Episode("t", "q", "bash", turns=[Turn("ls", "")]).to_json()
    assert not any(f'"{name}"' in line for name in ("fork", "tokens", "changes"))


def test_tokens_are_as_many_as_their_log_probabilities() -> None:
    kept = Turn("ls", "", tokens=Tokens((5, 7), (-0.5, float("-inf")), (False, True)))
    episode = Episode("t", "q", "bash", turns=[kept])
    assert Episode.from_json(episode.to_json()) == episode
    with pytest.raises(ValueError, match="mask: 1 for 2 tokens"):
        Tokens((5, 7), mask=(True,))
    with pytest.raises(RecordError, match="logprobs: 2 for 1 tokens"):
        Episode.from_json(episode.to_json().replace("[5,7]", "[5]").replace("[false,true]", "[]"))


def test_reward_and_success() -> None:
    episode = Episode("t", "q", "bash")
    assert (episode.reward, episode.success) == (None, False)
    episode.score = Score(0.99)
    assert (episode.reward, episode.success) == (0.99, False)
    episode.score = Score(1.0)
    assert episode.success


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object but list"),
        ("{}", "cannot be read"),
        ('{"task_id": "t", "query": "q", "env": "bash", "extra": 1}', "unknown fields: extra"),
        ('{"task_id": "t", "query": "q", "env": "bash", "turns": [{}]}', "cannot be read"),
    ],
)
def test_what_is_no_episode_is_refused(line: str, says: str) -> None:
    with pytest.raises(RecordError, match=says):
        Episode.from_json(line)


def test_json_is_plain() -> None:
    data = json.loads(Episode("t", "q", "bash", score=Score(0.5, {"files": 0.5})).to_json())
    assert data["score"] == {"value": 0.5, "parts": {"files": 0.5}, "detail": {}}
