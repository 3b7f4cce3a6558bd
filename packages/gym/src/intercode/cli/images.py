"""List, build, inspect, export, import and remove sandbox images.

The first use of an image builds it; building earlier saves that wait.

Examples:
  intercode images list
  intercode images build base
  intercode images build nl2bash
  intercode images build 'debian:bookworm[python3,jq]'
  intercode images build host+./files.tar.gz+./setup.sh
  intercode images build ./Dockerfile --build-arg VERSION=3
  intercode images inspect ./Dockerfile
  intercode images export base base.tar.gz
  intercode images import base.tar.gz
  intercode images prune --unused-for 7d
  intercode images prune --all --dry-run
"""

from __future__ import annotations

import argparse
import json
import re
import time
from contextlib import closing
from pathlib import Path

from intercode.cli.parser import add_action
from intercode.cli.terminal import print_json, print_message, safe, size, table
from intercode.errors import ImageError, UsageError
from intercode_sandbox.host_files import cache_root
from intercode_sandbox.images import (
    Image,
    ImageInfo,
    Progress,
    list_images,
    prune,
    prune_sources,
    resolve,
)
from intercode_sandbox.images.base import ARCHIVES
from intercode_sandbox.images.cache import ImageCache
from intercode_sandbox.images.debian import RECIPES
from intercode_sandbox.images.image_export import export_image, import_image
from intercode_sandbox.images.pinned_debian import SPEC as BASE, trees
from intercode_sandbox.images.resolve import admit, check
from intercode_sandbox.units import format_count

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    add_action(actions, "list", "list built images and recipes")

    _configure_build(add_action(actions, "build", "build images before their first use"))
    inspect_parser = add_action(
        actions,
        "inspect",
        "show an image's layers, user, working directory and environment variables",
    )
    inspect_parser.add_argument("image", help="an image's name; the command builds a missing image")
    file_help = "a tarball: " + ", ".join(ARCHIVES)
    export_parser = add_action(actions, "export", "write an image to a file, for another machine")
    export_parser.add_argument("image", help="an image's name; the command builds a missing image")
    export_parser.add_argument("file", type=Path, metavar="FILE", help=file_help)
    import_parser = add_action(
        actions, "import", "import an image from a file that 'images export' wrote"
    )
    import_parser.add_argument("file", type=Path, metavar="FILE", help=file_help)
    prune_parser = add_action(actions, "prune", "remove unused images")
    prune_parser.add_argument(
        "--unused-for",
        type=_duration,
        default=_duration("30d"),
        metavar="TIME",
        help="remove images unused for this time: 12h, 7d, 4w (default: 30d)",
    )
    prune_parser.add_argument(
        "--all", action="store_true", help="remove all images that are not in use now"
    )
    prune_parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the images that would be removed, and remove none",
    )


def _configure_build(build: argparse.ArgumentParser) -> None:
    build.add_argument("image", nargs="+", help="an image's name, for instance debian:bookworm")
    build.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    build.add_argument(
        "--build-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for a Dockerfile: value of an ARG; may be given several times",
    )
    build.add_argument("--target", metavar="STAGE", help="for a Dockerfile: the stage to build")
    build.add_argument(
        "--network",
        action="store_true",
        help="for a Dockerfile: let RUN use this machine's network",
    )
    build.add_argument("--pull", action="store_true", help="resolve registry tags again")


def execute(args: argparse.Namespace) -> int:
    """Execute the subcommand; return 0."""
    actions = {"list": _list, "build": _build, "inspect": _inspect, "prune": _prune}
    {**actions, "export": _export, "import": _import}[args.action](args)
    return 0


def _list(args: argparse.Namespace) -> None:
    images = list_images()
    total = sum(image.size for image in images)
    folder = cache_root() / "images"
    recipes = sorted([BASE, *RECIPES])
    if args.json:
        image_entries = [image.to_json() for image in images]
        print_json(
            {"folder": str(folder), "size": total, "images": image_entries, "recipes": recipes}
        )
        return
    if images:
        print(
            _image_table(images),
            f"{format_count(len(images), 'image')}, {size(total)}, in {folder}",
            sep="\n\n",
        )
    else:
        print(f"no images are built yet in {folder}")
    if unbuilt_recipes := sorted(set(recipes) - {image.name for image in images}):
        print(f"recipes that can be built: {', '.join(unbuilt_recipes)}")


def _build(args: argparse.Namespace) -> None:
    options = [*args.build_arg, *([f"--target={args.target}"] if args.target else [])]
    options += ["--network=default"] if args.network else []
    specs = [_canonical_name(name, options) for name in args.image]
    progress: Progress = (lambda line: None) if args.quiet else print_message
    built_images = _resolve_images(specs, progress, args.pull)
    sizes = {info.digest: info.size for info in list_images()}
    if args.json:
        image_entries = [
            {"spec": spec, **_as_json(image, sizes.get(image.digest))}
            for spec, image in zip(specs, built_images, strict=True)
        ]
        print_json({"images": image_entries})
        return
    for image in built_images:
        total = sum(sizes.get(layer.parent.name, 0) for layer in image.layers)
        print(safe(image.name), image.digest, size(total), sep="  ")


def _canonical_name(name: str, options: list[str]) -> str:
    """Return the canonical name of an image.

    Args:
        name: The image's name as the user wrote it.
        options: Options ``NAME=VALUE`` of the Dockerfile's build, which become part of the name.

    Raises:
        UsageError: The name or an option is malformed, or options are given without a Dockerfile.
    """
    for option in options:
        if "=" not in option or set(option) & set(",[]"):
            raise UsageError(f"{option!r} is not NAME=VALUE, or holds a comma or a bracket")
    try:
        admit(name)
        spec = check(name)
        if options:
            if spec.scheme not in ("dockerfile", "folder") or spec.additions:
                raise UsageError(
                    f"{name!r} is not a Dockerfile: {options[0]!r} is for Dockerfiles only"
                )
            path = spec.argument.removesuffix("]")
            separator = "," if path != spec.argument else "["
            spec = check(f"dockerfile:{path}{separator}{','.join(options)}]")
    except ImageError as error:
        raise UsageError(str(error)) from None
    return str(spec)


def _resolve_images(specs: list[str], progress: Progress, refresh: bool = False) -> list[Image]:
    from intercode_sandbox.native.provider import NativeProvider

    with closing(NativeProvider()) as provider:
        return [
            resolve(spec, build_script=provider.build_script, progress=progress, refresh=refresh)
            for spec in specs
        ]


def _inspect(args: argparse.Namespace) -> None:
    spec = _canonical_name(args.image, [])
    (image,) = _resolve_images([spec], print_message)
    infos_by_digest = {info.digest: info for info in list_images()}
    layers = [infos_by_digest.get(path.parent.name) for path in image.layers]
    layer_entries = [
        {"path": str(path), "name": info.name if info else "", "size": info.size if info else None}
        for path, info in zip(image.layers, layers, strict=True)
    ]
    start_settings = {"user": image.user or "0:0", "cwd": image.cwd, "env": dict(image.env)}
    if args.json:
        print_json(
            {
                "name": image.name,
                "spec": spec,
                "digest": image.digest,
                "layers": layer_entries,
                **start_settings,
                "config": dict(image.config),
            }
        )
        return
    print(f"name     {safe(image.name)}\nspec     {safe(spec)}\ndigest   {image.digest}")
    print(f"user     {start_settings['user']}\ncwd      {safe(image.cwd)}")
    for name, value in sorted(image.env.items()):
        print(f"env      {safe(f'{name}={value}')}")
    for name, value in sorted(image.config.items()):
        if name not in ("Env", "User", "WorkingDir"):
            print(f"config   {safe(f'{name}: {json.dumps(value)}')}")
    for info, path in zip(layers, image.layers, strict=True):
        print(
            f"layer    {safe(info.name if info else str(path))}  {size(info.size if info else 0)}"
        )


def _export(args: argparse.Namespace) -> None:
    spec = _canonical_name(args.image, [])
    (image,) = _resolve_images([spec], print_message)
    export_image(image, spec, args.file)
    file_size = args.file.stat().st_size
    if args.json:
        print_json(
            {"spec": spec, "digest": image.digest, "file": str(args.file), "size": file_size}
        )
        return
    print(safe(spec), image.digest, size(file_size), safe(str(args.file)), sep="  ")


def _import(args: argparse.Namespace) -> None:
    spec, image = import_image(args.file, trees(), ImageCache.default(), print_message)
    name = spec if image.digest in trees() else f"digest:{image.digest[:12]}"
    if args.json:
        print_json({"spec": spec, "image": name, "digest": image.digest, "file": str(args.file)})
        return
    print(f"{safe(spec)}  {image.digest}\nuse it with --image {safe(name)}")


def _prune(args: argparse.Namespace) -> None:
    removed_images = prune(args.unused_for, include_recent=args.all, dry_run=args.dry_run)
    sources = prune_sources(
        args.unused_for,
        include_recent=args.all,
        dry_run=args.dry_run,
        excluded_digests={image.digest for image in removed_images},
    )
    total = sum(image.size for image in removed_images)
    sources_size = sum(source.size for source in sources)
    if args.json:
        print_json(
            {
                "dry_run": args.dry_run,
                "size": total + sources_size,
                "removed": [image.to_json() for image in removed_images],
                "sources": [source.to_json() for source in sources],
            }
        )
        return
    if removed_images:
        print(_image_table(removed_images))
    verb = "would remove" if args.dry_run else "removed"
    print(f"{verb} {format_count(len(removed_images), 'image')}, {size(total)}")
    if sources:
        print(f"{verb} packed folders and repositories: {len(sources)}, {size(sources_size)}")


def _as_json(image: Image, own_size: int | None) -> dict[str, object]:
    return {
        "name": image.name,
        "digest": image.digest,
        "layers": [str(layer) for layer in image.layers],
        "size": own_size,
    }


def _image_table(images: list[ImageInfo]) -> str:
    rows = [
        (
            safe(image.name),
            image.digest[:12],
            image.created[:10],
            _age_text(time.time() - image.last_used),
            size(image.size),
            "in use" if image.in_use else "",
        )
        for image in images
    ]
    return table(("name", "digest", "built", "last used", "size", ""), rows, left_columns=4)


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write 12h, 7d or 4w")
    return float(match[1]) * _UNITS[match[2]]


def _age_text(seconds: float) -> str:
    # The cache records the last use of an image with a precision of one day.
    days = int(seconds // 86400)
    return "today" if days < 1 else f"{format_count(days, 'day')} ago"
