"""Images in OCI's and Docker's formats.

``oci:PATH`` is an archive of ``docker save``, or an OCI layout as an archive or a folder.
``docker://REFERENCE`` is an image of a registry, which the program skopeo pulls.

All content is untrusted: the configuration and every layer must match their digests. The members of
a layer are checked like the members of any archive.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import importlib
import json
import lzma
import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol, cast

from intercode_sandbox.errors import ImageError
from intercode_sandbox.host_files import joint_digest, remove_tree, sha256
from intercode_sandbox.images.base import Image, ImageBuilderContext, clean_environment
from intercode_sandbox.images.tarballs import DAMAGE, LayerUnpacker, MemberSource, split_name
from intercode_sandbox.images.tree import Parts, resolve_image_account
from intercode_sandbox.privileges import has_single_user

VERSION = "1"
_ARGUMENT = re.compile(r"(?P<path>.*?)(?:\[(?P<name>[^\[\]]*)\])?", re.DOTALL)
_INDEX = ("application/vnd.oci.image.index.v1+json", "manifest.list.v2+json")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_NAMES = ("org.opencontainers.image.ref.name", "io.containerd.image.name")


@dataclass(frozen=True, slots=True)
class OciManifest:
    """The description of one image in a store, which is an archive or a folder."""

    config: Mapping[str, Any]
    """The image's configuration, in OCI's format."""
    digest: str
    """The digest of the configuration, which contains the digests of the layers."""
    layers: tuple[tuple[str, str], ...]
    """The path in the store, and the digest of the uncompressed content, of each layer, the lowest
    first."""

    @property
    def settings(self) -> dict[str, Any]:
        """The part of the configuration on programs: ``Env``, ``User``, ``WorkingDir``, …"""
        return dict(self.config.get("config") or {})


def make(argument: str, context: ImageBuilderContext) -> Image:
    """Return the image ``oci:PATH`` or ``oci:PATH[NAME]``, built if necessary.

    Args:
        argument: ``PATH``, the path of an archive or a folder, or ``PATH[NAME]``.
        context: See `ImageBuilderContext`.

    Raises:
        ImageError: The path cannot be read, or has no valid image, or no image of that name.
    """
    match = _ARGUMENT.fullmatch(argument)
    assert match is not None  # the pattern matches any text
    path = Path(match["path"])
    context.inputs.add(path)
    try:
        with open_store(path) as store:
            manifest = find(store, match["name"] or "")
            template = Image(
                name=match["name"] or path.name,
                digest=joint_digest("oci", VERSION, manifest.digest),
                layers=(),
            )

            def fill(layer: Path, lock_fd: int) -> Mapping[str, object]:
                unpack_layers(store, manifest.layers, layer)
                return {"version": VERSION, "config": manifest.digest}

            image = context.cache.build(template, f"oci:{argument}", fill, context.progress)
    except ImageError as error:
        raise ImageError(f"refused the image {path}: {error}") from None
    except DAMAGE as error:
        raise ImageError(f"cannot read the image {path}: {error}") from error
    return apply_settings(image, manifest.settings)


def is_layout(path: Path) -> bool:
    """Return whether a path is an archive or a folder with an image in one of both formats."""
    try:
        with open_store(path) as store:
            return store.has_file("oci-layout") or store.has_file("manifest.json")
    except (ImageError, *DAMAGE):
        return False


def apply_settings(image: Image, settings: Mapping[str, Any]) -> Image:
    """Return the image with the settings of its configuration: variables, user, working directory.

    Args:
        image: The image.
        settings: See `OciManifest.settings`.

    Raises:
        ImageError: The image does not have its user, or this process's sandboxes cannot have it.
    """
    variables = dict(entry.partition("=")[::2] for entry in settings.get("Env") or ())
    user = settings.get("User") or ""
    account = resolve_image_account(image.layers, user)
    if has_single_user() and account.uid:
        raise ImageError(
            f"{image.name} is for the user {user!r}, but an ordinary user's sandboxes have only "
            "the user root: run as root, or build it without USER"
        )
    home_variables = {"HOME": account.home, "USER": account.name} if user else {}
    return replace(
        image,
        env={**clean_environment(), **home_variables, **variables},
        cwd=settings.get("WorkingDir") or "/",
        user=str(account),
        config=dict(settings),
    )


def find(store: OciStore, name: str) -> OciManifest:
    """Return the description of the image in a store.

    Args:
        store: The store.
        name: The image's name, if the store has several images; otherwise empty.

    Raises:
        ImageError: The store has no such image, the choice is ambiguous, or an image is malformed.
    """
    try:
        manifest = _find_in_store(store, name)
        _check(manifest.settings)
    # A value of the description is missing, or has a wrong type.
    except (AttributeError, KeyError, TypeError) as error:
        raise ImageError(f"its description is malformed: {error!r}") from error
    return manifest


def _find_in_store(store: OciStore, name: str) -> OciManifest:
    if store.has_file("oci-layout"):
        return _find_in_layout(store, name)
    if store.has_file("manifest.json"):
        return _find_in_docker_archive(store, name)
    raise ImageError("it is neither an archive of docker save nor an OCI layout")


def _check(settings: Mapping[str, Any]) -> None:
    env = settings.get("Env") or []
    settings_texts = [*env, settings.get("User") or "", settings.get("WorkingDir") or "/"]
    if not isinstance(env, list) or any(
        not isinstance(text, str) or "\0" in text for text in settings_texts
    ):
        raise ImageError("its Env, User or WorkingDir is malformed")
    if not settings_texts[-1].startswith("/"):
        raise ImageError(f"its WorkingDir {settings_texts[-1]!r} is not absolute")


def _find_in_layout(store: OciStore, name: str) -> OciManifest:
    entries = store.json("index.json").get("manifests") or []
    entries_by_name = {
        tag: index_entry for index_entry in entries for tag in _image_names(index_entry)
    }
    if name:
        entries = [index_entry for tag, index_entry in entries_by_name.items() if tag == name]
    manifests = [
        platform_manifest
        for entry in entries
        for platform_manifest in _platform_manifests(store, entry)
    ]
    if len(manifests) != 1:
        raise ImageError(_selection_problem(name, sorted(entries_by_name), len(manifests)))
    manifest = manifests[0]
    config_digest = manifest["config"]["digest"]
    layer_paths = [store.blob(layer["digest"]) for layer in manifest.get("layers") or ()]
    return _make_manifest(
        store.json(store.blob(config_digest), config_digest), config_digest, layer_paths
    )


def _platform_manifests(store: OciStore, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the manifests for this machine's platform to which an entry of an index leads."""
    required_platform = entry.get("platform") or {}
    machine = _MACHINES.get(platform.machine(), platform.machine())
    if required_platform and (
        required_platform.get("os"),
        required_platform.get("architecture"),
    ) != ("linux", machine):
        return []
    manifest = store.json(store.blob(entry["digest"]), entry["digest"])
    if not str(entry.get("mediaType", "")).endswith(_INDEX) and "config" in manifest:
        return [manifest]
    return [
        nested_manifest
        for nested_entry in manifest.get("manifests") or ()
        for nested_manifest in _platform_manifests(store, nested_entry)
    ]


def _image_names(entry: Mapping[str, Any]) -> list[str]:
    image_annotations = entry.get("annotations") or {}
    return [image_annotations[key] for key in _NAMES if key in image_annotations]


def _find_in_docker_archive(store: OciStore, name: str) -> OciManifest:
    entries = store.json("manifest.json")
    image_names = [tag for entry in entries for tag in entry.get("RepoTags") or ()]
    matches = [
        candidate for candidate in entries if not name or name in (candidate.get("RepoTags") or ())
    ]
    if len(matches) != 1:
        raise ImageError(_selection_problem(name, image_names, len(matches)))
    config_path = matches[0]["Config"]
    config_digest = f"sha256:{Path(config_path).name.removesuffix('.json')}"
    return _make_manifest(
        store.json(config_path, config_digest), config_digest, matches[0]["Layers"]
    )


def _make_manifest(
    config: Mapping[str, Any], config_digest: str, layer_paths: list[str]
) -> OciManifest:
    layer_digests = (config.get("rootfs") or {}).get("diff_ids") or []
    if len(layer_digests) != len(layer_paths):
        raise ImageError(f"it has {len(layer_paths)} layers and digests of {len(layer_digests)}")
    return OciManifest(config, config_digest, tuple(zip(layer_paths, layer_digests, strict=True)))


def _selection_problem(name: str, names: list[str], match_count: int) -> str:
    listing = ", ".join(names) or "none by name"
    if name:
        return f"it has no image {name!r} for this machine; it has: {listing}"
    if not match_count:
        return "it has no image for this machine"
    return f"it has several images: write oci:PATH[NAME], with one of: {listing}"


_PULLED_VERSION = "1"
_SECONDS = 3600.0
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?")
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+)(:\d+)?/")


def pull(argument: str, context: ImageBuilderContext) -> Image:
    """Return the image ``docker://REFERENCE`` of a registry, pulled if necessary.

    The cache remembers to which manifest a reference leads. With `ImageBuilderContext.refresh` the
    registry is asked again.

    Args:
        argument: ``//REFERENCE``.
        context: See `ImageBuilderContext`.

    Raises:
        ImageError: The reference is malformed, or the image cannot be pulled, or is invalid.
    """
    reference = argument.removeprefix("//")
    if not argument.startswith("//"):
        raise ImageError(
            f"docker:{argument} is not the name of an image: docker://{argument} names an image "
            f"of a registry; docker-daemon:{argument}, with --sandbox docker, an image of an "
            "engine"
        )
    if not _REFERENCE.fullmatch(reference):
        raise ImageError(f"{reference!r} is not the name of an image in a registry")
    reference_file = context.cache.root / "references" / f"{joint_digest(reference)}.json"
    manifest_digest = None if context.refresh else _read_reference(reference_file)
    if manifest_digest is None:
        context.progress(f"asking for {reference}")
        raw_manifest = _run_skopeo(
            reference, "inspect", "--raw", *_tls_options("", reference), f"docker://{reference}"
        )
        manifest_digest = sha256(raw_manifest)
        _write_reference(reference_file, reference, manifest_digest)
    return _image(reference, manifest_digest, context)


def _image(reference: str, manifest_digest: str, context: ImageBuilderContext) -> Image:
    template = Image(
        name=reference,
        digest=joint_digest("pulled", _PULLED_VERSION, manifest_digest, platform.machine()),
        layers=(),
    )

    def fill(layer: Path, lock_fd: int) -> Mapping[str, object]:
        layout_folder = layer.parent / "layout"
        repository = re.sub(r"(@sha256:\w+|:[^/:]*)$", "", reference)
        source_url = f"docker://{repository}@sha256:{manifest_digest}"
        _run_skopeo(
            reference,
            "copy",
            *_tls_options("src-", reference),
            source_url,
            f"oci:{layout_folder}:image",
            lock_fd=lock_fd,
        )
        try:
            with open_store(layout_folder) as store:
                source_manifest = find(store, "")
                unpack_layers(store, source_manifest.layers, layer)
        except DAMAGE as error:
            raise ImageError(f"cannot read the image {reference}: {error}") from error
        remove_tree(layout_folder)
        return {
            "version": _PULLED_VERSION,
            "manifest": manifest_digest,
            "settings": source_manifest.settings,
        }

    image = context.cache.build(template, f"docker://{reference}", fill, context.progress)
    record = context.cache.read(image.digest) or {}
    settings: dict[str, Any] = record["built"]["settings"]
    return apply_settings(image, settings)


def _tls_options(option_prefix: str, reference: str) -> list[str]:
    """Return skopeo's option for a registry on this machine's loopback, otherwise no option.

    Such a registry needs no certificate. Docker has the same rule.
    """
    return [f"--{option_prefix}tls-verify=false"] if _LOOPBACK.match(reference) else []


def _run_skopeo(reference: str, *arguments: str, lock_fd: int | None = None) -> bytes:
    if shutil.which("skopeo") is None:
        raise ImageError("pulling an image needs skopeo: apt-get install skopeo")
    try:
        result = subprocess.run(
            ["skopeo", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            pass_fds=() if lock_fd is None else (lock_fd,),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ImageError(f"skopeo did not finish within {_SECONDS:.0f} s") from None
    if result.returncode:
        raise ImageError(_pull_problem(reference, result.stderr.decode(errors="replace").strip()))
    return result.stdout


_FATAL_MESSAGE = re.compile(r'level=fatal msg="((?:[^"\\]|\\.)*)"')
_NETWORK_ERROR = re.compile(
    r"(lookup|dial tcp) .*: (no such host|.*refused|.*unreachable|i/o timeout|server misbehaving)"
    r"|deadline exceeded|Temporary failure"
)
_MISSING_IMAGE_ERROR = re.compile(r"manifest unknown|name unknown|not found")
_ACCESS_ERROR = re.compile(r"unauthorized|denied|authentication required")


def _pull_problem(reference: str, log: str) -> str:
    """Return a message on a failed pull, with the reason and the fix, from the log of skopeo."""
    match = _FATAL_MESSAGE.search(log)
    cause = re.sub(r"\\(.)", r"\1", match[1]) if match else log[-1000:]
    if _NETWORK_ERROR.search(cause):
        reason = "its registry cannot be reached from here"
        advice = "`docker save` it where there is a network, and name ./image.tar instead"
    elif _MISSING_IMAGE_ERROR.search(cause):
        reason, advice = "its registry has no such image", "check its name and tag"
    elif _ACCESS_ERROR.search(cause):
        registry = reference.partition("/")[0]
        login_registry = registry if "." in registry or ":" in registry else "docker.io"
        reason = "its registry does not have it for everybody, or not at all"
        advice = f"check its name, or `skopeo login {login_registry}`"
    else:
        return f"cannot pull {reference}: {cause}"
    return f"cannot pull {reference}: {reason}; {advice} ({cause.rpartition(': ')[2]})"


def _read_reference(reference_file: Path) -> str | None:
    try:
        return str(json.loads(reference_file.read_text(encoding="utf-8"))["manifest"])
    except (OSError, ValueError, KeyError):
        return None


def _write_reference(reference_file: Path, reference: str, manifest_digest: str) -> None:
    reference_file.parent.mkdir(exist_ok=True)
    text = json.dumps({"reference": reference, "manifest": manifest_digest})
    temporary_path = reference_file.with_suffix(f".{joint_digest(text)}")
    temporary_path.write_text(text, encoding="utf-8")
    temporary_path.replace(reference_file)


_WHITEOUT = ".wh."
"""Beginning of the name of a member that deletes a file of the layers below."""
_MARK = ".wh..wh."
"""Beginning of the names of members with another special meaning."""
_OPAQUE = ".wh..wh..opq"
"""Name of a member that deletes the whole content of its folder in the layers below."""
_ZSTD = (("compression.zstd", "ZstdFile"), ("pyzstd", "ZstdFile"), ("zstandard", "open"))


def unpack_layers(store: OciStore, layers: Sequence[tuple[str, str]], folder: Path) -> None:
    """Unpack the layers of an image, one over the other, into one empty folder.

    Args:
        store: The store of the layers.
        layers: The path and the digest of each layer: see `OciManifest.layers`.
        folder: The target folder.

    Raises:
        ImageError: A layer does not match its digest, or has content that no image may have.
    """
    unpacker = _OciLayerUnpacker(folder)
    for layer_path, digest in layers:
        with store.open(layer_path) as layer_file, _decompress(layer_file) as decompressed_file:
            layer_reader = _HashingReader(decompressed_file)
            unpacker.begin()
            with tarfile.open(
                fileobj=cast(IO[bytes], layer_reader),  # tarfile only reads
                mode="r|",
                encoding="utf-8",
                errors="surrogateescape",
            ) as archive:
                for member in archive:
                    unpacker.add(archive, member)
            while layer_reader.read(1 << 20):
                pass
            if layer_reader.digest() != digest:
                raise ImageError(f"the layer {layer_path!r} does not match its digest")
    unpacker.finish()


class _OciLayerUnpacker(LayerUnpacker):
    """An unpacker of several layers into one folder, which applies the deletions of each layer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, (), ())
        self._new_paths: set[Parts] = set()

    def begin(self) -> None:
        """Note that the following members belong to the next layer."""
        self._new_paths.clear()

    def add(self, archive: MemberSource, member: tarfile.TarInfo) -> None:
        """Write one member of a layer, or apply the deletion that the member means."""
        parts = split_name(member.name)
        if not parts:
            return
        is_device = member.ischr() or member.isblk()
        if is_device and parts[0] == "dev":
            return  # devices in /dev are useless, because a sandbox has its own /dev
        real_parts = (*self._ensure_folder(parts[:-1], member.mtime), parts[-1])
        if parts[-1].startswith(_WHITEOUT):
            self._apply_whiteout(real_parts)
            return
        if member.islnk():
            member.linkname = member.linkname.lstrip("/")
        self._make_room(real_parts, member.isdir())
        super().add(archive, member)
        self._new_paths |= {real_parts[:depth] for depth in range(1, len(real_parts) + 1)}

    def _apply_whiteout(self, real_parts: Parts) -> None:
        *parent_parts, name = real_parts
        if name == _OPAQUE:
            for entry in list(self._layer.joinpath(*parent_parts).iterdir()):
                self._delete((*parent_parts, entry.name))
        elif not name.startswith(_MARK):
            self._delete((*parent_parts, name.removeprefix(_WHITEOUT)))

    def _delete(self, real_parts: Parts) -> None:
        """Remove the files of lower layers at a path; keep the files of the present layer."""
        path = self._layer.joinpath(*real_parts)
        if real_parts not in self._new_paths:
            self._remove(real_parts)
        elif path.is_dir() and not path.is_symlink():
            for entry in list(path.iterdir()):
                self._delete((*real_parts, entry.name))

    def _make_room(self, real_parts: Parts, for_folder: bool) -> None:
        path = self._layer.joinpath(*real_parts)
        if os.path.lexists(path) and not (for_folder and path.is_dir() and not path.is_symlink()):
            self._remove(real_parts)

    def _remove(self, real_parts: Parts) -> None:
        if real_parts[-1] in ("", ".", ".."):
            raise ImageError(f"{'/'.join(real_parts)!r} cannot be deleted")
        remove_tree(self._layer.joinpath(*real_parts))
        removed_folders = [
            folder_parts
            for folder_parts in self._folders
            if folder_parts[: len(real_parts)] == real_parts
        ]
        for folder_parts in removed_folders:
            del self._folders[folder_parts]
        self._resolved_folders.clear()


class _HashingReader:
    """A readable stream that computes the digest of all bytes that were read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hasher = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes."""
        data = self._file.read(size)
        self._hasher.update(data)
        return data

    def digest(self) -> str:
        """Return the digest of all bytes read."""
        return f"sha256:{self._hasher.hexdigest()}"


def _decompress(file: IO[bytes]) -> IO[bytes]:
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if magic.startswith(b"\xfd7zXZ\0"):
        return cast(IO[bytes], lzma.LZMAFile(file))
    if magic.startswith(b"BZh"):
        return cast(IO[bytes], bz2.BZ2File(file))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd(file)
    return file


def _zstd(file: IO[bytes]) -> IO[bytes]:
    for module_name, attribute in _ZSTD:
        try:
            open_reader = getattr(importlib.import_module(module_name), attribute)
        except ImportError:
            continue
        return cast(IO[bytes], open_reader(file, "rb"))
    raise ImageError("its layers are compressed with zstd: pip install zstandard")


_MAX_JSON_BYTES = 64 << 20
"""Maximum of bytes of a manifest or configuration."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class _OciFiles(Protocol):
    def open(self, name: str) -> IO[bytes] | None:
        """Return an open file by its name; None if no such file exists."""


class OciStore:
    """The files of one or more images, in a folder or an archive.

    Args:
        files: The folder or archive.
    """

    def __init__(self, files: _OciFiles) -> None:
        self._files = files

    def has_file(self, name: str) -> bool:
        """Return whether the store has a file of this name."""
        file = self._files.open(name)
        if file is not None:
            file.close()
        return file is not None

    def open(self, name: str) -> IO[bytes]:
        """Return an open file of the store.

        Raises:
            ImageError: The store has no such file.
        """
        file = self._files.open(name)
        if file is None:
            raise ImageError(f"it lacks {name!r}")
        return file

    def json(self, name: str, digest: str = "") -> Any:
        """Return the value of a JSON file of the store.

        Args:
            name: The name of the file.
            digest: The expected digest of the file; empty: none.

        Raises:
            ImageError: The file does not exist, cannot be parsed, or does not match the digest.
        """
        with self.open(name) as file:
            data = file.read(_MAX_JSON_BYTES + 1)
        if digest and digest != f"sha256:{sha256(data)}":
            raise ImageError(f"{name!r} does not match its digest")
        try:
            return json.loads(data)
        except ValueError:
            raise ImageError(f"{name!r} is not JSON") from None

    @staticmethod
    def blob(digest: str) -> str:
        """Return the path, in an OCI layout, of the content with this digest.

        Raises:
            ImageError: The text is not a SHA-256 digest.
        """
        if not _DIGEST.fullmatch(digest):
            raise ImageError(f"{digest!r} is not a SHA-256 digest")
        return f"blobs/sha256/{digest.removeprefix('sha256:')}"


@contextlib.contextmanager
def open_store(path: Path) -> Iterator[OciStore]:
    """Open the archive or folder at a path, and yield its store while the block runs.

    Raises:
        OSError, tarfile.TarError, …: The archive cannot be read; see `archive.DAMAGE`.
    """
    if path.is_dir():
        yield OciStore(_OciFolder(path))
        return
    with tarfile.open(path, "r:*") as archive:
        yield OciStore(_OciArchive(archive))


class _OciFolder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str) -> IO[bytes] | None:
        path = self._path.joinpath(*split_name(name))
        return path.open("rb") if path.is_file() else None


class _OciArchive:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._names: dict[str, str] | None = None

    def open(self, name: str) -> IO[bytes] | None:
        if self._names is None:
            self._names = {
                member_name.removeprefix("./"): member_name
                for member_name in self._archive.getnames()
            }
        if name not in self._names:
            return None
        return self._archive.extractfile(self._names[name])
