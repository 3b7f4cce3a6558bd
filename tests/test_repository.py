"""The repository as contributors find it: workflows, forms, hooks, container, and short pages."""

from __future__ import annotations

import contextlib
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from repository import (
    ROOT,
    WORKFLOWS,
    contributor_findings,
    load,
    main,
    program_findings,
    workflow_findings,
)

FILES = (
    ".devcontainer", ".github", ".pre-commit-config.yaml", "CITATION.cff", "Makefile",
    "SECURITY.md", "docs/sandbox/containers.md",
)  # fmt: skip
"""All that the checks read."""
CI, RELEASE = f"{WORKFLOWS}/ci.yml", f"{WORKFLOWS}/release.yml"
BUG, HOOKS = ".github/ISSUE_TEMPLATE/bug.yml", ".pre-commit-config.yaml"
BROKEN = {
    "a command beside make": (CI, "run: make docs", "run: make docs && ls", "no target of the"),
    "an unknown target": (CI, "run: make docs", "run: make dosc", "no target of the Makefile"),
    "a tag": (CI, "checkout@08c6903cd8c0fde910a37f88322edcfb5dd907a8", "checkout@v5", "its commit"),
    "no version": (CI, "  # v5.0.0", "", "with `  # vX.Y.Z`"),
    "no limit": (CI, "    timeout-minutes: 20\n", "", "it needs `timeout-minutes`"),
    "credentials": (CI, "persist-credentials: false", "fetch-depth: 1", "keeps no credentials"),
    "rights at the top": (CI, "permissions: {}", "permissions: write-all", "at the top"),
    "rights of a job": (CI, "contents: read", "contents: write", "its permissions must be"),
    "no environment": (RELEASE, "environment:\n      name", "env:\n      name", "an environment"),
    "actionlint": (CI, "matrix.python }}\n      #", "matrix.pyhton }}\n      #", "actionlint .g"),
    "zizmor": (
        CI, "run: make docs", "run: make docs ARGS=${{ github.head_ref }}", "template-injection",
    ),
    "schema of workflows": (CI, "runs-on: ubuntu-24.04", "runs_on: x", "vendor.github-workflows"),
    "schema of forms": (BUG, "type: dropdown", "type: list", "vendor.github-issue-forms"),
    "schema of updates": (".github/dependabot.yml", "monthly", "never", "vendor.dependabot"),
    "schema of citations": ("CITATION.cff", "cff-version: 1.2.0", "a: b", "citation-file-format"),
    "schema of hooks": (HOOKS, "    hooks:", "    hoks:", "pre-commit validate-config"),
    "another hook": (HOOKS, "entry: make lint", "entry: ruff check", "its hook is `make lint`"),
    "no doctor": (BUG, "`intercode doctor --json`", "a command", "it must ask for"),
    "a public report": (
        ".github/ISSUE_TEMPLATE/config.yml", "security/advisories/new", "issues", "private reports",
    ),
    "a container without rights": (
        ".devcontainer/devcontainer.json", "seccomp=unconfined", "seccomp=default", "seccomp=unc",
    ),
}  # fmt: skip
"""Name → file, text, the text in its place, and a part of the finding."""


def test_the_files_are_as_their_programs_and_our_rules_want_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", BROKEN)
def test_each_rule_and_each_program_finds_its_fault(name: str, tmp_path: Path) -> None:
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / file).is_dir() else shutil.copy
        copy(ROOT / file, tmp_path / file)
    file, text, replacement, expected = BROKEN[name]
    before = (tmp_path / file).read_text()
    assert text in before
    (tmp_path / file).write_text(before.replace(text, replacement))
    findings = list(program_findings(tmp_path, file))
    with contextlib.suppress(KeyError):  # a rule reads what a schema requires
        findings += [*workflow_findings(tmp_path), *contributor_findings(tmp_path)]
    assert any(expected in finding for finding in findings), findings


def project(package: str) -> dict[str, Any]:
    text = (ROOT / "packages" / package / "pyproject.toml").read_text("utf-8")
    metadata: dict[str, Any] = tomllib.loads(text)["project"]
    return metadata


def test_the_tests_run_on_each_supported_python() -> None:
    pythons = load(ROOT / CI)["jobs"]["test"]["strategy"]["matrix"]["python"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert f"\nVERSIONS ?= {' '.join(pythons)}\n" in makefile
    for folder in (ROOT / "packages").iterdir():
        metadata = project(folder.name)
        stated = [re.match(r"Programming .* :: (3\.\d+)$", c) for c in metadata["classifiers"]]
        assert [match[1] for match in stated if match] == pythons
        assert metadata["requires-python"] == f">={pythons[0]}"


def test_a_tag_publishes_each_package_after_those_that_it_needs_and_after_all_checks() -> None:
    release = load(ROOT / RELEASE)
    assert release["on"] == {"push": {"tags": ["v[0-9]*"]}}
    checks, publish = release["jobs"]["checks"], release["jobs"]["publish"]
    assert checks["uses"] == f"./{CI}" and publish["needs"] == "checks"
    packages = publish["strategy"]["matrix"]["package"]
    assert publish["strategy"]["max-parallel"] == "1"
    assert {*packages} == {path.name for path in (ROOT / "packages").iterdir()}
    assert packages.index("sandbox") < packages.index("gym") < packages.index("integrations")
    steps = load(ROOT / CI)["jobs"]["wheels"]["steps"]
    uploads = {step["with"]["name"]: step["with"]["path"].split() for step in steps if "if" in step}
    for package in packages:
        name = f"dist/intercode_{package}-*"
        assert uploads[f"dist-{package}"] == [f"{name}.tar.gz", f"{name}.whl"]
    assert "attestations" in publish["steps"][-1]["with"]


def test_updates_reach_each_folder_with_requirements_and_the_actions() -> None:
    updates = load(ROOT / ".github/dependabot.yml")["updates"]
    assert {update["package-ecosystem"] for update in updates} == {"pip", "github-actions"}
    folders = [update.get("directories", [update.get("directory")]) for update in updates]
    assert folders == [["/packages/*"], ["/"], ["/"]]


def test_the_forms_and_the_template_name_what_is_there() -> None:
    form = load(ROOT / BUG)["body"]
    (options,) = [f["attributes"]["options"] for f in form if f.get("id") == "package"]
    names = {project(folder.name)["name"] for folder in (ROOT / "packages").iterdir()}
    assert names < {*options}
    template = (ROOT / ".github/PULL_REQUEST_TEMPLATE.md").read_text("utf-8")
    for target in re.findall(r"make ([a-z-]+)", template):
        assert f"\n{target}: " in (ROOT / "Makefile").read_text("utf-8")


def test_contributing_is_short_and_leads_to_each_page_of_development() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert len(text.split()) <= 1000 and "(docs/README.md#development)" in text
    index = (ROOT / "docs/README.md").read_text("utf-8").partition("\n## Development\n")[2]
    pages = {f"development/{path.name}" for path in ROOT.glob("docs/development/*.md")}
    assert pages and pages <= {*re.findall(r"\]\(([^)#]+)", index)}


def test_the_newest_section_of_the_changelog_has_at_most_60_lines() -> None:
    newest = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")[1]
    assert len(newest.strip().splitlines()) <= 60
