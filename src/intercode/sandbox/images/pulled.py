"""``docker://REFERENCE``: an image that a registry has, fetched with ``skopeo``.

What a name stood for when it was first asked for is remembered: the same name gives the same image
until a newer one is asked for.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intercode.errors import ImageError
from intercode.files import remove_tree
from intercode.sandbox.images import oci
from intercode.sandbox.images.archive import DAMAGE
from intercode.sandbox.images.base import Context, Image, digest_of
from intercode.sandbox.images.oci_layer import unpack
from intercode.sandbox.images.oci_store import open_store

VERSION = "1"
_SECONDS = 3600.0
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?")
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+)(:\d+)?/")


def make(argument: str, context: Context) -> Image:
    """The image of that name."""
    reference = argument.removeprefix("//")
    if not argument.startswith("//"):
        raise ImageError(
            f"docker:{argument} is no name of an image: docker://{argument} is pulled from its "
            f"registry; docker-daemon:{argument}, with --sandbox docker, is what an engine has"
        )
    if not _REFERENCE.fullmatch(reference):
        raise ImageError(f"{reference!r} is no name of an image in a registry")
    place = context.cache.root / "references" / f"{digest_of(reference)}.json"
    manifest = None if context.refresh else _remembered(place)
    if manifest is None:
        context.progress(f"asking for {reference}")
        raw = _skopeo("inspect", "--raw", *_tls("", reference), f"docker://{reference}")
        manifest = hashlib.sha256(raw).hexdigest()
        _remember(place, reference, manifest)
    return _image(reference, manifest, context)


def _image(reference: str, manifest: str, context: Context) -> Image:
    template = Image(
        name=reference,
        digest=digest_of("pulled", VERSION, manifest, platform.machine()),
        layers=(),
    )

    def fill(layer: Path, lock: int) -> Mapping[str, object]:
        layout = layer.parent / "layout"
        repository = re.sub(r"(@sha256:\w+|:[^/:]*)$", "", reference)
        source = f"docker://{repository}@sha256:{manifest}"
        _skopeo("copy", *_tls("src-", reference), source, f"oci:{layout}:image", lock=lock)
        try:
            with open_store(layout) as store:
                found = oci.find(store, "")
                unpack(store, found.layers, layer)
        except DAMAGE as error:
            raise ImageError(f"cannot read the image {reference}: {error}") from error
        remove_tree(layout)
        return {"version": VERSION, "manifest": manifest, "settings": found.settings}

    image = context.cache.build(template, f"docker://{reference}", fill, context.progress)
    record = context.cache.read(image.digest) or {}
    settings: dict[str, Any] = record["built"]["settings"]
    return oci.configured(image, settings)


def _tls(prefix: str, reference: str) -> list[str]:
    """This machine's own registries need no certificate, as for Docker."""
    return [f"--{prefix}tls-verify=false"] if _LOOPBACK.match(reference) else []


def _skopeo(*arguments: str, lock: int | None = None) -> bytes:
    if shutil.which("skopeo") is None:
        raise ImageError("pulling an image needs skopeo: apt-get install skopeo")
    try:
        done = subprocess.run(
            ["skopeo", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            pass_fds=() if lock is None else (lock,),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ImageError(f"skopeo was not done within {_SECONDS:.0f} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-1000:]
        raise ImageError(f"skopeo {arguments[0]} failed: {said}")
    return done.stdout


def _remembered(place: Path) -> str | None:
    try:
        return str(json.loads(place.read_text(encoding="utf-8"))["manifest"])
    except (OSError, ValueError, KeyError):
        return None


def _remember(place: Path, reference: str, manifest: str) -> None:
    place.parent.mkdir(exist_ok=True)
    text = json.dumps({"reference": reference, "manifest": manifest})
    temporary = place.with_suffix(f".{digest_of(text)}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(place)
