"""The stages of a Dockerfile, checks for unsupported instructions, and the expansion of words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from intercode_sandbox.errors import DockerfileError, ImageError
from intercode_sandbox.host_files import open_regular
from intercode_sandbox.images.dockerfile.instructions import (
    DockerfileInstruction,
    directives,
    instructions,
)


@dataclass(frozen=True, slots=True)
class ParsedDockerfile:
    """The parsed text of a Dockerfile."""

    name: str
    """Display name."""
    path: Path
    escape: str
    """The escape character."""
    instructions: tuple[DockerfileInstruction, ...]

    def error(self, line: int, reason: str) -> ImageError:
        """Return an error whose message begins with the name of the file and the line."""
        return DockerfileError(f"{self.name}:{line}: {reason}")

    def locate_error(self, line: int, error: Exception) -> ImageError:
        """Return an error whose message names the line that caused it.

        An error that already names a line is returned unchanged.

        Args:
            line: The line of the instruction during which the error was raised.
            error: The error.
        """
        if isinstance(error, ImageError) and str(error).startswith(f"{self.name}:"):
            return error
        is_dockerfile_error = isinstance(error, (DockerfileError, ValueError, LookupError))
        error_class = DockerfileError if is_dockerfile_error else ImageError
        return error_class(f"{self.name}:{line}: {error}")


def read(path: Path) -> ParsedDockerfile:
    """Read and parse a Dockerfile.

    Raises:
        ImageError: The file cannot be read, or is not a Dockerfile.
    """
    name = f"{path.parent.name}/{path.name}"
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8-sig")
    except OSError as error:
        raise ImageError(f"cannot read the Dockerfile {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DockerfileError(f"the Dockerfile {path} is not UTF-8 text") from None
    escape = directives(text, name).get("escape", "\\")
    return ParsedDockerfile(name, path, escape, tuple(instructions(text, escape, name)))


_FLAGS = {
    "FROM": ("platform",),
    "RUN": ("network", "mount"),
    "COPY": ("from", "chown", "chmod", "link"),
    "ADD": ("chown", "chmod", "link"),
}
"""Instruction → its supported flags."""
_IGNORED_REASONS = {
    "VOLUME": "a sandbox has no volumes, all of its files are its own",
    "HEALTHCHECK": "nothing checks a sandbox's health",
    "STOPSIGNAL": "a sandbox ends at once",
    "MAINTAINER": "it changes no file",
    "--mount": "it is an empty folder, and what the command writes there stays in the image",
}
"""Ignored instruction, or ``--mount`` for an empty mount → the reason why it has no effect."""
_EMPTY_MOUNTS = ("cache", "tmpfs")
_OTHER_MOUNTS = {
    "bind": "COPY what the command reads, before it",
    "secret": "no build has secrets; COPY a file that may stay in the image",
    "ssh": "no build has keys; COPY what the command would fetch",
}
_REASONS = {
    "ONBUILD": "write the instruction where it is to take effect",
    "--security": "no build has more privileges than others",
    "--checksum": "it is for addresses, which are not fetched",
    "--keep-git-dir": "it is for repositories, which are not fetched",
    "--exclude": "use .dockerignore",
    "--parents": "copy folder by folder",
}
_STAGE = re.compile(r"[a-z][a-z0-9-_.]*")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://|git@", re.IGNORECASE)
_ARG_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OCTAL_MODE = re.compile(r"[0-7]{3,4}|.*\$.*")


@dataclass(frozen=True, slots=True)
class DockerfileStage:
    """One stage of a Dockerfile: the instructions from one ``FROM`` to the next."""

    index: int
    """The number of the stage, from 0."""
    name: str
    """The name after ``AS``, in lower case; without ``AS``, empty."""
    start: DockerfileInstruction
    """The instruction ``FROM``."""
    instructions: tuple[DockerfileInstruction, ...]
    """The instructions after ``FROM``."""

    @property
    def base(self) -> str:
        """The name of the base image, with variables not yet expanded."""
        return self.start.values[0]


@dataclass(frozen=True, slots=True)
class DockerfileStages:
    """The stages of a whole Dockerfile, with supported instructions only."""

    source: ParsedDockerfile
    arguments: tuple[DockerfileInstruction, ...]
    """The instructions ``ARG`` before the first stage."""
    stages: tuple[DockerfileStage, ...]
    warnings: tuple[str, ...]
    """A message for each ignored instruction, with its line and the reason."""

    def stage(self, name: str, end_index: int | None = None) -> DockerfileStage | None:
        """Return a stage by its name or number; None: no such stage.

        Args:
            name: The name or number.
            end_index: The number of the first stage that is not searched; None: all are searched.
        """
        candidates = self.stages[:end_index]
        if name.isdigit():
            return candidates[int(name)] if int(name) < len(candidates) else None
        matches = [stage for stage in candidates if stage.name == name.lower() and name]
        return matches[-1] if matches else None


def plan(source: ParsedDockerfile) -> DockerfileStages:
    """Divide a Dockerfile into stages, and check all instructions.

    Raises:
        ImageError: An instruction is not supported; the message names the line and the reason.
    """
    arg_instructions: list[DockerfileInstruction] = []
    instruction_groups: list[tuple[DockerfileInstruction, list[DockerfileInstruction]]] = []
    warnings = []
    for instruction in source.instructions:
        for ignored_name in _ignored_keys(instruction):
            location = f"{source.name}:{instruction.line}: {instruction.name}"
            flag_suffix = f" {ignored_name}" if ignored_name.startswith("--") else ""
            warnings.append(f"{location}{flag_suffix} is ignored: {_IGNORED_REASONS[ignored_name]}")
        if instruction.name in _IGNORED_REASONS:
            continue
        reason = _instruction_problem(instruction)
        if reason:
            raise source.error(instruction.line, reason)
        if instruction.name == "FROM":
            instruction_groups.append((instruction, []))
        elif instruction_groups:
            instruction_groups[-1][1].append(instruction)
        elif instruction.name == "ARG":
            arg_instructions.append(instruction)
        else:
            raise source.error(instruction.line, f"{instruction.name} comes before any FROM")
    if not instruction_groups:
        raise source.error(source.instructions[-1].line, "there is no FROM")
    plan_stages = tuple(
        DockerfileStage(
            index,
            from_instruction.values[2].lower() if len(from_instruction.values) == 3 else "",
            from_instruction,
            tuple(stage_instructions),
        )
        for index, (from_instruction, stage_instructions) in enumerate(instruction_groups)
    )
    _check_from(source, plan_stages)
    return DockerfileStages(source, tuple(arg_instructions), plan_stages, tuple(warnings))


def _check_from(source: ParsedDockerfile, stages: tuple[DockerfileStage, ...]) -> None:
    for stage in stages:
        for instruction in stage.instructions:
            source_name = instruction.flag("from")
            if source_name.isdigit() and int(source_name) >= stage.index:
                raise source.error(
                    instruction.line, f"there is no stage {source_name} before this one"
                )
            is_earlier = any(
                candidate.name == source_name.lower() for candidate in stages[: stage.index]
            )
            if not is_earlier and any(
                candidate.name == source_name.lower() for candidate in stages if source_name
            ):
                raise source.error(instruction.line, f"the stage {source_name!r} comes later")


def _ignored_keys(instruction: DockerfileInstruction) -> list[str]:
    """Return the keys of `_IGNORED_REASONS` that apply to an instruction."""
    if instruction.name in _IGNORED_REASONS:
        return [instruction.name]
    return ["--mount"] if list(empty_mounts(instruction)) else []


def empty_mounts(instruction: DockerfileInstruction) -> Iterator[str]:
    """Yield the target folders of a ``RUN``'s mounts of the types cache and tmpfs.

    Such a mount is an empty folder for the command. A missing target is an empty text.
    """
    for options in _mounts(instruction):
        if options.get("type") in _EMPTY_MOUNTS:
            yield options.get("target") or options.get("dst") or options.get("destination") or ""


def _mounts(instruction: DockerfileInstruction) -> Iterator[dict[str, str]]:
    for flag_name, value in instruction.flags:
        if flag_name == "mount":
            options = (option.partition("=") for option in value.split(","))
            yield {"type": "bind"} | {
                option_name.strip(): option_value for option_name, _, option_value in options
            }


def _instruction_problem(instruction: DockerfileInstruction) -> str:
    """Return the reason why an instruction is not supported; empty: it is supported."""
    name = instruction.name
    if name in _REASONS:
        return f"{name} is not supported: {_REASONS[name]}"
    if name not in _CHECKS:
        return f"there is no instruction {name}"
    for flag, _ in instruction.flags:
        if flag not in _FLAGS.get(name, ()):
            reason = _REASONS.get(f"--{flag}", "there is no such flag")
            return f"{name} --{flag} is not supported: {reason}"
    if instruction.heredocs and name not in ("RUN", "COPY", "ADD"):
        return f"{name} takes no heredoc"
    if not any(instruction.values):
        return f"{name} needs an argument"
    return _CHECKS[name](instruction)


def _from_problem(instruction: DockerfileInstruction) -> str:
    values = instruction.values
    if len(values) not in (1, 3) or (len(values) == 3 and values[1].upper() != "AS"):
        return "write FROM IMAGE or FROM IMAGE AS NAME"
    if len(values) == 3 and not _STAGE.fullmatch(values[2].lower()):
        return f"{values[2]!r} is not a name for a stage"
    return ""


def _run_problem(instruction: DockerfileInstruction) -> str:
    network = instruction.flag("network")
    if dict(instruction.flags).keys() >= {"network"} and network not in ("none", "default"):
        return f"RUN --network={network} is not supported: write none or default"
    for options in _mounts(instruction):
        if options["type"] not in _EMPTY_MOUNTS:
            reason = _OTHER_MOUNTS.get(options["type"], "there is no such type")
            return f"RUN --mount=type={options['type']} is not supported: {reason}"
    if "" in empty_mounts(instruction):
        return "RUN --mount needs a target=/FOLDER"
    return ""


def _copy_problem(instruction: DockerfileInstruction) -> str:
    if len(instruction.values) < 2:
        return f"{instruction.name} needs what to copy, and where to"
    if not _OCTAL_MODE.fullmatch(instruction.flag("chmod") or "644"):
        return f"--chmod={instruction.flag('chmod')} is not an octal number, for instance 755"
    if instruction.name == "ADD" and (
        address := next((value for value in instruction.values if _ADDRESS.match(value)), "")
    ):
        return f"ADD fetches nothing: take {address} into the folder and COPY it"
    return ""


def _pairs_problem(instruction: DockerfileInstruction) -> str:
    if len(instruction.values) % 2:
        return f"{instruction.name} needs NAME=VALUE"
    return ""


def _arg_problem(instruction: DockerfileInstruction) -> str:
    for value in instruction.values:
        if not _ARG_NAMES.fullmatch(value.partition("=")[0]):
            return f"{value!r} is not a name for a build argument"
    return ""


def _single_value_problem(instruction: DockerfileInstruction) -> str:
    if len(instruction.values) != 1:
        return f"{instruction.name} takes one argument"
    return ""


def _shell_problem(instruction: DockerfileInstruction) -> str:
    return "" if instruction.is_json else 'write SHELL ["program", "argument"]'


_CHECKS: dict[str, Callable[[DockerfileInstruction], str]] = {
    "FROM": _from_problem,
    "RUN": _run_problem,
    "COPY": _copy_problem,
    "ADD": _copy_problem,
    "ENV": _pairs_problem,
    "LABEL": _pairs_problem,
    "ARG": _arg_problem,
    "WORKDIR": _single_value_problem,
    "USER": _single_value_problem,
    "SHELL": _shell_problem,
    "EXPOSE": lambda instruction: "",
    "CMD": lambda instruction: "",
    "ENTRYPOINT": lambda instruction: "",
}


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#]")
_LONGEST_WORD = 128 * 1024
"""Maximum of characters of an expanded word: Linux gives a program no longer argument or variable.
Without a maximum, repetitions of ``ENV X=$X$X``, which doubles a word, would use up the memory."""
_DEEPEST_WORD = 100
"""Maximum number of nested levels of ``${X:-…}``."""


def expand(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    r"""Expand a word: remove its quotes and escapes, and replace variables.

    Supported are ``$X``, ``${X}``, ``${X:-word}``, ``${X-word}``, ``${X:+word}``, ``${X+word}``,
    ``${X:?word}`` and ``${X?word}``.

    Args:
        text: The word as written.
        variables: The variables that are set.
        escape: The escape character: ``\``, or the character that the Dockerfile's directive sets.

    Raises:
        ValueError: The word is malformed, too long or too deep, has an unknown operation, or
            requires a variable (``?``) that is not set.
    """
    reader = _WordReader(text, variables, escape)
    return reader.read("")


class _WordReader:
    def __init__(self, text: str, variables: Mapping[str, str], escape: str) -> None:
        self.text = text
        self.variables = variables
        self.escape = escape
        self.position = 0
        self.depth = 0
        self.remaining_length = _LONGEST_WORD

    def read(self, stop_characters: str) -> str:
        """Expand the text from the present position up to the end, or up to a stop character.

        Args:
            stop_characters: The characters at which the reading stops, if they are not quoted.
        """
        self.depth += 1
        if self.depth > _DEEPEST_WORD:
            raise ValueError(f"${{…}} nests deeper than {_DEEPEST_WORD} levels")
        fragments: list[str] = []
        while self.position < len(self.text) and self.text[self.position] not in (
            stop_characters or "\0"
        ):
            fragments.append(self._read_fragment())
        self.depth -= 1
        return "".join(fragments)

    def _variable_value(self, name: str) -> str | None:
        """Return the value of a variable, or None.

        Raises:
            ValueError: The value makes the expanded word too long.
        """
        value = self.variables.get(name)
        self.remaining_length -= len(value or "")
        if self.remaining_length < 0:
            raise ValueError(f"a word is longer than {_LONGEST_WORD} characters")
        return value

    def _read_fragment(self) -> str:
        character = self.text[self.position]
        if character == "$":
            return self._read_variable()
        self.position += 1
        if character == "'":
            return self._read_single_quoted()
        if character == '"':
            return self._read_double_quoted()
        if character == self.escape:
            character = self.text[self.position : self.position + 1]
            self.position += 1
        return character

    def _read_single_quoted(self) -> str:
        quote_end = self.text.find("'", self.position)
        if quote_end < 0:
            raise ValueError(f"a single quote is not closed: {self.text}")
        text = self.text[self.position : quote_end]
        self.position = quote_end + 1
        return text

    def _read_double_quoted(self) -> str:
        fragments: list[str] = []
        while (character := self.text[self.position : self.position + 1]) != '"':
            if not character:
                raise ValueError(f"a double quote is not closed: {self.text}")
            if character == "$":
                fragments.append(self._read_variable())
                continue
            next_character = self.text[self.position + 1 : self.position + 2]
            if character == self.escape and next_character and next_character in f'"${self.escape}':
                character = next_character
                self.position += 1
            fragments.append(character)
            self.position += 1
        self.position += 1
        return "".join(fragments)

    def _read_variable(self) -> str:
        self.position += 1
        if self.text[self.position : self.position + 1] == "{":
            self.position += 1
            return self._read_braced()
        match = _NAME.match(self.text, self.position)
        if match is None:
            return "$"
        self.position = match.end()
        return self._variable_value(match[0]) or ""

    def _read_braced(self) -> str:
        match = _NAME.match(self.text, self.position)
        if match is None:
            raise ValueError(f"a variable's name is missing after '${{': {self.text}")
        self.position = match.end()
        operator_match = re.compile(r":?[-+?]|\}|").match(self.text, self.position)
        assert operator_match is not None  # the pattern also matches an empty text
        self.position = operator_match.end()
        value = self._variable_value(match[0])
        if operator_match[0] == "}":
            return value or ""
        if not operator_match[0]:
            raise ValueError(f"'${{{match[0]}' is followed by an unsupported operator: {self.text}")
        word = self.read("}")
        if self.position >= len(self.text):
            raise ValueError(f"'${{{match[0]}' is not closed: {self.text}")
        self.position += 1
        is_set = bool(value) if operator_match[0].startswith(":") else value is not None
        if operator_match[0].endswith("+"):
            return word if is_set else ""
        if operator_match[0].endswith("?") and not is_set:
            raise ValueError(f"{match[0]}: {word or 'is not set'}")
        return value or "" if is_set else word
