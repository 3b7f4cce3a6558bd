"""New scores for the episodes of a recorded run, with another reward: see `rescore`.

`_RescoreRunner` scores each episode from its record if the reward needs no sandbox. Otherwise the
runner replays the episode in an environment of `_ReplayEnvironments`. The results form a new run
with its own record.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from intercode.envs.traits import check_imported, find_traits
from intercode.episode import Episode, Score
from intercode.errors import InterCodeError, RecordError, UsageError
from intercode.evaluate import manifest, manifest_diff, scoring_versions
from intercode.evaluate.episode_loop import (
    FifoSemaphore,
    PlayableEnv,
    SharedRunResources,
    default_sandboxes,
)
from intercode.evaluate.progress import Progress
from intercode.evaluate.replayed_env import (
    NeedsSandboxError,
    NotReproducibleError,
    replay,
    score_record,
)
from intercode.evaluate.runner import RunResult
from intercode.evaluate.worker import (
    EpisodeJob,
    EpisodeWorkerPool,
    InterruptCounter,
    WorkerInstructions,
)
from intercode.records import (
    MANIFEST,
    Key,
    Outcome,
    RunRecord,
    RunRecordWriter,
    episode_key,
    read_latest,
    read_manifest,
)
from intercode.registry import REWARDS
from intercode.rewards.base import Reward
from intercode.rewards.custom import CustomReward, Function, choose_reward
from intercode.rewards.judge import Judge
from intercode.spec import add_identity
from intercode_sandbox.user_code import digest, is_reference

if TYPE_CHECKING:
    from intercode.task import Dataset, Task

DEFAULT = "default"
"""The name of an environment's own reward."""
FIELD = "rescored"
"""The field of a rescored run's ``run.json`` and of its episodes' metadata."""
_REWARD_FIELDS = {"reward": "reward", "reward_digest": "digest", "judge": "judge"}
"""Name of a fact about the reward in a record's ``env`` → name of the fact in ``rescored``."""

Way = Literal["record", "again", "not reproducible", "no result", "failed"]
"""The way in which an episode was scored.

- ``record``: The reward needs the record only, and was computed from the record.
- ``again``: A fresh environment replayed the actions with equal observations; the final state was
  scored.
- ``not reproducible``: An observation differed. The episode has no new score and counts as an
  error.
- ``no result``: The episode had no result in the recorded run, and has none now.
- ``failed``: The new reward, or the sandbox, gave no result.
"""


@dataclass(frozen=True, slots=True)
class RescoredEpisode:
    """One rescored episode."""

    before: Outcome
    after: Outcome
    way: Way

    @property
    def final(self) -> bool:
        """Whether the episode needs no further attempt."""
        return not self.after.failed or self.way == "no result"


@dataclass(slots=True)
class RescoreResult(RunResult):
    """The result of `rescore`; outcomes are in the order of the recorded run."""

    results: list[RescoredEpisode] = field(default_factory=list)
    """The rescored episode of each outcome, with the outcome before and after."""

    @property
    def before(self) -> list[Outcome]:
        """The recorded outcomes of the same episodes."""
        return [result.before for result in self.results]

    @property
    def ways(self) -> dict[Way, int]:
        """The number of episodes that were scored in each way."""
        return dict(Counter(result.way for result in self.results))

    @property
    def changes(self) -> list[RescoredEpisode]:
        """The episodes with a changed reward."""
        scored_results = (
            scored_result
            for scored_result in self.results
            if not (scored_result.before.failed or scored_result.after.failed)
        )
        return [result for result in scored_results if result.before.reward != result.after.reward]

    @property
    def lost(self) -> list[RescoredEpisode]:
        """The episodes with a recorded result, but without a result under the new reward."""
        return [
            result for result in self.results if result.after.failed and not result.before.failed
        ]


def rescore(
    run: str | Path,
    dataset: Dataset,
    reward: str | Function | Judge | None = None,
    env_factory: Callable[[], PlayableEnv] | None = None,
    *,
    out: str | Path | None = None,
    workers: int = 1,
    settings: Callable[[], Mapping[str, Any]] | None = None,
    every_turn: bool | None = None,
    progress: Progress | None = None,
    max_retries: int = 2,
    context: Callable[[], Mapping[str, Any]] | None = None,
    accept: Collection[str] = (),
    trust: bool = False,
) -> RescoreResult:
    """Score a recorded run's episodes again. The run itself stays unchanged.

    A reward that needs no sandbox is computed from the record. For any other reward, a fresh
    environment replays the recorded actions. If every observation equals its record, the final
    state is scored. Otherwise the episode ends in an error, never in a reward of 0.

    An interrupt lets the episodes in flight end; call again with the same `out` to resume.

    Args:
        run: The recorded run's folder.
        dataset: The run's tasks.
        reward: The new reward: a function, the name of a registered reward, or
            ``reward.py:score``; a judge; None: the environment's own reward. `env_factory` also
            gives a judge to its environments.
        env_factory: Makes an environment with the new reward and otherwise the recorded options.
            If actions must be replayed, each worker calls this function.
        out: The new run's folder; None keeps the episodes in memory.
        workers: Threads, each with its own environment.
        settings: Returns the facts that identify the environment, as for `evaluate`. Only if
            actions must be replayed, the function is called, once, before the first environment is
            made. Its result is compared with the record.
        every_turn: Whether every turn is scored; None: as recorded.
        progress: Observes the work.
        max_retries: The number of new attempts at an episode after sandbox failures.
        context: Returns further facts for the new record (``sandbox``, ``tools``); called when
            `settings` is called.
        accept: Names of facts that may differ from the record; see
            `intercode.evaluate.manifest_diff`.
        trust: Whether the record may name an environment of an installed package whose module is
            not imported yet; no other part of the record is executed.

    Returns:
        The new outcomes, each with the recorded outcome of the same episode.

    Raises:
        TrustError: The record names an environment of an installed package that is not imported
            yet, and `trust` is False.
        DriftError: The tasks or the environment differ from the record.
        RecordError: The run cannot be read, or `out` holds another run.
        TaskNotFoundError: A recorded task is not in the dataset.
        UsageError: The reward does not exist, or a necessary replay is impossible. Or `run` is
            itself a rescored run or equals `out`, or a number is out of range.
        RunLockedError: Another process is writing to `out`.
    """
    if workers < 1 or max_retries < 0:
        raise UsageError("workers must be at least 1, retries at least 0")
    record, target = RunRecord(Path(run)), None if out is None else Path(out).absolute()
    _refuse_run(record, target)
    env = record.manifest["env"]
    check_imported(str(env.get("env", "")), str(env.get("protocol", DEFAULT)), trust=trust)
    setting = _ReplayEnvironments(record, env_factory, settings, context, accept)
    setting.compare("dataset", manifest.dataset_facts(dataset))
    rescore_work = _RescoreRunner(
        record, dataset, reward, every_turn, setting, progress or Progress()
    )
    rescored_manifest = rescore_work.resume(target)
    if rescore_work.needs_sandbox():
        # This call refuses unsuitable environments, before anything is written.
        setting.factory()
    session = _session(record, workers, max_retries) | setting.facts()
    if target is None:
        return rescore_work.run(workers, max_retries)
    with RunRecordWriter(target) as log:
        rescore_work.write = log.append
        rescored_manifest["sessions"].append(session)
        log.write_manifest(rescored_manifest)
        result = rescore_work.run(workers, max_retries)
        result.folder = target
        session |= setting.facts()
        manifest.finish(
            session, episodes=result.ran, seconds=result.seconds, interrupted=result.cut_short
        )
        log.write_manifest(rescored_manifest)
    return result


class _RescoreRunner:
    """The remaining episodes of a rescored run, and the results so far.

    Raises:
        TaskNotFoundError: A recorded task is not in the dataset.
        UsageError: The reward does not exist.
    """

    def __init__(
        self,
        record: RunRecord,
        dataset: Dataset,
        reward: str | Function | Judge | None,
        every_turn: bool | None,
        setting: _ReplayEnvironments,
        progress: Progress,
    ) -> None:
        env = record.manifest["env"]
        self._record = record
        self._reward = _record_reward(env.get("env", ""), env.get("protocol", DEFAULT), reward)
        self._rules = scoring_versions.rule_versions({**env, "reward": reward})
        self._version = {} if dataset.version is None else {"version": dataset.version}
        self._facts = {"run": str(record.folder.absolute()), **_facts(reward)}
        self._every_turn = bool(env.get("reward_every_turn")) if every_turn is None else every_turn
        self._setting = setting
        self._progress = progress
        self._tasks = {key: dataset.by_id(key[1]) for key in record.outcomes}
        self._resources = SharedRunResources(
            sandboxes=FifoSemaphore(default_sandboxes()), on_action=progress.action
        )
        self._retained_episodes: list[Episode] = []
        self.results: dict[Key, RescoredEpisode] = {}
        self.write: Callable[[Episode], None] = self._retained_episodes.append
        """Writes an episode; any thread may call it."""

    def resume(self, folder: Path | None) -> dict[str, Any]:
        """Load the results that earlier sessions have written to a folder.

        Returns:
            The ``run.json`` of the rescored run, without this session.

        Raises:
            RecordError: The folder holds another run.
        """
        recorded_outcomes = self._record.outcomes
        env = {
            name: fact
            for name, fact in self._record.manifest["env"].items()
            if name not in (*_REWARD_FIELDS, scoring_versions.FIELD)
        }
        env |= {k: self._facts[name] for k, name in _REWARD_FIELDS.items() if name in self._facts}
        recorded_manifest = self._record.manifest
        current_manifest = {
            **recorded_manifest,
            "dataset": {**recorded_manifest["dataset"], **self._version},
            "env": {**env, **self._rules},
            FIELD: self._facts,
            "sessions": [],
        }
        if folder is None or not (folder / MANIFEST).exists():
            return current_manifest
        rescored_manifest = read_manifest(folder)
        manifest_diff.refuse_other_run(rescored_manifest, current_manifest, folder)
        earlier_results = read_latest(
            folder, lambda episode: (Outcome.from_episode(episode), _read_way(episode))
        )
        if unknown_keys := earlier_results.keys() - recorded_outcomes.keys():
            raise RecordError(
                f"{folder} has episodes that {self._facts['run']} does not have: {unknown_keys}"
            )
        results = {
            key: RescoredEpisode(recorded_outcomes[key], *entry)
            for key, entry in earlier_results.items()
        }
        self.results = {key: result for key, result in results.items() if result.final}
        return rescored_manifest

    def needs_sandbox(self) -> bool:
        """Return whether the reward needs the sandbox.

        Unless the answer is known, the reward is called on the record of the first episode that was
        not skipped. The placeholder for the sandbox shows whether the reward accesses the sandbox.
        """
        for job in self._jobs():
            if self._reward is None:
                return True
            recorded_episode = self._record.read(job.key)
            if recorded_episode.status != "skipped":
                try:
                    score_record(job.task, recorded_episode, self._reward, self._every_turn)
                except NeedsSandboxError:
                    return True
                except InterCodeError:
                    pass  # the episode's own rescoring will report the error
                return False
        return False

    def run(self, workers: int, max_retries: int) -> RescoreResult:
        """Score all episodes that have no new result yet."""
        start, progress, earlier_count = time.monotonic(), self._progress, len(self.results)
        recorded_manifest = self._record.manifest
        orders = WorkerInstructions(
            attempt=self._attempt,
            env_factory=lambda: self._setting.factory()(),
            max_retries=max_retries,
            agent_name=recorded_manifest["agent"]["name"],
            env_name=recorded_manifest["env"].get("env", ""),
            record=self._keep,
            resources=self._resources,
        )
        pool = EpisodeWorkerPool(self._jobs(), orders, workers)
        progress.begin(
            len(self._tasks), [earlier_result.after for earlier_result in self.results.values()]
        )
        with ExitStack() as stack:
            stack.callback(progress.end)
            interrupts = stack.enter_context(InterruptCounter())
            for episode in self._without_result():
                self._note(episode)
            for episode in stack.enter_context(closing(pool.run(interrupts, progress))):
                self._note(episode)
        results = [self.results[key] for key in self._tasks if key in self.results]
        return RescoreResult(
            outcomes=[result.after for result in results],
            planned=len(self._tasks),
            ran=len(self.results) - earlier_count,
            seconds=time.monotonic() - start,
            interrupted=interrupts.count > 0,
            stopped=pool.stopped,
            kept=self._retained_episodes,
            results=results,
        )

    def _without_result(self) -> Iterator[Episode]:
        """Write the episodes without a recorded result unchanged to the new run, and yield them."""
        for key, outcome in self._record.outcomes.items():
            if outcome.failed and key not in self.results:
                episode = self._record.read(key)
                self._keep(episode, "no result")
                yield episode

    def _jobs(self) -> list[EpisodeJob]:
        return [
            EpisodeJob(key[0], self._tasks[key], key[2])
            for key, outcome in self._record.outcomes.items()
            if key not in self.results and not outcome.failed
        ]

    def _attempt(self, job: EpisodeJob, open_env: Callable[[], PlayableEnv]) -> Episode:
        recorded_episode = self._record.read(job.key)
        if self._reward is not None:
            with suppress(NeedsSandboxError):
                episode = score_record(job.task, recorded_episode, self._reward, self._every_turn)
                episode.metadata[FIELD] = "record"
                return episode
        episode = replay(open_env, job.task, recorded_episode, self._resources)
        episode.fork = recorded_episode.fork
        return episode

    def _keep(self, episode: Episode, way: Way = "again") -> None:
        """Complete an episode from the recorded one, and write it. Any thread may call this method.

        Args:
            episode: The rescored episode; this method changes it.
            way: The way in which the episode was scored, unless the episode's metadata has the way.
        """
        recorded_episode = self._record.read(episode_key(episode))
        _complete(episode, recorded_episode, self._facts, episode.metadata.get(FIELD, way))
        self.write(episode)

    def _note(self, episode: Episode) -> None:
        key = episode_key(episode)
        recorded_outcome = self._record.outcomes[key]
        self.results[key] = RescoredEpisode(
            recorded_outcome, Outcome.from_episode(episode), _read_way(episode)
        )
        self._progress.episode(episode)


class _ReplayEnvironments:
    """The environments in which actions are replayed.

    The environments are made only on demand, and their facts are compared with the record.
    """

    def __init__(
        self,
        record: RunRecord,
        env_factory: Callable[[], PlayableEnv] | None,
        settings: Callable[[], Mapping[str, Any]] | None,
        context: Callable[[], Mapping[str, Any]] | None,
        accept: Collection[str],
    ) -> None:
        self._recorded_facts = {
            name: add_identity(record.manifest).get(name) for name in manifest_diff.RUN
        }
        self._lock_facts = {"run": str(record.folder.absolute()), "accepted": sorted(accept)}
        # Episodes that are scored from the record use no sandbox. Their facts about sandbox and
        # tools are those of the recorded run, until `factory` replaces the facts.
        last_session = (record.manifest.get("sessions") or [{}])[-1]
        self._facts = {
            name: last_session[name] for name in ("sandbox", "tools") if name in last_session
        }
        self._context = context
        self._env_factory = env_factory
        self._settings = settings
        self._differing_facts: dict[str, Any] = {}
        self._lock = Lock()

    def factory(self) -> Callable[[], PlayableEnv]:
        """Return the factory of environments; the first call compares their facts with the record.

        Raises:
            UsageError: No factory exists, or the run's protocol permits no replay.
            DriftError: The environments would differ from the record.
        """
        env = self._recorded_facts["env"] or {}
        name, protocol = str(env.get("env")), str(env.get("protocol"))
        if not find_traits(name, protocol).separable:
            raise UsageError(
                f"in environment {name!r}, protocol {protocol!r}, episodes share state, so a "
                "single one cannot be repeated: only a reward that is computed from the record "
                "can score it"
            )
        if self._env_factory is None:
            raise UsageError("this reward reads the sandbox, so it needs env_factory")
        with self._lock:
            settings, self._settings = self._settings, None
            if settings is not None:
                self.compare("env", settings())
            context, self._context = self._context, None
            if context is not None:
                self._facts = dict(context())
        return self._env_factory

    def compare(self, name: str, now: Mapping[str, Any]) -> None:
        """Compare one part of the record with the current facts, and store permitted differences.

        Args:
            name: The name of the part, such as ``env``.
            now: The current facts of the part.

        Raises:
            DriftError: The facts differ, and the difference is not accepted.
        """
        current_facts = {**self._recorded_facts, name: {**now}}
        reward_facts = [f"env.{name}" for name in (*_REWARD_FIELDS, scoring_versions.FIELD)]
        manifest_diff.refuse_differences(
            self._recorded_facts, current_facts, [*self._lock_facts["accepted"], *reward_facts]
        )
        differences = manifest_diff.differences(self._recorded_facts, current_facts, reward_facts)
        self._differing_facts |= {difference.what: difference.now for difference in differences}

    def facts(self) -> dict[str, Any]:
        """Return the facts about sandbox, tools and differences, for this session's record."""
        difference_facts = {"differs": self._differing_facts} if self._differing_facts else {}
        return {**self._facts, "locked": self._lock_facts, **difference_facts}


def _record_reward(
    env: str, protocol: str, reward: str | Function | Judge | None
) -> Reward[Any] | None:
    """Return the reward in a form that can score a record; None: the reward needs a sandbox.

    Raises:
        UsageError: The reward does not exist, or does not take a reward's arguments.
    """
    reward_factory = find_traits(env, protocol).pure_reward
    default_reward: Reward[Any] | None = (
        None if reward_factory is None else CustomReward(reward_factory())
    )
    if reward is None or isinstance(reward, Judge):
        return None if reward else default_reward
    if isinstance(reward, str) and not is_reference(reward):
        name = f"{env}:{reward}"
        if name not in REWARDS or isinstance(REWARDS.get(name), type):
            return default_reward if reward == DEFAULT else None
    return choose_reward(env, reward, lambda: default_reward or _score_sandbox)


def _score_sandbox(task: Task, episode: Episode, sandbox: Any) -> Score:
    """Access the sandbox, in place of a default reward that cannot score a record.

    On a record, the access raises `NeedsSandboxError`, so the episode is replayed.
    """
    score: Score = sandbox.score
    return score


def _facts(reward: str | Function | Judge | None) -> dict[str, Any]:
    """Return the facts that identify a reward: its name and its file's digest, or the judge."""
    if isinstance(reward, Judge):
        return {"reward": "judge", "judge": dict(reward.facts())}
    if isinstance(reward, str):
        digest_facts = {"digest": digest(reward)} if is_reference(reward) else {}
        return {"reward": reward, **digest_facts}
    if reward is None:
        return {"reward": DEFAULT}
    return {"reward": getattr(reward, "__qualname__", type(reward).__qualname__)}


def _refuse_run(record: RunRecord, target: Path | None) -> None:
    """Refuse a run that cannot be rescored, or a target folder that would be overwritten.

    Raises:
        UsageError: The run is itself a rescored run, or its folder is the target folder.
    """
    folder = record.folder
    if target is not None and target.resolve() == folder.resolve():
        raise UsageError(
            f"{folder} is the recorded run, which stays unchanged: choose another folder"
        )
    if origin := record.manifest.get(FIELD):
        raise UsageError(f"{folder} is itself a rescored run, of {origin['run']}: rescore that run")


def _session(record: RunRecord, workers: int, max_retries: int) -> dict[str, Any]:
    """Return the record of this session.

    The record repeats the recorded run's selection of tasks and number of epochs, because the
    rescored run consists of the same episodes.
    """
    settings = (record.manifest.get("sessions") or [{}])[-1].get("settings", {})
    return manifest.session(
        workers=workers,
        limit=settings.get("limit"),
        tasks=settings.get("tasks"),
        epochs=settings.get("epochs", 1),
        max_retries=max_retries,
    )


def _read_way(episode: Episode) -> Way:
    way: Way = episode.metadata[FIELD]["way"]
    return way


def _complete(
    episode: Episode, recorded_episode: Episode, facts: Mapping[str, Any], way: Way
) -> None:
    """Complete a rescored episode by facts of the recorded episode.

    Only the score, the rewards of the turns and the judge's dialogues are new. The agent's
    messages, tokens, cost and time are those of the recorded run.

    Args:
        episode: The new episode; this function changes it.
        recorded_episode: The recorded episode.
        facts: The facts that identify the recorded run and the new reward.
        way: The way in which the episode was scored, if it has a score.
    """
    failed, kind = episode.status == "error", episode.metadata.get("error_type")
    if failed and way != "no result":
        way = "not reproducible" if kind == NotReproducibleError.__name__ else "failed"
    rewards = (
        [0.0] * len(recorded_episode.turns) if failed else [turn.reward for turn in episode.turns]
    )
    episode.turns = [
        replace(turn, reward=reward)
        for turn, reward in zip(recorded_episode.turns, rewards, strict=True)
    ]
    for name in ("env", "agent", "seed", "answer", "started", "seconds"):
        setattr(episode, name, getattr(recorded_episode, name))
    metadata = {name: value for name, value in recorded_episode.metadata.items() if name != "judge"}
    if "judge" in episode.metadata:
        metadata["judge"] = episode.metadata["judge"]
    if failed and kind:
        metadata["error_type"] = kind
    recorded_result = recorded_episode.to_dict()
    recorded_result = {"status": recorded_result["status"], "score": recorded_result["score"]}
    episode.metadata = {**metadata, FIELD: {**facts, "way": way, "was": recorded_result}}
