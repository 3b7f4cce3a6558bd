"""Recipes: how a task's place is made, as a Dockerfile that other tools can build.

Built by a tool, an image has the files that `Stage.open` gives an agent, with three exceptions. The
image ``host`` is this machine's and cannot be given away: ``base`` stands for it. A Debian suite
is Docker's selection of packages. Times differ.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from intercode.errors import UsageError
from intercode_sandbox.base import Limits
from intercode_sandbox.images.archive import opaque_folders
from intercode_sandbox.images.base import Addition, Spec, clean_environment, parse
from intercode_sandbox.images.debian import RECIPES
from intercode_sandbox.images.dockerfile.build import Options

FOLDER = "intercode"
"""The folder of a recipe's own files, beside its Dockerfile."""
_SCRIPT = "/intercode-setup"
"""A path in the image, while it is built."""
_BASE_LINE = re.compile(r"^(\s*FROM\s+(?:--platform=\S+\s+)?)(\S+)", re.IGNORECASE | re.MULTILINE)
_STAGE = re.compile(r"^\s*FROM\s.*\sAS\s+(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
OWN_START = ("docker", "docker-daemon", "dockerfile", "oci", "digest")
"""Schemes of images that say themselves how programs start in them."""
_EXPORTABLE_IMAGES = ("base", *RECIPES)
_PACKAGES = re.compile(r"(?P<suite>[^\[]*)(?:\[(?P<packages>.*)\])?")


@dataclass(frozen=True, slots=True)
class Service:
    """A program that runs from the beginning of an episode to its end."""

    command: str
    """The command that starts it, for a shell."""
    stdin: bytes
    """The standard input. It holds secrets of the program, and must not get into the image."""
    user: str
    """The user that it runs as, ``uid:gid``."""
    health: str | None
    """A command that exits with 0 when it is ready."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a program starts in an image."""

    env: Mapping[str, str] = field(default_factory=clean_environment)
    workdir: str = "/root"
    user: str = ""
    """``uid:gid``; empty: root."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a task's place is made."""

    dockerfile: str
    """The text of a Dockerfile."""
    files: Mapping[str, bytes]
    """The files that it copies: path beside the Dockerfile → content."""
    executable: frozenset[str]
    """The paths of those files that are programs."""
    carried: Mapping[str, str]
    """The images after ``FROM`` that no registry has → their names in InterCode. Each is given to
    an engine once: ``intercode images export NAME x.tar && docker import x.tar IMAGE``."""
    env: Mapping[str, str]
    """The whole environment of an agent's programs."""
    workdir: str
    """The directory in which they start."""
    user: str
    """The user of those programs, ``uid:gid``; empty: root."""
    limits: Limits
    """The limits of the place; a program has those capabilities that they name."""
    network: bool
    """Whether the place reaches the network."""
    service: Service | None = None

    def write(self, folder: Path) -> Path:
        """Write the Dockerfile and its files to a folder; return the Dockerfile's path."""
        dockerfile = folder / "Dockerfile"
        for path, content in {"Dockerfile": self.dockerfile.encode(), **self.files}.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(0o755 if path in self.executable else 0o644)
        return dockerfile


class Writer:
    """Writes a recipe line by line.

    Args:
        image: InterCode's name of the image.
        start: How programs start in it.
        base: A name after ``FROM``, in place of the image that all is laid over.

    Raises:
        UsageError: The image cannot be given to another tool.
    """

    def __init__(self, image: str, start: Start, base: str | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.carried: dict[str, str] = {}
        self._executable: set[str] = set()
        self._start = start
        spec = parse(image)
        self._lines = [f"FROM {base}"] if base else self._begin(spec)
        self._root(True)
        self._lines += [f"ENV {name}={_quote_value(value)}" for name, value in start.env.items()]
        self._lines.append("WORKDIR /")
        for addition in spec.additions:
            self._lay(addition)

    def _begin(self, spec: Spec) -> list[str]:
        scheme, argument = spec.scheme, spec.argument
        if scheme in ("docker", "docker-daemon"):
            return [f"FROM {argument}"]
        if scheme == "scratch":
            return ["FROM scratch"]
        if scheme == "dockerfile":
            return self._inline_dockerfile(Options.read(argument))
        if scheme == "debian" and (match := _PACKAGES.fullmatch(argument)):
            packages = (match["packages"] or "").replace(",", " ").split()
            install = "apt-get update && apt-get install -y --no-install-recommends"
            run = [f"RUN {install} {' '.join(packages)}"] if packages else []
            return [f"FROM debian:{match['suite']}", *run]
        return [f"FROM {self._carry(scheme if not argument else str(_strip_additions(spec)))}"]

    def _carry(self, name: str) -> str:
        """Return what is named after ``FROM`` for an image of InterCode's own."""
        image_name = "base" if name == "host" else name
        if image_name not in _EXPORTABLE_IMAGES:
            raise UsageError(
                f"the image {name!r} is in no registry: import it into your engine (intercode "
                "images export, docker import), and pass its name there: recipe(task, base=NAME)"
            )
        self.carried[image_name] = image_name
        return image_name

    def _inline_dockerfile(self, options: Options) -> list[str]:
        """Take over a Dockerfile with the files beside it."""
        text = options.path.read_text(encoding="utf-8")
        stages = set(_STAGE.findall(text))

        def replace_base(match: re.Match[str]) -> str:
            name = match[2]
            if name in ("host", *_EXPORTABLE_IMAGES) and name not in stages:
                name = self._carry(name)
            elif name.startswith(("/", "./", "../", "~")):
                self._carry(name)  # which refuses it
            return f"{match[1]}{name}"

        for name, value in options.arguments.items():
            line = re.compile(
                rf"^(\s*ARG\s+{re.escape(name)})(=.*)?$", re.IGNORECASE | re.MULTILINE
            )
            text = line.sub(partial(_declare_argument, value), text)
        self._take_folder(options.path)
        target = [f"FROM {options.target}"] if options.target else []
        return [_BASE_LINE.sub(replace_base, text).rstrip("\n"), *target]

    def _take_folder(self, dockerfile: Path) -> None:
        folder = dockerfile.parent
        for place, folders, names in os.walk(folder):
            for name in (*names, *folders):
                file = Path(place, name)
                if file == dockerfile or (file.is_dir() and not file.is_symlink()):
                    continue
                if file.is_symlink() or not file.is_file():
                    raise UsageError(
                        f"{file} is not a regular file, and a recipe supports only regular files"
                    )
                path = file.relative_to(folder).as_posix()
                self.files[path] = file.read_bytes()
                if os.access(file, os.X_OK):
                    self._executable.add(path)
        for ignore in (f"{dockerfile.name}.dockerignore", ".dockerignore"):
            if (ignore_rules := self.files.pop(ignore, None)) is not None:
                extended_rules = (
                    ignore_rules.rstrip(b"\n") + f"\n!{FOLDER}\n!{FOLDER}/**\n".encode()
                )
                self.files[".dockerignore"] = extended_rules
                break

    def _root(self, is_root: bool) -> None:
        """Switch between root, who builds, and the user of the image."""
        if self._start.user:
            self._lines.append(f"USER {'0:0' if is_root else _account(self._start.user)}")

    def _lay(self, addition: Addition) -> None:
        source = self.put(addition.path.name, addition.path.read_bytes())
        if not addition.is_script:
            if replaced_paths := opaque_folders(addition.path):
                self._lines.append(
                    f"RUN {_words('rm', '-rf', *(f'/{path}' for path in replaced_paths))}"
                )
            self._lines.append(f"ADD {_words(source, '/')}")
            return
        self._lines += [
            f"COPY {_words(source, _SCRIPT)}",
            f"RUN {_words('/bin/bash', _SCRIPT)}",
            f"RUN {_words('rm', _SCRIPT)}",
        ]

    def put(self, name: str, content: bytes) -> str:
        """Add a file beside the Dockerfile; return its path."""
        path = f"{FOLDER}/{len(self.files)}-{re.sub(r'[^A-Za-z0-9._-]', '_', name)}"
        self.files[path] = content
        return path

    def finish(
        self,
        directory: str,
        file_contents: Mapping[str, bytes],
        setup: str | None,
        limits: Limits,
        network: bool,
        service: Service | None,
    ) -> Recipe:
        """Add what a task needs, and return the recipe.

        Args:
            directory: Where its relative files and its setup begin, from the image's directory.
            file_contents: Path → content of its files.
            setup: A command that is run there.
            limits: The limits of its place.
            network: Whether it reaches the network.
            service: What runs in it.
        """
        workdir = str(PurePosixPath(self._start.workdir, directory))
        owner = f"--chown={_account(self._start.user)} " if self._start.user else ""
        self._lines.append(f"WORKDIR {_escape_path(workdir)}")
        for path, content in file_contents.items():
            source = self.put(PurePosixPath(path).name, content)
            place = str(PurePosixPath(workdir, path))
            self._lines.append(f"COPY {owner}{_words(source, _escape_path(place))}")
        self._root(False)
        if setup is not None:
            self._lines.append(f"RUN {_words('/bin/bash', '--norc', '--noprofile', '-c', setup)}")
        return Recipe(
            dockerfile="\n".join([*self._lines, ""]),
            files=self.files,
            executable=frozenset(self._executable),
            carried=self.carried,
            env=self._start.env,
            workdir=workdir,
            user=_account(self._start.user),
            limits=limits,
            network=network,
            service=service,
        )


def _strip_additions(spec: Spec) -> Spec:
    return Spec(spec.scheme, spec.argument)


def _declare_argument(value: str, declaration: re.Match[str]) -> str:
    return f"{declaration[1]}={_quote_value(value)}"


def _account(user: str) -> str:
    """Return the user and the group; a Dockerfile knows no further groups."""
    return user.partition(",")[0]


def _words(*words: str) -> str:
    """Write the arguments of an instruction, which no shell reads.

    Raises:
        UsageError: They are not Unicode.
    """
    text = json.dumps(words, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"a Dockerfile is UTF-8, and {error.object[:80]!r} is not") from error
    return text


def _escape_path(path: str) -> str:
    """Keep a path's characters from being read as variables, escapes and quotes."""
    return re.sub(r"([$\\'\"])", r"\\\1", path)


def _quote_value(value: str) -> str:
    return '"' + re.sub(r'(["$\\])', r"\\\1", value) + '"'
