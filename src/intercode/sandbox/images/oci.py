"""``oci:PATH``: what ``docker save`` wrote, or an OCI layout, as an archive or a folder.

Nothing is believed: the configuration and every layer must have the digests by which they are
called, and a layer's members are looked at as those of any archive are.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from intercode.errors import ImageError
from intercode.rights import one_user
from intercode.sandbox.images import accounts
from intercode.sandbox.images.archive import DAMAGE
from intercode.sandbox.images.base import Context, Image, clean_environment, digest_of
from intercode.sandbox.images.oci_layer import unpack
from intercode.sandbox.images.oci_store import Store, open_store

VERSION = "1"
_ARGUMENT = re.compile(r"(?P<path>.*?)(?:\[(?P<name>[^\[\]]*)\])?", re.DOTALL)
_INDEX = ("application/vnd.oci.image.index.v1+json", "manifest.list.v2+json")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_NAMES = ("org.opencontainers.image.ref.name", "io.containerd.image.name")


@dataclass(frozen=True, slots=True)
class Manifest:
    """An image in a store."""

    config: Mapping[str, Any]
    digest: str
    """Of the configuration; it names the layers' digests."""
    layers: tuple[tuple[str, str], ...]
    """Where they are in the store, and the digests of what they hold, lowest first."""

    @property
    def settings(self) -> dict[str, Any]:
        """How programs start there."""
        return dict(self.config.get("config") or {})


def make(argument: str, context: Context) -> Image:
    """The image of an archive or a folder."""
    match = _ARGUMENT.fullmatch(argument)
    assert match is not None  # it matches everything
    path = Path(match["path"])
    context.inputs.add(path)
    try:
        with open_store(path) as store:
            manifest = find(store, match["name"] or "")
            template = Image(
                name=match["name"] or path.name,
                digest=digest_of("oci", VERSION, manifest.digest),
                layers=(),
            )

            def fill(layer: Path, lock: int) -> Mapping[str, object]:
                unpack(store, manifest.layers, layer)
                return {"version": VERSION, "config": manifest.digest}

            image = context.cache.build(template, f"oci:{argument}", fill, context.progress)
    except ImageError as error:
        raise ImageError(f"refused the image {path}: {error}") from None
    except DAMAGE as error:
        raise ImageError(f"cannot read the image {path}: {error}") from error
    return configured(image, manifest.settings)


def is_layout(path: Path) -> bool:
    """Whether there is an image of that kind at a path."""
    try:
        with open_store(path) as store:
            return store.has("oci-layout") or store.has("manifest.json")
    except (ImageError, *DAMAGE):
        return False


def configured(image: Image, settings: Mapping[str, Any]) -> Image:
    """The image with what its configuration says of its programs.

    Raises:
        ImageError: It has no such user, or an ordinary user can run no other.
    """
    given = dict(entry.partition("=")[::2] for entry in settings.get("Env") or ())
    who = settings.get("User") or ""
    account = accounts.user(image.layers, who)
    if one_user() and account.uid:
        raise ImageError(
            f"{image.name} is for the user {who!r}, and in an ordinary user's sandboxes there is "
            "no user but root: run as root, or build it without USER"
        )
    home = {"HOME": account.home, "USER": account.name} if who else {}
    return replace(
        image,
        env={**clean_environment(), **home, **given},
        cwd=settings.get("WorkingDir") or "/",
        user=str(account),
        config=dict(settings),
    )


def find(store: Store, name: str) -> Manifest:
    """The image in a store; of several, the one of that name.

    Raises:
        ImageError: There is none, it is not clear which is meant, or it is not well formed.
    """
    try:
        manifest = _find(store, name)
        _check(manifest.settings)
    except (AttributeError, KeyError, TypeError) as error:  # what should be a list is none, …
        raise ImageError(f"its description is not well formed: {error!r}") from error
    return manifest


def _find(store: Store, name: str) -> Manifest:
    if store.has("oci-layout"):
        return _of_layout(store, name)
    if store.has("manifest.json"):
        return _of_docker(store, name)
    raise ImageError("it is neither what docker save writes nor an OCI layout")


def _check(settings: Mapping[str, Any]) -> None:
    env = settings.get("Env") or []
    texts = [*env, settings.get("User") or "", settings.get("WorkingDir") or "/"]
    if not isinstance(env, list) or any(not isinstance(t, str) or "\0" in t for t in texts):
        raise ImageError("its Env, User or WorkingDir is not well formed")
    if not texts[-1].startswith("/"):
        raise ImageError(f"its WorkingDir {texts[-1]!r} is not absolute")


def _of_layout(store: Store, name: str) -> Manifest:
    entries = store.json("index.json").get("manifests") or []
    names = {known: e for e in entries for known in _names_of(e)}
    if name:
        entries = [e for known, e in names.items() if known == name]
    manifests = [m for entry in entries for m in _manifests(store, entry)]
    if len(manifests) != 1:
        raise ImageError(_which(name, sorted(names), len(manifests)))
    manifest = manifests[0]
    config = manifest["config"]["digest"]
    layers = [store.blob(layer["digest"]) for layer in manifest.get("layers") or ()]
    return _manifest(store.json(store.blob(config), config), config, layers)


def _manifests(store: Store, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those for this machine that an entry of an index leads to."""
    wanted = entry.get("platform") or {}
    machine = _MACHINES.get(platform.machine(), platform.machine())
    if wanted and (wanted.get("os"), wanted.get("architecture")) != ("linux", machine):
        return []
    found = store.json(store.blob(entry["digest"]), entry["digest"])
    if not str(entry.get("mediaType", "")).endswith(_INDEX) and "config" in found:
        return [found]
    return [m for inner in found.get("manifests") or () for m in _manifests(store, inner)]


def _names_of(entry: Mapping[str, Any]) -> list[str]:
    notes = entry.get("annotations") or {}
    return [notes[key] for key in _NAMES if key in notes]


def _of_docker(store: Store, name: str) -> Manifest:
    entries = store.json("manifest.json")
    names = [tag for entry in entries for tag in entry.get("RepoTags") or ()]
    found = [e for e in entries if not name or name in (e.get("RepoTags") or ())]
    if len(found) != 1:
        raise ImageError(_which(name, names, len(found)))
    path = found[0]["Config"]
    digest = f"sha256:{Path(path).name.removesuffix('.json')}"
    return _manifest(store.json(path, digest), digest, found[0]["Layers"])


def _manifest(config: Mapping[str, Any], digest: str, layers: list[str]) -> Manifest:
    digests = (config.get("rootfs") or {}).get("diff_ids") or []
    if len(digests) != len(layers):
        raise ImageError(f"it has {len(layers)} layers and digests of {len(digests)}")
    return Manifest(config, digest, tuple(zip(layers, digests, strict=True)))


def _which(name: str, names: list[str], count: int) -> str:
    known = ", ".join(names) or "none by name"
    if name:
        return f"it has no image {name!r} for this machine; it has: {known}"
    if not count:
        return "it has no image for this machine"
    return f"it has several images: write oci:PATH[NAME], with one of: {known}"
