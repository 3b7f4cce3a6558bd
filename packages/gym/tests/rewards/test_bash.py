"""The comparison by itself, on changes made up here; real ones are in ``tests/envs``."""

from __future__ import annotations

import dataclasses
import time

import pytest
from hypothesis import given, strategies as st

from intercode.rewards.bash import MAX_INEXACT_VALUE, compare
from intercode.rewards.gold import GoldResult, differing_paths
from intercode_sandbox.base import Change


def added(path: str, digest: str = "d", mode: int = 0o644, **more: int) -> Change:
    return Change(path, "added", "file", mode, size=1, digest=digest, **more)


def by_path(*changes: Change) -> dict[str, Change]:
    return {change.path: change for change in changes}


def gold(
    output: str = "", *, before: tuple[Change, ...] = (), after: tuple[Change, ...] = ()
) -> GoldResult:
    start, end = by_path(*before), by_path(*before) | by_path(*after)
    return GoldResult(output, start, end, differing_paths(start, end))


OUT = added("/root/out")


@pytest.mark.parametrize(
    ("wanted", "changes", "output", "value"),
    [
        pytest.param(gold("3"), (), "3", 1.0, id="output"),
        pytest.param(gold("3"), (), "4", 0.0, id="another number"),
        pytest.param(gold("3"), (), None, 0.0, id="nothing done"),
        pytest.param(gold("3"), (), "", 0.0, id="nothing printed"),
        pytest.param(gold("3 files"), (), "4 files", 0.5, id="a word in common"),
        pytest.param(gold("a b"), (), "b a", MAX_INEXACT_VALUE, id="another order"),
        pytest.param(gold("3"), (OUT,), "3", 0.5, id="output, but a file changed"),
        pytest.param(gold(), (), "", 1.0, id="gold prints nothing and changes nothing"),
        pytest.param(gold(), (), None, 0.0, id="the same, nothing done"),
        pytest.param(gold(), (), "noise", 0.0, id="the same, something printed"),
        pytest.param(gold(after=(OUT,)), (OUT,), "noise", 1.0, id="a file task compares no output"),
        pytest.param(gold(after=(OUT,)), (), None, 0.0, id="file missing"),
        pytest.param(gold(after=(OUT,)), (added("/root/out", "e"),), "", 0.0, id="other content"),
        pytest.param(
            gold(after=(OUT,)), (added("/root/out", mode=0o600),), "", 0.0, id="other mode"
        ),
        pytest.param(gold(after=(OUT,)), (added("/root/out", uid=5),), "", 0.0, id="other owner"),
        pytest.param(
            gold(after=(OUT,)), (OUT, added("/root/x")), "", 2 / 3, id="one file too many"
        ),
        pytest.param(gold("ok", after=(OUT,)), (OUT,), "ok", 1.0, id="both"),
        pytest.param(gold("ok", after=(OUT,)), (OUT,), "", 0.5, id="both, files only"),
        pytest.param(gold("ok", after=(OUT,)), (), "ok", 0.5, id="both, output only"),
        pytest.param(gold("ok", after=(OUT,)), (), None, 0.0, id="both, nothing done"),
    ],
)
def test_value(
    wanted: GoldResult, changes: tuple[Change, ...], output: str | None, value: float
) -> None:
    assert compare(wanted, by_path(*changes), output).value == pytest.approx(value)


def test_what_the_setup_did_cancels_out() -> None:
    setup = added("/root/in"), added("/root/keep")
    wanted = gold(before=setup, after=(OUT,))
    assert compare(wanted, by_path(*setup, OUT), "").value == 1.0
    # To leave out or alter what the setup made is a change like any other.
    assert compare(wanted, by_path(setup[0], OUT), "").value == pytest.approx(2 / 3)
    assert compare(wanted, by_path(setup[0], added("/root/keep", "e"), OUT), "").value < 1.0
    assert compare(wanted, by_path(*setup), "").value == 0.0


def test_gold_deletes_what_the_setup_made() -> None:
    setup = by_path(added("/root/a"), added("/root/b"))
    wanted = GoldResult("", setup, {"/root/b": setup["/root/b"]}, frozenset({"/root/a"}))
    assert compare(wanted, {"/root/b": setup["/root/b"]}, "").value == 1.0
    assert compare(wanted, setup, "").value == 0.0
    assert compare(wanted, {}, "").value == pytest.approx(2 / 3)


def test_deletions_are_compared() -> None:
    deleted = Change("/etc/motd", "deleted", "file")
    wanted = gold(after=(deleted,))
    assert compare(wanted, by_path(deleted), "").value == 1.0
    emptied = Change("/etc/motd", "modified", "file", 0o644, digest="e")
    assert compare(wanted, by_path(emptied), "").value == 0.0


@pytest.mark.parametrize(
    ("path", "scratch"),
    [
        ("/tmp/x", True),
        ("/tmp/x/y", True),
        ("/var/tmp/x", True),
        ("/dev/shm/x", True),
        ("/root/.bash_history", True),
        ("/home/me/.python_history", True),
        ("/tmp", False),
        ("/tmpx/y", False),
        ("/root/tmp/x", False),
        ("/root/.bashrc", False),
        ("/srv/.bash_history", False),
    ],
)
def test_scratch(path: str, scratch: bool) -> None:
    assert (compare(gold("3"), by_path(added(path)), "3").value == 1.0) is scratch


def test_where_the_task_works_there_is_no_scratch() -> None:
    made = Change("/tmp/work", "added", "dir", 0o755)
    by_gold = gold(after=(made, added("/tmp/work/a")))
    exact = by_path(made, added("/tmp/work/a"))
    assert compare(by_gold, exact | by_path(added("/tmp/elsewhere")), "").value == 1.0
    assert compare(by_gold, exact | by_path(added("/tmp/work/b")), "").value < 1.0
    assert compare(by_gold, {}, "").value == 0.0
    by_setup = gold("3", before=(made,))
    assert compare(by_setup, by_path(made), "3").value == 1.0
    assert compare(by_setup, by_path(made, added("/tmp/work/b")), "3").value < 1.0
    assert compare(by_setup, {}, "3").value < 1.0


def test_the_detail_says_what_was_wrong() -> None:
    wanted = gold("ok", before=(added("/s"),), after=(added("/a"), added("/b")))
    detail = compare(wanted, by_path(added("/s"), added("/a", "e"), added("/c")), "no").detail
    assert detail == {
        "missing": ["/b"],
        "different": ["/a"],
        "extra": ["/c"],
        "output": "no",
        "gold_output": "ok",
    }


paths = st.sampled_from(["/a", "/b", "/c/d", "/tmp/e", "/tmp/e/f", "/root/.lesshst"])
states = st.dictionaries(paths, st.sampled_from(["x", "y"])).map(
    lambda found: by_path(*(added(path, digest) for path, digest in found.items()))
)
outputs = st.sampled_from(["", "one", "one two"])


@given(states, states, outputs, states, st.none() | outputs)
def test_one_is_for_exact_results_only(
    before: dict[str, Change],
    after: dict[str, Change],
    output: str,
    changes: dict[str, Change],
    said: str | None,
) -> None:
    wanted = GoldResult(output, before, after, differing_paths(before, after))
    score = compare(wanted, changes, said, names=("/tmp", "/root/.lesshst"))
    assert 0.0 <= score.value <= 1.0
    assert all(0.0 <= part <= 1.0 for part in score.parts.values())
    assert compare(wanted, after, output).value == 1.0
    if score.value == 1.0:
        assert {path: changes.get(path) for path in wanted.changed_paths} == {
            path: after.get(path) for path in wanted.changed_paths
        }
        assert said == output or (not output and wanted.changed_paths)
        assert all(
            path.startswith(("/tmp/", "/root/.")) for path in differing_paths(changes, after)
        )
    else:
        assert score.value <= MAX_INEXACT_VALUE


@given(states, states, outputs)
def test_doing_nothing_is_worth_nothing(
    before: dict[str, Change], after: dict[str, Change], output: str
) -> None:
    wanted = GoldResult(output, before, after, differing_paths(before, after))
    assert compare(wanted, before, None).value == 0.0


def test_comparing_a_hundred_files_takes_no_time_to_speak_of() -> None:
    many = tuple(added(f"/root/{number}") for number in range(100))
    wanted = gold("ok", after=many)
    changes = by_path(*(dataclasses.replace(change) for change in many))
    start = time.thread_time()  # whatever other threads of this process do
    assert compare(wanted, changes, "ok").value == 1.0
    assert time.thread_time() - start < 0.5  # it is 0.2 ms; this catches only a change of order
