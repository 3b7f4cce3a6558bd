"""The text of Dockerfiles and of their ignore files: words, patterns, the parser's own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from intercode_sandbox.errors import ImageError
from intercode_sandbox.images.dockerfile.copy_files import DockerIgnore, glob
from intercode_sandbox.images.dockerfile.instructions import DockerfileInstruction, instructions
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
    rules = DockerIgnore(text)
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
    assert DockerIgnore("\n".join(lines))(path) == matched


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
        (b"FROM a\n\nRUN <<E\nx\n", ":3: unterminated heredoc"),
        (b'FROM a\nRUN ["a", 1]', ":2: when using JSON array syntax"),
        (b"FROM a\nENV a=b c", """:2: Syntax error - can't find = in "c"."""),
        (b"# escape=x\nFROM a", ":1: invalid ESCAPE 'x'"),
        (b"# escape=`\n# escape=`\nFROM a", ":2: only one escape parser directive"),
        (b"# syntax=x/y\nFROM a", ":1: the syntax 'x/y' is not Docker's own"),
        (b"FROM a\nRUN " + b"x" * 65536, ":2: a line is longer than 65535 bytes"),
        (b"\xff", "is not UTF-8 text"),
        (None, "cannot read the Dockerfile .*: No such file"),
    ],
)
def test_no_dockerfile(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "Dockerfile").write_bytes(content)
    with pytest.raises(ImageError, match=message):
        read(tmp_path / "Dockerfile")


_NAMES = [
    "FROM",
    "run",
    "RUN",
    "COPY",
    "ADD",
    "ENV",
    "LABEL",
    "ARG",
    "CMD",
    "USER",
    "EXPOSE",
    "VOLUME",
]
_WORDS = [
    *(
        "a",
        "b",
        " ",
        "  ",
        "\t",
        "=",
        "a=b",
        '"',
        "'",
        "\\",
        "\\\n",
        "\\ \n",
        "`",
        "`\n",
        "#",
        "# c\n",
    ),
    *(
        "\n",
        "\n\n",
        "\r\n",
        "--x",
        "--x=y ",
        "--",
        "[",
        '"a"',
        ",",
        "]",
        '["a", "b"]',
        '["a", 1]',
        "$A",
    ),
    *(
        "<<E",
        "<<-E ",
        '<<"E"',
        "3<<E",
        "E\n",
        "\nE\n",
        "<<E\nx\nE\n",
        "<<-E\n\tx\n\tE\n",
        "<<'E F'\ny\nE F\n",
    ),
]
_instructions = st.builds(
    "{} {}{}".format,
    st.sampled_from(_NAMES),
    st.lists(st.sampled_from(_WORDS), max_size=7).map("".join),
    st.sampled_from(["\n", "\n", "", "\\\n"]),
)


@settings(max_examples=1000, deadline=None)
@given(st.booleans(), st.lists(_instructions, min_size=1, max_size=3).map("".join))
@example(False, 'FROM a AS b\nRUN echo hi \\\n  # c\n\n  && ls\nCMD [ "a" , "b\\u00e9" ] x\n')
@example(
    False,
    'RUN --x="a b" --y=a\\ b -- c <<\'E F\' 3<<-G\n1\nE F\n\tG\nENV é="\\" b"  c=\'d e\' f=g\\ h',
)
@example(True, "RUN a `\n b\nADD <<E\\\nx\nE\nENV a b`c\n")
def test_instructions_are_as_buildkit_reads_them(is_other_escape: bool, text: str) -> None:
    dockerfile = pytest.importorskip("dockerfile")
    escape = "`" if is_other_escape else "\\"
    text = f"# escape={escape}\n{text}"
    try:
        theirs = dockerfile.parse_string(text)
    except dockerfile.GoParseError:
        theirs = []
    try:
        ours = instructions(text, escape, "d")
    except ImageError:
        ours = []
    if any(each.cmd is None for each in theirs):  # an escape alone, which is no instruction
        return
    assert [_facts(each) for each in ours] == [_expected(each) for each in theirs]


def _facts(instruction: DockerfileInstruction) -> tuple[object, ...]:
    flags = [f"{name}={value}" for name, value in instruction.flags]
    values = instruction.values if instruction.name in map(str.upper, _NAMES) else ()
    facts = (instruction.line, instruction.name, flags, values)
    return (*facts, instruction.is_json, instruction.text, [*instruction.heredocs])


def _expected(command: Any) -> tuple[object, ...]:
    name = command.cmd.upper()
    flags = [flag.removeprefix("--") for flag in command.flags]
    flags = [flag if "=" in flag else f"{flag}=" for flag in flags]
    values = command.value if name in map(str.upper, _NAMES) else ()
    heredocs = [(each.name, each.content) for each in command.heredocs]
    facts = (command.start_line, name, flags, values)
    return (*facts, command.json, command.original.strip(), heredocs)
