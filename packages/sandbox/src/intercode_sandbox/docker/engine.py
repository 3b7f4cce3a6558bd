"""The engine's API: connections to it, and its errors as ours."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode_sandbox.errors import ImageError, SandboxError, SandboxUnavailableError
from intercode_sandbox.privileges import as_root, in_container, install_command

if TYPE_CHECKING:
    from docker import APIClient

LABEL = "intercode"
"""Every container and image of ours has this label."""
LEASE = "intercode.lease"
"""The label with the owner's lease: a sweep removes things of processes that are gone."""
_SECONDS = 120
DOCKER_HOST_COMMAND = "export DOCKER_HOST=unix:///var/run/docker.sock"
INSTALL_COMMAND = "pip install 'intercode-sandbox[docker]'"
_SOCKETS = ("/var/run/docker.sock", "{run}/docker.sock")


class Engine:
    """An engine with Docker's API. Thread-safe: every thread has a connection of its own.

    Args:
        url: Where it listens; None: ``DOCKER_HOST``, or the first socket that there is.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = url or default_url()
        self._lock = threading.Lock()
        self._clients: list[APIClient] = []
        self._local = threading.local()

    @property
    def api(self) -> APIClient:
        """Connection of the calling thread.

        Raises:
            SandboxUnavailableError: There is no engine, or no client for it.
        """
        client = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = self._connect()
            with self._lock:
                self._clients.append(client)
        return client

    def _connect(self) -> APIClient:
        try:
            import docker

            from intercode_sandbox.docker.client import Client
        except ImportError:
            raise SandboxUnavailableError(
                "the sandbox 'docker' needs the package docker", INSTALL_COMMAND
            ) from None
        environment = docker.utils.kwargs_from_env() if self.url.startswith("tcp") else {}
        try:
            return Client(self.url, **{**environment, "timeout": _SECONDS})
        except docker.errors.DockerException as error:
            raise unavailable_error(self.url, error) from error

    @contextmanager
    def errors(self, activity: str) -> Iterator[APIClient]:
        """For its duration, what the engine or the way to it raises is a `SandboxError`."""
        api = self.api  # first: without the package docker it says what to install
        import docker
        import requests

        try:
            yield api
        except docker.errors.NotFound as error:
            raise MissingObjectError(f"{activity}: {error.explanation or error}") from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            message = getattr(error, "explanation", None) or error
            raise SandboxError(
                f"the engine at {self.url} failed at {activity}: {message}"
            ) from error

    def info(self) -> dict[str, Any]:
        """Return the engine's version, storage and options, by the names of its API's ``/info``.

        Raises:
            SandboxUnavailableError: It is Podman's, or there is none.
        """
        with self.errors("telling of itself") as api:
            info: dict[str, Any] = api.info()
        if "BuildahVersion" in info:
            raise SandboxUnavailableError(
                f"the engine at {self.url} is Podman's, which names images differently and does "
                "not support all mounts (--sandbox native needs no engine)",
                DOCKER_HOST_COMMAND,
            )
        return info

    def close(self) -> None:
        """Close all connections. Who asks again gets a new one."""
        with self._lock:
            clients, self._clients = self._clients, []
            self._local = threading.local()
        for client in clients:
            client.close()


class MissingObjectError(SandboxError, ImageError):
    """The engine has no such thing."""


def default_url() -> str:
    """``DOCKER_HOST``, or the first of the usual sockets that there is."""
    if url := os.environ.get("DOCKER_HOST"):
        return url
    return "unix://" + next(iter(_usual_sockets()), _SOCKETS[0])


def _usual_sockets() -> list[str]:
    """List those of the usual sockets that are there, or may be."""
    run = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    paths = [path.format(run=run) for path in _SOCKETS]
    return [path for path in paths if may_be_there(Path(path))]


def may_be_there(path: Path) -> bool:
    """Whether there is such a file, or a folder on the way to it is closed to this user."""
    try:
        return path.exists()
    except PermissionError:
        return True


def unavailable_error(url: str, error: Exception) -> SandboxUnavailableError:
    """Return the error that says why no connection can be made, and what fixes it."""
    text = str(error)
    path = Path(url.removeprefix("unix://"))
    if "Permission denied" in text or (may_be_there(path) and not os.access(path, os.W_OK)):
        fix = f"{as_root('usermod -aG docker $USER')}  # and log in again"
        reason = f"{path} is not for this user"
    else:
        is_named = os.environ.get("DOCKER_HOST") == url
        if not url.startswith("unix://"):
            reason = f"{url} does not answer"
        else:
            reason = f"nothing answers at {path}" if may_be_there(path) else f"there is no {path}"
        reason += ", which DOCKER_HOST names" if is_named else ""
        fix = "unset DOCKER_HOST" if is_named and _usual_sockets() else _start_command()
    return SandboxUnavailableError(f"no engine for the sandbox 'docker': {reason}", fix)


def _start_command() -> str:
    """Return the command that starts Docker's engine on this machine; "" in a container."""
    if in_container():
        return ""
    if not shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin"):
        return install_command("docker.io")
    has_systemd = Path("/run/systemd/system").is_dir()
    return as_root("systemctl start docker" if has_systemd else "service docker start")
