"""The errors of sandboxes, and the root of all of InterCode's.

Every error that InterCode raises on purpose is an `InterCodeError` and also the builtin that fits
it, so that ``except ValueError`` and ``except TimeoutError`` keep their meaning for callers who
know nothing of us. A message says what was wrong, where, and what to do about it.
"""

from __future__ import annotations


class InterCodeError(Exception):
    """Base of all errors that InterCode raises on purpose."""


class UsageError(InterCodeError, ValueError):
    """A caller asked for something that cannot be: a bad option, name or value."""


class PackageError(InterCodeError, ImportError):
    """A package of InterCode's name is another project's, or of another version."""


class ActionError(InterCodeError, ValueError):
    """An action cannot be handed to its interpreter at all, for instance a NUL in a command."""


class EnvironmentStateError(InterCodeError, RuntimeError):
    """An environment was called before `reset`, after its episode's end, from a second thread while
    it was busy, or in a fork of the process that made it.
    """


class ImageError(InterCodeError, RuntimeError):
    """An image cannot be found, understood or built."""


class DockerfileError(ImageError, ValueError):
    """A Dockerfile is malformed, or asks for what it cannot have; the message names its line."""


class SandboxError(InterCodeError, RuntimeError):
    """The sandbox itself failed. Never a reward: the episode counts as an error."""


class CausedInsideError(SandboxError):
    """A failure caused by code in a sandbox. Of an agent's code it is a result and no error.

    `intercode_sandbox.base` decides between this and any other `SandboxError`.
    """


class SandboxUnavailableError(SandboxError):
    """The machine does not permit the sandbox; the message names the rule and the fix.

    Attributes:
        reason: The rule alone.
        fix: The one command that fixes it.
    """

    def __init__(self, reason: str, fix: str = "") -> None:
        remedy = f"To fix it: `{fix}`; `" if fix else "`"
        super().__init__(f"{reason}. {remedy}intercode doctor` tells more")
        self.reason = reason
        self.fix = fix


class SandboxClosedError(SandboxError):
    """The sandbox was used after `close()`, or died."""


class SandboxEndedError(CausedInsideError, SandboxClosedError):
    """Code in the sandbox has ended it, or left it unable to answer."""


class SandboxTimeoutError(SandboxError, TimeoutError):
    """The sandbox did not answer in time. (A *command* that times out is not an error.)"""


class OutputLimitError(CausedInsideError, OverflowError):
    """A file, a stream or a tree is larger than the caller's limit, or takes longer to read."""
