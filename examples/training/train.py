"""Train a policy until it solves tasks that it has never seen: ``make train-demo``.

A scripted oracle shows many easy tasks and a few hard ones. A model learns from that by imitation,
then from the rewards of its own attempts at hard tasks, by GRPO. Three controls tell where the
success comes from: more imitation in the time that practice takes, practice with shuffled rewards,
and the nearest demonstration, replayed. Each kind of training keeps the policy that solved most of
the tasks of validation along the way.

It needs TRL: ``pip install 'intercode-gym[trl]'``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from policy import SYLLABLE, Local, newborn, ready_made, tokenizer
from transformers import TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import intercode
from datasets import Dataset, disable_progress_bars
from intercode import Task
from intercode.agents.builtin import ScriptedAgent
from intercode.agents.strategies import TRY_AGAIN
from intercode.cli.main import main as command
from intercode.datasets.generated import generated
from intercode.evaluate import evaluate
from intercode.evaluate.comparison import mcnemar
from intercode.evaluate.statistics import mean, wilson
from intercode.integrations.trl import Rollouts

TURNS = 3
"""A look at a file, a command, ``submit``."""
ATTEMPTS = 8
"""Attempts at a task."""
AT_ONCE = 64
"""Sandboxes of a trial."""
PRACTICE = 10_000
"""Tasks to draw from in practice, less those that were demonstrated."""
CURVE = 100
"""Tasks of each trial of a learning curve."""
NAME = re.compile(rf"\b{SYLLABLE}{SYLLABLE}\b")
"""A made word."""
ARMS = ("imitation", "more imitation", "practice", "shuffled rewards", "nearest demonstration")
SPLITS = ("test", "compositions")
Solved = dict[str, bool]
"""Whether each task was solved, by its id; tasks that failed by no fault of the agent's are left
out."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train, try, and write what came of it."""
    args = arguments(argv)
    if args.summary:
        print(summary(args.summary))
        return 0
    disable_progress_bars()
    set_seed(args.seed)
    Run(args).all()
    return 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/training"), help="a new folder (runs/training)")
    add("--seed", type=int, default=0, help="of tasks, weights and samples")
    add("--difficulty", type=int, choices=range(1, 5), default=2, help="of the hard tasks")
    add("--easy", type=int, default=3000, help="demonstrations of difficulty 1")
    add("--hard", type=int, default=80, help="demonstrations of hard tasks")
    add("--drill", type=int, default=200, help="steps of learning to copy words; 0: none")
    add("--imitate", type=int, default=900, help="steps of imitation; 0: none")
    add("--practise", type=int, default=100, help="steps of practice")
    add("--batch", type=int, default=8, help="tasks in a step of practice, with 8 attempts each")
    add("--imitation-rate", type=float, default=2e-3, help="the learning rate")
    add("--practice-rate", type=float, default=3e-4, help="the learning rate")
    add("--reply-tokens", type=int, default=64, help="of a reply in a trial, at most")
    add("--attempt-tokens", type=int, default=160, help="of replies and outputs in practice")
    add("--count", type=int, default=200, help="tasks of each trial")
    add("--points", type=int, default=5, help="trials of each learning curve; the best is kept")
    add("--arms", nargs="+", choices=ARMS, default=ARMS, help="what to train and to try")
    add("--model", help="a model's folder or its name on the hub, instead of random weights")
    add("--summary", type=Path, nargs="+", metavar="OUT", help="only sum up what others have done")
    args = parser.parse_args(argv)
    if not args.summary and args.out.exists():
        parser.error(f"{args.out} is there already: name a new folder by --out")
    if args.easy + args.hard < 1 or max(args.easy, args.hard) >= PRACTICE:
        parser.error(f"demonstrations: at least one, by --easy or --hard, and below {PRACTICE}")
    if "more imitation" in args.arms and "practice" not in args.arms:
        parser.error("more imitation takes as long as practice: name that by --arms, too")
    return args


class Run:
    """One seed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, args.out
        self.out.mkdir(parents=True)
        (self.out / "curves.jsonl").touch()
        self.began = time.monotonic()
        self.shown, self.dialogues = demonstrations(args)
        texts = [message["content"] for told in self.dialogues for message in told]
        if args.model:
            self.model, self.words = ready_made(args.model)
        else:
            self.words = tokenizer(texts)
            self.model = newborn(self.words)
        size = sum(weights.numel() for weights in self.model.parameters())
        print(f"{len(self.shown)} demonstrations; {size:,} parameters", flush=True)
        self.seconds: dict[str, float] = {}
        self.solved: dict[str, dict[str, Solved]] = {}

    def all(self) -> None:
        """Train and try each arm; write `results.json`."""
        args = self.args
        if args.drill:
            self.drill()
        self.train("imitation", args.imitate)
        base = deepcopy(self.model.state_dict())
        self.save("imitation")
        if "practice" in args.arms:
            self.practise("practice", solved)
            self.save("practice")
        if "more imitation" in args.arms and args.imitate:
            self.model.load_state_dict(base)
            a_step = self.seconds["imitation"] / args.imitate
            self.train("more imitation", round(self.seconds["practice"] / a_step))
        if "shuffled rewards" in args.arms:
            self.model.load_state_dict(base)
            self.practise("shuffled rewards", Shuffled(args.seed))
        if "nearest demonstration" in args.arms:
            self.attempt_all("nearest demonstration", Nearest(self.shown))
        results = {
            "seed": args.seed,
            "minutes": (time.monotonic() - self.began) / 60,
            "arguments": {name: str(value) for name, value in vars(args).items()},
            "seconds": self.seconds,
            "solved": self.solved,
        }
        (self.out / "results.json").write_text(json.dumps(results) + "\n")
        print(summary([self.out]), flush=True)

    def save(self, arm: str) -> None:
        """Keep the policy as it is now: it can be given as `--model`."""
        self.model.save_pretrained(self.out / "policies" / arm)
        self.words.save_pretrained(self.out / "policies" / arm)

    def drill(self) -> None:
        """Learn to repeat names. Without that, imitation takes many times longer to begin."""
        draw = random.Random(self.args.seed)
        names = sorted(set(NAME.findall(" ".join(task.query for task in self.shown))))
        rows = []
        for _ in range(64 * self.args.drill):
            text = " ".join(draw.choices(names, k=draw.randint(2, 6)))
            prompt = [{"role": "user", "content": text}]
            rows.append({"prompt": prompt, "completion": [{"role": "assistant", "content": text}]})
        self.fit(rows, self.args.drill, 64)

    def train(self, arm: str, steps: int) -> None:
        """Learn to say what the demonstrations say, and see what came of it."""
        curve = Curve(self, arm, steps)
        if steps:
            rows = [{"messages": told} for told in self.dialogues]
            self.fit(rows, steps, 32, curve)
        self.finish(arm, curve)

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
            learning_rate=args.practice_rate,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=min(10, args.practise // 5),
        )
        data = f"generated-bash:seed={args.seed},difficulty={args.difficulty},count={PRACTICE}"
        first = demonstrated(args)[args.difficulty]  # those before it were shown
        curve = Curve(self, arm, args.practise)
        with closing(Rollouts("bash", data=data, max_turns=TURNS)) as rollouts:
            GRPOTrainer(
                self.model,
                [reward],
                args=options,
                train_dataset=rollouts.dataset().select(range(first, PRACTICE)),
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
            "use_cpu": not torch.cuda.is_available(),
            "bf16": torch.cuda.is_available(),
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
        return TRY_AGAIN(Local(self.model, self.words, arm, self.args.reply_tokens))

    def attempt_all(self, arm: str, agent: Any) -> None:
        """Try an agent on what was kept from training."""
        self.solved[arm] = {
            split: self.attempt(agent, split, self.args.count, arm)
            for split in SPLITS[: self.args.difficulty]  # one operation is not a composition
        }

    def attempt(self, agent: Any, split: str, count: int, name: str) -> Solved:
        """Try an agent on hard tasks of a split. The record is a run's folder."""
        args = self.args
        tasks = generated(
            "bash", seed=args.seed, difficulty=args.difficulty, split=split, count=count
        )
        result = evaluate(
            tasks,
            agent,
            lambda: intercode.make("bash", data=tasks, max_turns=TURNS).unwrapped,
            workers=AT_ONCE,
            out=self.out / "trials" / f"{name.replace(' ', '-')}-{split}",
        )
        return {one.task_id: one.success for one in result.outcomes if one.error is None}


def demonstrations(args: argparse.Namespace) -> tuple[list[Task], list[list[dict[str, str]]]]:
    """Let the oracle solve easy and hard tasks; return these, and what it said and was told."""
    tasks: list[Task] = []
    told = []
    for difficulty, count in demonstrated(args).items():
        options = f"seed={args.seed},difficulty={difficulty},count={count}"
        run, lines = args.out / f"oracle-{difficulty}", args.out / f"shown-{difficulty}.jsonl"
        run_command(
            *("run", "bash", "--data", f"generated-bash:{options}", "--agent", "oracle"),
            *("--workers", "4", "--out", str(run), "--quiet"),
        )
        run_command(
            *("export", str(run), "--to", "chat", "--style", "chat", "--solved"),
            *("--out", str(lines)),
        )
        tasks += generated(
            "bash", seed=args.seed, difficulty=difficulty, split="train", count=count
        )
        told += [json.loads(line)["messages"] for line in lines.read_text().splitlines()]
    return tasks, told


def demonstrated(args: argparse.Namespace) -> Counter[int]:
    """Count the demonstrations of each difficulty."""
    return Counter({1: args.easy}) + Counter({args.difficulty: args.hard})


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


class Nearest:
    """Makes agents that replay the demonstration whose question has most words in common."""

    def __init__(self, shown: Sequence[Task]) -> None:
        self._shown = [(_words(task.query), task) for task in shown]

    def __call__(self, task: Task) -> ScriptedAgent:
        """Make the agent of one episode."""
        asked = _words(task.query)
        _, near = max(self._shown, key=lambda one: len(asked & one[0]) / len(asked | one[0]))
        return ScriptedAgent([*near.metadata.get("looks", []), near.gold[0]])


def _words(query: str) -> set[str]:
    return set(re.findall(r"\w+", query))


class Curve(TrainerCallback):
    """Tries the policy after equal numbers of steps, and keeps the best weights.

    Its own time is not counted.
    """

    def __init__(self, run: Run, arm: str, steps: int) -> None:
        self._run, self._arm = run, arm
        parts = run.args.points
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
            found = self._run.attempt(self._run.agent(self._arm), "validation", CURVE, name)
            self._run.model.train()
            point = {
                "arm": self._arm,
                "step": state.global_step,
                "seconds": round(self.seconds, 1),
                "solved": sum(found.values()),
                "of": len(found),
            }
            print(point, flush=True)
            with (self._run.out / "curves.jsonl").open("a") as file:
                file.write(json.dumps(point) + "\n")
            if sum(found.values()) > self._most:
                self._most = sum(found.values())
                weights = self._run.model.state_dict()
                self.best = {name: each.to("cpu", copy=True) for name, each in weights.items()}
            self._began = time.monotonic() - self.seconds


def summary(outs: Sequence[Path]) -> str:
    """Tell success by arm and split, the gain of practice, and the learning curves.

    Args:
        outs: The folders of runs, which differ by their seeds.
    """
    results = [json.loads((out / "results.json").read_text()) for out in outs]
    arms = [arm for arm in ARMS if all(arm in one["solved"] for one in results)]
    splits = [split for split in SPLITS if split in results[0]["solved"][arms[0]]]
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


if __name__ == "__main__":
    raise SystemExit(main())
