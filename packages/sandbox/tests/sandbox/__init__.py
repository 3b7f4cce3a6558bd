"""The specification of a sandbox, as tests: a provider is done when it passes all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from intercode_sandbox import Completed, Provider, SandboxBackend
from intercode_sandbox.docker.provider import DockerProvider

Start = Callable[..., SandboxBackend]
"""The fixture `start`: an image, and limits by keyword."""
Run = Callable[..., Completed]
"""The fixture `sh`: a script, and the options of `exec`."""


def not_for_docker(provider: Provider, why: str) -> None:
    """Skip what containers of an engine cannot have."""
    if isinstance(provider, DockerProvider):
        pytest.skip(f"not for docker: {why}")
