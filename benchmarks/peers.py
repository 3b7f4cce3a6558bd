"""The Bash episode of `episodes` in other isolations, in turns: the chart's other bars.

The 2023 release is installed from the package index. The image that it names cannot be pulled
everywhere, so its own script makes the image's files on Debian's packages. The engine is the tests'
own. Needs root, docker.io, bubblewrap and debootstrap; without one of these there are no rows.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from containers import PrivateEngine
from rounds import Figures, take_turns
from rows import Row

RELEASE = "intercode-bench==0.1.22"
IMAGE = "intercode-bash"
"""A name that the release knows."""
MIRROR = "http://deb.debian.org/debian"
PROGRAMS = ("docker", "dockerd", "bwrap", "debootstrap")
PARTS = ("reset", "first action", "submit")
RATE = "episodes a second"
BUBBLEWRAP = (
    *("bwrap", "--unshare-all", "--die-with-parent", "--new-session"),
    *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
    *("--tmpfs", "/root", "--chdir", "/root", "bash"),
)
SETUP = """
set -e
sh /setup_fs.sh
mv /docker.gitignore /.gitignore
cd /
git config --global user.email bench@localhost
git config --global user.name bench
git init -q
git add -A
git commit -qm 'initial commit'
"""
"""The steps of the release's Dockerfile."""
IMPORT = "import intercode.envs"
FIRST_EPISODE = """
from intercode.envs import BashEnv
env = BashEnv({image!r}, data_path={tasks!r})
env.reset(0)
env.step("echo hello")
env.step("submit")
"""


def measure(rounds: int, count: int) -> list[Row]:
    """All rows, or none on a machine that lacks a program, the package index or Debian's mirror.

    Args:
        rounds: Rounds, in which the contenders take turns.
        count: Episodes of a contender in a round. Bubblewrap, which is fast, plays five times more.
    """
    if os.geteuid() or not all(map(shutil.which, PROGRAMS)):
        print(f"no peers: root is needed, and {', '.join(PROGRAMS)}", file=sys.stderr)
        return []
    with (
        tempfile.TemporaryDirectory(prefix="intercode-bench-") as folder_name,
        tempfile.TemporaryDirectory(prefix="intercode-bench-") as engine_folder,
        PrivateEngine(Path(engine_folder)) as engine,
    ):
        folder, environment = Path(folder_name), {**os.environ, "DOCKER_HOST": engine.url}
        try:
            python, root = _install(folder), _bootstrap(folder)
        except subprocess.CalledProcessError as error:  # no index, or no mirror, can be reached
            print(f"no peers: {error}", file=sys.stderr)
            return []
        _make_image(root, python, environment)
        tasks = folder / "tasks.json"
        tasks.write_text(json.dumps([{"query": "Print hello.", "gold": "echo hello"}]))
        return [
            *_processes(python, tasks, environment, rounds),
            *_episodes(python, tasks, environment, rounds, count),
        ]


def _install(folder: Path) -> Path:
    """Install the release, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "release")], check=True)
    python = folder / "release" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", RELEASE], check=True)
    return python


def _bootstrap(folder: Path) -> Path:
    """Install Debian with git, and return its root folder."""
    root = folder / "root"
    command = ["debootstrap", "--variant=minbase", "--include=git", "bookworm", str(root), MIRROR]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return root


def _make_image(root: Path, python: Path, environment: dict[str, str]) -> None:
    """Give the engine the release's image, and remove the root folder."""
    locate = "import intercode, pathlib; print(pathlib.Path(intercode.__file__).parent)"
    package = subprocess.check_output([str(python), "-c", locate], text=True).strip()
    for name in ("setup_fs.sh", "docker.gitignore"):
        shutil.copy(Path(package) / "assets" / "docker" / name, root / name)
    subprocess.run(["chroot", str(root), "/bin/sh", "-c", SETUP], check=True)
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
        change = ["--change", 'CMD ["/bin/sh"]']
        load = ["docker", "import", *change, "-", IMAGE]
        subprocess.run(load, stdin=tar.stdout, env=environment, check=True, capture_output=True)
    if tar.returncode:
        raise SystemExit(f"tar of the image ended with {tar.returncode}")
    shutil.rmtree(root)


def _processes(
    python: Path, tasks: Path, environment: dict[str, str], rounds: int
) -> Iterator[Row]:
    """Yield the times of whole processes of the release."""
    episode = FIRST_EPISODE.format(image=IMAGE, tasks=str(tasks))
    cold_starts, starts, imports = [], [], []
    for _ in range(rounds):
        containers = [f"{IMAGE}_ic_ctr", f"{IMAGE}_ic_ctr_eval"]
        remove = ["docker", "rm", "--force", *containers]  # the first time, there are none
        subprocess.run(remove, env=environment, check=False, capture_output=True)
        cold_starts.append(_process_seconds([str(python), "-c", episode], environment))
        starts.append(_process_seconds([str(python), "-c", episode], environment))
        imports.append(1e3 * _process_seconds([str(python), "-c", IMPORT], environment))
    yield Row("release: import", imports, "ms")
    yield Row("release: a process's first episode", starts, "s")
    yield Row("release: a process's first episode, no container", cold_starts, "s")


def _process_seconds(argv: list[str], environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run(argv, env=environment, check=True, capture_output=True)
    return time.perf_counter() - begin


def _episodes(
    python: Path, tasks: Path, environment: dict[str, str], rounds: int, count: int
) -> Iterator[Row]:
    """Yield the figures of episodes of all contenders."""
    program = [str(python), str(Path(__file__).with_name("peer_program.py")), IMAGE, str(tasks)]
    with _program(program, environment) as process:
        measures = [
            partial(_ask, process, "release", count),
            partial(_ask, process, "containers", count),
            partial(bubblewrap, 5 * count),
        ]
        figures = take_turns(dict, measures, rounds)
    for name, values in figures.items():
        yield Row(name, values, "/s" if name.endswith(RATE) else "ms")


@contextmanager
def _program(argv: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A program that has played its first episodes, and is asked for more."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, env=environment, text=True, **pipes) as process:
        try:
            _read(process)
            yield process
        finally:
            process.stdin.close()  # type: ignore[union-attr]


def _ask(process: subprocess.Popen[str], name: str, count: int) -> Figures:
    """Have a contender play, and return its figures."""
    process.stdin.write(f"{name} {count}\n")  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]
    return _figures(name, _read(process))


def _read(process: subprocess.Popen[str]) -> dict[str, float]:
    line = process.stdout.readline()  # type: ignore[union-attr]
    if not line:
        raise SystemExit(f"{process.args!r} has ended")
    times: dict[str, float] = json.loads(line)
    return times


def _figures(name: str, times: dict[str, float]) -> Figures:
    return {
        **{f"{name}: {part}": times[part] for part in PARTS},
        f"{name}: {RATE}": 1e3 / sum(times.values()),
    }


class _Bubblewrap:
    """One bash in namespaces, with pipes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            BUBBLEWRAP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.run("true")

    def run(self, command: str) -> str:
        """Run a command in the shell; return its output and its exit code."""
        process = self._process
        process.stdin.write(f"{command}; echo $?.\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        lines = iter(process.stdout.readline, "")  # type: ignore[arg-type, union-attr]
        output = ""
        for line in lines:
            output += line
            if line.endswith(".\n"):
                return output
        raise SystemExit("bubblewrap's bash has ended")

    def close(self) -> None:
        """End the shell, and wait until its namespaces are gone."""
        self._process.communicate()


def bubblewrap(count: int) -> Figures:
    """Episodes of one bash each, in bubblewrap's namespaces; the end of the last is of the reset.

    There is no seccomp filter, no cgroup, no root that can be written to, and no list of changes.
    """
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    box = _Bubblewrap()
    for _ in range(count):
        begin = time.perf_counter()
        box.close()
        box = _Bubblewrap()
        reset_end = time.perf_counter()
        output = box.run("echo hello")
        action_end = time.perf_counter()
        score = box.run("test -d /tmp")
        score_end = time.perf_counter()
        if (output, score) != ("hello\n0.\n", "0.\n"):
            raise SystemExit(f"bubblewrap gave {output!r} and {score!r}")
        for part, seconds in zip(
            PARTS,
            (reset_end - begin, action_end - reset_end, score_end - action_end),
            strict=True,
        ):
            times[part].append(1e3 * seconds)
    box.close()
    return _figures("bubblewrap", {part: median(values) for part, values in times.items()})
