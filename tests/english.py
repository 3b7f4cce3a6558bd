"""Check the English of texts and docstrings: ``python tests/english.py [PATH…]``.

docs/development/style.md says what it is for. Texts (``.md``) and source files are searched for the
phrases of `PHRASES`; of source files, docstrings of public names are checked, too. Code in
backticks and quoted words are left alone; so are quoted phrases in texts, and the texts of tasks.
"""

from __future__ import annotations

import ast
import re
import sys
from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path

CHECKED = (
    "packages",
    "docs",
    "examples",
    "skills",
    "README.md",
    "AGENTS.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
)
"""Files and folders that are checked by default."""
TASKS = "puzzles"
"""A folder of source files whose strings are tasks: only docstrings are checked there."""
PHRASES = {
    r"anew": "again, or a verb with re-",
    r"(go|goes|going|gone|went) on (with|from|where)": "continue, resume",
    r"mend(s|ed|ing)?": "fix",
    r"besides": "also, in addition",
    r"nobody": "no one; name the subject",
    r"who(so)?ever": "name the subject",
    r"(?<!there )(?<!neither )(is|are|was) no (?!longer|more|less|other|such)\w+": "is not a",
    r"the like": "name them",
    r"to be sure": "leave it out",
    r"by and by": "gradually",
    r"of its own accord": "by itself",
    r"worked out": "computed",
}
"""Phrase, a regular expression → what to write instead."""
FIRST = re.compile(
    r"(what|who|whose|whom|whatever|which|where|when|why|nothing|nobody|"
    r"the same|those|that|this|these|it|its|they|them|their|he|she|so|such|here|there|"
    r"is|are|was|were|has|have|had|does|said|told|given|made|also)\b",
    re.IGNORECASE,
)
"""How a docstring must not begin: a free relative, a pronoun, or a verb without its subject.
"How" and "Whether" may begin one: of a quantity, and of a truth value."""
PRONOUN = re.compile(r"(\w+ )?(it|them|that|this)\.?(\s|$)", re.IGNORECASE)
"""A docstring of one or two words that names no subject: ``End it.``"""
VERB = re.compile(
    r"(adds|answers|asks|builds|calls|checks|closes|compares|computes|copies|counts|"
    r"creates|drops|ends|executes|fetches|finds|gives|keeps|lists|loads|looks|makes|maps|"
    r"opens|parses|prints|puts|raises|reads|removes|replays|returns|runs|says|sends|shows|"
    r"starts|stops|takes|tells|translates|turns|waits|writes|yields)\b",
    re.IGNORECASE,
)
"""A function's docstring begins with the imperative: "Return", not "Returns"."""
QUOTED = re.compile(r"```.*?```|``.*?``|`[^`\n]*`|'[\w/.-]+'|\"[\w/.-]+\"", re.DOTALL)
QUOTED_PHRASE = re.compile(r"\"[^\"\n]{0,100}\"")


def phrases(text: str, is_source: bool) -> Iterator[tuple[int, str]]:
    """Yield line and finding of each refused phrase; a phrase may span lines."""
    for left_alone in (QUOTED,) if is_source else (QUOTED, QUOTED_PHRASE):
        text = left_alone.sub(lambda found: re.sub(r"[^\n]", "_", found[0]), text)
    words = [found for found in re.finditer(r"\S+", text) if found[0] != "#"]
    joined = " ".join(found[0] for found in words)
    starts = list(accumulate((len(found[0]) + 1 for found in words), initial=0))
    for phrase, instead in PHRASES.items():
        for found in re.finditer(rf"(?<![\w-])(?:{phrase})(?![\w-])", joined, re.IGNORECASE):
            word = words[bisect(starts, found.start()) - 1]
            line = text.count("\n", 0, word.start()) + 1
            yield line, f"{found[0]!r}: write {instead!r}"


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text and whether it is a function's, of the docstrings of public names."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = getattr(node, "name", "")
            text = ast.get_docstring(node)
            if text is not None and not name.startswith("_"):
                decorated = {ast.unparse(one) for one in getattr(node, "decorator_list", [])}
                is_function = not isinstance(node, ast.Module | ast.ClassDef)
                is_verb = is_function and not decorated & {"property", "cached_property"}
                yield body[0].lineno, text, is_verb
        for one, after in pairwise(body):
            if isinstance(one, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                value = after.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield after.lineno, value.value, False


def check(path: Path) -> list[tuple[int, str]]:
    """List line and finding of all that is refused in a file."""
    text = path.read_text()
    if path.suffix != ".py":
        return sorted(phrases(text, False))
    found = [] if TASKS in path.parts else list(phrases(text, True))
    for line, docstring, is_function in docstrings(ast.parse(text)):
        first = " ".join(docstring.split("\n\n")[0].split())
        if begins := FIRST.match(first):
            found.append((line, f"docstring begins with {begins[0]!r}: name its subject"))
        elif is_function and (verb := VERB.match(first)):
            found.append((line, f"docstring begins with {verb[0]!r}: use the imperative"))
        elif PRONOUN.match(first) and len(first.partition(".")[0].split()) < 3:
            found.append((line, f"docstring {first!r} names no subject"))
    return sorted(found)


def main(arguments: list[str]) -> int:
    """Print what is refused in the given files and folders; return the exit code."""
    root = Path(__file__).parent.parent
    places = [Path(given) for given in arguments] or [root / place for place in CHECKED]
    paths = [
        path
        for place in places
        for path in (sorted(place.rglob("*")) if place.is_dir() else [place])
        if path.suffix in (".py", ".md") and not {"repository", "tests"}.intersection(path.parts)
    ]
    found = [(path, *finding) for path in paths for finding in check(path)]
    for path, line, text in found:
        print(f"{path}:{line}: {text}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
