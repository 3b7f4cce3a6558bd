"""A stack of layers, or a build's context, as one tree whose links stay inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from intercode.sandbox.images.layers import Found, merged, visible

Parts = tuple[str, ...]
_MAX_LINKS = 40


class Tree:
    """What a path leads to.

    Args:
        layers: Lowest first; a build's context is one.
        hidden: Says of a path, relative to the root, that it is not there.
        sparse: Whether something below a hidden folder may be there.
        name: Its name for people.
    """

    def __init__(
        self,
        layers: Sequence[Path],
        hidden: Callable[[str], bool] = lambda path: False,
        sparse: bool = False,
        name: str = "",
    ) -> None:
        self.layers = tuple(layers)
        self._hidden = hidden
        self._sparse = sparse
        self.name = name
        self.seen: set[Path] = set()
        """What was looked at."""

    def resolve(self, path: str, to_be: bool = False) -> Parts | None:
        """The names on the way to what is at a path, links followed; None if there is nothing.

        Args:
            path: From the root.
            to_be: Whether what is not there is to be made: it counts as a directory.
        """
        here: Parts = ()
        pending = list(reversed(path.split("/")))
        links = 0
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                here = here[:-1]
                continue
            found = self.look((*here, name))
            if found is None and not to_be:
                return None
            if found is None or not found.is_link:
                here = (*here, name)
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            target = str(found.path.readlink())
            here = () if target.startswith("/") else here
            pending += reversed(target.split("/"))
        return here

    def look(self, parts: Parts) -> Found | None:
        """What is at these names, of which none but the last is a link."""
        entries = merged(self.layers, parts)
        if not entries or (parts and self._gone(parts, entries[0])):
            return None
        self.seen.add(entries[0].path)
        return entries[0]

    def names(self, parts: Parts) -> list[str]:
        """What is in a directory."""
        return [place[-1] for place, _ in self.walk(parts, deep=False)]

    def is_dir(self, path: str) -> bool:
        """Whether a path leads to a directory."""
        parts = self.resolve(path)
        found = None if parts is None else self.look(parts)
        return found is not None and found.is_dir

    def walk(self, parts: Parts, deep: bool = True) -> Iterator[tuple[Parts, Found]]:
        """All below a directory, in a fixed order, each directory before what is in it.

        Args:
            parts: The directory.
            deep: Whether also what is in its directories.
        """
        entries = merged(self.layers, parts)
        folders = [entry.path for entry in entries if entry.is_dir]
        for name in sorted({entry.name for folder in folders for entry in folder.iterdir()}):
            found = visible(folders, name)
            if not found:
                continue
            place = (*parts, name)
            inner = self.walk(place) if found[0].is_dir else iter(())
            if self._hidden("/".join(place)):
                if not (self._sparse and found[0].is_dir):
                    continue
                below = list(inner)
                if not below:
                    continue
                inner = iter(below)
            self.seen.add(found[0].path)
            yield place, found[0]
            if deep:
                yield from inner

    def _gone(self, parts: Parts, found: Found) -> bool:
        if not self._hidden("/".join(parts)):
            return False
        return not (self._sparse and found.is_dir and next(self.walk(parts), None) is not None)
