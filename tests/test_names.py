"""The linter of names: what it refuses, and what it lets pass."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("lemminflect", reason="of the packages for `make lint`")

from names import check, main, names, refuse

REFUSED = {
    "found = search()": "found",
    "found_2 = search()": "found",
    "fetched = search()": "fetched",
    "for one in tasks: pass": "one",
    "with open(p) as opened: pass": "opened",
    "try: ...\nexcept OSError as why: ...": "why",
    "import os as elsewhere": "elsewhere",
    "sizes = [len(each) for each in tasks]": "each",
    "def score(given): ...": "given",
    "def read(): x = search()": "x",
    "def _said(): ...": "said",
    "def text_of(task): ...": "of",
    "class Taken: ...": "taken",
    "class Task:\n def load(self):\n  self._known = {}": "known",
    "by_task = {}": "by",
    "files_kept = []": "kept",
    "big = 3": "big",
    "here: bool = True": "here",
}
FINE = [
    "setting, building, listing = parse()",
    "closed = not sockets",
    "def run(shown: bool | None = None, quiet=False): ...",
    "is_known = True",
    "sizes = [x + 1 for x in row]",
    "for i, row in enumerate(rows): pass",
    "def add(x: float) -> float: ...",
    'T = TypeVar("T")',
    'CLOSED = "closed"',
    "def close_all(): ...",
    "def from_file(): ...",
    "def closed() -> bool: ...",
    "def __eq__(self, other): ...",
    "retained_entries = []",
    "on_close = per_task_limit = None",
    "import numpy as np",
]


@pytest.mark.parametrize("source", REFUSED)
def test_a_name_that_is_no_noun_is_found(source: str) -> None:
    findings = [finding for name in names(source) if (finding := refuse(name))]
    assert [finding.word for finding in findings] == [REFUSED[source]]


@pytest.mark.parametrize("source", FINE)
def test_plain_names_pass(source: str) -> None:
    assert [str(finding) for name in names(source) if (finding := refuse(name))] == []


def test_a_finding_names_the_place_the_word_the_rule_and_a_better_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/some.py").write_text("path = 1\nfound = search()\n")
    assert check(tmp_path)[0] == 2
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == (
        f"{tmp_path}/deep/some.py:2: found: 'found' is a participle: a value is a noun "
        "(better: match, entry, row, path)\n"
    )
