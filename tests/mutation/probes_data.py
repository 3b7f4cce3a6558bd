"""Probes of data, images and trees that are made to take all time or memory, or to recurse."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intercode import records
from intercode.episode import Episode
from intercode.errors import RecordError
from intercode.json_checks import check_plain
from intercode.records import EPISODES, MANIFEST, read_episodes, read_manifest
from intercode_sandbox.host_files import open_regular, remove_tree
from intercode_sandbox.images.dockerfile.parse import expand

from .tools import SkippedError, one_of


def _refused(make: Callable[[], object]) -> bool:
    try:
        make()
    except (RecordError, OSError, ValueError):
        return one_of("refused", holds="refused", gone="taken")
    return one_of("taken", holds="refused", gone="taken")


def _deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def levels_of_records() -> bool:
    episode = Episode("one", "?", "bash", metadata={"deep": _deep(300)})
    return _refused(lambda: Episode.from_json(json.dumps(episode.to_dict())))


def size_of_manifests() -> bool:
    with tempfile.TemporaryDirectory() as name:
        Path(name, MANIFEST).write_text("{}" + " " * (64 << 20))
        try:
            read_manifest(Path(name))
        except RecordError as error:
            said = "refused" if "larger than" in str(error) else "taken"
            return one_of(said, holds="refused", gone="taken")
    raise AssertionError("what is no manifest was read as one")


def lines_of_records() -> bool:
    records._LONGEST_LINE = 5_000
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, EPISODES)
        path.write_text(Episode("one", "?", "bash").to_json() + " " * 6_000 + "\n")
        return _refused(lambda: list(read_episodes(path)))


def levels_of_data() -> bool:
    return _refused(lambda: check_plain(_deep(300), 600))


def aliases_of_data() -> bool:
    return _refused(lambda: check_plain([["x" * 100_000] * 1000] * 10, 100_000))


def words_of_dockerfiles() -> bool:
    return _refused(lambda: expand("$A$A", {"A": "x" * 100_000}))


def fifos_of_data() -> bool:
    with tempfile.TemporaryDirectory() as name:
        os.mkfifo(fifo := Path(name) / "fifo")
        return _refused(lambda: open_regular(fifo).close())


def deep_trees() -> bool:
    if sys.version_info >= (3, 13):
        raise SkippedError("shutil.rmtree does not recurse here")
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        above = os.open(tree, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("d", dir_fd=above)
            below = os.open("d", os.O_RDONLY, dir_fd=above)
            os.close(above)
            above = below
        os.close(above)
        try:
            remove_tree(tree)
        except RecursionError:
            os.system(f"rm -rf {tree}")
            return one_of("there", holds="gone", gone="there")
        return one_of("there" if tree.exists() else "gone", holds="gone", gone="there")
