"""How an action's text became a process."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intercode.paper.bash import plan, resolve, split

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
