"""An image without a program that its tasks need: an error before any episode, on every way in."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import command
from intercode import make
from intercode.envs import program_checks
from intercode.errors import ImageError, SandboxError
from intercode.task import Dataset, Task
from intercode_sandbox import SandboxBackend, get_provider
from waiting import PATIENCE

BASH = Path(shutil.which("bash") or "/bin/bash").resolve()
AT_MACHINE = 18
"""Where an ELF file has its architecture."""


def of_another_machine(path: Path) -> None:
    data = bytearray(BASH.read_bytes())
    data[AT_MACHINE] = 0xB7 if data[AT_MACHINE] != 0xB7 else 0x3E
    path.write_bytes(data)
    path.chmod(0o755)


def text(content: str, mode: int = 0o755) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_text(content)
        path.chmod(mode)

    return make


def not_executable(path: Path) -> None:
    shutil.copy(BASH, path)
    path.chmod(0o644)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "no such program"),
    "link to nowhere": (lambda path: path.symlink_to("/nowhere"), "no such program"),
    "folder": (Path.mkdir, "no such program"),
    "without its loader": (lambda path: shutil.copy(BASH, path), "loader or interpreter"),
    "another architecture": (of_another_machine, "another architecture"),
    "not executable": (not_executable, "is not executable"),
    "no program": (text("hello"), "no program at all"),
    "script of a missing program": (text("#!/bin/perl\n"), "loader or interpreter"),
}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    for name in ("bin", "dev", "proc", "tmp"):
        (tmp_path / "image" / name).mkdir(parents=True)
    return tmp_path / "image"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The programs that were tried, while no earlier trial counts."""
    tried: list[str] = []
    flaw = program_checks._flaw

    def counting(sandbox: SandboxBackend, program: str) -> str:
        tried.append(program)
        return flaw(sandbox, program)

    monkeypatch.setattr(program_checks, "_working_programs", set())
    monkeypatch.setattr(program_checks, "_flaw", counting)
    yield tried


TASK = Task("t", "List the files.", gold=("ls",))


@pytest.mark.parametrize("kind", BROKEN)
def test_bash(image: Path, kind: str) -> None:
    make_program, reason = BROKEN[kind]
    make_program(image / "bin/bash")
    with closing(make("bash", data=Dataset([TASK]), image=image)) as env:
        for _ in range(2):  # it is no state that a second attempt would find otherwise
            with pytest.raises(ImageError, match=reason) as raised:
                env.reset(seed=0)
            assert "cannot run 'bash'" in str(raised.value) and str(image) in str(raised.value)
    assert not isinstance(raised.value, SandboxError)


@pytest.mark.parametrize("words", ["run bash --agent oracle", "validate bash", "play bash"])
def test_commands(image: Path, tmp_path: Path, words: str) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([TASK.to_dict()]))
    argv = command(*words.split(), "--data", f"{tmp_path}/tasks.json", "--image", str(image))
    if words.startswith("run"):
        argv += ["--out", str(tmp_path / "run")]
    done = subprocess.run(
        argv, input="ls\n", capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "intercode: error: the image " in done.stderr and "cannot run 'bash'" in done.stderr
    assert not (tmp_path / "run").exists(), "no episode was begun"


def test_programs_are_tried_once_per_image(starts: list[str]) -> None:
    dataset = Dataset([TASK, Task("u", "Again.", gold=("ls",), verification="true")])
    for _ in range(2):
        with closing(make("bash", data=dataset)) as env:
            for task in dataset:
                env.reset(task_id=task.task_id)
    assert starts == ["bash", "bash", "/bin/bash"]


def test_needs_of_each_environment() -> None:
    def needs(name: str, **options: Any) -> list[str]:
        with closing(make(name, **options)) as env:
            return list(env.stage.needs(env.dataset[0]))  # type: ignore[attr-defined]

    assert needs("bash")[0] == "bash" and needs("ctf")[0] == "bash"
    assert {"bash", "git", "python3"} <= set(needs("swe"))
    assert needs("python") == [] and "python9" in needs("python", python="python9")


def test_a_program_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_checks, "_SECONDS", 0.5)  # allow limit: it sleeps on
    with closing(get_provider("native")) as provider, closing(provider.start()) as sandbox:
        sandbox.write_file("/tmp/bash", b"#!/bin/sh\nsleep 600\n", 0o755)
        assert "does not end" in program_checks._flaw(sandbox, "/tmp/bash")
        sandbox.write_file("/tmp/bash", b"#!/bin/sh\necho no; exit 3\n", 0o755)
        assert "fails with exit code 3: no" in program_checks._flaw(sandbox, "/tmp/bash")
        assert program_checks._flaw(sandbox, "/bin/bash") == ""


@pytest.fixture
def whole_image(image: Path) -> Path:
    """An image whose bash can be deleted, which the machine's own cannot."""
    for name in ("bash", "rm"):
        program = shutil.which(name)
        assert program
        shutil.copy(program, image / "bin")
        libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        for word in libraries.stdout.split():
            if word.startswith("/"):
                (image / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, image / word[1:])
    (image / "root").mkdir()
    return image


@pytest.mark.parametrize("setup", [None, "echo"])
def test_an_image_without_its_working_directory(whole_image: Path, setup: str | None) -> None:
    (whole_image / "root").rmdir()
    dataset = Dataset([Task("t", "q", gold=("echo",), setup=setup)])
    with (
        closing(make("bash", data=dataset, image=whole_image)) as env,
        pytest.raises(ImageError, match="'/root', the image's working directory"),
    ):
        env.reset(seed=0)


def test_an_episode_whose_shell_is_gone_ends(whole_image: Path) -> None:
    with closing(make("bash", data=Dataset([TASK]), image=whole_image)) as env:
        env.reset(seed=0)
        _, _, ended, truncated, info = env.step("rm /bin/bash")
        assert not ended and not truncated and "gone" not in info  # this shell still runs
        observation, _, ended, truncated, info = env.step("exit 3")
        assert "no other can be started in this sandbox: the next command ends" in observation
        assert info["gone"] and "restarted" not in info and not ended and not truncated
        observation, _, ended, truncated, info = env.step("echo never")
        assert ended and info["gone"] and "no command can run any more" in observation
        assert env.episode.status == "ended" and env.episode.error is None


def test_an_episode_whose_shell_is_gone_can_be_submitted(whole_image: Path) -> None:
    task = Task("t", "Delete bash.", gold=("rm /bin/bash",))
    with closing(make("bash", data=Dataset([task]), image=whole_image)) as env:
        env.reset(seed=0)
        assert env.step("rm /bin/bash; exit 0")[4]["gone"]
        _, reward, ended, _, _ = env.step("submit")
        assert ended and reward == 1.0 and env.episode.status == "submitted"
