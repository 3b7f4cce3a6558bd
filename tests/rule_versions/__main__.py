"""``python -m tests.rule_versions``: record the digests of what has a version, as it is now.

A rule, or a dataset that code makes, may keep its version where no score, and no task, can differ.
Files of tasks may not: what has changed there needs a new version first.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import intercode
from intercode.datasets.catalog import VERSIONS
from intercode.registry import REWARDS, RULES

RECORDED = Path(__file__).with_name("recorded.json")
PACKAGE = Path(intercode.__file__).parent
SOURCES = sorted(Path(__file__).parents[2].glob("packages/*/src"))
DATASETS = PACKAGE / "datasets"
_GRADING = ("rewards/", "interpreters/inside/", "integrations/harbor/")
"""Where the modules lie that belong to a rule if it imports them, directly or not."""
_PAPER = ("bash_env", "ctf_env", "python_env", "sql_env")
FILES = {
    "bash": ("builtin/bash_*.json", "builtin/fs_[!os]*.sh", "builtin/fs_shop.sh"),
    "bash-hard": ("builtin/hard_bash.json", "builtin/fs_office.sh"),
    "bash-starter": ("builtin/starter_bash.json", "builtin/fs_start.sh"),
    "ctf": ("puzzles/*.py",),
    "generated-bash": ("generated/__init__.py", "generated/sampling.py", "generated/bash.py"),
    "generated-python": ("generated/__init__.py", "generated/sampling.py", "generated/python.py"),
    "generated-sql": ("generated/__init__.py", "generated/sampling.py", "generated/sql.py"),
    "mbpp (reviewed)": ("mbpp_reviewed.jsonl",),
    "nl2bash (reviewed)": ("nl2bash_reviewed.jsonl",),
    "nl2sh-alfa": ("nl2sh_alfa_answers.jsonl",),
    "python": ("builtin/python_*.json",),
    "python-hard": ("builtin/hard_python.json",),
    "python-starter": ("builtin/starter_python.json",),
    "spider (reviewed)": ("spider_reviewed.jsonl",),
    "sql": ("builtin/sql_*.json", "builtin/databases/[clot]*.sql"),
    "sql-hard": ("builtin/hard_sql.json", "builtin/databases/[ns]*.sql"),
    "sql-starter": ("builtin/starter_sql.json", "builtin/databases/bicycles.sql"),
    "swe": ("builtin/swe_*.json", "builtin/swe_[!gs]*.fi", "builtin/swe_snapkeep.fi"),
    "swe-hard": ("builtin/hard_swe.json", "builtin/swe_gridcalc.fi", "builtin/swe_stencil.fi"),
}
"""Dataset → the files that it consists of, or is made by."""
Entry = dict[str, Any]


def collect() -> dict[str, dict[str, Entry]]:
    """Return the version and the digest of each rule and each dataset."""
    rules = {
        rule: {"version": version, "digest": _digest(sources(rule))}
        for rule, version in versions().items()
    }
    datasets = {
        name: {"version": version, "digest": _digest(files(name))}
        for name, version in VERSIONS.items()
    }
    return {"rules": rules, "datasets": datasets}


def versions() -> dict[str, int]:
    """Return the version of each rule, and of each other reward of ours."""
    found: dict[str, int] = {name: RULES.get(name) for name in RULES.names()}
    for name in REWARDS.names(packages=False):
        label = name.partition(":")[2]
        if label != "default":
            found[label] = REWARDS.get(name).VERSION
    return found


def sources(rule: str) -> list[Path]:
    """Return the modules of a rule: its own, and those for grading that this imports."""
    if rule == "paper":
        modules = {f"intercode_paper.{name}" for name in _PAPER}
    else:
        targets = {name.partition(":")[2]: target for name, target in _entries(REWARDS)}
        targets |= dict(_entries(RULES))
        modules = {targets[rule].partition(":")[0]}
    found: set[str] = set()
    while fresh := modules - found:
        found |= fresh
        modules = {name for module in fresh for name in _imported(_path(module))}
    return sorted(map(_path, found))


def files(dataset: str) -> list[Path]:
    """Return the files of a dataset."""
    return sorted(path for glob in FILES[dataset] for path in DATASETS.glob(glob))


def normalised(path: Path) -> str:
    """Return what counts of a file: of Python, the code without comments and docstrings."""
    if path.suffix != ".py":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return _dump(ast.parse(path.read_text("utf-8")))


def is_code(dataset: str) -> bool:
    """Tell whether a dataset is made by code."""
    return all(path.suffix == ".py" for path in files(dataset))


def main() -> None:
    """Write the file; refuse a dataset whose files have changed under the same version."""
    before = json.loads(RECORDED.read_text("utf-8")) if RECORDED.is_file() else {}
    now = collect()
    for name, entry in now["datasets"].items():
        known = before.get("datasets", {}).get(name)
        if known and known != entry and known["version"] == entry["version"] and not is_code(name):
            sys.exit(
                f"dataset {name!r} has changed: raise its version in datasets/catalog.py first"
            )
    RECORDED.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _entries(registry: Any) -> list[tuple[str, str]]:
    return [(name, text) for name, text in registry._entries.items() if isinstance(text, str)]


def _path(module: str) -> Path:
    name = f"{module.replace('.', '/')}.py"
    return next((f / name for f in SOURCES if (f / name).is_file()), PACKAGE.parent / name)


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules for grading that a file imports, also by ``from package import module``."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                place = _path(name)
                is_ours = place.is_file() and place.is_relative_to(PACKAGE)
                is_paper = name.startswith("intercode_paper.") and place.is_file()
                if is_paper or (
                    is_ours and place.relative_to(PACKAGE).as_posix().startswith(_GRADING)
                ):
                    yield name


def _digest(paths: list[Path]) -> str:
    parts = [f"{_name(path)}\0{normalised(path)}" for path in paths]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _name(path: Path) -> Path:
    folders = (PACKAGE, *SOURCES)
    return path.relative_to(next(folder for folder in folders if path.is_relative_to(folder)))


def _dump(node: Any) -> str:
    """Write a syntax tree, alike in all versions of Python: empty fields are left out."""
    if isinstance(node, list):
        return f"[{','.join(_dump(one) for one in node if not _is_text(one))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
    fields.pop("kind", None)
    inside = ",".join(f"{name}={_dump(value)}" for name, value in fields.items())
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else ...
    return f"{type(node).__name__}({'value=None' if value is None else inside})"


def _is_text(node: Any) -> bool:
    """Tell whether a statement is only a text: a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


if __name__ == "__main__":
    main()
