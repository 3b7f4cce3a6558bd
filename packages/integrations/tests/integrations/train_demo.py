"""The example of training learns from rewards, and nothing from shuffled ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
import train

from intercode.evaluate.comparison import mcnemar

SMALL = {
    "--difficulty": 1,
    "--easy": 0,
    "--hard": 400,
    "--drill": 150,
    "--imitate": 200,
    "--practise": 36,
    "--batch": 8,
    "--count": 200,
    "--points": 0,
}
ARMS = ("imitation", "practice", "shuffled rewards")
CHANCE = 0.01


def test_practice_learns_from_rewards(tmp_path: Path) -> None:
    out = tmp_path / "run"
    argv = [str(word) for pair in SMALL.items() for word in pair]
    assert train.main(["--out", str(out), *argv, "--arms", *ARMS]) == 0
    results = json.loads((out / "results.json").read_text())
    before, practice, shuffled = (list(results["solved"][arm]["test"].values()) for arm in ARMS)
    assert sum(practice) > sum(before) and mcnemar(before, practice).p < CHANCE
    assert sum(practice) > sum(shuffled) and mcnemar(shuffled, practice).p < CHANCE
    assert sum(shuffled) <= sum(before) or mcnemar(before, shuffled).p > CHANCE
    for policy in ("imitation", "practice"):  # each can be given as `--model`
        assert (out / "policies" / policy / "tokenizer.json").is_file()
