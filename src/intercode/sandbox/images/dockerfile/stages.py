"""A Dockerfile's stages, with all that can be refused before anything is run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from intercode.sandbox.images.dockerfile.parse import Instruction, Source

_FLAGS = {
    "FROM": ("platform",),
    "RUN": ("network",),
    "COPY": ("from", "chown", "chmod", "link"),
    "ADD": ("chown", "chmod", "link"),
}
_REASONS = {
    "VOLUME": "a sandbox has no volumes: all of its files are its own; leave it out",
    "HEALTHCHECK": "nothing checks a sandbox's health; leave it out",
    "ONBUILD": "write the instruction where it is to take effect",
    "STOPSIGNAL": "a sandbox ends at once; leave it out",
    "MAINTAINER": "write LABEL org.opencontainers.image.authors=…",
    "--mount": "files come into a build by COPY, ADD and COPY --from",
    "--security": "no build has more rights than others",
    "--checksum": "it is for addresses, which are not fetched",
    "--keep-git-dir": "it is for repositories, which are not fetched",
    "--exclude": "use .dockerignore",
    "--parents": "copy folder by folder",
}
_STAGE = re.compile(r"[a-z][a-z0-9-_.]*")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://|git@", re.IGNORECASE)
_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OCTAL = re.compile(r"[0-7]{3,4}|.*\$.*")


@dataclass(frozen=True, slots=True)
class Stage:
    """From one ``FROM`` to the next."""

    index: int
    name: str
    """After ``AS``, in small letters; else empty."""
    start: Instruction
    instructions: tuple[Instruction, ...]

    @property
    def base(self) -> str:
        """What it is from, as it is written."""
        return self.start.values[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole Dockerfile, in which each instruction is one that can be done."""

    source: Source
    arguments: tuple[Instruction, ...]
    """Those before the first stage."""
    stages: tuple[Stage, ...]

    def stage(self, name: str, before: int | None = None) -> Stage | None:
        """A stage by its name or number, among those before a stage."""
        among = self.stages[:before]
        if name.isdigit():
            return among[int(name)] if int(name) < len(among) else None
        found = [stage for stage in among if stage.name == name.lower() and name]
        return found[-1] if found else None


def plan(source: Source) -> Plan:
    """The stages of a Dockerfile.

    Raises:
        ImageError: An instruction cannot be done; it says which line, and why.
    """
    arguments: list[Instruction] = []
    stages: list[tuple[Instruction, list[Instruction]]] = []
    for instruction in source.instructions:
        reason = _problem(instruction)
        if reason:
            raise source.error(instruction.line, reason)
        if instruction.name == "FROM":
            stages.append((instruction, []))
        elif stages:
            stages[-1][1].append(instruction)
        elif instruction.name == "ARG":
            arguments.append(instruction)
        else:
            raise source.error(instruction.line, f"{instruction.name} comes before any FROM")
    if not stages:
        raise source.error(source.instructions[-1].line, "there is no FROM")
    made = tuple(
        Stage(index, start.values[2].lower() if len(start.values) == 3 else "", start, tuple(rest))
        for index, (start, rest) in enumerate(stages)
    )
    _check_from(source, made)
    return Plan(source, tuple(arguments), made)


def _check_from(source: Source, stages: tuple[Stage, ...]) -> None:
    for stage in stages:
        for instruction in stage.instructions:
            name = instruction.flag("from")
            if name.isdigit() and int(name) >= stage.index:
                raise source.error(instruction.line, f"there is no stage {name} before this one")
            before = any(other.name == name.lower() for other in stages[: stage.index])
            if not before and any(other.name == name.lower() for other in stages if name):
                raise source.error(instruction.line, f"the stage {name!r} comes later")


def _problem(instruction: Instruction) -> str:
    """Why an instruction cannot be done, or nothing."""
    name = instruction.name
    if name in _REASONS:
        return f"{name} is not supported: {_REASONS[name]}"
    if name not in _CHECKS:
        return f"there is no instruction {name}"
    for flag, _ in instruction.flags:
        if flag not in _FLAGS.get(name, ()):
            why = _REASONS.get(f"--{flag}", "there is no such flag")
            return f"{name} --{flag} is not supported: {why}"
    if instruction.heredocs and name not in ("RUN", "COPY", "ADD"):
        return f"{name} takes no heredoc"
    if not any(instruction.values):
        return f"{name} needs an argument"
    return _CHECKS[name](instruction)


def _from(instruction: Instruction) -> str:
    values = instruction.values
    if len(values) not in (1, 3) or (len(values) == 3 and values[1].upper() != "AS"):
        return "write FROM IMAGE or FROM IMAGE AS NAME"
    if len(values) == 3 and not _STAGE.fullmatch(values[2].lower()):
        return f"{values[2]!r} is no name for a stage"
    return ""


def _run(instruction: Instruction) -> str:
    network = instruction.flag("network")
    if dict(instruction.flags).keys() >= {"network"} and network not in ("none", "default"):
        return f"RUN --network={network} is not supported: write none or default"
    return ""


def _copy(instruction: Instruction) -> str:
    if len(instruction.values) < 2:
        return f"{instruction.name} needs what to copy, and where to"
    if not _OCTAL.fullmatch(instruction.flag("chmod") or "644"):
        return f"--chmod={instruction.flag('chmod')} is no octal number, for instance 755"
    if instruction.name == "ADD" and (
        address := next((v for v in instruction.values if _ADDRESS.match(v)), "")
    ):
        return f"ADD fetches nothing: take {address} into the folder and COPY it"
    return ""


def _pairs(instruction: Instruction) -> str:
    if len(instruction.values) % 2:
        return f"{instruction.name} needs NAME=VALUE"
    return ""


def _arg(instruction: Instruction) -> str:
    for value in instruction.values:
        if not _NAMES.fullmatch(value.partition("=")[0]):
            return f"{value!r} is no name for a build argument"
    return ""


def _one(instruction: Instruction) -> str:
    if len(instruction.values) != 1:
        return f"{instruction.name} takes one argument"
    return ""


def _shell(instruction: Instruction) -> str:
    return "" if instruction.is_json else 'write SHELL ["program", "argument"]'


_CHECKS: dict[str, Callable[[Instruction], str]] = {
    "FROM": _from,
    "RUN": _run,
    "COPY": _copy,
    "ADD": _copy,
    "ENV": _pairs,
    "LABEL": _pairs,
    "ARG": _arg,
    "WORKDIR": _one,
    "USER": _one,
    "SHELL": _shell,
    "EXPOSE": lambda instruction: "",
    "CMD": lambda instruction: "",
    "ENTRYPOINT": lambda instruction: "",
}
