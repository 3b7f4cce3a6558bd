"""Connections to the API of Docker's engine, and the conversion of its errors to InterCode's.

The engine is the daemon that runs containers.
"""

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
"""Label of every container and image of InterCode."""
LEASE = "intercode.lease"
"""Label of a container with the lease of the process that owns it (`ownership.new_lease`). The
containers of processes that have ended are removed: see `provider.sweep`."""
_SECONDS = 120
"""Time limit of a request to the engine."""
DOCKER_HOST_COMMAND = "export DOCKER_HOST=unix:///var/run/docker.sock"
INSTALL_COMMAND = "pip install 'intercode-sandbox[docker]'"
_SOCKETS = ("/var/run/docker.sock", "{run}/docker.sock")


class DockerEngine:
    """A Docker engine, or another engine with its API. Thread-safe.

    Every thread has its own connection.

    Args:
        url: The engine's address; None: ``DOCKER_HOST``, or the first usual socket that exists.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = url or default_url()
        self._lock = threading.Lock()
        self._clients: list[APIClient] = []
        self._local = threading.local()

    @property
    def api(self) -> APIClient:
        """The connection of the calling thread, opened at its first use.

        Raises:
            SandboxUnavailableError: No engine listens, or the package docker is not installed.
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

            from intercode_sandbox.docker.client import DockerApiClient
        except ImportError:
            raise SandboxUnavailableError(
                "the sandbox 'docker' needs the package docker", INSTALL_COMMAND
            ) from None
        client_options = docker.utils.kwargs_from_env() if self.url.startswith("tcp") else {}
        try:
            return DockerApiClient(self.url, **{**client_options, "timeout": _SECONDS})
        except docker.errors.DockerException as error:
            raise unavailable_error(self.url, error) from error

    @contextmanager
    def errors(self, activity: str) -> Iterator[APIClient]:
        """Yield the connection; convert errors of the engine in the block to `SandboxError`.

        Args:
            activity: The purpose of the block, for messages.

        Raises:
            MissingDockerObjectError: The engine does not have the requested object.
            SandboxError: The engine, or the connection to it, failed.
        """
        # This line comes before the imports: if the package docker is missing, the property `api`
        # raises an error that names the fix.
        api = self.api
        import docker
        import requests

        try:
            yield api
        except docker.errors.NotFound as error:
            raise MissingDockerObjectError(f"{activity}: {error.explanation or error}") from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            message = getattr(error, "explanation", None) or error
            raise SandboxError(
                f"the engine at {self.url} failed at {activity}: {message}"
            ) from error

    def info(self) -> dict[str, Any]:
        """Return facts on the engine: its version, storage and options.

        The names are those of ``/info`` of the engine's API.

        Raises:
            SandboxUnavailableError: The engine is Podman's, or no engine listens.
            SandboxError: The engine failed.
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
        """Close all connections. The next use opens a new one."""
        with self._lock:
            clients, self._clients = self._clients, []
            self._local = threading.local()
        for client in clients:
            client.close()


class MissingDockerObjectError(SandboxError, ImageError):
    """An image or a container that the engine does not have."""


def default_url() -> str:
    """Return the engine's address: ``DOCKER_HOST``, or the first usual socket that exists.

    If none of the usual sockets exists, the address is the first of them.
    """
    if url := os.environ.get("DOCKER_HOST"):
        return url
    return "unix://" + next(iter(_default_sockets()), _SOCKETS[0])


def _default_sockets() -> list[str]:
    """Return the paths of the engine's usual sockets that exist, or may exist."""
    xdg_runtime_folder = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    socket_paths = [path.format(run=xdg_runtime_folder) for path in _SOCKETS]
    return [path for path in socket_paths if may_exist(Path(path))]


def may_exist(path: Path) -> bool:
    """Return whether a file exists, or may exist in a folder that this user must not enter."""
    try:
        return path.exists()
    except PermissionError:
        return True


def unavailable_error(url: str, error: Exception) -> SandboxUnavailableError:
    """Return the error for a failed connection to the engine, with the reason and the fix.

    Args:
        url: The engine's address.
        error: The error of the connection.
    """
    error_text = str(error)
    socket_path = Path(url.removeprefix("unix://"))
    if "Permission denied" in error_text or (
        may_exist(socket_path) and not os.access(socket_path, os.W_OK)
    ):
        fix = f"{as_root('usermod -aG docker $USER')}  # and log in again"
        reason = f"{socket_path} is not for this user"
    else:
        is_configured = os.environ.get("DOCKER_HOST") == url
        if not url.startswith("unix://"):
            reason = f"{url} does not answer"
        else:
            reason = (
                f"nothing answers at {socket_path}"
                if may_exist(socket_path)
                else f"there is no {socket_path}"
            )
        reason += ", which DOCKER_HOST names" if is_configured else ""
        fix = "unset DOCKER_HOST" if is_configured and _default_sockets() else _start_command()
    return SandboxUnavailableError(f"no engine for the sandbox 'docker': {reason}", fix)


def _start_command() -> str:
    """Return the command that starts, or first installs, Docker's engine; "" in a container."""
    if in_container():
        return ""
    if not shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin"):
        return install_command("docker.io")
    has_systemd = Path("/run/systemd/system").is_dir()
    return as_root("systemctl start docker" if has_systemd else "service docker start")
