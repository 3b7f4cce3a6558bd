"""What a release shows to others: its version, its addresses, what an index makes of the README."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

import intercode

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
HOME = PROJECT["project"]["urls"]["Homepage"]


def test_the_version_succeeds_that_of_2023_and_is_the_same_everywhere() -> None:
    assert int(intercode.__version__.partition(".")[0]) > 1  # it was 1.0.2
    assert CITATION["version"] == intercode.__version__
    assert "version" not in PROJECT["project"]  # read from the package


def test_one_address() -> None:
    assert CITATION["repository-code"] == HOME
    for name in ("pyproject.toml", "CITATION.cff", "README.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        found = re.findall(r"https://(?:raw\.githubusercontent|github)\.com(/[\w-]+/[\w-]+)", text)
        assert all(HOME.endswith(path) for path in found), name


def test_an_index_gets_a_readme_whose_links_and_pictures_are_absolute() -> None:
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    assert hook["fragments"] == [{"path": "README.md"}]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", text)
    for change in hook["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    after = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", text)
    path = HOME.partition("github.com/")[2]
    assert len(before) == len(after) > 20
    for (picture, old), (_, new) in zip(before, after, strict=True):
        if old.startswith("https:"):
            assert new == old
        elif picture:
            assert new == f"https://raw.githubusercontent.com/{path}/v$HFPR_VERSION/{old}"
        else:
            assert new == f"{HOME}/blob/v$HFPR_VERSION/{old}"
    assert sum(bool(picture) for picture, _ in before) >= 2


def test_the_paper_is_cited_as_the_readme_cites_it() -> None:
    paper = CITATION["preferred-citation"]
    bibtex = (ROOT / "README.md").read_text(encoding="utf-8").partition("```bibtex")[2]
    assert f"{{{paper['title']}}}" in bibtex and paper["collection-title"] in bibtex
    names = " and ".join(f"{one['given-names']} {one['family-names']}" for one in paper["authors"])
    assert f"{{{names}}}" in bibtex
