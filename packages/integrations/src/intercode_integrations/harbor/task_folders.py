"""Harbor's task folders as InterCode tasks: everything that can be read without a sandbox."""

from __future__ import annotations

import base64
import gzip
import io
import re
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from intercode.errors import TaskError, UsageError
from intercode.task import CANNOT, Dataset, Task
from intercode_sandbox.host_files import joint_digest
from intercode_sandbox.network import NetworkPolicy
from intercode_sandbox.units import MIB

CONFIG = "task.toml"
TESTS, SOLUTION = "tests", "solution"
AGENT_SECONDS = 600.0
"""Seconds for an agent's action if the task sets no time limit."""
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_SIZES = {"G": 1024, "M": 1}

Mode = Literal["no-network", "public", "allowlist"]


class PhaseConfig(msgspec.Struct):
    """The configuration of a phase of a task: the agent's work, or the verifier's tests."""

    timeout_sec: float | None = None
    user: str | int | None = None
    network_mode: Mode | None = None
    allowed_hosts: list[str] = []

    @property
    def account(self) -> str | None:
        """The name or number of the user, for a sandbox; None: the image's user."""
        return None if self.user is None else str(self.user)


class VerifierConfig(PhaseConfig):
    """The configuration of the verifier, which runs the tests."""

    env: dict[str, str] = {}
    environment_mode: str | None = None
    environment: dict[str, Any] | None = None
    collect: list[Any] = []


class HealthCheck(msgspec.Struct):
    """A command that succeeds when the workspace is ready."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class EnvironmentConfig(msgspec.Struct):
    """The configuration of a task's container: image, limits, variables and network."""

    docker_image: str | None = None
    os: str = "linux"
    memory_mb: int | None = None
    storage_mb: int | None = None
    memory: str | None = None
    storage: str | None = None
    gpus: int | None = None
    tpu: Any = None
    env: dict[str, str] = {}
    network_mode: Mode | None = None
    allowed_hosts: list[str] = []
    allow_internet: bool | None = None
    workdir: str | None = None
    healthcheck: HealthCheck | None = None
    mcp_servers: list[Any] = []


class SolutionConfig(msgspec.Struct):
    """The configuration of the reference solution (gold)."""

    env: dict[str, str] = {}


class HarborTaskConfig(msgspec.Struct):
    """The fields of a ``task.toml`` that InterCode supports."""

    task: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    agent: PhaseConfig = msgspec.field(default_factory=PhaseConfig)
    verifier: VerifierConfig = msgspec.field(default_factory=VerifierConfig)
    environment: EnvironmentConfig = msgspec.field(default_factory=EnvironmentConfig)
    solution: SolutionConfig = msgspec.field(default_factory=SolutionConfig)
    steps: list[Any] = []

    def network(self, phase: PhaseConfig) -> tuple[Mode, list[str]]:
        """Return the network mode of a phase and its allowed hosts.

        A phase without a mode has the policy of the task's environment.
        """
        environment = self.environment
        if phase.network_mode is not None:
            return phase.network_mode, phase.allowed_hosts
        default_mode: Mode = "no-network" if environment.allow_internet is False else "public"
        return environment.network_mode or default_mode, environment.allowed_hosts


def read_config(folder: Path) -> HarborTaskConfig:
    """Read the ``task.toml`` of a task folder.

    Raises:
        TaskError: The file cannot be read, or is malformed.
    """
    config_path = folder / CONFIG
    try:
        return msgspec.toml.decode(config_path.read_bytes(), type=HarborTaskConfig)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise TaskError(f"{config_path}: {error}") from None


def load(folder: Path) -> Dataset:
    """Load a task folder, or a folder of task folders, as a dataset.

    A task that InterCode cannot run stays in the dataset, with the reason in its `metadata`. Runs
    exclude such a task.

    Raises:
        TaskError: The folder has no tasks, or a task is malformed.
    """
    folder = folder.expanduser().absolute()
    task_folders = [config_path.parent for config_path in sorted(folder.glob(f"*/{CONFIG}"))]
    loaded_folders = [folder] if (folder / CONFIG).is_file() else task_folders
    if not loaded_folders:
        raise TaskError(f"{folder}: neither a task folder of Harbor's nor a folder of such folders")
    return Dataset(map(_task, loaded_folders), folder.name, source=str(folder))


def find_folder(source: Path, task: Task) -> Path:
    """Return the folder of a task, from the folder that the dataset was loaded from."""
    return source if (source / CONFIG).is_file() else source / task.task_id


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield all files below a folder: the path relative to the folder, and the full path.

    Raises:
        TaskError: A symbolic link points out of the folder, to files that are not the task's.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            if not path.resolve().is_relative_to(folder.resolve()):
                raise TaskError(f"{path}: a symbolic link that points out of {folder}")
            yield path.relative_to(folder).as_posix(), path


def resolve_variables(env: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Replace each value ``${NAME}`` or ``${NAME:-default}`` by the value of a variable.

    Args:
        env: The variables of a configuration; only whole values are replaced.
        variables: The variables of this machine that the task may read.

    Raises:
        TaskError: A variable without a default is not in `variables`.
    """
    resolved_values = {}
    for name, value in env.items():
        match = _TEMPLATE.fullmatch(value)
        resolved_value = value if match is None else variables.get(match[1], match[2])
        if resolved_value is None:
            raise TaskError(
                f"the variable {name!r} needs {value}, which is not set here, or not "
                "permitted: a task gets only the environment variables that the command names "
                f"(variables: {match[1]!r})"
            )
        resolved_values[name] = resolved_value
    return resolved_values


def _task(folder: Path) -> Task:
    config = read_config(folder)
    try:
        instruction = (folder / "instruction.md").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        instruction, instruction_error = "", f"its instruction.md cannot be read: {error}"
    else:
        instruction_error = ""
    environment, task_facts = config.environment, config.metadata
    digest_inputs: list[str | bytes] = [(folder / CONFIG).read_bytes()]
    for subfolder in (TESTS, SOLUTION):
        for relative_name, path in files(folder / subfolder):
            digest_inputs += [f"{subfolder}/{relative_name}", path.read_bytes()]
    tags = [*config.task.get("keywords", ()), *task_facts.get("tags", ())]
    tags += [task_facts.get("category"), task_facts.get("difficulty")]
    metadata = {"digest": joint_digest(*digest_inputs)}
    if reason := instruction_error or _find_obstacle(folder, config):
        metadata[CANNOT] = reason
    return Task(
        folder.name,
        _strip_canary(instruction) or "(no instruction)",
        gold=_gold(folder, config),
        verification="/tests/test.sh",
        image=f"docker://{environment.docker_image}" if environment.docker_image else None,
        timeout=config.agent.timeout_sec or AGENT_SECONDS,
        tags=tuple(dict.fromkeys(tag for tag in tags if isinstance(tag, str) and tag)),
        metadata=metadata,
        memory=_bytes(folder, environment.memory_mb, environment.memory),
        disk=_bytes(folder, environment.storage_mb, environment.storage),
    )


def _find_obstacle(folder: Path, config: HarborTaskConfig) -> str:
    """Return the reason why InterCode cannot run a task; empty if InterCode can."""
    environment, verifier = config.environment, config.verifier
    environment_folder = folder / "environment"
    is_separate = verifier.environment_mode == "separate" or verifier.environment is not None
    compose_files = [
        environment_folder / f"docker-compose.{file_suffix}" for file_suffix in ("yaml", "yml")
    ]
    reasons = {
        "it has several steps": bool(config.steps),
        f"it is for {environment.os}": environment.os.lower() != "linux",
        "it needs a GPU or TPU": bool(environment.gpus or environment.tpu),
        "it needs several containers (docker-compose)": any(map(Path.is_file, compose_files)),
        "its tests need a container of their own": is_separate or bool(verifier.collect),
        "it brings tools by MCP": bool(environment.mcp_servers),
        "it has no tests/test.sh": not (folder / TESTS / "test.sh").is_file(),
        "it has neither environment/Dockerfile nor docker_image": not environment.docker_image
        and not (environment_folder / "Dockerfile").is_file(),
    }
    try:
        for phase in (config.agent, verifier):
            NetworkPolicy.parse(config.network(phase)[1])
    except UsageError as error:
        reasons[f"its allowed_hosts: {error}"] = True
    return next((reason for reason, holds in reasons.items() if holds), "")


def _gold(folder: Path, config: HarborTaskConfig) -> tuple[str, ...]:
    """Return a command that unpacks and runs the reference solution (gold).

    The result is empty if the task has no solution, or if its solution needs a variable of this
    machine. No record should contain the value of such a variable.
    """
    if not (folder / SOLUTION / "solve.sh").is_file():
        return ()
    try:
        env = {"DEBIAN_FRONTEND": "noninteractive", **resolve_variables(config.solution.env, {})}
    except TaskError:
        return ()
    archive_buffer = io.BytesIO()
    with tarfile.open(fileobj=archive_buffer, mode="w") as archive:
        for name, path in files(folder / SOLUTION):
            member = tarfile.TarInfo(name)
            member.size, member.mode = path.stat().st_size, 0o755
            with path.open("rb") as file:
                archive.addfile(member, file)
    encoded_archive = base64.encodebytes(gzip.compress(archive_buffer.getvalue(), mtime=0)).decode()
    env_words = " ".join(shlex.quote(f"{name}={value}") for name, value in env.items())
    return (
        "mkdir -p /solution && base64 -d <<'END' | tar -xzf - -C /solution && "
        f"env {env_words} /solution/solve.sh\n{encoded_archive}END",
    )


def _strip_canary(text: str) -> str:
    """Remove the leading lines of an instruction that only mark it as data of a benchmark."""
    lines = text.split("\n")
    while lines and (not lines[0].strip() or _CANARY.fullmatch(lines[0].strip())):
        del lines[0]
    return "\n".join(lines).rstrip()


def _bytes(folder: Path, megabytes: int | None, size_text: str | None) -> int | None:
    """Return a size in bytes, from a number of MiB or from an older text, such as ``2G``."""
    if megabytes is None and size_text is not None:
        try:
            megabytes = int(float(size_text[:-1]) * _SIZES[size_text[-1].upper()])
        except (LookupError, ValueError):
            raise TaskError(
                f"{folder / CONFIG}: {size_text!r} is not a size, such as '2G'"
            ) from None
    return None if megabytes is None else megabytes * MIB
