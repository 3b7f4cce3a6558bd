"""The one error hierarchy.

Every error that InterCode raises on purpose is an `InterCodeError` and also the builtin that fits
it, so that ``except ValueError`` and ``except TimeoutError`` keep their meaning for callers who
know nothing of us. A message says what was wrong, where, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class InterCodeError(Exception):
    """Base of all errors that InterCode raises on purpose."""


class UsageError(InterCodeError, ValueError):
    """A caller asked for something that cannot be: a bad option, name or value."""


class TrustError(UsageError):
    """A run's record would run code, read a path or reach an address that the caller did not name.

    The message lists all of it; see `intercode.trust`.
    """


class TaskError(InterCodeError, ValueError):
    """A task or a dataset is malformed; the message names file, row and field."""


class TaskNotFoundError(InterCodeError, LookupError):
    """No task has the requested id."""


class RecordError(InterCodeError, ValueError):
    """A recorded episode or run cannot be read, or does not belong to this run."""


class RecordWriteError(RecordError):
    """A record, or a file made of one, cannot be written: the disk is full, for instance."""


class RunLockedError(InterCodeError, RuntimeError):
    """Another process is writing to this run folder."""


class ActionError(InterCodeError, ValueError):
    """An action cannot be handed to its interpreter at all, for instance a NUL in a command."""


class EnvironmentStateError(InterCodeError, RuntimeError):
    """An environment was called before `reset`, after its episode's end, from a second thread while
    it was busy, or in a fork of the process that made it.
    """


class ForkError(EnvironmentStateError):
    """An episode cannot be forked: its state cannot be saved, or does not come about again."""


class CapacityError(InterCodeError, RuntimeError):
    """A pool or a server has no sandbox for another client now, or is closing."""


class LeaseError(InterCodeError, LookupError):
    """A pool has no such lease, or it has ended; so has a session that was idle or too old."""


class VectorError(InterCodeError, RuntimeError):
    """Environments of a vector failed. The results of all others are kept.

    Attributes:
        errors: What each of them raised, by its index.
        results: What the call would have returned. An environment that failed has the reward NaN
            there, counts as truncated, and has its error in ``infos["error"]``; the next step
            resets it.
    """

    def __init__(self, errors: Mapping[int, BaseException], results: Any) -> None:
        index, first = next(iter(errors.items()))
        super().__init__(
            f"{len(errors)} of the environments failed, first environment {index}: "
            f"{type(first).__name__}: {first} (the others' results are in this error's `results`)"
        )
        self.errors = dict(errors)
        self.results = results


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
        why: The rule alone.
        fix: The one command that fixes it.
    """

    def __init__(self, why: str, fix: str = "") -> None:
        remedy = f"To fix it: `{fix}`; `" if fix else "`"
        super().__init__(f"{why}. {remedy}intercode doctor` tells more")
        self.why = why
        self.fix = fix


class SandboxClosedError(SandboxError):
    """The sandbox was used after `close()`, or died."""


class SandboxEndedError(CausedInsideError, SandboxClosedError):
    """Code in the sandbox has ended it, or left it unable to answer."""


class SandboxTimeoutError(SandboxError, TimeoutError):
    """The sandbox did not answer in time. (A *command* that times out is not an error.)"""


class OutputLimitError(CausedInsideError, OverflowError):
    """A file, a stream or a tree is larger than the caller's limit, or takes longer to read."""


class AgentStartError(SandboxError):
    """The program of an agent could not be started, or ended before it had asked its model."""


class DatabaseError(SandboxError, ConnectionError):
    """A database engine failed or was lost. (A *statement* that fails is not an error.)"""


class FetchError(InterCodeError, OSError):
    """A dataset could not be downloaded or unpacked. Nothing that looks whole is left of it."""


class RewardError(InterCodeError, RuntimeError):
    """A reward could not be computed, for instance because gold itself failed to run."""


class ModelError(InterCodeError, RuntimeError):
    """A model refused a request for good. Never a reward: the episode counts as an error.

    Attributes:
        unsent: Whether the refusal is our own, before any request to the model.
    """

    unsent = False


class ModelUnavailableError(ModelError, ConnectionError):
    """A model gave no usable answer, however often it was asked."""


class ModelAccessError(ModelError, PermissionError):
    """A model refuses every request alike: a wrong key, no such model, no money left."""


class ContextLengthError(ModelError, ValueError):
    """A dialogue is longer than the model takes."""


class BudgetError(ModelError):
    """A call could cost more than is left of the budget; it was not made."""

    unsent = True
