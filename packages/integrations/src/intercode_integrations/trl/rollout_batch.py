"""Attempts of a batch, played together in a vector of environments.

TRL's trainer generates the replies with its current weights, in its own process or by vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from intercode.agents.conversation import find_action
from intercode.dialogues import RecordedModelCall
from intercode.envs.traits import resolve_traits
from intercode.envs.vector import ThreadVectorEnv
from intercode.errors import ForkError, SandboxError
from intercode_integrations.trl.control_tokens import added_tokens, encode, encode_data, split_text

_REPLY = "\N{SYMBOL FOR UNIT SEPARATOR}"
"""Placeholder for a reply, by which the text that a chat template puts after a reply is found."""
_DATA = "\N{SYMBOL FOR RECORD SEPARATOR}"
"""Placeholder for an observation, if the observation contains the text of a control token."""


@dataclass
class Rollout:
    """An attempt at a task, as tokens for training."""

    number: int
    """Index of the attempt, and of its environment in the vector."""
    task: str
    prompt: list[int]
    completion: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1 for each completion token of the model, 0 for each token of the environment."""
    logprobs: list[float] | None = field(default_factory=list)
    """Log-probability of each completion token; None if the trainer's generator returns none."""
    reward: float = math.nan
    running: bool = False
    calls: list[RecordedModelCall] = field(default_factory=list)
    """Replies of the model, in the form of an episode's record."""

    def reply(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        """Add a reply of the model to the completion.

        Args:
            ids: The reply's tokens.
            logprobs: The log-probability of each token; None if there are none.
        """
        call = RecordedModelCall(
            turn=len(self.calls),
            prompt_token_ids=self.prompt + self.completion,
            token_ids=list(ids),
        )
        if logprobs is not None:
            call["logprobs"] = list(logprobs)
        self.calls.append(call)
        self.add(ids, logprobs, mask_value=1)

    def add(self, ids: Sequence[int], logprobs: Sequence[float] | None, mask_value: int) -> None:
        """Add tokens of the model (mask 1) or of the environment (mask 0) to the completion."""
        self.completion += ids
        self.mask += [mask_value] * len(ids)
        if self.logprobs is not None:
            self.logprobs = None if logprobs is None else [*self.logprobs, *logprobs]

    def continuation(self, number: int) -> Rollout:
        """Return an attempt whose prompt is this attempt so far, in the environment `number`."""
        return replace(
            self,
            number=number,
            prompt=self.prompt + self.completion,
            completion=[],
            mask=[],
            logprobs=[],
            calls=[],
        )


class RolloutBatch:
    """The attempts of a batch, with the environments and the trainer.

    Args:
        envs: The vector; the environment at index n belongs to the attempt with number n.
        attempts: The attempts, ordered by number. The attempts of a group are adjacent.
        trainer: TRL's trainer.
    """

    def __init__(self, envs: ThreadVectorEnv, attempts: list[Rollout], trainer: Any) -> None:
        self._envs = envs
        self.attempts = attempts
        self._trainer = trainer
        self._language = resolve_traits(envs.envs[0].unwrapped).language

    def play(self, shared_turns: int) -> None:
        """Play all episodes to their ends; each group shares its first `shared_turns` turns."""
        groups = [
            [member.number for member in group]
            for _, group in groupby(self.attempts, lambda member: member.task)
        ]
        leader_numbers = [group[0] for group in groups]
        self._begin(leader_numbers)
        for _ in range(shared_turns):
            self._play_turn(leader_numbers)
        remaining_numbers = [
            member
            for group in groups
            if not (shared_turns and self._fork(group))
            for member in group[1:]
        ]
        self._begin(remaining_numbers)
        while any(member.running for member in self.attempts):
            self._play_turn(range(len(self.attempts)))

    def _begin(self, attempt_numbers: Sequence[int]) -> None:
        if not attempt_numbers:
            return
        reset_mask = np.zeros(self._envs.num_envs, dtype=np.bool_)
        reset_mask[list(attempt_numbers)] = True
        task_ids: list[str | None] = [None] * self._envs.num_envs
        for attempt_number in attempt_numbers:
            task_ids[attempt_number] = self.attempts[attempt_number].task
            self.attempts[attempt_number].running = True
        self._envs.reset(options={"task_id": task_ids, "reset_mask": reset_mask})

    def _fork(self, group: Sequence[int]) -> bool:
        """Fork the episode of a group's first attempt into the environments of the others.

        Returns:
            Whether the fork succeeded; False if the episode has ended or cannot fork.
        """
        leader_number, *follower_numbers = group
        if not self.attempts[leader_number].running:
            return False
        try:
            self._envs.fork(leader_number, into=follower_numbers)
        except (ForkError, SandboxError):  # the next step reports a lost sandbox
            return False
        leader_attempt = self.attempts[leader_number]
        for attempt_number in group:
            self.attempts[attempt_number] = leader_attempt.continuation(attempt_number)
        return True

    def _play_turn(self, attempt_numbers: Sequence[int]) -> None:
        """Generate a reply for each running attempt, and execute the replies' actions."""
        active_attempts = [
            self.attempts[attempt_number]
            for attempt_number in attempt_numbers
            if self.attempts[attempt_number].running
        ]
        if not active_attempts:
            return
        trainer, max_tokens = self._trainer, self._trainer.max_completion_length
        replies, token_logprobs = trainer._generate_single_turn(
            [attempt.prompt + attempt.completion for attempt in active_attempts],
            None,
            {},
            num_generations=1,
        )
        actions = []
        for attempt, ids, logprobs in zip(
            active_attempts, replies, token_logprobs or [None] * len(replies), strict=True
        ):
            remaining_tokens = max_tokens - len(attempt.completion)
            attempt.reply(
                ids[:remaining_tokens], None if logprobs is None else logprobs[:remaining_tokens]
            )
            reply_text = trainer.processing_class.decode(
                ids[:remaining_tokens], skip_special_tokens=True
            )
            is_complete = len(ids) <= remaining_tokens and ids[-1] in trainer.eos_token_ids
            actions.append(find_action(reply_text, self._language, cut_off=not is_complete))
        self._step(active_attempts, actions)
        full_attempts = [
            attempt
            for attempt in active_attempts
            if attempt.running and not self._add_observation(attempt, max_tokens)
        ]
        for attempt in full_attempts:
            env: Any = self._envs.envs[attempt.number].unwrapped
            env.episode.metadata["ended_by"] = "tokens"
        self._step(full_attempts, ["submit"] * len(full_attempts))

    def _step(self, attempts: Sequence[Rollout], actions: Sequence[str]) -> None:
        if not attempts:
            return
        self._envs.send(actions, [attempt.number for attempt in attempts])
        _, rewards, terminated, truncated, infos = self._envs.recv(len(attempts))
        for attempt_number, reward, *end_flags in zip(
            infos["env_id"], rewards, terminated, truncated, strict=True
        ):
            if any(end_flags):
                attempt = self.attempts[attempt_number]
                attempt.running, attempt.reward = False, float(reward)

    def _add_observation(self, attempt: Rollout, max_tokens: int) -> bool:
        """Add the last observation to an attempt's completion.

        Returns:
            Whether it was added; False if no space for a reply would remain within `max_tokens`.
        """
        env: Any = self._envs.envs[attempt.number].unwrapped
        observation_ids = self._observation_tokens(env.messages("chat")[-1], attempt.completion[-1])
        if len(attempt.completion) + len(observation_ids) >= max_tokens:
            return False
        attempt.add(observation_ids, [0.0] * len(observation_ids), mask_value=0)
        return True

    def _observation_tokens(self, message: dict[str, Any], last_token: int) -> list[int]:
        """Return the tokens between the end of one reply and the start of the next.

        Args:
            message: The message with the observation.
            last_token: The last token of the reply before it.
        """
        trainer, tokenizer = self._trainer, self._trainer.processing_class
        placeholder_reply = {"role": "assistant", "content": _REPLY}
        content = str(message["content"])
        has_added_tokens = len(split_text(content, added_tokens(tokenizer))) > 1
        shown_message = {**message, "content": _DATA} if has_added_tokens else message
        rendered_text = tokenizer.apply_chat_template(
            [{"role": "user", "content": ""}, placeholder_reply, shown_message],
            add_generation_prompt=True,
            tokenize=False,
            chat_template=trainer.chat_template,
            **trainer.chat_template_kwargs,
        )
        rendered_text = rendered_text.partition(_REPLY)[2]
        if has_added_tokens:
            text_before_data, _, suffix = rendered_text.partition(_DATA)
            ids = encode(tokenizer, text_before_data) + encode_data(tokenizer, content)
            ids += encode(tokenizer, suffix)
        else:
            ids = encode(tokenizer, rendered_text)
        return ids[1:] if ids[0] == last_token else ids
