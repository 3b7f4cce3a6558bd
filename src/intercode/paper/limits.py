"""The options of the paper protocol, whose limits are its own."""

from __future__ import annotations

from intercode.envs.options import EnvOptions, Image, Network
from intercode.errors import UsageError
from intercode.sandbox.base import Limits


class PaperOptions(EnvOptions, frozen=True, kw_only=True):
    """The options of the environments whose tasks are tried in sandboxes."""

    image: Image = None


class PaperCtfOptions(PaperOptions, frozen=True, kw_only=True):
    """The options of the CTF environment."""

    network: Network = False


def refuse(limits: Limits | None) -> None:
    """Refuse limits that were given.

    Raises:
        UsageError: They are not the defaults.
    """
    if limits not in (None, Limits()):
        raise UsageError("the paper protocol has limits of its own: leave yours away")
