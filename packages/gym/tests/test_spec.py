"""`RunSpec`: from arguments, toml, JSON and records; merged, compared, run."""

from __future__ import annotations

import argparse
import json
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from intercode.errors import UsageError
from intercode.evaluate import evaluate
from intercode.manifest import RunManifest
from intercode.records import ValueDifference, read_manifest
from intercode.spec import (
    SECTIONS,
    RunSpec,
    add_environment,
    add_options,
    environment_options,
    from_toml,
    list_section_options,
    read_arguments,
    recorded_options,
)
from sources import ROOT

HISTORY = sorted(ROOT.glob("tests/golden/runs-0.1.0/*/run.json"))


def parsed(*arguments: str) -> argparse.Namespace:
    """What a parser with all options makes of a command line."""
    parser = argparse.ArgumentParser()
    add_environment(parser)
    for part in (*SECTIONS.values(), RunSpec):
        add_options(parser, list_section_options(part))
    add_options(parser, environment_options())
    return parser.parse_args(arguments)


def test_only_what_is_given_is_given() -> None:
    assert read_arguments(parsed()) == {}
    assert read_arguments(parsed("--seed", "0", "--no-permute-columns")) == {
        "seed": 0,
        "permute_columns": False,
    }


def test_arguments_become_typed_parts() -> None:
    spec = RunSpec.from_args(
        parsed("sql", "--timeout", "2s", "--memory", "1G", "--task", "a", "--model", "x/y")
    )
    assert spec.env.name == "sql" and spec.env.protocol == "default"
    assert spec.env.options == {"timeout": 2.0, "memory": 1 << 30}
    assert (spec.tasks, spec.model.name, spec.agent.name) == (("a",), "x/y", "oracle")
    assert (spec.run_options.workers, spec.epochs, spec.seed) == (1, 1, 0)


def test_a_later_layer_goes_before_an_earlier_one() -> None:
    spec = RunSpec.from_layers(
        {"env": "bash", "seed": 1, "image": "a"}, {"seed": 2}, {"image": None}
    )
    assert spec.seed == 2 and spec.env.options == {}


def test_merged_compared_and_printed_as_one_flat_object() -> None:
    spec = RunSpec.from_layers({"env": "bash", "max_turns": 3, "workers": 4})
    other = spec.merge(seed=7, max_turns=None)
    assert spec.diff(other) == [
        ValueDifference("max_turns", 3, None),
        ValueDifference("seed", 0, 7),
    ]
    assert spec.diff(spec.merge()) == [] and spec == spec.merge()
    assert RunSpec.from_json(json.dumps(spec.flat())) == spec
    with pytest.raises(AttributeError):
        spec.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"workers": 0}, "workers: must be at least 1"),
        ({"epochs": "many"}, "epochs: Expected `int`, got `str`"),
        ({"judge_votes": 0}, "judge_votes: must be at least 1"),
        ({"seed": -1}, "seed: must be at least 0"),
    ],
)
def test_errors_name_the_option(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        RunSpec.from_layers(options)


@pytest.mark.parametrize("text", ["[]", "{", '{"seed": "x"}'])
def test_json_that_is_not_a_spec(text: str) -> None:
    with pytest.raises(UsageError):
        RunSpec.from_json(text)


def test_a_folder_lies_below_all_layers(tmp_path: Path) -> None:
    (tmp_path / "intercode.toml").write_text('env = "bash"\nmax_turns = 4\ntimeout = 3\n')
    spec = RunSpec.from_layers({"env": str(tmp_path), "timeout": 9})
    assert spec.env.name == "bash" and spec.env.options == {"max_turns": 4, "timeout": 9}
    assert spec.env.data == from_toml(tmp_path)["data"] == str(tmp_path / "tasks.jsonl")


def test_two_environments() -> None:
    with pytest.raises(UsageError, match="two environments are given"):
        read_arguments(parsed("bash", "--env", "sql"))


@pytest.mark.parametrize("path", HISTORY, ids=lambda path: path.parent.name)
def test_records_of_0_1_0(path: Path) -> None:
    manifest = read_manifest(path.parent)
    msgspec.convert(manifest, RunManifest)
    spec = RunSpec.from_record(manifest, trust=True)
    assert spec.recorded().items() >= recorded_options(manifest).items()
    assert spec.agent.name == manifest["agent"]["name"] and spec.env.name == manifest["env"]["env"]


def test_old_names_in_a_record() -> None:
    options = {"env": "bash", "provider": "docker", "more": {"depth": 2, "reward_every_turn": True}}
    assert recorded_options({"sessions": [{"options": options}]}) == {
        "env": "bash",
        "sandbox": "docker",
        "depth": 2,
    }


def test_another_agent_takes_nothing_that_was_said_to_the_recorded_one() -> None:
    options = {"env": "bash", "agent": "react", "model": "a/b", "samples": 3, "limit": 2}
    manifest = {"sessions": [{"options": options}]}
    spec = RunSpec.from_record(manifest, {"agent": "noop", "tasks": ["x"], "locked": "run"})
    assert spec.model.name is None and spec.agent.samples is None
    assert (spec.limit, spec.tasks) == (None, ("x",))
    assert spec.run_options.accept == ("agent",)


def test_a_spec_is_run(tmp_path: Path) -> None:
    spec = RunSpec.from_layers({"env": "bash", "limit": 1, "out": tmp_path / "run", "max_turns": 3})
    assert evaluate(spec).complete
    record = read_manifest(tmp_path / "run")
    assert record["sessions"][0]["options"] == spec.recorded()
    assert record["env"]["max_turns"] == 3
    with pytest.raises(UsageError, match="describes the whole run"):
        evaluate(spec, workers=2)


def test_the_schemas_of_the_reference_are_up_to_date(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "scripts" / "schemas"))["write"](tmp_path)
    kept = ROOT / "docs" / "schemas"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in kept.iterdir())
    for name in names:
        assert (kept / name).read_text() == (tmp_path / name).read_text(), "run scripts/schemas"
