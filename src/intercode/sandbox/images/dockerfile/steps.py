"""What makes a layer: running a command, copying files, making the working directory."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from intercode.errors import ImageError
from intercode.sandbox.images import accounts
from intercode.sandbox.images.base import Command, Context, Image
from intercode.sandbox.images.dockerfile.writer import Writer, is_archive
from intercode.sandbox.images.tree import Tree

_RESOLVER = "etc/resolv.conf"
"""Over it a sandbox that may use the network has the machine's: it is made if need be."""
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")


class Step(Protocol):
    """One layer's making."""

    def key(self) -> list[str | bytes]:
        """All that it depends on, besides the image below."""

    def is_needed(self, base: Image) -> bool:
        """Whether it changes anything."""

    def fill(self, base: Image, layer: Path, context: Context) -> None:
        """Make the layer, in an empty folder."""


@dataclass(frozen=True, slots=True)
class Run:
    """A command."""

    command: Command
    env: Mapping[str, str]
    cwd: str
    user: str

    def key(self) -> list[str | bytes]:
        """As `Step`."""
        command = self.command
        facts = [command.argv, command.network, dict(self.env), self.cwd, self.user]
        return ["run", json.dumps(facts, sort_keys=True), command.script or b""]

    def is_needed(self, base: Image) -> bool:
        """As `Step`."""
        return True

    def fill(self, base: Image, layer: Path, context: Context) -> None:
        """As `Step`."""
        account = accounts.user(base.layers, self.user)
        proxies = {k: v for k, v in os.environ.items() if k.lower() in _PROXIES}
        env = {"HOME": account.home, **(proxies if self.command.network else {}), **self.env}
        cwd = "/".join(Tree(base.layers).resolve(self.cwd) or ())
        image = replace(base, env=env, cwd=f"/{cwd}", user=str(account))
        context.build_script(image, self.command, layer)
        if self.command.network and Tree(base.layers).resolve(_RESOLVER) is None:
            _remove_empty(layer, _RESOLVER)


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory, with those above it."""

    path: str
    user: str

    def key(self) -> list[str | bytes]:
        """As `Step`."""
        return ["folder", self.path, self.user]

    def is_needed(self, base: Image) -> bool:
        """As `Step`."""
        return not Tree(base.layers).is_dir(self.path)

    def fill(self, base: Image, layer: Path, context: Context) -> None:
        """As `Step`."""
        account = accounts.user(base.layers, self.user)
        writer = Writer(base, layer, (account.uid, account.gid), None)
        writer.folders(self.path)
        writer.finish()


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to copy."""

    name: str
    """As it is called at its destination."""
    tree: Tree | None = None
    parts: tuple[str, ...] = ()
    """Where it is in the tree."""
    content: bytes = b""
    """Without a tree: a file's content."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Files and folders, from the context or another stage, or written in the Dockerfile."""

    items: tuple[Item, ...]
    digest: str
    """Of what is copied."""
    to: str
    """Absolute; with a slash at its end it is a directory."""
    owner: str
    mode: int | None
    unpack: bool
    """Whether archives are unpacked."""
    keep_owner: bool
    """Whether files without an owner here keep their own: those of an image."""

    def key(self) -> list[str | bytes]:
        """As `Step`."""
        return ["copy", self.digest, self.to, self.owner, f"{self.mode} {self.unpack}"]

    def is_needed(self, base: Image) -> bool:
        """As `Step`."""
        return True

    def fill(self, base: Image, layer: Path, context: Context) -> None:
        """As `Step`."""
        owner = accounts.owner(base.layers, self.owner) if self.owner else None
        writer = Writer(base, layer, owner, self.mode, self.keep_owner)
        into = self.to.endswith("/") or len(self.items) > 1 or Tree(base.layers).is_dir(self.to)
        for item in self.items:
            found = item.tree.look(item.parts) if item.tree else None
            if item.tree is None:
                writer.text(self._place(base, item, into), item.content)
            elif found is None:
                raise ImageError(f"there is no {'/'.join(item.parts)!r} any more")
            elif found.is_dir:
                writer.tree(item.tree, item.parts, self.to)
            elif self.unpack and is_archive(found.path):
                writer.archive(found.path, self.to)
            else:
                writer.file(found.path, self._place(base, item, into))
        writer.finish()

    def _place(self, base: Image, item: Item, into: bool) -> str:
        """Where a file goes: what a link stands for is replaced, if it is named itself."""
        if into:
            return f"{self.to.rstrip('/')}/{item.name}"
        parts = Tree(base.layers).resolve(self.to, to_be=True)
        if not parts:
            raise ImageError(f"{self.to!r} is a link to itself")
        return "/".join(parts)


def _remove_empty(layer: Path, path: str) -> None:
    tree = Tree((layer,))
    parts = tree.resolve(path)
    found = tree.look(parts) if parts else None
    if found is not None and stat.S_ISREG(found.info.st_mode) and not found.info.st_size:
        found.path.unlink()
