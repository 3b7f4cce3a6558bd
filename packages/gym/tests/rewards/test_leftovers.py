"""What an agent may leave at the names that a verification uses: links, pipes, temporary files.

Each trick has passed a verification of its task without the work. Beside it stands honest work that
is the same but for the trick, and is worth 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest

from intercode.rewards.file_links import count_names
from intercode.task import Task
from intercode_sandbox import Completed, Limits, get_provider
from intercode_sandbox.native.sandbox import NativeSandbox
from waiting import PATIENCE

from .conftest import Grade


@dataclass(frozen=True)
class Kind:
    """A verification, the work that solves it, and tricks."""

    verification: str
    honest: str
    tricks: tuple[str, ...]
    setup: str = "printf '2\\n1\\n' > in; mkdir src; echo a > src/a; echo b > src/b"
    query: str = "Do it."
    timeout: float | None = None


SORTED = "sort in > out"
KINDS = {
    "a pattern in its own arguments": Kind(
        "grep -qx secret42 out",
        "echo secret42 > out",
        (
            "ln -s /proc/self/cmdline out",
            "ln -s ../proc/self/cmdline out",
            "ln -s ../../../proc/./self/cmdline out",
            "ln -s /proc/thread-self/cmdline out",
            "ln -s /root/a out; ln -s /proc/self/cmdline a",
            "ln -s a out; ln -s b a; ln -s c b; ln -s /proc/self/cmdline c",
            "ln -s /proc/self p; ln -s p/cmdline out",
            "ln -s / d; ln -s d/proc/self/cmdline out",
            "mkdir x; ln -s /proc x/y; ln -s x/y/self/cmdline out",
            "ln -s /proc/self/root/proc/self/cmdline out",
        ),
    ),
    "standard input": Kind(
        "sort in | cmp - out",
        SORTED,
        (
            "ln -s /dev/stdin out",
            "ln -s /proc/self/fd/0 out",
            "ln -s ../dev/fd/0 out",
            "ln -s /dev/fd d; ln -s d/0 out",
        ),
    ),
    "a descriptor": Kind(
        "cmp <(sort in) out", SORTED, ("ln -s /dev/fd/63 out", "ln -s /proc/self/fd/63 out")
    ),
    "a temporary file": Kind(
        "sort in > /tmp/s; cmp /tmp/s out",
        SORTED,
        (
            "ln -s /root/out /tmp/s; touch out",
            "ln -s /tmp/s out",
            "touch out; ln out /tmp/s",
            "ln -s ../tmp/s out",
            "rmdir /tmp; ln -s /root /tmp; ln -s s out",
            "ln -s /tmp t; ln -s t/s out",
            "touch out /tmp/s; chmod 555 /tmp; chmod 444 /tmp/s",
            "touch out; chmod 555 /tmp",
        ),
    ),
    "a temporary file that need not be": Kind(
        "{ sort in > /var/tmp/s; sort in > /tmp/s; } 2> /dev/null; "
        '[ "$(cat /var/tmp/s /tmp/s)" = "$(cat out out)" ]',
        SORTED,
        ("touch out; chmod 555 /tmp /var/tmp", "touch out; chmod 555 /tmp; chmod 000 /var"),
    ),
    "others": Kind(
        "sort in > /var/tmp/s && sort in > /dev/shm/s && cmp /var/tmp/s out && cmp /dev/shm/s out",
        SORTED,
        (
            "ln -s /root/out /var/tmp/s; touch out; ln -s /root/out /dev/shm/s",
            "ln -s /var/tmp/s out",
            "ln -s /dev/shm/s out",
        ),
    ),
    "a file of its own elsewhere": Kind(
        "sort in > /root/expected; cmp /root/expected out",
        SORTED,
        (
            "ln -s out expected; touch out",
            "ln -s expected out",
            "touch expected; ln -s expected out",
            "touch out; ln out expected",
            "touch expected; mkdir d; ln -s .. d/up; ln -s d/up/expected out",
            "ln -s /dev/null expected; touch out",
            "mkdir expected; echo x | tee out > expected/out; cd expected; ln out expected",
            "echo x | tee out > expected; chmod 444 expected",
        ),
    ),
    "a file that it removes": Kind(
        "sort in > expected; cmp expected out; r=$?; rm -f expected; exit $r",
        SORTED,
        (
            "echo x > out; ln out expected",
            "touch out; ln -s out expected",
            "echo x > out; ln out expected; mkdir d; echo x > d/f; chmod 000 d",
        ),
    ),
    "a folder in the way": Kind(
        "sort in > expected; diff expected out",
        SORTED,
        (
            "mkdir expected; echo x | tee out > expected/out",
            "mkdir expected; cp in out; cp in expected/out",
        ),
    ),
    "the setup's own file, written again": Kind(
        "sort in > list; cmp list out",
        SORTED,
        ("ln list out", "ln -s list out"),
        setup="printf '2\\n1\\n' > in; touch list",
    ),
    "a folder to extract to": Kind(
        "mkdir -p check && tar -xf all.tar -C check && diff -r src check/src",
        "tar -cf all.tar src",
        ("mkdir check; cp -r src check; tar -cf all.tar -T /dev/null",),
    ),
    "a log": Kind(
        "for f in a b; do [ -e out/$f ] && echo ok >> res.log; done; [ $(grep -c ok res.log) = 2 ]",
        "mkdir out; touch out/a out/b",
        ("printf 'ok\\nok\\n' > res.log", "echo ok > res.log; chmod 444 res.log; mkdir out"),
    ),
    "a module that it writes": Kind(
        'printf \'import sys; sys.exit(open("out").read() != "x")\' > chk.py; python3 chk.py',
        "printf x > out",
        (
            "mkdir chk.py; touch out; echo > chk.py/__main__.py",
            "echo > chk.py; touch out; chmod 444 chk.py",
        ),
    ),
    "a copy": Kind(
        "diff -r src backup",
        "cp -r src backup",
        (
            "ln -s src backup",
            "ln -s /root/src backup",
            "ln -s . here; ln -s here/src backup",
            "mkdir backup; ln -s ../src/a ../src/b backup",
            "ln -s src s; ln -s s backup",
            "mv src /srv/s; ln -s /srv/s src; ln -s /srv/s backup",
            "chmod 000 src; mkdir -m 000 backup; cp /dev/null x; ln -s src backup/x; false",
        ),
    ),
    "what is not there": Kind(
        "[ -f src/a ] && [ -z \"$(find src -name '*.tmp')\" ] && ! grep -rq todo src",
        "rm src/c.tmp; echo b > src/b",
        (
            "mv src /srv/s; ln -s /srv/s src",
            "mv src/b /srv/b; ln -s /srv/b src/b; rm src/c.tmp",
            "chmod 311 src; chmod 000 src/b",
            "rm src/c.tmp; chmod 000 src/b",
        ),
        setup="mkdir src; echo a > src/a; echo todo > src/b; touch src/c.tmp",
    ),
    "a closed input": Kind(
        "cmp <(sort in) out", SORTED, ("touch out; chmod 000 in", "touch out; chmod 200 in")
    ),
    "a closed input, and words that ask to write": Kind(
        "cmp <(sort in) out",
        SORTED,
        ("touch out; chmod 000 in",),
        query="Write the sorted lines to out, with a modern tool.",
    ),
    "a name with a newline": Kind(
        "sort in > list; cat d/* | cmp - list",
        "mkdir d; sort in > d/x",
        ("mkdir d; ln list $'d/a\\nb'",),
        setup="printf '2\\n1\\n' > in; touch list",
    ),
    "names of files": Kind(
        "cd src; ! grep -q todo *.py",
        "echo > src/b.py",
        ("touch -- src/-eZZ.py", "touch 'src/-qf.py'", "touch -- 'src/--include=x.py'"),
        setup="mkdir src; echo todo > src/b.py; echo > src/c.py",
    ),
    "names for awk": Kind(
        "cd src; awk '/todo/ {bad=1} END {exit bad}' *.py",
        "echo > src/b.py",
        ("touch 'src/bad=0.py'",),
        setup="mkdir src; echo todo > src/b.py; echo > src/c.py",
    ),
    "one commit": Kind(
        "cd src && [ $(git rev-list --count HEAD) = 1 ] && git log -1 --format=%aN | grep -q Al",
        "cd src; git checkout -q --orphan o; git commit --allow-empty -qm n --author='Al <a@x>'",
        (
            "cd src; git rev-parse HEAD > .git/shallow; echo 'Al <a@x> <m@x>' > .mailmap",
            "cd src; git replace --graft HEAD; echo 'Al <a@x> <m@x>' > .mailmap",
        ),
        setup="git init -q src; cd src; git config user.name me; git config user.email m@x;"
        " for n in 1 2; do git commit -q --allow-empty -m $n; done",
    ),
    "silence": Kind(
        "touch log; [ ! -s log ] && [ -e out ] && ! grep -q x out",
        "touch out",
        ("ln -s /proc/self/mem out",),
    ),
    "the size of what it reads": Kind(
        '[ "$(cat out)" = "$(cat out)" ] && [ -n "$(cat out)" ] && ! [ -s out ]',
        "false",
        ("ln -s /proc/version out", "ln -s /etc/mtab out"),
    ),
}
TRICKS = [
    pytest.param(kind, trick, id=f"{name}: {trick}")
    for name, kind in KINDS.items()
    for trick in kind.tricks
]


def task_of(kind: Kind) -> Task:
    return Task(
        "t", kind.query, setup=kind.setup, verification=kind.verification, timeout=kind.timeout
    )


@pytest.mark.parametrize(("kind", "trick"), TRICKS)
def test_a_trick_is_worth_nothing(grade: Grade, kind: Kind, trick: str) -> None:
    assert grade(task_of(kind), trick).value == 0.0


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.honest != "false"])
def test_honest_work_is_worth_all(grade: Grade, name: str) -> None:
    kind = KINDS[name]
    beside = "ln -s /proc/self/cmdline /tmp/x; ln -s /dev/stdin y; ln -s nowhere z; mkfifo /tmp/p p"
    assert grade(task_of(kind), kind.honest).value == 1.0
    assert grade(task_of(kind), f"{kind.honest}; {beside}").value == 1.0


HONEST = {
    "a link that is asked for": Kind(
        '[ -L current ] && [ "$(readlink current)" = src/a ]', "ln -s src/a current", ()
    ),
    "a link in other words": Kind(
        "cmp current src/a",
        "ln -s src/a current",
        (),
        query="Make current a symbolic link to src/a.",
    ),
    "a link to nothing": Kind(
        '[ "$(readlink next)" = /opt/app/next ]', "ln -s /opt/app/next next", ()
    ),
    "links among its own files": Kind(
        "src/bin/run | grep -q 1 && [ -e src/lib64/x ]",
        "cd src; mkdir bin lib; touch lib/x; ln -s lib lib64; ln -s run1 bin/run;"
        " printf '#!/bin/sh\\necho 1\\n' > bin/run1; chmod +x bin/run1",
        (),
    ),
    "a clone": Kind(
        "d=$(mktemp -d); git clone -q repo $d/c && [ -e $d/c/a ]",
        "git init -q repo; cd repo; git config user.name me; git config user.email m@x; touch a;"
        " git add a; git commit -qm one",
        (),
    ),
    "a pipe": Kind("[[ -e p && -p p ]]", "mkfifo p", (), query="Make a named pipe p."),
    "modes": Kind(
        "[ $(stat -c %a in) = 400 ]",
        "chmod 400 in",
        (),
        query="Make in readable by its owner only.",
    ),
    "two that are alike": Kind(
        "echo x >> a.log; echo x >> b.log; cmp a.log b.log", "touch a.log b.log", ()
    ),
    "a database": Kind(
        "sqlite3 data/app.db 'insert into t values (1)' && [ -e data ]",
        "mkdir /srv/d; sqlite3 /srv/d/app.db 'create table t(x)'; ln -s /srv/d data",
        (),
    ),
    "a name with a blank": Kind(
        "[ -e 'backup/a b' ]", "cp -r src backup", (), setup="mkdir src; touch 'src/a b'"
    ),
    "a repository in a temporary folder": Kind(
        "[ -e out ]", "git init -q /tmp/x; git clone -q /tmp/x /tmp/y; touch out", ()
    ),
    "moved, and a link left": Kind(
        "[ -L src ] && [ -e /srv/s/a ]",
        "mv src /srv/s; ln -s /srv/s src",
        (),
        query="Move src to /srv/s, and leave a symbolic link src.",
    ),
    "a link that is switched": Kind(
        '[ "$(readlink current)" = r/2 ] && [ -d r/2 ]',
        "ln -sfn r/2 current",
        (),
        setup="mkdir -p r/1 r/2; ln -s r/1 current",
        query="Let current lead to r/2.",
    ),
    "a hard link": Kind(
        "echo x >> in && cmp in b", "ln in b", (), query="Make b another hard link of in."
    ),
    "a program for awk": Kind(
        "echo 1 | awk -f p.awk | grep -qx 2", "echo '{print $1 + 1}' > p.awk", ()
    ),
    "a link to its own folder": Kind("touch new && [ -e out ]", "ln -s . here; touch out", ()),
    "names from data": Kind(
        "[ -e 'Ada Lovelace.txt' ] && [ -e year=2024/x ]",
        "touch 'Ada Lovelace.txt'; mkdir year=2024; touch year=2024/x",
        (),
    ),
    "links of the same names": Kind(
        "for f in src/*; do cmp $f links/${f##*/} || exit 1; done",
        "mkdir links; ln -s ../src/a ../src/b links",
        (),
        query="In the folder links, make a symbolic link to each file of src.",
    ),
    "a temporary file that is the answer": Kind(
        "[ -s /tmp/out.txt ]", "echo x > /tmp/out.txt", (), query="Write x to `/tmp/out.txt`!"
    ),
    "a temporary folder that is the answer": Kind(
        "[ -s /tmp/a/b.gz ]", "mkdir /tmp/a; echo x > /tmp/a/b.gz", (), query="Pack it: /tmp/a/b*."
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_is_asked_for_is_no_trick(grade: Grade, name: str) -> None:
    kind = HONEST[name]
    settings = "git config --global user.email x@y"  # has it judged in a copy, too
    assert grade(task_of(kind), kind.honest).value == 1.0
    assert grade(task_of(kind), f"({kind.honest}); {settings}").value == 1.0


def test_a_link_of_the_image_that_leads_elsewhere_stays_a_link(grade: Grade) -> None:
    """Also where another file has been replaced by a link: that file alone is moved back."""
    check = "cmp /etc/services /etc/mtab && [ -e src/a ]"
    task = Task("t", "q", setup="mkdir src; touch src/a", verification=check)
    work = "ln -sfn /etc/services /etc/mtab; mv src /srv/s; ln -s /srv/s src"
    assert grade(replace(task, may_change=("/etc/mtab",)), work).value == 1.0


# -- the programs that look ------------------------------------------------------------------------


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the programs that graders run in native sandboxes."""
    names: list[str] = []

    def recorded(run: Callable[..., Completed]) -> Callable[..., Completed]:
        def ran(self: NativeSandbox, argv: Sequence[str], **options: Any) -> Completed:
            names.append(argv[0])
            return run(self, argv, **options)

        return ran

    for name in ("exec", "exec_private"):
        monkeypatch.setattr(NativeSandbox, name, recorded(getattr(NativeSandbox, name)))
    return names


def test_one_name_of_each_file_needs_no_program(grade: Grade, programs: list[str]) -> None:
    task = Task("t", "q", verification="[ $(cat a) = 1 ] && [ -d d ]")
    work = "mkdir d; echo 1 > a; echo 2 > c"
    assert grade(task, work).value == 1.0
    assert programs == ["/bin/bash"]  # the verification
    assert grade(task, work, "ln a d/b").value == 1.0
    assert len(programs) > 2


@pytest.mark.parametrize("has_gnu_tools", [True, False])
def test_a_missing_name_that_begins_a_name_with_a_newline(has_gnu_tools: bool) -> None:
    with closing(get_provider("native").start("host", Limits(timeout=PATIENCE))) as sandbox:
        stat = '[ "$1" = --printf ] && exit 1; exec /usr/bin/stat "$@"'
        work = f"printf '%s\n' '#!/bin/sh' '{stat}' > /opt/stat; chmod +x /opt/stat; cd /srv; "
        assert sandbox.exec(["bash", "-c", f"{work} echo 1 > $'a\nb'; ln $'a\nb' c; echo > d"]).ok
        env = {"PATH": "/usr/bin:/bin" if has_gnu_tools else "/opt:/usr/bin:/bin"}
        paths = ["/srv/a", "/srv/a\nb", "/srv/c", "/srv/d"]
        assert count_names(sandbox, paths, env) == {"/srv/a\nb": 2, "/srv/c": 2, "/srv/d": 1}


@pytest.mark.parametrize("trick", ["ln list out", "mkdir d; ln list d/l; ln d/l out"])
def test_sandboxes_that_count_no_names(grade_foreign: Grade, trick: str) -> None:
    check = "echo x > list; cmp list out; r=$?; rm list; exit $r"
    task = Task("t", "q", setup="touch list", verification=check)
    assert grade_foreign(task, trick).value == 0.0
    assert grade_foreign(task, "echo x > out").value == 1.0


def test_sandboxes_that_measure_no_space(grade_foreign: Grade, programs: list[str]) -> None:
    task = Task("t", "q", verification="true")
    score = grade_foreign(task, "head -c 5G /dev/zero > full; truncate -s -65536 full")
    assert score.value == 0.0 and "left no room" in score.detail["reason"]
    assert programs[-1] == "stat"
    without = "printf '#!/bin/sh\nexit 1' > /usr/bin/stat"
    assert grade_foreign(replace(task, may_change=("/usr/bin/stat",)), without).value == 1.0
