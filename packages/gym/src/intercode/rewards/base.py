"""The signature of rewards, and access to an episode's files while no program of the agent runs.

`Reward` is the signature of every reward. `quiesce_sandbox` stops or copies an episode's sandbox
for grading; `start_copy` starts a copy from a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Protocol, TypeVar

from intercode.episode import Episode, Score
from intercode.task import Task
from intercode_sandbox.base import (
    Limits,
    Provider,
    SandboxBackend,
    Snapshot,
    SupportsFork,
    SupportsPrivateExec,
)
from intercode_sandbox.network import Network

WorkspaceT = TypeVar("WorkspaceT", contravariant=True)


class Reward(Protocol[WorkspaceT]):
    """A function of a task, an episode, and the workspace in the episode's final state.

    The workspace is the resource in which the environment executes actions: a sandbox, or a
    database session.
    """

    def __call__(self, task: Task, episode: Episode, workspace: WorkspaceT, /) -> Score:
        """Return the score of an episode.

        Raises:
            TaskError: A field of the task that the reward needs is missing or malformed.
            RewardError: Gold or the verification could not be run.
            CausedInsideError: The agent's programs left nothing that could be scored.
            SandboxError: The workspace was lost for another reason.
        """


@contextmanager
def quiesce_sandbox(
    provider: Provider,
    network: Network,
    episode: Episode,
    sandbox: SandboxBackend,
    on_quiet: Callable[[], object] = lambda: None,
    private: bool = False,
) -> Iterator[SandboxBackend]:
    """Yield an episode's sandbox, or a copy of the sandbox, in which no process runs.

    In the sandbox of an ended episode, all processes are killed. The sandbox itself is then
    yielded, or a copy if `private` requires a copy. The sandbox of a running episode continues, and
    a copy is yielded.

    Args:
        provider: The provider that starts the copy.
        network: The network access of the copy.
        episode: The episode.
        sandbox: The sandbox of the episode.
        on_quiet: A callback that runs while no program can change a file, before the sandbox is
            copied. A check after the copy would be too late: a program of the agent could by then
            have undone the state that the copy holds. If a program has changed a file nevertheless,
            the callback runs again.
        private: Whether to hide the sandbox's programs from each other, if the provider supports
            privacy. A sandbox that was started without privacy is copied.
    """
    limits = replace(sandbox.limits, private=True) if private else sandbox.limits
    is_fit = limits == sandbox.limits or not isinstance(sandbox, SupportsPrivateExec)
    if episode.status != "running":
        sandbox.kill()
        on_quiet()
        if is_fit:
            yield sandbox
            return

    def save() -> Snapshot:
        on_quiet()
        return sandbox.snapshot()

    if episode.status == "running":
        snapshot = sandbox.at_rest(save)
    else:
        # A frozen layer also holds files that a snapshot cannot copy. Such files are judged, too.
        snapshot = sandbox.freeze() if isinstance(sandbox, SupportsFork) else sandbox.snapshot()
    with start_copy(provider, network, limits, snapshot) as copy:
        yield copy


@contextmanager
def start_copy(
    provider: Provider, network: Network, limits: Limits, snapshot: Snapshot
) -> Iterator[SandboxBackend]:
    """Start a sandbox from a snapshot; at the end, close the sandbox and delete the snapshot.

    Args:
        provider: The provider that starts the copy.
        network: The network access of the copy.
        limits: The limits of the copy.
        snapshot: The snapshot.
    """
    try:
        with closing(provider.start(snapshot, limits, network)) as copy:
            yield copy
    finally:
        snapshot.delete()
