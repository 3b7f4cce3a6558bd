"""Records of the attempts in a training run: a run folder that includes each attempt's tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from intercode.dialogues import RecordedDialogue
from intercode.envs.vector import ThreadVectorEnv
from intercode.errors import UsageError
from intercode.evaluate.manifest import dataset_facts, describe
from intercode.records import MANIFEST, RunRecordWriter
from intercode_integrations.trl.rollout_batch import Rollout

_AGENT = "trl"


class AttemptLog:
    """A log that records attempts in a new run folder.

    The second attempt at a task is recorded as the task's epoch 1, and so on.

    Args:
        folder: The run folder.
        env: An environment of the training run, used only for its facts.

    Raises:
        UsageError: The folder already holds a run.
        RecordWriteError: The folder cannot be written.
    """

    def __init__(self, folder: Path, env: Any) -> None:
        if (folder / MANIFEST).exists():
            raise UsageError(f"{folder} already holds a run: give another folder (record=)")
        tasks = env.dataset
        self._writer = RunRecordWriter(folder)
        self._epochs: Counter[str] = Counter()
        self._writer.write_manifest(
            describe(
                dataset=dataset_facts(tasks),
                env={"env": env.name, "max_turns": env.max_turns},
                agent={"name": _AGENT, "options": {}, "digest": ""},
                needs_gold=False,
                seed=0,
                excluded_tasks={},
            )
        )

    def add(self, envs: ThreadVectorEnv, attempts: Sequence[Rollout]) -> None:
        """Record the attempts of a batch.

        Args:
            envs: The vector; the last episode of the environment with an attempt's number is the
                attempt's.
            attempts: The attempts.
        """
        for attempt in attempts:
            env: Any = envs.envs[attempt.number].unwrapped
            token_counts = [
                sum(len(call[field]) for call in attempt.calls)
                for field in ("prompt_token_ids", "token_ids")
            ]
            dialogue = RecordedDialogue(
                name=_AGENT,
                input_tokens=token_counts[0],
                output_tokens=token_counts[1],
                cached_tokens=0,
                cost=None,
                messages=[],
                calls=attempt.calls,
            )
            self._writer.append(
                replace(
                    env.episode,
                    agent=_AGENT,
                    epoch=self._epochs[attempt.task],
                    fork=None,
                    metadata={**env.episode.metadata, "model": dialogue},
                )
            )
            self._epochs[attempt.task] += 1

    def close(self) -> None:
        """Release the run folder. Idempotent."""
        self._writer.close()
