"""Probes of typed answers: whether an output counts that does not give gold's answer."""

from __future__ import annotations

from typing import Any

from intercode.rewards.answer_types import AnswerType
from intercode.task import Task

from .tools import one_of


def _refuses(gold: str, output: str, query: str = "Count the files.", **answer: Any) -> bool:
    read = AnswerType.parse(Task("t", query, metadata={"answer": answer}))
    assert read is not None and read.is_equivalent(gold, gold)
    return one_of(str(read.is_equivalent(gold, output)), holds="False", gone="True")


def messages_for_answers() -> bool:
    table: Any = {"type": "table", "columns": [{"name": "folder", "type": "path"}]}
    return _refuses("removed x", "mkdir: x", **table)


def hedges_beside_a_number() -> bool:
    return _refuses("5", "certainly 5", type="number")


def candidates_for_a_number() -> bool:
    return _refuses("5", "5 6", type="number")


def bounds_of_a_number() -> bool:
    return _refuses("5", "to 5", "Count the files, from first to last.", type="number")


def units_of_a_number() -> bool:
    return _refuses("5GB", "5 MB", type="number")


def decimals_of_a_number() -> bool:
    return _refuses("5.33", "5.3351", type="number")


def one_choice() -> bool:
    return _refuses("yes", "yes output", type="yes-no")


def hashes_beside_paths() -> bool:
    zeros, ones = "0" * 32, "1" * 32
    return _refuses(f"{zeros}  /a\n{ones}  /b", f"{zeros}  /b\n{ones}  /a", type="paths")


def folders_before_names() -> bool:
    return _refuses("/a/b\n/a/c", "/x/b\n/x/c", type="paths", names=True)


def folders_that_are_stated() -> bool:
    return _refuses("/a/b/c\n/a/b/d", "c\nd", "Search below /a.", type="paths")


def numbers_before_lines() -> bool:
    return _refuses("a b\nc", "9:a b\n9:c", type="lines")


def files_before_lines() -> bool:
    return _refuses("a b\nc", "/x/y:a b\n/x/y:c", "Search below /a.", type="lines")


def cells_beside_those() -> bool:
    columns = [{"name": "word", "type": "text"}]
    return _refuses("a", "a b c", type="table", columns=columns)


def totals_of_a_table() -> bool:
    columns = [{"name": "path", "type": "path"}, {"name": "size", "type": "number"}]
    table: Any = {"type": "table", "columns": columns, "total": "optional"}
    return _refuses("3 /a\n4 /b\n7 total", "3 /a\n4 /b\n9 total", **table)
