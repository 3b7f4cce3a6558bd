"""Clients of a server's environments, with the interface of local environments.

`connect` makes an environment for one address, `connect_vec` a vector of environments for one or
several addresses. The results and errors equal those of a local environment, because the server's
messages carry all of them.
"""

from __future__ import annotations

import os
import urllib.request
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from http.client import HTTPException
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import msgspec

import intercode.errors as errors
from intercode.envs.episode_state import SHOWN
from intercode.envs.remote import RemoteEnvironment, RemoteStepReply
from intercode.envs.traits import find_traits, language_traits
from intercode.episode import ENDED, exact, plain
from intercode.errors import (
    ActionError,
    CapacityError,
    InterCodeError,
    SandboxClosedError,
    SandboxError,
    UsageError,
)
from intercode.registry import ENVS
from intercode.task import FIELDS, Dataset, Task
from intercode_integrations.serve import TOKEN
from intercode_sandbox.interruption import is_callers
from intercode_sandbox.spelling_suggestions import hint_text

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from intercode.envs.vector import ThreadVectorEnv

PATIENCE = 60.0
"""Maximum seconds for an HTTP response and for a WebSocket handshake. Actions may take longer."""
MAX_MESSAGE_BYTES = 64 * 2**20
"""Maximum bytes of a message from the server."""


class RemoteEnvironmentServer:
    """An environment of a server, given by its URL, and the server's HTTP routes.

    `open` starts a session over a WebSocket; the other methods use single HTTP requests.

    Args:
        url: ``http://HOST:PORT/ENVIRONMENT``, or ``https``; without a path, the server's first
            environment.
        token: The server's secret; None: the environment variable ``INTERCODE_SERVE_TOKEN``.

    Raises:
        UsageError: The address is malformed, the environment does not exist, or the token is wrong.
        SandboxError: The server cannot be reached.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        if find_spec("websockets") is None:
            raise UsageError(
                f"{url} needs the package websockets: pip install 'intercode-gym[serve]'"
            )
        from intercode.request_guard import is_loopback

        parsed_url = urlsplit(url)
        scheme = {"ws": "http", "wss": "https"}.get(parsed_url.scheme, parsed_url.scheme)
        if scheme not in ("http", "https") or not parsed_url.hostname:
            raise UsageError(
                f"{url!r} is not the URL of a server: write http://HOST:PORT/ENVIRONMENT"
            )
        path_prefix, _, requested_name = parsed_url.path.rstrip("/").rpartition("/")
        self.url = url
        token = (token or os.environ.get(TOKEN) or "").strip()  # a token file ends with a newline
        if not token.isascii() or not token.isprintable():
            raise UsageError(f"{url}: the token has characters that are not valid in a header")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._is_near = is_loopback(parsed_url.hostname)
        proxies = [urllib.request.ProxyHandler({})] if self._is_near else []
        self._opener = urllib.request.build_opener(_NoRedirects, *proxies)
        self._base = f"{scheme}://{parsed_url.netloc}{path_prefix}"
        env_names = self.fetch("list_environments")
        if (
            not env_names
            or not isinstance(env_names, list)
            or not all(isinstance(env_name, str) for env_name in env_names)
        ):
            raise self._foreign_server_error("its answer is not a list of environments")
        if requested_name and requested_name not in env_names:
            raise UsageError(
                f"{url}: there is no environment {requested_name!r} "
                f"there{hint_text(requested_name, env_names)}"
            )
        self.name = requested_name or env_names[0]
        self._route_prefix = "" if self.name == env_names[0] else f"/{self.name}"

    def fetch(self, route: str, **body: Any) -> Any:
        """Fetch the JSON of a route, by GET without `body`, by POST with `body`.

        Raises:
            InterCodeError: The server refuses the request, or is not an InterCode server.
            SandboxError: The server cannot be reached.
        """
        request_bytes = msgspec.json.encode(body) if body else None
        headers = {"Content-Type": "application/json", **self.headers}
        request = urllib.request.Request(f"{self._base}/{route}", request_bytes, headers)
        try:
            with self._opener.open(request, timeout=PATIENCE) as response:
                return msgspec.json.decode(response.read())
        except HTTPError as error:
            with error:
                raise self.refusal_error(error.code, error.read()) from None
        except msgspec.MsgspecError:
            raise self._foreign_server_error("its answer is not JSON") from None
        except (OSError, HTTPException) as error:
            raise self.unreachable_error(error) from error

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The environment's metadata, as the server's route ``metadata`` returns it."""
        facts: dict[str, Any] = self.fetch(f"{self._route_prefix}/metadata".lstrip("/"))
        return facts

    def tasks(self, split: str | None) -> list[dict[str, Any]]:
        """List the facts of the tasks of a split.

        Args:
            split: The split; None: the default split, which only InterCode's servers have.
        """
        rows: list[dict[str, Any]] = self.fetch(f"{self.name}/tasks", split=split)["tasks"]
        return rows

    def open(self) -> ClientConnection:
        """Open a WebSocket, which is a new session with its own environment.

        Raises:
            InterCodeError: The server refuses the connection.
            SandboxError: The server cannot be reached.
        """
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        websocket_url = f"ws{self._base.removeprefix('http')}{self._route_prefix}/ws"
        try:
            return connect(
                websocket_url,
                additional_headers=self.headers,
                compression=None,
                proxy=None if self._is_near else True,
                max_size=MAX_MESSAGE_BYTES,
                open_timeout=PATIENCE,
                close_timeout=1,
            )
        except InvalidStatus as error:
            answer = error.response
            raise self.refusal_error(answer.status_code, bytes(answer.body or b"")) from None
        except (OSError, WebSocketException) as error:
            raise self.unreachable_error(error) from error

    def refusal_error(self, status: int, body: bytes) -> InterCodeError:
        """Return the exception for an HTTP response that refuses a request."""
        try:
            details = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError:
            body_text = body[:1000].decode(errors="replace").strip()
            if (
                not body_text.isprintable() or body_text.startswith("<") or len(body_text) > 200
            ):  # a web page
                return self._foreign_server_error(
                    f"status {status}", is_final=status in (501, *range(500))
                )
            details = {"detail": body_text}
        error_text = f"{self.url}: the server refuses: {details.get('detail') or status}"
        if status == 401:
            error_text = f"{error_text}; give its token, by token=… or ${TOKEN}"
        fallback = UsageError if status in (501, *range(500)) else SandboxError
        return rebuild_error(details.get("error", ""), error_text, fallback)

    def _foreign_server_error(self, reason: str, *, is_final: bool = True) -> InterCodeError:
        """Return the exception for a response that no InterCode server would give.

        Args:
            reason: The reason, for the message.
            is_final: Whether the address is certainly wrong. Otherwise the error may be temporary,
                such as that of a proxy.
        """
        error_class = UsageError if is_final else SandboxError
        return error_class(
            f"{self.url}: no InterCode server answers there, but another program or a proxy "
            f"({reason}): give the address of 'intercode serve'"
        )

    def unreachable_error(self, error: Exception) -> SandboxError:
        """Return the exception for a server that cannot be reached."""
        return SandboxError(
            f"{self.url}: the server cannot be reached ({type(error).__name__}: {error}): is "
            "'intercode serve' running there?"
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        """Follow no redirect, because the token must not reach another server."""


class ClientSession:
    """A client's session with an environment of a server.

    The first `reset` opens the session. After a loss of the connection, the next `reset` opens a
    new session.

    Args:
        server: The server.
    """

    def __init__(self, server: RemoteEnvironmentServer) -> None:
        self.server = server
        self._connection: ClientConnection | None = None
        self._end: Any = None

    def reset(self, **data: Any) -> dict[str, Any]:
        """Start an episode, and return the data of the first observation.

        Args:
            data: The fields of the message ``reset``; None values are omitted.

        Raises:
            InterCodeError: The server reports an error, which has the same class here.
            CapacityError: The server has no free session.
            SandboxError: The server cannot be reached.
        """
        fields = {name: value for name, value in data.items() if value is not None}
        if self._connection is not None:
            try:
                return self.ask("reset", fields)
            except InterCodeError:
                if self._connection is not None:
                    raise
        self._connection = connection = self.server.open()
        stack = ExitStack()
        stack.enter_context(connection)
        self._end = weakref.finalize(self, stack.close)
        # At this process's exit the kernel closes the socket. A finalizer at exit would also run in
        # forked processes, and end the session of the parent.
        self._end.atexit = False
        return self.ask("reset", fields)

    def ask(self, message_type: str, data: dict[str, Any]) -> dict[str, Any]:
        """Send a message, and return the data of the answer.

        Args:
            message_type: The type of the message, such as ``step``.
            data: The fields of the message.

        Raises:
            InterCodeError: The server reports an error, which has the same class here.
            CapacityError: The message is ``reset``, and the server has no free session.
            SandboxClosedError: The session has ended, and with it the episode.
        """
        from websockets.exceptions import ConnectionClosed

        if self._connection is None:
            raise self._loss_error("it has ended")
        try:
            with suppress(ConnectionClosed):  # a last message of the server may still be unread
                self._connection.send(message(message_type, data), text=True)
            answer = msgspec.json.decode(self._connection.recv(decode=False))
        except BaseException as error:  # a late answer would be taken for that of the next message
            self.close()
            is_loss = isinstance(error, ConnectionClosed | OSError | msgspec.DecodeError)
            if is_callers(error) or not is_loss:
                raise
            raise self._loss_error(str(error)) from error
        reply_data: dict[str, Any] = answer["data"]
        if answer["type"] != "error":
            return reply_data
        error_code, error_text = reply_data.get("code", ""), str(reply_data.get("message"))
        if schema_errors := reply_data.get("errors"):  # only OpenEnv's own servers add this field
            error_text = f"{error_text}: {msgspec.json.encode(schema_errors).decode()}"
        if error_code in _FINAL_CODES:
            self.close()
            is_full = error_code == "CAPACITY_REACHED" and message_type == "reset"
            raise (
                CapacityError(f"{self.server.url}: {error_text}")
                if is_full
                else self._loss_error(error_text)
            )
        if error_code == "FACTORY_ERROR":
            self.close()
        fallback = ActionError if error_code == "VALIDATION_ERROR" else SandboxError
        raise rebuild_error(reply_data.get("error", error_code), error_text, fallback)

    def _loss_error(self, reason: str) -> SandboxClosedError:
        return SandboxClosedError(
            f"{self.server.url}: the session with the server was lost, and with it the episode "
            f"({reason}); the next reset starts a new one"
        )

    def close(self) -> None:
        """End the session and everything that runs in it. Idempotent."""
        if self._connection is not None:
            self._connection = None
            self._end()


_FINAL_CODES = ("CAPACITY_REACHED", "SESSION_ERROR")
"""Codes of errors that report the end of the session. FACTORY_ERROR, which ends the session, too,
is not one of these codes: its message states an error of the environment, which the client raises.
"""


def message(kind: str, data: dict[str, Any]) -> bytes:
    """Encode a client's message as JSON."""
    return msgspec.json.encode({"type": kind, "data": data})


def rebuild_error(
    class_name: str, error_text: str, fallback: type[InterCodeError] = SandboxError
) -> InterCodeError:
    """Rebuild an exception from its class name and message.

    Args:
        class_name: The class name; an unknown name gives an exception of the class `fallback`.
        error_text: The complete message.
        fallback: The class for unknown names.
    """
    error_class = getattr(errors, class_name, None)
    if isinstance(error_class, type) and issubclass(error_class, InterCodeError):
        # The message is complete. `__new__` avoids constructors, which may extend it.
        return error_class.__new__(error_class, error_text)
    return fallback(f"{class_name}: {error_text}" if class_name else error_text)


def refuse_failure(info: Mapping[str, Any]) -> None:
    """Raise the failure that the `info` of a server's observation reports, if any.

    Raises:
        InterCodeError: The server's error, rebuilt from its class name.
    """
    if (failure := info.get("error")) is not None:
        raise rebuild_error(failure["type"], failure["message"])


def sandbox_end(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record's fact that the agent's code ended its sandbox; empty if it did not."""
    return {ENDED: True} if info.get("outcome") == "ended-by-agent" else {}


class RemoteEnv(RemoteEnvironment):
    """An environment of a server that ``intercode serve`` runs; `connect` makes it.

    Args:
        server: The environment on the server.
        split: The split of the tasks; None: the server's default.
        data: The tasks if the caller has loaded them; None: loaded from the server.
        changes: The options ``errors``, ``observations`` and ``seed``.

    Raises:
        UsageError: The server is not InterCode's, or does not accept an option.
    """

    name = "remote"
    unsupported_options = (*RemoteEnvironment.unsupported_options, "max_turns", "reward_every_turn")

    def __init__(
        self,
        server: RemoteEnvironmentServer,
        split: str | None = None,
        data: Dataset | None = None,
        **changes: Any,
    ) -> None:
        env_facts = server.metadata.get("intercode")
        if env_facts is None:
            raise UsageError(
                f"{server.url} is not an InterCode server: try intercode.make('openenv:URL')"
            )
        super().__init__(tasks(server, split) if data is None else data, **changes)
        self.max_turns = env_facts["max_turns"]
        self.name = env_facts["env"]  # type: ignore[misc]  # each server's own
        self.traits = language_traits(env_facts["language"])
        if self.name in ENVS:
            self.traits = find_traits(self.name)
        self._max_bytes = env_facts["max_message"]
        self._split = split
        self._session = ClientSession(server)
        self._is_wire = self.options.observations == "utf-8"

    def _begin(self, task: Task, seed: int | None) -> str:
        task_id = plain(task.task_id)
        reply_data = self._session.reset(task_id=task_id, seed=seed, split=self._split)
        return self._reply(reply_data).observation

    def _take(self, action: str) -> RemoteStepReply:
        action_data = {"action": action if self._is_wire else plain(action)}
        if (size := len(message("step", action_data))) > self._max_bytes:
            note = f"[not executed: {size} bytes are more than the server takes: {self._max_bytes}]"
            return RemoteStepReply(note, goes_on=True, ok=False, info={"executed": False})
        return self._reply(self._session.ask("step", action_data))

    def _submit(self, answer: str | None) -> RemoteStepReply:
        return self._take("submit" if answer is None else f"submit {answer}")

    def _reply(self, reply_data: dict[str, Any]) -> RemoteStepReply:
        """Decode the data of an observation message.

        Raises:
            InterCodeError: The observation reports a failure on the server.
        """
        observation = (
            reply_data["observation"] if self._is_wire else exact(reply_data["observation"])
        )
        info, is_done = observation["info"], reply_data["done"]
        refuse_failure(info)
        return RemoteStepReply(
            observation["text"],
            reply_data["reward"],
            ended=is_done and not observation["truncated"],
            truncated=observation["truncated"],
            goes_on=not is_done,
            ok=info.get("ok", True),
            exit_code=info.get("exit_code"),
            parts=info.get("parts", {}),
            info={name: info[name] for name in SHOWN if name in info} | sandbox_end(info),
        )

    def close(self) -> None:
        """End the episode and the session with the server. Idempotent."""
        if not self._calls.forked:
            self._calls.cut()
            self._session.close()


def tasks(server: RemoteEnvironmentServer, split: str | None = None) -> Dataset:
    """Load the tasks of a server's environment, with the fields that the server reveals.

    Args:
        server: The environment on the server.
        split: The split; None: the server's default.
    """
    rows = [{name: row[name] for name in FIELDS & row.keys()} for row in server.tasks(split)]
    return Dataset(map(Task.from_dict, exact(rows)), server.name, source=server.url)


def connect(
    url: str, *, token: str | None = None, split: str | None = None, **options: Any
) -> RemoteEnv:
    """Connect to an environment of a server that ``intercode serve`` runs.

    The environment behaves like a local one. `step` returns the same five values, all methods raise
    the same exceptions, and for the same seed the tasks have the same order. A lost connection
    raises a `SandboxError`, and the next `reset` connects again.

    Args:
        url: ``http://HOST:PORT/ENVIRONMENT``, or ``https``; without a path, the server's first
            environment.
        token: The server's secret, if it has one; None: the environment variable
            ``INTERCODE_SERVE_TOKEN``.
        split: The split of the tasks; None: the server's default.
        options: ``errors``, ``observations`` and ``seed``, as for `intercode.make`. The server
            determines all other options.

    Returns:
        An environment whose session opens at its first `reset`.

    Raises:
        UsageError: The address is malformed, the environment does not exist, or the token is wrong.
        SandboxError: The server cannot be reached.
    """
    return RemoteEnv(RemoteEnvironmentServer(url, token), split, **options)


def connect_vec(
    urls: str | Sequence[str],
    num_envs: int | None = None,
    *,
    token: str | None = None,
    split: str | None = None,
    seed: int | None = None,
    autoreset_mode: str = "NextStep",
    **options: Any,
) -> ThreadVectorEnv:
    """Connect to environments of one or several servers, as a vector that steps them together.

    Args:
        urls: Addresses, as for `connect`, of environments with the same tasks.
        num_envs: The number of environments, distributed over the addresses in turn; None: one
            environment for each address.
        token: As for `connect`; the same token for all servers.
        split: As for `connect`.
        seed: As for `intercode.make_vec`.
        autoreset_mode: As for `intercode.make_vec`.
        options: As for `connect`.

    Raises:
        UsageError: As for `connect`; or the vector cannot be made with these arguments.
        SandboxError: As for `connect`.
    """
    from intercode.envs.vector import ThreadVectorEnv

    servers = [
        RemoteEnvironmentServer(url, token) for url in ([urls] if isinstance(urls, str) else urls)
    ]
    env_count = len(servers) if num_envs is None else num_envs
    if not servers:
        raise UsageError("a vector needs at least one URL: the address of 'intercode serve'")
    if env_count < 1:
        raise UsageError(f"num_envs must be at least 1, not {env_count}")
    datasets_by_url = {server.url: tasks(server, split) for server in servers[:env_count]}
    assigned_servers = [servers[index % len(servers)] for index in range(env_count)]
    envs = [
        RemoteEnv(server, split, datasets_by_url[server.url], **options)
        for server in assigned_servers
    ]
    return ThreadVectorEnv(envs, autoreset_mode, seed)
