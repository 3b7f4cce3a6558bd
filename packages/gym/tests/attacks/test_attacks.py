"""Every attack of the list in one run: it ends as any other, and one beside it notices nothing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from intercode.records import EPISODES, read_episodes
from intercode_sandbox.linux_capabilities import CAPABILITIES
from soak.killed import adopting, cgroups_of, children, intercode
from waiting import PATIENCE, eventually

from . import attack

pytestmark = pytest.mark.ordinary


GRANTED = ("--capabilities", ",".join(CAPABILITIES))
KINDS = {
    "native": ("--sandbox", "native", "--agent", f"{attack.__file__}:Agent"),
    "granted": ("--sandbox", "native", "--agent", f"{attack.__file__}:Forked", *GRANTED),
    "docker": ("--sandbox", "docker", "--agent", f"{attack.__file__}:Agent", *GRANTED),
}
"""The sandboxes. On Docker only root with every right attacks, which does all that another can; and
in forks, where it attacks from the second one."""


@pytest.mark.timeout(1800)  # a minute where the machine is not busy
@pytest.mark.parametrize("kind", [*KINDS][: 3 if os.geteuid() == 0 else 1])
def test_a_run_of_all_attacks(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    if kind == "docker":
        request.getfixturevalue("engine")
    attacks, plain = tmp_path / "attacks.json", tmp_path / "plain.json"
    attacks.write_text(json.dumps(attack.tasks()))
    plain.write_text(json.dumps([{"query": "x", "gold": f"echo {n} > /tmp/x"} for n in range(20)]))
    small = ("--memory", "128M", "--disk", "64M", "--processes", "64", "--timeout", "5")
    run = intercode(
        *("run", "bash", "--data", attacks, *small),
        *("--out", tmp_path / "attacked", "--workers", "4", *KINDS[kind]),
    )
    beside = intercode(
        *("run", "bash", "--data", plain, "--out", tmp_path / "beside", "--epochs", "10", "--json"),
        *("--timeout", f"{PATIENCE:.0f}"),
    )
    with adopting():
        ours = children()
        with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as attacker:
            done = subprocess.run(beside, capture_output=True, text=True, check=False)
            said = attacker.communicate()[0].decode()
        assert eventually(lambda: not children() - ours)
    assert attacker.returncode in (0, 1) and "Traceback" not in said, said
    assert f"{len(attack.ATTACKS)}/{len(attack.ATTACKS)} " in said, said
    episodes = list(read_episodes(tmp_path / "attacked" / EPISODES))
    assert not [episode for episode in episodes if episode.status == "error"]
    assert not [episode for episode in episodes if episode.reward]
    deep = [len(episode.metadata.get("fork", {}).get("branch", ())) for episode in episodes]
    assert {*deep} == {2 if kind == "granted" else 0}
    assert not cgroups_of(attacker.pid)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["statistics"]
    assert (found["episodes"], found["success_rate"], found["errors"]) == (200, 1.0, 0)
    swept = subprocess.run(intercode("clean", "--dry-run"), capture_output=True, text=True)
    assert swept.returncode == 0, swept.stdout
