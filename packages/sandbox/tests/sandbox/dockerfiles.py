"""Building Dockerfiles in tests: a folder, its text, and the commands that ran."""

from __future__ import annotations

import textwrap
from pathlib import Path

from intercode_sandbox.images import Command, Image, resolve
from intercode_sandbox.images.tree import MergedTree
from intercode_sandbox.native.provider import NativeProvider


class Folder:
    """A folder with a Dockerfile.

    Args:
        path: Where it is.
        provider: What runs the commands.
    """

    def __init__(self, path: Path, provider: NativeProvider) -> None:
        self.path = path
        self.provider = provider
        self.ran: list[str] = []
        """The commands that builds ran."""
        self.told: list[str] = []
        """What builds said meanwhile."""

    def build(self, text: str, options: str = "", **files: str) -> Image:
        """The image of a Dockerfile of this text, beside these files."""
        (self.path / "Dockerfile").write_text(textwrap.dedent(text))
        for name, content in files.items():
            (self.path / name).write_text(content)
        name = f"{self.path}/Dockerfile{options}"
        return resolve(name, build_script=self._run, progress=self.told.append)

    def _run(self, base: Image, script: bytes | Command, layer: Path) -> None:
        self.ran.append(script.argv[-1] if isinstance(script, Command) else "")
        self.provider.build_script(base, script, layer)


def read(image: Image, path: str) -> str:
    """What a file of an image says."""
    tree = MergedTree(image.layers)
    parts = tree.resolve(path)
    found = tree.look(parts) if parts is not None else None
    assert found is not None, path
    return found.path.read_text()
