"""Image layers with command-line agents, installed from package indexes in a native sandbox.

The folder ``ROOT/agents`` of the cache contains::

    NAME-VERSION-MACHINE.tar    the layer, with /opt/agents/NAME; either whole or absent
    NAME-VERSION-MACHINE.json   its contents: each package with its checksum
    .NAME-X/                    an unfinished build; stale if no process holds NAME's lock

npm or pip runs in a sandbox that reaches only a package index. Each package must have the checksum
that the index states. If the same version of the agent was installed before, each package must have
the checksum of the earlier installation instead.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import select
import shutil
import socket
import ssl
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import msgspec

from intercode.errors import FetchError, ImageError, UsageError
from intercode_integrations.external_agents import python_runtimes
from intercode_integrations.external_agents.profile import (
    SYSTEM,
    AgentInstallSteps,
    AgentProfile,
    find_profile,
    names,
)
from intercode_sandbox import proxy
from intercode_sandbox.base import Limits, SandboxBackend
from intercode_sandbox.host_files import (
    cache_root,
    file_lock,
    remove_tree,
    sha256,
    write_atomically,
)
from intercode_sandbox.images.base import SEARCH_PATH, Progress
from intercode_sandbox.images.cache import keep_tarball, take_tarball
from intercode_sandbox.network import (
    NetworkGate,
    NetworkPolicy,
    free_port,
    handlers,
    proxy_variables,
)
from intercode_sandbox.privileges import install_command
from intercode_sandbox.spelling_suggestions import hint_text

PREFIX = "/opt/agents"
_LOCK = "/tmp/lock"
_PIP = "/tmp/pip"
_PYTHON_ARCHIVE = "/tmp/python.tar"
_CERTIFICATES = "/tmp/certificates.pem"
_LIMITS = Limits(
    timeout=1800.0, memory=4 << 30, disk=6 << 30, files=400_000, processes=512, open_files=4096
)
_DEFAULT = {"npm": "https://registry.npmjs.org/", "pypi": "https://pypi.org/simple"}
_FILE_HOSTS = {"pypi.org": ("files.pythonhosted.org",)}
"""Host of an index → further hosts from which the index's clients download files."""
_REGISTRY = "npm_config_registry"
_CPUS = {"x86_64": "x64", "aarch64": "arm64"}
"""Machine name of Linux → npm's name for the architecture."""
_WAIT = 10.0
_MAX_ERROR_CHARACTERS = 2000
_CHUNK = 1 << 20


class AgentLayerRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a profile that determines a layer."""

    name: str
    version: str
    licence: str
    install: AgentInstallSteps

    @classmethod
    def from_profile(cls, profile: AgentProfile) -> AgentLayerRecipe | None:
        """Return the recipe of a profile; None if the profile installs nothing."""
        if profile.install is None:
            return None
        return cls(
            name=profile.name,
            version=profile.version,
            licence=profile.licence,
            install=profile.install,
        )


class AgentLayer(msgspec.Struct, frozen=True, kw_only=True):
    """An installed layer with an agent, and facts about its build."""

    name: str
    version: str
    machine: str
    path: str
    """Path of the archive. The name ``IMAGE+PATH`` denotes an image with this layer."""
    size: int
    """Bytes of the archive."""
    sha256: str
    seconds: float
    """Duration of the build, in seconds."""
    packages: dict[str, str]
    """Name and version of each installed package → the package's checksum."""


class _AgentLayerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON file beside a layer's archive, which stays after the archive is removed.

    The next installation of the same version compares its packages with the file.
    """

    layer: AgentLayer
    lock: str
    """Lock file of the package manager, as text."""


def recipes() -> dict[str, AgentLayerRecipe]:
    """Return the recipes of all agents that can be installed, by name."""
    candidates = {name: AgentLayerRecipe.from_profile(find_profile(name)) for name in names()}
    return {name: recipe for name, recipe in candidates.items() if recipe is not None}


def find_recipe(name: str) -> AgentLayerRecipe:
    """Return the recipe of an agent.

    Raises:
        UsageError: No agent that can be installed has this name.
    """
    available_recipes = recipes()
    if name not in available_recipes:
        raise UsageError(
            f"there is no agent {name!r} to install{hint_text(name, available_recipes)}"
        )
    return available_recipes[name]


def installed_layer(recipe: AgentLayerRecipe) -> AgentLayer | None:
    """Return the installed layer of a recipe's version; None if it is not installed."""
    archive_path = _archive_path(recipe)
    record = _read_record(archive_path)
    return record.layer if record and take_tarball(archive_path) else None


def find_layer(profile: AgentProfile) -> Path | None:
    """Return the archive of the layer that a profile needs.

    Returns:
        The archive's path; None if the profile installs nothing.

    Raises:
        UsageError: The profile's agent is not installed.
    """
    if (recipe := AgentLayerRecipe.from_profile(profile)) is None:
        return None
    if (layer := installed_layer(recipe)) is None:
        name = profile.name
        raise UsageError(f"agent {name} is not installed: intercode agents install {name}")
    return Path(layer.path)


def install(name: str, progress: Progress) -> AgentLayer:
    """Build and store an agent's layer, unless the layer exists.

    Args:
        name: The agent's name.
        progress: A function that receives a line of text for each step.

    Returns:
        The layer, new or existing.

    Raises:
        UsageError: The agent does not exist, its package manager or Python is not on this machine,
            or the configured index is not a URL.
        FetchError: The package index cannot be reached.
        ImageError: The build failed, or the index now has other files for the same version.
    """
    recipe = find_recipe(name)
    if layer := installed_layer(recipe):
        return layer
    archive_path = _archive_path(recipe)
    _check_tools(recipe)
    index_url = _index_url(recipe.install.source)
    _check_reached(index_url)
    archive_path.parent.mkdir(parents=True, exist_ok=True)
    report_wait = partial(progress, f"waiting for another process that installs {name}")
    with file_lock(archive_path.parent / f".{name}.lock", on_wait=report_wait):
        if layer := installed_layer(recipe):
            return layer
        # This process holds the lock, so any unfinished build was left by a killed process.
        for stale_folder in archive_path.parent.glob(f".{name}-*"):
            remove_tree(stale_folder)
        scratch = Path(tempfile.mkdtemp(dir=archive_path.parent, prefix=f".{name}-"))
        try:
            return _build(recipe, archive_path, index_url, scratch, progress)
        finally:
            remove_tree(scratch)


def remove(name: str) -> AgentLayer | None:
    """Remove an agent's layer. Cached images that contain the layer remain.

    The JSON file with the packages stays, for comparison at the next installation.

    Returns:
        The removed layer; None if the agent was not installed.

    Raises:
        UsageError: No agent that can be installed has this name.
    """
    layer = installed_layer(find_recipe(name))
    if layer:
        Path(layer.path).unlink(missing_ok=True)
    return layer


def _archive_path(recipe: AgentLayerRecipe) -> Path:
    machine = platform.machine()
    return cache_root() / "agents" / f"{recipe.name}-{recipe.version}-{machine}.tar"


def _read_record(archive_path: Path) -> _AgentLayerRecord | None:
    try:
        return msgspec.json.decode(
            archive_path.with_suffix(".json").read_bytes(), type=_AgentLayerRecord
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ImageError(
            f"cannot read {archive_path.with_suffix('.json')}: {error}; remove it"
        ) from None


# --- the index ---------------------------------------------------------------------------------


def _index_url(source: str) -> str:
    """Return the URL of the package index: the one configured on this machine, or the public one.

    The URL may contain a password, so only `_endpoint` of the URL belongs in messages.

    Args:
        source: ``npm`` or ``pypi``.

    Raises:
        UsageError: The configured text is not a URL of HTTP. The message does not quote the text,
            which may contain a password.
    """
    if source == "npm":
        configured_url = os.environ.get(_REGISTRY) or _read_client_setting(
            "npm", "config", "get", "registry"
        )
    else:
        pip = (sys.executable, "-m", "pip", "config", "get")
        configured_url = os.environ.get("PIP_INDEX_URL") or _read_client_setting(
            *pip, "global.index-url"
        )
    url = configured_url or _DEFAULT[source]
    try:
        _endpoint(url)  # ValueError: the port is not a number, or is too large
        url_parts = urlsplit(url)
        is_usable = url_parts.scheme in ("http", "https") and bool(url_parts.hostname)
    except ValueError:
        is_usable = False
    if not is_usable:
        variable_name = _REGISTRY if source == "npm" else "PIP_INDEX_URL"
        raise UsageError(
            f"the configured index of {source} packages is not a URL such as {_DEFAULT[source]}: "
            f"set {variable_name}"
        )
    return url


def _read_client_setting(*command: str) -> str:
    """Return the output of a command that prints a package manager's setting.

    The result is empty if the command cannot run or fails, for instance because the setting is
    missing.
    """
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def _endpoint(index_url: str) -> tuple[str, int]:
    parsed_url = urlsplit(index_url)
    return parsed_url.hostname or "", parsed_url.port or (
        443 if parsed_url.scheme == "https" else 80
    )


def _check_reached(index_url: str) -> None:
    host, port = _endpoint(index_url)
    try:
        socket.create_connection((host, port), timeout=_WAIT).close()
    except OSError as error:
        raise FetchError(
            f"the package index {host}:{port} cannot be reached: {error.strerror or error}; "
            "connect this machine to a network, name an index within reach (PIP_INDEX_URL, "
            f"{_REGISTRY}), or copy {cache_root() / 'agents'} from a connected machine"
        ) from None


def _network_policy(index_url: str) -> NetworkPolicy:
    host, port = _endpoint(index_url)
    file_hosts = _FILE_HOSTS.get(host, ())
    return NetworkPolicy.parse([f"{name}:{port}" for name in (host, *file_hosts)])


def _check_tools(recipe: AgentLayerRecipe) -> None:
    if recipe.install.source == "pypi" and recipe.install.python != SYSTEM:
        python_runtimes.find_python(recipe.install.python, recipe.name)
        return
    is_npm = recipe.install.source == "npm"
    program, package = ("npm", "npm") if is_npm else ("python3", "python3-pip")
    if shutil.which(program, path=SEARCH_PATH) is None:
        raise UsageError(
            f"{recipe.name} is installed by {program}, which is not in {SEARCH_PATH}: "
            f"{install_command(package)}"
        )


# --- the build ---------------------------------------------------------------------------------


def _build(
    recipe: AgentLayerRecipe, archive_path: Path, index_url: str, scratch: Path, progress: Progress
) -> AgentLayer:
    start_time = time.monotonic()
    previous_record = _read_record(archive_path)
    progress(f"installing {recipe.name} {recipe.version} from {_endpoint(index_url)[0]}")
    build = _install_npm if recipe.install.source == "npm" else _install_pypi
    new_archive = scratch / "layer.tar"
    with _open_sandbox(index_url) as (sandbox, env):
        run = partial(_run, sandbox, env)
        lock_text, checksums = build(
            recipe, index_url, sandbox, run, previous_record.lock if previous_record else None
        )
        progress(f"packing {len(checksums)} packages")
        with new_archive.open("wb") as archive_file:
            _pack(sandbox, f"{PREFIX}/{recipe.name}", archive_file)
    _check_members(new_archive, recipe.name)
    layer = AgentLayer(
        name=recipe.name,
        version=recipe.version,
        machine=platform.machine(),
        path=str(archive_path),
        size=new_archive.stat().st_size,
        sha256=sha256(new_archive),
        seconds=round(time.monotonic() - start_time, 1),
        packages=checksums,
    )
    record_json = msgspec.json.encode(
        _AgentLayerRecord(layer=layer, lock=previous_record.lock if previous_record else lock_text)
    )
    write_atomically(
        archive_path.with_suffix(".json"), msgspec.json.format(record_json, indent=1) + b"\n"
    )
    keep_tarball(new_archive, archive_path)  # last, because the archive marks the installation
    return layer


@contextmanager
def _open_sandbox(index_url: str) -> Iterator[tuple[SandboxBackend, dict[str, str]]]:
    """Start a sandbox that reaches only an index, and yield it with variables for its programs."""
    from intercode_sandbox.native.provider import NativeProvider

    policy = _network_policy(index_url)
    with closing(NativeProvider()) as provider:
        sandbox = provider.start("host", _LIMITS)
        # The index may be on a private network, because this machine's operator chose the index.
        # Hosts that a benchmark chooses must not be on a private network.
        for port, serve in handlers(NetworkGate(policy, private=True), proxy.serve).items():
            sandbox.forward(port, serve)
        sandbox.write_file(_CERTIFICATES, _certificates())
        variable_names = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
        env = dict.fromkeys(variable_names, _CERTIFICATES)
        if policy.hosts:
            env |= proxy_variables(free_port(policy))
        yield sandbox, env


def _certificates() -> bytes:
    """Return the operator's certificates, or this machine's own, and the operator's extra ones."""

    def first_file(*paths: str | None) -> bytes:
        files = [Path(path) for path in paths if path and Path(path).is_file()]
        return files[0].read_bytes() if files else b""

    pip_path, openssl_path, node_path = map(
        os.environ.get, ("PIP_CERT", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")
    )
    certificates = first_file(pip_path, openssl_path, ssl.get_default_verify_paths().cafile)
    # Node adds these certificates to its own, while the other programs have no such variable.
    return certificates + b"\n" + first_file(node_path)


def _run(sandbox: SandboxBackend, env: Mapping[str, str], *argv: str, **extra_env: str) -> bytes:
    """Run a step of the build in the sandbox, and return its standard output.

    Raises:
        ImageError: The step failed. The message quotes the end of its output, without the passwords
            of URLs.
    """
    result = sandbox.exec(argv, env={**env, **extra_env}, cwd="/")
    if not result.ok:
        error_text = (
            (result.stderr or result.stdout)
            .decode(errors="replace")
            .strip()[-_MAX_ERROR_CHARACTERS:]
        )
        error_text = re.sub(r"//[^/@\s]*@", "//", error_text)
        outcome = "did not end in time" if result.timed_out else f"failed with {result.exit_code}"
        raise ImageError(f"{argv[0]} {outcome} in the sandbox:\n{error_text}")
    return result.stdout


_Lock = tuple[str, dict[str, str]]
"""Type: the text of a lock file, and each package's checksum."""


def _install_npm(
    recipe: AgentLayerRecipe,
    index_url: str,
    sandbox: SandboxBackend,
    run: Callable[..., bytes],
    previous_lock: str | None,
) -> _Lock:
    agent_home = f"{PREFIX}/{recipe.name}"
    requirements = _pin_requirements(recipe, "@")
    manifest = {
        "private": True,
        "dependencies": dict(requirement.rsplit("@", 1) for requirement in requirements),
    }
    sandbox.write_file(f"{agent_home}/package.json", msgspec.json.encode(manifest))
    if previous_lock is not None:
        sandbox.write_file(f"{agent_home}/package-lock.json", previous_lock.encode())
    ignore_scripts = "false" if recipe.install.scripts else "true"
    npm_command = "ci" if previous_lock is not None else "install"
    run("npm", npm_command, f"--prefix={agent_home}", f"--ignore-scripts={ignore_scripts}",
        "--no-audit", "--no-fund", "--no-update-notifier", "--omit-lockfile-registry-resolved",
        "--cache=/tmp/npm", npm_config_registry=index_url)  # fmt: skip
    lock_text = sandbox.read_file(f"{agent_home}/package-lock.json").decode()
    installed_lock = msgspec.json.decode(
        sandbox.read_file(f"{agent_home}/node_modules/.package-lock.json")
    )
    checksums = {
        f"{path.rpartition('node_modules/')[2]}@{package['version']}": package.get("integrity", "")
        for path, package in installed_lock["packages"].items()
    }
    if unverified_names := [
        program_name for program_name, checksum in checksums.items() if not checksum
    ]:
        raise ImageError(f"the index has no checksum of {', '.join(unverified_names)}")
    # npm omits an optional package silently if it is missing or has another checksum.
    lock_packages = msgspec.json.decode(lock_text)["packages"]
    required_paths = {
        path for path, package in lock_packages.items() if path and _matches_platform(package)
    }
    if absent_paths := sorted(required_paths - installed_lock["packages"].keys()):
        raise ImageError(
            f"npm did not install {', '.join(absent_paths)}: the index lacks it, or its checksum "
            "differs"
        )
    main_package = requirements[0].rpartition("@")[0]
    package_json = sandbox.read_file(f"{agent_home}/node_modules/{main_package}/package.json")
    programs = msgspec.json.decode(package_json).get("bin", {})
    if isinstance(programs, str):
        programs = {main_package.rpartition("/")[2]: programs}
    run("mkdir", "-p", f"{agent_home}/bin")
    for program_name, script_path in programs.items():
        native_path = _install_native(program_name, agent_home, run)
        link_target = native_path or f"{agent_home}/node_modules/{main_package}/{script_path}"
        run("chmod", "a+rx", link_target)
        run("ln", "-s", link_target, f"{agent_home}/bin/{program_name}")
    return lock_text, checksums


def _matches_platform(package: Mapping[str, Any]) -> bool:
    """Return whether a package of npm's lock file is built for this machine."""
    platform_facts = {"os": "linux", "cpu": _CPUS.get(platform.machine(), ""), "libc": "glibc"}
    return all(
        value in package.get(field_name, [value]) for field_name, value in platform_facts.items()
    )


def _install_native(program_name: str, agent_home: str, run: Callable[..., bytes]) -> str:
    """Return the path of a program's native binary, which needs no Node.js.

    The result is empty if no such binary, or more than one, is installed.
    """
    output = run(
        "find", f"{agent_home}/node_modules", "-type", "f", "-name", program_name, "-size", "+1000k"
    )
    binary_paths = output.decode().split("\n")[:-1]
    # Prefer the build for the GNU C library, which images for agents from PyPI need in any case.
    binary_paths = [
        path for path in binary_paths if f"-musl/{program_name}" not in path
    ] or binary_paths
    return binary_paths[0] if len(binary_paths) == 1 else ""


def _install_pypi(
    recipe: AgentLayerRecipe,
    index_url: str,
    sandbox: SandboxBackend,
    run: Callable[..., bytes],
    previous_lock: str | None,
) -> _Lock:
    agent_home = f"{PREFIX}/{recipe.name}"
    python_path, pip_python, checksums = "python3", "python3", dict[str, str]()
    if recipe.install.python != SYSTEM:
        local_python = python_runtimes.find_python(recipe.install.python, recipe.name)
        python_archive = python_runtimes.pack_python(local_python, f"{agent_home}/python")
        sandbox.write_file(_PYTHON_ARCHIVE, python_archive)
        run("tar", "-C", "/", "-xf", _PYTHON_ARCHIVE)
        python_path, pip_python = (
            f"{agent_home}/python/bin/python{local_python.release}",
            f"{_PIP}/bin/python",
        )
        run(
            python_path, "-m", "venv", _PIP
        )  # the system's pip may be too old for this Python release
        checksums[f"python=={local_python.version}"] = (
            f"sha256:{hashlib.sha256(python_archive).hexdigest()}"
        )
    run(python_path, "-m", "venv", "--without-pip", agent_home)
    requirements = _pin_requirements(recipe, "==")
    if previous_lock is not None:
        sandbox.write_file(_LOCK, previous_lock.encode())
        requirements = ["--require-hashes", "-r", _LOCK]
    build_options = [] if recipe.install.scripts else ["--only-binary=:all:"]
    build_options += [f"--no-binary={package_name}" for package_name in recipe.install.built]
    # An environment variable passes the index, because errors quote the command line.
    run(pip_python, "-m", "pip", f"--python={agent_home}/bin/python", "install", "--no-compile",
    *build_options,
        "--quiet", "--no-input", "--no-cache-dir", "--disable-pip-version-check",
        "--report=/tmp/report.json", *requirements,
        PIP_INDEX_URL=index_url, PIP_CONFIG_FILE="/dev/null")  # fmt: skip
    report = msgspec.json.decode(sandbox.read_file("/tmp/report.json"))
    lock_lines = []
    for entry in report["install"]:
        checksum = entry["download_info"]["archive_info"].get("hashes", {}).get("sha256")
        package_name = f"{entry['metadata']['name']}=={entry['metadata']['version']}"
        if not checksum:
            raise ImageError(f"the index has no SHA-256 of {package_name}")
        checksums[package_name] = f"sha256:{checksum}"
        lock_lines.append(f"{package_name} --hash={checksums[package_name]}\n")
    return "".join(sorted(lock_lines)), checksums


def _pin_requirements(recipe: AgentLayerRecipe, separator: str) -> list[str]:
    main_package, *other_packages = recipe.install.packages
    return [f"{main_package}{separator}{recipe.version}", *other_packages]


def _pack(sandbox: SandboxBackend, folder: str, file: IO[bytes]) -> None:
    """Write a folder of the sandbox as a tarball; equal folders give equal tarballs."""
    process = sandbox.popen(
        ["tar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0",
         "--format=gnu", "-C", "/", "-cf", "-", folder.lstrip("/")],
        channels={1: "w"},
        merge_stderr=True,
    )  # fmt: skip
    with closing(process):
        os.set_blocking(process.fds[1], True)
        while data := os.read(process.fds[1], _CHUNK):
            file.write(data)
        select.select([process.exit_fd], [], [])
        exit_code = process.poll()
    if exit_code != 0:
        raise ImageError(f"tar failed with {exit_code} in the sandbox")


def _check_members(archive_path: Path, name: str) -> None:
    """Refuse a layer with files outside its agent's folder, because the sandbox is not trusted."""
    agent_root = f"{PREFIX}/{name}".lstrip("/")
    with tarfile.open(archive_path) as archive:
        for member in archive:
            member_parts = member.name.split("/")
            if ".." in member_parts or "/".join(member_parts[:3]) != agent_root:
                raise ImageError(
                    f"the layer of {name} has a file outside of its folder: {member.name!r}"
                )
