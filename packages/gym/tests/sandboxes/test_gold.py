"""What an agent must not know: gold, verification, score."""

from __future__ import annotations

import pytest

from intercode.envs.bash import BashEnv
from intercode.task import Dataset, Task
from intercode_sandbox import Limits

pytestmark = pytest.mark.ordinary

GOLD, CHECK = "gold-0f3a77", "verification-0f3a77"
SEARCH = (
    "set; cat /proc/*/environ /proc/*/cmdline;"
    " for fd in {195..199}; do timeout 0.1 cat /proc/$$/fd/$fd; done;"  # of a pipe, without end
    " grep -rs 0f3a7[7] /etc /home /root /tmp /var /run /opt /dev/shm; find / -name '*0f3a7[7]*';"
    " env"
)


@pytest.fixture
def env() -> BashEnv:
    task = Task(
        "secret",
        "Create done.",
        ("touch done; : " + GOLD,),
        verification=f": {CHECK}; test -e done",
    )
    return BashEnv(Dataset([task], "secrets"), limits=Limits(timeout=100))


@pytest.mark.case(83)
@pytest.mark.defends("host leak")
def test_gold_and_verification_are_invisible(env: BashEnv) -> None:
    env.reset(seed=0)
    observation, *_ = env.step(f"exec 8</dev/null; ({SEARCH}) 2>&1 </dev/null")
    assert "PATH=" in observation
    assert "0f3a77" not in observation.replace("0f3a7[7]", "")
    env.close()


@pytest.mark.case(34, 83)
@pytest.mark.defends("escape")
def test_the_score_cannot_be_changed_from_inside(env: BashEnv) -> None:
    env.reset(seed=0)
    env.step(
        "mkdir -p /tmp/bin; printf '#!/bin/sh\\nexit 0\\n' > /tmp/bin/test; chmod 755 /tmp/bin/*"
    )
    env.step("export PATH=/tmp/bin:$PATH BASH_ENV=/tmp/env ENV=/tmp/env; echo 'exit 0' > /tmp/env")
    env.step("test() { return 0; }; export -f test; trap 'exit 0' EXIT; echo 'exit 0' > ~/.bashrc")
    env.step("for n in {1..40}; do printf '%s\\0' '' $n A 0 hB / a b /proc/1 >&199; done")
    _, reward, terminated, *_ = env.step("submit")
    assert terminated
    assert reward < 1.0
    env.close()


def test_the_honest_way_scores(env: BashEnv) -> None:
    env.reset(seed=0)
    env.step("touch done")
    assert env.step("submit")[1] == 1.0
    env.close()
