"""The benchmarks, at a tiny size: that they run, and what they write; never how fast it is."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from databases.upstream import UPSTREAM, needs_upstream
from intercode.episode import Score

BENCH = Path(__file__).parents[1] / "benchmarks" / "bench.py"
RESULTS = BENCH.with_name("results")
GRADERS = BENCH.parent / "graders"
PARTS = ("reset", "first action", "submit")
ROLES = tuple(f"CPU, {role}" for role in ("all", "host", "spawner", "process 1", "shell"))


def test_stepping_writes_every_figure_with_its_spread(tmp_path: Path) -> None:
    size = ["--only", "stepping", "--rounds", "2", "--episodes", "1"]
    done = subprocess.run(
        [sys.executable, BENCH, *size, "--results", tmp_path], capture_output=True, text=True
    )
    assert done.returncode in (0, 1) and not done.stderr  # 1: a target was missed

    rows = {row["name"]: row for row in json.loads((tmp_path / "bench.json").read_text())["rows"]}
    assert list(rows)[:2] == ["/bin/true", "bash -c true"]
    for kind in ("bash", "sql", "python", "ctf"):
        for model in ("back to back", "20 ms of thought"):
            figures = {name: rows[f"{kind}, {model}: {name}"] for name in PARTS + ROLES}
            together = sum(figures[role]["figure"][0] for role in ROLES[1:])
            assert math.isclose(figures[ROLES[0]]["figure"][0], together)
    for name, row in rows.items():
        assert len(row["figure"]) == 2 and row["low"] <= row["value"] <= row["high"]
        assert all(map(math.isfinite, row["figure"]))
        # Ticks of the kernel are longer than the CPU time of an episode: these may come to nothing.
        assert row["low"] > 0 or name.endswith((ROLES[0], *ROLES[2:4])), name
        assert name in done.stdout
    against = rows["bash, back to back: reset"]
    assert against["target"].startswith("< 3 x bash -c true")
    ratios = sorted(
        one / floor
        for one, floor in zip(against["figure"], rows["bash -c true"]["figure"], strict=True)
    )
    assert against["note"].endswith(f"({ratios[0]:.2f} to {ratios[1]:.2f})")


def test_reach_measures_every_road(tmp_path: Path) -> None:
    size = ["--rounds", "1", "--episodes", "1", "--sessions", "2", "--sandboxes", "3"]
    done = subprocess.run(
        [sys.executable, BENCH, "--only", "reach", *size, "--results", tmp_path],
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1) and not done.stderr  # 1: a target was missed
    rows = {row["name"]: row for row in json.loads((tmp_path / "bench.json").read_text())["rows"]}
    for what in ("step", "episode"):
        assert rows[f"{what}, in process"]["note"] == "1.00 x"
        assert rows[f"{what}, WebSocket"]["value"] > 0
    assert {"the same, as a share", "3 sessions connected and reset"} <= rows.keys()
    assert rows["processes left"]["value"] == 0


def run_part(name: str, folder: Path, *size: str) -> dict[str, Any]:
    """Run one part of the benchmarks, and return its rows by their names."""
    argv = [sys.executable, str(BENCH), "--only", name, *size, "--results", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: a target was missed
    if "no peers: " in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    return {row["name"]: row for row in json.loads((folder / "bench.json").read_text())["rows"]}


def renewed_rows(*measurements: str) -> set[str]:
    """Return the names of the rows that renew the figures of some measurements."""
    figures = [
        figure
        for name in measurements
        for figure in json.loads((RESULTS / f"{name}.json").read_text())["rows"].values()
    ]
    return {figure[key] for figure in figures for key in ("bench", "floor") if key in figure}


def test_forks_are_measured_beside_replays(tmp_path: Path) -> None:
    rows = run_part("forking", tmp_path)
    assert renewed_rows("forks", "replays") <= rows.keys()
    times = [rows[name]["value"] for name in sorted(renewed_rows("replays"))]
    assert min(times) > 0


def test_other_isolations_play_the_same_episodes(tmp_path: Path) -> None:
    rows = run_part("peers", tmp_path, "--rounds", "1", "--episodes", "1")
    names = renewed_rows("peers", "release-2023")
    assert names <= rows.keys() and all(rows[name]["value"] > 0 for name in names)


def test_growth_is_a_ratio_of_neighbouring_blocks() -> None:
    size = ["--rounds", "2", "--episodes", "2", "--many", "10", "--players", "2"]
    growth = [sys.executable, BENCH.with_name("growth.py"), *size]
    done = subprocess.run(growth, capture_output=True, text=True)
    assert done.returncode in (0, 1) and not done.stderr  # 1: a target was missed
    for name in ("2 more environments opened", "rate beside 10 / beside 8", "CPU beside 10 / "):
        assert name in done.stdout


def test_neighbours_are_compared_with_busy_ones() -> None:
    size = ["--seconds", "0.5", "--blocks", "1", "--making", "0.1", "threads", "leases"]
    neighbours = [sys.executable, BENCH.with_name("neighbours.py"), *size]
    done = subprocess.run(neighbours, capture_output=True, text=True)
    assert done.returncode in (0, 1) and not done.stderr  # 1: a target was missed
    begins = ["beside a busy loop", "threads / busy loop", "leases / busy loop"]
    lines = done.stdout.splitlines()
    assert [line.startswith(begin) for line, begin in zip(lines, begins, strict=True)] == [True] * 3
    assert all("0 lost" in line for line in lines)


def test_a_tree_is_compared_with_another() -> None:
    tree = BENCH.parents[1]
    pairs = [sys.executable, BENCH.with_name("pairs.py"), tree, tree, "--pairs", "1"]
    done = subprocess.run([*pairs, "--episodes", "1"], capture_output=True, text=True)
    assert done.returncode in (0, 1) and not done.stderr  # 1: one is worse
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["reset", "step", "score", "CPU", "memory"]


def test_the_interval_of_a_median(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH.parent))
    from pairs import interval

    # As tables of the sign test have it: of 20 values the 6th and the 15th.
    assert interval([float(n) for n in range(20, 0, -1)]) == (6.0, 15.0)
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_agents_at_once_are_episodes_of_a_run(tmp_path: Path) -> None:
    size = ["--episodes", "2", "--agents", "3"]
    done = subprocess.run(
        [sys.executable, BENCH, "--only", "agents", *size, "--results", tmp_path],
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1) and not done.stderr  # 1: a target was missed
    rows = {row["name"]: row for row in json.loads((tmp_path / "bench.json").read_text())["rows"]}
    memory = rows["3 agents in a run: memory of its process"]
    assert memory["value"] > 0 and memory["note"].startswith("9 calls, $")


def test_gateway_is_measured_against_direct_calls(tmp_path: Path) -> None:
    size = ["--rounds", "1", "--episodes", "2", "--agents", "3"]
    done = subprocess.run(
        [sys.executable, BENCH, "--only", "gateway", *size, "--results", tmp_path],
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1) and not done.stderr  # 1: a target was missed
    rows = {row["name"]: row for row in json.loads((tmp_path / "bench.json").read_text())["rows"]}
    calls = ["a call", "a streamed call", "a call from a sandbox"]
    for what in (*calls, "3 agents at once, 50 ms of thought"):
        assert rows[f"{what}, direct"]["value"] > 0
        assert " x (" in rows[f"{what}, by the gateway"]["note"]
    assert rows["memory of the gateway with 3 agents"]["value"] > 0


def simulated(*options: str) -> list[dict[str, Any]]:
    argv = [sys.executable, BENCH.with_name("scale.py"), "--json", "--least", "10000", *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_a_small_cluster_gives_what_its_cores_do() -> None:
    free = ["--many", "1e-9", "--alone", "1e-9", "--trip", "0", "--ledger", "0", "--sync", "0"]
    free += ["--answers", "1e9"]
    for one in simulated("--nodes", "1", "4", "--cores", "16", *free):
        assert one["full"] == "nodes" and one["share"] == pytest.approx(1, abs=0.05), one


def test_a_driver_reaches_its_ceiling_and_no_more() -> None:
    oracle, *_ = simulated("--nodes", "100", "--ledger", "0")
    assert oracle["full"] == "driver" and 0.9 < oracle["used"]["driver"] < 1.001
    assert 0.8 / 129e-6 < oracle["rate"] < 1 / 129e-6  # as far as its batches are large


def test_ledger_and_model_are_full_at_their_rates() -> None:
    ledger, model = ("--ledger", "0.004"), ("--ledger", "0", "--answers", "100")
    for name, options, most in (("ledger", ledger, 250), ("model", model, 100)):
        _, agent, _ = simulated("--nodes", "20", *options)
        assert agent["full"] == name and agent["rate"] == pytest.approx(most / 5, rel=0.1)


def test_simulation_agrees_with_three_nodes() -> None:
    """One process had 61.2 episodes a second; three nodes, on the same two cores, 66.1."""
    oracle, *_ = simulated("--nodes", "3", "--cores", "1", "--episodes", str(61.2 / 3))
    assert oracle["rate"] == pytest.approx(66.1, rel=0.15)


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program that measures rewards against labels."""
    monkeypatch.syspath_prepend(str(GRADERS))
    import measure

    return measure


def test_labels_are_whole_and_blind(measure: Any) -> None:
    first, second, third = map(measure.read_labels, measure.LABELS)
    disagree = {name for name in first if first[name].right != second[name].right}
    assert first.keys() == second.keys() and third.keys() == disagree
    assert {label.right for label in first.values()} == {"yes", "no", "unclear"}
    envs = [name.partition("/")[0] for name in first]
    assert (envs.count("bash"), envs.count("sql")) == (240, 120)
    for path in measure.LABELS:
        assert "canary" in path.read_text().partition("\n")[0]


def test_kappa(measure: Any) -> None:
    # The example of Cohen's coefficient in every textbook: 20 and 15 agree, of 50.
    pairs = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15
    assert measure.kappa(pairs) == pytest.approx(0.4)
    assert measure.kappa([("yes", "yes")] * 3) == 1.0
    assert measure.kappa([("yes", "no"), ("no", "yes")]) == -1.0


def test_all_states_of_a_task_are_in_one_half(measure: Any) -> None:
    halves = {name: measure.half(name) for name in measure.read_labels(measure.LABELS[0])}
    assert {*halves.values()} == {*measure.HALVES}
    for name, half in halves.items():
        env, _, *task = name.split("/")
        assert measure.half("/".join([env, "another", *task])) == half
    # As it was when the rules were made: crc32 of "fs1/0" and of "sql/7".
    assert (measure.half("bash/react/1/0"), measure.half("sql/react/7")) == measure.HALVES


def test_figures_of_a_reward(measure: Any) -> None:
    """Precision leaves out what is no trial; recall counts it as a miss, or leaves it out."""
    words = {"1": "yes", "2": "yes", "3": "yes", "4": "no", "5": "no", "6": "unclear"}
    names = {number: f"sql/x/{number}" for number in words}
    labels = {names[n]: measure.Label(word, n == "1", "") for n, word in words.items()}
    values = {"1": 1.0, "2": 0.99, "4": 1.0, "5": 0.0, "6": 1.0}
    scores = {names[n]: {"r": Score(values[n]) if n in values else None} for n in words}
    every, *halves = measure.figures("r", labels, scores)
    assert (every.states, every.no_trial, every.luck) == (5, 1, 1)
    assert (every.precision, every.recall, every.recall_of_trials) == ((1, 2), (1, 3), (1, 2))
    for field in ("precision", "recall"):
        parts = [getattr(half, field) for half in halves]
        assert tuple(map(sum, zip(*parts, strict=True))) == getattr(every, field)


def test_disagreements_are_settled_by_a_third(measure: Any) -> None:
    yes, no, luck = (
        measure.Label("yes", False, ""),
        measure.Label("no", False, ""),
        measure.Label("yes", True, ""),
    )
    found = measure.settled({"a": yes, "b": yes}, {"a": luck, "b": no}, {"b": no})
    assert (found["a"].luck, found["b"]) == (True, no)
    assert measure.settled({"a": yes}) == {"a": yes}
    assert measure.proportion((3, 4)) == "0.750 3/4 [0.301, 0.954]"


def test_graders_need_the_release(tmp_path: Path) -> None:
    argv = [sys.executable, str(GRADERS / "measure.py"), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 2 and "make graders RELEASE=path" in done.stderr


@needs_upstream
def test_misses_of_the_half_that_is_held_out_are_not_shown(measure: Any, tmp_path: Path) -> None:
    """A labeller who contradicts the rewards everywhere: half of the contradictions are shown."""
    names = [name for name in measure.read_labels(measure.LABELS[0]) if name.startswith("sql")][:8]
    halves = {name: measure.half(name) for name in names}
    assert {*halves.values()} == {*measure.HALVES}
    shown = ""
    for word in ("yes", "no"):
        rows = [{"id": name, "right": word, "luck": False, "why": f"why {name}"} for name in names]
        labels = tmp_path / f"{word}.jsonl"
        labels.write_text("\n".join(map(json.dumps, rows)))
        results = tmp_path / "results.json"
        argv = [str(UPSTREAM), "--only", "sql", "--labels", str(labels), "--misses"]
        done = subprocess.run(
            [sys.executable, GRADERS / "measure.py", *argv, "--results", results],
            capture_output=True,
            text=True,
            check=True,
        )
        shown += done.stdout
        rewards = json.loads(results.read_text())["sql"]["rewards"]
        assert rewards[0]["states"] == 8
    for name, half in halves.items():
        assert (f"why {name}" in shown) == (half == "rules")
