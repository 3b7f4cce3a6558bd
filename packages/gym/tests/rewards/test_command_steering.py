"""What steers the tools that a verification runs, tool by tool, on every provider.

Each case has a verification, work that solves it, and a trick that has it pass unsolved: the first
time, but not in the copy in which the tools' settings are as before.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from intercode.envs.bash import BashEnv
from intercode.episode import Episode
from intercode.evaluate.validate import validate
from intercode.rewards.verification import CommandReward
from intercode.task import Dataset, Task
from intercode_sandbox import Limits, Provider
from waiting import PATIENCE

from .conftest import Grade


@dataclass(frozen=True)
class Case:
    verification: str
    trick: str
    honest: str = "echo done > answer"
    setup: str = "true"
    both: bool = True
    """Whether the work beside the trick counts: not where the trick spoils it, or says no to it."""


SAID = "grep -q done answer"
REPOSITORY = {
    "setup": "git init -q repo; cd repo; git config user.name me; git config user.email me@x;"
    " echo 1 > a; git add a; git commit -qm first; echo 2 > b",
    "verification": '[ -z "$(git -C repo status --porcelain)" ]',
    "honest": "cd repo; git add -A; git commit -qm second",
}
LIST = {
    "setup": "echo '[]' > list",
    "verification": "jq -e 'length == 3' list",
    "honest": "echo '[1, 2, 3]' > list",
}
PICTURE = {
    "verification": "file picture | grep -q PNG",
    "honest": "printf '\\211PNG\\r\\n\\032\\n\\0\\0\\0\\rIHDR\\0\\0\\0\\1' > picture",
}
MAGIC = "echo x > picture; printf '0\\tstring\\tx\\tPNG\\n' >"
QUITS = "vim -es answer -c 'g/done/cq 7' -c q; [ $? = 7 ]"
CASES = {
    "sqlite3": Case(
        setup="sqlite3 data.db 'create table t(x)'",
        verification="[ \"$(sqlite3 data.db 'select count(*) from t')\" = 2 ]",
        honest="sqlite3 data.db 'insert into t values (1), (2)'",
        trick="printf '.print 2\\n.output /dev/null\\n' > .sqliterc",
        both=False,
    ),
    "jq": Case(**LIST, both=False, trick="echo 'def length: 3;' > .jq"),
    "jq, another home": Case(
        "HOME=/home/dev jq -e 'length == 3' list",
        "rmdir /home/dev; mkdir w; ln -s /root/w /home/dev; echo 'def length: 3;' > w/.jq",
        honest=LIST["honest"],
        setup=f"{LIST['setup']}; mkdir /home/dev",
        both=False,
    ),
    "git": Case(**REPOSITORY, trick="git config --global status.showUntrackedFiles no"),
    "git, a program": Case(
        f"git -C repo status; {SAID}",
        "git config --global core.fsmonitor 'echo done > /root/answer; false'",
        setup=REPOSITORY["setup"],
    ),
    "git, a repository's": Case(
        **REPOSITORY, trick="git -C repo config status.showUntrackedFiles no"
    ),
    "git, a folder that another names": Case(
        **REPOSITORY,
        trick="mkdir h; cd repo/.git; mv config objects refs ../../h; echo ../../h > commondir;"
        " git -C .. config status.showUntrackedFiles no",
        both=False,
    ),
    "git, exclude": Case(**REPOSITORY, trick="echo b > repo/.git/info/exclude", both=False),
    "curl": Case(
        "curl -s file:///root/answer | grep -q done",
        "echo done > other; printf 'url = file:///root/other\\nnext\\n' > .curlrc",
    ),
    "file": Case(**PICTURE, both=False, trick=f"{MAGIC} .magic"),
    "file, /etc": Case(**PICTURE, both=False, trick=f"{MAGIC} /etc/magic"),
    "vim": Case(QUITS, "mkdir -p .vim/plugin; echo 'cq 7' > .vim/plugin/x.vim"),
    "vim, /var": Case(QUITS, "d=/var/lib/vim/addons/plugin; mkdir -p $d; echo 'cq 7' > $d/x.vim"),
    "vim, /var/lib": Case(
        QUITS,
        "d=/root/lib/vim/addons/plugin; mkdir -p $d; echo 'cq 7' > $d/x.vim; mv /var/lib old;"
        " ln -s /root/lib /var/lib",
    ),
    "wget": Case(
        "wget -q -t 1 http://localhost:1/; [ -e answer ]", "echo 'logfile = answer' > .wgetrc"
    ),
    "bash -l": Case(f"bash -lc '{SAID}'", "echo 'exit 0' | tee .bash_profile > /etc/profile"),
    "bash -i": Case(f"bash -ic '{SAID}'", "echo 'exit 0' > .bashrc"),
    "npm": Case(
        "cd p && npm run -s check",
        "echo 'script-shell=/usr/bin/true' > .npmrc",
        setup='mkdir p; echo \'{"scripts": {"check": "grep -q done ../answer"}}\' > p/package.json',
    ),
    "node": Case(
        f"node -e 'require(\"ok\")' || {SAID}", "mkdir .node_modules; touch .node_modules/ok.js"
    ),
    "hosts": Case(f"getent hosts a.example || {SAID}", "echo '127.0.0.1 a.example' >> /etc/hosts"),
    "accounts": Case(
        f"[ -e ~nobody/done ] || {SAID}",
        "mkdir h; touch h/done; sed -i 's|/nonexistent|/root/h|' /etc/passwd",
    ),
    "time": Case(
        f'[ "$(date -d @0 +%H)" = 07 ] || {SAID}',
        "ln -sf /usr/share/zoneinfo/Asia/Bangkok /etc/localtime",
    ),
    "terminals": Case(
        f'[ "$(TERM=mine tput cols)" = 42 ] || {SAID}',
        "printf 'mine,\\n cols#42,\\n' > t; tic -o .terminfo t",
    ),
}
PROGRAMS = {"time": "date", "hosts": "getent", "accounts": "bash", "terminals": "tic"}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, grade: Grade) -> Case:
    name = request.param
    program = PROGRAMS.get(name) or name.partition(",")[0].partition(" ")[0]
    if grade(Task("t", "q", verification=f"! command -v {program}")).value:
        pytest.skip(f"this machine has no {program}")
    return CASES[name]


def task_of(case: Case) -> Task:
    return Task("t", "q", setup=case.setup, verification=case.verification)


def test_settings_do_not_solve_a_task(grade: Grade, case: Case) -> None:
    score = grade(task_of(case), case.trick)
    assert score.value == 0.0
    # It passed before: the trick is one.
    assert score.detail["reason"].startswith("it fails with these files as before")


def test_an_episode_that_goes_on(grade_anywhere: Grade) -> None:
    case = CASES["bash -l"]
    score = grade_anywhere(task_of(case), case.trick, status="running")
    assert "/etc/profile" in score.detail["as_before"]
    assert grade_anywhere(task_of(case), case.trick, case.honest, status="running").value == 1.0


def test_work_counts(grade: Grade, case: Case) -> None:
    assert grade(task_of(case), "true").value == 0.0
    assert grade(task_of(case), case.honest).value == 1.0


def test_work_counts_whatever_settings_there_are(grade: Grade, case: Case) -> None:
    if case.both:
        assert grade(task_of(case), case.honest, case.trick).value == 1.0
        assert grade(task_of(case), case.trick, case.honest).value == 1.0


def test_what_the_setup_has_set_stays(grade_anywhere: Grade) -> None:
    """Also beside the agent's, and where the agent has taken it away."""
    task = Task(
        "t",
        "q",
        setup="echo 'def right: . == 3;' > .jq; mkdir .config; echo 1 > .config/x; chmod 600 .jq",
        verification="jq -e right answer && grep -q 1 .config/x && [ $(stat -c %a .jq) = 600 ]",
    )
    assert grade_anywhere(task, "echo 3 > answer; git config --global a.b c").value == 1.0
    assert grade_anywhere(task, "echo 2 > answer; echo 'def right: true;' > .jq").value == 0.0
    score = grade_anywhere(
        task, "echo 2 > answer; rm -r .jq .config; ln -s /tmp .config; mkdir .jq"
    )
    assert score.value == 0.0
    harmless = "; echo 2 >> .config/x; echo '# mine' >> .jq; mkdir -p .config/a/b"
    assert grade_anywhere(task, f"echo 3 > answer{harmless}").value == 1.0


EXPECTED = {
    "a file": ("/etc/hosts",),
    "a folder": ("/etc", "/root/.config"),
    "a pattern": ("/etc/h?sts", "/root/.con*/x"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_task_says_what_its_answer_changes(grade: Grade, name: str) -> None:
    task = Task(
        "t",
        "q",
        verification="getent hosts a.example && "
        + ("true" if name == "a file" else "grep -q 1 .config/x/y"),
    )
    answer = "echo '127.0.0.1 a.example' >> /etc/hosts; mkdir -p .config/x; echo 1 > .config/x/y"
    score = grade(task, answer)
    assert score.value == 0.0
    assert score.detail["as_before"][0] == "/etc/hosts"
    assert grade(replace(task, may_change=EXPECTED[name]), answer).value == 1.0
    other = replace(task, may_change=("/etc/h", "/etc/host", "/hosts", "/root", "/etc/*/x"))
    assert grade(other, answer).value == 0.0


def test_a_system_file_that_is_the_answer(grade_anywhere: Grade) -> None:
    task = Task("t", "q", verification="[ -e /etc/ld.so.preload ]")
    score = grade_anywhere(task, "touch /etc/ld.so.preload")
    assert (score.value, score.detail["tampered"]) == (0.0, ["/etc/ld.so.preload"])
    assert "may_change" in score.detail["reason"]
    assert (
        grade_anywhere(
            replace(task, may_change=("/etc/ld.so.*",)), "touch /etc/ld.so.preload"
        ).value
        == 1
    )


def test_settings_in_a_folder_that_nobody_may_write(grade_anywhere: Grade) -> None:
    make = "mkdir -p .config/tool/a; touch .config/tool/rc; chmod -R a-w .config"
    solved = Task("t", "q", verification=SAID)
    assert grade_anywhere(solved, f"{make}; echo done > answer").value == 1.0
    assert grade_anywhere(replace(solved, verification="[ -e .config/tool/rc ]"), make).value == 0.0


def test_settings_that_cannot_be_as_before(grade_anywhere: Grade) -> None:
    """Where their folder was is a file that names another one."""
    move = "cd repo; mv .git /root/g; echo 'gitdir: /root/g' > .git"
    task = Task("t", "q", setup=REPOSITORY["setup"], verification=REPOSITORY["verification"])
    score = grade_anywhere(task, f"{move}; git config status.showUntrackedFiles no")
    assert score.value == 0.0
    assert "/root/repo/.git/config" in score.detail["tampered"]


REPOSITORIES = {
    "in a folder of another name": (
        "true",
        "git init -q --separate-git-dir /root/g r; touch r/a; git -C r add a; git -C r -c"
        " user.name=me -c user.email=me@x commit -qm first; touch r/b; r=r",
    ),
    "in a submodule": (
        f"{REPOSITORY['setup']}; cd; git init -q r; cd r; git -c protocol.file.allow=always"
        " submodule --quiet add /root/repo s; touch s/b",
        "r=r/s",
    ),
}


@pytest.mark.parametrize("name", REPOSITORIES)
def test_settings_of_a_repository(grade: Grade, name: str) -> None:
    setup, action = REPOSITORIES[name]
    check = 'cd r; [ -e s ] && cd s; [ -z "$(git status --porcelain)" ] && git log > /dev/null'
    task = Task("t", "q", setup=setup, verification=check)
    score = grade(task, f"{action}; git -C $r config status.showUntrackedFiles no")
    assert "reason" in score.detail
    assert grade(task, f"{action}; rm $r/b").value == 1.0


CLOSED = {
    "bytes": "head -c 5G /dev/zero > full; truncate -s -65536 full",
    "bytes of no file": "fallocate -n -l 1020M full; head -c 5G /dev/zero > rest",
    "files": "mkdir f; perl -e 'for (1 .. 1e6) { open F, q(>), qq(f/$_) or last }'; rm f/9",
}


@pytest.mark.parametrize("what", CLOSED)
def test_a_full_disk_is_no_silence_of_a_tool(what: str) -> None:
    """A native one: Docker's has a limit on few machines."""
    check = "sort log > /tmp/sorted 2> /dev/null; ! grep -q FAIL /tmp/sorted"
    task = Task("t", "q", setup="seq 50000 > log; echo FAIL >> log", verification=check)
    limits = Limits(timeout=PATIENCE, files=3000)
    with closing(BashEnv(Dataset([task]), limits=limits)) as env:
        for action, reward, said in (
            (CLOSED[what], 0.0, "left no room"),
            ("true", 0.0, "exit_code"),
            ("sed -i /FAIL/d log", 1.0, "exit_code"),
        ):
            env.reset()
            env.step(action)
            assert env.step("submit")[1] == reward
            assert env.episode.score is not None
            assert said in str(env.episode.score.detail)


def test_a_repository_that_was_to_go(grade_anywhere: Grade) -> None:
    task = Task("t", "q", setup=REPOSITORY["setup"], verification="! test -e repo && test -e new")
    assert grade_anywhere(task, "rm -r repo; git init -q new").value == 1.0
    task = replace(task, verification="! test -e repo && git -C new log | grep -q first")
    assert grade_anywhere(task, "mv repo new").value == 1.0


def test_a_link_in_the_place_of_a_repository(grade_anywhere: Grade) -> None:
    task = Task("t", "q", setup=REPOSITORY["setup"], verification=REPOSITORY["verification"])
    for moved in ("repo", "repo/.git"):
        move = f"mv {moved} g; ln -s /root/g {moved}"
        trick = f"{move}; cd repo; git config status.showUntrackedFiles no"
        assert "reason" in grade_anywhere(task, trick).detail
        assert grade_anywhere(task, f"{trick}; git add b; git commit -qm second").value == 1.0


def test_files_beside_settings_are_none(grade_anywhere: Grade) -> None:
    made = "/home/a /var/lib/a /srv/.a a.d/.a .bash_history /srv/.b /opt/info .gitignore"
    answer = f"mkdir -p a.d /srv /opt; for f in {made}; do echo 1 > $f; done; git init -q ."
    task = Task("t", "q", verification=f"[ $(cat {made} | wc -l) = 8 ] && git rev-parse --git-dir")
    assert grade_anywhere(task, f"{answer}; git config --global a.b c").value == 1.0


def test_the_sandbox_is_left_as_it_was(provider: Provider) -> None:
    with closing(provider.start("host", Limits(timeout=PATIENCE))) as sandbox:
        sandbox.write_file(".x", b"1")
        before = sandbox.changes()
        reward = CommandReward(provider, lambda task: provider.start("host"))
        task = Task("t", "q", verification="python3 -c 'import json'; true")
        assert reward(task, Episode("t", "q", "bash", status="submitted"), sandbox).value == 1.0
        left = [one for one in sandbox.changes() if not one.path.startswith("/dev/shm/")]
        assert left == before  # but for Python's modules


def test_validation_says_what_to_do() -> None:
    task = Task("a", "q", gold=("echo 1 > .netrc",), verification="grep -q 1 .netrc")
    for may_change, problems in (((), 1), (("/root/.netrc",), 0)):
        tasks = Dataset([replace(task, may_change=may_change)])
        found = validate(tasks, lambda tasks=tasks: BashEnv(tasks), timeout=PATIENCE)  # type: ignore[misc]
        assert len(found.problems) == problems
        assert all("may_change" in problem.problem for problem in found.problems)
