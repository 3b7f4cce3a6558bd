"""The console script beside packages that install a module `intercode`, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import intercode_console
from waiting import PATIENCE

OURS = "# import intercode_sandbox\n"
THEIRS = "import a_package_that_they_need\n"
RUNS = "def main():\n    print('it runs')\n    return 7\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages, with a small stand-in for ours."""
    (tmp_path / "intercode_console.py").write_bytes(Path(intercode_console.__file__).read_bytes())
    command_line = tmp_path / "intercode/cli/main.py"
    command_line.parent.mkdir(parents=True)
    command_line.write_text(RUNS)
    (tmp_path / "intercode/__init__.py").write_text(OURS)
    (tmp_path / "intercode_gym-2.0.0.dist-info").mkdir()
    return tmp_path


def start(site: Path, *arguments: str) -> tuple[int, str, list[str]]:
    """The exit code, the output and the lines of errors of the console script."""
    done = subprocess.run(
        # -S: with nothing that is installed where the tests run.
        [sys.executable, "-S", "-m", "intercode_console", *arguments],
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.splitlines()


def installed_from(site: Path, **origin: object) -> None:
    (site / "intercode_gym-2.0.0.dist-info/direct_url.json").write_text(json.dumps(origin))


def test_ours_alone_runs_without_a_word(site: Path) -> None:
    (site / "intercode_plugin-1.0.dist-info").mkdir()  # a module of another name
    assert start(site) == (7, "it runs\n", [])


@pytest.mark.parametrize(
    ("folder", "package"),
    [("intercode_bench-0.1.22.dist-info", "intercode-bench"), ("intercode-0.0.7", "intercode")],
)
def test_theirs_in_place_of_ours_is_named_before_it_is_imported(
    site: Path, folder: str, package: str
) -> None:
    (site / f"{folder.removesuffix('.dist-info')}.dist-info").mkdir()
    (site / "intercode/__init__.py").write_text(THEIRS)
    code, said, lines = start(site, "doctor")
    assert (code, said) == (1, "")
    assert f"the package {package} installs {site}/intercode, too: it has replaced" in lines[0]
    assert lines[1:] == [
        f"  pip uninstall -y {package}",
        "  pip install --force-reinstall --no-deps intercode-gym",
    ]


def test_theirs_below_ours_is_a_warning_which_doctor_gives_itself(site: Path) -> None:
    (site / "intercode_bench-0.1.22.dist-info").mkdir()
    code, said, lines = start(site, "run")
    assert (code, said) == (7, "it runs\n")
    assert lines[0].startswith("intercode: warning: ") and "would remove files" in lines[0]
    assert start(site, "doctor") == (7, "it runs\n", [])


def test_files_that_went_with_theirs(site: Path) -> None:
    (site / "intercode/__init__.py").unlink()
    code, _, lines = start(site)
    assert code == 1 and "files of intercode-gym are missing" in lines[0]
    assert lines[1:] == ["  pip install --force-reinstall --no-deps intercode-gym"]


def test_what_is_installed_again_is_what_was_installed(site: Path, tmp_path: Path) -> None:
    (site / "intercode/__init__.py").unlink()
    again = "  pip install --force-reinstall --no-deps "
    installed_from(site, url=tmp_path.as_uri(), dir_info={})
    assert start(site)[2][1:] == [again + tmp_path.as_uri()]
    installed_from(site, url="file:///no/such.whl", archive_info={})
    assert start(site)[2][1:] == [again + "intercode-gym"]
    installed_from(site, url="https://a.example/b", vcs_info={"vcs": "git", "commit_id": "abc"})
    assert start(site)[2][1:] == [again + "git+https://a.example/b@abc"]
    vcs = {"vcs": "git", "commit_id": "abc"}
    installed_from(site, url="https://a.example/b", vcs_info=vcs, subdirectory="packages/gym")
    assert start(site)[2][1:] == [again + "git+https://a.example/b@abc#subdirectory=packages/gym"]
    # A checkout in use: none of its files was replaced.
    (site / "intercode_bench-0.1.22.dist-info").mkdir()
    installed_from(site, url=tmp_path.as_uri(), dir_info={"editable": True})
    assert start(site)[2][1:] == ["  pip uninstall -y intercode-bench"]


def test_our_package_is_known_as_ours() -> None:
    assert intercode_console.find_conflict() is None


ELSEWHERE = """
import sys, gymnasium, importlib
for name in sys.argv[2:]:
    sys.modules[name] = None  # as if there were none
sys.platform = sys.argv[1]
import intercode
from intercode.errors import SandboxUnavailableError
for ask in (
    lambda: intercode.make("bash"),
    lambda: gymnasium.make("intercode-sql-v0"),
    lambda: importlib.import_module("intercode.sandbox"),
):
    try:
        ask()
    except SandboxUnavailableError as error:
        print(error)
import intercode_console
sys.exit(intercode_console.main())
"""


@pytest.mark.parametrize(
    ("system", "missing", "says"),
    [
        ("darwin", (), "this is macOS. InterCode works in a virtual machine with Linux, or in"),
        ("win32", ("fcntl", "pwd", "grp", "resource", "termios"), "WSL 2 (wsl --install)"),
        ("freebsd14", (), "this is freebsd14"),
    ],
)
def test_another_system(system: str, missing: tuple[str, ...], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, system, *missing],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.count(says) == 3, done.stdout + done.stderr
    assert done.stderr.startswith("intercode: error: sandboxes need Linux") and says in done.stderr
    assert done.stderr.count("\n") == 1
