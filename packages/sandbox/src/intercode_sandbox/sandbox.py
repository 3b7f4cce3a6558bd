"""`Sandbox`: the class that users construct, over the sandboxes of any provider.

Options are checked, and everything else is done by the `SandboxBackend` that the provider starts:
`Sandbox.backend`. Its event-loop twin is `intercode_sandbox.async_sandbox`.
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
    CountsMemory,
    FreeSpace,
    Freezes,
    HasTerminals,
    Limits,
    Process,
    Program,
    Provider,
    SandboxBackend,
    Seen,
    Snapshot,
    SupportsFreeSpace,
    Worker,
)
from intercode_sandbox.errors import UsageError
from intercode_sandbox.forwarding import CONNECTIONS, IDLE_SECONDS, Forward, Forwards, Handler
from intercode_sandbox.network import Network, Policy
from intercode_sandbox.providers import get_provider
from intercode_sandbox.suggestions import hint_text
from intercode_sandbox.units import MIB, seconds, size

Value = TypeVar("Value")
Data = bytes | bytearray | memoryview | str


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The checked options of a sandbox; nothing has been started.

    Raises:
        UsageError: An option does not exist, or its value makes no sense.
    """

    image: str | Snapshot
    provider: Provider
    limits: Limits
    network: Network

    @classmethod
    def of(
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
        """Return the request of a sandbox's options: see `Sandbox`."""
        if not image or not isinstance(image, str | Snapshot):
            raise UsageError(f"an image must be a name or a snapshot, not {image!r}")
        for name in options:
            if name not in OPTIONS:
                raise UsageError(f"a sandbox has no option {name!r}{hint_text(name, OPTIONS)}")
        checked_limits = Limits.of(limits, **options)
        if not isinstance(network, bool | str | Sequence):
            raise UsageError(
                f"network must be True, False, a host or a list of hosts, not {network!r}"
            )
        Policy.of(network)
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
            SandboxUnavailableError: This machine does not permit it.
        """
        return self.provider.start(self.image, self.limits, self.network)


class Sandbox:
    """A started sandbox: an image's files, and programs that see nothing else of this machine.

    ``with`` closes it, and so do `close`, the end of this process, and the last reference to it.
    Not thread-safe, save for `close`; use one for each thread.

    Args:
        image: The files that its programs see: an image's name, or a snapshot of the same provider.
        provider: ``native`` or ``docker``; a provider of your own, or its name.
        network: False: nothing. True: all that this machine reaches. Else hosts: ``"pypi.org"``,
            ``["pypi.org", "*.example.org"]``, or one endpoint, ``"127.0.0.1:8000"``.
        limits: Limits, or names with values.
        preload: The modules that `worker` starts.
        path: Folders in which those are found.
        **options: Limits by name, as ``memory="512M"``, ``timeout="30s"`` or ``processes=64``: the
            fields of `Limits`.

    Raises:
        UsageError: An option does not exist, or its value makes no sense; nothing was started.
        ImageError: The image cannot be found or built.
        SandboxUnavailableError: This machine does not permit it; the message names the fix.
    """

    backend: SandboxBackend
    """The provider's object, which does the work, with its optional abilities."""

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
        request = StartRequest.of(
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
        """Return the sandbox of a backend that was started already, and owns it from now on."""
        sandbox = cls.__new__(cls)
        sandbox.backend = backend
        return sandbox

    @property
    def limits(self) -> Limits:
        """The limits that it was started with."""
        return self.backend.limits

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables that its programs start with."""
        return self.backend.env

    @property
    def cwd(self) -> str:
        """The working directory that its programs start in."""
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
        """Run a program to its end. Returns when *it* ends, whatever its children still hold.

        Args:
            argv: The program and its arguments; looked up in the image's ``PATH``.
            stdin: Its whole input, a text as UTF-8; None is ``/dev/null``.
            cwd: Absolute, or relative to the image's working directory (the default).
            env: Variables added to the image's environment.
            user: A user's name in the sandbox, or ``uid`` / ``uid:gid``; default: the image's.
            timeout: Seconds; default: ``limits.timeout``. Then it and all that it started die, and
                the output so far is in the result, with ``timed_out``.
            output_limit: Bytes kept of each stream; default: ``limits.output``.
            merge_stderr: Both streams come as stdout, in the order in which they were written.
            stop: A descriptor of yours. As soon as another thread makes it readable, the program
                and all that it started die.

        Raises:
            UsageError: An argument makes no sense, such as a text for `argv`.
            ActionError: `argv` is empty or holds a NUL.
            FileNotFoundError, NotADirectoryError, PermissionError: `cwd` cannot be entered.
            LookupError: There is no such user.
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
        """Start a program and keep talking to it, by the descriptors in `Process.fds`.

        Args:
            argv: As in `exec`.
            channels: Descriptor inside → who may do what with it there: see `SandboxBackend.popen`.
                Default: the program reads 0 and writes 1.
            merge_stderr: Descriptor 2 is the same stream as 1, in order; else ask for 2 as "w".
            cwd: As in `exec`.
            env: As in `exec`.
            user: As in `exec`.

        Raises:
            UsageError, ActionError, LookupError, SandboxError: As `exec`.
            OSError: The program cannot be started there.
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
        """Start a module that `preload` names: its ``main(socket)``, in a millisecond.

        Raises:
            LookupError: The module was not preloaded.
            SandboxError: The sandbox failed.
        """
        return self.backend.worker(module)

    def kill(self, keep: Sequence[int] = ()) -> int:
        """Kill all processes except the pids (as seen inside) in `keep`; return their number."""
        return self.backend.kill(keep)

    def processes(self) -> list[int]:
        """Return the pids (as seen inside) of what runs, except process 1."""
        return self.backend.processes()

    def programs(self) -> list[Program]:
        """List what runs, except process 1, with its name and its open descriptors.

        Raises:
            UsageError: Sandboxes of this provider cannot.
        """
        if not isinstance(self.backend, Freezes):
            raise _unsupported_error("list programs")
        return self.backend.programs()

    def terminal(self) -> int:
        """Make a terminal; return the descriptor of its master's end.

        Raises:
            UsageError: Sandboxes of this provider cannot.
        """
        if not isinstance(self.backend, HasTerminals):
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
        """Let ``127.0.0.1:port`` of the sandbox lead to one address, or to a function, out here.

        Args:
            port: From 1 to 65535.
            to: ``host:port``, the absolute path of a Unix socket, or a function that is called
                with each connection's socket, on a thread of its own.
            connections: The number of connections at a time, at least 1. Others wait.
            idle: Seconds without a byte after which a connection to an address is closed.

        Raises:
            UsageError: The port or the address makes no sense, the sandbox shares the machine's
                network, or sandboxes of this provider cannot.
            CausedInsideError: The port is in use there.
        """
        if not isinstance(self.backend, Forwards):
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
        """Write a regular file, a text as UTF-8, and the missing directories above it.

        Raises:
            UsageError: `data` is neither a text nor bytes.
            IsADirectoryError, PermissionError: As named.
            OSError: For instance no space left.
        """
        self.backend.write_file(path, _as_bytes(data, "data"), mode)

    def upload(self, source: str | os.PathLike[str], path: str | PurePosixPath) -> None:
        """Copy a regular file of this machine, with its permissions, to a path in the sandbox.

        Raises:
            OSError: The file cannot be read; or as `write_file`.
        """
        with Path(source).open("rb") as file:
            # A setuid bit would be one for the sandbox's users.
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
        """List all that differs from the image or snapshot that it was started from, by path."""
        return self.backend.changes()

    # -- copies ----------------------------------------------------------------------------------

    def at_rest(self, look: Callable[[], Seen]) -> Seen:
        """Return what `look` returns, which is called while no program changes anything."""
        return self.backend.at_rest(look)

    def snapshot(self) -> Snapshot:
        """Save the file system as it is now: an image for ``Sandbox(snapshot)``.

        Processes are not saved, and run on. The snapshot's storage is freed with its object.
        """
        return self.backend.snapshot()

    def freeze(self) -> Snapshot:
        """Save the files for many forks, mostly without a copy; all programs are ended.

        `changes` of sandboxes that are started from it are told from this one's image.

        Raises:
            UsageError: Sandboxes of this provider cannot.
        """
        if not isinstance(self.backend, Freezes):
            raise _unsupported_error("be frozen")
        return self.backend.freeze()

    def fork(self) -> Self:
        """Start a second sandbox with the same files, limits and network; programs run on here.

        Its `changes` are told from this one's image, so that both begin with the same.

        Raises:
            UsageError: Sandboxes of this provider cannot.
        """
        if not isinstance(self.backend, Freezes):
            raise _unsupported_error("be forked")
        snapshot = self.backend.save_copy()
        try:
            return type(self).from_backend(self.backend.start_sibling(snapshot))
        finally:
            snapshot.delete()  # its storage stays for as long as the second sandbox needs it

    # -- facts and end ---------------------------------------------------------------------------

    def memory_peak(self) -> int | None:
        """Return the most bytes of memory used so far, files included; None: not known here.

        Raises:
            UsageError: Sandboxes of this provider cannot.
        """
        if not isinstance(self.backend, CountsMemory):
            raise _unsupported_error("count memory")
        return self.backend.memory_peak()

    def free_space(self) -> FreeSpace:
        """Return the free space of the root file system.

        Raises:
            UsageError: Sandboxes of this provider cannot.
        """
        if not isinstance(self.backend, SupportsFreeSpace):
            raise _unsupported_error("measure free space")
        return self.backend.free_space()

    def close(self) -> None:
        """End everything in it and free it. Idempotent, safe from any thread."""
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_PARAMETERS = signature(StartRequest.of).parameters
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
# For help(), and editors that complete from a running Python.
Sandbox.__signature__ = Signature([*_EXPLICIT_PARAMETERS, *_LIMITS])  # type: ignore[attr-defined]


def _unsupported_error(verb: str) -> UsageError:
    return UsageError(f"sandboxes of this provider cannot {verb}")


def _checked_argv(argv: Sequence[str | bytes]) -> Sequence[str | bytes]:
    """Return a program's arguments. A bare string would pass as a list of characters.

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
    """Return added environment variables.

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
    """Return a user's name or number.

    Raises:
        UsageError: The user is not a string.
    """
    if not isinstance(user, str | None):
        raise UsageError(f"user must be a string such as 'nobody' or '1000:100', not {user!r}")
    return user


def _as_bytes(data: Data, name: str) -> bytes:
    """Return data as bytes, a string as UTF-8.

    Raises:
        UsageError: The data is neither a string nor bytes.
    """
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UsageError(f"{name} must be bytes or a text, not {type(data).__name__}")
    return bytes(data)


def _parse_value(parse: Callable[[object], Value], name: str, value: object) -> Value:
    """Return a value with a unit as a number.

    Raises:
        UsageError: The value makes no sense.
    """
    try:
        return parse(value)
    except ValueError as error:
        raise UsageError(f"{name} {error}") from None
