"""Scores the episodes of a recorded run again, with another reward: see `rescore`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.envs.traits import traits_of
from intercode.errors import UsageError
from intercode.evaluate import drift, manifest
from intercode.evaluate.again import FromRecord
from intercode.evaluate.interrupts import Interrupts
from intercode.evaluate.loop import EpisodeEnv
from intercode.evaluate.new_reward import NewReward
from intercode.evaluate.progress import Progress
from intercode.evaluate.rescore_result import FIELD, Rescored, describe, resumed
from intercode.evaluate.rescore_work import Rescoring
from intercode.records import Record, RecordWriter
from intercode.rewards.judge import Judge
from intercode.rewards.own import Function

if TYPE_CHECKING:
    from intercode.task import Dataset

_OF_THE_REWARD = ("env.reward", "env.reward_digest", "env.judge")


def rescore(
    run: str | Path,
    dataset: Dataset,
    reward: str | Function | Judge | None = None,
    env_factory: Callable[[], EpisodeEnv] | None = None,
    *,
    out: str | Path | None = None,
    workers: int = 1,
    settings: Callable[[], Mapping[str, Any]] | None = None,
    every_turn: bool | None = None,
    progress: Progress | None = None,
    max_retries: int = 2,
    context: Callable[[], Mapping[str, Any]] | None = None,
    accept: Collection[str] = (),
) -> Rescored:
    """Score a recorded run's episodes again. The run itself is not touched.

    A reward that looks at no sandbox is worked out from the record. For any other the recorded
    actions are done again, and what they lead to is scored if every observation comes out as it
    was recorded. What does not is an error, never a reward of 0.

    An interrupt lets the episodes in flight end; called again with the same `out`, it goes on.

    Args:
        run: The recorded run's folder.
        dataset: Its tasks.
        reward: The new reward: a function, its name, or ``reward.py:score``; a judge, which
            `env_factory` gives its environments as well; None: the environment's own.
        env_factory: Makes an environment with that reward, and otherwise as it was; called in
            each worker, if actions must be done again.
        out: The new run's folder; None keeps the episodes in memory.
        workers: Threads, each with an environment of its own.
        settings: Gives what identifies the environment, as `evaluate` was told; asked once,
            before the first is made, and compared with the record.
        every_turn: Whether every turn is scored; None: as the record has it.
        progress: Is told how it goes.
        max_retries: How often an episode is begun again after the sandbox failed.
        context: Gives what else the record is to say of it (``sandbox``, ``tools``), likewise.
        accept: What may differ from the record; see `intercode.evaluate.drift`.

    Raises:
        DriftError: The tasks or the environment are not as recorded.
        RecordError: The run cannot be read, or `out` holds another one.
        TaskNotFoundError: A recorded task is not in the dataset.
        UsageError: There is no such reward, or actions must be done again and cannot.
        RunLockedError: Another process is writing to `out`.
    """
    if workers < 1 or max_retries < 0:
        raise UsageError("workers must be at least 1, retries at least 0")
    folder, target = Path(run), None if out is None else Path(out)
    recording = Record(folder)
    _refuse(recording, target)
    env = recording.manifest["env"]
    new = NewReward.of(env.get("env", ""), env.get("protocol", "default"), reward)
    where = _Where(recording.manifest, env_factory, settings, context, accept)
    where.compare("dataset", {"digest": dataset.digest})
    record, done = resumed(
        target, describe(recording.manifest, new.facts(folder)), recording.outcomes
    )
    work = Rescoring(recording, dataset, new.facts(folder), done)
    if every_turn is None:
        every_turn = bool(env.get("reward_every_turn"))
    pure = _pure(new, dataset, every_turn)
    if work.jobs() and (pure is None or (not done and work.needs_place(pure()))):
        where.environments()  # refuses what it must before anything is written
    with ExitStack() as stack:
        session = _session(recording, workers, max_retries) | where.facts(folder)
        if target is not None:
            log = stack.enter_context(RecordWriter(target))
            work.write = log.append
            record["sessions"].append(session)
            log.write_manifest(record)
        progress = progress or Progress()
        progress.begin(len(work.keys), [result.after for result in done.values()])
        stack.callback(progress.end)
        interrupts = stack.enter_context(Interrupts())
        start, ran = time.monotonic(), 0
        for episode in work.run(
            pure,
            where.environments,
            workers=workers,
            max_retries=max_retries,
            interrupts=interrupts,
            progress=progress,
        ):
            ran += 1
            progress.episode(episode)
        result = work.result(target, ran, time.monotonic() - start, interrupts.count > 0)
        if target is not None:
            session |= where.facts(folder)
            manifest.finish(
                session, episodes=ran, seconds=result.seconds, interrupted=result.cut_short
            )
            log.write_manifest(record)
    return result


class _Where:
    """The environments, if they are needed, and whether all is as it was."""

    def __init__(
        self,
        recorded: Mapping[str, Any],
        make: Callable[[], EpisodeEnv] | None,
        settings: Callable[[], Mapping[str, Any]] | None,
        context: Callable[[], Mapping[str, Any]] | None,
        accept: Collection[str],
    ) -> None:
        self._recorded = {name: recorded.get(name) for name in drift.RUN}
        last = (recorded.get("sessions") or [{}])[-1]
        # What is scored from the record was done where that says.
        self._facts = {name: last[name] for name in ("sandbox", "tools") if name in last}
        self._context = context
        self._make = make
        self._settings = settings
        self._accept = sorted(accept)
        self._differs: dict[str, Any] = {}

    def environments(self) -> Callable[[], EpisodeEnv]:
        """What makes them.

        Raises:
            UsageError: There is nothing that does, or they would not be as they were.
        """
        env = self._recorded["env"] or {}
        name, protocol = str(env.get("env")), str(env.get("protocol"))
        if not traits_of(name, protocol).separable:
            raise UsageError(
                f"in environment {name!r}, protocol {protocol!r}, an episode finds what others "
                "have left, so that none can be repeated by itself: only a reward that needs "
                "nothing but the record can score it"
            )
        if self._make is None:
            raise UsageError("this reward looks at the sandbox, and there is no env_factory")
        settings, self._settings = self._settings, None
        if settings is not None:
            self.compare("env", settings())
        context, self._context = self._context, None
        if context is not None:
            self._facts = dict(context())
        return self._make

    def compare(self, name: str, now: Mapping[str, Any]) -> None:
        """Refuse what is not as it is recorded, and not accepted.

        Raises:
            DriftError: It names that.
        """
        changed = {**self._recorded, name: {**now}}
        drift.refuse(self._recorded, changed, [*self._accept, *_OF_THE_REWARD])
        found = drift.differences(self._recorded, changed, _OF_THE_REWARD)
        self._differs |= {difference.what: difference.now for difference in found}

    def facts(self, run: Path) -> dict[str, Any]:
        """What the record is to say of it."""
        locked = {"run": str(run.absolute()), "accepted": self._accept}
        differs = {"differs": self._differs} if self._differs else {}
        return {**self._facts, "locked": locked, **differs}


def _pure(new: NewReward, dataset: Dataset, every_turn: bool) -> Callable[[], FromRecord] | None:
    """What needs no sandbox, if the reward may be such a one."""
    function = new.function
    return None if function is None else lambda: FromRecord(dataset, function, every_turn)


def _refuse(recording: Record, target: Path | None) -> None:
    """What makes no sense.

    Raises:
        UsageError, RecordError: It says why.
    """
    folder = recording.folder
    manifest.check_format(recording.manifest, folder)
    if target is not None and target.resolve() == folder.resolve():
        raise UsageError(f"{folder} is not to be changed: choose another folder")
    if origin := recording.manifest.get(FIELD):
        raise UsageError(f"{folder} was itself scored again, from {origin['run']}: take that")


def _session(recording: Record, workers: int, max_retries: int) -> dict[str, Any]:
    """For the record: this call, over what the recording's last one was asked for."""
    asked = (recording.manifest.get("sessions") or [{}])[-1].get("settings", {})
    return manifest.session(
        workers=workers,
        limit=asked.get("limit"),
        tasks=asked.get("tasks"),
        epochs=asked.get("epochs", 1),
        max_retries=max_retries,
    )
