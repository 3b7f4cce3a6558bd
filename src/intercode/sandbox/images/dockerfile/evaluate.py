"""From a stage's instructions to the steps that make its layers, and how its programs start."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from intercode.errors import ImageError
from intercode.rights import one_user
from intercode.sandbox.images.base import SCRIPT, Command, Image
from intercode.sandbox.images.dockerfile import bases, copying
from intercode.sandbox.images.dockerfile.parse import Instruction, Source
from intercode.sandbox.images.dockerfile.steps import Copy, Folder, Run, Step
from intercode.sandbox.images.dockerfile.words import expand
from intercode.sandbox.images.tree import Tree

ORDINARY_USER = (
    "in an ordinary user's sandboxes there is no user but root: run as root, or leave USER out"
)
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


@dataclass
class Arguments:
    """The build arguments: those given, and what the lines before the first stage say."""

    given: Mapping[str, str]
    common: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    """Those that some instruction declares."""

    def declare(self, text: str, word: Callable[[str], str]) -> tuple[str, str | None]:
        """A name, and its value if it has one."""
        name, has_default, default = text.partition("=")
        self.asked.add(name)
        if name in self.given:
            return name, self.given[name]
        return name, word(default) if has_default else self.common.get(name)


@dataclass
class Stage:
    """What a stage's instructions have said so far."""

    source: Source
    env: dict[str, str]
    cwd: str
    user: str
    config: dict[str, Any]
    context: Tree
    other: Callable[[Instruction, str], Image]
    """Gives the image of another stage, or by name."""
    network: bool
    arguments: Arguments
    args: dict[str, str] = field(default_factory=dict)
    shell: tuple[str, ...] = ("/bin/sh", "-c")

    @classmethod
    def begin(cls, base: Image, **more: Any) -> Stage:
        """A stage from an image."""
        config = dict(base.config)
        stage = cls(
            env=bases.declared(base),
            cwd=config.get("WorkingDir") or (base.cwd if base.config else "/"),
            user=config.get("User") or base.user,
            config=config,
            **more,
        )
        if config.get("Shell"):
            stage.shell = tuple(config["Shell"])
        given = stage.arguments.given
        stage.args |= {k: v for k, v in given.items() if k.upper() in PROXIES}
        stage.arguments.asked |= stage.args.keys()
        return stage

    def steps(self, instructions: tuple[Instruction, ...]) -> list[tuple[Instruction, Step]]:
        """What is to be done, in order.

        Raises:
            ImageError: A word is not well formed, or what is to be copied is not there.
        """
        found: list[tuple[Instruction, Step]] = []
        for instruction in instructions:
            found += [(instruction, step) for step in self._do(instruction)]
        return found

    def _do(self, instruction: Instruction) -> list[Step]:
        try:
            return list(getattr(self, f"_{instruction.name.lower()}")(instruction) or ())
        except (ImageError, ValueError, LookupError) as error:
            raise self.source.located(instruction.line, error) from error

    def finished(self, base: Image) -> Image:
        """The image of these layers, with how programs start there."""
        config = {
            **self.config,
            "Env": [f"{name}={value}" for name, value in self.env.items()],
            "WorkingDir": self.cwd,
            "User": self.user,
        }
        return replace(base, env={**base.env, **self.env}, cwd=self.cwd, config=config)

    def _word(self, text: str) -> str:
        return expand(text, {**self.args, **self.env}, self.source.escape)

    # --- instructions that make layers -------------------------------------------------------

    def _run(self, instruction: Instruction) -> Iterator[Step]:
        script = None
        argv = instruction.values
        if not instruction.is_json:
            line, heredocs = instruction.values[0], instruction.heredocs
            body = "".join(f"{content}{name}\n" for name, content in heredocs)
            argv = (*self.shell, f"{line}\n{body}" if heredocs else line)
            if len(heredocs) == 1 and len(line.split()) == 1 and line.startswith("<<"):
                content = _untabbed(line, heredocs[0][1])
                argv = (*self.shell, content)
                if content.startswith("#!"):
                    argv = (*content[2:].partition("\n")[0].split(None, 1), SCRIPT)
                    script = content.encode()
        asked = instruction.flag("network")
        network = asked == "default" or (self.network and asked != "none")
        command = Command(tuple(argv), script, network)
        yield Run(command, {**self.args, **self.env}, self.cwd, self.user)

    def _workdir(self, instruction: Instruction) -> Iterator[Step]:
        self.cwd = self._absolute(self._word(instruction.values[0]))
        yield Folder(self.cwd, self.user)

    def _copy(self, instruction: Instruction) -> Iterator[Step]:
        words = [self._word(value) for value in instruction.values]
        name = self._word(instruction.flag("from"))
        image = self.other(instruction, name) if name else None
        tree = Tree(image.layers, name=_called(image)) if image else self.context
        documents = copying.documents(instruction, self._word)
        sources = [
            word
            for word, written in zip(words[:-1], instruction.values[:-1], strict=True)
            if not (instruction.heredocs and written.startswith("<<"))
        ]
        items = [item for source in sources for item in copying.find(tree, source)]
        to = self._absolute(words[-1])
        if words[-1].endswith(("/", "/.")) or words[-1] == ".":
            to = f"{to.rstrip('/')}/"
        if len(items) + len(documents) > 1 and not to.endswith("/"):
            raise ValueError(f"several files are copied: write {words[-1]}/")
        digest = copying.digest(tree, items, documents, image.digest if image else "")
        mode = self._word(instruction.flag("chmod"))
        yield Copy(
            items=(*items, *documents),
            digest=digest,
            to=to,
            owner=self._word(instruction.flag("chown")),
            mode=int(mode, 8) if mode else None,
            unpack=instruction.name == "ADD",
            keep_owner=image is not None,
        )

    _add = _copy

    # --- instructions that say how programs start --------------------------------------------

    def _env(self, instruction: Instruction) -> None:
        values = instruction.values
        words = [self._word(value) for value in values]  # all by what was set before
        self.env |= zip(words[::2], words[1::2], strict=True)

    def _arg(self, instruction: Instruction) -> None:
        for value in instruction.values:
            name, found = self.arguments.declare(value, self._word)
            if found is not None:
                self.args[name] = found

    def _user(self, instruction: Instruction) -> None:
        self.user = self._word(instruction.values[0])
        if one_user() and self.user.partition(":")[0] not in ("", "root", "0"):
            raise ValueError(f"USER {self.user}: {ORDINARY_USER}")

    def _shell(self, instruction: Instruction) -> None:
        self.shell = instruction.values
        self.config["Shell"] = list(instruction.values)

    def _label(self, instruction: Instruction) -> None:
        words = [self._word(value) for value in instruction.values]
        labels = dict(zip(words[::2], words[1::2], strict=True))
        self.config["Labels"] = {**(self.config.get("Labels") or {}), **labels}

    def _expose(self, instruction: Instruction) -> None:
        ports = dict(self.config.get("ExposedPorts") or {})
        for value in instruction.values:
            for port in shlex.split(self._word(value)):
                ports[port if "/" in port else f"{port}/tcp"] = {}
        self.config["ExposedPorts"] = ports

    def _cmd(self, instruction: Instruction) -> None:
        self.config["Cmd"] = self._command(instruction)

    def _entrypoint(self, instruction: Instruction) -> None:
        self.config["Entrypoint"] = self._command(instruction)
        self.config.pop("Cmd", None)  # the base's was for another

    def _command(self, instruction: Instruction) -> list[str]:
        values = list(instruction.values)
        return values if instruction.is_json else [*self.shell, *values]

    def _absolute(self, path: str) -> str:
        joined = posixpath.normpath(posixpath.join(self.cwd, path))
        return f"/{joined.lstrip('/')}"


def _called(image: Image) -> str:
    return f"{image.name}, whose /usr is this machine's" if image.host else image.name


def _untabbed(line: str, content: str) -> str:
    if not line.startswith("<<-"):
        return content
    return "".join(text.lstrip("\t") for text in content.splitlines(keepends=True))


def facts(image: Image) -> str:
    """What is said of an image's programs, for its digest."""
    return json.dumps([dict(image.env), image.cwd, image.user, dict(image.config)], sort_keys=True)


def from_name(written: str, arguments: Arguments, escape: str) -> str:
    """What ``FROM`` names.

    Raises:
        ImageError: A word is not well formed, or nothing is left of it.
    """
    name = expand(written, arguments.common, escape)
    if not name:
        raise ImageError(f"nothing is left of {written!r}: its arguments have no value")
    return name
