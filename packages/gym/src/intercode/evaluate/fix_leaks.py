"""Search for the code of a fix in all that the agent of a repository's task can read.

The lines that gold adds are searched in files, in archives (wheels, eggs, zip files, tarballs,
those of pip's cache included), and in every object of git's, reachable or not. Compiled files are
compared function by function. Lines that tracked files of the base have, too, say nothing, nor do
short ones.
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

LARGEST = 512 * MIB
"""Larger files are not searched."""
MOST = 2048 * MIB
"""The most bytes of content that are searched for one task."""
SHARE = 0.8
"""The share of a file's new lines that shows the fix: an older version may differ in some."""
_LINES = 12
"""The number of lines of a file that are looked for: its longest."""
_ANCHORS = 3
"""The number of lines of a file of which one must be in what is searched: `_LINES` and `SHARE`."""
_SHORTEST, _SHORTEST_LINE = 8, 12
_DEEPEST = 3
"""The number of archives that may lie in one another."""
_SECONDS = 300.0
_OUTPUT = 64 * MIB
_ARCHIVES = (
    "*.whl", "*.zip", "*.egg", "*.tar", "*.tar.*", "*.tgz", "*.tbz2", "*.txz", "*.body",
)  # fmt: skip
"""Names of archives; the last one is of pip's cache."""
_STORES = ("*.pack", "*.bundle")
_LOOSE = "*/[0-9a-f][0-9a-f]/" + "[0-9a-f]" * 38 + "*"
_WORD = re.compile(r"[^\W\d]\w{3,}")
_COMMENTS = (b"#", b"//", b'"""', b"'''")


@dataclass(frozen=True)
class Part:
    """The lines that gold adds to one file, and that say something."""

    path: str
    lines: tuple[bytes, ...]

    def may_be_in(self, name: str) -> bool:
        """Whether a file of that name that has the lines has them from there: few may be chance."""
        own = self.path.rpartition("/")[2]
        return name.startswith(own) or len(self.lines) >= 3 or sum(map(len, self.lines)) >= 40

    def is_in(self, data: bytes) -> bool:
        """Whether a text has the lines."""
        allowed = int(len(self.lines) * (1 - SHARE))
        missing = 0
        for line in self.lines:
            missing += line not in data
            if missing > allowed:
                return False
        rows = {row.strip() for row in data.splitlines()}
        return sum(line not in rows for line in self.lines) <= allowed


@dataclass
class Search:
    """The search of one task's sandbox."""

    task: Task
    sandbox: SandboxBackend
    plan: SwePlan
    scratch: Path
    parts: list[Part] = field(default_factory=list)
    compiled: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Place → path and content of a compiled file."""
    left: int = MOST

    def run(self) -> Iterator[tuple[str, str]]:
        """Yield path and description of each place where the code of a fix can be read."""
        for gold in self.task.gold:
            self.parts += _parts(gold)
        self._forget_base()
        if not self.parts:
            return
        packs: dict[str, bytes] = {}
        for path in dict.fromkeys((*self._with_lines(), *self._archives(), *self._of_that_name())):
            data = self._read(path)
            if path.endswith(_suffixes(_STORES)):
                packs[path] = data
            elif (content := _loose(path, data)) is not None:
                yield from self._told(path, self._look(path, content, is_object=True))
            else:
                for place, inner in _opened(path, data):
                    if not self._spend(inner):
                        break  # an archive of a few bytes can hold more than any machine reads
                    yield from self._told(path, self._look(place, inner, path))
        for path, pack in packs.items():
            yield from self._told(path, self._look_in_pack(pack))
        for place in self._with_code():
            yield self.compiled[place][0], f"code of gold's is compiled in {place}"
        if self.left < 0:
            yield "/", f"more than {MOST // MIB} MiB can be read: not all was searched"

    def _told(self, path: str, place: str) -> Iterator[tuple[str, str]]:
        if place:
            yield path, f"the lines that gold adds stand in {place}"

    def _forget_base(self) -> None:
        """Drop the lines that tracked files have already."""
        wanted = b"\n".join(line for part in self.parts for line in part.lines)
        grep = ["git", "-c", "safe.directory=*", "grep", "-haF", "-f", "-", "--", "."]
        done = self.sandbox.exec(
            grep, stdin=wanted, cwd=self.plan.directory, timeout=_SECONDS, output_limit=_OUTPUT
        )
        known = {row.strip() for row in done.stdout.splitlines()} if wanted else set()
        left = [Part(p.path, tuple(n for n in p.lines if n not in known)) for p in self.parts]
        left = [Part(p.path, _saying(p.lines)) for p in left]
        self.parts = [part for part in dict.fromkeys(left) if part.lines]

    def _with_lines(self) -> list[str]:
        """List the files of the image that have a line of gold's."""
        lines = [line for part in self.parts for line in part.lines[:_ANCHORS]]
        anchors = [argument for line in lines for argument in (b"-e", line)]
        find = f"find / -xdev -path /proc -prune -o -type f -size -{LARGEST // 1024}k -print0"
        grep = f'{find} | xargs -0 -r grep -laF "$@" -- | tr "\\n" "\\0"'
        return self._paths(["/bin/sh", "-c", grep, "sh", *anchors])

    def _archives(self) -> list[str]:
        """List archives, and packs and other objects of git's, which `grep` does not read."""
        tests = [*(("-name", name) for name in (*_ARCHIVES, *_STORES)), ("-path", _LOOSE)]
        return self._find(["-xdev"], tests)

    def _of_that_name(self) -> list[str]:
        """List files that are named like one that gold changes, or are compiled from such a one."""
        tests = []
        for path in {path for gold in self.task.gold for path in patch_paths(gold)}:
            pure = PurePosixPath(re.sub(r"([][*?\\])", r"\\\1", path))
            folder = f"*/{pure.parent.name}" if pure.stem == "__init__" else "*"
            tests += [("-path", f"{folder}/{pure.name}*")]
            if pure.suffix == ".py":
                tests += [("-path", f"{folder}/{pure.stem}.pyc")]
                tests += [("-path", f"{folder}/__pycache__/{pure.stem}.*")]
        return self._find([], tests)

    def _find(self, options: Sequence[str], tests: Sequence[tuple[str, str]]) -> list[str]:
        either = [word for test in tests for word in ("-o", *test)][1:]
        skip = [word for name in ("/proc", "/sys", "/dev") for word in ("-o", "-path", name)][1:]
        return self._paths(["find", "/", *options, "(", *skip, ")", "-prune", "-o", "-type", "f",
                            "(", *either, ")", "-print0"])  # fmt: skip

    def _paths(self, argv: Sequence[str | bytes]) -> list[str]:
        done = self.sandbox.exec(argv, cwd="/", timeout=_SECONDS, output_limit=_OUTPUT)
        return [decode(path) for path in done.stdout.split(b"\0")[:-1]]

    def _read(self, path: str) -> bytes:
        try:
            data = self.sandbox.read_file(path, limit=LARGEST)
        except (OSError, OutputLimitError):
            return b""
        return data if self._spend(data) else b""

    def _spend(self, data: bytes) -> bool:
        self.left -= len(data)
        return self.left >= 0

    def _look(self, place: str, data: bytes, path: str = "", *, is_object: bool = False) -> str:
        """Return the place if it has the lines; keep a compiled file for later."""
        if place.endswith(".pyc"):
            self.compiled[place] = path, data
            return ""
        name = place.rpartition("/")[2].rpartition(" ")[2]
        for part in self.parts:
            if (is_object or part.may_be_in(name)) and part.is_in(data):
                return place
        return ""

    def _look_in_pack(self, data: bytes) -> str:
        """Search the objects of a pack, or of a bundle, which is a pack after some lines."""
        path = Path(tempfile.mkdtemp(dir=self.scratch))
        git = Git(path)
        start = data.find(b"PACK")
        (path / "pack").write_bytes(data[max(start, 0) :])
        git("init", "--quiet", "--bare", "--template=", path / "x")
        try:
            with (path / "pack").open("rb") as file:
                git("--git-dir", path / "x", "index-pack", "--stdin", "--fix-thin", stdin=file)
            for name, content in git.objects(path / "x", LARGEST):
                if not self._spend(content):
                    return ""
                if found := self._look(f"git's object {name[:12]}", content, is_object=True):
                    return found
        except ImageError:  # it is damaged, or incomplete: git could not read it either
            return ""
        return ""

    def _with_code(self) -> list[str]:
        """Return the compiled files with a function, or with the names, that only gold has."""
        sources: list[tuple[str, str, str]] = []
        for gold in self.task.gold if self.compiled else ():
            sources += self._sources(gold)
        if not sources:
            return []
        data = {
            place: base64.b64encode(data).decode() for place, (_, data) in self.compiled.items()
        }
        pairs = [pair for _, *pair in sources]
        done = self.sandbox.exec(
            [self.plan.python, "-I", "-c", _COMPARE],
            stdin=json.dumps({"sources": pairs, "compiled": data}).encode(),
            cwd="/",
            timeout=_SECONDS,
            output_limit=_OUTPUT,
        )
        same = set(json.loads(done.stdout)) if done.ok else set()
        return [place for place in data if place in same or self._has_words(place, sources)]

    def _has_words(self, place: str, sources: Sequence[tuple[str, str, str]]) -> bool:
        """Return whether a compiled file has the names and words that gold adds to its source."""
        stem = PurePosixPath(place).name.partition(".")[0]
        for path, before, after in sources:
            words = set(_WORD.findall(_code(after))) - set(_WORD.findall(before))
            found = sum(encode(word) in self.compiled[place][1] for word in words)
            is_own = stem == PurePosixPath(path).stem
            if is_own and sum(map(len, words)) >= _SHORTEST_LINE and found >= SHARE * len(words):
                return True
        return False

    def _sources(self, gold: str) -> Iterator[tuple[str, str, str]]:
        """Yield path, and content before and after, of each file of Python's that gold changes."""
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        git, tree = Git(folder), folder / "x"
        git("init", "--quiet", "--template=", tree)
        before: dict[str, str] = {}
        for path in patch_paths(gold):
            data = self._read(str(PurePosixPath(self.plan.directory, path)))
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            if data:
                (tree / path).write_bytes(data)
            before[path] = data.decode("utf-8", "replace")
        (folder / "patch").write_bytes(encode(gold.rstrip("\n") + "\n"))
        try:
            git("-C", tree, "apply", "--whitespace=nowarn", folder / "patch")
        except ImageError:  # gold does not apply, which its trial says
            return
        for path, text in before.items():
            if path.endswith(".py") and (tree / path).is_file():
                yield path, text, (tree / path).read_bytes().decode("utf-8", "replace")


def is_of_repository(task: Task) -> bool:
    """Return whether gold is a patch of a repository."""
    return bool(task.gold) and "FAIL_TO_PASS" in task.metadata


def fix_leaks(task: Task, place: object) -> Iterator[tuple[str, str]]:
    """Yield path and description of each place where the code of a task's fix can be read.

    Args:
        task: The task; nothing is searched unless it is of a repository, and has gold.
        place: The place of an episode that has just begun.

    Raises:
        SandboxError: The sandbox died.
    """
    if not isinstance(place, SandboxBackend) or not is_of_repository(task):
        return
    try:
        plan = make_plan(task)
    except TaskError:  # which its trials say
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
    for path, added in lines.items():
        yield Part(path, tuple(dict.fromkeys(line for line in added if line)))


def _saying(lines: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the longest lines; none if they are so short that they may stand anywhere."""
    code = [line for line in lines if not line.startswith(_COMMENTS)]
    long = [line for line in code if len(line) >= _SHORTEST_LINE]
    chosen = sorted(long or code, key=len, reverse=True)[:_LINES]
    return tuple(chosen) if sum(map(len, chosen)) >= _SHORTEST else ()


def _code(source: str) -> str:
    """Return a source without comments, which a compiled file does not have."""
    return re.sub(r"(?m)#.*$", "", source)


def _suffixes(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.removeprefix("*") for name in names)


def _loose(path: str, data: bytes) -> bytes | None:
    """Return the content of one of git's objects that has a file of its own."""
    if len(PurePosixPath(path).name) < 38 or len(PurePosixPath(path).parent.name) != 2:
        return None
    try:
        return zlib.decompressobj().decompress(data, LARGEST).partition(b"\0")[2]
    except zlib.error:
        return None


def _opened(place: str, data: bytes, depth: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield a file, or all that is in it if it is an archive; archives in it likewise."""
    is_archive = False
    try:
        for name, content in _members(data) if depth < _DEEPEST else ():
            is_archive = True
            inner = f"{place}: {name}" if depth == 0 else f"{place}/{name}"
            yield from _opened(inner, content, depth + 1)
    except (*DAMAGE, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        pass  # for an agent it ends there, too; or it is encrypted
    if not is_archive:
        yield place, data


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an archive; none if it is not one."""
    if data[:4] == b"PK\3\4":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                if not entry.is_dir() and entry.file_size <= LARGEST:
                    yield entry.filename, archive.read(entry)
        return
    for magic, opener in _COMPRESSED.items():
        if data.startswith(magic):
            with opener(io.BytesIO(data)) as file:
                data = file.read(LARGEST)
            if data[257:262] != b"ustar":
                yield "", data
                return
    if data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                if member.isfile() and (file_ := tar.extractfile(member)) is not None:
                    yield member.name, file_.read(LARGEST)


_COMPRESSED: dict[bytes, Callable[[BinaryIO], Any]] = {
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
"""A program for the image's own Python, which alone can read what it has compiled."""
