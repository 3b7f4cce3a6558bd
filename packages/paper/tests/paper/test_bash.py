"""An action's text as a process, and process 1 as a container shows it."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, strategies as st

from intercode_paper.bash_interpreter import as_in_container, plan, resolve, split

plain = st.text(st.characters(exclude_characters="\"'\\\0", exclude_categories=("Cs",)))


@given(plain)
def test_text_without_quotes_arrives_whole(text):
    assert split(text) == (b"/bin/bash", b"-c", text.strip().encode())


@given(st.text())
def test_any_text_is_split_as_a_shell_would_or_is_malformed(text):
    words = split(text)
    try:
        expected = shlex.split(f'/bin/bash -c "{text.strip()}"')
        [word.encode() for word in expected]
    except ValueError:
        expected = None
    if expected is not None and any("\0" in word for word in expected):
        expected = None
    assert (None if words is None else [word.decode() for word in words]) == expected


@pytest.mark.parametrize(
    ("text", "after_c"),
    [
        ('find / -name "*.py"', [b"find / -name *.py"]),  # the quotes are gone
        ('echo "a b" c', [b"echo a", b"b c"]),  # and here the rest becomes $0
        (r"grep \"x\" f", [b'grep "x" f']),
        (r"find . -exec ls {} \;", [rb"find . -exec ls {} \;"]),
        (r"echo \\\\", [rb"echo \\"]),
        ("  ls  \n", [b"ls"]),
        ("", [b""]),
        ("a\nb", [b"a\nb"]),
        ("awk '{print $1}'", [b"awk '{print $1}'"]),
    ],
)
def test_quirks(text, after_c):
    assert split(text) == (b"/bin/bash", b"-c", *after_c)


@pytest.mark.parametrize("text", ['echo "', "it's \"", "trailing \\", "nul \0", "half \ud800"])
def test_malformed(text):
    assert split(text) is None


@pytest.mark.parametrize(
    ("current", "path", "result"),
    [
        ("/", "testbed", "/testbed"),
        ("/testbed/dir1", "..", "/testbed"),
        ("/testbed", "../../..", "/"),
        ("/testbed", "/workspace/./dir1/", "/workspace/dir1"),
        ("/", "dir1 && ls -l", "/dir1 && ls -l"),
        ("/a && ls", "..", "/"),
        ("/", "$(ls -d /w/*/ | tail -n 1)", "/$(ls -d /w/*/ | tail -n 1)"),
        ("/x", "", "/x"),
    ],
)
def test_resolve(current, path, result):
    assert resolve(current, path) == result


segments = st.lists(st.sampled_from(["a", "b c", "..", ".", "", "d.e"]), max_size=6)


@given(segments, segments)
def test_resolved_paths_are_absolute_and_stay_as_they_are(one, two):
    here = resolve("/", "/".join(one))
    there = resolve(here, "/".join(two))
    assert there.startswith("/")
    assert not {"", ".", ".."} & set(there[1:].split("/")) or there == "/"
    assert resolve("/", there) == there == resolve("/anywhere", there)


def test_a_cd_is_run_from_the_root_and_names_the_next_directory():
    call = plan("cd dir1 && ls", "/testbed")
    assert call.argv == (b"/bin/bash", b"-c", b"cd /testbed/dir1 && ls")
    assert (call.cwd, call.enters) == ("/", "/testbed/dir1 && ls")


def test_other_actions_stay_where_they_are():
    call = plan("ls; cd /etc", "/testbed")
    assert (call.cwd, call.enters) == ("/testbed", None)


def test_whatever_begins_with_cd_is_a_cd():
    assert plan("cdrom; cd /etc", "/testbed").enters == "/etc"
    assert plan("cd", "/testbed").enters == "/testbed"


PS = [b"/bin/bash", b"-c", b"ps aux"]


def test_the_tree_is_one_idle_bash():
    argv = [b"bash", b"-c", b"pstree -a"]
    assert as_in_container(b"init\n  `-pstree -a\n", argv) == b"bash\n"
    assert as_in_container(b"init(1)---pstree(13)\n", argv) == b"bash(1)\n"
    assert as_in_container(b"init,1\n  `-pstree,9 -ap\n", argv) == b"bash,1\n"


def test_the_list_begins_with_an_idle_bash():
    line = b"root           1  0.0  0.0  20004 13564 ?        S    23:54   0:00 init\n"
    idle = b"root           1  0.0  0.0  20004 13564 pts/0    Ss+  23:54   0:00 /bin/bash\n"
    other = b"root           9  0.0  0.0   6764  2992 ?        Rs   23:54   0:00 ps aux\n"
    assert as_in_container(line + other, PS) == idle + other


def test_formats_without_a_terminal():
    assert (
        as_in_container(b"root 1 0 init\nroot 7 1 ps x\n", PS)
        == b"root 1 0 /bin/bash\nroot 7 1 ps x\n"
    )


def test_other_output_is_left_alone():
    for output in (b"init\n", b"root 1 init\n", b"systemd-init\n", b""):
        assert as_in_container(output, [b"bash", b"-c", b"cat notes"]) == output
    assert as_in_container(b"root 12 0 init\n", PS) == b"root 12 0 init\n"


def test_a_walk_through_proc_meets_no_closed_door():
    output = (
        b"find: '/proc/tty/driver': Permission denied\n"
        b"find: './proc/1/task/1/fdinfo': Permission denied\n"
        b"/etc/passwd\n"
        b"find: '/proc/12/fd': Permission denied\n"
        b"cat: secret: Permission denied\n"
    )
    assert as_in_container(output, []) == (
        b"/etc/passwd\nfind: '/proc/12/fd': Permission denied\ncat: secret: Permission denied\n"
    )
