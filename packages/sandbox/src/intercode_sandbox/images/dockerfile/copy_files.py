"""The instructions ``COPY`` and ``ADD``: search of the sources, and copies of them into a layer.

This module also has the rules of ``.dockerignore`` files.
"""

from __future__ import annotations

import io
import os
import posixpath
import re
import stat
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from intercode_sandbox.errors import ImageError
from intercode_sandbox.host_files import file_digest, joint_digest
from intercode_sandbox.images.base import Image
from intercode_sandbox.images.dockerfile.instructions import DockerfileInstruction
from intercode_sandbox.images.host import host_mounts
from intercode_sandbox.images.tarballs import LayerUnpacker, split_name
from intercode_sandbox.images.tree import MergedTree, MergedTreeEntry

_MAX_DOUBLE_STARS = 8
"""Maximum number of ``**`` in a pattern: each multiplies the time of a match."""
_WILD = re.compile(r"[*?\[]")
_HEREDOC = re.compile(r"\d*<<(?P<tabs>-?)(?P<quote>[\"']?)(?P<name>[^\"']+)(?P=quote)")


def find(tree: MergedTree, source: str) -> list[CopySource]:
    """Return the files and folders that a source of ``COPY`` names.

    Args:
        tree: The build's context, or the files of another image.
        source: A path, or a pattern.

    Raises:
        LookupError: No path matches.
        ValueError: The source leads out of the context, or the pattern is malformed.
    """
    path = posixpath.normpath(f"/{source}").lstrip("/")
    if ".." in source.split("/") and posixpath.normpath(source).startswith(".."):
        raise ValueError(f"{source!r} is outside of the build context")
    source_parts = tree.resolve(path)
    if source_parts is not None:
        return [CopySource(posixpath.basename(path), tree, source_parts)]
    if not _WILD.search(path):
        raise LookupError(f"there is no {source!r}{_location_text(tree)}")
    items = []
    for matching_path in _match_paths(tree, path):
        target_parts = tree.resolve(matching_path)
        if target_parts is None:
            raise LookupError(f"the link {matching_path!r} points to no file{_location_text(tree)}")
        items.append(CopySource(posixpath.basename(matching_path), tree, target_parts))
    if not items:
        raise LookupError(f"nothing matches {source!r}{_location_text(tree)}")
    return items


def documents(
    instruction: DockerfileInstruction, expand_word: Callable[[str], str]
) -> list[CopySource]:
    """Return the files whose content is a heredoc of the instruction.

    Args:
        instruction: The instruction.
        expand_word: A function that expands a word.
    """
    contents = dict(instruction.heredocs)
    items: list[CopySource] = []
    for value in instruction.values[:-1] if contents else ():
        match = _HEREDOC.fullmatch(value)
        if match is None or match["name"] not in contents:
            continue
        content = contents[match["name"]]
        if match["tabs"]:
            content = "".join(line.lstrip("\t") for line in content.splitlines(keepends=True))
        if not match["quote"]:
            content = _expand_document(content, expand_word)
        items.append(CopySource(match["name"], content=content.encode("utf-8", "surrogateescape")))
    return items


def digest(
    tree: MergedTree,
    items: Sequence[CopySource],
    documents: Sequence[CopySource],
    image_digest: str,
) -> str:
    """Return a digest of all sources of an instruction.

    For files of the context, the digest covers names, kinds, modes and content. For files of an
    image, it covers the image's digest and the names.

    Args:
        tree: The tree of the items.
        items: The files and folders of the tree.
        documents: The files from heredocs.
        image_digest: The digest of the image whose files are copied; empty: the context's files.
    """
    digest_inputs: list[str | bytes] = [image_digest]
    for item in documents:
        digest_inputs += ["document", item.name, item.content]
    for item in items:
        digest_inputs += [item.name, "/".join(item.parts)]
        entry = tree.look(item.parts)
        if image_digest or entry is None:
            continue
        digest_inputs += _entry_facts("", entry)
        if entry.is_dir:
            for descendant_parts, descendant in tree.walk(item.parts):
                digest_inputs += _entry_facts(
                    "/".join(descendant_parts[len(item.parts) :]), descendant
                )
    return joint_digest(*digest_inputs)


def _location_text(tree: MergedTree) -> str:
    return f" in {tree.name}" if tree.name else ""


def _match_paths(tree: MergedTree, pattern: str) -> list[str]:
    """Return all paths of a tree that match a pattern. A star does not match a slash."""
    paths = [""]
    for component in pattern.split("/"):
        expression = glob(re.sub(r"\*{2,}", "*", component))
        paths = [
            f"{path}/{name}".lstrip("/")
            for path in paths
            for name in _list_names(tree, path)
            if expression.fullmatch(name)
        ]
    return paths


def _list_names(tree: MergedTree, path: str) -> list[str]:
    parts = tree.resolve(path)
    entry = None if parts is None else tree.look(parts)
    if parts is None or entry is None or not entry.is_dir:
        return []
    return tree.names(parts)


def _entry_facts(path: str, entry: MergedTreeEntry) -> list[str | bytes]:
    mode = entry.info.st_mode
    if entry.is_link:
        return [path, "link", str(entry.path.readlink())]
    content = ""
    if stat.S_ISREG(mode):
        content = file_digest(entry.path)
    return [path, f"{mode:o}", content]


def _expand_document(content: str, expand_word: Callable[[str], str]) -> str:
    """Expand the variables in the content of a heredoc; keep its quotes, as a shell does."""
    return "".join(
        expand_word(re.sub(r"([\"'])", r"\\\1", line)) for line in content.splitlines(keepends=True)
    )


@dataclass(frozen=True, slots=True)
class _IgnoreRule:
    pattern: re.Pattern[str]
    exception: bool


class DockerIgnore:
    """The rules of a ``.dockerignore`` file. For each path the last matching rule decides.

    Args:
        text: The content of the file.
    """

    def __init__(self, text: str = "") -> None:
        self._rules = [rule for line in text.splitlines() if (rule := _parse_rule(line))]
        self.has_exceptions = any(rule.exception for rule in self._rules)
        """Whether the file has exceptions, by which a file in an ignored folder may be copied."""

    def __call__(self, path: str) -> bool:
        """Return whether a path is ignored, because of a rule for it or for a folder above.

        Args:
            path: The path, relative to the context.
        """
        parts = path.split("/")
        prefixes = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        for rule in reversed(self._rules):
            if any(rule.pattern.fullmatch(prefix) for prefix in prefixes):
                return not rule.exception
        return False


def find_ignore(dockerfile: Path, context: Path) -> tuple[DockerIgnore, Path | None]:
    """Return the rules for ignored files of a Dockerfile, and the path of their file or None.

    A file ``NAME.dockerignore`` beside the Dockerfile ``NAME`` takes precedence over the file
    ``.dockerignore`` in the context.

    Raises:
        ImageError: The file cannot be read, or a line is malformed.
    """
    dockerfile_ignore = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
    ignore_path = next(
        (
            candidate
            for candidate in (dockerfile_ignore, context / ".dockerignore")
            if candidate.is_file()
        ),
        None,
    )
    if ignore_path is None:
        return DockerIgnore(), None
    try:
        return DockerIgnore(ignore_path.read_text(encoding="utf-8-sig")), ignore_path
    except (OSError, ValueError, re.error) as error:
        raise ImageError(f"cannot read {ignore_path}: {error}") from error


def glob(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of ``.dockerignore`` or ``COPY``, for paths without a leading slash.

    The syntax is that of Go's ``filepath.Match``, with ``**`` in addition. Text between two stars
    is matched at its first occurrence only. Otherwise there could be names for which the regular
    expression tries all divisions of the name, which takes too long.

    Raises:
        ValueError: A bracket is not closed, or the pattern has too many ``**``.
    """
    fragments: list[str] = []
    position = double_star_count = 0
    star_index = -1
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if character == "*" and pattern[position : position + 1] == "*":
            star_index, double_star_count = -1, double_star_count + 1
            if double_star_count > _MAX_DOUBLE_STARS:
                raise ValueError(f"more than {_MAX_DOUBLE_STARS} times '**': {pattern[:100]}")
            while pattern[position : position + 1] == "*":
                position += 1
            if pattern[position : position + 1] == "/":
                position += 1
                fragments.append("(?:.*/)?")
            else:
                fragments.append(".*")
        elif character == "*":
            if star_index >= 0:
                fragments[star_index:] = ["(?>", *fragments[star_index:], ")"]
                fragments[star_index + 1] = "[^/]*?"
            star_index = len(fragments)
            fragments.append("[^/]*")
        elif character == "?":
            fragments.append("[^/]")
        elif character == "[":
            bracket_end = pattern.find(
                "]", position + (2 if pattern[position : position + 1] == "^" else 1)
            )
            if bracket_end < 0:
                raise ValueError(f"a bracket is not closed: {pattern}")
            fragments.append(_character_class(pattern[position:bracket_end]))
            position = bracket_end + 1
        elif character == "\\" and position < len(pattern):
            fragments.append(re.escape(pattern[position]))
            position += 1
        else:
            star_index = -1 if character == "/" else star_index
            fragments.append(re.escape(character))
    return re.compile("".join(fragments), re.DOTALL)


def _character_class(text: str) -> str:
    is_negated, text = text.startswith("^"), text.removeprefix("^")
    members = re.sub(r"([\\\[&~|^])", r"\\\1", text.replace("\\", ""))
    return f"(?!/)[{'^' if is_negated else ''}{members}]"


def _parse_rule(line: str) -> _IgnoreRule | None:
    if line.startswith("#"):
        return None
    line = line.strip()
    is_exception, line = line.startswith("!"), line.removeprefix("!").strip()
    if not line:
        return None
    pattern = posixpath.normpath(line).lstrip("/")
    if pattern == ".":
        return None
    return _IgnoreRule(glob(pattern), is_exception)


@dataclass(frozen=True, slots=True)
class CopySource:
    """A file or folder to copy."""

    name: str
    """The name that the item gets in a destination folder."""
    tree: MergedTree | None = None
    """The tree that has the item; None: the item is a heredoc."""
    parts: tuple[str, ...] = ()
    """The path of the item in the tree."""
    content: bytes = b""
    """The content of a heredoc."""


class CopyLayerWriter:
    """A writer of copied files into a layer.

    Args:
        base: The image below.
        layer: The empty folder of the layer.
        owner: The user and group id of all files except members of archives; None: root, unless
            `keep_owner` is True.
        mode: The mode of all files; None: each file keeps its mode.
        keep_owner: Whether files keep their owners if `owner` is None.
    """

    def __init__(
        self,
        base: Image,
        layer: Path,
        owner: tuple[int, int] | None,
        mode: int | None,
        keep_owner: bool = False,
    ) -> None:
        mounts = host_mounts() if base.host else ()
        mounted_names = tuple(mount.strip("/") for mount in mounts)
        self._tree = MergedTree((*base.layers, layer))
        self._unpacker = LayerUnpacker(layer, base.layers, mounted_names)
        self._owner, self._mode, self._keep_owner = owner, mode, keep_owner
        self._now = time.time()

    def finish(self) -> None:
        """Set the owners, modes and times of directories, after the last file."""
        self._unpacker.finish()

    def folders(self, path: str) -> None:
        """Create a directory and its parents, unless the image or the layer has them."""
        parts = split_name(path.strip("/"))
        for depth in range(1, len(parts) + 1):
            folder_path = "/".join(parts[:depth])
            if not self._tree.is_dir(folder_path):
                self._add(_header(folder_path, tarfile.DIRTYPE, 0o755, self._now), keep_mode=True)

    def text(self, destination: str, content: bytes) -> None:
        """Write a file with this content.

        Args:
            destination: The destination in the image.
            content: The content.
        """
        self.folders(os.path.dirname(destination))  # noqa: PTH120 - it is the image's
        header = _header(destination, tarfile.REGTYPE, 0o644, self._now)
        header.size = len(content)
        self._add(header, content)

    def file(self, source: Path, destination: str) -> None:
        """Copy a file, link or named pipe.

        Args:
            source: The path of the file on this machine.
            destination: The destination in the image.
        """
        self.folders(os.path.dirname(destination))  # noqa: PTH120 - it is the image's
        self._add_entry(source, source.lstat(), destination)

    def tree(self, tree: MergedTree, parts: tuple[str, ...], destination: str) -> None:
        """Copy the content of a directory, with the owners and modes of nested directories.

        The destination itself keeps its owner and mode, if the image has it. A nested directory
        that the image has gets those of the copied one.

        Args:
            tree: The tree that has the directory.
            parts: The path of the directory in the tree.
            destination: The destination in the image, a directory.
        """
        self.folders(destination)
        for entry_parts, entry in tree.walk(parts):
            relative_path = "/".join(entry_parts[len(parts) :])
            self._add_entry(entry.path, entry.info, f"{destination.rstrip('/')}/{relative_path}")

    def archive(self, source: Path, destination: str) -> None:
        """Unpack an archive. The members keep the archive's owners, as in Docker.

        Args:
            source: The path of the archive on this machine.
            destination: The destination in the image, a directory.
        """
        self.folders(destination)
        with tarfile.open(
            source, mode="r:*", encoding="utf-8", errors="surrogateescape"
        ) as archive_file:
            for member in archive_file:
                parts = split_name(member.name)
                if not parts:
                    continue
                member.name = "/".join((destination.strip("/"), *parts)).strip("/")
                if member.islnk():
                    link_parts = split_name(member.linkname)
                    member.linkname = "/".join((destination.strip("/"), *link_parts)).strip("/")
                self._unpacker.add(archive_file, member)

    def _add_entry(self, source: Path, info: os.stat_result, destination: str) -> None:
        kind_by_format = {
            stat.S_IFDIR: tarfile.DIRTYPE,
            stat.S_IFLNK: tarfile.SYMTYPE,
            stat.S_IFREG: tarfile.REGTYPE,
            stat.S_IFIFO: tarfile.FIFOTYPE,
        }
        kind = kind_by_format.get(stat.S_IFMT(info.st_mode))
        if kind is None:
            return  # a socket is not copied, because it is useless without its process
        header = _header(destination, kind, stat.S_IMODE(info.st_mode), info.st_mtime)
        if self._keep_owner:
            header.uid, header.gid = info.st_uid, info.st_gid
        if kind == tarfile.SYMTYPE:
            header.linkname = str(source.readlink())
            self._add(header)
        elif kind == tarfile.REGTYPE:
            header.size = info.st_size
            self._add(header, source)
        else:
            self._add(header)

    def _add(
        self, header: tarfile.TarInfo, content: bytes | Path = b"", keep_mode: bool = False
    ) -> None:
        if self._owner is not None:
            header.uid, header.gid = self._owner
        if self._mode is not None and not keep_mode:
            header.mode = self._mode
        self._unpacker.add(_FileContent(content), header)


class _FileContent:
    """The content of one file, in a form that `LayerUnpacker.add` takes in place of an archive."""

    def __init__(self, content: bytes | Path) -> None:
        self._content = content

    def extractfile(self, member: tarfile.TarInfo) -> IO[bytes]:
        """Return the content as an open file; the argument `member` is ignored."""
        if isinstance(self._content, bytes):
            return io.BytesIO(self._content)
        return self._content.open("rb")


def _header(path: str, member_type: bytes, mode: int, mtime: float) -> tarfile.TarInfo:
    header = tarfile.TarInfo(path.strip("/"))
    header.type, header.mode, header.mtime = member_type, mode, mtime
    return header


def is_archive(path: Path) -> bool:
    """Return whether a file is a tarball, compressed or not."""
    try:
        return not path.is_symlink() and tarfile.is_tarfile(path)
    except (OSError, EOFError, ValueError):
        return False
