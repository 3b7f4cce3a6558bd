"""A suite is run again when something that it needs has changed, and only then."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from importlib import import_module
from pathlib import Path

import pytest

from mutation.checks import defences_of
from mutation.defences import DEFENCES
from sources import source_of
from suites.known import DAYS, Inputs, Passed, load, machine, save, why_unknown
from suites.table import CORE, ROOT, read, suite_of

SUITES = read()


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return Inputs()


def need(file: str, inputs: Inputs) -> set[str]:
    return {name for name, suite in SUITES.items() if file in inputs.of(suite)}


def passed(name: str, inputs: Inputs) -> Passed:
    suite = SUITES[name]
    return Passed(inputs.digest(suite), machine(suite), date.today().isoformat(), 1.0, 1)


def test_every_source_is_needed_by_a_suite_of_tests_besides_make_test(inputs: Inputs) -> None:
    """The site is none: it shows all of the source."""
    suites = [suite for name, suite in SUITES.items() if name not in {CORE, "site"}]
    needed = set().union(*(inputs.of(suite) for suite in suites))
    sources = {file for file in inputs.files if "src/" in file and not file.startswith("tests/")}
    assert len(sources) > 500 and sources <= needed, sources - needed


def test_a_change_of_the_report_runs_no_mutation_of_the_sandbox(inputs: Inputs) -> None:
    found = need("packages/gym/src/intercode/report/viewer_page.py", inputs)
    assert {"browsers", "docs", "mutation-serving"} <= found
    assert found.isdisjoint({"mutation-sandbox", "mutation-docker", "mutation-grading"})


@pytest.mark.parametrize("name", ["spawner.py", "static/main.c", "static/sys.h"])
def test_a_change_of_the_sandbox_runs_mutation_attacks_and_forks(inputs: Inputs, name: str) -> None:
    found = need(f"packages/sandbox/src/intercode_sandbox/native/{name}", inputs)
    assert {"mutation-sandbox", "mutation-grading", "attacks", "forks", "soak"} <= found


def test_what_a_mutation_edits_is_needed_by_its_suite(inputs: Inputs) -> None:
    """Each defence is in one of the suites, and no file that is edited is left out."""
    checked = set()
    for file in sorted((ROOT / "tests/mutation").glob("test_*.py")):
        words = file.read_text().split("checks_of(")[1].strip(")\n ,").replace(",", " ").split()
        probes = [import_module(f"mutation.{name.strip()}") for name in words]
        needed = inputs.of(SUITES[f"mutation-{file.stem.removeprefix('test_')}"])
        for defence in defences_of(*probes):
            checked.add(defence.name)
            files = {str(source_of(edit.file).relative_to(ROOT)) for edit in defence.edits}
            assert files <= needed, defence.name
    assert checked == {defence.name for defence in DEFENCES}


@pytest.mark.parametrize(
    ("file", "params", "suite"),
    [
        ("tests/sandbox/test_exec.py", "native", CORE),
        ("tests/sandbox/test_exec.py", "docker-host", "docker"),
        ("packages/sandbox/tests/sandbox/test_exec.py", "docker-host", "docker"),
        ("tests/test_compat.py", "", "docker-engine"),
        ("tests/databases/test_engines.py", "mysql-x", "engines"),
        ("tests/databases/test_engines.py", "sqlite-x", CORE),
        ("tests/envs/test_fork.py", "docker", "forks"),
        ("tests/mutation/test_sandbox.py", "seccomp", "mutation-sandbox"),
        ("tests/soak/held.py", "", None),
    ],
)
def test_the_suite_of_a_test(file: str, params: str, suite: str | None) -> None:
    assert suite_of(list(SUITES.values()), file, params) == suite


def test_what_has_passed_is_known(inputs: Inputs, tmp_path: Path) -> None:
    before = passed("chaos", inputs)
    save({"chaos": before}, tmp_path / "passed.json")
    assert load(tmp_path / "passed.json") == {"chaos": before}
    assert why_unknown(SUITES["chaos"], before, inputs) == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"files": "0"}, "its files have changed"),
        ({"machine": {"kernel": "0"}}, "another kernel"),
        ({"day": (date.today() - timedelta(DAYS)).isoformat()}, f"passed {DAYS} days ago"),
        ({"day": (date.today() + timedelta(2)).isoformat()}, "passed -2 days ago"),
    ],
)
def test_what_has_changed_is_unknown(
    inputs: Inputs, change: dict[str, object], reason: str
) -> None:
    before = passed("chaos", inputs)
    if "machine" in change:
        change = {"machine": {**before.machine, "kernel": "0"}}
    after = replace(before, **change)  # type: ignore[arg-type]
    assert reason in why_unknown(SUITES["chaos"], after, inputs)


def test_a_version_of_the_systems_packages_is_a_fact_of_the_machine() -> None:
    facts = machine(replace(SUITES["chaos"], packages=("bash", "no-such-package")))
    assert facts["bash"] and facts["no-such-package"] == ""
