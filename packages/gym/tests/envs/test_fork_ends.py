"""Forks by state: many, deep, of hostile sources; nothing is left of them."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from typing import Any

import pytest

import intercode
from intercode.envs.base import InterCodeEnv
from intercode.errors import ForkError
from intercode.task import Dataset, Task
from intercode_sandbox.host_files import cache_root
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.snapshot import sweep
from open_resources import held, held_once
from soak.killed import cgroups_of, kill

pytestmark = pytest.mark.ordinary
TASKS = Dataset([Task("one", "Make one.", ("echo 1 > /tmp/one",))], "ones")


def begun(provider: Any = "native", *actions: str) -> InterCodeEnv[Any]:
    env = intercode.make("bash", data=TASKS, sandbox=provider, max_turns=40)
    env.reset()
    for action in actions:
        env.step(action)
    return env


def test_a_fork_of_a_fork_ten_deep() -> None:
    with ExitStack() as opened:
        env = opened.enter_context(closing(begun("native", "mkdir /tmp/d; cd /tmp/d; n=()")))
        chain = [env]
        for number in range(10):
            chain[-1].step(f"echo {number} > {number}; n+=({number}); rm -f {number - 2}")
            (fork,) = chain[-1].fork(mode="state")
            chain.append(opened.enter_context(closing(fork)))
        for number, one in reversed([*enumerate(chain)]):
            have = [str(n) for n in range(min(number + 1, 10))]
            observation, *_ = one.step('echo "${n[@]}"; ls; echo mine > mine')
            assert observation.split("\n")[0].split() == have
            assert observation.split("\n")[1:-1] == have[-2:]
        assert chain[-1].episode.id == "one#0" + ".0" * 10


def test_nothing_is_left_of_a_hundred_forks() -> None:
    with closing(NativeProvider()) as provider:
        with closing(begun(provider, "x=1")) as env:
            for fork in env.fork(2):
                fork.step("true")
                fork.close()
        before = held_once(lambda found: True, provider)
        with closing(begun(provider, "echo 1 > /tmp/one; x=2")) as env:
            snapshot = env.snapshot(mode="state")
            forks = env.fork(100)
            used = forks[::10]
            threads = [
                threading.Thread(target=fork.step, args=("echo $x >> /tmp/one",)) for fork in used
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert {fork.step("cat /tmp/one")[0] for fork in used} == {"1\n2\n"}
            assert [fork.step("submit")[1] for fork in used[:2]] == [0.0, 0.0]
            for fork in forks:
                fork.close()
        del snapshot, forks, fork, used, threads
        gc.collect()
        names = set(before) - {"memory", "spawner memory", "temporary files"}
        after = held_once(lambda found: all(found[n] <= before[n] for n in names), provider)
        assert {
            name: after[name] - before[name] for name in names if after[name] > before[name]
        } == {}


HOSTILE = (
    "alias printf=false builtin2=x declare=false test=false ulimit=false '[['=false",
    "set -- $(seq 20000); big=$(head -c 1048576 /dev/zero | tr '\\0' \"'\")",
    "declare -A m; for i in {1..2000}; do m[$'k\\n'$i]=$'\\001\\177'; done",
    "f() { cat <<'END'\n$(touch /tmp/x)\nEND\n}; x='$(touch /tmp/x)`touch /tmp/x`'",
    "cd /tmp; mkdir $'a\\nb\\'$(touch x)'; cd $'a\\nb\\'$(touch x)'",
    'for f in printf declare trap test; do eval "$f() { sleep 300; }"; done',
    "readonly BASHOPTS SHELLOPTS x=5; declare -r DIRSTACK",
    "shopt -s extdebug; trap 'exit 3' DEBUG",
    "unset DIRSTACK BASHOPTS; DIRSTACK=x",
    "trap 'builtin printf \"\\0rest\\0\\0\\0\\0\\0\\0\\0999999\\0\" >&199' DEBUG",
    "ulimit -v 60000; ulimit -n 8; ulimit -f 0; ulimit -u 3; ulimit -s 64",
)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_source_is_carried_or_refused(number: int) -> None:
    """A fork answers as the source does, which goes on; or it is refused in words."""
    look = '\\builtin echo "$x" ${#big} ${#m[@]} $#; \\builtin type f; \\builtin pwd'
    with closing(begun("native", HOSTILE[number], "x2=1")) as env:
        try:
            (fork,) = env.fork(mode="state")
            with closing(fork):
                forked = fork.step(look)[0]
        except ForkError as error:
            forked = str(error)
            assert (
                "cannot be saved" in forked or "restored" in forked or "report its state" in forked
            )
        else:
            assert env.step(look)[0] == forked
        alive = "alive" in env.step("\\builtin echo alive")[0].splitlines()
        told = env.episode.turns[-1].info.keys() & {"gone", "restarted", "timed_out"}
        assert alive or told  # that its shell has ended, by its own doing
        assert "/tmp/x" not in [change.path for change in env.workspace.changes()]


def test_what_one_fork_does_no_other_sees() -> None:
    with closing(begun("native", "mkdir /srv/w; cd /srv/w; echo 1 > f")) as env:
        one, other = env.fork(2, mode="state")
        with closing(one), closing(other):
            one.step("rm f; echo one > g; chmod 700 .; sleep 999 &")
            other.step("echo two >> f; mkdir g; kill -9 -1")
            assert other.step("cat f; ls -d g")[0] == "1\ntwo\ng\n"
            assert env.step("ls; cat f; jobs; stat -c %a .")[0] == "f\n1\n755\n"
            assert one.step("ls; cat g")[0] == "g\none\n"


KILLED = """
import itertools, threading, intercode
env = intercode.make("bash", max_turns=9999)
env.reset()
env.step("cd /tmp; echo 1 > one; x=1")
print("begun", flush=True)
def play(fork):
    fork.step("echo $x; echo 2 > two; sleep 99 &")
for number in itertools.count():
    with env.snapshot(mode="state"):
        forks = env.fork(4)  # two of them rest
        threads = [threading.Thread(target=play, args=[fork]) for fork in forks[:2]]
        for thread in threads:
            thread.start()
        copy = env.workspace.snapshot()
        for thread in threads:
            thread.join()
        env.step(f"echo {number} > one")
        for fork in forks:
            fork.close()
"""
KILLS = int(os.environ.get("INTERCODE_SOAK_KILLS", "3"))


def test_nothing_is_left_of_hosts_that_are_killed() -> None:
    """Whether their forks start, run, rest, or are closed: at random moments."""
    moments = random.Random(17)
    mounted = held()["mounts"]
    for _ in range(KILLS):
        process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        time.sleep(moments.uniform(0, 0.4))  # allow sleep: it is killed at a random moment
        assert process.poll() is None
        with process.stdout:
            kill(process)  # and all that it has started ends, too
        assert held()["mounts"] == mounted
        sweep()
        assert not cgroups_of(process.pid)
        assert not [*(cache_root() / "snapshots").glob(f"{process.pid}-*")]
