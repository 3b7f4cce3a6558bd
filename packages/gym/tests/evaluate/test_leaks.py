"""Gold that an agent can read before it has done anything."""

from __future__ import annotations

import base64
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import intercode
from intercode.episode import Turn
from intercode.errors import RewardError
from intercode.evaluate import gold_leaks as module
from intercode.evaluate.gold_leaks import find_gold_form, leaks, telling_lines
from intercode.evaluate.validate import validate
from intercode.task import Dataset, Task
from waiting import PATIENCE

from .fakes import Factory, FakeEnv, dataset

FLAG = "intercode{one_two_3}"
SLEEPS = "grep -qsa ^intercode /proc/[0-9]*/cmdline"
"""Amid its exec a process has no command line."""


def shown(gold: str, text: bytes, *, flags: bool = False, short: bool = False) -> str:
    return find_gold_form([gold], text, flags=flags, accepts_short_lines=short)


blanks = st.text(" \n\t", max_size=3)


@given(
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.from_regex(r"\w+\{[ -~]{3,}\}", fullmatch=True),
)
def test_a_flag_is_found_however_it_is_written(before: bytes, after: bytes, flag: str) -> None:
    data = before + flag.encode() + after
    for text in (
        data,
        data.hex().encode(),
        data.hex(" ").upper().encode(),
        base64.b64encode(data),
        base64.encodebytes(data),
        base64.urlsafe_b64encode(data),
        flag[::-1].encode() + after,
    ):
        assert shown(flag, text, flags=True)


@given(st.binary(max_size=200))
def test_nothing_is_found_where_nothing_is(data: bytes) -> None:
    assert not shown("a flag that is no part of anything", data, flags=True)


@pytest.mark.parametrize(
    ("gold", "text", "expected"),
    [
        ("find /etc -name passwd", "Run  FIND /etc\n-name passwd .", True),
        ("find /etc -name passwd", "find /etc -name group", False),
        ("ls", "Which files? ls", False),
        (
            "def f(x):\n    y = x * 2\n    return y + 10",
            "\ty = x * 2\ndef f(x):\n\treturn y + 10",
            True,
        ),
        ("def f(x):\n    y = x * 2\n    return y + 10", "def f(x):\n    return y + 10", False),
    ],
)
def test_commands_and_code(gold: str, text: str, expected: bool) -> None:
    assert bool(shown(gold, text.encode(), short=True)) is expected


def test_short_lines_count_in_a_query_only() -> None:
    gold = "def total(numbers):\n    s = 0\n    for number in numbers:\n        s += number"
    wrong = gold.replace("s += number", "s = number").encode()
    assert not shown(gold, wrong, short=True), "what is to be mended is shown, not how"
    assert shown(gold, wrong, short=False)


def test_of_a_patch_what_it_adds() -> None:
    patch = "--- a/x.py\n+++ b/x.py\n@@ -1 +1,2 @@\n context = 'c'\n-old\n+added = 'one more'\n+x\n"
    assert telling_lines(patch, accepts_short_lines=True) == [b"added = 'one more'", b"x"]
    assert telling_lines(patch, accepts_short_lines=False) == [b"added = 'one more'"]


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({}, []),
        ({"query": f"Find {FLAG}."}, ["query"]),
        ({"files": {"notes/a.txt": f"it is {FLAG}\n"}}, ["/ctf/notes/a.txt"]),
        ({"files": {"a": FLAG, "b": FLAG}, "metadata": {"flag_in": ["a"]}}, ["/ctf/b"]),
        ({"files": {"d/a.txt": FLAG}, "metadata": {"flag_in": "*.txt"}}, []),
        ({"setup": f"printf {FLAG} | base64 > a; printf {FLAG} | rev > b"}, ["/ctf/a", "/ctf/b"]),
        ({"setup": f"printf {FLAG} > no; chmod 000 no"}, []),
        ({"metadata": {"service": f"exec -a {FLAG} sleep 60", "health": SLEEPS}}, ["processes"]),
        ({"metadata": {"service": "sleep 60", "service_input": FLAG}}, []),
    ],
)  # fmt: skip
def test_places(fields: dict[str, object], places: list[str]) -> None:
    task = Task.from_dict({"task_id": "one", "query": "?", "gold": FLAG, **fields})
    with intercode.make("ctf", data=Dataset([task])) as env:
        env.reset()
        found = leaks(task, env.unwrapped.workspace, "host", flags=True)
    assert [leak.place for leak in found] == places
    for leak in found:
        assert leak.task_id == "one" and leak.text.startswith("gold is readable ")


def test_what_is_laid_over_an_image(tmp_path: Path) -> None:
    (tmp_path / "hint").write_text("first: find / -name needle\n")
    with tarfile.open(tmp_path / "more.tar", "w") as archive:
        archive.add(tmp_path / "hint", "srv/hint")
        archive.add(tmp_path / "hint", "srv/gone")
    image = f"host+{tmp_path}/more.tar"
    task = Task("one", "?", gold=("find / -name needle",), image=image, setup="rm /srv/gone")
    with intercode.make("bash", data=Dataset([task])) as env:
        env.reset()
        [leak] = leaks(task, env.unwrapped.workspace, image, flags=False)
    assert leak.text == "gold is readable as it is in /srv/hint"


@pytest.mark.parametrize(
    ("env", "path", "told"),
    [
        ("ctf", "solution/way.md", True),
        ("ctf", "README.txt", True),
        ("ctf", "task-3_WriteUp.txt", True),
        ("ctf", "my-answers", True),
        ("ctf", "resolution.txt", False),
        ("ctf", "dissolutions/readme-not", False),
        ("bash", "README.md", False),
        ("bash", "solutions/1.sh", True),
    ],
)
def test_files_that_are_named_like_write_ups(env: str, path: str, told: bool) -> None:
    task = Task("one", "?", gold=(FLAG,), files={path: "First look at the picture.\n"})
    with intercode.make(env, data=Dataset([task])) as made:
        made.reset()
        found = leaks(task, made.unwrapped.workspace, "host", flags=env == "ctf")
    assert [leak.text for leak in found] == (
        [f"{found[0].place} is named like a write-up"] if told else []
    )
    if told:
        assert found[0].place.endswith(path)


@pytest.mark.parametrize("allowed", [5, {"a": 1}, "", ".", ["/", None]])
def test_places_that_are_none_allow_nothing(allowed: object) -> None:
    task = Task("one", f"It is {FLAG}.", gold=(FLAG,), metadata={"flag_in": allowed})
    assert [leak.place for leak in leaks(task, None, "", flags=True)] == ["query"]


def test_what_is_not_searched_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 1 << 20)
    task = Task("one", "?", gold=(FLAG,), setup="head -c 2M /dev/zero > a")
    with intercode.make("ctf", data=Dataset([task])) as env:
        env.reset()
        [said] = leaks(task, env.unwrapped.workspace, "host", flags=True)
    assert said.text == "more than 1 MiB are readable: only a part was searched"


def test_validating_tells_of_leaks_and_of_what_gold_uses() -> None:
    write = "head -c 60M /dev/zero > big && rm big"
    tasks = Dataset(
        [
            Task("told", "Run touch /root/found, please.", gold=("touch /root/found",)),
            Task("big", "Write much.", gold=(write,), verification="test -e /root/x"),
            Task("fine", "Make a file.", gold=("sleep 0.3; touch /root/it",), timeout=PATIENCE),
        ]
    )
    found = validate(tasks, lambda: intercode.make("bash", data=tasks), timeout=10.0, workers=2)
    assert [(leak.task_id, leak.place) for leak in found.leaks] == [("told", "query")]
    assert set(found.reasons()) == {"big"}, "a leak is a warning"
    told, big, fine = found.usage
    assert told.task_id == "told" and told.suggested_timeout >= 1.0
    assert 0.3 <= fine.seconds < PATIENCE and fine.suggested_timeout >= 2.0
    if big.memory is None:
        pytest.skip("needs cgroup v1 or v2, writable")
    assert 60 << 20 <= big.memory < 200 << 20
    assert told.memory is not None and told.memory < 60 << 20


def test_gold_must_do_the_same_elsewhere() -> None:
    tasks = dataset(4)

    class Elsewhere(FakeEnv):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            result = super().step(action)
            if action == "echo 2":
                self.episode.turns[-1] = Turn(action, "another\n")
            return result

    def fail(task_id: str, action: str) -> Exception | None:
        return RewardError("not here") if (task_id, action) == ("t1", "submit") else None

    found = validate(
        tasks, Factory(tasks), timeout=10.0, backends={"afar": lambda: Elsewhere(tasks, fail=fail)}
    )
    assert found.complete and not found.valid
    assert [(p.task_id, p.kind) for p in found.problems] == [("t1", "error"), ("t2", "varies")]
    assert found.problems[0].problem == "on afar gold cannot be scored: not here"
    assert found.problems[1].problem.startswith("gold's observation in turn 1 differs on afar: '")
    same = validate(tasks, Factory(tasks), timeout=10.0, backends={"here": Factory(tasks)})
    assert same.valid and same.statistics[0].episodes == 4
