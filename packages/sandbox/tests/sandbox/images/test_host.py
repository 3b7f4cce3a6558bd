"""The host's own system as an image."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from intercode_sandbox.errors import ImageError
from intercode_sandbox.images import host, resolve
from intercode_sandbox.images.cache import ImageCache

from . import as_root, run_python


def test_host() -> None:
    image = resolve("host")
    (layer,) = image.layers
    assert image.host and image.cwd == "/root"
    assert image.env["HOME"] == "/root" and "INTERCODE_CACHE" not in image.env
    assert stat.S_IMODE((layer / "root").stat().st_mode) == 0o700
    for name in ("tmp", "var/tmp", "run/lock"):
        assert stat.S_IMODE((layer / name).stat().st_mode) == 0o1777
    for name in ("usr", "proc", "sys", "dev", "home", "var/log", "etc/alternatives"):
        assert stat.S_IMODE((layer / name).stat().st_mode) == 0o755
    assert not list((layer / "usr").iterdir())
    for name in ("bin", "lib", "sbin"):
        if Path("/", name).is_symlink():
            assert (layer / name).readlink() == Path("/", name).readlink()
    users = (layer / "etc/passwd").read_text()
    assert users.startswith("root:x:0:0:root:/root:/bin/bash\n")
    assert all(line.count(":") == 6 for line in users.splitlines())
    assert "nogroup:x:65534:\n" in (layer / "etc/group").read_text()
    assert (layer / "etc/alternatives/awk").is_symlink() == Path("/etc/alternatives/awk").exists()


def test_host_has_nothing_of_its_owner() -> None:
    (layer,) = resolve("host").layers
    etc = {path.name for path in (layer / "etc").iterdir()}
    assert not etc & {"shadow", "gshadow", "resolv.conf", "machine-id", "ssh", "gitconfig"}
    name = os.uname().nodename
    assert name not in (layer / "etc/hosts").read_text().split()
    assert (layer / "etc/hostname").read_text() == "intercode\n"
    theirs = {line.split(":")[0] for line in Path("/etc/passwd").read_text().splitlines()}
    ours = {line.split(":")[0] for line in (layer / "etc/passwd").read_text().splitlines()}
    assert not {user for user in ours & theirs if user.startswith(("systemd", "postgres"))}


def test_host_hides_what_is_registered_or_imported_from_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered, site, checkout = (tmp_path / name for name in ("mine", "site", "checkout"))
    source = checkout / "packages/gym/src"
    names = ("intercode", "intercode_paper", "intercode_gym-2.0.0.dist-info", "other")
    for folder in (registered, source / "intercode", *map(site.joinpath, names)):
        folder.mkdir(parents=True)
    for folder in (source.parent, checkout):
        (folder / "pyproject.toml").touch()
    (site / "intercode-program").touch()
    monkeypatch.setattr(host, "host_mounts", lambda: (str(tmp_path),))
    monkeypatch.setattr(host, "_cached_private_paths", lambda cache: ())
    assert str(registered) not in host.resolve_hidden_paths()
    monkeypatch.setitem(host.PACKAGES, "my_package", registered)
    assert str(registered) in host.resolve_hidden_paths()
    unreadable = str(tmp_path / ("x" * 999))
    monkeypatch.setattr(sys, "path", [*sys.path, "", "gone", unreadable, str(site), str(source)])
    expected = {registered, checkout, *map(site.joinpath, names[:3])}
    hidden = set(map(Path, host.resolve_hidden_paths()))
    assert expected <= hidden
    assert not {site, site / "other", site / "intercode-program"} & hidden


@as_root
@pytest.mark.defends("host leak")
def test_host_hides_what_is_not_for_other_users(tmp_path: Path) -> None:
    """A sandbox's root is the owner of the files of the machine's root."""
    with tempfile.TemporaryDirectory(dir="/usr/local", prefix="intercode-test-") as top:
        Path(top).chmod(0o755)
        modes = {"secret": 0o600, "of-a-group": 0o640, "text": 0o644, "program": 0o711}
        for name, mode in modes.items():
            Path(top, name).write_text(name)
            Path(top, name).chmod(mode)
        for name, mode in {"closed": 0o700, "listed": 0o744, "passed": 0o711}.items():
            Path(top, name).mkdir()
            Path(top, name, "file").write_text(name)
            Path(top, name).chmod(mode)
        code = """
            import sys
            from intercode_sandbox import get_provider
            sandbox = get_provider().start()
            done = sandbox.exec(["sh", "-c", 'cd "$0"; cat * */*; exit 0', sys.argv[1]])
            print(done.stdout.decode())
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), top],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "programtextpassed\n"


def test_private_places_are_looked_for_again_when_programs_change(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "host_mounts", lambda: (str(machine),))

    def places() -> tuple[Path, ...]:
        host._cached_private_paths.cache_clear()
        return host._cached_private_paths(str(tmp_path))

    try:
        assert machine / "etc/secret" not in places()
        (machine / "etc/secret").touch(0o600)
        assert machine / "etc/secret" not in places(), "the cache has what it was"
        (machine / "bin/jq").touch(0o755)
        assert machine / "etc/secret" in places()
        monkeypatch.setattr(host, "_MAX_PRIVATE_PATHS", 0)
        with pytest.raises(ImageError, match="without permissions for other users"):
            places()
    finally:
        host._cached_private_paths.cache_clear()


def digest() -> str:
    """As another process finds it."""
    ImageCache.default()._memory.clear()
    return resolve("host").digest


@pytest.mark.parametrize("place", ["bin", "etc/alternatives"])
def test_host_is_what_is_installed_whenever_that_was(machine: Path, place: str) -> None:
    before = digest()
    (machine / place / "jq").symlink_to("/usr/share/jq")
    assert (installed := digest()) != before
    (machine / place / "jq").unlink()
    (machine / place / "jq.dpkg-new").symlink_to("/usr/share/jq")
    assert digest() == before, "as it was; and what is only half there does not count"
    (machine / place / "jq.dpkg-new").rename(machine / place / "jq")
    assert digest() == installed
    (machine / place / "jq").unlink()
    (machine / place / "jq").symlink_to("/usr/share/jq-2")
    assert digest() not in (before, installed)


def test_host_tells_an_upgrade_by_its_programs(machine: Path) -> None:
    program, found = machine / "bin/awk", {digest()}
    for change in (
        lambda: program.write_text("x"),
        lambda: os.utime(program, (1, 1)),
        lambda: program.chmod(0o700),
    ):
        change()
        found.add(digest())
    assert len(found) == 4


def test_host_while_packages_are_installed(machine: Path) -> None:
    """Whatever has just gone, nothing fails."""
    (machine / "etc/ld.so.conf.d").mkdir()
    folders = [machine / name for name in ("bin", "etc/alternatives", "etc/ld.so.conf.d")]
    program = """
        import os, sys
        print("at work", flush=True)
        while True:
            for place in sys.argv[1:]:
                os.symlink("/etc/hostname", f"{place}/package")
                os.unlink(f"{place}/package")
    """
    installer = run_python(program, *folders)
    try:
        assert installer.stdout is not None and installer.stdout.readline() == "at work\n"
        for _ in range(100):
            host._digest(host._files(), host._alternatives())
    finally:
        installer.kill()
        installer.communicate()
    assert digest()


def test_host_is_the_same_under_any_umask(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def modes(folder: Path) -> dict[str, int]:
        return {str(p.relative_to(folder)): p.lstat().st_mode for p in folder.rglob("*")}

    first = resolve("host")
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "other"))
    old = os.umask(0o077)
    try:
        second = resolve("host")
    finally:
        os.umask(old)
    assert first.digest == second.digest
    assert modes(first.layers[0]) == modes(second.layers[0])


def test_host_names_the_missing_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in host._PROGRAMS:
        if program not in ("awk", "diff"):
            (tmp_path / program).touch(0o755)
    monkeypatch.setattr(host, "SEARCH_PATH", str(tmp_path))
    with pytest.raises(ImageError, match="apt-get install diffutils mawk"):
        resolve("host")


def test_host_takes_no_argument() -> None:
    with pytest.raises(ImageError, match="no argument"):
        resolve("host:x")
