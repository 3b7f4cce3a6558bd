"""Gold's outcome as data that others can compare with."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

import intercode
from intercode.errors import RewardError, TaskError
from intercode.task import Dataset, Task

from .conftest import MakeEnv

FILES = {"old": "old\n", "kept": "kept\n"}


def outcome(make_env: MakeEnv, gold: str, **fields: Any) -> Any:
    env = make_env(Dataset([Task("one", "?", (gold,), **{"files": FILES, **fields})], "d"))
    return env.outcome(env.dataset[0])


def rows(found: Any) -> dict[str, tuple[str, str]]:
    return {change.path: (change.kind, change.type) for change in found.changes}


def test_what_gold_does_to_the_files_that_an_agent_is_given(make_env: MakeEnv) -> None:
    gold = "rm old; echo new > kept; ln -s 'a b' link; mkdir d; echo x > d/f; chmod 0 d/f; echo hi"
    found = outcome(make_env, gold)
    assert rows(found) == {
        "/root/d": ("added", "dir"),
        "/root/d/f": ("added", "file"),
        "/root/kept": ("modified", "file"),
        "/root/link": ("added", "symlink"),
        "/root/old": ("deleted", "file"),
    }
    assert found.output == "hi\n"
    assert found.contents == {"/root/kept": b"new\n", "/root/link": b"a b", "/root/d/f": b"x\n"}
    assert found.sha256("/root/kept") == hashlib.sha256(b"new\n").hexdigest()
    told = {row["path"]: row for row in found.to_dict()["changes"]}
    assert told["/root/d/f"]["mode"] == 0
    assert told["/root/d/f"]["sha256"] == hashlib.sha256(b"x\n").hexdigest()
    assert told["/root/d"]["sha256"] == told["/root/old"]["sha256"] == ""
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()


def test_a_path_that_is_again_as_in_the_image_has_changed(make_env: MakeEnv) -> None:
    found = outcome(make_env, "cp /tmp/fstab /etc/passwd", files={}, setup=(
        "cp /etc/passwd /tmp/fstab; echo x:x:7:7::/: >> /etc/passwd"
    ))  # fmt: skip
    assert rows(found) == {"/etc/passwd": ("modified", "file")}
    assert found.changes[0].mode == 0o644
    assert b"root:" in found.contents["/etc/passwd"]
    assert b"x:x:7" not in found.contents["/etc/passwd"]


def test_a_mode_is_a_change_of_no_content(make_env: MakeEnv) -> None:
    (change,) = outcome(make_env, "chmod 600 kept").changes
    assert (change.kind, change.mode, change.content_changed) == ("modified", 0o600, False)


def test_gold_without_a_result_has_no_outcome(make_env: MakeEnv) -> None:
    with pytest.raises(RewardError, match="ran into the time limit: sleep"):
        outcome(make_env, "sleep 999", timeout=0.3)  # allow limit: it has no end
    env = make_env()
    with pytest.raises(TaskError, match="'remove' has no 'gold'"):
        env.outcome(env.dataset.by_id("remove"))


def test_databases_puzzles_and_repositories_have_outcomes() -> None:
    for name in ("sql", "ctf", "swe"):
        env = intercode.make(name)
        task = env.dataset[0]
        found = env.outcome(task)
        if name == "sql":
            assert "row" in found.output and not found.changes
        if name == "ctf":
            assert found.answer == task.gold[0]
        if name == "swe":
            assert all(change.path.startswith("/repo/") for change in found.changes)
            assert found.changes
        env.close()


def test_an_outcome_is_on_no_way_to_an_agent(make_env: MakeEnv) -> None:
    word = "a-word-of-gold"
    tasks = Dataset([Task("one", "?", (f"echo {word} | tee made",))], "d")
    env = make_env(tasks)
    env.outcome(tasks[0])
    observation, info = env.reset()
    told = [observation, info, *env.step("ls -la"), env.tools, env.render()]
    assert word in env.outcome(tasks[0]).output
    told += [*env.step("submit")[:4], env.episode.turns, env.episode.metadata]
    assert word not in repr(told)
