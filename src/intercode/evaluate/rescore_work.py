"""The work of scoring a run again: what is to be done, and which way each episode goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.episode import Episode
from intercode.errors import InterCodeError
from intercode.evaluate.again import (
    Compared,
    FromRecord,
    NeedsPlaceError,
    NotReproducibleError,
    Recorded,
)
from intercode.evaluate.interrupts import Interrupts
from intercode.evaluate.loop import EpisodeEnv, failed, run_episode
from intercode.evaluate.permits import Permits, default_sandboxes
from intercode.evaluate.pool import Pool
from intercode.evaluate.progress import Progress
from intercode.evaluate.rescore_result import Rescored, Result, Way, complete, way_of
from intercode.evaluate.worker import Job, Orders
from intercode.records import Key, Outcome, Record

if TYPE_CHECKING:
    from intercode.task import Dataset

Make = Callable[[], EpisodeEnv]


class Rescoring:
    """What is to be scored, and what has been.

    Args:
        recording: The recorded run.
        dataset: Its tasks.
        facts: What each new episode is to say of the reward.
        done: What earlier sessions have finished.

    Raises:
        TaskNotFoundError: A recorded task is not in the dataset.
    """

    def __init__(
        self,
        recording: Record,
        dataset: Dataset,
        facts: Mapping[str, Any],
        done: Mapping[Key, Result],
    ) -> None:
        self._recording = recording
        self._facts = facts
        self._results = dict(done)
        self._before = recording.outcomes
        self._tasks = {key: dataset.by_id(key[1]) for key in self._before}
        self.keys = list(self._before)
        self.kept: list[Episode] = []
        self.write: Callable[[Episode], None] = self.kept.append
        """Where episodes go, from any thread."""

    def jobs(self) -> list[Job]:
        """What has no new result yet, and had one."""
        return [
            Job(key[0], self._tasks[key])
            for key in self.keys
            if key not in self._results and not self._before[key].failed
        ]

    def needs_place(self, env: FromRecord) -> bool:
        """Whether the reward looks at the place, in the first episode that it is asked for."""
        for job in self.jobs():
            if self._before[job.key].status == "skipped":
                continue
            try:
                run_episode(env, Recorded(self._recording), job.task, epoch=job.epoch)
            except NeedsPlaceError:
                return True
            except InterCodeError:
                return False  # it failed, which is to be seen in the result
            return False
        return False

    def run(
        self,
        pure: Make | None,
        real: Callable[[], Make],
        *,
        workers: int,
        max_retries: int,
        interrupts: Interrupts,
        progress: Progress,
    ) -> Iterator[Episode]:
        """Score what is to be scored, and give each episode when it is recorded.

        Args:
            pure: Makes what needs no sandbox, if the reward may do with that.
            real: Asked, if actions must be done again, for what makes environments.
            workers: Threads.
            max_retries: How often an episode is begun again after the sandbox failed.
            interrupts: After one, nothing more is begun.
            progress: Is told of actions and of the clock.
        """

        def through(way: Way, make: Make) -> Iterator[Episode]:
            orders = self._orders(way, make, max_retries, progress)
            pool = Pool(self.jobs(), orders, workers)
            with closing(pool.run(interrupts, progress)) as episodes:
                yield from (self._noted(one) for one in episodes if not _looked_in_vain(one))

        yield from map(self._noted, self._without_result())
        if pure is not None:
            yield from through("record", pure)
        if self.jobs() and not interrupts.count:
            make = real()
            yield from map(self._noted, self._timed_out())
            yield from through("again", lambda: Compared(make()))

    def result(self, folder: Path | None, ran: int, seconds: float, interrupted: bool) -> Rescored:
        """What has come of it."""
        results = [self._results[key] for key in self.keys if key in self._results]
        return Rescored(
            outcomes=[result.after for result in results],
            planned=len(self.keys),
            ran=ran,
            seconds=seconds,
            interrupted=interrupted,
            folder=folder,
            kept=self.kept,
            results=results,
        )

    def _orders(self, way: Way, make: Make, max_retries: int, progress: Progress) -> Orders:
        recorded = self._recording.manifest
        return Orders(
            agent=Recorded(self._recording),
            env_factory=make,
            seed=recorded["seed"],
            max_retries=max_retries,
            agent_name=recorded["agent"]["name"],
            env_name=recorded["env"].get("env", ""),
            record=lambda episode: None if _looked_in_vain(episode) else self._keep(episode, way),
            on_action=progress.action,
            sandboxes=Permits(default_sandboxes()),
        )

    def _without_result(self) -> Iterator[Episode]:
        """Those that ended in an error when they were recorded, as they are."""
        for key in self.keys:
            if self._before[key].failed and key not in self._results:
                episode = self._recording.read(key)
                self._keep(episode, "no result")
                yield episode

    def _timed_out(self) -> Iterator[Episode]:
        """Those that no machine is sure to do as they were done."""
        for job in self.jobs():
            turns = self._recording.read(job.key).turns
            late = (n for n, turn in enumerate(turns, 1) if turn.info.get("timed_out"))
            if (number := next(late, None)) is not None:
                error = NotReproducibleError(
                    f"not reproducible: turn {number} ran into the time limit"
                )
                episode = failed(job.task, error, env="", name="", epoch=job.epoch, partial=None)
                self._keep(episode, "again")
                yield episode

    def _keep(self, episode: Episode, way: Way) -> None:
        """Record an episode. Called from any thread."""
        recorded = self._recording.read((episode.epoch, episode.task_id))
        complete(episode, recorded, self._facts, way)
        self.write(episode)

    def _noted(self, episode: Episode) -> Episode:
        key = (episode.epoch, episode.task_id)
        self._results[key] = Result(self._before[key], Outcome.of(episode), way_of(episode))
        return episode


def _looked_in_vain(episode: Episode) -> bool:
    """Whether its reward needs the place: this was no try yet."""
    return episode.metadata.get("error_type") == NeedsPlaceError.__name__
