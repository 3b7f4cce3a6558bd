"""Packed folders on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from intercode.cli.main import main
from intercode_sandbox.host_files import cache_root
from sandbox.test_sources import folder as folder, made_by_another


def test_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = made_by_another(folder, "image")
    argv = ["images", "prune", "--all"]
    for options in (["--dry-run"], []):
        assert main([*argv, "--json", *options]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [source["path"] for source in told["sources"]] == [str(place)]
        sizes = [one["size"] for one in (*told["removed"], *told["sources"])]
        assert (told["size"], told["dry_run"]) == (sum(sizes), bool(options))
        assert place.exists() is bool(options)
    made_by_another(folder)
    assert main(argv) == 0
    assert "removed packed folders and repositories: 1, " in capsys.readouterr().out
    assert not list((cache_root() / "packs").iterdir())
