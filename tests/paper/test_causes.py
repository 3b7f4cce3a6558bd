"""The guess at a mismatch's cause."""

import pytest

from intercode.paper.causes import cause_of


@pytest.mark.parametrize(
    ("command", "recorded", "replayed", "cause"),
    [
        ("ping -c 1 x", "a", "b", "network"),
        ("ps aux", "a", "b", "processes"),  # allow ps: it is not run
        ("du -sh /w", "96K", "92K", "disk usage"),
        ("uname -r", "5.15", "6.1", "proc/sys"),
        ("env", "a", "b", "host name"),
        ("find /w -mtime -1", "a", "b", "date"),
        ("find . -name x", "Command timed out", "x", "time limit"),
        ("find /w", "a\nb\n", "b\na\n", "order of directory entries"),
        ("find /w", "/w/a\n/w/b\n/w", "/w/b\n/w/c\n/w/a\n", "order of directory entries"),
        ("ls -l /w", "-rw 1 root May 20 23:48 f", "-rw 1 root Nov 21 10:11 f", "date"),
        ("find /w -ls", "  123456  4 -rw-r--r-- 1 x", "  777777  4 -rw-r--r-- 1 x", "inode"),
        ("find / -name x", "p q", "r s", "image content"),
        ("frob", "frob: unrecognized option", "ok ok", "tool version"),
        ("rm -r a", "rm: No such file", "gone", "leak from an earlier task"),
        ("frob", "x", "y", "unknown"),
    ],
)
def test_causes(command, recorded, replayed, cause):
    assert cause_of(command, recorded, replayed, same_observation=False, gold="") == cause


def test_if_only_the_reward_differs_gold_is_the_cause():
    found = cause_of("ls", "a", "a", same_observation=True, gold="-rw May 20 23:44 x")
    assert found == "gold: date"
