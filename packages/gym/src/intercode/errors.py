"""The one error hierarchy: the errors of sandboxes, and those of all that is built on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intercode_sandbox.errors import (
    ActionError as ActionError,
    CausedInsideError as CausedInsideError,
    DockerfileError as DockerfileError,
    EnvironmentStateError as EnvironmentStateError,
    ImageError as ImageError,
    InterCodeError as InterCodeError,
    OutputLimitError as OutputLimitError,
    SandboxClosedError as SandboxClosedError,
    SandboxEndedError as SandboxEndedError,
    SandboxError as SandboxError,
    SandboxTimeoutError as SandboxTimeoutError,
    SandboxUnavailableError as SandboxUnavailableError,
    UsageError as UsageError,
)


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
        index, first_error = next(iter(errors.items()))
        super().__init__(
            f"{len(errors)} of the environments failed, first environment {index}: "
            f"{type(first_error).__name__}: {first_error} (the others' results are in this "
            "error's `results`)"
        )
        self.errors = dict(errors)
        self.results = results


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
