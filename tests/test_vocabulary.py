"""The glossary's words are in use, and the words that they replace are not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs/gym/glossary.md"
ROW = re.compile(r"\| \*\*(.+?)\*\* \| (.+?) \| (.*?) ?\|")
EXCEPTIONS = {
    "hardness": (
        "docs/gym/datasets.md",  # the field of Spider's data
        "packages/gym/src/intercode/datasets/spider.py",  # the field of its data
        "packages/gym/src/intercode/datasets/bird.py",  # the same field, for one report
        "packages/paper/src",  # frozen: tables of 2023 with their own headings and fields
    ),
    "failed episode": ("docs/development/replay-mismatches.md",),  # a record of 2023
}
"""Replaced word → the files and folders that may use it, each with its reason."""
CODE = re.compile(r"```.*?```|``.*?``|`[^`\n]*`", re.DOTALL)


def rows() -> list[tuple[str, str, list[str]]]:
    """List the glossary's words, their definitions and the words that they replace."""
    matches = [ROW.fullmatch(line) for line in GLOSSARY.read_text().splitlines()]
    return [
        (match[1], match[2], [word for word in match[3].split(", ") if word])
        for match in matches
        if match
    ]


def pages() -> list[Path]:
    """List the pages for users, without the glossary."""
    return [page for page in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"] if page != GLOSSARY]


@cache
def prose(page: Path) -> str:
    """Return a page with its code blanked out."""
    return CODE.sub(lambda match: re.sub(r"[^\n]", "_", match[0]), page.read_text())


@cache
def user_texts(path: Path) -> list[tuple[int, str]]:
    """List line and text of a module's strings of several words, without docstrings."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in docstrings and re.search(r"\w \w", node.value)
    ]


def uses(word: str) -> list[str]:
    """List the uses of a replaced word, ``path:line``, in pages, texts and names of modules."""
    allowed = EXCEPTIONS.get(word, ())
    pattern = re.compile(rf"\b{re.escape(word)}s?\b", re.IGNORECASE)
    found: list[str] = []
    for page in pages():
        text = prose(page)
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{page.relative_to(ROOT)}:{line}")
    for path in sorted(ROOT.glob("packages/*/src/**/*.py")):
        name = path.relative_to(ROOT)
        if pattern.fullmatch(path.stem.replace("_", " ")):
            found.append(f"{name}: its name")
        if "puzzles" not in path.parts:  # its strings are tasks
            found += [f"{name}:{line}" for line, text in user_texts(path) if pattern.search(text)]
    return [place for place in found if not place.startswith(allowed or ("\0",))]


def test_size() -> None:
    """The glossary stays small: a reader knows the field's other words."""
    words = [word for word, _, _ in rows()]
    assert 55 <= len(words) <= 70 and len(set(words)) == len(words)


def test_definitions() -> None:
    """Each word is defined in one sentence."""
    for word, definition, _ in rows():
        assert definition.endswith(".") and ". " not in definition, word


def test_use() -> None:
    """Each word is used by a page."""
    text = "\n".join(page.read_text() for page in pages()).lower()
    unused = [
        word for word, _, _ in rows() if not re.search(rf"\b{re.escape(word)}(s|d|ed|es)?\b", text)
    ]
    assert not unused, f"no page uses these words of {GLOSSARY.name}: {', '.join(unused)}"


def test_replaced_words() -> None:
    """No page, message or module uses a word that the glossary replaces."""
    found = [
        f"{place}: {word!r}: write {preferred!r}"
        for preferred, _, words in rows()
        for word in words
        for place in uses(word)
    ]
    assert not found, "\n".join(found)


def test_gold() -> None:
    """Each page introduces gold by its description before it uses the word alone."""
    late: list[str] = []
    for page in pages():
        text = re.sub(r"^#+ .*$|\]\([^)]*\)", "", prose(page), flags=re.MULTILINE)
        match = re.search(r"\bgolds?\b", text, re.IGNORECASE)
        if match and not re.search(r"eference\s+solution", text[: match.end()]):
            late.append(str(page.relative_to(ROOT)))
    assert not late, f"write 'reference solution (gold)' first in {', '.join(late)}"


def test_report_headings() -> None:
    """Headings of reports use the glossary's words."""
    text = (ROOT / "packages/gym/src/intercode/report/tables.py").read_text()
    assert '"By difficulty"' in text and '"By image or database"' in text
