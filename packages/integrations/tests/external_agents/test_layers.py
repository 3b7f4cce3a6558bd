"""Agents are installed from a package index into layers: whole, checked, and with nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.main import main
from intercode.errors import ImageError
from intercode_integrations.external_agents import agent_layers, profile
from intercode_sandbox import get_provider
from intercode_sandbox.network import NetworkGate, NetworkPolicy, RefusedConnectionError

PROFILE = """
name = "{name}"
version = "1.0.0"
licence = "MIT"
[install]
from = "{source}"
packages = ["{name}"]
[run]
command = ["x"]
"""
SAYS = b"#!/bin/sh\necho works as $(id -u)\nexit\n"


def _npm_tarball(manifest: dict[str, Any], files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, data in {"package.json": json.dumps(manifest).encode(), **files}.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(written.getvalue(), mtime=0)


def _wheel() -> bytes:
    written = io.BytesIO()
    info = "pytiny-1.0.0.dist-info"
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("pytiny.py", "def main():\n    print('works')\n")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: pytiny\nVersion: 1.0.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\npytiny = pytiny:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return written.getvalue()


class Index(ThreadingHTTPServer):
    """An index of both kinds. Its packages are what a test puts into ``files``."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked: list[str] = []
        self.keys: set[str] = set()
        self.stopped = threading.Event()
        """Set when a request for the file ``stop`` has come, which is not answered."""
        self.stop = ""
        self.files: dict[str, bytes] = {}
        self.fill(SAYS)

    def fill(self, program: bytes) -> None:
        """Offer the agent ``tiny``, a package and its binary for a machine, and ``pytiny``."""
        manifest = {"name": "tiny", "version": "1.0.0", "bin": {"tiny": "tiny.js"}}
        manifest["scripts"] = {"postinstall": "touch /opt/agents/tiny/ran"}  # type: ignore[assignment]
        manifest["optionalDependencies"] = {"tiny-linux": "1.0.0", "tiny-other": "1.0.0"}  # type: ignore[assignment]
        binary = program + b"#" * 1_100_000
        self._npm(manifest, {"tiny.js": b"no node here"})
        self._npm({"name": "tiny-linux", "version": "1.0.0", "os": ["linux"]}, {"bin/tiny": binary})
        self._npm({"name": "tiny-other", "version": "1.0.0", "os": ["aix"]}, {"bin/tiny": binary})
        wheel, name = _wheel(), "pytiny-1.0.0-py3-none-any.whl"
        checksum = hashlib.sha256(wheel).hexdigest()
        page = f'<!DOCTYPE html><a href="/{name}#sha256={checksum}">{name}</a>'
        self.files |= {"/simple/pytiny/": page.encode(), f"/{name}": wheel}

    def _npm(self, manifest: dict[str, Any], files: dict[str, bytes]) -> None:
        name = manifest["name"]
        tarball = _npm_tarball(manifest, files)
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
        dist = {"tarball": f"{self.url}/{name}.tgz", "integrity": integrity}
        packument = {"name": name, "dist-tags": {"latest": "1.0.0"}}
        packument["versions"] = {"1.0.0": {**manifest, "dist": dist}}
        self.files |= {f"/{name}": json.dumps(packument).encode(), f"/{name}.tgz": tarball}


class _Answers(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.keys.add(self.headers.get("Authorization", ""))
        if self.path == self.server.stop:
            self.server.stopped.set()
            self.rfile.read(1)  # until the client is gone
            return
        body = self.server.files.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header(
            "Content-Type", "text/html" if "simple" in self.path else "application/json"
        )
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index that this machine's npm and pip are set to, and a cache without agents."""
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    for name, source in (("tiny", "npm"), ("pytiny", "pypi")):
        (profiles / f"{name}.toml").write_text(PROFILE.format(name=name, source=source))
    monkeypatch.setattr(profile, "FOLDER", profiles)
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "cache"))
    with Index() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("npm_config_registry", server.url)
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        yield server
        server.shutdown()


def _kept() -> list[str]:
    return sorted(path.name for path in Path(os.environ["INTERCODE_CACHE"], "agents").glob("*"))


def _says(layer: agent_layers.AgentLayer, *argv: str) -> str:
    provider = get_provider("native")
    try:
        sandbox = provider.start(f"host+{layer.path}")
        return sandbox.exec(argv).stdout.decode()
    finally:
        provider.close()


def test_an_agent_of_npm(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agents", "install", "tiny", "--json", "--quiet"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["installed"]
    layer = agent_layers.installed_layer(agent_layers.find_recipe("tiny"))
    assert layer is not None and told["path"] == layer.path
    assert agent_layers.find_layer(profile.find_profile("tiny")) == Path(layer.path)
    assert set(layer.packages) == {"tiny@1.0.0", "tiny-linux@1.0.0"}
    assert all(checksum.startswith("sha512-") for checksum in layer.packages.values())
    assert _says(layer, "/opt/agents/tiny/bin/tiny") == "works as 0\n"
    assert "ran" not in _says(layer, "ls", "/opt/agents/tiny")  # its script was not run

    index.asked.clear()
    assert main(["agents", "install", "tiny"]) == 0  # it is there
    assert not index.asked
    capsys.readouterr()
    assert main(["agents", "list", "--json"]) == 0
    listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)["agents"]}
    assert listed["tiny"]["installed"]["sha256"] == layer.sha256
    assert listed["pytiny"]["installed"] is None


def test_a_second_build_is_compared_with_the_first(
    index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agents", "install", "tiny"]) == 0
    first = agent_layers.installed_layer(agent_layers.find_recipe("tiny"))
    assert main(["agents", "remove", "tiny"]) == 0
    assert agent_layers.installed_layer(agent_layers.find_recipe("tiny")) is None

    index.fill(b"#!/bin/sh\necho stolen\nexit\n")  # of the same version
    capsys.readouterr()
    assert main(["agents", "install", "tiny"]) == 1
    assert "npm did not install node_modules/tiny-linux" in capsys.readouterr().err
    assert [name for name in _kept() if name.endswith(".tar") or name.startswith(".")] == []

    index.fill(SAYS)
    assert main(["agents", "install", "tiny"]) == 0
    again = agent_layers.installed_layer(agent_layers.find_recipe("tiny"))
    assert first is not None and again is not None and again.sha256 == first.sha256


def test_an_agent_of_pypi_and_a_password(
    index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{index.url}/simple".replace("://", "://reader:hunter2@")
    monkeypatch.setenv("PIP_INDEX_URL", url)
    assert main(["agents", "install", "pytiny"]) == 0
    layer = agent_layers.installed_layer(agent_layers.find_recipe("pytiny"))
    assert layer is not None and set(layer.packages) == {"pytiny==1.0.0"}
    assert _says(layer, "/opt/agents/pytiny/bin/pytiny") == "works\n"
    assert f"Basic {base64.b64encode(b'reader:hunter2').decode()}" in index.keys
    assert main(["agents", "remove", "pytiny"]) == 0
    assert main(["agents", "install", "pytiny"]) == 0  # by its checksums

    kept = [path.read_bytes() for path in Path(layer.path).parent.iterdir()]
    assert not any(b"hunter2" in data for data in kept)
    assert main(["agents", "remove", "pytiny"]) == 0
    index.files["/pytiny-1.0.0-py3-none-any.whl"] = b"another"
    assert main(["agents", "install", "pytiny"]) == 1
    assert "hunter2" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("url", ["ftp://reader:hunter2@host/simple", "http://a:hunter2@host:port/"])
def test_an_index_that_is_no_url_is_told_without_its_password(
    index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", url)
    assert main(["agents", "install", "pytiny"]) == 2
    message = "".join(capsys.readouterr())
    assert "set PIP_INDEX_URL" in message and "hunter2" not in message


def _carrying(release: str) -> None:
    """Let ``pytiny`` carry a Python of this release."""
    text = PROFILE.format(name="pytiny", source="pypi")
    text = text.replace("[run]", f'python = "{release}"\n[run]')
    (profile.FOLDER / "pytiny.toml").write_text(text)


def test_an_agent_carries_its_python(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if sys.base_prefix == "/usr":
        pytest.skip("not for a Python of Debian: its parts lie in several folders")
    release = f"{sys.version_info[0]}.{sys.version_info[1]}"
    pyenv = tmp_path / "pyenv" / "versions" / f"{release}.0" / "bin"
    pyenv.mkdir(parents=True)
    (pyenv / f"python{release}").symlink_to(Path(sys.executable).resolve())
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path))
    _carrying(release)
    layer = agent_layers.install("pytiny", print)
    first = layer.packages
    python = f"python=={platform.python_version()}"
    assert set(first) == {python, "pytiny==1.0.0"} and first[python].startswith("sha256:")
    assert _says(layer, "/opt/agents/pytiny/bin/pytiny") == "works\n"
    code = "import sqlite3, ssl, sys; print(sys.base_prefix, open('/proc/self/maps').read())"
    prefix, maps = _says(layer, "/opt/agents/pytiny/bin/python", "-c", code).split(" ", 1)
    assert prefix == "/opt/agents/pytiny/python"
    mapped = {line.split()[-1] for line in maps.splitlines() if "libpython" in line}
    assert all(path.startswith(prefix) for path in mapped)

    agent_layers.remove("pytiny")
    assert agent_layers.install("pytiny", print).packages == first


def test_a_python_that_is_not_here(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    _carrying("3.99")
    assert main(["agents", "install", "pytiny"]) == 2
    assert "uv python install 3.99" in capsys.readouterr().err
    assert not index.asked and not _kept()


def test_certificates_and_settings_of_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_CERT", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"):
        (tmp_path / name).write_text(name)
        monkeypatch.delenv(name, raising=False)
    own = agent_layers._certificates()
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(tmp_path / "NODE_EXTRA_CA_CERTS"))
    assert agent_layers._certificates() == own + b"NODE_EXTRA_CA_CERTS"
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "SSL_CERT_FILE"))
    assert agent_layers._certificates() == b"SSL_CERT_FILE\nNODE_EXTRA_CA_CERTS"
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "PIP_CERT"))
    assert agent_layers._certificates() == b"PIP_CERT\nNODE_EXTRA_CA_CERTS"
    assert agent_layers._read_client_setting("no-such-program", "config") == ""


def test_refused_before_any_work(
    index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agents", "install", "tiny", "tinny"]) == 2
    assert "no agent 'tinny' to install; did you mean 'tiny'?" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{port}")
    assert main(["agents", "install", "tiny"]) == 1
    said = capsys.readouterr().err
    assert f"127.0.0.1:{port} cannot be reached" in said and "npm_config_registry" in said
    monkeypatch.setattr(agent_layers, "SEARCH_PATH", "/nowhere")
    assert main(["agents", "install", "tiny"]) == 2
    assert "installed by npm" in capsys.readouterr().err
    assert not index.asked and not _kept()


def test_a_killed_build_leaves_nothing(index: Index) -> None:
    index.stop = "/tiny-linux.tgz"
    code = (
        "import sys; from pathlib import Path\n"
        "from intercode_integrations.external_agents import agent_layers, profile\n"
        "profile.FOLDER = Path(sys.argv[1]); agent_layers.install('tiny', print)"
    )
    builder = subprocess.Popen([sys.executable, "-c", code, str(profile.FOLDER)])
    try:
        assert index.stopped.wait(60)
    finally:
        builder.send_signal(signal.SIGKILL)
        builder.wait()
    assert agent_layers.installed_layer(agent_layers.find_recipe("tiny")) is None
    assert [name for name in _kept() if not name.startswith(".")] == []
    index.stop = ""
    assert main(["agents", "install", "tiny"]) == 0
    assert _kept() == [f"tiny-1.0.0-{os.uname().machine}.{kind}" for kind in ("json", "tar")]


@pytest.mark.parametrize("name", ["etc/passwd", "opt/agents/other/x", "opt/agents/tiny/../../x"])
def test_a_layer_has_files_of_its_agent_only(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "layer.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("opt/agents/tiny/x"))
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(ImageError, match="a file outside of its folder"):
        agent_layers._check_members(tmp_path / "layer.tar", "tiny")


def test_only_an_operators_names_may_be_private() -> None:
    def resolve(*_: object, **__: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        policy = NetworkPolicy.parse([f"mirror.example:{port}"])
        NetworkGate(policy, resolve, private=True).connect_to_host("mirror.example", port).close()
        with pytest.raises(RefusedConnectionError):
            NetworkGate(policy, resolve, private=True).connect_to_host("other.example", port)
        with pytest.raises(RefusedConnectionError):
            NetworkGate(policy, resolve).connect_to_host("mirror.example", port)


def test_every_profile_that_installs_is_pinned() -> None:
    found = agent_layers.recipes()
    assert {"claude-code", "codex", "openhands", "terminus"} <= set(found)
    assert all(recipe.version and recipe.licence for recipe in found.values())
