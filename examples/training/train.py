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
import os
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from policy import SYLLABLE, newborn, ready_made, tokenizer
from trainee import PRACTICE, Curve, Shuffled, Trainee, run_command, solved, summary
from transformers import set_seed

from datasets import disable_progress_bars
from intercode import Dataset, Task
from intercode.agents.builtin import ScriptedAgent
from intercode.datasets.generated import load_generated

TURNS = 3
"""A look at a file, a command, ``submit``."""
NAME = re.compile(rf"\b{SYLLABLE}{SYLLABLE}\b")
"""A made word."""
ARMS = ("imitation", "more imitation", "practice", "shuffled rewards", "nearest demonstration")


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
    add("--temperature", type=float, default=1.0, help="of attempts in practice")
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


class Run(Trainee):
    """One seed."""

    def __init__(self, args: argparse.Namespace) -> None:
        args.out.mkdir(parents=True)
        self.shown, self.dialogues = demonstrations(args)
        texts = [message["content"] for told in self.dialogues for message in told]
        if args.model:
            model, words = ready_made(args.model)
        else:
            words = tokenizer(texts)
            model = newborn(words)
        shown = demonstrated(args)[args.difficulty]  # practice begins after those
        super().__init__(args, model, words, "bash", TURNS, first=shown)
        size = sum(weights.numel() for weights in model.parameters())
        print(f"{len(self.shown)} demonstrations; {size:,} parameters", flush=True)

    def tests(self) -> Mapping[str, Dataset]:
        """Name the tasks that are kept from training: one operation is not a composition."""
        splits = ("test", "compositions")[: self.args.difficulty]
        return {split: self.generated(split, self.args.count) for split in splits}

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
        self.write_results()

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
        tasks += load_generated(
            "bash", seed=args.seed, difficulty=difficulty, split="train", count=count
        )
        told += [json.loads(line)["messages"] for line in lines.read_text().splitlines()]
    return tasks, told


def demonstrated(args: argparse.Namespace) -> Counter[int]:
    """Count the demonstrations of each difficulty."""
    return Counter({1: args.easy}) + Counter({args.difficulty: args.hard})


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


if __name__ == "__main__":
    raise SystemExit(main())
