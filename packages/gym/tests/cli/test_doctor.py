"""`doctor`: what this machine can do, what that means, and the command that mends it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from intercode.cli import doctor
from intercode.interpreters import python_start
from intercode_sandbox.doctor import check_native
from intercode_sandbox.native.provider import NativeProvider
from ordinary import UID, ordinary_user
from sources import path_of

from .conftest import Run, command, keys, parsed

NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


def by_name(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in told["checks"]}


def test_doctor(cli: Run) -> None:
    told = parsed(cli("doctor", "--json", env=NO_ENGINE))
    keys(told, "usable sandboxes checks")
    assert told["usable"] and told["sandboxes"] == {"native": True, "docker": False}
    found = by_name(told)
    assert len(found) == len(told["checks"]), "every name stands once"
    for check in told["checks"]:
        keys(check, "group name ok detail fix")
        assert check["ok"] is not False and check["detail"]
    groups = {"python", "native", "docker", "machine", "environments"}
    assert {check["group"] for check in told["checks"]} == groups
    assert found["workers"]["ok"]
    for name in ("bash", "sql", "python", "ctf", "swe"):
        assert found[f"env {name}"]["detail"] == "a task was played to its reward"
    assert found["sandbox"]["ok"] and "cgroup" in found["memory limit"]["detail"]
    assert "GiB free" in found["image cache"]["detail"] and "GiB free" in found["runs"]["detail"]
    git = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout
    assert found["git"]["detail"].split(":")[0] in git
    assert found["docker"]["ok"] is None and found["docker"]["fix"]


def test_an_environment_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is played with a worker that crashes; the other environments are as they are."""
    folder = str(path_of("faulty"))
    preload = (*python_start.PRELOAD, "aborts_at_actions")
    with closing(NativeProvider(preload=preload, path=[folder])) as broken:
        monkeypatch.setattr(python_start, "provider", lambda name: broken)
        [check] = doctor._check_environment("python", "print(1)", "1", [])
    assert check.ok is False and "cannot run a worker: it crashed (Aborted)" in check.detail
    [check] = doctor._check_environment("sql", "SELECT 1", "1", [])
    assert check.ok


def test_a_python_that_keeps_to_no_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"cgroup": 0, "controllers": [], "fork_flaw": "Fatal Python error: x\n"}
    monkeypatch.setattr(NativeProvider, "facts", lambda self: facts)
    [check] = [check for check in check_native() if check.name == "workers"]
    assert check.ok is None and check.detail.endswith("Fatal Python error: x")


def test_for_people(cli: Run) -> None:
    shown = cli("doctor", env=NO_ENGINE).stdout
    assert shown.endswith("\nSandboxes can be used: --sandbox native.\n")
    assert "\nok    git " in shown
    assert "\nnote  docker " in shown and "to fix it: " in shown


def test_what_is_not_installed_is_a_note_with_a_command(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "apt-get").symlink_to(shutil.which("true") or "/bin/true")
    told = parsed(cli("doctor", "--json", env={**NO_ENGINE, "PATH": f"{tmp_path}/bin"}))
    assert told["usable"]
    found = by_name(told)
    for name in ("bash", "git", "gcc", "skopeo"):
        assert found[name]["ok"] is None and found[name]["detail"].startswith("not installed: ")
        assert found[name]["fix"] == f"apt-get install {name}"
    assert found["sqlite"]["ok"]
    assert found["debootstrap"]["ok"] or os.geteuid(), "it is in /usr/sbin, for root"


def test_what_is_for_root_alone_is_not_for_a_user_to_install(tmp_path: Path) -> None:
    with ordinary_user() as user:
        env = {**user.env, **NO_ENGINE, "PATH": "/usr/local/bin:/usr/bin:/bin"}  # no sbin
        argv = [*user.prefix, *command("doctor", "--json")]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=280)
    found = by_name(parsed(done))
    assert found["debootstrap"]["detail"].endswith("only root can build them")
    assert not found["debootstrap"]["fix"] and not found["memory limit"]["fix"]
    assert (
        f"all with your id, {UID if os.geteuid() == 0 else os.geteuid()}"
        in found["sandbox"]["detail"]
    )
    assert re.match(r"sudo |su -c '", found["docker"]["fix"])


def test_a_cache_in_a_closed_folder(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with ordinary_user() as user:
        for words in ("doctor", "run bash --limit 1", "clean --all --dry-run"):
            env = {**user.env, **NO_ENGINE, "INTERCODE_CACHE": f"{tmp_path}/closed/cache"}
            argv = [*user.prefix, *command(*words.split())]
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=280)
            assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
            assert f"cannot store images in {tmp_path}/closed/cache" in done.stdout + done.stderr


def test_a_profile_for_apparmor(cli: Run) -> None:
    profile = cli("doctor", "--apparmor").stdout
    assert f'profile intercode "{Path(sys.executable).resolve()}" flags=(unconfined) {{' in profile
    assert "\n  userns,\n" in profile and profile.count("{") == profile.count("}")


def test_no_sandboxes_at_all() -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    with ordinary_user() as user:
        argv = [*user.prefix, "unshare", "-Urm", "sh", "-c", forbid, "sh", *command("doctor")]
        env = {**user.env, **NO_ENGINE}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL  sandbox " in done.stdout
    assert "to fix it: sysctl -w user.max_user_namespaces=" in done.stdout
    assert done.stdout.endswith("Sandboxes cannot be used on this machine yet.\n")


def test_an_engine_in_a_closed_folder(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with ordinary_user() as user:
        env = {**user.env, "DOCKER_HOST": f"unix://{tmp_path}/closed/socket"}
        argv = [*user.prefix, *command("doctor")]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "closed/socket is not for this user" in done.stdout
