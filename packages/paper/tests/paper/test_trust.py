"""Results of 2023 from others run nothing, and lead nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

import intercode
from cli.test_trust import put
from intercode.datasets import load
from intercode.errors import RecordError
from intercode_paper.paper_tables import rates
from test_data_paths import home as home, refuses_the_image, task_file


@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_no_link_of_a_folder_of_2023_is_read(tmp_path: Path, kind: str) -> None:
    (folder := tmp_path / "results").mkdir()
    (secret := tmp_path / "secret").write_text("{}")
    (path := folder / "ic_bash_multiturn_gpt-4_10_turns.json").touch()
    put(path, kind, secret)
    with pytest.raises(
        RecordError, match=r"is a symbolic link, which is refused in|is not a regular file"
    ):
        rates(folder)


@pytest.mark.parametrize("env", ["bash", "python"])
def test_no_data_lets_an_image_in(home: Path, env: str) -> None:
    tasks = {"gold": "def f():\n    return 1", "tests": ["assert f() == 1"]}
    data = load(task_file(home, image="host+../private/setup.sh", **tasks))
    refuses_the_image(data, lambda part: intercode.make(env, data=part, protocol="paper"))
