"""No rule and no dataset changes without a thought for its version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from intercode.datasets.catalog import VERSIONS

from .__main__ import (
    DATASETS,
    FILES,
    PACKAGE,
    RECORDED,
    collect,
    files,
    is_code,
    normalised,
    sources,
    versions,
)

RENEW = "python -m tests.rule_versions"
PASSIVE = {"__init__.py", "base.py", "custom.py"}
"""Modules of rewards that decide nothing: the contract, and a user's own."""


@pytest.fixture(scope="module")
def now() -> dict[str, dict[str, Any]]:
    return collect()


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads(RECORDED.read_text("utf-8"))


@pytest.mark.parametrize("rule", sorted(versions()))
def test_a_rule_changes_with_its_version(rule: str, now: Any, recorded: Any) -> None:
    assert now["rules"][rule] == recorded["rules"].get(rule), (
        f"the code of rule {rule!r} is not as recorded. If any score can differ, raise its VERSION "
        f"and say in CHANGELOG.md which; then, or if no score can differ: {RENEW}"
    )


@pytest.mark.parametrize("name", sorted(VERSIONS))
def test_a_dataset_changes_with_its_version(name: str, now: Any, recorded: Any) -> None:
    may_stay = "; then, or if no task can differ" if is_code(name) else ", then"
    assert now["datasets"][name] == recorded["datasets"].get(name), (
        f"dataset {name!r} is not as recorded. Raise its version in datasets/catalog.py and say "
        f"in CHANGELOG.md what has changed{may_stay}: {RENEW}"
    )


def test_nothing_is_recorded_that_is_no_more(now: Any, recorded: Any) -> None:
    assert {kind: set(entries) for kind, entries in recorded.items()} == {
        kind: set(entries) for kind, entries in now.items()
    }, RENEW


def test_each_file_has_a_version() -> None:
    graded = {path for rule in versions() for path in sources(rule)}
    modules = {path for path in (PACKAGE / "rewards").glob("*.py") if path.name not in PASSIVE}
    # Its text is run within the sandbox, and no module imports it.
    assert modules <= graded, f"of no rule: {modules - graded}"
    owned = {path for name in FILES for path in files(name)}
    bundled = {path for path in (DATASETS / "builtin").rglob("*") if path.is_file()}
    bundled |= {*DATASETS.glob("*.jsonl"), *DATASETS.glob("puzzles/*.py")}
    bundled |= set(DATASETS.glob("generated/*.py"))
    assert {path for path in bundled if path.name != "README.md"} == owned


def test_comments_and_docstrings_do_not_count(tmp_path: Path) -> None:
    def text(code: str) -> str:
        (path := tmp_path / "rule.py").write_text(code)
        return normalised(path)

    plain = text("LIMIT = 3\ndef f():\n    return None\n")
    assert plain == text('"""About."""\nLIMIT = 3  # why\n"""A limit."""\n\n\ndef f(): return None')
    assert plain != text("LIMIT = 4\ndef f():\n    return None\n")
    assert plain != text("LIMIT = 3\ndef f():\n    return 0\n")
    assert text("a = f(0)") != text("a = f([])") and text("a = None") != text("a = ''")
