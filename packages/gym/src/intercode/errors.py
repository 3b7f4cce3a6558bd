"""The exception classes of InterCode.

The errors of sandboxes are imported from `intercode_sandbox.errors`; the other errors are defined
in this module. Every class derives from `InterCodeError`. Most classes also derive from a
built-in exception, such as ValueError, so callers can catch them by that type.
"""

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
    """A run's record names code, a path or a network address that the caller did not name.

    To repeat the run, InterCode would have to execute the code, read the path or connect to the
    address. The record may come from a stranger, so the call is refused. The message lists every
    such effect; see `intercode.trust`.
    """


class TaskError(InterCodeError, ValueError):
    """A task or a dataset is malformed; the message names file, row and field."""


class TaskNotFoundError(InterCodeError, LookupError):
    """No task has the requested id."""


class RecordError(InterCodeError, ValueError):
    """A recorded episode or run cannot be read, or does not belong to this run."""


class RecordWriteError(RecordError):
    """A record, or a file made from a record, cannot be written, for instance on a full disk."""


class RunLockedError(InterCodeError, RuntimeError):
    """Another process is writing to this run folder."""


class ForkError(EnvironmentStateError):
    """An episode cannot be forked.

    Its state cannot be saved, or a replay of its actions does not reproduce the state.
    """


class CapacityError(InterCodeError, RuntimeError):
    """A pool or a server has no free sandbox for a further client, or is closing."""


class LeaseError(InterCodeError, LookupError):
    """A pool has no lease with the given id.

    The pool also ends a lease by itself: if its client was idle, or if the lease is too old.
    """


class VectorError(InterCodeError, RuntimeError):
    """Environments of a vector failed. The results of all other environments are kept.

    Attributes:
        errors: Index of the environment → the exception that it raised.
        results: The result of the call. A failed environment has the reward NaN, counts as
            truncated, and has its error in ``infos["error"]``; the next step resets it.
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
    """An agent's program could not be started, or exited before its first model request."""


class DatabaseError(SandboxError, ConnectionError):
    """A database engine failed, or the connection to it was lost.

    A statement of an agent that fails raises no such error: its message is an observation.
    """


class FetchError(InterCodeError, OSError):
    """A file, such as a dataset or a model, could not be downloaded or unpacked.

    No incomplete file remains at the target.
    """


class RewardError(InterCodeError, RuntimeError):
    """A reward could not be computed, for instance because gold failed to run."""


class ModelError(InterCodeError, RuntimeError):
    """A model refused a request permanently. The episode counts as an error, never as a reward.

    Attributes:
        unsent: Whether InterCode itself refused the request before sending it to the model.
    """

    unsent = False


class ModelUnavailableError(ModelError, ConnectionError):
    """A model gave no usable response in any of the attempts."""


class ModelAccessError(ModelError, PermissionError):
    """A model's provider refuses every request: wrong key, unknown model, or no credit left."""


class ContextLengthError(ModelError, ValueError):
    """A dialogue exceeds the model's context length."""


class BudgetError(ModelError):
    """A model call was not made because it could cost more than the remaining budget."""

    unsent = True
