"""Recipes: Dockerfiles that describe a task's workspace, for other tools.

The built image has the files of `Stage.open`, with four exceptions. The image ``host`` is local to
this machine and cannot be exported: ``base`` replaces it. For an image that is a Debian suite, the
recipe begins with Docker's image of that suite, whose selection of packages differs. The layers of
an agent (`SandboxStage.layers`) are left out. Timestamps differ, including a task's ``ages``.
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
from intercode_sandbox.images.base import ImageAddition, ParsedImageName, clean_environment, parse
from intercode_sandbox.images.debian import RECIPES
from intercode_sandbox.images.dockerfile.build import DockerfileOptions
from intercode_sandbox.images.tarballs import opaque_folders

FOLDER = "intercode"
"""The folder of the files that a recipe adds, beside its Dockerfile."""
_SCRIPT = "/intercode-setup"
"""The temporary path of a script in the image during the build."""
_BASE_LINE = re.compile(r"^(\s*FROM\s+(?:--platform=\S+\s+)?)(\S+)", re.IGNORECASE | re.MULTILINE)
_STAGE = re.compile(r"^\s*FROM\s.*\sAS\s+(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
OWN_START = ("docker", "docker-daemon", "dockerfile", "oci", "digest")
"""Schemes of images that define environment variables, working directory and user themselves."""
_EXPORTABLE_IMAGES = ("base", *RECIPES)
_PACKAGES = re.compile(r"(?P<suite>[^\[]*)(?:\[(?P<packages>.*)\])?")


@dataclass(frozen=True, slots=True)
class EpisodeService:
    """A program that runs for the duration of an episode."""

    command: str
    """The shell command that starts the service."""
    stdin: bytes
    """The standard input, which may hold secrets and must not be written to the image."""
    user: str
    """The user of the service, ``uid:gid``."""
    health: str | None
    """A command that exits with 0 when the service is ready; None: no check."""


@dataclass(frozen=True, slots=True)
class ImageStartSettings:
    """The environment variables, working directory and user of an image's programs."""

    env: Mapping[str, str] = field(default_factory=clean_environment)
    workdir: str = "/root"
    user: str = ""
    """``uid:gid``; empty: root."""


@dataclass(frozen=True, slots=True)
class WorkspaceRecipe:
    """A description of a task's workspace for other tools."""

    dockerfile: str
    """The text of the Dockerfile."""
    files: Mapping[str, bytes]
    """The files that the Dockerfile copies: path beside the Dockerfile → content."""
    executable: frozenset[str]
    """The paths in `files` that are executable."""
    carried: Mapping[str, str]
    """The name after ``FROM`` → InterCode's name, for each image that no registry has. A container
    engine imports each image once:
    ``intercode images export NAME x.tar && docker import x.tar IMAGE``."""
    env: Mapping[str, str]
    """All environment variables of an agent's programs."""
    workdir: str
    """The initial working directory of an agent's programs."""
    user: str
    """The user of an agent's programs, ``uid:gid``; empty: root."""
    limits: Limits
    """The resource limits of the workspace, including the capabilities of its programs."""
    network: bool
    """Whether the workspace has network access."""
    service: EpisodeService | None = None

    def write(self, folder: Path) -> Path:
        """Write the Dockerfile and its files to a folder, and return the Dockerfile's path."""
        dockerfile = folder / "Dockerfile"
        for path, content in {"Dockerfile": self.dockerfile.encode(), **self.files}.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(0o755 if path in self.executable else 0o644)
        return dockerfile


class WorkspaceRecipeWriter:
    """A builder of recipes that appends Dockerfile instructions.

    Args:
        image: InterCode's name of the image.
        start: How programs start in the image.
        base: The name after ``FROM``, which replaces the image; None: derived from `image`.

    Raises:
        UsageError: The image cannot be exported to another tool.
    """

    def __init__(self, image: str, start: ImageStartSettings, base: str | None = None) -> None:
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

    def _begin(self, spec: ParsedImageName) -> list[str]:
        scheme, argument = spec.scheme, spec.argument
        if scheme in ("docker", "docker-daemon"):
            return [f"FROM {argument}"]
        if scheme == "scratch":
            return ["FROM scratch"]
        if scheme == "dockerfile":
            return self._inline_dockerfile(DockerfileOptions.read(argument))
        if scheme == "debian" and (match := _PACKAGES.fullmatch(argument)):
            packages = (match["packages"] or "").replace(",", " ").split()
            install = "apt-get update && apt-get install -y --no-install-recommends"
            run = [f"RUN {install} {' '.join(packages)}"] if packages else []
            return [f"FROM debian:{match['suite']}", *run]
        return [f"FROM {self._carry(scheme if not argument else str(_strip_additions(spec)))}"]

    def _carry(self, name: str) -> str:
        """Return the name after ``FROM`` for an image of InterCode, and add it to `carried`.

        Raises:
            UsageError: The image is in no registry and cannot be exported automatically.
        """
        image_name = "base" if name == "host" else name
        if image_name not in _EXPORTABLE_IMAGES:
            raise UsageError(
                f"the image {name!r} is in no registry: import it into your engine (intercode "
                "images export, docker import), and pass its name there: recipe(task, base=NAME)"
            )
        self.carried[image_name] = image_name
        return image_name

    def _inline_dockerfile(self, options: DockerfileOptions) -> list[str]:
        """Return the lines of an existing Dockerfile, and add the files of the same folder."""
        text = options.path.read_text(encoding="utf-8")
        stages = set(_STAGE.findall(text))

        def replace_base(match: re.Match[str]) -> str:
            name = match[2]
            if name in ("host", *_EXPORTABLE_IMAGES) and name not in stages:
                name = self._carry(name)
            elif name.startswith(("/", "./", "../", "~")):
                self._carry(name)  # `_carry` raises the error: no registry has an image with a path
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
        for directory, folders, names in os.walk(folder):
            for name in (*names, *folders):
                file = Path(directory, name)
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
        """Append a ``USER`` instruction for root, who runs build steps, or for the image's user."""
        if self._start.user:
            self._lines.append(f"USER {'0:0' if is_root else _account(self._start.user)}")

    def _lay(self, addition: ImageAddition) -> None:
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
        """Add a file beside the recipe's Dockerfile, and return the file's path."""
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
        service: EpisodeService | None,
    ) -> WorkspaceRecipe:
        """Add the task's files and setup, and return the recipe.

        Args:
            directory: The directory of the setup and of files with relative paths: absolute, or
                relative to the image's working directory.
            file_contents: The task's files: path → content.
            setup: The setup command, run in `directory`; None: the task has no setup.
            limits: The resource limits of the workspace.
            network: Whether the workspace has network access.
            service: The service that runs in the workspace.
        """
        workdir = str(PurePosixPath(self._start.workdir, directory))
        owner = f"--chown={_account(self._start.user)} " if self._start.user else ""
        self._lines.append(f"WORKDIR {_escape_path(workdir)}")
        for path, content in file_contents.items():
            source = self.put(PurePosixPath(path).name, content)
            target_path = str(PurePosixPath(workdir, path))
            self._lines.append(f"COPY {owner}{_words(source, _escape_path(target_path))}")
        self._root(False)
        if setup is not None:
            self._lines.append(f"RUN {_words('/bin/bash', '--norc', '--noprofile', '-c', setup)}")
        return WorkspaceRecipe(
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


def _strip_additions(spec: ParsedImageName) -> ParsedImageName:
    return ParsedImageName(spec.scheme, spec.argument)


def _declare_argument(value: str, declaration: re.Match[str]) -> str:
    return f"{declaration[1]}={_quote_value(value)}"


def _account(user: str) -> str:
    """Return the part ``uid:gid`` of a user, because a Dockerfile supports no further groups."""
    return user.partition(",")[0]


def _words(*words: str) -> str:
    """Serialise the arguments of an instruction in exec form, which no shell parses.

    Raises:
        UsageError: An argument is not valid Unicode.
    """
    text = json.dumps(words, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"a Dockerfile is UTF-8, and {error.object[:80]!r} is not") from error
    return text


def _escape_path(path: str) -> str:
    """Escape the characters of a path that a Dockerfile treats as variables or quotes."""
    return re.sub(r"([$\\'\"])", r"\\\1", path)


def _quote_value(value: str) -> str:
    return '"' + re.sub(r'(["$\\])', r"\\\1", value) + '"'
