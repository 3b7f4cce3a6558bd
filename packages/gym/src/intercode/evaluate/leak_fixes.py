"""A search for a fix's code in everything that a repository task's agent can read.

The search looks for gold's added lines in files, in archives, and in every git object, reachable or
not. Archives are wheels, eggs, zip files and tarballs, including those in pip's cache. Compiled
files are compared function by function. Short lines, and lines that the base's tracked files
contain, do not count.
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
from intercode.rewards.swe_plan import SwePlan, make_plan, patch_paths
from intercode.task import Task
from intercode_sandbox.base import SandboxBackend
from intercode_sandbox.images.archive import DAMAGE
from intercode_sandbox.images.repository import Git
from intercode_sandbox.units import MIB

MAX_FILE_SIZE = 512 * MIB
"""Maximum size of a searched file, in bytes."""
MAX_TOTAL_SIZE = 2048 * MIB
"""Maximum number of searched bytes for one task."""
SHARE = 0.8
"""The share of a file's new lines that proves the fix: an older version may differ in some."""
_LINES = 12
"""Maximum number of a file's lines in the search: its longest."""
_ANCHORS = 3
"""Anchor lines of a file: by `_LINES` and `SHARE`, any match contains at least one of them."""
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
class Part:
    """The significant lines that gold adds to one file."""

    path: str
    lines: tuple[bytes, ...]

    def may_be_in(self, name: str) -> bool:
        """Return whether these lines in a file of that name prove the fix: few may be chance."""
        file_name = self.path.rpartition("/")[2]
        return name.startswith(file_name) or len(self.lines) >= 3 or sum(map(len, self.lines)) >= 40

    def is_in(self, data: bytes) -> bool:
        """Return whether a text contains the lines, up to the permitted number of missing lines."""
        max_missing = int(len(self.lines) * (1 - SHARE))
        missing_count = 0
        for line in self.lines:
            missing_count += line not in data
            if missing_count > max_missing:
                return False
        rows = {row.strip() for row in data.splitlines()}
        return sum(line not in rows for line in self.lines) <= max_missing


@dataclass
class Search:
    """The search of one task's sandbox."""

    task: Task
    sandbox: SandboxBackend
    plan: SwePlan
    scratch: Path
    parts: list[Part] = field(default_factory=list)
    compiled_files: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Location → path and content of a compiled file."""
    remaining_bytes: int = MAX_TOTAL_SIZE

    def run(self) -> Iterator[tuple[str, str]]:
        """Yield path and description of each location where the code of a fix can be read."""
        for gold in self.task.gold:
            self.parts += _parts(gold)
        self._drop_base_lines()
        if not self.parts:
            return
        packs: dict[str, bytes] = {}
        for path in dict.fromkeys(
            (*self._find_by_lines(), *self._find_archives(), *self._find_by_name())
        ):
            data = self._read(path)
            if path.endswith(_suffixes(_STORES)):
                packs[path] = data
            elif (content := _read_loose_object(path, data)) is not None:
                yield from self._report_place(
                    path, self._search_content(path, content, is_object=True)
                )
            else:
                for place, member_content in _expand_archive(path, data):
                    if not self._spend(member_content):
                        break  # a small archive can expand beyond any machine's capacity
                    yield from self._report_place(
                        path, self._search_content(place, member_content, path)
                    )
        for path, pack in packs.items():
            yield from self._report_place(path, self._search_pack(pack))
        for place in self._find_compiled_code():
            yield self.compiled_files[place][0], f"compiled code of gold is in {place}"
        if self.remaining_bytes < 0:
            yield (
                "/",
                f"more than {MAX_TOTAL_SIZE // MIB} MiB are readable: only a part was searched",
            )

    def _report_place(self, path: str, place: str) -> Iterator[tuple[str, str]]:
        if place:
            yield path, f"the lines that gold adds are in {place}"

    def _drop_base_lines(self) -> None:
        """Remove the lines that tracked files already contain."""
        gold_lines = b"\n".join(line for part in self.parts for line in part.lines)
        grep = ["git", "-c", "safe.directory=*", "grep", "-haF", "-f", "-", "--", "."]
        result = self.sandbox.exec(
            grep, stdin=gold_lines, cwd=self.plan.directory, timeout=_SECONDS, output_limit=_OUTPUT
        )
        base_lines = {row.strip() for row in result.stdout.splitlines()} if gold_lines else set()
        remaining_parts = [
            Part(p.path, tuple(n for n in p.lines if n not in base_lines)) for p in self.parts
        ]
        remaining_parts = [Part(p.path, _select_lines(p.lines)) for p in remaining_parts]
        self.parts = [part for part in dict.fromkeys(remaining_parts) if part.lines]

    def _find_by_lines(self) -> list[str]:
        """Return the image's files that contain an anchor line of gold."""
        lines = [line for part in self.parts for line in part.lines[:_ANCHORS]]
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
        skip = [word for name in ("/proc", "/sys", "/dev") for word in ("-o", "-path", name)][1:]
        return self._paths(["find", "/", *options, "(", *skip, ")", "-prune", "-o", "-type", "f",
                            "(", *name_tests, ")", "-print0"])  # fmt: skip

    def _paths(self, argv: Sequence[str | bytes]) -> list[str]:
        result = self.sandbox.exec(argv, cwd="/", timeout=_SECONDS, output_limit=_OUTPUT)
        return [decode(path) for path in result.stdout.split(b"\0")[:-1]]

    def _read(self, path: str) -> bytes:
        try:
            data = self.sandbox.read_file(path, limit=MAX_FILE_SIZE)
        except (OSError, OutputLimitError):
            return b""
        return data if self._spend(data) else b""

    def _spend(self, data: bytes) -> bool:
        self.remaining_bytes -= len(data)
        return self.remaining_bytes >= 0

    def _search_content(
        self, place: str, data: bytes, path: str = "", *, is_object: bool = False
    ) -> str:
        """Return the location if its content has the lines; keep a compiled file for later."""
        if place.endswith(".pyc"):
            self.compiled_files[place] = path, data
            return ""
        name = place.rpartition("/")[2].rpartition(" ")[2]
        for part in self.parts:
            if (is_object or part.may_be_in(name)) and part.is_in(data):
                return place
        return ""

    def _search_pack(self, data: bytes) -> str:
        """Search the objects of a pack, or of a bundle, which is a pack after some header lines."""
        path = Path(tempfile.mkdtemp(dir=self.scratch))
        git = Git(path)
        start = data.find(b"PACK")
        (path / "pack").write_bytes(data[max(start, 0) :])
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
        except ImageError:  # damaged or incomplete: the agent's git cannot read it either
            return ""
        return ""

    def _find_compiled_code(self) -> list[str]:
        """Return the compiled files with a function, or with names, that only gold has."""
        sources: list[tuple[str, str, str]] = []
        for gold in self.task.gold if self.compiled_files else ():
            sources += self._read_sources(gold)
        if not sources:
            return []
        data = {
            place: base64.b64encode(data).decode()
            for place, (_, data) in self.compiled_files.items()
        }
        pairs = [pair for _, *pair in sources]
        result = self.sandbox.exec(
            [self.plan.python, "-I", "-c", _COMPARE],
            stdin=json.dumps({"sources": pairs, "compiled": data}).encode(),
            cwd="/",
            timeout=_SECONDS,
            output_limit=_OUTPUT,
        )
        matching_places = set(json.loads(result.stdout)) if result.ok else set()
        return [
            place for place in data if place in matching_places or self._has_words(place, sources)
        ]

    def _has_words(self, place: str, sources: Sequence[tuple[str, str, str]]) -> bool:
        """Return whether a compiled file has the names and words that gold adds to its source."""
        stem = PurePosixPath(place).name.partition(".")[0]
        for path, base_source, gold_source in sources:
            words = set(_WORD.findall(_code(gold_source))) - set(_WORD.findall(base_source))
            match_count = sum(encode(word) in self.compiled_files[place][1] for word in words)
            is_own = stem == PurePosixPath(path).stem
            if (
                is_own
                and sum(map(len, words)) >= _MIN_LINE_LENGTH
                and match_count >= SHARE * len(words)
            ):
                return True
        return False

    def _read_sources(self, gold: str) -> Iterator[tuple[str, str, str]]:
        """Yield path, and content before and after, of each Python file that gold changes."""
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        git, tree = Git(folder), folder / "x"
        git("init", "--quiet", "--template=", tree)
        base_texts: dict[str, str] = {}
        for path in patch_paths(gold):
            data = self._read(str(PurePosixPath(self.plan.directory, path)))
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            if data:
                (tree / path).write_bytes(data)
            base_texts[path] = data.decode("utf-8", "replace")
        (folder / "patch").write_bytes(encode(gold.rstrip("\n") + "\n"))
        try:
            git("-C", tree, "apply", "--whitespace=nowarn", folder / "patch")
        except ImageError:  # gold does not apply: its trial reports the error
            return
        for path, text in base_texts.items():
            if path.endswith(".py") and (tree / path).is_file():
                yield path, text, (tree / path).read_bytes().decode("utf-8", "replace")


def is_repository_task(task: Task) -> bool:
    """Return whether gold is a patch of a repository."""
    return bool(task.gold) and "FAIL_TO_PASS" in task.metadata


def fix_leaks(task: Task, place: object) -> Iterator[tuple[str, str]]:
    """Yield path and description of each location where the code of a task's fix can be read.

    Args:
        task: The task; other tasks than repository tasks with gold give no leaks.
        place: The workspace of a new episode; only a sandbox is searched.

    Raises:
        SandboxError: The sandbox died.
    """
    if not isinstance(place, SandboxBackend) or not is_repository_task(task):
        return
    try:
        plan = make_plan(task)
    except TaskError:  # its trials report the error
        return
    with tempfile.TemporaryDirectory(prefix="intercode-leaks-") as folder:
        yield from Search(task, place, plan, Path(folder)).run()


def _parts(patch: str) -> Iterator[Part]:
    """Yield the lines that a patch adds, file by file."""
    lines: dict[str, list[bytes]] = {}
    path = ""
    for row in patch.splitlines():
        if row.startswith("+++ "):
            path = re.sub(r"^b/", "", row[4:].partition("\t")[0])
        elif row.startswith("+"):
            lines.setdefault(path, []).append(encode(row[1:]).strip())
    for path, added_lines in lines.items():
        yield Part(path, tuple(dict.fromkeys(line for line in added_lines if line)))


def _select_lines(lines: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the longest lines; none if their total length is too short to prove anything."""
    code = [line for line in lines if not line.startswith(_COMMENTS)]
    long_lines = [line for line in code if len(line) >= _MIN_LINE_LENGTH]
    selected_lines = sorted(long_lines or code, key=len, reverse=True)[:_LINES]
    return tuple(selected_lines) if sum(map(len, selected_lines)) >= _MIN_TOTAL_LENGTH else ()


def _code(source: str) -> str:
    """Return a source without its comments, which a compiled file lacks."""
    return re.sub(r"(?m)#.*$", "", source)


def _suffixes(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.removeprefix("*") for name in names)


def _read_loose_object(path: str, data: bytes) -> bytes | None:
    """Return the content of a loose git object; None for any other file."""
    if len(PurePosixPath(path).name) < 38 or len(PurePosixPath(path).parent.name) != 2:
        return None
    try:
        return zlib.decompressobj().decompress(data, MAX_FILE_SIZE).partition(b"\0")[2]
    except zlib.error:
        return None


def _expand_archive(place: str, data: bytes, depth: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield a file, or all members if the file is an archive; expand nested archives as well."""
    is_archive = False
    try:
        for name, content in _members(data) if depth < _MAX_DEPTH else ():
            is_archive = True
            member_place = f"{place}: {name}" if depth == 0 else f"{place}/{name}"
            yield from _expand_archive(member_place, content, depth + 1)
    except (*DAMAGE, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        pass  # the archive is damaged for an agent as well, or encrypted
    if not is_archive:
        yield place, data


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the members of an archive; none for other files."""
    if data[:4] == b"PK\3\4":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                if not entry.is_dir() and entry.file_size <= MAX_FILE_SIZE:
                    yield entry.filename, archive.read(entry)
        return
    for magic, opener in _OPENERS.items():
        if data.startswith(magic):
            with opener(io.BytesIO(data)) as file:
                data = file.read(MAX_FILE_SIZE)
            if data[257:262] != b"ustar":
                yield "", data
                return
    if data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
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
"""A program for the image's own Python, which alone can read its compiled files."""
