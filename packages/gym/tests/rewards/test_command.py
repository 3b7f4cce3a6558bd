"""Verification in a real sandbox, with everything that an agent may do to steer it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from intercode.episode import Episode, Status
from intercode.errors import OutputLimitError, SandboxError, TaskError
from intercode.interpreters.bash import BashInterpreter
from intercode.rewards.verification import OPEN_PATHS, SYSTEM_PATHS, CommandReward
from intercode.task import Task
from intercode_sandbox import Limits, SandboxBackend, get_provider
from sandbox import rootfs
from waiting import PATIENCE

SOLVED = "echo done > answer"
TASK = Task("t", "Write 'done' to answer.", verification='test "$(cat answer)" = done')


def start(task: Task) -> SandboxBackend:
    sandbox = get_provider().start(task.image or "host", Limits(timeout=PATIENCE))
    if task.setup:
        assert sandbox.exec(["/bin/bash", "-c", task.setup]).ok
    return sandbox


REWARD = CommandReward(get_provider(), start)


@pytest.fixture
def sandbox() -> Iterator[SandboxBackend]:
    sandbox = start(TASK)
    yield sandbox
    sandbox.close()


def act(
    sandbox: SandboxBackend, *actions: str, task: Task = TASK, status: Status = "submitted"
) -> float:
    shell = BashInterpreter(sandbox)
    for action in actions:
        shell.execute(action)
    value = REWARD(task, Episode("t", "q", "bash", status=status), sandbox).value
    shell.close()
    return value


def test_solved_or_not(sandbox: SandboxBackend) -> None:
    assert act(sandbox) == 0.0
    assert act(sandbox, SOLVED) == 1.0


def test_a_verification_longer_than_an_argument_judges(sandbox: SandboxBackend) -> None:
    task = replace(TASK, verification=f"# {'x' * 140_000}\n{TASK.verification}")
    assert act(sandbox, task=task) == 0.0
    assert act(sandbox, SOLVED, task=task) == 1.0


# Each tries to have an unsolved task pass.
CHEATS = {
    "function": "test() { true; }; cat() { echo done; }; export -f test cat",
    "alias": "shopt -s expand_aliases; alias test=true cat='echo done'",
    "PATH": "mkdir bin; printf '#!/bin/sh\\necho done\\n' > bin/cat; chmod +x bin/cat;"
    " export PATH=$PWD/bin",
    "local bin": "mkdir -p /usr/local/bin; printf '#!/bin/sh\\necho done\\n' > /usr/local/bin/cat;"
    " chmod +x /usr/local/bin/cat",
    "BASH_ENV": "echo 'exit 0' > .x; export BASH_ENV=$PWD/.x ENV=$PWD/.x",
    "start-up files": "for f in .bashrc .profile .bash_profile .bash_logout /etc/profile"
    " /etc/bash.bashrc; do echo 'exit 0' > $f; done",
    "exit trap": "trap 'exit 0' EXIT",
    "shell options": "set -n; export SHELLOPTS=noexec",
    "preload": "echo /root/x.so > /etc/ld.so.preload",
    "bin replaced": "rm /bin; mkdir /bin; cp /usr/bin/true /bin/bash",
    "alternatives": "rm -rf /etc/alternatives; mkdir /etc/alternatives",
    "directory gone": "cd /; rm -rf /root",
    "directory is a file": "cd /; rm -rf /root; touch /root",
    "answer is a pipe": "mkfifo answer",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_are_worth_nothing(sandbox: SandboxBackend, cheat: str) -> None:
    hasty = replace(TASK, timeout=0.3)  # allow limit: a pipe that nobody writes to is read from
    task = hasty if cheat == "answer is a pipe" else TASK
    assert act(sandbox, CHEATS[cheat], task=task) == 0.0


HARMLESS = [
    name
    for name in CHEATS
    if name
    not in (
        "preload",
        "bin replaced",
        "alternatives",
        "directory gone",
        "directory is a file",
        "answer is a pipe",
    )
]


@pytest.mark.parametrize("name", HARMLESS)
def test_what_cannot_steer_it_does_not_matter(sandbox: SandboxBackend, name: str) -> None:
    assert act(sandbox, SOLVED, CHEATS[name]) == 1.0


def test_system_files_forfeit_the_verification(sandbox: SandboxBackend) -> None:
    shell = BashInterpreter(sandbox)
    shell.execute(f"{SOLVED}; touch /etc/ld.so.preload")
    score = REWARD(TASK, Episode("t", "q", "bash", status="submitted"), sandbox)
    assert score.value == 0.0
    assert score.detail["tampered"] == ["/etc/ld.so.preload"]
    shell.close()


def test_the_setup_may_change_system_files() -> None:
    task = Task("t", "q", setup="touch /etc/ld.so.preload", verification=TASK.verification)
    with_setup = start(task)
    try:
        assert act(with_setup, SOLVED, task=task) == 1.0
        assert act(with_setup, "rm /etc/ld.so.preload", task=task) == 1.0  # as in the image
        assert act(with_setup, "echo x > /etc/ld.so.preload", task=task) == 0.0
    finally:
        with_setup.close()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One with programs of its own, and which may be written to everywhere."""
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    files = dict.fromkeys(("usr/local/bin/own", "opt/tool/bin/own"), "#!/bin/sh\nexit 1\n")
    programs = rootfs.PROGRAMS + " bash xargs tar"
    return f"scratch+{rootfs.write(folder / 'r.tar', programs, files)}"


NEW = "mkdir -p {0}; printf '#!/bin/sh\\nexit {2}\\n' > {0}/{1}; chmod 755 {0}/{1}"
BIN, SBIN = "/usr/local/bin", "/usr/local/sbin"


@pytest.mark.parametrize("program", ["own", "/bin/check", f"{BIN}/check", f"{SBIN}/check"])
@pytest.mark.parametrize("folder", [BIN, SBIN])
@pytest.mark.parametrize("gone", ["", "rm {}", "rm -r /usr/local/bin", "mv {} /tmp"])
def test_no_other_program_takes_the_place(image: str, program: str, folder: str, gone: str) -> None:
    """Of one of the image's, or of one that the task's setup has made."""
    place, _, name = program.rpartition("/")
    setup = NEW.format(place, name, 1) if place else None
    task = Task("t", "q", image=image, setup=setup, verification=name)
    with closing(start(task)) as prepared:
        assert act(prepared, task=task) == 0.0
        cheat = gone.format(program if place else f"{BIN}/{name}")
        assert act(prepared, cheat, NEW.format(folder, name, 0), task=task) == 0.0


def test_a_program_in_opt(image: str) -> None:
    """Of the image's, and beside it; but a folder of the agent's there is the agent's work."""
    old, new = "/opt/tool/bin", "/opt/new/bin"
    for place, name, value in [(old, "own", 0.0), (old, "other", 0.0), (new, "own", 1.0)]:
        task = Task("t", "q", image=image, verification=f"{place}/{name}")
        with closing(start(task)) as prepared:
            assert act(prepared, NEW.format(place, name, 0), task=task) == value


def test_new_programs_are_no_offence(image: str) -> None:
    task = Task("t", "q", image=image, setup=NEW.format("/bin", "old", 0), verification="new; old")
    with closing(start(task)) as prepared:
        assert act(prepared, NEW.format(BIN, "new", 0), task=task) == 1.0
        assert act(prepared, "rm /bin/old", task=task) == 0.0  # there is none


def test_python_takes_no_module_from_the_working_directory(sandbox: SandboxBackend) -> None:
    check = 'python3 -c \'import json; json.loads(open("answer").read())["ok"]\''
    task = Task("t", "q", verification=check)
    assert (
        act(sandbox, "echo 'loads = lambda text: {\"ok\": 1}' > json.py; touch answer", task=task)
        == 0.0
    )
    assert act(sandbox, "echo '{\"ok\": 1}' > answer", task=task) == 1.0


def test_background_processes_are_gone(sandbox: SandboxBackend) -> None:
    task = Task("t", "q", verification="rm -f flag; sleep 0.3; ! test -e flag")
    forever = "while :; do touch flag; done"
    assert act(sandbox, f"({forever}) & disown", f"setsid bash -c '{forever}' &", task=task) == 1.0


def test_a_running_episode_goes_on(sandbox: SandboxBackend) -> None:
    task = Task("t", "q", verification="rm -f answer; ! test -e flag")
    shell = BashInterpreter(sandbox)
    shell.execute("here=kept; echo x > answer; sleep 60 &")
    running = Episode("t", "q", "bash", status="running")
    assert REWARD(task, running, sandbox).value == 1.0
    execution = shell.execute("echo $here; cat answer; kill -0 $! && echo alive")
    assert execution.output == b"kept\nx\nalive\n"
    shell.execute("touch flag")
    assert REWARD(task, running, sandbox).value == 0.0
    shell.close()


def test_tampering_that_is_undone_when_it_goes_on(sandbox: SandboxBackend) -> None:
    undo = "rmdir '/sbin'; symlink 'usr/sbin', '/sbin'"
    program = f"unlink '/sbin'; mkdir '/sbin'; $SIG{{CONT}} = sub {{ {undo} }}"
    sandbox.write_file("program", f"{program}; open F, '>', 'ready'; sleep 60 while 1".encode())
    with closing(BashInterpreter(sandbox)) as shell:
        assert shell.execute("perl program & until [ -e ready ]; do sleep 0.1; done").ok
        task = Task("t", "q", verification="true")
        score = REWARD(task, Episode("t", "q", "bash", status="running"), sandbox)
        assert score.value == 0.0
        assert score.detail["tampered"] == ["/sbin"]


@pytest.mark.parametrize("status", ["running", "submitted"])
@pytest.mark.parametrize("place", ["/root", "x" * 250 + "/../" * 15, "/proc/self/fd/9"])
def test_something_else_in_the_place_of_the_directory(
    sandbox: SandboxBackend, status: Status, place: str
) -> None:
    task = Task("t", "q", verification="true")
    assert sandbox.exec(["bash", "-c", f"cd /; rm -rf /root; ln -s {place} /root"]).ok
    score = REWARD(task, Episode("t", "q", "bash", status=status), sandbox)
    assert score.value == 0.0
    assert "reason" in score.detail


# Each leaves a file named z where a copy of the files might have none.
HIDDEN = {
    "a socket": "perl -MSocket -e \"socket S, 1, 1, 0; bind S, sockaddr_un('z') or die\"",
    "holes": "truncate -s 500M a b c z",
    "too deep": "perl -e 'for (1 .. 305) { mkdir q(d); chdir q(d) } open F, q(>), z'",
    "too long": "perl -e 'for (1 .. 20) { mkdir d x 250; chdir d x 250 } open F, q(>), z'",
}


@pytest.mark.parametrize("trick", HIDDEN)
def test_what_cannot_be_copied_does_not_solve_a_task(sandbox: SandboxBackend, trick: str) -> None:
    task = Task("t", "q", verification='test -z "$(find . -name z)"')
    with closing(BashInterpreter(sandbox)) as shell:
        running = Episode("t", "q", "bash", status="running")
        assert REWARD(task, running, sandbox).value == 1.0
        assert shell.execute(HIDDEN[trick]).ok
        if trick.startswith("too"):
            with pytest.raises(OutputLimitError):
                REWARD(task, running, sandbox)
        else:
            assert REWARD(task, running, sandbox).value == 0.0
        running.status = "submitted"
        assert REWARD(task, running, sandbox).value == 0.0


def test_the_time_limit_is_a_zero_that_says_so(sandbox: SandboxBackend) -> None:
    task = Task("t", "q", verification="sleep 999", timeout=0.2)  # allow limit: it sleeps on
    score = REWARD(task, Episode("t", "q", "bash", status="submitted"), sandbox)
    assert (score.value, score.detail["timed_out"]) == (0.0, True)


def test_a_late_verification_runs_once_more(sandbox: SandboxBackend) -> None:
    """Nothing of the first run goes on beside the second."""
    first = "sleep 99 & touch first; sleep 999"
    second = "! grep -qx sleep /proc/[0-9]*/comm"
    verification = f"if [ -e first ]; then {second}; else {first}; fi"
    limit = 3.0
    task = Task("t", "q", verification=verification, verification_timeout=limit)
    score = REWARD(task, Episode("t", "q", "bash", status="submitted"), sandbox)
    assert (score.value, score.detail["timed_out"]) == (1.0, False), score


def test_a_task_that_is_always_late_has_three_more_runs(
    sandbox: SandboxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = CommandReward(get_provider(), start)
    run, runs = reward._run, []
    monkeypatch.setattr(reward, "_run", lambda *task: runs.append(task) or run(*task))
    task = Task("t", "q", verification="sleep 999", timeout=0.2)  # allow limit: it sleeps on
    for _ in range(5):
        assert reward(task, Episode("t", "q", "bash", status="submitted"), sandbox).value == 0.0
    assert len(runs) == 5 + 3


def test_the_detail_has_exit_code_and_output(sandbox: SandboxBackend) -> None:
    task = Task("t", "q", verification="echo why; exit 3")
    score = REWARD(task, Episode("t", "q", "bash", status="submitted"), sandbox)
    assert score.detail == {"exit_code": 3, "timed_out": False, "output": "why\n"}


def test_a_dead_sandbox_is_an_error_and_not_a_zero(sandbox: SandboxBackend) -> None:
    sandbox.close()
    with pytest.raises(SandboxError):
        act(sandbox)


def test_a_task_without_verification(sandbox: SandboxBackend) -> None:
    with pytest.raises(TaskError, match="field 'verification' is missing"):
        act(sandbox, task=Task("t", "q", gold=("ls",)))


@pytest.mark.parametrize(
    ("path", "system"),
    [
        ("/bin", True),
        ("/bin/bash", True),
        ("/lib64", True),
        ("/lib/x86_64-linux-gnu/libc.so.6", True),
        ("/usr", True),
        ("/usr/bin/test", True),
        ("/usr/local/lib/python3.11/dist-packages/x.pth", True),
        ("/etc/ld.so.preload", True),
        ("/etc/python3.11/sitecustomize.py", True),
        ("/etc/ssl/openssl.cnf", True),
        ("/usr/local/bin/tool", False),
        ("/usr/local/sbin/tool", True),
        ("/etc/passwd", False),
        ("/etc/ssl/certs/x", False),
        ("/binary", False),
        ("/home/usr/bin", False),
        ("/library/x", False),
    ],
)
def test_system_paths(path: str, system: bool) -> None:
    assert bool(SYSTEM_PATHS.match(path) and not OPEN_PATHS.match(path)) is system
