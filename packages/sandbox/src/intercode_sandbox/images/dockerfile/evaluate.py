"""Evaluation of a stage's instructions.

The results are steps, each of which creates a layer, and the settings with which programs start.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from intercode_sandbox.errors import ImageError
from intercode_sandbox.images.base import (
    SCRIPT,
    Command,
    Image,
    ImageBuilderContext,
    clean_environment,
)
from intercode_sandbox.images.dockerfile.copy_files import (
    CopyLayerWriter,
    CopySource,
    digest as copy_digest,
    documents,
    find,
    is_archive,
)
from intercode_sandbox.images.dockerfile.instructions import DockerfileInstruction
from intercode_sandbox.images.dockerfile.parse import ParsedDockerfile, empty_mounts, expand
from intercode_sandbox.images.tree import MergedTree, resolve_image_account, resolve_image_owner
from intercode_sandbox.privileges import has_single_user

ORDINARY_USER = (
    "in an ordinary user's sandboxes there is no user but root: run as root, or leave USER out"
)
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
"""Names of build arguments, in any case, that a user may give without an instruction ``ARG``."""


@dataclass
class BuildArguments:
    """The build arguments of a whole Dockerfile."""

    user_values: Mapping[str, str]
    """The values that the user has given in the image's name."""
    common: dict[str, str] = field(default_factory=dict)
    """The predefined arguments, and the arguments before the first stage."""
    declared_names: set[str] = field(default_factory=set)
    """The names of all arguments that an instruction has declared."""

    def declare(
        self, declaration: str, expand_word: Callable[[str], str]
    ) -> tuple[str, str | None]:
        """Evaluate an instruction ``ARG``; return the argument's name, and its value or None.

        Args:
            declaration: ``NAME`` or ``NAME=DEFAULT``.
            expand_word: A function that expands a word.
        """
        name, has_default, default = declaration.partition("=")
        self.declared_names.add(name)
        if name in self.user_values:
            return name, self.user_values[name]
        return name, expand_word(default) if has_default else self.common.get(name)


@dataclass
class StageSettings:
    """The settings of a stage after the instructions that were evaluated so far.

    The method ``_name`` evaluates the instruction ``NAME``, and yields its steps, if any.
    """

    source: ParsedDockerfile
    env: dict[str, str]
    cwd: str
    user: str
    config: dict[str, Any]
    context: MergedTree
    resolve_source_image: Callable[[DockerfileInstruction, str], Image]
    """A function that returns the image that ``--from`` of an instruction names."""
    network: bool
    """Whether commands may use the network by default."""
    arguments: BuildArguments
    args: dict[str, str] = field(default_factory=dict)
    """The build arguments of the stage, with their values."""
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    """The shell that runs commands, unless they are JSON arrays."""

    @classmethod
    def begin(cls, base: Image, **state_fields: Any) -> StageSettings:
        """Return the state of a stage before its first instruction.

        Args:
            base: The base image of the stage.
            **state_fields: The fields that do not depend on the base.
        """
        config = dict(base.config)
        state = cls(
            env=image_variables(base),
            cwd=config.get("WorkingDir") or (base.cwd if base.config else "/"),
            user=config.get("User") or base.user,
            config=config,
            **state_fields,
        )
        if config.get("Shell"):
            state.shell = tuple(config["Shell"])
        user_values = state.arguments.user_values
        state.args |= {
            name: value for name, value in user_values.items() if name.upper() in PROXIES
        }
        state.arguments.declared_names |= state.args.keys()
        return state

    def steps(
        self, instructions: tuple[DockerfileInstruction, ...]
    ) -> list[tuple[DockerfileInstruction, BuildStep]]:
        """Evaluate instructions; return their steps in order, each with its instruction.

        Raises:
            ImageError: A word is malformed, or a source of a copy does not exist.
        """
        steps: list[tuple[DockerfileInstruction, BuildStep]] = []
        for instruction in instructions:
            steps += [(instruction, step) for step in self._instruction_steps(instruction)]
        return steps

    def _instruction_steps(self, instruction: DockerfileInstruction) -> list[BuildStep]:
        try:
            return list(getattr(self, f"_{instruction.name.lower()}")(instruction) or ())
        except (ImageError, ValueError, LookupError) as error:
            raise self.source.locate_error(instruction.line, error) from error

    def finish_image(self, base: Image) -> Image:
        """Return the finished image of the stage, with the settings of programs.

        Args:
            base: The image with all layers of the stage.
        """
        config = {
            **self.config,
            "Env": [f"{name}={value}" for name, value in self.env.items()],
            "WorkingDir": self.cwd,
            "User": self.user,
        }
        return replace(base, env={**base.env, **self.env}, cwd=self.cwd, config=config)

    def _word(self, text: str) -> str:
        return expand(text, {**self.args, **self.env}, self.source.escape)

    # --- instructions that create layers -----------------------------------------------------

    def _run(self, instruction: DockerfileInstruction) -> Iterator[BuildStep]:
        script = None
        argv = instruction.values
        if not instruction.is_json:
            command_line, heredocs = instruction.values[0], instruction.heredocs
            body = "".join(f"{script_text}{delimiter}\n" for delimiter, script_text in heredocs)
            argv = (*self.shell, f"{command_line}\n{body}" if heredocs else command_line)
            if (
                len(heredocs) == 1
                and len(command_line.split()) == 1
                and command_line.startswith("<<")
            ):
                script_text = _strip_tabs(command_line, heredocs[0][1])
                argv = (*self.shell, script_text)
                if script_text.startswith("#!"):
                    argv = (*script_text[2:].partition("\n")[0].split(None, 1), SCRIPT)
                    script = script_text.encode()
        network_option = instruction.flag("network")
        has_network = network_option == "default" or (self.network and network_option != "none")
        command = Command(tuple(argv), script, has_network)
        # The mounts are empty folders. Docker leaves such folders in the image, too.
        for mount_target in empty_mounts(instruction):
            yield FolderStep(self._absolute(self._word(mount_target)), "")
        env = {**self.args, **self.env}
        yield RunStep(command, env, self.cwd, self.user, instruction.display_text)

    def _workdir(self, instruction: DockerfileInstruction) -> Iterator[BuildStep]:
        self.cwd = self._absolute(self._word(instruction.values[0]))
        yield FolderStep(self.cwd, self.user)

    def _copy(self, instruction: DockerfileInstruction) -> Iterator[BuildStep]:
        words = [self._word(value) for value in instruction.values]
        from_name = self._word(instruction.flag("from"))
        source_image = self.resolve_source_image(instruction, from_name) if from_name else None
        tree = (
            MergedTree(source_image.layers, name=_display_name(source_image))
            if source_image
            else self.context
        )
        inline_items = documents(instruction, self._word)
        sources = [
            word
            for word, source_text in zip(words[:-1], instruction.values[:-1], strict=True)
            if not (instruction.heredocs and source_text.startswith("<<"))
        ]
        items = [item for source in sources for item in find(tree, source)]
        destination = self._absolute(words[-1])
        if words[-1].endswith(("/", "/.")) or words[-1] == ".":
            destination = f"{destination.rstrip('/')}/"
        if len(items) + len(inline_items) > 1 and not destination.endswith("/"):
            raise ValueError(f"several files need a folder as destination: write {words[-1]}/")
        digest = copy_digest(tree, items, inline_items, source_image.digest if source_image else "")
        mode_text = self._word(instruction.flag("chmod"))
        yield CopyStep(
            items=(*items, *inline_items),
            digest=digest,
            destination=destination,
            owner=self._word(instruction.flag("chown")),
            mode=int(mode_text, 8) if mode_text else None,
            unpack=instruction.name == "ADD",
            keep_owner=source_image is not None,
        )

    _add = _copy

    # --- instructions that set how programs start --------------------------------------------

    def _env(self, instruction: DockerfileInstruction) -> None:
        values = instruction.values
        # All words are expanded before the first variable of the instruction is set.
        words = [self._word(raw_word) for raw_word in values]
        self.env |= zip(words[::2], words[1::2], strict=True)

    def _arg(self, instruction: DockerfileInstruction) -> None:
        for argument_text in instruction.values:
            argument_name, argument_value = self.arguments.declare(argument_text, self._word)
            if argument_value is not None:
                self.args[argument_name] = argument_value

    def _user(self, instruction: DockerfileInstruction) -> None:
        self.user = self._word(instruction.values[0])
        if has_single_user() and self.user.partition(":")[0] not in ("", "root", "0"):
            raise ValueError(f"USER {self.user}: {ORDINARY_USER}")

    def _shell(self, instruction: DockerfileInstruction) -> None:
        self.shell = instruction.values
        self.config["Shell"] = list(instruction.values)

    def _label(self, instruction: DockerfileInstruction) -> None:
        words = [self._word(value) for value in instruction.values]
        labels = dict(zip(words[::2], words[1::2], strict=True))
        self.config["Labels"] = {**(self.config.get("Labels") or {}), **labels}

    def _expose(self, instruction: DockerfileInstruction) -> None:
        ports = dict(self.config.get("ExposedPorts") or {})
        for value in instruction.values:
            for port in shlex.split(self._word(value)):
                ports[port if "/" in port else f"{port}/tcp"] = {}
        self.config["ExposedPorts"] = ports

    def _cmd(self, instruction: DockerfileInstruction) -> None:
        self.config["Cmd"] = self._command(instruction)

    def _entrypoint(self, instruction: DockerfileInstruction) -> None:
        self.config["Entrypoint"] = self._command(instruction)
        self.config.pop("Cmd", None)  # the command belongs to the previous entry point

    def _command(self, instruction: DockerfileInstruction) -> list[str]:
        values = list(instruction.values)
        return values if instruction.is_json else [*self.shell, *values]

    def _absolute(self, path: str) -> str:
        absolute_path = posixpath.normpath(posixpath.join(self.cwd, path))
        return f"/{absolute_path.lstrip('/')}"


def _display_name(image: Image) -> str:
    return f"{image.name}, whose /usr is this machine's" if image.host else image.name


def _strip_tabs(instruction_line: str, content: str) -> str:
    if not instruction_line.startswith("<<-"):
        return content
    return "".join(content_line.lstrip("\t") for content_line in content.splitlines(keepends=True))


def facts(image: Image) -> str:
    """Return the settings of an image's programs as a text, for the image's digest."""
    return json.dumps([dict(image.env), image.cwd, image.user, dict(image.config)], sort_keys=True)


def expand_base_name(text: str, arguments: BuildArguments, escape: str) -> str:
    """Return the name of an image in an instruction ``FROM``, with variables expanded.

    Args:
        text: The name as written.
        arguments: The build arguments.
        escape: The escape character.

    Raises:
        ValueError: The text is malformed.
        ImageError: The expansion is empty.
    """
    name = expand(text, arguments.common, escape)
    if not name:
        raise ImageError(f"nothing is left of {text!r}: its arguments have no value")
    return name


def image_variables(image: Image) -> dict[str, str]:
    """Return the environment variables that an image sets, and ``PATH``.

    If the image's configuration has no ``Env``, the default variables of all sandboxes are omitted.
    """
    if "Env" in image.config:
        variables = dict(entry.partition("=")[::2] for entry in image.config["Env"])
    else:
        default_variables = clean_environment()
        variables = {
            name: value for name, value in image.env.items() if default_variables.get(name) != value
        }
    return {"PATH": image.env["PATH"], **variables}


_INSTALLERS = re.compile(r"\b(apt-get|apt|aptitude|dpkg|dnf|yum|apk|pacman|zypper)\b")
"""Pattern of the programs that install packages."""
NOT_ON_HOST = (
    "FROM host cannot install packages, as its programs are this machine's: start FROM "
    "debian:bookworm, with RUN --network=default"
)
_NETWORK_ERROR = re.compile(
    r"resolv|Network is unreachable|Name or service not known|Could not connect|Connection refused"
    r"|getaddrinfo|NewConnectionError|No matching distribution|unreachable|wget: bad address",
    re.IGNORECASE,
)
_NO_NETWORK = (
    "A build reaches no network unless it is allowed: write RUN --network=default, or name the "
    "image as ./Dockerfile[--network=default]"
)
_RESOLVER = "etc/resolv.conf"
"""The path over which a sandbox with network mounts the machine's file. A missing file is created
as the mount point."""
_PROXY_NAMES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")


class BuildStep(Protocol):
    """A step of a Dockerfile's build, which creates one layer."""

    def key(self) -> list[str | bytes]:
        """Return the inputs of the step from which the digest of its layer is computed.

        The image to which the step is applied is an input, too, but is not returned.
        """

    def is_needed(self, base: Image) -> bool:
        """Return whether the step has an effect on the image below; False: no layer is created."""
        return True

    def fill(self, base: Image, layer: Path, context: ImageBuilderContext) -> None:
        """Write the changes of the step into a new layer.

        Args:
            base: The image below.
            layer: The empty folder of the layer.
            context: See `ImageBuilderContext`.
        """


@dataclass(frozen=True, slots=True)
class RunStep(BuildStep):
    """The step that runs the command of an instruction ``RUN``."""

    command: Command
    env: Mapping[str, str]
    cwd: str
    user: str
    display_text: str
    """The instruction, for messages."""

    def key(self) -> list[str | bytes]:
        """See `BuildStep.key`."""
        command = self.command
        settings = [command.argv, command.network, dict(self.env), self.cwd, self.user]
        return ["run", json.dumps(settings, sort_keys=True), command.script or b""]

    def fill(self, base: Image, layer: Path, context: ImageBuilderContext) -> None:
        """See `BuildStep.fill`."""
        account = resolve_image_account(base.layers, self.user)
        proxy_variables = {
            name: value for name, value in os.environ.items() if name.lower() in _PROXY_NAMES
        }
        env = {
            "HOME": account.home,
            **(proxy_variables if self.command.network else {}),
            **self.env,
        }
        real_cwd = "/".join(MergedTree(base.layers).resolve(self.cwd) or ())
        image = replace(base, env=env, cwd=f"/{real_cwd}", user=str(account))
        try:
            context.build_script(image, self.command, layer)
        except ImageError as error:
            if base.host and (installer_match := _INSTALLERS.search(" ".join(self.command.argv))):
                raise ImageError(f"{installer_match[0]}: {NOT_ON_HOST} ({error})") from error
            if not self.command.network and _NETWORK_ERROR.search(str(error)):
                raise ImageError(f"{self.display_text}: {error}\n{_NO_NETWORK}") from error
            raise ImageError(f"{self.display_text}: {error}") from error
        if self.command.network and MergedTree(base.layers).resolve(_RESOLVER) is None:
            _remove_empty_file(layer, _RESOLVER)


@dataclass(frozen=True, slots=True)
class FolderStep(BuildStep):
    """The step that creates a directory and its parents."""

    path: str
    user: str

    def key(self) -> list[str | bytes]:
        """See `BuildStep.key`."""
        return ["folder", self.path, self.user]

    def is_needed(self, base: Image) -> bool:
        """See `BuildStep.is_needed`."""
        return not MergedTree(base.layers).is_dir(self.path)

    def fill(self, base: Image, layer: Path, context: ImageBuilderContext) -> None:
        """See `BuildStep.fill`."""
        account = resolve_image_account(base.layers, self.user)
        writer = CopyLayerWriter(base, layer, (account.uid, account.gid), None)
        writer.folders(self.path)
        writer.finish()


@dataclass(frozen=True, slots=True)
class CopyStep(BuildStep):
    """The step that copies files from the context, another image or stage, or a heredoc."""

    items: tuple[CopySource, ...]
    digest: str
    """A digest of all sources."""
    destination: str
    """The absolute path to which the files are copied; with a slash at its end, a directory."""
    owner: str
    """The value of ``--chown``, or empty."""
    mode: int | None
    """The value of ``--chmod``, or None."""
    unpack: bool
    """Whether to unpack archives, as ``ADD`` does."""
    keep_owner: bool
    """Whether files keep their owners if `owner` is empty: True for the files of an image."""

    def key(self) -> list[str | bytes]:
        """See `BuildStep.key`."""
        return ["copy", self.digest, self.destination, self.owner, f"{self.mode} {self.unpack}"]

    def fill(self, base: Image, layer: Path, context: ImageBuilderContext) -> None:
        """See `BuildStep.fill`."""
        owner = resolve_image_owner(base.layers, self.owner) if self.owner else None
        writer = CopyLayerWriter(base, layer, owner, self.mode, self.keep_owner)
        is_destination_folder = (
            self.destination.endswith("/")
            or len(self.items) > 1
            or MergedTree(base.layers).is_dir(self.destination)
        )
        for item in self.items:
            entry = item.tree.look(item.parts) if item.tree else None
            if item.tree is None:
                writer.text(self._file_destination(base, item, is_destination_folder), item.content)
            elif entry is None:
                raise ImageError(f"there is no {'/'.join(item.parts)!r} any more")
            elif entry.is_dir:
                writer.tree(item.tree, item.parts, self.destination)
            elif self.unpack and is_archive(entry.path):
                writer.archive(entry.path, self.destination)
            else:
                writer.file(entry.path, self._file_destination(base, item, is_destination_folder))
        writer.finish()

    def _file_destination(self, base: Image, item: CopySource, is_destination_folder: bool) -> str:
        """Return the path to which an item is copied as a file.

        Args:
            base: The image below. If the destination is a link in this image, it is resolved.
            item: The item.
            is_destination_folder: Whether the destination is a directory.
        """
        if is_destination_folder:
            return f"{self.destination.rstrip('/')}/{item.name}"
        parts = MergedTree(base.layers).resolve(self.destination, allow_missing=True)
        if not parts:
            raise ImageError(f"{self.destination!r} is a link to itself")
        return "/".join(parts)


def _remove_empty_file(layer: Path, path: str) -> None:
    tree = MergedTree((layer,))
    parts = tree.resolve(path)
    entry = tree.look(parts) if parts else None
    if entry is not None and stat.S_ISREG(entry.info.st_mode) and not entry.info.st_size:
        entry.path.unlink()
