"""A search for a fix's code in everything that a repository task's agent can read.

The search looks for gold's added lines in files, in archives, and in every git object, reachable or
not. Archives are wheels, eggs, zip files and tarballs, including those in pip's cache. Compiled
files are compared function by function, and by the words that only gold has. Lines that tracked
files already contain do not count. Short lines count only if gold adds no long line to a file.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from intercode.episode import decode, encode
from intercode.errors import ImageError, OutputLimitError, TaskError
from intercode.rewards.swe_plan import SweGradingPlan, make_plan, patch_paths
from intercode.task import Task
from intercode_sandbox.base import SandboxBackend
from intercode_sandbox.images.git_repository import GitRunner
from intercode_sandbox.images.tarballs import DAMAGE
from intercode_sandbox.units import MIB

MAX_FILE_SIZE = 512 * MIB
"""Maximum size of a searched file, in bytes."""
MAX_TOTAL_SIZE = 2048 * MIB
"""Maximum number of searched bytes for one task."""
SHARE = 0.8
"""The share of gold's lines that proves the fix. The share is below 1, because another version of
the fix may differ from gold in some lines."""
_LINES = 12
"""Maximum number of lines that the search uses of one file that gold changes: the longest lines."""
_ANCHORS = 3
"""The number of anchor lines of one file that gold changes. ``grep`` searches for these lines
first. By `_LINES` and `SHARE` at most two lines may be missing, so any match contains an anchor
line."""
_MIN_TOTAL_LENGTH, _MIN_LINE_LENGTH = 8, 12
_MAX_DEPTH = 3
"""Maximum depth of nested archives."""
_SECONDS = 300.0
_OUTPUT = 64 * MIB
_ARCHIVES = (
    "*.whl", "*.zip", "*.egg", "*.tar", "*.tar.*", "*.tgz", "*.tbz2", "*.txz", "*.body",
)  # fmt: skip
"""File names of archives; the last pattern is for pip's cache."""
_STORES = ("*.pack", "*.bundle")
_LOOSE_OBJECTS = "*/[0-9a-f][0-9a-f]/" + "[0-9a-f]" * 38 + "*"
_WORD = re.compile(r"[^\W\d]\w{3,}")
_COMMENTS = (b"#", b"//", b'"""', b"'''")


@dataclass(frozen=True)
class GoldAddedLines:
    """The significant lines that gold adds to one file."""

    path: str
    lines: tuple[bytes, ...]

    def may_be_in(self, name: str) -> bool:
        """Return whether the lines suffice as proof of the fix, if a file with that name has them.

        In a file with another name than gold's, a few short lines may be equal by chance.
        """
        file_name = self.path.rpartition("/")[2]
        return name.startswith(file_name) or len(self.lines) >= 3 or sum(map(len, self.lines)) >= 40

    def is_in(self, content: bytes) -> bool:
        """Return whether a text contains at least the share `SHARE` of the lines."""
        max_missing = int(len(self.lines) * (1 - SHARE))
        missing_count = 0
        for line in self.lines:
            missing_count += line not in content
            if missing_count > max_missing:
                return False
        rows = {row.strip() for row in content.splitlines()}
        return sum(line not in rows for line in self.lines) <= max_missing


@dataclass
class FixLeakScan:
    """The search of one task's sandbox."""

    task: Task
    sandbox: SandboxBackend
    plan: SweGradingPlan
    scratch: Path
    added_lines: list[GoldAddedLines] = field(default_factory=list)
    compiled_files: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Location → path and content of a compiled file."""
    remaining_bytes: int = MAX_TOTAL_SIZE

    def run(self) -> Iterator[tuple[str, str]]:
        """Yield path and description of each location where the code of a fix can be read.

        If the files exceed `MAX_TOTAL_SIZE`, a last entry, with the path ``/``, reports that only a
        part was searched.
        """
        for gold in self.task.gold:
            self.added_lines += _added_lines(gold)
        self._drop_base_lines()
        if not self.added_lines:
            return
        packs: dict[str, bytes] = {}
        for path in dict.fromkeys(
            (*self._find_by_lines(), *self._find_archives(), *self._find_by_name())
        ):
            file_content = self._read(path)
            if path.endswith(_suffixes(_STORES)):
                packs[path] = file_content
            elif (content := _read_loose_object(path, file_content)) is not None:
                yield from self._report_location(
                    path, self._search_content(path, content, is_object=True)
                )
            else:
                for location, member_content in _expand_archive(path, file_content):
                    if not self._spend(member_content):
                        # A small archive can expand beyond any machine's capacity.
                        break
                    yield from self._report_location(
                        path, self._search_content(location, member_content, path)
                    )
        for path, pack_content in packs.items():
            yield from self._report_location(path, self._search_pack(pack_content))
        for location in self._find_compiled_code():
            yield self.compiled_files[location][0], f"compiled code of gold is in {location}"
        if self.remaining_bytes < 0:
            yield (
                "/",
                f"more than {MAX_TOTAL_SIZE // MIB} MiB are readable: only a part was searched",
            )

    def _report_location(self, path: str, location: str) -> Iterator[tuple[str, str]]:
        if location:
            yield path, f"the lines that gold adds are in {location}"

    def _drop_base_lines(self) -> None:
        """Remove from `added_lines` the lines of tracked files; keep the longest of the others."""
        gold_lines = b"\n".join(
            line for file_lines in self.added_lines for line in file_lines.lines
        )
        grep = ["git", "-c", "safe.directory=*", "grep", "-haF", "-f", "-", "--", "."]
        result = self.sandbox.exec(
            grep, stdin=gold_lines, cwd=self.plan.directory, timeout=_SECONDS, output_limit=_OUTPUT
        )
        base_lines = {row.strip() for row in result.stdout.splitlines()} if gold_lines else set()
        remaining_lines = [
            GoldAddedLines(
                entry.path,
                tuple(added_line for added_line in entry.lines if added_line not in base_lines),
            )
            for entry in self.added_lines
        ]
        remaining_lines = [
            GoldAddedLines(entry.path, _select_lines(entry.lines)) for entry in remaining_lines
        ]
        self.added_lines = [
            file_lines for file_lines in dict.fromkeys(remaining_lines) if file_lines.lines
        ]

    def _find_by_lines(self) -> list[str]:
        """Return the files in the sandbox that contain an anchor line of gold (see `_ANCHORS`)."""
        lines = [line for file_lines in self.added_lines for line in file_lines.lines[:_ANCHORS]]
        anchors = [argument for line in lines for argument in (b"-e", line)]
        find = f"find / -xdev -path /proc -prune -o -type f -size -{MAX_FILE_SIZE // 1024}k -print0"
        grep = f'{find} | xargs -0 -r grep -laF "$@" -- | tr "\\n" "\\0"'
        return self._paths(["/bin/sh", "-c", grep, "sh", *anchors])

    def _find_archives(self) -> list[str]:
        """Return archives, packs and other git objects, whose content ``grep`` cannot read."""
        tests = [*(("-name", name) for name in (*_ARCHIVES, *_STORES)), ("-path", _LOOSE_OBJECTS)]
        return self._find(["-xdev"], tests)

    def _find_by_name(self) -> list[str]:
        """Return the files named like a file that gold changes, and their compiled forms."""
        tests = []
        for path in {path for gold in self.task.gold for path in patch_paths(gold)}:
            escaped_path = PurePosixPath(re.sub(r"([][*?\\])", r"\\\1", path))
            folder = f"*/{escaped_path.parent.name}" if escaped_path.stem == "__init__" else "*"
            tests += [("-path", f"{folder}/{escaped_path.name}*")]
            if escaped_path.suffix == ".py":
                tests += [("-path", f"{folder}/{escaped_path.stem}.pyc")]
                tests += [("-path", f"{folder}/__pycache__/{escaped_path.stem}.*")]
        return self._find([], tests)

    def _find(self, options: Sequence[str], tests: Sequence[tuple[str, str]]) -> list[str]:
        name_tests = [word for test in tests for word in ("-o", *test)][1:]
        prune_options = [
            word for name in ("/proc", "/sys", "/dev") for word in ("-o", "-path", name)
        ][1:]
        return self._paths(["find", "/", *options, "(", *prune_options, ")", "-prune", "-o",
        "-type", "f",
                            "(", *name_tests, ")", "-print0"])  # fmt: skip

    def _paths(self, argv: Sequence[str | bytes]) -> list[str]:
        result = self.sandbox.exec(argv, cwd="/", timeout=_SECONDS, output_limit=_OUTPUT)
        return [decode(path) for path in result.stdout.split(b"\0")[:-1]]

    def _read(self, path: str) -> bytes:
        try:
            content = self.sandbox.read_file(path, limit=MAX_FILE_SIZE)
        except (OSError, OutputLimitError):
            return b""
        return content if self._spend(content) else b""

    def _spend(self, content: bytes) -> bool:
        self.remaining_bytes -= len(content)
        return self.remaining_bytes >= 0

    def _search_content(
        self, location: str, content: bytes, path: str = "", *, is_object: bool = False
    ) -> str:
        """Search one file, or one git object, for gold's added lines.

        A compiled file is only stored in `compiled_files`, for `_find_compiled_code`.

        Returns:
            `location` if the content has the lines; otherwise an empty text.
        """
        if location.endswith(".pyc"):
            self.compiled_files[location] = path, content
            return ""
        name = location.rpartition("/")[2].rpartition(" ")[2]
        for file_lines in self.added_lines:
            if (is_object or file_lines.may_be_in(name)) and file_lines.is_in(content):
                return location
        return ""

    def _search_pack(self, pack_content: bytes) -> str:
        """Search the git objects of a pack or bundle, which is a pack after some header lines."""
        path = Path(tempfile.mkdtemp(dir=self.scratch))
        git = GitRunner(path)
        start = pack_content.find(b"PACK")
        (path / "pack").write_bytes(pack_content[max(start, 0) :])
        git("init", "--quiet", "--bare", "--template=", path / "x")
        try:
            with (path / "pack").open("rb") as file:
                git("--git-dir", path / "x", "index-pack", "--stdin", "--fix-thin", stdin=file)
            for name, content in git.objects(path / "x", MAX_FILE_SIZE):
                if not self._spend(content):
                    return ""
                if match := self._search_content(
                    f"git's object {name[:12]}", content, is_object=True
                ):
                    return match
        except ImageError:  # the pack is damaged or incomplete, so the agent's git cannot read it
            return ""
        return ""

    def _find_compiled_code(self) -> list[str]:
        """Return the compiled files with a function, or with names, that only gold has."""
        sources: list[tuple[str, str, str]] = []
        for gold in self.task.gold if self.compiled_files else ():
            sources += self._read_sources(gold)
        if not sources:
            return []
        encoded_files = {
            location: base64.b64encode(encoded_files).decode()
            for location, (_, encoded_files) in self.compiled_files.items()
        }
        pairs = [pair for _, *pair in sources]
        result = self.sandbox.exec(
            [self.plan.python, "-I", "-c", _COMPARE],
            stdin=json.dumps({"sources": pairs, "compiled": encoded_files}).encode(),
            cwd="/",
            timeout=_SECONDS,
            output_limit=_OUTPUT,
        )
        matching_locations = set(json.loads(result.stdout)) if result.ok else set()
        return [
            location
            for location in encoded_files
            if location in matching_locations or self._has_words(location, sources)
        ]

    def _has_words(self, location: str, sources: Sequence[tuple[str, str, str]]) -> bool:
        """Return whether a compiled file has the words that gold adds to the file's source.

        Args:
            location: The location of the compiled file.
            sources: The Python files that gold changes, from `_read_sources`.
        """
        stem = PurePosixPath(location).name.partition(".")[0]
        for path, base_source, gold_source in sources:
            words = set(_WORD.findall(_code(gold_source))) - set(_WORD.findall(base_source))
            match_count = sum(encode(word) in self.compiled_files[location][1] for word in words)
            is_own = stem == PurePosixPath(path).stem
            if (
                is_own
                and sum(map(len, words)) >= _MIN_LINE_LENGTH
                and match_count >= SHARE * len(words)
            ):
                return True
        return False

    def _read_sources(self, gold: str) -> Iterator[tuple[str, str, str]]:
        """Yield each Python file that gold changes: path, and content before and after gold."""
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        git, tree = GitRunner(folder), folder / "x"
        git("init", "--quiet", "--template=", tree)
        base_texts: dict[str, str] = {}
        for path in patch_paths(gold):
            base_content = self._read(str(PurePosixPath(self.plan.directory, path)))
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            if base_content:
                (tree / path).write_bytes(base_content)
            base_texts[path] = base_content.decode("utf-8", "replace")
        (folder / "patch").write_bytes(encode(gold.rstrip("\n") + "\n"))
        try:
            git("-C", tree, "apply", "--whitespace=nowarn", folder / "patch")
        except ImageError:  # gold does not apply as a patch, which its trial reports
            return
        for path, base_text in base_texts.items():
            if path.endswith(".py") and (tree / path).is_file():
                yield path, base_text, (tree / path).read_bytes().decode("utf-8", "replace")


def is_repository_task(task: Task) -> bool:
    """Return whether gold is a patch of a repository."""
    return bool(task.gold) and "FAIL_TO_PASS" in task.metadata


def fix_leaks(task: Task, workspace: object) -> Iterator[tuple[str, str]]:
    """Yield path and description of each location where the code of a task's fix can be read.

    Args:
        task: The task; other tasks than repository tasks with gold give no leaks.
        workspace: The workspace of a new episode; only a sandbox is searched.

    Raises:
        SandboxError: The sandbox died.
    """
    if not isinstance(workspace, SandboxBackend) or not is_repository_task(task):
        return
    try:
        plan = make_plan(task)
    except TaskError:  # the trials of the task report the error
        return
    with tempfile.TemporaryDirectory(prefix="intercode-leaks-") as folder:
        yield from FixLeakScan(task, workspace, plan, Path(folder)).run()


def _added_lines(patch: str) -> Iterator[GoldAddedLines]:
    """Yield the lines that a patch adds, file by file."""
    lines: dict[str, list[bytes]] = {}
    path = ""
    for row in patch.splitlines():
        if row.startswith("+++ "):
            path = re.sub(r"^b/", "", row[4:].partition("\t")[0])
        elif row.startswith("+"):
            lines.setdefault(path, []).append(encode(row[1:]).strip())
    for path, added_lines in lines.items():
        yield GoldAddedLines(path, tuple(dict.fromkeys(line for line in added_lines if line)))


def _select_lines(lines: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the longest lines; empty if their total length is too short to prove the fix."""
    code = [line for line in lines if not line.startswith(_COMMENTS)]
    long_lines = [line for line in code if len(line) >= _MIN_LINE_LENGTH]
    selected_lines = sorted(long_lines or code, key=len, reverse=True)[:_LINES]
    return tuple(selected_lines) if sum(map(len, selected_lines)) >= _MIN_TOTAL_LENGTH else ()


def _code(source: str) -> str:
    """Return a Python source without comments, because a compiled file has none."""
    return re.sub(r"(?m)#.*$", "", source)


def _suffixes(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.removeprefix("*") for name in names)


def _read_loose_object(path: str, content: bytes) -> bytes | None:
    """Return the content of a loose git object; None for any other file."""
    if len(PurePosixPath(path).name) < 38 or len(PurePosixPath(path).parent.name) != 2:
        return None
    try:
        return zlib.decompressobj().decompress(content, MAX_FILE_SIZE).partition(b"\0")[2]
    except zlib.error:
        return None


def _expand_archive(
    location: str, archive_content: bytes, depth: int = 0
) -> Iterator[tuple[str, bytes]]:
    """Yield a file, or all members if the file is an archive; expand nested archives as well."""
    is_archive = False
    try:
        for name, content in _members(archive_content) if depth < _MAX_DEPTH else ():
            is_archive = True
            member_location = f"{location}: {name}" if depth == 0 else f"{location}/{name}"
            yield from _expand_archive(member_location, content, depth + 1)
    except (*DAMAGE, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        pass  # the archive is encrypted, or damaged: then an agent cannot read it either
    if not is_archive:
        yield location, archive_content


def _members(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the members of an archive; none for other files."""
    if content[:4] == b"PK\3\4":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for entry in archive.infolist():
                if not entry.is_dir() and entry.file_size <= MAX_FILE_SIZE:
                    yield entry.filename, archive.read(entry)
        return
    for magic, opener in _OPENERS.items():
        if content.startswith(magic):
            with opener(io.BytesIO(content)) as file:
                content = file.read(MAX_FILE_SIZE)
            if content[257:262] != b"ustar":
                yield "", content
                return
    if content[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for member in tar:
                if member.isfile() and (file_ := tar.extractfile(member)) is not None:
                    yield member.name, file_.read(MAX_FILE_SIZE)


_OPENERS: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}

_COMPARE = """\
import base64, json, marshal, sys
from importlib.util import MAGIC_NUMBER
from types import CodeType

def functions(code):
    parts = [part for part in code.co_consts if isinstance(part, CodeType)]
    plain = [repr(part) for part in code.co_consts if not isinstance(part, CodeType)]
    yield code.co_name, code.co_code, code.co_names, code.co_varnames, tuple(plain)
    for part in parts:
        yield from functions(part)

def compiled(text):
    for level in (0, 1, 2):
        try:
            yield from functions(compile(text, "x", "exec", dont_inherit=True, optimize=level))
        except (SyntaxError, ValueError):
            pass

message = json.load(sys.stdin)
fixed = set()
for before, after in message["sources"]:
    fixed |= set(compiled(after)) - set(compiled(before))
fixed = {one for one in fixed if one[0] != "<module>"} or fixed
found = []
for place, data in message["compiled"].items():
    data = base64.b64decode(data)
    try:
        if data[:4] == MAGIC_NUMBER and not fixed.isdisjoint(functions(marshal.loads(data[16:]))):
            found.append(place)
    except (EOFError, TypeError, ValueError):
        pass
print(json.dumps(found))
"""
"""A program that compares compiled files with sources. The image's own Python runs the program,
because only the Python version that compiled a file can read the file."""
