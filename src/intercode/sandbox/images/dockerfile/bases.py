"""What ``FROM`` names: an image of ours, an archive, or one that a registry has."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from intercode.errors import ImageError
from intercode.sandbox.images.base import Context, Image, clean_environment
from intercode.sandbox.images.oci import is_layout
from intercode.sandbox.images.recipes import RECIPES
from intercode.sandbox.images.resolve import SCHEMES, build
from intercode.sandbox.images.spec import ARCHIVES, is_path, parse

_DEBIAN = re.compile(
    r"(?:docker\.io/)?(?:library/)?debian:((?!latest)[a-z]+|\d+)(?:-slim)?(\[[^\]]*\])?"
)
_RELEASES = {"10": "buster", "11": "bullseye", "12": "bookworm", "13": "trixie"}


def find(name: str, folder: Path, context: Context) -> Image:
    """The image that a stage is from.

    Raises:
        ImageError: There is none of that name.
    """
    found = parse(spec(name, folder), folder)
    path = Path(found.argument)
    nested = (
        found.scheme == "folder" and not (path / "usr").is_dir() and not (path / "bin").is_dir()
    )
    if found.scheme == "dockerfile" or (nested and (path / "Dockerfile").is_file()):
        raise ImageError(f"{name!r} is another Dockerfile: write its stages into this one")
    image = build(found, context)
    if image.config.get("OnBuild"):
        raise ImageError(f"{name!r} has ONBUILD instructions, which are not supported")
    return image


def spec(name: str, folder: Path) -> str:
    """Our name of what a Dockerfile in a folder calls so.

    Raises:
        ImageError: We have none.
    """
    if is_path(name):
        path = folder / Path(name).expanduser()
        if name.endswith(ARCHIVES):
            return f"oci:{path}" if is_layout(path) else f"scratch+{path}"
        return name
    if debian := _DEBIAN.fullmatch(name):
        return f"debian:{_RELEASES.get(debian[1], debian[1])}{debian[2] or ''}"
    scheme = re.split(r"[:+]", name)[0]
    if (
        name.startswith("docker://")
        or scheme in RECIPES
        or (scheme in SCHEMES and scheme != "docker")
    ):
        return name
    if shutil.which("skopeo"):
        return f"docker://{name}"
    raise ImageError(
        f"there is no image {name!r} here. Take host, debian:bookworm (or another suite), a folder "
        "or a tarball by its path, or the archive that `docker save` makes of it: FROM "
        "./image.tar. With skopeo (apt-get install skopeo) it is pulled from its registry"
    )


def declared(image: Image) -> dict[str, str]:
    """The variables that an image itself sets; those of every sandbox are no part of a build."""
    if "Env" in image.config:
        found = dict(entry.partition("=")[::2] for entry in image.config["Env"])
    else:
        ordinary = clean_environment()
        found = {name: v for name, v in image.env.items() if ordinary.get(name) != v}
    return {"PATH": image.env["PATH"], **found}
