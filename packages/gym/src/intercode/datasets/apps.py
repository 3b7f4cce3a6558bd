"""Loader of APPS (Hendrycks et al. 2021): 10,000 programming problems, from the user's copy.

The copy has one of two layouts. In the authors' layout, each problem is a folder (``test/0000/``)
with ``question.txt``, ``input_output.json``, ``solutions.json``, ``starter_code.py`` and
``metadata.json``. In the other layout, each problem is a line with the same fields in a JSONL file
(``test.jsonl``). If ``input_output`` names a function (``fn_name``), the tests call the function.
Otherwise the submission is a program that reads standard input and prints to standard output.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from intercode.datasets.dataset_cache import cached_loader, track_file
from intercode.datasets.files import locate, read_rows
from intercode.errors import TaskError
from intercode.python_source import parse
from intercode.task import Dataset, Task
from intercode_sandbox.units import format_count

SPLITS = ("test", "train")
GOLDS = 3
"""The maximum number of golds that a task gets. A problem of APPS often has hundreds of
solutions."""
NO_GOLD = "no-gold"
"""The tag of tasks without a Python 3 solution."""

PRELUDE = """\
import sys, time, itertools, collections, math, fractions, random, heapq, bisect, functools, re
from itertools import accumulate, product, permutations, combinations
from collections import Counter, OrderedDict, deque, defaultdict, ChainMap
from functools import lru_cache
from math import sqrt, sin, cos, tan, ceil, fabs, floor, gcd, exp, log, log2
from typing import List, Tuple, Optional, Dict, Set
from heapq import *
"""
"""Imports that the authors' grading program executes before a solution. Many solutions lack these
imports, because they rely on the program."""

_CHECK = """\
def _same(output, expected):
    if isinstance(output, (list, tuple)) and isinstance(expected, list):
        return len(output) == len(expected) and all(map(_same, output, expected))
    return output == expected

def _gives(output, *accepted):
    assert any(_same(output, expected) for expected in accepted), repr(output)[:500]
"""
_FILES = {
    "question": "question.txt",
    "input_output": "input_output.json",
    "solutions": "solutions.json",
    "starter_code": "starter_code.py",
}
_PROGRAM = (
    "Write a program that reads standard input and prints to standard output. Your last action "
    "before you submit must be the whole program."
)
_log = logging.getLogger(__name__)


class _UngradableProblem(Exception):  # noqa: N818 - `load` reports it as a warning or a TaskError
    """The tests of a problem cannot score a solution."""


@cached_loader
def load(
    root: str | Path | None = None,
    split: str = "test",
    difficulty: str | None = None,
    strict: bool = False,
) -> Dataset:
    """Load a split of APPS. A task's id is the authors' number, such as ``"0042"``.

    Problems without readable tests are omitted, and a logged warning names the first five. Problems
    without a Python 3 solution are included with the tag ``no-gold``.

    Args:
        root: A folder that contains the split, at most three levels deep; None: the folder
            ``datasets/apps`` in InterCode's cache.
        split: ``"test"`` or ``"train"``.
        difficulty: The difficulty of the problems to load: ``"introductory"``, ``"interview"`` or
            ``"competition"``; None: all problems.
        strict: Whether to raise an error if a problem would be omitted.

    Returns:
        The dataset.

    Raises:
        TaskError: The split is unknown, absent or malformed, or no problem in it can be scored. Or
            `strict` is true, and a problem would be omitted.
    """
    if split not in SPLITS:
        raise TaskError(f"APPS has no split {split!r}; known: {', '.join(SPLITS)}")
    dataset_folder, layout = locate(root, "apps", [(f"{split}.jsonl",), (split,)])
    source = dataset_folder / (f"{split}.jsonl", split)[layout]
    tasks, messages = [], []
    for location, row in _rows(source) if layout == 0 else _folders(source):
        if difficulty is not None and row.get("difficulty") != difficulty:
            continue
        try:
            tasks.append(Task.from_dict(_task(row)))
        except _UngradableProblem as error:
            messages.append(f"{location}: {error}")
        except TaskError as error:
            raise TaskError(f"{location}: {error}") from None
    if messages:
        text = "; ".join(messages[:5]) + ("; …" if len(messages) > 5 else "")
        if strict:
            raise TaskError(f"cannot grade {format_count(len(messages), 'problem')}: {text}")
        _log.warning("APPS: left out %s: %s", format_count(len(messages), "problem"), text)
    if not tasks:
        raise TaskError(f"{source}: holds no problem of APPS that can be graded")
    return Dataset(tasks, f"apps-{split}", str(source))


def _folders(source: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for folder in sorted(path for path in track_file(source).iterdir() if path.name.isdigit()):
        row: dict[str, Any] = {"problem_id": folder.name}
        for field, name in _FILES.items():
            if track_file(path := folder / name).exists():
                row[field] = _text(path)
        if track_file(path := folder / "metadata.json").exists():
            try:
                row |= json.loads(_text(path))
            except (ValueError, TypeError) as error:
                raise TaskError(f"{path}: no JSON object: {error}") from None
        yield str(folder), row


def _rows(source: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for location, row in read_rows(source):
        if not isinstance(row, dict):
            raise TaskError(f"{source}: {location}: must be an object, not {type(row).__name__}")
        problem_id = row.get("problem_id", row.get("id"))
        yield f"{source}: {location}", {**row, "problem_id": problem_id}


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 at byte {error.start}") from None


def _task(row: Mapping[str, Any]) -> dict[str, Any]:
    problem_id = row["problem_id"]
    if not str(problem_id).isdigit():
        raise TaskError(f"field 'problem_id' must be a number, not {problem_id!r}")
    if not row.get("question"):
        raise TaskError("field 'question' (or question.txt) is missing")
    tests = _tests(row)
    gold = list(_solutions(row))
    tags = [row["difficulty"]] if row.get("difficulty") else []
    starter = row.get("starter_code") or ""
    function = tests.get("fn_name")
    fields = {
        "task_id": f"{int(problem_id):04}",
        "gold": gold,
        "tags": [*tags, *([] if gold else [NO_GOLD])],
        "url": row.get("url"),
        "setup_code": PRELUDE,
    }
    if function is None:
        query = f"{row['question'].rstrip()}\n\n{_PROGRAM}"
        return {**fields, "query": query, "stdio": list(_programs(tests))}
    is_method = any("class Solution" in text for text in (starter, *gold[:1]))
    ask = f"Write the function {function}." if not starter else f"Complete this:\n\n{starter}"
    return {
        **fields,
        "query": f"{row['question'].rstrip()}\n\n{ask}",
        "tests": list(_calls(f"Solution().{function}" if is_method else function, tests)),
        "test_setup_code": _CHECK,
        "classes": ["Solution"] if is_method else [],
    }


def _tests(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parsed field ``input_output`` of a problem.

    Raises:
        _UngradableProblem: The field is malformed, or has no tests.
    """
    try:
        test_cases = json.loads(row.get("input_output") or "null", parse_constant=_no_number)
    # Python also raises ValueError for a number with more digits than it converts.
    except ValueError as error:
        raise _UngradableProblem(f"input_output is not JSON: {error}") from None
    inputs = test_cases.get("inputs") if isinstance(test_cases, dict) else None
    outputs = test_cases.get("outputs") if isinstance(test_cases, dict) else None
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs:
        raise _UngradableProblem("it has no tests")
    if len(inputs) != len(outputs):
        raise _UngradableProblem(f"it has {len(inputs)} inputs and {len(outputs)} outputs")
    function = test_cases.get("fn_name")
    if function is not None and not str(function).isidentifier():
        raise _UngradableProblem(f"{function!r} is not a function's name")
    if function is not None and not all(isinstance(args, list) for args in inputs):
        raise _UngradableProblem("an input is not a list of arguments")
    return dict(test_cases)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _solutions(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first `GOLDS` solutions that are Python 3. Many solutions of APPS are Python 2."""
    try:
        sources = json.loads(row.get("solutions") or "[]")
    except ValueError as error:
        raise TaskError(f"solutions are not JSON: {error}") from None
    count = 0
    for source in sources if isinstance(sources, list) else []:
        if count < GOLDS and isinstance(source, str) and _is_python(source):
            count += 1
            yield source


def _is_python(source: str) -> bool:
    try:
        return bool(parse(source).body) and "\0" not in source
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _programs(tests: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for stdin_value, stdout_value in zip(tests["inputs"], tests["outputs"], strict=True):
        yield {"stdin": _join_lines(stdin_value), "stdout": _join_lines(stdout_value)}


def _join_lines(value: Any) -> str:
    """Return an input or output as a text. Some problems have a list of lines instead of a text."""
    return "\n".join(map(_join_lines, value)) if isinstance(value, list) else str(value)


def _calls(function: str, tests: Mapping[str, Any]) -> Iterator[str]:
    for argument_values, expected_value in zip(tests["inputs"], tests["outputs"], strict=True):
        accepted_values = [_convert_keys(expected_value)]
        if isinstance(expected_value, list) and len(expected_value) == 1:
            # Some problems have the expected output in a list of one element, so both the list and
            # its element are accepted.
            accepted_values.append(_convert_keys(expected_value[0]))
        arguments = ", ".join(repr(_convert_keys(value)) for value in argument_values)
        yield f"_gives({function}({arguments}), {', '.join(map(repr, accepted_values))})"


def _convert_keys(value: Any) -> Any:
    """Convert the keys of a JSON object to integers, if all are numbers.

    JSON has only texts as keys. The authors' grading program converts them in the same way.
    """
    if isinstance(value, dict) and all(key.lstrip("-").isdecimal() for key in value):
        return {int(key): member for key, member in value.items()}
    return value
