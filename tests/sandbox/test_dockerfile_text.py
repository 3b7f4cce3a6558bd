"""The text of Dockerfiles and of their ignore files: words, patterns, the parser's own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from intercode.errors import ImageError
from intercode_sandbox.images.dockerfile.copying import Ignore, glob
from intercode_sandbox.images.dockerfile.parse import expand, read

pytestmark = pytest.mark.ordinary
VARIABLES = {"A": "one", "EMPTY": "", "_b2": "t w o"}

WORDS = {
    "$A${A}x": "oneonex",
    "${A}$": "one$",
    "$NONE|${NONE}": "|",
    "'$A'\"$A\"": "$Aone",
    r"\$A \\ \'": r"$A \ '",
    r'"\$A \\ \x \""': '$A \\ \\x "',
    "${NONE:-x}${EMPTY:-y}${A:-z}": "xyone",
    "${NONE-x}${EMPTY-y}${A-z}": "xone",
    "${NONE:+x}${EMPTY:+y}${A:+z}": "z",
    "${EMPTY+y}${NONE+x}": "y",
    "${NONE:-${A}-'}'}": "one-}",
    "${A:?must}$_b2": "onet w o",
    "a b": "a b",
    "$1$@-$-": "-$-",
}


@pytest.mark.parametrize("text", WORDS)
def test_words(text: str) -> None:
    assert expand(text, VARIABLES) == WORDS[text]


def test_words_with_another_escape() -> None:
    assert expand(r"`$A \$A", VARIABLES, "`") == r"$A \one"


@pytest.mark.parametrize(
    "text", ["'a", '"a', "${", "${}", "${A", "${A:-x", "${A#x}", "${A:x}", "${A/x/y}", "${NONE:?}"]
)
def test_words_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        expand(text, VARIABLES)


_pieces = st.sampled_from(
    ["$A", "${A}", "${EMPTY:-x}", "${NONE-$A}", "${A:+ y}", "'$A'", '"$_b2"', "\\$", "a", " ", "z"]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(_pieces, max_size=6).map("".join))
@example('"${NONE:-a b}"')
def test_words_are_as_a_shell_reads_them(text: str) -> None:
    done = subprocess.run(
        # In a document, but for quotes, nothing is split: as in an assignment.
        ["sh", "-c", f'unset NONE; x={text.replace(" ", "_")}; printf %s "$x"'],
        env=VARIABLES,
        capture_output=True,
        text=True,
        check=True,
    )
    assert expand(text.replace(" ", "_"), VARIABLES) == done.stdout


IGNORED = {
    "a": (["a", "a/b"], ["ab", "b/a"]),
    "/a/": (["a", "a/b"], ["b/a"]),
    "*.md": (["x.md"], ["d/x.md", "xmd"]),
    "**/*.md": (["x.md", "d/x.md", "d/e/x.md"], ["d/md"]),
    "a/**": (["a/b", "a/b/c"], ["b"]),
    "a/**/z": (["a/z", "a/b/c/z", "a/z/y"], ["a/b"]),
    "?[a-c]": (["xa", "xc/d"], ["xd", "a"]),
    "[^a]x": (["bx"], ["ax", "x"]),
    r"a\*": (["a*"], ["ab"]),
    "./a/../b": (["b"], ["a"]),
    "# a\n#b\n\n  c  ": (["c"], ["a", "b", "#b"]),
    "*\n!keep": (["a", "x/keep"], ["keep", "keep/x"]),
    "d\n!d/in\nd/in/out": (["d", "d/x", "d/in/out"], ["d/in", "d/in/x"]),
    "!a\na": (["a"], []),
    ".": ([], ["a"]),
}


@pytest.mark.parametrize("text", IGNORED)
def test_ignored(text: str) -> None:
    ignored, kept = IGNORED[text]
    rules = Ignore(text)
    assert [path for path in (*ignored, *kept) if rules(path)] == ignored


_names = st.text("ab*?", min_size=1, max_size=3)
_patterns = st.lists(_names | st.just("**"), min_size=1, max_size=3).map("/".join)
_paths = st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=3).map("/".join)
_lines = st.lists(st.builds(str.__add__, st.sampled_from(["", "", "!"]), _patterns), max_size=3)


@settings(max_examples=300, deadline=None)
@given(_lines, _paths)
@example(["a/**"], "a")
def test_ignored_as_by_docker(lines: list[str], path: str) -> None:
    """By the pattern matcher of Docker's own library, for patterns on which it has no quirks."""
    from docker.utils.build import PatternMatcher

    lines = [line for line in lines if "**" not in re.sub(r"(^|/)!?\*\*/", "/x/", line)]
    theirs = PatternMatcher(lines)
    parts = path.split("/")
    prefixes = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    matched = False
    for pattern in theirs.patterns[:-1]:  # the last is the Dockerfile itself
        if any(pattern.match(prefix) for prefix in prefixes):
            matched = not pattern.exclusion
    assert Ignore("\n".join(lines))(path) == matched


def test_pattern_that_is_none() -> None:
    with pytest.raises(ValueError, match="bracket"):
        glob("a[b")


TEXTS = {
    "FROM a\nRUN b \\\n  # c\n  d\nRUN e": [("FROM", 1), ("RUN", 2), ("RUN", 5)],
    "\n# c\nfrom a\r\nRUN b\r\n": [("FROM", 3), ("RUN", 4)],
    "FROM a\nRUN <<A <<B\nx\nA\ny\nB\nUSER c": [("FROM", 1), ("RUN", 2), ("USER", 7)],
    "\ufeffFROM a": [("FROM", 1)],
}


@pytest.mark.parametrize("text", TEXTS)
def test_lines_are_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "Dockerfile").write_text(text, encoding="utf-8", newline="")
    found = read(tmp_path / "Dockerfile").instructions
    assert [(one.name, one.line) for one in found] == TEXTS[text]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ":1: file with no instructions"),
        (b"FROM a\n\nENV B\n", ":3: ENV must have two arguments"),
        (b"\xff", "is no UTF-8 text"),
        (None, "cannot read the Dockerfile .*: No such file"),
    ],
)
def test_no_dockerfile(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "Dockerfile").write_bytes(content)
    with pytest.raises(ImageError, match=message):
        read(tmp_path / "Dockerfile")
