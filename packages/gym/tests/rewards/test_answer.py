"""Answers by their type: which outputs say the same."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from intercode.episode import Episode, Turn
from intercode.errors import TaskError
from intercode.rewards.answer_types import TYPES, AnswerType, last_output, normalise, similarity
from intercode.task import Task

QUERY = "The files below /a, or f.txt and g.txt."


def answer(type_: str, **more: object) -> AnswerType:
    found = AnswerType.parse(Task("t", QUERY, metadata={"answer": {"type": type_, **more}}))
    assert found is not None
    return found


COUNTS = {"columns": [{"name": "path", "type": "path"}, {"name": "count", "type": "number"}]}
HASHES = {"columns": [{"name": "hash", "type": "text"}]}
MODES = {"columns": [{"name": "mode", "type": "text"}, {"name": "path", "type": "path"}]}
ONE, TWO = "a" * 32, "b" * 32
LONG = "-rw-r--r-- 1 root root 12 Nov 20 21:55 "

SAME = {
    "number": [
        ("8", "8 /testbed"), ("8", "There are 8 files."), ("8", "files: 8"), ("8\n", "  8"),
        ("8.0K\t/a", "8.0K"), ("1234", "1,234"), ("5.33333", "5.33"), ("5.33", "5.333333333"),
        ("3 a\n5 b\n8 total", "3  a\n5  b\n8  total"), ("0", "dir1/x2.txt: 0")
    ],
    "yes-no": [
        ("yes", "Yes, it is."), ("no", "false"), ("yes", "It is true."),
        ("The file is there", "the file  is there"),
    ],
    "paths": [
        ("/a/b\n/a/c", "/a/c\n/a/b"), ("/a/b\n/a/c", "./b\n./c"), ("/a/b/x\n/a/c", "b/x\nc"),
        ("./b\n./c", "/a/b\n/a/c"), ("/a/b\n/a/c", "b c"), ("/a/b", "4.0K\t/a/b"),
        ("/a/b", f"{LONG}/a/b"), ("/a/b", f"{LONG}/a/b -> c"), ("/a/b", f"total 4\n{LONG}b"),
        ("/a/b\n/a/c", "  3 /a/b\n  4 /a/c\n  7 total"), ("/a/b", f"{ONE}  /a/b"),
        ("/a/b/", "/a//b"),
        ("/a/b", "/a/b: 3"), ("/a/x/b\n/a/y/c", "/a/x:\nb\n\n/a/y:\nc"), ("/a b", "'/a b'"),
        ("/a\n/a/b", ".\n./b"), ("/a/b", "find: '/proc/1': Permission denied\n/a/b"),
        ("/a/b", "131 4 -rw-r--r-- 1 root root 12 Nov 20 21:55 /a/b"),
    ],
    "lines": [
        ("x y\nz", "z\n x  y"), ("x\ny", "1:x\n2:y"), ("x\ny", "f.txt:x\ng.txt:y"),
        ("x\ny", "f.txt:3:x\nf.txt:4:y"), ("x\ny", "     1\tx\n     2\ty"), ("x\ny", "x y"),
        ("x", "==> f <==\nx"), ("x:y", "x:y"),
        ("  a  \\n   b", "0000000   a  \\n   b\n0000003"),
        (f"{ONE}  -", ONE), (ONE, f"md5sum: /a: Is a directory\n{ONE}  /dev/fd/63"),
    ],
    "text": [("a  b\n", "a  b"), ("a", "\na \n\n")],
    "state": [],
}  # fmt: skip
OTHER = {
    "number": [
        ("8", "9"), ("8", ""), ("8", "8\n9"), ("8", "a1\nb2"), ("8", "/dir8/x"), ("8", "8 of 9"),
        ("3 a\n5 b\n8 total", "8"), ("3 a\n5 b\n8 total", "3"), ("5.33", "5"), ("8", "-8"),
        ("1", "1 10.0.0.1"), ("1", f"1 {ONE}"), ("1", "1 2023-01-31"), ("0", "up @0"), ("1", "1%"),
    ],
    "yes-no": [
        ("yes", "no"), ("yes", ""), ("yes", "1"), ("no", "0"), ("no", "1"), ("no", "a\nb\nc\nno"),
        ("yes", "8"), ("no", "It does not exist"), ("yes", "The file exists."), ("no", "not yes"),
    ],
    "paths": [
        ("/a/b\n/a/c", "/a/b"), ("/a/b", "/a/b\n/a/c"), ("/a/b", "/x/b"), ("/a/b\n/c/d", "b\nd"),
        ("/a/b", ""), ("4.0K\t/a", "4.0K"), ("/a/b\n/a/b", "/a/b"), ("/a/x/b", "/a/y/b"),
        ("3 /a/b", "3"), ("/a/b", "."), (".", "/a/b"),
    ],
    "lines": [
        ("x\ny", "x"), ("x y", "xy"), ("x\nx", "x"), ("3:x", "4:y"), ("x", "x\ny"), ("x", "y:x y"),
        ("f.txt:x\ng.txt:y", "x\ny"), ("1:x\n2:y", "x\ny"),
    ],
    "text": [("a  b", "a b"), (" a", "a")],
    "state": [("a", "b")],
}  # fmt: skip


@pytest.mark.parametrize(("type_", "gold", "given"), [(t, *p) for t in SAME for p in SAME[t]])
def test_the_same_answer(type_: str, gold: str, given: str) -> None:
    assert answer(type_).is_equivalent(gold, given)


@pytest.mark.parametrize(("type_", "gold", "given"), [(t, *p) for t in OTHER for p in OTHER[t]])
def test_another(type_: str, gold: str, given: str) -> None:
    assert not answer(type_).is_equivalent(gold, given)


SIZES = {"columns": [{"name": "size", "type": "number"}, {"name": "path", "type": "path"}]}
TABLES = [
    (SIZES, f"{LONG}/a/b", "12 /a/b", True),
    (SIZES, f"{LONG}/a/b", "1 /a/b", False),
    (COUNTS, "3 /a/b\n4 /a/c", "/a/c: 4\n/a/b: 3", True),
    (COUNTS, "3 /a/b\n4 /a/c", "b 3\nc 4", True),
    (COUNTS, "3 /a/b\n4 /a/c", "/a/b:3\n/a/c:4", True),
    (COUNTS, "3 /a/b\n4 /a/c", "3 9 40 /a/b\n4 8 30 /a/c", False),
    (COUNTS, "3 /a/b\n4 /a/c", "4 /a/b\n3 /a/c", False),
    (COUNTS, "3 /a/b\n4 /a/c", "3 /a/b", False),
    (COUNTS, "3 /a/b\n4 /a/c", "/a/b\n/a/c", False),
    (COUNTS, "3 /a/b\n4 /a/c", "3\n4", False),
    (COUNTS, "3 /a/b", "3 /x/b", False),
    (COUNTS, "3 /a", "3 .", True),
    (COUNTS, "7 /a/b", f"/a/b {' '.join(map(str, range(20)))}", False),
    ({**COUNTS, "ordered": True}, "3 /a\n4 /b", "4 /b\n3 /a", False),
    ({**COUNTS, "total": "optional"}, "3 /a\n4 /b\n7 total", "3 /a\n4 /b", True),
    (COUNTS, "3 /a\n4 /b\n7 total", "3 /a\n4 /b", False),
    ({**COUNTS, "total": "optional"}, "9 /a\n3 /a/b\n4 /a/c", "3 /a/b\n4 /a/c", True),
    ({**COUNTS, "total": "optional"}, "3 /a/b\n4 /a/c", "3 ./b\n4 ./c\n9 .", True),
    ({**COUNTS, "total": "optional"}, "9 /a\n3 /a/b\n4 /a/c", "8 /a\n3 /a/b\n4 /a/c", False),
    ({**COUNTS, "total": "optional"}, "9 /a\n3 /a/b\n4 /x", "3 /a/b\n4 /x", False),
    (COUNTS, "9 /a\n3 /a/b\n4 /a/c", "3 /a/b\n4 /a/c", False),
    ({**COUNTS, "total": "needed"}, "3 /a\n4 /b\n7 total", "3 /a\n4 /b", False),
    ({**COUNTS, "total": "needed"}, "3 /a\n4 /b\n7 total", "4 /b\n3 /a\n  7 total", True),
    (HASHES, f"{ONE}\n{TWO}", f"{TWO}  /a\n{ONE}  /b", False),
    (HASHES, f"{ONE}  /a\n{TWO}  /b", f"{ONE}\n{TWO}", True),
    (HASHES, f"{ONE}  /a\n{TWO}  /b", "/a\n/b", False),
    (MODES, "-rw-r--r-- /a/b", f"{LONG}/a/b", True),
    (MODES, "-rw-r--r-- /a/b", f"{LONG}b", True),
    (MODES, "-rwxr-xr-x /a/b", f"{LONG}/a/b", False),
    (MODES, "-rw-r--r-- /a/b", "/a/b", False),
]


@pytest.mark.parametrize(("spec", "gold", "given", "same"), TABLES)
def test_tables(spec: dict[str, object], gold: str, given: str, same: bool) -> None:
    assert answer("table", **spec).is_equivalent(gold, given) is same


def test_what_counts() -> None:
    assert answer("paths", names=True).is_equivalent("/a/b\n/c/d", "d\nb")
    tree = "/a\n|-- b c\n|   `-- d\n\n1 directory, 1 file"
    assert answer("paths", names=True).is_equivalent("/a\n/a/b c\n/a/b c/d", tree)
    assert not answer("paths", names=True).is_equivalent("/a\n/a/b c", tree)
    assert not answer("paths", ordered=True).is_equivalent("/a\n/b", "/b\n/a")
    assert answer("lines", repeated=False).is_equivalent("x\nx\ny", "y\nx")
    assert answer("lines", repeated=False, ordered=True).is_equivalent("x\nx\ny", "x\ny")
    assert not answer("lines", repeated=False, ordered=True).is_equivalent("x\nx\ny", "y\nx")
    assert answer("state", both=True).is_printed and not answer("state").is_printed
    assert AnswerType.parse(Task("t", "q")) is None


@pytest.mark.parametrize(
    "given",
    ["a word", 3, {}, {"type": "number", "colour": 1}, {"type": "table"},
     {"type": "path", **HASHES}, {"type": "table", "columns": [{"name": "x"}]},
     {"type": "table", "columns": [{"name": "x", "type": "y"}]},
     {"type": "state", "archives": {"/x": "rar"}}, {"type": "table", "total": "some", **HASHES}],
)  # fmt: skip
def test_what_is_no_type(given: object) -> None:
    with pytest.raises(TaskError, match=r"task 't': 'metadata\.answer'"):
        AnswerType.parse(Task("t", "q", metadata={"answer": given}))


@given(st.sampled_from(TYPES), st.text(max_size=60), st.text(max_size=60))
def test_any_outputs(type_: str, one: str, other: str) -> None:
    spec = answer(type_, **(COUNTS if type_ == "table" else {}))
    assert spec.is_equivalent(one, one)
    assert spec.is_equivalent(one, other) in (True, False)


@pytest.mark.parametrize("type_", TYPES)
def test_what_is_long_takes_no_longer(type_: str) -> None:
    spec = answer(type_, **(COUNTS if type_ == "table" else {}))
    for part in ("a", "1 ", "/a:", "/a ", " ", "1,", "-rw", ".", "'", "\n1", "\na 1", "1:"):
        text = part * (150_000 // len(part))
        line = part * (3_900 // len(part))
        for one in (text, line):
            assert spec.is_equivalent(one, one + "b") in (True, False)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("type_", ["number", "yes-no", "paths", "lines", "table"])
@pytest.mark.parametrize(
    "hostile",
    [
        "\n".join(["a/" * 45 + ".", *["."] * 24_000]),
        "\n".join(f"total {number}\na {number}" for number in range(2500)),
        "\n".join([" ".join(f"w{number} {number}" for number in range(95))] * 60),
    ],
)
def test_the_longest_outputs_are_soon_read(type_: str, hostile: str) -> None:
    more = {**COUNTS, "total": "optional"} if type_ == "table" else {}
    for gold in ("/a/b 5", ".\n/a/b\n/a/c", f"{hostile}\n/z"):
        assert not answer(type_, **more).is_equivalent(gold, hostile)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a\r\nb\r\n", "a\nb"),
        ("a  \nb\t\n", "a\nb"),
        ("a\n\n\n", "a"),
        ("\n\na\n\nb", "\n\na\n\nb"),
        ("  a", "  a"),
        ("a  b", "a  b"),
        (" \n\t\n", ""),
        ("A", "A"),
        ("a\u00a0\n", "a\u00a0"),
    ],
)
def test_normalise(text: str, wanted: str) -> None:
    assert normalise(text) == wanted


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(st.text(), st.text())
def test_similarity_is_symmetric_and_within_bounds(one: str, other: str) -> None:
    assert 0.0 <= similarity(one, other) == similarity(other, one) <= 1.0


def test_similarity() -> None:
    assert similarity("", "") == 1.0
    assert similarity("", "a b") == 0.0
    assert similarity("5 files found", "7 files found") == pytest.approx(2 / 3)
    assert similarity("a a a", "a") == pytest.approx(0.5)


def test_last_output_is_the_last_executed_action_s_without_notes() -> None:
    episode = Episode("t", "q", "bash")
    assert last_output(episode) is None
    refused = Turn("\0", "[not executed: it holds a NUL]", ok=False, info={"executed": False})
    episode.turns = [refused]
    assert last_output(episode) is None
    episode.turns = [Turn("ls", "a\n"), refused]
    assert last_output(episode) == "a\n"
    episode.turns.append(Turn("exit", "b\n[restarted]", info={"output": "b\n"}))
    assert last_output(episode) == "b\n"
