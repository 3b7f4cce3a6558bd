"""Errors of sandboxes, and the base class of all errors of InterCode.

Every error that InterCode raises deliberately is an `InterCodeError`. Most of these classes are
also subclasses of a builtin exception. So ``except ValueError`` and ``except TimeoutError`` also
catch InterCode's errors. A message names the problem and, if known, its location and the fix.
"""

from __future__ import annotations


class InterCodeError(Exception):
    """Base of all errors that InterCode raises deliberately."""


class UsageError(InterCodeError, ValueError):
    """An impossible request of a caller: an invalid option, name or value."""


class PackageError(InterCodeError, ImportError):
    """A package that has the name of one of InterCode's, but another origin or version."""


class ActionError(InterCodeError, ValueError):
    """An action that no interpreter can execute, for instance a command with a NUL."""


class EnvironmentStateError(InterCodeError, RuntimeError):
    """A call of an environment at a time, or from a place, where the call is not permitted.

    The call came before `reset` or after the episode's end. Or it came from a second thread while
    another call was running, or from a fork of the process that created the environment.
    """


class ImageError(InterCodeError, RuntimeError):
    """An image that cannot be found, parsed or built."""


class DockerfileError(ImageError, ValueError):
    """A malformed Dockerfile, an instruction that cannot run, or an invalid build option.

    If an instruction or its syntax is the cause, the message names the line.
    """


class SandboxError(InterCodeError, RuntimeError):
    """A failure of a sandbox. The episode counts as an error, and gets no reward.

    The subclass `CausedInsideError` is the exception: an agent can cause such a failure.
    """


class CausedInsideError(SandboxError):
    """A failure caused by code in a sandbox. If an agent's code caused it, the failure is a result.

    `intercode_sandbox.base.was_caused_inside` decides whether the end of a sandbox is of this class
    or another `SandboxError`.
    """


class SandboxUnavailableError(SandboxError):
    """A sandbox that the machine does not permit; the message names the reason, and a fix if any.

    Attributes:
        reason: The reason alone.
        fix: The command that removes the reason; empty if no single command does.
    """

    def __init__(self, reason: str, fix: str = "") -> None:
        remedy = f"To fix it: `{fix}`; `" if fix else "`"
        super().__init__(f"{reason}. {remedy}intercode doctor` tells more")
        self.reason = reason
        self.fix = fix


class SandboxClosedError(SandboxError):
    """A call of a sandbox that was closed, or that has ended."""


class SandboxEndedError(CausedInsideError, SandboxClosedError):
    """A sandbox that does not answer, or has ended, because of code that ran in it."""


class SandboxTimeoutError(SandboxError, TimeoutError):
    """A sandbox that did not answer in time. (A *command* that times out is not an error.)"""


class OutputLimitError(CausedInsideError, OverflowError):
    """A file, stream or tree that exceeds the caller's size limit, or takes too long to read."""
