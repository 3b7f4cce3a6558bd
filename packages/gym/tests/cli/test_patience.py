"""What is told of work, and what is not."""

from __future__ import annotations

import threading

from intercode.cli.terminal import DelayedMessages
from waiting import PATIENCE


def test_what_is_soon_done_is_not_told() -> None:
    told: list[str] = []
    patience = DelayedMessages(told.append, seconds=3600)
    for line in ("building a", "built a"):
        patience(line)
    patience.discard()
    assert told == []


def test_what_takes_long_is_told_from_its_beginning() -> None:
    told: list[str] = []
    heard = threading.Event()

    def say(line: str) -> None:
        told.append(line)
        heard.set()

    patience = DelayedMessages(
        say, seconds=0.01
    )  # allow limit: the work is not done before it is told of
    patience("building a")
    assert heard.wait(PATIENCE)
    patience("built a")
    assert told == ["building a", "built a"]
    patience.discard()


def test_what_took_long_is_told_whenever_the_timer_comes() -> None:
    told: list[str] = []
    patience = DelayedMessages(told.append, seconds=0)
    patience("building a")
    assert told == ["building a"], "by the clock, in this thread"
    patience.discard()
