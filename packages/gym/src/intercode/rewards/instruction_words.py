"""Recognition of names, links, pipes, modes and targets in a task's words and verification.

Regular expressions search the text, and nothing in the text is executed. A phrase that the
expressions miss has no effect if the agent has left nothing unusual.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from posixpath import basename, dirname, join, normpath

from intercode.rewards.file_links import TEMPORARY_FOLDERS, SymbolicLink, is_within, is_within_any
from intercode.task import Task
from intercode_sandbox.base import SandboxBackend

_TEMPORARY_PATH = re.compile(
    r"(?<![\w.-])(?<!outside )(?:/var/tmp|/dev/shm|/tmp)(?![\w-])(?:/[\w./-]*)?", re.ASCII
)
_TEMPORARY_FILE_REQUEST = re.compile(r"\btemp(orary)? (file|folder|dir)", re.IGNORECASE)

_TEST_OPERATOR = r"(?:\[|\btest|&&|\|\|)\s+(?:!\s+)?-"
_LINK_TESTS = re.compile(
    r"(?P<no>!\s*(?:\[+\s*)?)?-[Lh]\s+(?P<one>\"[^\"]*\"|'[^']*'|[^\s;\])]+)"
    r"|(?P<no2>!\s*)?\b(?:readlink|realpath|islink)\b(?:\s+-\w+)*[\s(]+(?P<two>\"[^\"]*\"|'[^']*'|[^\s;|)]+)"
)
_ANY_LINKS = re.compile(r"-type\s+l\b|-lname\b|\bis_?symlink|\bls\s+-\w*l|-ef\b|%h\b")
_LINK_WORDS = re.compile(r"\b(sym|soft|symbolic |hard)?[ -]?link(s|ed)?\b", re.IGNORECASE)
_PIPE_WORDS = re.compile(rf"fifo|named pipes?|socket|{_TEST_OPERATOR}[pSbc]\b", re.IGNORECASE)
_MODE_WORDS = re.compile(
    rf"permission|\bmodes?\b|chmod|read-?only|(readable|writable|executable)|-perm\b|\bstat\b|umask|{_TEST_OPERATOR}[rwx]\b",
    re.IGNORECASE,
)

_NAME = r"""["']?([\w./~+@%-]+)"""
_TARGETS = re.compile(
    rf"(?:>>?\|?|\btee(?:\s+-a)?|\b(?:mkdir|touch)(?:\s+-\w+)*)\s*{_NAME}"
    rf"|\btar\b[^;|&\n]*\s-C\s*{_NAME}|\bunzip\b[^;|&\n]*\s-d\s*{_NAME}"
    rf"|\b(?:sort|curl|gcc|cc|g\+\+|clang)\b[^;|&\n]*\s-o\s*{_NAME}|\bwget\b[^;|&\n]*\s-O\s*{_NAME}"
    rf"|\bopenssl\b[^;|&\n]*\s-out\s+{_NAME}"
    rf"|\b(?:cp|mv|ln|install)\b[^;|&\n]*\s{_NAME}[\"']?\s*(?=[;|&\n)]|$)"
)
_FOLDERS = re.compile(rf"\b(?:cd|pushd)\s+{_NAME}")


def temporary_names(task: Task, sandbox: SandboxBackend) -> set[str]:
    """Return the prefixes of temporary paths that belong to the task or its image.

    The prefixes are those of `names_in_text`, and the working directory and the home folder if
    these lie in a temporary folder.
    """
    homes = (sandbox.cwd, sandbox.env.get("HOME", ""))
    return {
        *names_in_text(task),
        *(home for home in homes if is_within_any(home, TEMPORARY_FOLDERS)),
    }


def names_in_text(task: Task) -> set[str]:
    """Return the prefixes of temporary paths in the task's query, files, setup and `may_change`.

    A query that mentions a temporary file or folder stands for all temporary folders.
    """
    if _TEMPORARY_FILE_REQUEST.search(task.query):
        return {*TEMPORARY_FOLDERS}
    files = (*task.files, *task.files.values())
    text = "\n".join([task.query, task.setup or "", *files, *task.may_change])
    return {name.rstrip("./") for name in _TEMPORARY_PATH.findall(text)}


def is_named(path: str, names: Collection[str]) -> bool:
    """Return whether a path begins with one of the names, or is a parent folder of one."""
    return any(path.startswith(name) or is_within(name, path) for name in names)


def is_link_requested(task: Task, link: SymbolicLink) -> bool:
    """Return whether the task asks for a link.

    Either the verification tests links in general, or a link of this name. Or the query mentions
    links and the name of the link or of its folder.
    """
    verification, name = task.verification or "", basename(link.path)
    if _ANY_LINKS.search(verification):
        return True
    for test in _LINK_TESTS.finditer(verification):
        tested_path = (test["one"] or test["two"]).strip("\"'")
        is_open = set(tested_path) & set("$*?{(")
        if not (test["no"] or test["no2"]) and (is_open or basename(tested_path) == name):
            return True
    words = task.query
    return _LINK_WORDS.search(words) is not None and (
        name in words or basename(dirname(link.path)) in words
    )


def mentions_links(task: Task) -> bool:
    """Return whether the query or the verification mentions links of any kind."""
    verification = task.verification or ""
    return bool(_LINK_WORDS.search(task.query) or _ANY_LINKS.search(verification))


def mentions_pipes(task: Task) -> bool:
    """Return whether the query or the verification mentions named pipes or sockets."""
    return _PIPE_WORDS.search(f"{task.query}\n{task.verification}") is not None


def mentions_modes(task: Task) -> bool:
    """Return whether the query or the verification mentions file permissions."""
    return _MODE_WORDS.search(f"{task.query}\n{task.verification}") is not None


def written_paths(task: Task, sandbox: SandboxBackend) -> set[str]:
    """Return the paths that a verification's commands write, except those that the query names.

    A relative path is resolved in every folder in which the commands may run.
    """
    text = task.verification or ""
    home = sandbox.env.get("HOME", "/")
    folders = [sandbox.cwd, *(_path(name, sandbox.cwd, home) for name in _FOLDERS.findall(text))]
    target_names = {"".join(match) for match in _TARGETS.findall(text)} - {"", ".", "/dev/null"}
    return {
        _path(name, folder, home)
        for name in target_names
        if basename(name.rstrip("/")) not in task.query
        for folder in folders
    }


def _path(name: str, folder: str, home: str) -> str:
    return normpath(join(folder, home + name[1:] if name.startswith("~/") else name))
