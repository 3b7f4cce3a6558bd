"""What an episode has submitted: the source of its session, in order.

A session is run again as it was, with the actions that failed: what they had done before they
failed was there for those that followed. After a restart there is only what came after it. Of an
action that had to be interrupted only the definitions count, since to run it again would take as
long.
"""

from __future__ import annotations

import ast

from intercode.episode import Episode
from intercode.syntax import parse

_DEFINITIONS = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
)  # fmt: skip


def session_source(episode: Episode) -> list[str]:
    """The sources to run, in order."""
    sources: list[str] = []
    for turn in episode.turns:
        if turn.info.get("restarted"):
            sources = []
        elif not turn.info.get("executed", True):
            continue
        elif turn.info.get("interrupted"):
            sources.append(definitions(turn.action))
        else:
            sources.append(turn.action)
    return sources


def definitions(source: str) -> str:
    """The imports, functions and classes at the top level of a source; empty if it is no Python."""
    try:
        tree = parse(source)
        tree.body = [node for node in tree.body if isinstance(node, _DEFINITIONS)]
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
