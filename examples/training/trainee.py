"""A policy in training, and what all arms of an experiment have in common.

An arm is a way to train from the same weights; after it the policy is tried on tasks that were kept
from training. `Curve` tries it on the way, too, and keeps the best weights.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from policy import Local
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import intercode
from datasets import Dataset
from intercode import Dataset as Tasks
from intercode.agents.strategies import TRY_AGAIN
from intercode.cli.main import main as command
from intercode.envs.traits import find_traits
from intercode.evaluate import evaluate
from intercode.evaluate.comparison import mcnemar
from intercode.evaluate.statistics import mean, wilson
from intercode_integrations.trl import Rollouts

ATTEMPTS = 8
"""Attempts at a task."""
AT_ONCE = 64
"""Sandboxes of a trial."""
PRACTICE = 10_000
"""Tasks to draw from in practice, less those that were demonstrated."""
CURVE = 100
"""Tasks of each trial of a learning curve."""
Solved = dict[str, bool]
"""Whether each task was solved, by its id; tasks that failed by no fault of the agent's are left
out."""


class Trainee:
    """A policy in training.

    Args:
        args: The command line's.
        model: The policy.
        words: Its tokenizer.
        env: The environment; practice is on its generated tasks.
        turns: Of an episode.
        first: The place of the first generated task to practise on.
    """

    def __init__(
        self, args: argparse.Namespace, model: Any, words: Any, env: str, turns: int, first: int = 0
    ) -> None:
        self.args, self.out = args, args.out
        self.model, self.words = model, words
        self.env, self.turns, self._first = env, turns, first
        (self.out / "curves.jsonl").touch()
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.solved: dict[str, dict[str, Solved]] = {}

    def generated(self, split: str, count: int) -> Tasks:
        """Make tasks of the difficulty that is practised."""
        args = self.args
        return intercode.load_dataset(
            f"generated-{self.env}",
            seed=args.seed,
            difficulty=args.difficulty,
            split=split,
            count=count,
        )

    def tests(self) -> Mapping[str, Tasks]:
        """Name the tasks that are kept from training."""
        return {"test": self.generated("test", self.args.count)}

    def write_results(self) -> None:
        """Write ``results.json``, and print what is in it."""
        results = {
            "seed": self.args.seed,
            "minutes": (time.monotonic() - self.began) / 60,
            "arguments": {name: str(value) for name, value in vars(self.args).items()},
            "seconds": self.seconds,
            "solved": self.solved,
        }
        (self.out / "results.json").write_text(json.dumps(results) + "\n")
        print(summary([self.out]), flush=True)

    def save(self, arm: str) -> None:
        """Keep the policy as it is now: it can be given as `--model`."""
        self.model.save_pretrained(self.out / "policies" / arm)
        self.words.save_pretrained(self.out / "policies" / arm)

    def fit(self, rows: list[dict[str, Any]], steps: int, batch: int, *callbacks: Curve) -> None:
        """Learn texts; of a row with a prompt, what follows it."""
        options = SFTConfig(
            **self.common(steps),
            per_device_train_batch_size=batch,
            learning_rate=self.args.imitation_rate,
            lr_scheduler_type="linear",
            warmup_steps=min(50, steps // 10),
            weight_decay=0.01,
            adam_beta2=0.95,
        )
        SFTTrainer(
            self.model,
            options,
            train_dataset=Dataset.from_list(rows),
            processing_class=self.words,
            callbacks=list(callbacks),
        ).train()

    def practise(self, arm: str, reward: Callable[..., list[float | None]]) -> None:
        """Learn from the rewards of attempts, and see what came of it."""
        args = self.args
        options = GRPOConfig(
            **self.common(args.practise),
            per_device_train_batch_size=args.batch * ATTEMPTS,
            num_generations=ATTEMPTS,
            max_completion_length=args.attempt_tokens,
            temperature=args.temperature,
            learning_rate=args.practice_rate,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=min(10, args.practise // 5),
        )
        tasks = f"seed={args.seed},difficulty={args.difficulty},count={PRACTICE}"
        data = f"generated-{self.env}:{tasks}"
        curve = Curve(self, arm, args.practise)
        with closing(Rollouts(self.env, data=data, max_turns=self.turns)) as rollouts:
            GRPOTrainer(
                self.model,
                [reward],
                args=options,
                train_dataset=rollouts.dataset().select(range(self._first, PRACTICE)),
                rollout_func=rollouts,
                processing_class=self.words,
                callbacks=[curve],
            ).train()
        self.finish(arm, curve)

    def common(self, steps: int) -> dict[str, Any]:
        """Return the options that both trainers have."""
        return {
            "output_dir": str(self.out / "trainer"),
            "max_steps": steps,
            "seed": self.args.seed,
            "logging_steps": 10,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": self.model.device.type == "cpu",
            "bf16": self.model.device.type == "cuda",
            "gradient_checkpointing": False,
        }

    def finish(self, arm: str, curve: Curve) -> None:
        """Note the time of an arm, go back to the best of its policies, and try that."""
        self.seconds[arm] = curve.seconds
        if curve.best:
            self.model.load_state_dict(curve.best)
        self.attempt_all(arm, self.agent(arm))

    def agent(self, arm: str) -> Any:
        """Return the policy as it is now, as an agent."""
        return self.playing(Local(self.model, self.words, arm, self.args.reply_tokens))

    def playing(self, model: Local) -> Any:
        """Return an agent whose prompts are word for word those of `Rollouts`."""
        return TRY_AGAIN(model, setting=find_traits(self.env).setting)

    def attempt_all(self, arm: str, agent: Any) -> None:
        """Try an agent on what was kept from training."""
        self.solved[arm] = {
            name: self.attempt(agent, tasks, f"{arm} {name}")
            for name, tasks in self.tests().items()
        }

    def attempt(self, agent: Any, tasks: Tasks, name: str, epochs: int = 1) -> Solved:
        """Try an agent on tasks. The record is a run's folder."""
        result = evaluate(
            tasks,
            agent,
            lambda: intercode.make(self.env, data=tasks, max_turns=self.turns).unwrapped,
            workers=AT_ONCE,
            epochs=epochs,
            out=self.trial(name),
        )
        return {one.task_id: one.success for one in result.outcomes if one.error is None}

    def trial(self, name: str) -> Path:
        """Name the folder of a trial's record."""
        return self.out / "trials" / name.replace(" ", "-")


def run_command(*words: str) -> None:
    """Run ``intercode`` with these arguments."""
    if status := command(words):
        raise SystemExit(status)  # it has said why


def solved(**row: Any) -> list[float | None]:
    """Return 1 for each attempt that has solved its task, else 0; None for those that were lost.

    Partial rewards would teach the easier half of a task, and no more.
    """
    return [None if math.isnan(one) else float(one == 1) for one in row["env_reward"]]


class Shuffled:
    """Rewards of other attempts of the batch, in place of their own."""

    __name__ = "shuffled"

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, **row: Any) -> list[float | None]:
        rewards = solved(**row)
        self._random.shuffle(rewards)
        return rewards


class Curve(TrainerCallback):
    """Tries the policy after equal numbers of steps, and keeps the best weights.

    Its own time is not counted.
    """

    def __init__(self, trainee: Trainee, arm: str, steps: int) -> None:
        self._trainee, self._arm = trainee, arm
        parts = trainee.args.points
        self._at = {math.ceil(steps * part / parts) for part in range(1, parts + 1)}
        self._began = time.monotonic()
        self._most = -1
        self.seconds = 0.0
        self.best: dict[str, torch.Tensor] = {}

    def on_train_begin(self, *given: Any, **more: Any) -> None:
        """Start the clock."""
        self._began = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Try the policy, if it is time."""
        self.seconds = time.monotonic() - self._began
        if state.global_step in self._at:
            name = f"{self._arm} {state.global_step}"
            tasks = self._trainee.generated("validation", CURVE)
            found = self._trainee.attempt(self._trainee.agent(self._arm), tasks, name)
            self._trainee.model.train()
            point = {
                "arm": self._arm,
                "step": state.global_step,
                "seconds": round(self.seconds, 1),
                "solved": sum(found.values()),
                "of": len(found),
            }
            print(point, flush=True)
            with (self._trainee.out / "curves.jsonl").open("a") as file:
                file.write(json.dumps(point) + "\n")
            if sum(found.values()) > self._most:
                self._most = sum(found.values())
                weights = self._trainee.model.state_dict()
                self.best = {name: each.to("cpu", copy=True) for name, each in weights.items()}
            self._began = time.monotonic() - self.seconds


def summary(outs: Sequence[Path]) -> str:
    """Tell success by arm and split, the gain of practice, and the learning curves.

    Args:
        outs: The folders of runs, which differ by their seeds.
    """
    results = [json.loads((out / "results.json").read_text()) for out in outs]
    arms = [arm for arm in results[0]["solved"] if all(arm in one["solved"] for one in results)]
    splits = list(results[0]["solved"][arms[0]])
    return "\n".join([*_success(results, arms, splits), *_curves(outs, arms)])


def _success(results: list[dict[str, Any]], arms: list[str], splits: list[str]) -> Iterator[str]:
    yield "| | seconds | " + " | ".join(splits) + " |"
    yield "|---|---|" + "---|" * len(splits)
    for arm in arms:
        seconds = fmean(one["seconds"].get(arm, 0) for one in results)
        cells = [_rate([one["solved"][arm][split] for one in results]) for split in splits]
        yield f"| {arm} | {seconds:.0f} | " + " | ".join(cells) + " |"
    yield ""
    for arm in arms if "practice" in arms else ():
        if arm != "practice":
            gains = []
            for split in splits:
                pairs = [
                    (other[task], better)
                    for one in results
                    for other in [one["solved"][arm][split]]
                    for task, better in one["solved"]["practice"][split].items()
                    if task in other
                ]
                gains.append(f"{split} {_gain(pairs)}")
            yield f"practice above {arm}: " + "; ".join(gains)


def _curves(outs: Sequence[Path], arms: list[str]) -> Iterator[str]:
    texts = [(out / "curves.jsonl").read_text() for out in outs]
    points = [[json.loads(line) for line in text.splitlines()] for text in texts]
    for arm in arms:
        curves = [
            [one["solved"] / one["of"] for one in each if one["arm"] == arm] for each in points
        ]
        if all(curves):
            along = ", ".join(f"{100 * fmean(at):.0f}" for at in zip(*curves, strict=True))
            yield f"{arm}, % of {CURVE} tasks of validation along the way: {along}"


def _rate(seeds: Sequence[Solved]) -> str:
    found = [one for each in seeds for one in each.values()]
    low, high = wilson(sum(found), len(found))
    by_seed = ", ".join(f"{100 * fmean(each.values()):.0f}" for each in seeds)
    return f"{100 * fmean(found):.1f} % [{100 * low:.1f}, {100 * high:.1f}] ({by_seed})"


def _gain(pairs: Sequence[tuple[bool, bool]]) -> str:
    gain = mean([float(better) - float(worse) for worse, better in pairs])
    p = mcnemar(*zip(*pairs, strict=True)).p
    return (
        f"{100 * gain.value:+.1f} points [{100 * gain.low:.1f}, {100 * gain.high:.1f}], p {p:.2g}"
    )
