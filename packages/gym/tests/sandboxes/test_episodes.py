"""Episodes whose sandbox is lost, and those of a process that forks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from intercode.envs.bash import BashEnv
from intercode.errors import SandboxClosedError
from intercode.task import Dataset, Task
from intercode_sandbox.native.provider import NativeProvider
from sandbox.test_close import marker as marker, run
from sandbox.test_endings import kept_from_ending, of, provider as provider
from sandbox.test_lifecycle import wait_for
from waiting import eventually, new_marker

pytestmark = pytest.mark.ordinary

IMPORTS = """
from intercode.envs.bash import BashEnv
from intercode.errors import EnvironmentStateError
from intercode.task import Dataset, Task
"""


def test_a_program_that_is_lost_with_its_sandbox_has_no_exit_code() -> None:
    """Or a verification that the machine has killed would be one that failed."""
    provider, marker = NativeProvider(), new_marker()
    tasks = Dataset([Task("a", "?", verification=f"exec sleep {marker}", timeout=60)])
    with closing(BashEnv(tasks, image="host", sandbox=provider)) as env:
        env.reset()
        spawner = provider._spawner
        assert spawner is not None

        def lose() -> None:
            wait_for(marker, 1)
            env.sandbox.processes()  # an answer after the one that says that it was started
            spawner.process.kill()

        killer = threading.Thread(target=lose)
        killer.start()
        with pytest.raises(SandboxClosedError, match="died while a program ran in it"):
            env.step("submit")
        killer.join()
        assert (env.episode.status, env.episode.score) == ("error", None)
    provider.close()


def test_an_environment_stays_its_parents_in_a_fork(marker: str) -> None:
    """As where a trainer forks its workers: the child makes its own, and ends as programs do."""
    program = (
        IMPORTS
        + """
def make():
    return BashEnv(Dataset([Task("a", "?", gold=("true",))]), image="host")
env = make()
env.reset()
env.step("echo parent > /tmp/x")
if (child := os.fork()) == 0:
    for call in (env.reset, lambda: env.step("echo child > /tmp/x")):
        try:
            call()
            os._exit(6)
        except EnvironmentStateError:
            pass
    own = make()
    own.reset()
    code = 0 if "No such" in own.step("cat /tmp/x")[0] else 5
    own.close()
    env.close()
    sys.exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), env.step("cat /tmp/x")[0])
env.close()
"""
    )
    done = run(program, marker)
    assert done.stdout == "0 parent\n\n", done


def test_clean_counts_a_sandbox_that_is_still_ending(provider: NativeProvider) -> None:
    sandbox = provider.start()
    with kept_from_ending(sandbox):
        sandbox.close()
        assert eventually(lambda: of(provider))
        (ending,) = of(provider)
        command = [sys.executable, "-m", "intercode.cli", "clean", "--dry-run"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert f"process {ending.pid}" in done.stdout
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
        assert ending.pid in [entry["pid"] for entry in json.loads(done.stdout)["ending"]]
