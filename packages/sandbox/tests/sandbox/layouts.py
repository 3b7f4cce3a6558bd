"""OCI layouts and what ``docker save`` writes, made by hand, so that they can be wrong."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from platform import machine
from typing import Any

Member = tuple[str, bytes | None] | tarfile.TarInfo


def layer(*members: Member) -> bytes:
    """A layer: files by name and content, directories by None, the rest as headers."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            if member[1] is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            else:
                info.size = len(member[1])
            archive.addfile(info, io.BytesIO(member[1] or b""))
    return out.getvalue()


def entry(name: str, kind: bytes, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    """A header."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def sha256(data: bytes) -> str:
    """As OCI writes it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layout(
    folder: Path,
    layers: Sequence[bytes],
    settings: dict[str, Any] | None = None,
    pack: Callable[[bytes], bytes] = gzip.compress,
    platform: dict[str, str] | None = None,
    name: str = "image",
) -> Path:
    """A layout with one more image."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def put(data: bytes, kind: str) -> dict[str, Any]:
        (blobs / sha256(data).removeprefix("sha256:")).write_bytes(data)
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": sha256(data), "size": len(data)}

    suffix = "+gzip" if pack is gzip.compress else ""
    parts = {
        "schemaVersion": 2,
        "config": put(_config(layers, settings), "config.v1+json"),
        "layers": [put(pack(one), f"layer.v1.tar{suffix}") for one in layers],
    }
    manifest = put(json.dumps(parts).encode(), "manifest.v1+json")
    index = folder / "index.json"
    known = json.loads(index.read_text())["manifests"] if index.exists() else []
    notes = {"annotations": {"org.opencontainers.image.ref.name": name}}
    known.append({**manifest, **notes, **({"platform": platform} if platform else {})})
    index.write_text(json.dumps({"schemaVersion": 2, "manifests": known}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def saved(path: Path, layers: Sequence[bytes], settings: dict[str, Any] | None = None) -> Path:
    """What ``docker save`` has written for years."""
    config = _config(layers, settings)
    name = f"{sha256(config).removeprefix('sha256:')}.json"
    files = {name: config}
    files |= {f"{number}/layer.tar": one for number, one in enumerate(layers)}
    manifest = {"Config": name, "RepoTags": ["image:1"], "Layers": list(files)[1:]}
    files["manifest.json"] = json.dumps([manifest]).encode()
    path.write_bytes(layer(*files.items()))
    return path


def _config(layers: Sequence[bytes], settings: dict[str, Any] | None) -> bytes:
    facts = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine(), machine()),
        "os": "linux",
        "config": settings or {},
        "rootfs": {"type": "layers", "diff_ids": [sha256(one) for one in layers]},
    }
    return json.dumps(facts).encode()
