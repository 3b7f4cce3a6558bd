"""Every bundled task of a server is played as it is in process, step by step."""

from __future__ import annotations

from typing import Any

import intercode
from integrations.recorded import played
from serve.served import told

Pair = tuple[Any, Any]


def test_all_bundled_tasks(both: Pair, kind: str) -> None:
    here, there = both
    assert [one.task_id for one in there.dataset] == [one.task_id for one in here.dataset]
    episodes = played(kind)
    assert len(episodes) == {"bash": 57, "sql": 73}[kind]
    for one in episodes:
        assert there.reset(task_id=one.task_id) == here.reset(task_id=one.task_id)
        for action in one.actions:
            assert there.step(action) == here.step(action)
        last = there.step("submit")
        assert last == here.step("submit") and last[1] == one.reward
        assert told(there) == told(here)
        plain = tuple(intercode.plain(turn.observation) for turn in there.episode.turns)
        assert plain == one.observations
