"""Random actions in every environment, forked at every turn: nobody can tell the forks apart."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import intercode
from intercode.envs.base import InterCodeEnv
from intercode.errors import ForkError
from intercode.task import Dataset, Task

BASH = Dataset(
    [
        Task(
            "tree",
            "Make it so.",
            ("echo 1 > /srv/data/one; rm /srv/data/old; echo done",),
            setup="mkdir -p /srv/data/deep/er; echo old > /srv/data/old; ln -s old /srv/data/link",
        )
    ],
    "trees",
)
STATE = (
    "x=1; y='a  b'; export z=$'line\\nbreak'; declare -i n=3; declare -u up=abc; n+=4",
    "arr=(a 'b c' [7]=d); declare -A map=([k]=v ['k 2']=w); declare -n ref=arr; ref[2]=new",
    "readonly fixed=1; declare -xr both=2; export -n PATH; unset HOME; export LC_ALL=C",
    "f() { echo \"f $1 $x\"; }; export -f f; g() { echo g; }; readonly -f g; bash -c 'f 1'",
    "alias ll='echo ll' p='f 2'; unalias p; shopt -s extglob nullglob; shopt -u sourcepath",
    "trap 'echo usr' USR1; trap '' HUP; trap 'echo err' ERR; kill -USR1 $$; false",
    "trap 'seen=$BASH_COMMAND' DEBUG; PROMPT_COMMAND='echo prompt'; shopt -s extdebug",
    "set -u; set -o pipefail -f; set -- 'p 1' p2; false | true",
    "set -e; true",
    "set -x; : traced; set +v",
    "set -o posix; set -o allexport; later=1",
    "set -C -k; set -o monitor",
    "umask 027; ulimit -S -n 600; ulimit -c 0; ulimit -H -f 5000; ulimit -s 4096",
    "cd /srv/data/deep; pushd er >/dev/null; pushd -n /usr >/dev/null; dirs",
    "cd /srv/data/link/.. ; cd /; cd /tmp; cd - >/dev/null; unset OLDPWD",
    "mkdir -p '/srv/a b'; cd '/srv/a b'; rmdir '/srv/a b'; pwd",
    "hash -p /bin/ls mine; mine / >/dev/null; enable -n test; complete -W 'a b' mine",
    "big=$(head -c 200000 /dev/zero | tr '\\0' x); echo ${#big}",
    "declare() { echo no; }; trap() { echo no; }; set() { echo no; }; cd() { echo no; }",
    "LC_ALL=en_US.ISO-8859-1; eval $'\\xe4=5'; odd=$'\\xff\\xfe'; echo \"$odd\"",
    "while getopts ab: o -a -b c; do echo $o; done; RANDOM=5; SECONDS=1000",
    "local_() { local x=2; return 3; }; local_; declare -t traced; declare unset_",
    "unset -f f; unset x arr; unset RANDOM; RANDOM=7; echo $RANDOM",
    "exec 7</etc/passwd; read line <&7; echo $line",
    "exec >/tmp/out 2>&1; echo away",
    "sleep 999 & echo begun",
    "true & wait $!; echo $?",
    "exit 3",
    "coproc cat; echo ${COPROC_PID:+one}",
)
FILES = (
    "echo 1 > /srv/data/one; rm -f /srv/data/old; echo done",
    "rm -rf /srv/data/deep; mkdir -p /srv/data/deep; touch /srv/data/deep/new",
    "chmod 700 /srv/data; chmod u+s /srv/data/old 2>/dev/null; ln -s x /srv/sym; mkfifo /srv/pipe",
    "for i in {1..30}; do echo $i > /tmp/$i; done; ln /tmp/1 /tmp/hard; rm /tmp/2",
    "rm -rf /etc/apt /etc/passwd; echo x >> /etc/hosts; mv /srv/data /srv/moved",
    "echo shm > /dev/shm/x; echo $'odd\\nname' > $'/tmp/odd\\nname'; truncate -s 1M /tmp/hole",
    "cat /srv/data/* /tmp/1 /dev/shm/x 2>/dev/null; ls -a /tmp /srv",
)
LOOK = (
    "{ \\builtin echo $-; \\builtin set +x; } 2>/dev/null;"
    "\\builtin declare -p | \\grep -avE '^declare -\\S+ (BASH|EPOCH|FUNCNAME|GROUPS|HISTCMD|LINENO|"
    "PIPESTATUS|PPID|RANDOM|SECONDS|SRANDOM|COMP_WORDBREAKS|COLUMNS|LINES|seen|_|DIRSTACK)';"
    "\\builtin declare -f; \\builtin declare -F; \\builtin alias; \\builtin trap; \\builtin umask;"
    '\\builtin shopt; \\builtin set -o; \\builtin pwd; \\builtin dirs; \\builtin echo "$@";'
    "\\builtin ulimit -Sa; \\builtin ulimit -Ha; \\builtin enable -n; \\builtin hash -l;"
    "\\builtin complete -p; \\builtin echo $((SECONDS > 999)); ll; f; p"
)
ACTIONS: dict[str, tuple[str, ...]] = {
    "bash": (*STATE, *FILES),
    "ctf": (*STATE[:6], *FILES[:3], "ls -a; cat *", "submit flag{no}"),
    "swe": (*FILES[:4], "git status --short; ls", "echo x >> README.md; git add -A", *STATE[:3]),
    "python": (
        "import os; x = [1]; print(x)",
        "x.append(len(x)); print(x)",
        "open('new', 'a').write('1'); print(open('new').read())",
        "def f(n):\n    return n + len(x)\n\nprint(f(1))",
        "1 / 0",
        "def gen():\n    yield from range(9)\n\nit = gen(); print(next(it))",
        "print(next(it))",
    ),
    "sql": (
        "SELECT 1",
        "CREATE TABLE IF NOT EXISTS t (a INTEGER); INSERT INTO t VALUES (1)",
        "SELECT count(*), sum(a) FROM t",
        "UPDATE t SET a = a + 1",
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "CREATE TEMP TABLE IF NOT EXISTS own AS SELECT 5 AS five",
        "SELECT * FROM own",
        "DELETE FROM t",
    ),
}


def played(env: InterCodeEnv[Any], actions: list[str]) -> list[tuple[Any, ...]]:
    """Take actions; return all that is to be seen of them."""
    seen = []
    for action in actions:
        observation, reward, ended, _, info = env.step(action)
        seen.append((observation, info["ok"], info.get("exit_code"), reward))
        assert not ended
    return seen


def ended(env: InterCodeEnv[Any]) -> tuple[Any, ...]:
    """End an episode; return what is left of it, and its score."""
    changes = getattr(env.workspace, "changes", lambda: None)()
    _, reward, *_ = env.step("submit")
    assert env.episode.score is not None
    return changes, reward, dict(env.episode.score.parts)


def scripts(actions: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(actions), min_size=1, max_size=4)


def check(script: list[str], make: Any) -> list[str]:
    """Play a script, with a snapshot after each turn, and from each snapshot the rest of it."""
    plain, source = make(), make()
    kinds = []
    try:
        for env in (plain, source):
            env.reset(seed=0, options={"task_id": source.dataset[0].task_id})
        expected = played(plain, script)
        snapshots = []
        for number, action in enumerate(script):
            assert played(source, [action]) == expected[number : number + 1], action
            snapshots.append(source.snapshot())
        forks = []
        for number, snapshot in enumerate(snapshots, 1):
            (fork,) = source.fork() if number == len(script) else [make()]
            if number < len(script):
                fork.restore(snapshot)
            forks.append(fork)
            kinds.append(snapshot.mode)
            assert played(fork, script[number:]) == expected[number:], number
        end = ended(plain)
        for fork in forks:
            assert ended(fork) == end
        assert ended(source) == end
    finally:
        for env in (plain, source, *locals().get("forks", [])):
            env.close()
    return kinds


def properties(examples: int) -> Any:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@properties(12)
@given(scripts(ACTIONS["bash"]))
def test_bash(script: list[str]) -> None:
    check([*script, LOOK], lambda: intercode.make("bash", data=BASH))


@pytest.mark.parametrize("env", ["ctf", "swe", "python", "sql"])
def test_other_environments(env: str) -> None:
    @properties(4)
    @given(scripts(ACTIONS[env]))
    def run(script: list[str]) -> None:
        check(script, lambda: intercode.make(env))

    run()


@pytest.mark.parametrize("number", range(len(STATE)))
def test_each_part_of_a_shells_state(number: int) -> None:
    kinds = check([STATE[number], LOOK], lambda: intercode.make("bash", data=BASH))
    assert kinds


def test_the_source_keeps_what_a_lossy_snapshot_leaves_out() -> None:
    with closing(intercode.make("bash", data=BASH)) as env:
        env.reset()
        env.step("cd /tmp; echo 1 > one; sleep 999 & exec 7< one; job=$!")
        with pytest.raises(ForkError, match=r"\(sleep\).*descriptor 7.*/tmp/one"):
            env.snapshot(mode="state")
        (fork,) = env.fork(mode="state", lossy=True)
        with closing(fork):
            look = "jobs | wc -l; kill -0 $job && read line <&7; echo $line; pwd; ls"
            observation, *_, info = fork.step(look)
            assert observation.startswith("0\n") and observation.endswith("\n/tmp\none\n")
            assert [told.split()[-1] for told in info["lost"]] == ["(sleep)", "/tmp/one"]
            assert fork.episode.metadata["lost"] == info["lost"]
        observation, *_, info = env.step(look)
        assert observation == "1\n1\n/tmp\none\n"
        assert "lost" not in info
        assert env.snapshot().mode == "replay"
