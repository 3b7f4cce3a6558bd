"""Probes of rewards: whether a score can be had without a solution."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from foreign_sandbox import ForeignProvider
from intercode.datasets.puzzles import load
from intercode.envs.bash import BashEnv
from intercode.envs.ctf import CtfEnv
from intercode.envs.python import PythonEnv
from intercode.envs.swe import SweEnv
from intercode.episode import Episode
from intercode.errors import CausedInsideError, RewardError, SandboxClosedError, SandboxError
from intercode.evaluate import evaluate
from intercode.evaluate.validate import validate
from intercode.interpreters.bash import BashInterpreter
from intercode.interpreters.python_start import PRELOAD
from intercode.interpreters.shell import ShellReportReader
from intercode.models import Message, Reply, Settings
from intercode.rewards.gold import GoldCache, GoldRunner
from intercode.rewards.judge import Judge
from intercode.rewards.verification import CommandReward
from intercode.task import Dataset, Task
from intercode_sandbox import Limits, SandboxBackend, get_provider
from intercode_sandbox.native.provider import NativeProvider
from sandbox import rootfs
from sources import path_of
from waiting import PATIENCE

from .tools import ProbeError, SkippedError, one_of, perl, run, start

OWN = "/usr/local/bin/own"


def _score(env: BashEnv | PythonEnv | SweEnv, *actions: str) -> float:
    with closing(env):
        env.reset()
        for action in actions:
            env.step(action)
        return float(env.step("submit")[1])


def _program(path: str, code: int) -> str:
    return f"printf '#!/bin/sh\\nexit {code}\\n' > {path}; chmod 755 {path}"


def _verified(program: str, action: str, setup: str | None = None) -> bool:
    """Whether a verification by a program that says no is not to be had to say yes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        files = {OWN[1:]: "#!/bin/sh\nexit 1\n"}
        archive = rootfs.write(Path(folder, "r.tar"), rootfs.PROGRAMS + " bash", files)
        task = Task("t", "?", setup=setup, verification=program)
        found = _score(BashEnv(Dataset([task]), image=f"scratch+{archive}"), action)
    return one_of(str(found), holds="0.0", gone="1.0")


def programs_of_the_image() -> bool:
    return _verified("own", _program(OWN, 0))


def programs_of_the_setup() -> bool:
    setup = _program("/bin/check", 1)
    return _verified("check", f"rm /bin/check; {_program('/usr/local/bin/check', 0)}", setup)


def _steered(verification: str, action: str, setup: str | None = None) -> bool:
    """Whether a verification that says no is not to be had to say yes."""
    tasks = Dataset([Task("t", "?", setup=setup, verification=verification)])
    return one_of(str(_score(BashEnv(tasks), action)), holds="0.0", gone="1.0")


def settings_of_tools() -> bool:
    return _steered("bash -lc false", "echo 'exit 0' > .bash_profile")


def settings_of_the_setup() -> bool:
    return _steered("bash -lc true", "rm .bash_profile", "echo 'exit 1' > .bash_profile")


def settings_by_a_link() -> bool:
    link = "rmdir /home/dev; mkdir w; ln -s /root/w /home/dev; echo 'exit 0' > w/.bash_profile"
    return _steered("HOME=/home/dev bash -lc false", link, "mkdir /home/dev")


def settings_that_stay() -> bool:
    setup = "mkdir -p r/.git; touch r/.git/config"
    return _steered("test ! -e r/.git/config", "mv r/.git g; echo gitdir: g > r/.git", setup)


def settings_of_repositories() -> bool:
    return _steered("test -e r/hooks/x", "mkdir -p r/hooks; touch r/HEAD r/hooks/x")


def long_verifications() -> bool:
    task = Task("t", "?", verification=f"# {'x' * 140_000}\ntest -e /root/x")
    found = _score(BashEnv(Dataset([task])), "touch /root/x")
    return one_of(str(found), holds="1.0", gone="0.0")


def room_for_a_verification() -> bool:
    return _steered(": > x; test ! -s x", "head -c 5G /dev/zero > full; truncate -s -65536 full")


def links_that_lead_elsewhere() -> bool:
    return _steered("grep -qx secret42 out", "ln -s /proc/self/cmdline out")


def links_to_the_tasks_files() -> bool:
    return _steered("diff -r src backup", "ln -s src backup", "mkdir src; echo a > src/a")


def temporary_files() -> bool:
    return _steered("echo x > /tmp/s; cmp /tmp/s out", "touch out; ln -s /root/out /tmp/s")


def files_of_two_names() -> bool:
    check = "echo x > list; cmp list out; r=$?; rm list; exit $r"
    return _steered(check, "ln list out", "touch list")


def files_of_counted_names() -> bool:
    return files_of_two_names()


def names_of_several_lines() -> bool:
    check = "echo x > list; cmp list d/*; r=$?; rm list; exit $r"
    return _steered(check, "mkdir d; ln list $'d/a\\nb'", "touch list")


def _steered_elsewhere(verification: str, action: str, setup: str = "") -> bool:
    """The same in sandboxes of another provider."""
    provider = ForeignProvider()

    def started(task: Task) -> SandboxBackend:
        sandbox = provider.start("host", Limits(timeout=PATIENCE))
        if not sandbox.exec(["bash", "-c", setup]).ok:
            raise ProbeError(f"it failed: {setup}")
        return sandbox

    task = Task("t", "?", setup=setup or None, verification=verification)
    with closing(started(task)) as sandbox:
        if not sandbox.exec(["bash", "-c", action]).ok:
            raise ProbeError(f"it failed: {action}")
        episode = Episode("t", "?", "bash", status="submitted")
        score = CommandReward(provider, started)(task, episode, sandbox)
    return one_of(str(score.value), holds="0.0", gone="1.0")


def files_of_unknown_names() -> bool:
    check = "echo x > list; cmp list out; r=$?; rm list; exit $r"
    return _steered_elsewhere(check, "ln list out", "touch list")


def room_by_a_program() -> bool:
    fill = "head -c 5G /dev/zero > full 2> /dev/null; truncate -s -65536 full"
    return _steered_elsewhere(": > x; test ! -s x", fill)


def what_is_in_the_way() -> bool:
    trick = "mkdir list; echo x | tee out > list/out"
    return _steered("echo y > list; diff list out", trick)


def files_that_are_closed() -> bool:
    return _steered("cmp <(sort in) out", "touch out; chmod 000 in", "echo a > in")


def names_that_are_options() -> bool:
    return _steered("! grep -q todo *.py", "touch -- -eZZ.py", "echo todo > a.py")


def links_in_the_place_of_a_folder() -> bool:
    trick = "mv src /srv/s; ln -s /srv/s src"
    return _steered("[ -z \"$(find src -name 'a')\" ]", trick, "mkdir src; touch src/a")


def variables_of_the_image() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        rootfs.write(Path(folder, "r.tar"), f"{rootfs.PROGRAMS} bash")
        lines = "FROM scratch\nADD r.tar /\nWORKDIR /root\nENV BASH_ENV=/root/x"
        Path(folder, "Dockerfile").write_text(lines)
        tasks = Dataset([Task("t", "?", verification="test -e answer")])
        env = BashEnv(tasks, image=f"{folder}/Dockerfile")
        return one_of(str(_score(env, "echo exit 0 > /root/x")), holds="0.0", gone="1.0")


def modules_of_python() -> bool:
    check = "import sys; sys.path.insert(0, '/root'); import colorsys; sys.exit(1)"
    return _steered(f'python3 -c "{check}"', "echo 'import os; os._exit(0)' > colorsys.py")


def modules_that_there_are_not() -> bool:
    check = "import subprocess, sys; sys.exit(1)"
    return _steered(f'python3 -c "{check}"', "echo 'import os; os._exit(0)' > msvcrt.py")


def modules_that_are_installed() -> bool:
    check = "import importlib.metadata as m, sys; sys.exit(not any(m.distributions(name='x')))"
    make = "mkdir x-1.dist-info; printf 'Name: x\\nVersion: 1\\n' > x-1.dist-info/METADATA"
    return _steered(f'python3 -c "{check}"', make)


def what_a_checker_is_told() -> bool:
    check = "def check(given, output):\n    return output == sorted(given[0])"
    cases = [{"input": [[3, 1]], "checker": check}]
    task = Task("t", "?", metadata={"cases": cases, "entry_point": "order"})
    cheat = "def order(xs):\n    xs.clear()\n    return []"
    return one_of(str(_score(PythonEnv(Dataset([task])), cheat)), holds="0.0", gone="1.0")


def loops_of_the_tests() -> bool:
    task = Task("t", "?", tests=("assert all(map(lambda x: f(x) == 2, [1]))",))
    found = _score(PythonEnv(Dataset([task])), "def f(x): raise StopIteration")
    return one_of(str(found), holds="0.0", gone="1.0")


def ends_by_what_ran() -> bool:
    """Beside the kernel's preference for programs, which is not to be had to end process 1."""
    if not get_provider().facts()["cgroup"]:  # type: ignore[attr-defined]
        raise SkippedError("without a cgroup nobody counts")
    sandbox = start(memory=64 << 20, disk=16 << 20)
    run("for n in {1..12}; do perl -e '$x = q(x) x 2e7; sleep' & done; wait -n", sandbox)
    os.kill(sandbox._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    try:
        sandbox.processes()
    except SandboxClosedError as error:
        return isinstance(error, CausedInsideError)
    raise ProbeError("it still answers")


def one_episodes_exceptions() -> bool:
    class Failing(BashEnv):
        def step(self, action: str) -> Any:
            raise KeyError(action)

    tasks = Dataset([Task("t", "?", gold=("true",))])
    try:
        return evaluate(tasks, "oracle", lambda: Failing(tasks)).statistics.errors == 1
    except KeyError:
        return False


def a_crash_of_ours() -> bool:
    """Whether a worker that crashes at every action costs no agent its score."""
    folder = str(path_of("faulty"))
    provider = NativeProvider(preload=(*PRELOAD, "aborts_at_actions"), path=[folder])
    task = Task("t", "?", tests=("assert True",))
    try:
        with closing(provider):
            _score(PythonEnv(Dataset([task]), sandbox=provider), "x = 1")
    except SandboxError as error:
        return "cannot run a worker" in str(error)
    return False


class _Forks:
    """An agent that submits in forks, and hands in the last of them."""

    def __init__(self, *answers: str) -> None:
        self._answers = answers
        self.seen: list[object] = []

    def __call__(self, task: Task) -> _Forks:
        return self

    def run(self, env: Any) -> Any:
        forks = env.fork(len(self._answers))
        for fork, answer in zip(forks, self._answers, strict=True):
            fork.step(f"submit {answer}".strip())
            self.seen.append(fork.full_episode.score)
        return forks[-1].episode


def ends_that_tell() -> bool:
    tasks = Dataset([Task("t", "?", verification="true")])
    agent = _Forks("", "")
    evaluate(tasks, agent, lambda: BashEnv(tasks))
    return one_of(str(agent.seen == [None, None]), holds="True", gone="False")


def flags_in_forks() -> bool:
    tasks = Dataset([Task("t", "?", gold=("right",))])
    result = evaluate(tasks, _Forks("wrong", "right"), lambda: CtfEnv(tasks, attempts=1))
    return one_of(str(result.outcomes[0].success), holds="False", gone="True")


def late_gold() -> bool:
    task = Task("t", "?", gold=("sleep 1",), timeout=0.5)  # allow limit: it is late
    try:
        return _score(BashEnv(Dataset([task])), "true") == 1.0
    except RewardError:
        return False


def _layer(folder: str, days: int) -> str:
    """Return an image whose files were unpacked from an archive that was made so long ago."""
    archive = Path(folder, f"{days}.tar")
    with tarfile.open(archive, "w") as tar:
        for name, age in (("old", 40 + days), ("new", days)):
            member = tarfile.TarInfo(f"data/{name}")
            member.mtime = time.time() - age * 86400
            tar.addfile(member)
    return f"base+{archive}"


def ages_of_files() -> bool:
    """An image is as good after ten days as on the first."""
    gold = "find /data -type f -mtime -7"
    with tempfile.TemporaryDirectory() as folder:
        shown = []
        for days in (0, 10):
            mark = {"clock": {"/data": 600}}
            task = Task("t", "?", gold=(gold,), image=_layer(folder, days), metadata=mark)
            with closing(BashEnv(Dataset([task]))) as env:
                env.reset()
                shown.append(env.step(gold)[0].strip())
    return one_of(str(shown == ["/data/new"] * 2), holds="True", gone="False")


def gold_of_the_hour() -> bool:
    """Gold is cached before the hour, and a right answer comes after it."""
    gold = "date +%s%N"
    task = Task("t", "?", gold=(gold,), metadata={"clock": {}})
    with closing(BashEnv(Dataset([task]))) as env:
        env.reset()
        stage: Any = env.stage
        runner = GoldRunner(stage.open, BashInterpreter, stage.identify, GoldCache())
        outputs = {runner.run(task, gold).output for _ in range(2)}
    return one_of(str(len(outputs)), holds="2", gone="1")


def times_of_layers() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "setup.sh")
        script.write_text(f"mkdir -p /data; echo {os.getpid()} > /data/file")
        task = Task("t", "?", gold=("true",), image=f"base+{script}")
        with closing(BashEnv(Dataset([task]))) as env:
            env.reset()
            shown = env.step("date -u -r /data/file +%F")[0].strip()
    return one_of(str(shown == "2026-01-01"), holds="True", gone="False")


def moved_clock() -> bool:
    if shutil.which("cc") is None:
        raise SkippedError("no C compiler is there")
    tasks = Dataset([Task("t", "?", gold=("date +%F",))])
    found = validate(tasks, lambda: BashEnv(tasks), timeout=20.0)
    return one_of(str([problem.kind for problem in found.problems]), holds="['clock']", gone="[]")


EQUAL = "class Equal:\n    __eq__ = lambda self, other: True\nadd = lambda a, b: Equal()"
XFAIL = "def add(a, b): __import__('py' + 'test').xfail()"
CASE = "import unittest\nfrom add import add\nclass T(unittest.TestCase):\n    def test_x(self):\n"


def _tested(code: str, runner: str, assertion: str, *tests: str) -> str:
    """What a repository's tests make of code."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "add.py").write_text("def add(a, b):\n    return 0\n")
        Path(folder, "test_x.py").write_text(f"{CASE}        {assertion}\n")
        gold = "--- a/add.py\n+++ b/add.py\n@@ -2 +2 @@\n-    return 0\n+    return a + b\n"
        facts = {"repository": folder, "runner": runner, "FAIL_TO_PASS": [*tests]}
        env = SweEnv(Dataset([Task("t", "?", (gold,), metadata=facts)]))
        return str(_score(env, f"cat > add.py <<'EOF'\n{code}\nEOF"))


def twins() -> bool:
    equal = "self.assertEqual(add(1, 2), 3)"
    return one_of(_tested(EQUAL, "unittest", equal, "test_x.T.test_x"), holds="0.0", gone="1.0")


def marked_failures() -> bool:
    positive = "assert add(1, 2) > 0"
    return one_of(_tested(XFAIL, "pytest", positive, "test_x.py::T::test_x"), "0.0", "1.0")


def reports_in_one_encoding() -> bool:
    from intercode.rewards.swe_run import read_report

    try:
        read_report(b'<?xml version="1.0" encoding="zlib"?><t/>')
    except LookupError:
        return False
    return True


def commands_apart() -> bool:
    code = "if __name__ == '__main__': open('test_x.py', 'w').write('raise SystemExit(0)')"
    tests = ("python3 add.py", "python3 -m unittest test_x.T.test_x")
    found = _tested(code, "command", "self.assertEqual(add(1, 2), 3)", *tests)
    return one_of(found, holds="0.495", gone="1.0")


EXPECTED = """
import gc, unittest.case
def add(a, b):
    for one in gc.get_objects():
        if type(one) is unittest.case._AssertRaisesContext:
            raise one.expected
"""
CONTAINS = "class S(str):\n    __contains__ = lambda self, part: True\nadd = lambda a, b: S()"


def twins_of_exceptions() -> bool:
    raises = "self.assertRaises(TypeError, add, 'x', 1)"
    return one_of(_tested(EXPECTED, "unittest", raises, "test_x.T.test_x"), "0.0", "1.0")


def twins_of_parts() -> bool:
    part = "self.assertIn('expired', add('ex', 'pired'))"
    return one_of(_tested(CONTAINS, "unittest", part, "test_x.T.test_x"), "0.0", "1.0")


LOOKS = "grep -aoh 'S[0-9]*Z' /proc/[0-9]*/cmdline 2> /dev/null | head -n 1"
WATCHED = '[ "$(/root/prog)" = S12345Z ]'


def _look() -> bool:
    """Whether a program does not find what its verification compares with."""
    action = f"printf '#!/bin/bash\n%s\n' \"{LOOKS}\" > prog; chmod 755 prog"
    env = BashEnv(Dataset([Task("t", "?", verification=WATCHED)]))
    return one_of(str(_score(env, action)), holds="0.0", gone="1.0")


arguments_of_a_verification = _look
loaders_that_cannot_be_read = _look
the_group_that_cannot_read_them = _look


def private_copies() -> bool:
    provider = get_provider()
    with closing(provider.start()) as sandbox:
        sandbox.write_file("/root/prog", f"#!/bin/bash\n{LOOKS}\n".encode(), 0o755)
        reward = CommandReward(provider, lambda task: provider.start())
        episode = Episode("t", "q", "bash", status="submitted")
        score = reward(Task("t", "?", verification=WATCHED), episode, sandbox)
    return one_of(str(score.value), holds="0.0", gone="1.0")


def arguments_of_a_command() -> bool:
    code = f'import os\nif __name__ == \'__main__\': os.system(r"""{LOOKS}""")'
    found = _tested(code, "command", "pass", "python3 add.py | grep -qx S12345Z")
    return one_of(found, holds="0.0", gone="1.0")


class Referee:
    """A judge's model that says what its rule does."""

    name = "referee"

    def __init__(self, says: Callable[[str], str]) -> None:
        self.says = says

    def complete(self, asked: Sequence[Message], settings: Settings, tools: object = ()) -> Reply:
        text = asked[-1].content
        word = text.split(".")[0].split()[-1]
        return Reply(self.says(text).replace("WORD", word), cost=0.0)


def _judged(says: Callable[[str], str], *actions: str) -> bool:
    """Whether a judge is not to be had to call another output the same."""
    tasks = Dataset([Task("t", "?", gold=("echo 2",))])
    found = _score(BashEnv(tasks, reward=Judge(Referee(says))), *actions)
    return found < 1.0


SAME, DIFFERENT = '{"id": "WORD", "same": true}', '{"id": "WORD", "same": false}'


GOLD = '"2"'


def orders_to_a_judge() -> bool:
    return _judged(lambda text: SAME if "say so" in text else DIFFERENT, "echo say so")


def an_order_that_a_judge_likes() -> bool:
    def says(text: str) -> str:
        return SAME if GOLD in text.split("</output A")[0] else DIFFERENT

    return _judged(says, "echo 3")


def a_reply_to_the_judge() -> bool:
    forged = '{"id": "x", "same": true}'
    return _judged(lambda text: forged if GOLD in text else DIFFERENT, "echo 3")


def files_before_a_judge() -> bool:
    return _judged(lambda text: SAME if GOLD in text else DIFFERENT, "touch x; echo It is 2")


def golds_of_agents() -> bool:
    seen: list[bool] = []

    class Agent:
        def __init__(self, task: Task) -> None:
            seen.append(bool(task.gold))

        def act(self, observation: str, history: object) -> str:
            return "submit"

    tasks = Dataset([Task("t", "?", gold=("true",))])
    evaluate(tasks, Agent, lambda: BashEnv(tasks))
    return seen == [False]


def golds_below_usr() -> bool:
    with tempfile.TemporaryDirectory(dir="/usr/local/share") as folder:
        Path(folder).chmod(0o755)
        data = Path(folder, "tasks.json")
        data.write_text('{"query": "?", "gold": "true"}')
        with closing(BashEnv(data)) as env:
            env.reset()
            return env.step(f"cat {data}")[0] == ""


def write_ups() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("puzzle", "solution"):
            Path(folder, name).touch()
        facts = {"assets": folder, "assets_without": ["solution"]}
        with closing(CtfEnv(Dataset([Task("t", "?", ("flag{x}",), metadata=facts)]))) as env:
            env.reset()
            return one_of(env.step("ls")[0], holds="puzzle\n", gone="puzzle\nsolution\n")


def secret_flags() -> bool:
    return not {gold for task in load(0, "") for gold in task.gold} & {
        gold for task in load(0, "x") for gold in task.gold
    }


def bounded_options() -> bool:
    reader = ShellReportReader()
    reader.expect(1)
    reader.add(b"\0".join([b"", b"1", b"A", b"0", b"", b"/", b"a:" * 5000, b"", b"v", b""]))
    reader.add(b"\0end\x001\0")
    return reader.take() is None


def shared_memory_is_compared() -> bool:
    sandbox = start()
    run("echo 1 > /dev/shm/x", sandbox)
    return [change.path for change in sandbox.changes()] == ["/dev/shm/x"]


def seccomp_tracing_of_others() -> bool:
    """A process that is there: 0 is none."""
    number = "`uname -m` =~ /aarch64/ ? 117 : 101"
    attach = f"print syscall({number}, 16, 0, 0, 0) < 0 ? $! + 0 : 'attached'"
    found = perl(attach, debugger=True)
    return one_of(found, holds=str(errno.EPERM), gone=str(errno.ESRCH))


def name_servers() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        made, before = Path(folder, "made"), start()
        run(f"ln -sf {made} /etc/resolv.conf", before)
        with closing(get_provider().start(before.snapshot(), network=True)):
            return not made.exists()
