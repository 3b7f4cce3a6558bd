"""Facts of a release: its version, its addresses, and the README of each package in an index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import intercode
import intercode_sandbox
from sources import ROOT

PACKAGES = sorted((ROOT / "packages").iterdir())
PROJECTS: dict[str, Any] = {
    folder.name: tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    for folder in PACKAGES
}
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
HOME = PROJECTS["gym"]["urls"]["Homepage"]


def test_the_version_succeeds_that_of_2023_and_is_the_same_everywhere() -> None:
    assert int(intercode.__version__.partition(".")[0]) > 1  # it was 1.0.2
    assert CITATION["version"] == intercode.__version__ == intercode_sandbox.__version__
    assert all("version" in project["dynamic"] for project in PROJECTS.values())
    faces = {f.parent.name: f.read_text() for f in ROOT.glob("packages/*/src/*/__init__.py")}
    stated = [name for name, text in faces.items() if "\n__version__ = " in text]
    assert stated == ["intercode_sandbox"]


def test_a_release_is_built_by_locked_tools() -> None:
    text = (ROOT / "requirements-build.txt").read_text("utf-8").replace("\\\n", "")
    locked = [line for line in text.splitlines() if line[0] != "#"]
    assert all(re.match(r"[\w-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line) for line in locked)
    names = {re.split(r"[=\s]", line)[0]: line for line in locked}
    builds = [tomllib.loads((f / "pyproject.toml").read_text("utf-8")) for f in PACKAGES]
    needs = {re.split(r"\W", name)[0] for b in builds for name in b["build-system"]["requires"]}
    assert needs | {"build", "twine"} < names.keys()
    hook = (ROOT / "packages/sandbox/hatch_build.py").read_text("utf-8")
    compiler = re.search(r'^RELEASE_COMPILER = "(.*)"', hook, re.MULTILINE)
    assert compiler and names["ziglang"].startswith(compiler[1])


def test_one_address() -> None:
    assert CITATION["repository-code"] == HOME
    files = [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("packages/*/README.md")]
    for file in (*files, ROOT / "CITATION.cff", ROOT / "README.md"):
        text = file.read_text(encoding="utf-8")
        found = re.findall(r"https://(?:raw\.githubusercontent|github)\.com(/[\w-]+/[\w-]+)", text)
        assert all(HOME.endswith(path) for path in found), file


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_an_index_gets_a_readme_whose_links_are_absolute_and_the_license(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links and all(link.startswith(f"{HOME}") for link in links)
    assert len(text.splitlines()) < 60  # one screen
    for link in links:
        path = re.fullmatch(rf"{HOME}(?:#readme|/(?:blob|tree)/main/([^#]+)(?:#.+)?)?", link)
        assert path and (ROOT / (path[1] or "README.md")).exists(), link
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_paper_is_cited_as_the_readme_cites_it() -> None:
    paper = CITATION["preferred-citation"]
    bibtex = (ROOT / "README.md").read_text(encoding="utf-8").partition("```bibtex")[2]
    assert f"{{{paper['title']}}}" in bibtex and paper["collection-title"] in bibtex
    names = " and ".join(f"{one['given-names']} {one['family-names']}" for one in paper["authors"])
    assert f"{{{names}}}" in bibtex
