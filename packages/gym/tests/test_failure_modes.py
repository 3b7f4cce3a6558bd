"""Failure modes of language models, counted from the records of episodes."""

from __future__ import annotations

from typing import Any

import pytest

from intercode.cli.run_output import as_text
from intercode.episode import Episode, Score, Turn
from intercode.evaluate.summary import by_failure_mode
from intercode.failure_modes import FAILURE_MODES
from intercode.records import Outcome


def turn(action: str, ok: bool = True, **info: Any) -> Turn:
    return Turn(action=action, observation="seen", ok=ok, info=info)


def ended(
    *turns: Turn,
    status: str = "submitted",
    env: str = "bash",
    finish: str = "stop",
    reward: float = 0.0,
    **metadata: Any,
) -> Episode:
    call = {"turn": 0, "sent": [0], "reply": 1, "finish": finish}
    said = [{"role": "user", "content": "Do it."}, {"role": "assistant", "content": "So."}]
    talk: dict[str, Any] = {"name": "test/model", "messages": said, "calls": [call]}
    talk |= {"input_tokens": 2, "output_tokens": 1}
    return Episode(
        "a",
        "Do it.",
        env,
        status=status,  # type: ignore[arg-type]
        turns=list(turns),
        score=Score(reward),
        metadata={"model": talk, **metadata},
    )


LOOK = turn("ls /data")
NO_CODE = turn("", ok=False, invalid=True, executed=False)


@pytest.mark.parametrize(
    ("episode", "modes"),
    [
        (ended(LOOK, turn("wc -l a")), []),
        (ended(LOOK, *[turn("wc -l a")] * 2), []),
        (ended(LOOK, *[turn("wc -l a")] * 3), ["repeats one action"]),
        (ended(LOOK, turn("a"), turn("b"), turn("a"), turn("b")), []),
        (
            ended(LOOK, *[turn("", ok=False, invalid=True, executed=False)] * 3),
            ["no code in a reply"],
        ),
        (ended(LOOK, status="truncated"), ["never submits"]),
        (ended(status="submitted"), ["submits without an answer", "never looks"]),
        (ended(turn("cat b", ok=False)), ["submits without an answer"]),
        (ended(turn("wc -l a")), ["never looks"]),
        (ended(turn("cd /data; ls")), []),
        (ended(turn("false")), ["never looks"]),
        (ended(turn("SELECT 1"), env="sql"), ["never looks"]),
        (ended(turn(".schema"), turn("SELECT 1"), env="sql"), []),
        (ended(turn("PRAGMA table_info(a)"), env="sql"), []),
        (ended(turn("x = 1"), env="python"), []),
        (ended(LOOK, finish="length"), ["replies cut off"]),
        (ended(LOOK, ended_by="context"), ["context overflow"]),
        (ended(LOOK, status="truncated", reward=1.0), []),
    ],
)
def test_modes(episode: Episode, modes: list[str]) -> None:
    assert [*Outcome.from_episode(episode).modes] == modes
    assert set(modes) <= FAILURE_MODES.keys()


def test_an_agent_without_a_model_has_none() -> None:
    assert Outcome.from_episode(ended(LOOK, status="truncated", model=None)).modes == ()


def test_they_are_counted_after_a_run_of_little_success() -> None:
    episodes = [ended(LOOK, turn("a"), status="truncated")] * 3 + [ended(LOOK, reward=1.0)]
    outcomes = [Outcome.from_episode(episode) for episode in episodes]
    assert by_failure_mode(outcomes) == {"never submits": 3}
    text = as_text(outcomes, tags=0)
    assert "What went wrong in the 3 episodes not solved: never submits 3." in text
    assert "Success by turns: 25.0 % within 1, 25.0 % in all." in text
    assert "What went wrong" not in as_text(outcomes[2:], tags=0)
