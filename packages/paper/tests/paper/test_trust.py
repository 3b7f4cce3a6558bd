"""Results of 2023 from others run nothing, and lead nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.test_trust import put
from intercode.errors import RecordError
from intercode_paper.tables import rates


@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_no_link_of_a_folder_of_2023_is_read(tmp_path: Path, kind: str) -> None:
    (folder := tmp_path / "results").mkdir()
    (secret := tmp_path / "secret").write_text("{}")
    (path := folder / "ic_bash_multiturn_gpt-4_10_turns.json").touch()
    put(path, kind, secret)
    with pytest.raises(RecordError, match=r"is a link|is not a regular file"):
        rates(folder)
