"""InterCode's sandboxes for Inspect: ``sandbox="intercode"``, or ``("intercode", IMAGE)``."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from inspect_ai._util.exception import TerminateSampleError
from inspect_ai.solver._task_state import sample_state
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from intercode.errors import (
    ActionError,
    OutputLimitError,
    SandboxEndedError,
    SandboxError,
    UsageError,
)
from intercode_sandbox.units import LONGEST_SECONDS

if TYPE_CHECKING:
    from intercode_sandbox import SandboxBackend

T = TypeVar("T")

FILE = "intercode-sandbox.toml"
"""Name of a file next to an Inspect task that may contain a `SandboxConfig` as TOML."""
_NOT_RUN = (126, 127)
_SHELLS = ("bash", "sh")


class SandboxConfig(BaseModel, frozen=True, extra="forbid"):
    """The configuration of a sample's sandbox. Its fields are also the keys of a TOML file."""

    image: str = "host"
    network: bool | str | list[str] = False
    """Network that the sandbox reaches, as for the option ``network`` of environments."""
    sandbox: str = "native"
    """Name of the sandbox provider: ``native`` or ``docker``."""
    limits: dict[str, Any] = {}
    """Fields of `intercode.Limits`. Inspect itself sets ``timeout`` and ``output``."""

    def __hash__(self) -> int:
        """Return a hash of the serialised configuration, because Inspect keeps them in a set."""
        return hash(self.model_dump_json())

    @classmethod
    def parse(cls, config: BaseModel | str | None) -> SandboxConfig:
        """Return the configuration that a task gives to Inspect.

        Args:
            config: A configuration, the path of a TOML file with a configuration, or an image. An
                image is given by its name, or by the path of a Dockerfile or an archive.

        Raises:
            UsageError: The configuration belongs to another provider, or the file is malformed.
        """
        if config is None or isinstance(config, cls):
            return config or cls()
        if not isinstance(config, str):
            raise UsageError(f"a sandbox of InterCode takes no {type(config).__name__}")
        path = Path(config).absolute()
        if path.suffix != ".toml":
            return cls(image=str(path) if path.is_file() else config)
        import tomllib

        try:
            parsed_config = cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:  # unreadable file, invalid TOML, or unknown keys
            raise UsageError(f"{path}: {error}") from None
        local_image = path.parent / parsed_config.image
        return (
            parsed_config.model_copy(update={"image": str(local_image)})
            if local_image.is_file()
            else parsed_config
        )

    def start(self) -> SandboxBackend:
        """Start a sandbox of this configuration."""
        # A late import keeps other uses of this module fast.
        from intercode_sandbox import Limits, get_provider

        limits = Limits.merge(self.limits)
        return get_provider(self.sandbox).start(self.image, limits, self.network)

    def build(self) -> None:
        """Build the image if it is not cached."""
        from intercode_sandbox import get_provider

        get_provider(self.sandbox).digest(self.image)


async def run_in_thread(call: Callable[[], T], *, abandon: bool = False) -> T:
    """Call a function on a separate thread, so no call waits for the end of another.

    Args:
        call: The function.
        abandon: Whether a cancelled caller continues at once, while the call runs to its end.
    """
    limiter = anyio.CapacityLimiter(1)
    return await anyio.to_thread.run_sync(call, abandon_on_cancel=abandon, limiter=limiter)


@sandboxenv(name="intercode")
class InterCodeSandbox(SandboxEnvironment):
    """An InterCode sandbox with the interface that Inspect's tools, solvers and scorers use.

    Commands run concurrently, because an agent's program may wait for a model's answer, which
    Inspect delivers by another command.
    """

    def __init__(self, box: Any) -> None:
        super().__init__()
        self.box = box
        """The InterCode sandbox."""
        self._had_shell: bool | None = None

    @classmethod
    def config_files(cls) -> list[str]:
        """Return the names of the files next to a task that can configure a sandbox."""
        return [FILE, "Dockerfile"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Validate a configuration that was read from an Inspect log."""
        return SandboxConfig.model_validate(config)

    @classmethod
    async def task_init(cls, task_name: str, config: BaseModel | str | None) -> None:
        """Build the image of a task before the first sample starts."""
        await run_in_thread(SandboxConfig.parse(config).build)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Start the sandbox of a sample."""
        return {"default": cls(await run_in_thread(SandboxConfig.parse(config).start))}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End the sandbox of a sample and everything that runs in it."""
        with anyio.CancelScope(shield=True):
            for environment in environments.values():
                await run_in_thread(environment.as_type(InterCodeSandbox).close)

    def close(self) -> None:
        """End the sandbox and everything that runs in it."""
        self.box.close()

    def default_polling_interval(self) -> float:
        """Return the seconds between two polls by Inspect's services; a poll takes milliseconds."""
        return 0.1

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; see `SandboxEnvironment.exec`. A time-out never repeats the command.

        Raises:
            TerminateSampleError: The agent has removed every shell, or has ended the sandbox.
                Inspect then ends the sample, and scores it.
        """
        limits = SandboxEnvironmentLimits
        stdin = input.encode() if isinstance(input, str) else input
        max_seconds = LONGEST_SECONDS if timeout is None else timeout
        exec_options = {
            "cwd": cwd,
            "env": env,
            "user": user,
            "timeout": max_seconds,
            "stdin": stdin,
        }
        if self._had_shell is None:
            self._had_shell = await self._has_shell()
        try:
            result = await self._call(
                "exec", cmd, **exec_options, output_limit=limits.MAX_EXEC_OUTPUT_SIZE
            )
        except ActionError as error:  # Inspect reports an error with this text to the model
            raise ValueError(f"embedded null byte: {error}") from error
        except LookupError as error:
            raise SandboxUserUnsupportedError(str(error)) from error
        except OSError:
            await self._end_without_shell()
            raise
        stdout, stderr = (
            stream_bytes.decode("utf-8", "replace")
            for stream_bytes in (result.stdout, result.stderr)
        )
        if result.timed_out:
            timeout_error = TimeoutError(f"the command took more than {timeout} s")
            timeout_error.truncated_output = stdout + stderr  # type: ignore[attr-defined]
            raise timeout_error
        if result.truncated:
            raise OutputLimitExceededError(limits.MAX_EXEC_OUTPUT_SIZE_STR, stdout + stderr)
        if result.exit_code in _NOT_RUN:
            await self._end_without_shell()
        if result.exit_code == 126 and "permission denied" in stderr.casefold():
            raise PermissionError(stderr.strip())
        return ExecResult(result.ok, result.exit_code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file; see `SandboxEnvironment.write_file`."""
        data = contents.encode() if isinstance(contents, str) else contents
        await self._call("write_file", file, data)

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file; see `SandboxEnvironment.read_file`."""
        limits = SandboxEnvironmentLimits
        try:
            data: bytes = await self._call("read_file", file, limits.MAX_READ_FILE_SIZE)
        except OutputLimitError as error:
            raise OutputLimitExceededError(limits.MAX_READ_FILE_SIZE_STR, None) from error
        return data.decode() if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Return the command with which a user opens a shell in the sandbox, if it is a container.

        Raises:
            NotImplementedError: The sandbox is not a container.
        """
        container = getattr(self.box, "container", None)
        if container is None:
            raise NotImplementedError("no other process can enter a native sandbox")
        user_option = f"--user {user} " if user else ""
        command = f"docker exec -it {user_option}{container.id} /bin/bash"
        return SandboxConnection(type="intercode", command=command, container=container.id)

    async def _end_without_shell(self) -> None:
        """End the sample if no shell can start any more, and one could before.

        An image without any shell is valid.
        """
        if self._had_shell and not await self._has_shell():
            _end_sample("there is no shell left in this sandbox: no command can run any more")

    async def _has_shell(self) -> bool:
        """Return whether a shell can start; a temporary lack of resources counts as yes."""
        for shell in _SHELLS:
            try:
                result = await self._call("exec", [shell, "-c", ":"], cwd="/")
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOMEM):  # temporary lack of resources
                    return True
            else:
                if result.exit_code not in _NOT_RUN:
                    return True
        return False

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        bound_method = getattr(self.box, method, None)
        if bound_method is None:
            raise SandboxUnavailableError(
                "this sandbox has no commands, only a database: use `sql`"
            )
        # A sandbox handles requests one after the other, but the programs run concurrently.
        try:
            return await run_in_thread(partial(bound_method, *arguments, **options), abandon=True)
        except OutputLimitError:
            raise
        except SandboxEndedError as error:
            _end_sample(str(error))
            raise SandboxUnavailableError(str(error)) from error
        except SandboxError as error:
            raise SandboxUnavailableError(str(error)) from error


def _end_sample(reason: str) -> None:
    """End the running sample because of an action of its agent, unless the sample is complete.

    Inspect handles other exceptions differently, even those for limits: it reports them to the
    model and continues, or gives the sample no score.

    Raises:
        TerminateSampleError: The sample is still running. Inspect then scores its current state.
    """
    state = sample_state()
    if state is not None and not state.completed:
        raise TerminateSampleError(f"ended by the agent: {reason}")
