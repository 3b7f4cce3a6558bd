"""kill -9 of a run at any moment: no finished episode is missing or torn, and nothing is left.

The full figure (50) is run by hand before a release::

    INTERCODE_SOAK_KILLS=50 pytest packages/gym/tests/soak/test_kill.py -s --timeout 3600
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
from pathlib import Path

import pytest

from waiting import eventually

from .killed import cgroups_of, intercode, kill

KILLS = int(os.environ.get("INTERCODE_SOAK_KILLS", "3"))
TASKS = [{"task_id": f"t{n}", "query": "Say it.", "gold": f"echo {n}"} for n in range(50)]


@pytest.mark.timeout(1800)  # a minute where the machine is not busy
def test_killed_at_random_moments(tmp_path: Path) -> None:
    data = tmp_path / "tasks.json"
    data.write_text(json.dumps(TASKS))
    out = tmp_path / "run"
    # Never done within this test, however often it is gone on with.
    command = intercode(
        "run", "bash", "--data", str(data), "--out", str(out), "--workers", "4",
        "--epochs", "2000",
    )  # fmt: skip
    moments = random.Random(7)
    episodes = out / "episodes.jsonl"
    for attempt in range(KILLS):
        log = tmp_path / f"log-{attempt}"
        with log.open("wb") as file:
            process = subprocess.Popen(command, stderr=file, stdout=file, start_new_session=True)
        time.sleep(moments.uniform(0.2, 4.0))  # allow sleep: it is killed at a random moment
        if attempt == KILLS - 1:  # on a slow machine none of these moments may be enough
            assert eventually(lambda: episodes.exists() and episodes.stat().st_size), (
                log.read_text()
            )
        assert process.poll() is None, log.read_text()
        kill(process)
        claimed = [int(n) for n in re.findall(r"^(\d+)/\d+ ", log.read_text(), re.MULTILINE)]
        lines = episodes.read_bytes().split(b"\n")[:-1] if episodes.exists() else []
        recorded = [json.loads(line) for line in lines]
        keys = {(episode["epoch"], episode["task_id"]) for episode in recorded}
        assert len(keys) == len(recorded), "an episode was recorded twice"
        assert all(episode["score"]["value"] == 1.0 for episode in recorded)
        assert len(recorded) >= (claimed[-1] if claimed else 0), "a finished episode is missing"
        swept = subprocess.run(intercode("clean", "--json"), capture_output=True, check=True)
        json.loads(swept.stdout)
        assert not cgroups_of(process.pid)
        print(f"kill {attempt + 1}: {len(recorded)} episodes recorded")
    assert len(recorded) > 0
