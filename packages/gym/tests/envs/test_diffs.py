"""`keep_diffs`: what each turn changed on disk, in the record and for people."""

from __future__ import annotations

from pathlib import Path

import pytest

import intercode
from intercode.cli.main import main
from intercode.envs.file_changes import FILES
from intercode.episode import Episode, TurnChanges, encode
from intercode.errors import UsageError
from intercode_sandbox.base import Limits


def changes(*actions: str, **options: object) -> list[TurnChanges | None]:
    env = intercode.make("bash", keep_diffs=True, **options).unwrapped
    try:
        env.reset()
        for action in actions:
            env.step(action)
        assert Episode.from_json(env.episode.to_json()) == env.episode
        return [turn.changes for turn in env.episode.turns]
    finally:
        env.close()


def listed(found: TurnChanges | None) -> list[tuple[str, str, str | None]]:
    assert found is not None
    return [(file.path, file.kind, file.text) for file in found.files]


def test_each_turn_has_what_it_did_and_nothing_else() -> None:
    first, second, third, fourth = changes(
        "echo one > /tmp/a; mkdir /tmp/d; printf 'b\\0' > /tmp/b; ls",
        "echo two >> /tmp/a; rm /tmp/b /etc/hosts",
        "ls; chmod 600 /tmp/a",
        "echo new > /etc/hosts; rm /tmp/a",
    )
    assert listed(first) == [
        *[("/tmp/a", "added", "one\n"), ("/tmp/b", "added", None), ("/tmp/d", "added", None)]
    ]
    assert listed(second) == [
        ("/etc/hosts", "deleted", None),
        ("/tmp/a", "modified", "one\ntwo\n"),
        ("/tmp/b", "deleted", None),
    ]
    assert third is not None and [(f.path, f.mode) for f in third.files] == [("/tmp/a", 0o600)]
    assert listed(fourth) == [("/etc/hosts", "added", "new\n"), ("/tmp/a", "deleted", None)]


def test_a_file_that_is_the_images_again_was_changed_by_that_turn() -> None:
    _, back = changes("cp -p /etc/hosts /tmp/h; rm /etc/hosts", "mv /tmp/h /etc/hosts")
    assert [one[:2] for one in listed(back)] == [("/etc/hosts", "added"), ("/tmp/h", "deleted")]


def test_count_and_bytes_are_bounded_and_the_cut_is_marked() -> None:
    many, large, full, umlauts = changes(
        f"for n in $(seq 1 {FILES + 5}); do : > /tmp/$n; done",
        "seq 1 2000 > /tmp/seq; seq 1 100000 > /tmp/large; echo small > /tmp/small",
        "for n in $(seq 1 20); do seq 1 1500 > /tmp/full$n; done",
        "for n in $(seq 1 20); do printf 'ä%.0s' $(seq 1 2000) > /tmp/umlauts$n; done",
    )
    assert many is not None and (len(many.files), many.cut) == (FILES, 5)
    assert large is not None
    assert [(len(f.text or ""), f.cut) for f in large.files] == [
        (0, True),
        (4096, True),
        (6, False),
    ]
    assert full is not None and sum(len(file.text or "") for file in full.files) == 65536
    assert all(file.cut for file in full.files)
    assert umlauts is not None
    assert sum(len(encode(file.text or "")) for file in umlauts.files) == 65536


def test_an_action_that_ends_its_sandbox_has_none() -> None:
    found = changes(
        "echo; :> /tmp/a", "tail /dev/zero & tail /dev/zero", limits=Limits(memory=64 << 20)
    )
    assert listed(found[0]) == [("/tmp/a", "added", "")]


def test_off_by_default_and_unknown_where_there_are_no_files(tmp_path: Path) -> None:
    env = intercode.make("bash").unwrapped
    env.reset()
    env.step("echo > /tmp/a")
    assert env.episode.turns[0].changes is None
    env.close()
    with pytest.raises(UsageError, match="there is no option 'keep_diffs'"):
        intercode.make("sql", keep_diffs=True)
    assert main(["run", "sql", "--keep-diffs", "--out", str(tmp_path / "run")]) == 2


def test_a_run_keeps_them_and_show_lists_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "actions.json"
    script.write_text('{"archive-01": ["seq 1 2000 > /tmp/a; mkdir /tmp/d", "rm /tmp/a"]}')
    run = ["run", "bash", "--agent", "replay", "--recording", str(script), "--task", "archive-01"]
    assert main([*run, "--keep-diffs", "--quiet", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["show", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    assert "    + /tmp/a  8.7 KiB\n    + /tmp/d/\n" in told
    assert "    - /tmp/a\n" in told
