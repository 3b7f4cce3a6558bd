"""A linter of names in docstrings and comments: ``python tests/references.py``.

A name in single backticks, such as `records.RunRecordWriter`, is a reference: each of its parts
must be a name of the code. Else a rename leaves names in texts that nobody can look up.
"""

from __future__ import annotations

import ast
import builtins
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = "packages/*/src/**/*.py"
REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)")
CLASS_NAME = re.compile(r"_?[A-Z][a-zA-Z0-9]*[a-z][a-zA-Z0-9]*")
LONGEST_KEY = 60
"""Characters of a string constant that may hold names, such as keys of a table."""


def names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module defines, imports or uses, without those in its docstrings."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.keyword(arg=str(name)) | ast.MatchAs(name=str(name)):
                yield name
            case ast.alias(name=name, asname=other):
                yield from (other or name).split(".")
            case ast.Constant(value=str(text)) if len(text) < LONGEST_KEY and "`" not in text:
                yield from re.findall(r"\w+", text)


def class_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that may be classes or type aliases: defined, assigned or imported."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=other):
                yield (other or name).rpartition(".")[2]


def references(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) for each reference in the comments and strings of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for number, line in enumerate(token.string.split("\n")):
                for match in REFERENCE.finditer(line):
                    yield token.start[0] + number, match[1]


def unknown_references(texts: dict[Path, str]) -> Iterator[str]:
    """Yield a finding for each reference with a part that is not a name of any of the modules."""
    known_names = {part for path in texts for part in path.with_suffix("").parts}
    classes = {*dir(builtins)}
    for text in texts.values():
        tree = ast.parse(text)
        known_names.update(names(tree))
        classes.update(class_names(tree))
    for path, text in texts.items():
        for line, reference in references(text):
            if any(
                part not in (classes if CLASS_NAME.fullmatch(part) else known_names)
                for part in reference.split(".")
            ):
                yield f"{path}:{line}: `{reference}` is not a name of the code"


def main() -> int:
    """Print the findings; return 1 if there is one."""
    texts = {path.relative_to(ROOT): path.read_text("utf-8") for path in ROOT.glob(SOURCES)}
    findings = [*unknown_references(texts)]
    print("\n".join(findings), end="\n" if findings else "")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
