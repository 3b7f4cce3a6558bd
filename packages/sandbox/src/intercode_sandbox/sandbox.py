"""`Sandbox`: the public class of sandboxes, the same for all providers.

`Sandbox` validates options and delegates all work to `Sandbox.backend`, the `SandboxBackend` that
the provider starts. `intercode_sandbox.async_sandbox` has a class for programs with an event loop.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import Parameter, Signature, signature
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self, TypeVar

from intercode_sandbox.base import (
    Change,
    Completed,
    FreeSpace,
    Limits,
    Process,
    Program,
    Provider,
    ResultT,
    SandboxBackend,
    Snapshot,
    SupportsFork,
    SupportsFreeSpace,
    SupportsMemoryPeak,
    SupportsTerminals,
    Worker,
)
from intercode_sandbox.errors import UsageError
from intercode_sandbox.forwarding import (
    CONNECTIONS,
    IDLE_SECONDS,
    Forward,
    Handler,
    SupportsForwarding,
)
from intercode_sandbox.network import Network, NetworkPolicy
from intercode_sandbox.providers import get_provider
from intercode_sandbox.spelling_suggestions import hint_text
from intercode_sandbox.units import MIB, seconds, size

Value = TypeVar("Value")
Data = bytes | bytearray | memoryview | str


@dataclass(frozen=True, slots=True)
class SandboxStartRequest:
    """A request to start a sandbox: validated options.

    Raises:
        UsageError: An option does not exist, or its value is invalid.
    """

    image: str | Snapshot
    provider: Provider
    limits: Limits
    network: Network

    @classmethod
    def from_options(
        cls,
        image: str | Snapshot = "host",
        *,
        provider: str | Provider = "native",
        network: Network = False,
        limits: Limits | Mapping[str, Any] | None = None,
        preload: Sequence[str] = (),
        path: Sequence[str | os.PathLike[str]] = (),
        **options: Any,
    ) -> Self:
        """Validate the options of a sandbox, and return them as a request to start the sandbox.

        `Sandbox` describes the options.
        """
        if not image or not isinstance(image, str | Snapshot):
            raise UsageError(f"an image must be a name or a snapshot, not {image!r}")
        for name in options:
            if name not in OPTIONS:
                raise UsageError(f"a sandbox has no option {name!r}{hint_text(name, OPTIONS)}")
        checked_limits = Limits.merge(limits, **options)
        if not isinstance(network, bool | str | Sequence):
            raise UsageError(
                f"network must be True, False, a host or a list of hosts, not {network!r}"
            )
        NetworkPolicy.parse(network)
        if isinstance(provider, str):
            provider = get_provider(provider, preload, path)
        elif not hasattr(provider, "start"):
            raise UsageError(
                f"a provider must be a name or an object with `start`, not {provider!r}"
            )
        elif preload or path:
            raise UsageError(
                "preload and path are options of a named provider: pass them to your provider "
                "itself"
            )
        return cls(image, provider, checked_limits, network)

    def start(self) -> SandboxBackend:
        """Start the sandbox.

        Raises:
            ImageError: The image cannot be found or built.
            SandboxUnavailableError: This machine does not permit the sandbox.
        """
        return self.provider.start(self.image, self.limits, self.network)


class Sandbox:
    """A started sandbox: an image's files, and programs that see nothing else of this machine.

    The end of a ``with`` block closes the sandbox. So do `close`, the end of this process, and the
    end of the last reference to this object. Only `close` is thread-safe; use one sandbox per
    thread.

    Args:
        image: The files that the sandbox's programs see: an image's name, or a snapshot of the
            same provider.
        provider: ``native``, ``docker``, or your own provider or its name.
        network: The hosts that programs may reach. False: no host. True: all hosts that this
            machine reaches. A text or a list names hosts: ``"pypi.org"``,
            ``["pypi.org", "*.example.org"]``, or one endpoint, ``"127.0.0.1:8000"``.
        limits: Limits, or a mapping of names to values.
        preload: Names of the Python modules that `worker` can start.
        path: Folders with these modules.
        **options: Limits by name, such as ``memory="512M"``, ``timeout="30s"`` or
            ``processes=64``: the fields of `Limits`.

    Raises:
        UsageError: An option does not exist, or its value is invalid; nothing was started.
        ImageError: The image cannot be found or built.
        SandboxUnavailableError: This machine does not permit the sandbox; the message names the
            reason, and a fix if any.
    """

    backend: SandboxBackend
    """The provider's object for this sandbox. Optional abilities, such as `SupportsFork`, are
    methods of this object."""

    def __init__(
        self,
        image: str | Snapshot = "host",
        *,
        provider: str | Provider = "native",
        network: Network = False,
        limits: Limits | Mapping[str, Any] | None = None,
        preload: Sequence[str] = (),
        path: Sequence[str | os.PathLike[str]] = (),
        **options: Any,
    ) -> None:
        request = SandboxStartRequest.from_options(
            image,
            provider=provider,
            network=network,
            limits=limits,
            preload=preload,
            path=path,
            **options,
        )
        self.backend = request.start()

    @classmethod
    def from_backend(cls, backend: SandboxBackend) -> Self:
        """Return a `Sandbox` for a backend that already runs. `close` also closes the backend."""
        sandbox = cls.__new__(cls)
        sandbox.backend = backend
        return sandbox

    @property
    def limits(self) -> Limits:
        """The sandbox's limits."""
        return self.backend.limits

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables that the sandbox's programs start with."""
        return self.backend.env

    @property
    def cwd(self) -> str:
        """The working directory that the sandbox's programs start in."""
        return self.backend.cwd

    # -- programs --------------------------------------------------------------------------------

    def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        stdin: Data | None = None,
        cwd: str | PurePosixPath | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | str | None = None,
        output_limit: int | str | None = None,
        merge_stderr: bool = False,
        stop: int | None = None,
    ) -> Completed:
        """Run a program, and return its result as soon as the program ends.

        The call does not wait for children of the program that still hold its output open. A
        program that cannot be executed has exit code 127 (not found) or 126, as in a shell.

        Args:
            argv: The program and its arguments; the image's ``PATH`` is searched for the program.
            stdin: The whole input; a text is encoded as UTF-8; None is ``/dev/null``.
            cwd: Absolute, or relative to the image's working directory (the default).
            env: Environment variables added to the image's.
            user: A user's name in the sandbox, or ``uid`` / ``uid:gid``; default: the image's.
            timeout: Seconds after which the program and all its descendants are killed; default:
                ``limits.timeout``. The result then has the output so far, and ``timed_out``.
            output_limit: Bytes retained of each stream; default: ``limits.output``.
            merge_stderr: Whether the result's stdout has both streams, in the order of the writes.
            stop: A descriptor of the caller. As soon as another thread makes it readable, the
                program and all its descendants are killed.

        Raises:
            UsageError: An argument is invalid, such as a text for `argv`.
            ActionError: `argv` is empty or holds a NUL.
            FileNotFoundError, NotADirectoryError, PermissionError: `cwd` cannot be entered.
            LookupError: The user does not exist.
            SandboxError: The sandbox failed, or is closed.
        """
        return self.backend.exec(
            _checked_argv(argv),
            stdin=None if stdin is None else _as_bytes(stdin, "stdin"),
            cwd=None if cwd is None else str(cwd),
            env=_checked_env(env),
            user=_checked_user(user),
            timeout=None if timeout is None else _parse_value(seconds, "timeout", timeout),
            output_limit=None
            if output_limit is None
            else _parse_value(size, "output_limit", output_limit),
            merge_stderr=merge_stderr,
            stop=stop,
        )

    def popen(
        self,
        argv: Sequence[str | bytes],
        *,
        channels: Mapping[int, Literal["r", "w", "text"]] | None = None,
        merge_stderr: bool = True,
        cwd: str | PurePosixPath | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Process:
        """Start a program and keep its streams open, as the descriptors in `Process.fds`.

        Args:
            argv: See `exec`.
            channels: The program's descriptor → its kind: see `SandboxBackend.popen`. Default: the
                program reads descriptor 0 and writes descriptor 1.
            merge_stderr: Whether descriptor 2 is the same stream as 1. If False, `channels` must
                name descriptor 2 to make it readable.
            cwd: See `exec`.
            env: See `exec`.
            user: See `exec`.

        Raises:
            UsageError, ActionError, LookupError, SandboxError: See `exec`.
            OSError: The program cannot be started in the sandbox.
        """
        return self.backend.popen(
            _checked_argv(argv),
            channels={0: "r"} if channels is None else channels,
            merge_stderr=merge_stderr,
            cwd=None if cwd is None else str(cwd),
            env=_checked_env(env),
            user=_checked_user(user),
        )

    def worker(self, module: str) -> Worker:
        """Start a process that calls ``main(socket)`` of a module that `preload` has named.

        The start takes less than a millisecond.

        Raises:
            LookupError: The module was not preloaded.
            SandboxError: The sandbox failed.
        """
        return self.backend.worker(module)

    def kill(self, keep: Sequence[int] = ()) -> int:
        """Kill all processes of the sandbox but process 1, and return the number of killed ones.

        Args:
            keep: The pids of processes to spare, as numbered in the sandbox.
        """
        return self.backend.kill(keep)

    def processes(self) -> list[int]:
        """Return the pids of all running processes but process 1, as numbered in the sandbox."""
        return self.backend.processes()

    def programs(self) -> list[Program]:
        """List the running programs except process 1, with their names and open descriptors.

        Raises:
            UsageError: This provider's sandboxes cannot list programs.
        """
        if not isinstance(self.backend, SupportsFork):
            raise _unsupported_error("list programs")
        return self.backend.programs()

    def terminal(self) -> int:
        """Create a terminal in the sandbox; return a descriptor of its master end.

        `SupportsTerminals.terminal` has the details.

        Raises:
            UsageError: This provider's sandboxes cannot create terminals.
        """
        if not isinstance(self.backend, SupportsTerminals):
            raise _unsupported_error("make terminals")
        return self.backend.terminal()

    # -- network ---------------------------------------------------------------------------------

    def forward(
        self,
        port: int,
        to: str | Handler,
        *,
        connections: int = CONNECTIONS,
        idle: float = IDLE_SECONDS,
    ) -> Forward:
        """Forward ``127.0.0.1:port`` of the sandbox to one address, or function, of the host.

        Args:
            port: From 1 to 65535.
            to: ``host:port``, the absolute path of a Unix socket, or a function that a new thread
                calls with the socket of each connection.
            connections: Maximum of simultaneous connections, at least 1. Further connections wait.
            idle: Seconds without a byte after which a connection to an address is closed.

        Raises:
            UsageError: The port or the address is invalid, the sandbox shares the machine's
                network, or this provider's sandboxes cannot forward ports.
            CausedInsideError: The port is in use inside the sandbox.
        """
        if not isinstance(self.backend, SupportsForwarding):
            raise _unsupported_error("forward ports")
        return self.backend.forward(port, to, connections=connections, idle=idle)

    # -- files -----------------------------------------------------------------------------------

    def read_file(self, path: str | PurePosixPath, limit: int | str = 100 * MIB) -> bytes:
        """Return the content of a regular file.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: As named.
            OutputLimitError: The file holds more than `limit` bytes.
        """
        return self.backend.read_file(path, _parse_value(size, "limit", limit))

    def write_file(self, path: str | PurePosixPath, data: Data, mode: int = 0o644) -> None:
        """Write a regular file (a text as UTF-8), and the missing directories above it.

        Raises:
            UsageError: `data` is neither a text nor bytes, or `mode` has bits outside ``0o7777``.
            IsADirectoryError, PermissionError: As named.
            OSError: The write failed, for instance for lack of space.
        """
        self.backend.write_file(path, _as_bytes(data, "data"), mode)

    def upload(self, source: str | os.PathLike[str], path: str | PurePosixPath) -> None:
        """Copy a regular file of this machine, with its permissions, to a path in the sandbox.

        Raises:
            OSError: The file cannot be read. Or the file in the sandbox cannot be written: see
                `write_file`.
        """
        with Path(source).open("rb") as file:
            # Setuid and setgid bits are dropped, because they would take effect for the sandbox's
            # users.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o777
            self.backend.write_file(path, file.read(), mode)

    def download(
        self,
        path: str | PurePosixPath,
        target: str | os.PathLike[str],
        limit: int | str = 100 * MIB,
    ) -> None:
        """Copy the content of a regular file of the sandbox into a file of this machine.

        Raises:
            OSError: The file cannot be read or written.
            OutputLimitError: The file holds more than `limit` bytes.
        """
        Path(target).write_bytes(self.read_file(path, limit))

    def changes(self) -> list[Change]:
        """List all differences from the sandbox's original image or snapshot, sorted by path."""
        return self.backend.changes()

    # -- copies ----------------------------------------------------------------------------------

    def at_rest(self, look: Callable[[], ResultT]) -> ResultT:
        """Return the result of `look`, called while no program changes a file.

        `SandboxBackend.at_rest` has the details.
        """
        return self.backend.at_rest(look)

    def snapshot(self) -> Snapshot:
        """Save the present file system: an image for ``Sandbox(snapshot)``.

        Processes are not saved, and continue to run. The storage is freed after the snapshot object
        and all sandboxes that started from the snapshot.
        """
        return self.backend.snapshot()

    def freeze(self) -> Snapshot:
        """Save the present files as a snapshot from which many sandboxes can start.

        The call ends all processes of the sandbox, and mostly needs no copy of the files. `changes`
        of sandboxes started from the snapshot lists differences from this sandbox's image.

        Raises:
            UsageError: This provider's sandboxes cannot be frozen.
        """
        if not isinstance(self.backend, SupportsFork):
            raise _unsupported_error("be frozen")
        return self.backend.freeze()

    def fork(self) -> Self:
        """Start a second sandbox with the same files, limits and network.

        The processes of this sandbox continue to run, and are not copied. `changes` of the second
        sandbox lists differences from this sandbox's image. So both sandboxes start with equal
        changes.

        Raises:
            UsageError: This provider's sandboxes cannot be forked.
        """
        if not isinstance(self.backend, SupportsFork):
            raise _unsupported_error("be forked")
        snapshot = self.backend.save_copy()
        try:
            return type(self).from_backend(self.backend.start_sibling(snapshot))
        finally:
            snapshot.delete()  # the storage remains as long as the second sandbox needs it

    # -- facts and end ---------------------------------------------------------------------------

    def memory_peak(self) -> int | None:
        """Return the highest use of memory so far, in bytes, including the sandbox's files.

        None: this machine cannot measure the memory of a sandbox.

        Raises:
            UsageError: This provider's sandboxes cannot count memory.
        """
        if not isinstance(self.backend, SupportsMemoryPeak):
            raise _unsupported_error("count memory")
        return self.backend.memory_peak()

    def free_space(self) -> FreeSpace:
        """Return the free space of the root file system.

        Raises:
            UsageError: This provider's sandboxes cannot measure free space.
        """
        if not isinstance(self.backend, SupportsFreeSpace):
            raise _unsupported_error("measure free space")
        return self.backend.free_space()

    def close(self) -> None:
        """End all processes and free the resources. Idempotent, safe from any thread."""
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_PARAMETERS = signature(SandboxStartRequest.from_options).parameters
_EXPLICIT_PARAMETERS = [
    parameter for parameter in _PARAMETERS.values() if parameter.kind is not Parameter.VAR_KEYWORD
]
_LIMITS = [
    Parameter(limit.name, Parameter.KEYWORD_ONLY, default=limit.default, annotation=limit.type)
    for limit in fields(Limits)
    if limit.name != "overrides"
]
OPTIONS = frozenset(parameter.name for parameter in (*_EXPLICIT_PARAMETERS, *_LIMITS))
"""The names of all options of a sandbox."""
# ``help()``, and editors that complete from a running Python, show this signature.
Sandbox.__signature__ = Signature([*_EXPLICIT_PARAMETERS, *_LIMITS])  # type: ignore[attr-defined]


def _unsupported_error(verb: str) -> UsageError:
    return UsageError(f"sandboxes of this provider cannot {verb}")


def _checked_argv(argv: Sequence[str | bytes]) -> Sequence[str | bytes]:
    """Validate and return a program's arguments.

    A bare string is refused, because Python would treat the string as a list of characters.

    Raises:
        UsageError: The arguments are not a list of strings.
    """
    if isinstance(argv, str | bytes) or not isinstance(argv, Sequence):
        raise UsageError(f'argv must be a list, such as ["bash", "-c", "echo hello"], not {argv!r}')
    for argument in argv:
        if not isinstance(argument, str | bytes | os.PathLike):
            raise UsageError(f"argv: each argument must be a string, not {argument!r}")
    return argv


def _checked_env(env: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Validate and return added environment variables.

    Raises:
        UsageError: A name or a value is invalid.
    """
    if not isinstance(env, Mapping | None):
        raise UsageError(f"env must be a mapping of names to values, not {env!r}")
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise UsageError(f"env: {name!r} is not the name of an environment variable")
        if not isinstance(value, str) or "\0" in value:
            raise UsageError(f"env: {name} must be a string without NUL, not {value!r}")
    return env


def _checked_user(user: str | None) -> str | None:
    """Validate and return a user's name or number.

    Raises:
        UsageError: The user is not a string.
    """
    if not isinstance(user, str | None):
        raise UsageError(f"user must be a string such as 'nobody' or '1000:100', not {user!r}")
    return user


def _as_bytes(data: Data, argument_name: str) -> bytes:
    """Return data as bytes; encode a string as UTF-8.

    Args:
        data: The data.
        argument_name: The name of the caller's argument, for the error message.

    Raises:
        UsageError: The data is neither a string nor bytes.
    """
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UsageError(f"{argument_name} must be bytes or a text, not {type(data).__name__}")
    return bytes(data)


def _parse_value(parse: Callable[[object], Value], argument_name: str, value: object) -> Value:
    """Return the number that a caller's value means, such as ``"512M"`` or ``"30s"``.

    Args:
        parse: The parser, which raises ValueError for an invalid value.
        argument_name: The name of the caller's argument, for the error message.
        value: The value.

    Raises:
        UsageError: The value is invalid.
    """
    try:
        return parse(value)
    except ValueError as error:
        raise UsageError(f"{argument_name} {error}") from None
