"""What sets two runs apart, by their records; and what goes into these."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from intercode.evaluate import manifest
from intercode.evaluate.manifest import package_versions
from intercode.evaluate.manifest_diff import differences, find_machine_drift
from intercode.evaluate.tool_versions import TOOLS, tool_versions
from intercode_sandbox import get_provider
from intercode_sandbox.images.cache import ImageCache
from intercode_sandbox.images.host import changes

MANIFEST: dict[str, Any] = {
    "dataset": {"name": "d", "source": "d.json", "digest": "1", "tasks": 1},
    "env": {
        "env": "bash",
        "image": None,
        "images": {"host+/home/a/x.tar": "1"},
        "limits": {"m": 1},
    },
    "agent": {
        "name": "/home/a/agent.py:make",
        "options": {"recording": "/home/a/r"},
        "digest": "1",
    },
    "seed": 0,
    "excluded": {},
    "sessions": [
        {
            "versions": {"python": "3.11.2", "code": "1", "commit": "abc+", "numpy": "1"},
            "host": {"release": "6.1", "cpus": 2},
            "sandbox": {"cgroup": 1},
            "tools": {"host": {"git": "2.39"}},
        }
    ],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    manifest = copy.deepcopy(MANIFEST)
    *folders, name = path.split("/")
    place: Any = manifest
    for folder in folders:
        place = place[int(folder) if isinstance(place, list) else folder]
    place[name] = value
    return manifest


@pytest.mark.parametrize(
    ("path", "value", "what", "advice"),
    [
        ("dataset/digest", "2", "dataset.digest", "from d.json"),
        ("env/env", "sql", "env.env", "leave out the option"),
        ("agent/digest", "2", "agent.digest", "--agent"),
        ("seed", 1, "seed", "leave out --seed"),
        ("excluded", {"t1": "why"}, "excluded.t1", "none"),
        ("sessions/0/versions/python", "3.12", "versions.python", "use Python 3.11.2"),
        ("sessions/0/versions/code", "2", "versions.code", "git checkout abc"),
        ("sessions/0/versions/numpy", "2", "versions.numpy", "pip install 'numpy==1'"),
        ("sessions/0/host/release", "6.2", "host.release", "machine"),
        ("sessions/0/sandbox/cgroup", 2, "sandbox.cgroup", "machine"),
        ("sessions/0/tools", {"host": {"git": "2.40"}}, "tools.host.git", "image"),
        ("sessions/0/tools", {}, "tools.host.git", "image"),
    ],
)
def test_what_differs_is_named(path: str, value: Any, what: str, advice: str) -> None:
    [found] = differences(MANIFEST, changed(path, value))
    assert found.what == what and advice in found.advice
    assert differences(MANIFEST, changed(path, value), accept=[what]) == []
    assert differences(MANIFEST, changed(path, value), accept=[what.split(".")[0]]) == []
    assert len(differences(MANIFEST, changed(path, value), accept=[what[:-1]])) == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dataset/source", "/else/d.json"),
        ("dataset/name", "e"),
        ("env/images", {"host+/root/.cache/x.tar": "1"}),
        ("env/images", {"host+./x.tar": "1"}),
        ("agent/name", "agent.py:make"),
        ("agent/options", {"recording": "r"}),
        ("sessions/0/host/cpus", 64),
        ("sessions/0/versions/commit", "abc"),
        ("sessions/0/options", {"data": "x"}),
    ],
)
def test_what_makes_no_difference(path: str, value: Any) -> None:
    assert differences(MANIFEST, changed(path, value)) == []


def test_a_machine_that_has_changed_is_no_image_to_build() -> None:
    before, now = (changed("env/images", {"host": digest}) for digest in "12")
    [found] = differences(before, now)
    assert found.what == "env.images.host" and "installed" in found.advice


@pytest.mark.parametrize(
    ("image", "followed"), [("host", True), ("host+./x.sh", True), ("base", False)]
)
def test_only_the_image_host_follows_the_machine(image: str, followed: bool) -> None:
    def manifest(digest: str, release: str, git: str) -> dict[str, Any]:
        made = changed("env/images", {image: digest})
        made["sessions"][0] |= {"host": {"release": release, "machine": "x"}}
        return made | {"sessions": [made["sessions"][0] | {"tools": {"host": {"git": git}}}]}

    before = manifest("1", "6.1", "2.39")
    found = differences(before, manifest("2", "6.2", "2.40"))
    assert len(found) == 3
    assert find_machine_drift(found, before) == (found if followed else [])
    before["sessions"][0]["host"]["machine"] = "y"
    assert find_machine_drift(differences(before, manifest("1", "6.1", "2.39")), before) == []


def test_changes_of_packages_come_before_those_of_programs(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path)
    for digest, installed in {
        "a": {"git": "1", "jq": "1", "/bin/git": "x"},
        "b": {"git": "2", "vim": "9", "/bin/git": "y"},
    }.items():
        (tmp_path / "images" / digest).mkdir()
        record = {"layers": [f"{digest}/layer"], "built": {"installed": installed}}
        (tmp_path / "images" / digest / "image.json").write_text(json.dumps(record))
    assert changes("a", "b", cache) == ["git 1 → 2", "jq removed", "vim 9 installed"]
    assert changes("a", "c", cache) == []


def test_another_back_end_is_one_difference() -> None:
    manifest = changed("sessions/0/sandbox", {"engine": "20.10"})
    manifest["env"]["sandbox"] = "docker"
    [found] = differences(manifest, MANIFEST)
    assert found.what == "env.sandbox" and "--sandbox docker" in found.advice


def test_all_sessions_count() -> None:
    manifest = copy.deepcopy(MANIFEST)
    manifest["sessions"].append(copy.deepcopy(manifest["sessions"][0]))
    assert differences(manifest, MANIFEST) == []
    manifest["sessions"][1]["host"]["release"] = "6.2"
    [found] = differences(manifest, MANIFEST)
    assert (found.what, found.recorded, found.now) == ("host.release", "6.2", "6.1")


# -- tools and code --------------------------------------------------------------------------------


def test_tools_are_asked_for_once_for_each_base(tmp_path: Path) -> None:
    (tmp_path / "more.sh").write_text("touch /more")
    images = ["host", f"host+{tmp_path}/more.sh"]
    found = tool_versions(get_provider(), images)
    assert list(found) == ["host"] and set(found["host"]) <= {*TOOLS, "system"}
    said = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout
    assert found["host"]["git"] in said


def test_an_image_without_tools(tmp_path: Path) -> None:
    for name in ("usr", "proc", "dev", "tmp"):
        (tmp_path / "root" / name).mkdir(parents=True)
    assert tool_versions(get_provider(), [str(tmp_path / "root")]) == {str(tmp_path / "root"): {}}


def test_code_has_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packages" / "gym" / "src" / "intercode"
    package.mkdir(parents=True)
    (package / "a.py").write_text("a = 1\n")
    monkeypatch.setattr(manifest, "_PACKAGES", (package,))

    def versions() -> dict[str, str]:
        return package_versions.__wrapped__()

    one = versions()
    (package / "a.pyc").write_bytes(b"made")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.cpython-310.pyc.140012345").write_bytes(b"being made")
    assert versions() == one
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "packages/gym/src/intercode/a.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    (package / "a.pyc").unlink()
    shutil.rmtree(package / "__pycache__")
    committed = versions()
    assert committed["code"] == one["code"] and len(committed["commit"]) == 40
    (package / "a.py").write_text("a = 2\n")
    other = versions()
    assert other["code"] != one["code"] and other["commit"] == f"{committed['commit']}+"


@pytest.mark.parametrize("folder", ["packages/gym/src", "lib/python3.13/site-packages", ""])
def test_the_commit_of_anothers_repository_is_not_ours(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InterCode is installed in a virtual environment there, which need not be committed."""
    package = tmp_path / folder / "intercode"
    package.mkdir(parents=True)
    (package / "a.py").touch()
    (tmp_path / "theirs.py").touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run([*git, "init", "-q"], check=True)
    committed = "theirs.py" if folder.startswith("packages") else "."
    subprocess.run([*git, "add", committed], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    monkeypatch.setattr(manifest, "_PACKAGES", (package,))
    assert "commit" not in package_versions.__wrapped__()
