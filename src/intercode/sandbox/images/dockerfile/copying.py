"""What ``COPY`` and ``ADD`` are to copy: found, and told apart by content."""

from __future__ import annotations

import hashlib
import posixpath
import re
import stat
from collections.abc import Callable, Sequence

from intercode.sandbox.images.base import digest_of
from intercode.sandbox.images.dockerfile.ignore import glob
from intercode.sandbox.images.dockerfile.parse import Instruction
from intercode.sandbox.images.dockerfile.steps import Item
from intercode.sandbox.images.layers import Found
from intercode.sandbox.images.tree import Tree

_WILD = re.compile(r"[*?\[]")
_HEREDOC = re.compile(r"\d*<<(?P<tabs>-?)(?P<quote>[\"']?)(?P<name>[^\"']+)(?P=quote)")


def find(tree: Tree, source: str) -> list[Item]:
    """What a source names: one thing, or all that a pattern matches.

    Raises:
        LookupError: There is nothing of that name.
        ValueError: It leads out of the context, or the pattern is not well formed.
    """
    path = posixpath.normpath(f"/{source}").lstrip("/")
    if ".." in source.split("/") and posixpath.normpath(source).startswith(".."):
        raise ValueError(f"{source!r} is outside of the folder that is built from")
    parts = tree.resolve(path)
    if parts is not None:
        return [Item(posixpath.basename(path), tree, parts)]
    if not _WILD.search(path):
        raise LookupError(f"there is no {source!r}{_where(tree)}")
    items = []
    for place in _matches(tree, path):
        found = tree.resolve(place)
        if found is None:
            raise LookupError(f"the link {place!r} leads nowhere{_where(tree)}")
        items.append(Item(posixpath.basename(place), tree, found))
    if not items:
        raise LookupError(f"nothing matches {source!r}{_where(tree)}")
    return items


def documents(instruction: Instruction, word: Callable[[str], str]) -> list[Item]:
    """The files that are written in the Dockerfile itself."""
    contents = dict(instruction.heredocs)
    items: list[Item] = []
    for value in instruction.values[:-1] if contents else ():
        match = _HEREDOC.fullmatch(value)
        if match is None or match["name"] not in contents:
            continue
        content = contents[match["name"]]
        if match["tabs"]:
            content = "".join(line.lstrip("\t") for line in content.splitlines(keepends=True))
        if not match["quote"]:
            content = _expanded(content, word)
        items.append(Item(match["name"], content=content.encode("utf-8", "surrogateescape")))
    return items


def digest(tree: Tree, items: Sequence[Item], documents: Sequence[Item], image: str) -> str:
    """Of all that is copied: names, kinds, modes and content; of an image's files, the image's."""
    parts: list[str | bytes] = [image]
    for item in documents:
        parts += ["document", item.name, item.content]
    for item in items:
        parts += [item.name, "/".join(item.parts)]
        found = tree.look(item.parts)
        if image or found is None:
            continue
        parts += _facts("", found)
        if found.is_dir:
            for place, below in tree.walk(item.parts):
                parts += _facts("/".join(place[len(item.parts) :]), below)
    return digest_of(*parts)


def _where(tree: Tree) -> str:
    return f" in {tree.name}" if tree.name else ""


def _matches(tree: Tree, pattern: str) -> list[str]:
    """Paths, component by component; a star goes over no slash."""
    places = [""]
    for component in pattern.split("/"):
        expression = glob(component.replace("**", "*"))
        places = [
            f"{place}/{name}".lstrip("/")
            for place in places
            for name in _names(tree, place)
            if expression.fullmatch(name)
        ]
    return places


def _names(tree: Tree, place: str) -> list[str]:
    parts = tree.resolve(place)
    found = None if parts is None else tree.look(parts)
    if parts is None or found is None or not found.is_dir:
        return []
    return tree.names(parts)


def _facts(path: str, found: Found) -> list[str | bytes]:
    mode = found.info.st_mode
    if found.is_link:
        return [path, "link", str(found.path.readlink())]
    content = ""
    if stat.S_ISREG(mode):
        with found.path.open("rb") as file:
            hasher = hashlib.blake2b(digest_size=16)
            while block := file.read(1 << 20):
                hasher.update(block)
        content = hasher.hexdigest()
    return [path, f"{mode:o}", content]


def _expanded(content: str, word: Callable[[str], str]) -> str:
    """A document's variables, with its quotes left as they are, as a shell does."""
    return "".join(
        word(re.sub(r"([\"'])", r"\\\1", line)) for line in content.splitlines(keepends=True)
    )
