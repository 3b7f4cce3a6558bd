"""Errors of sandboxes, and the base class of all errors of InterCode.

Every deliberate error is an `InterCodeError` and also the fitting builtin exception. So
``except ValueError`` and ``except TimeoutError`` keep their meaning for callers that do not know
InterCode. A message names the problem, its location, and the fix.
"""

from __future__ import annotations


class InterCodeError(Exception):
    """Base of all errors that InterCode raises deliberately."""


class UsageError(InterCodeError, ValueError):
    """An impossible request of a caller: an invalid option, name or value."""


class PackageError(InterCodeError, ImportError):
    """A package with InterCode's name that belongs to another project, or has another version."""


class ActionError(InterCodeError, ValueError):
    """An action that no interpreter can execute, for instance a command with a NUL."""


class EnvironmentStateError(InterCodeError, RuntimeError):
    """A call of an environment before `reset`, after its episode's end, from a second thread while
    the environment was busy, or in a fork of its process.
    """


class ImageError(InterCodeError, RuntimeError):
    """An image that cannot be found, parsed or built."""


class DockerfileError(ImageError, ValueError):
    """A malformed Dockerfile, or an impossible instruction; the message names the line."""


class SandboxError(InterCodeError, RuntimeError):
    """A failure of the sandbox itself. Never a reward: the episode counts as an error."""


class CausedInsideError(SandboxError):
    """A failure caused by code in a sandbox. Caused by an agent's code, it is a result, no error.

    `intercode_sandbox.base.was_caused_inside` decides between this class and other `SandboxError`s.
    """


class SandboxUnavailableError(SandboxError):
    """A sandbox that the machine does not permit; the message names the reason and the fix.

    Attributes:
        reason: The reason alone.
        fix: The command that fixes it; empty if no single command does.
    """

    def __init__(self, reason: str, fix: str = "") -> None:
        remedy = f"To fix it: `{fix}`; `" if fix else "`"
        super().__init__(f"{reason}. {remedy}intercode doctor` tells more")
        self.reason = reason
        self.fix = fix


class SandboxClosedError(SandboxError):
    """A use of the sandbox after `close()`, or after its end."""


class SandboxEndedError(CausedInsideError, SandboxClosedError):
    """A sandbox that its own code has ended, or left unable to answer."""


class SandboxTimeoutError(SandboxError, TimeoutError):
    """A sandbox that did not answer in time. (A *command* that times out is not an error.)"""


class OutputLimitError(CausedInsideError, OverflowError):
    """A file, stream or tree that exceeds the caller's size limit, or takes too long to read."""
