"""The build of a Dockerfile's image: of the target stage, and of all stages that it needs."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from intercode_sandbox.errors import DockerfileError, ImageError
from intercode_sandbox.extensions import is_packaged
from intercode_sandbox.host_files import joint_digest
from intercode_sandbox.images.base import (
    ARCHIVES,
    Image,
    ImageBuilderContext,
    is_path,
    parse,
)
from intercode_sandbox.images.debian import RECIPES
from intercode_sandbox.images.dockerfile.copy_files import find_ignore
from intercode_sandbox.images.dockerfile.evaluate import (
    PROXIES,
    BuildArguments,
    BuildStep,
    StageSettings,
    expand_base_name,
    facts,
)
from intercode_sandbox.images.dockerfile.instructions import DockerfileInstruction
from intercode_sandbox.images.dockerfile.parse import (
    DockerfileStage,
    DockerfileStages,
    expand,
    plan,
    read,
)
from intercode_sandbox.images.oci import is_layout
from intercode_sandbox.images.resolve import SCHEMES, build
from intercode_sandbox.images.tarballs import DAMAGE
from intercode_sandbox.images.tree import MergedTree, resolve_image_account
from intercode_sandbox.path_containment import resolve_data_path

VERSION = "1"
_ARGUMENT = re.compile(r"(?P<path>.*?)(?:\[(?P<options>[^\[\]]*)\])?", re.DOTALL)
_MAX_WATCHED_FILES = 500
"""Maximum number of copied files that are checked for changes at each later use of the image in
this process. If the build has read more files, none of them is checked."""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class DockerfileOptions:
    """The options in an image's name ``dockerfile:PATH[NAME=VALUE,--target=STAGE,…]``."""

    path: Path
    """The path of the Dockerfile."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Name of a build argument → its value."""
    target: str = ""
    """The name or number of the stage to build; empty: the last stage."""
    network: bool = False
    """Whether commands may use the network by default."""

    @classmethod
    def read(cls, argument: str) -> DockerfileOptions:
        """Parse the text after ``dockerfile:``. If PATH is a folder, its Dockerfile is meant.

        Raises:
            ImageError: An option is unknown or malformed.
        """
        match = _ARGUMENT.fullmatch(argument)
        assert match is not None  # the pattern matches any text
        flags: dict[str, str] = {}
        arguments: dict[str, str] = {}
        for option in filter(None, (match["options"] or "").split(",")):
            name, separator, value = option.strip().partition("=")
            (flags if name.startswith("--") else arguments)[name] = value
            if not separator or (name.startswith("--") and name not in ("--target", "--network")):
                raise DockerfileError(
                    f"cannot understand {option!r} in 'dockerfile:{argument}': write NAME=VALUE "
                    "for a build argument, --target=STAGE, or --network=default"
                )
        if flags.get("--network", "none") not in ("none", "default"):
            raise DockerfileError(f"--network={flags['--network']} is neither none nor default")
        dockerfile_path = Path(match["path"])
        dockerfile_path = (
            dockerfile_path / "Dockerfile" if dockerfile_path.is_dir() else dockerfile_path
        )
        has_network = flags.get("--network") == "default"
        return cls(dockerfile_path, arguments, flags.get("--target", ""), has_network)


def make(argument: str, context: ImageBuilderContext) -> Image:
    """Return the image of a Dockerfile's last stage, or of the target stage, built if necessary.

    Args:
        argument: The text after ``dockerfile:``: see `DockerfileOptions`.
        context: See `ImageBuilderContext`.

    Raises:
        ImageError: The Dockerfile cannot be read, is malformed or not supported, or a step failed.
    """
    options = DockerfileOptions.read(argument)
    return _DockerfileBuild(options, context, f"dockerfile:{argument}").image()


class _DockerfileBuild:
    def __init__(self, options: DockerfileOptions, context: ImageBuilderContext, spec: str) -> None:
        self._options = options
        self._context = context
        self._spec = spec
        # The path is resolved, because the layer of a tree must be a folder, not a link to one.
        self._folder = options.path.parent.resolve()
        self._source = read(options.path)
        self._plan: DockerfileStages = plan(self._source)
        ignore_rules, ignore_file = find_ignore(options.path, self._folder)
        self._files = MergedTree(
            (self._folder,), ignore_rules, ignore_rules.has_exceptions, name=str(self._folder)
        )
        self._arguments = BuildArguments(options.arguments, _platform())
        self._images_by_stage: dict[int, Image] = {}
        self._args: dict[int, dict[str, str]] = {}
        context.inputs.update(filter(None, (options.path, ignore_file, self._folder)))

    def image(self) -> Image:
        """Return the image of the target stage."""
        for warning in self._plan.warnings:
            self._context.progress(warning)
        for instruction in self._plan.arguments:
            for argument_text in instruction.values:
                try:
                    argument_name, argument_value = self._arguments.declare(
                        argument_text, self._expand_word
                    )
                except ValueError as error:
                    raise self._source.locate_error(instruction.line, error) from error
                if argument_value is not None:
                    self._arguments.common[argument_name] = argument_value
        target_stage = self._plan.stages[-1]
        if self._options.target:
            named_stage = self._plan.stage(self._options.target)
            if named_stage is None:
                raise DockerfileError(f"{self._source.name}: no stage {self._options.target!r}")
            target_stage = named_stage
        self._check_arguments()
        image = self._stage(target_stage)
        if len(self._files.visited_paths) <= _MAX_WATCHED_FILES:
            self._context.inputs.update(self._files.visited_paths)
        return self._save_image(replace(image, name=self._source.name))

    def _expand_word(self, text: str) -> str:
        return expand(text, self._arguments.common, self._source.escape)

    def _check_arguments(self) -> None:
        instructions = [
            *self._plan.arguments,
            *(instruction for stage in self._plan.stages for instruction in stage.instructions),
        ]
        declared_names = {
            value.partition("=")[0]
            for instruction in instructions
            if instruction.name == "ARG"
            for value in instruction.values
        }
        for argument_name in self._options.arguments:
            if argument_name not in declared_names and argument_name.upper() not in PROXIES:
                listing = ", ".join(sorted(declared_names)) or "none"
                raise DockerfileError(
                    f"{self._source.name} has no build argument {argument_name!r}; it has: "
                    f"{listing}"
                )

    def _stage(self, stage: DockerfileStage) -> Image:
        if stage.index not in self._images_by_stage:
            self._images_by_stage[stage.index] = self._build(stage)
        return self._images_by_stage[stage.index]

    def _build(self, stage: DockerfileStage) -> Image:
        base, inherited_args = self._base(stage)
        stage_state = StageSettings.begin(
            base,
            source=self._source,
            context=self._files,
            resolve_source_image=lambda instruction, name: self._find_source_image(
                stage, instruction, name
            ),
            network=self._options.network,
            arguments=self._arguments,
            args=dict(inherited_args),
        )
        image = base
        for instruction, step in stage_state.steps(stage.instructions):
            # A layer in the cache has the name of the Dockerfile from which it was first built. So
            # the name is replaced.
            image = replace(self._layer(image, instruction, step), name=base.name)
        self._args[stage.index] = stage_state.args
        try:
            account = resolve_image_account(image.layers, stage_state.user)
        except ImageError as error:
            user_line_numbers = [
                user_instruction.line
                for user_instruction in stage.instructions
                if user_instruction.name == "USER"
            ]
            raise self._source.locate_error(
                (user_line_numbers or [stage.start.line])[-1], error
            ) from error
        home_variables = (
            {} if "HOME" in stage_state.env else {"HOME": account.home, "USER": account.name}
        )
        finished_image = stage_state.finish_image(replace(image, user=str(account)))
        return replace(
            finished_image,
            env={**finished_image.env, **(home_variables if stage_state.user else {})},
        )

    def _base(self, stage: DockerfileStage) -> tuple[Image, dict[str, str]]:
        """Return the base image of a stage, and the build arguments that the stage inherits.

        A stage inherits build arguments only if its base is another stage.
        """
        from_instruction = stage.start
        try:
            image_name = expand_base_name(stage.base, self._arguments, self._source.escape)
            self._check_platform(from_instruction)
            if (
                base_stage := self._plan.stage(image_name, stage.index)
            ) and not image_name.isdigit():
                return self._stage(base_stage), self._args[base_stage.index]
            return find_base(image_name, self._folder, self._context), {}
        except (ImageError, ValueError) as error:
            raise self._source.locate_error(from_instruction.line, error) from error

    def _check_platform(self, from_instruction: DockerfileInstruction) -> None:
        requested_platform = self._expand_word(from_instruction.flag("platform"))
        machine_platform = self._arguments.common["TARGETPLATFORM"]
        if requested_platform and requested_platform != machine_platform:
            raise ImageError(
                f"the platform {requested_platform} is not this machine's: {machine_platform}"
            )

    def _find_source_image(
        self, stage: DockerfileStage, instruction: DockerfileInstruction, name: str
    ) -> Image:
        if source_stage := self._plan.stage(name, stage.index):
            return self._stage(source_stage)
        return find_base(name, self._folder, self._context)

    def _layer(self, base: Image, instruction: DockerfileInstruction, step: BuildStep) -> Image:
        if not step.is_needed(base):
            return base
        template = replace(
            base,
            name=f"{self._source.name}:{instruction.line} {instruction.display_text}",
            digest=joint_digest("dockerfile", VERSION, base.digest, *step.key()),
        )
        if cached_image := self._context.cache.lookup(template.digest):
            self._context.progress(f"cached {template.name}")
            return cached_image

        def fill(layer: Path, lock_fd: int) -> Mapping[str, object]:
            try:
                step.fill(base, layer, self._context)
            except (ImageError, *DAMAGE) as error:
                raise self._source.locate_error(instruction.line, error) from error
            return {"version": VERSION}

        return self._context.cache.build(template, self._spec, fill, self._context.progress)

    def _save_image(self, image: Image) -> Image:
        """Return the image with a digest that also covers the settings of its programs.

        The cache stores the image under this digest, with an empty layer on top.
        """
        digest = joint_digest("dockerfile image", VERSION, image.digest, facts(image))
        if not (saved_image := self._context.cache.lookup(digest)):
            saved_image = self._context.cache.build(
                replace(image, digest=digest),
                self._spec,
                lambda layer, lock_fd: {"version": VERSION},
                self._context.progress,
            )
        return replace(saved_image, name=image.name)


def _platform() -> dict[str, str]:
    """Return the build arguments that every Dockerfile has, such as ``TARGETPLATFORM``."""
    machine = _MACHINES.get(platform.machine(), platform.machine())
    values = {"PLATFORM": f"linux/{machine}", "OS": "linux", "ARCH": machine, "VARIANT": ""}
    return {
        f"{prefix}{suffix}": value
        for prefix in ("TARGET", "BUILD")
        for suffix, value in values.items()
    }


_DEBIAN = re.compile(
    r"(?:docker\.io/)?(?:library/)?debian:((?!latest)[a-z]+|\d+)(?:-slim)?(\[[^\]]*\])?"
)
_RELEASES = {"10": "buster", "11": "bullseye", "12": "bookworm", "13": "trixie"}


def find_base(name: str, folder: Path, context: ImageBuilderContext) -> Image:
    """Return the image that ``FROM`` or ``--from`` names, built if necessary.

    Args:
        name: The name in the Dockerfile.
        folder: The folder of the Dockerfile. All files that the name contains must lie in this
            folder, except files that come with InterCode.
        context: See `ImageBuilderContext`.

    Raises:
        ImageError: The image does not exist, lies outside the folder, or is not supported.
    """
    spec = parse(base_name(name, folder), folder)
    for path in spec.paths:
        if not is_packaged(path):
            try:
                resolve_data_path(folder, path)
            except ValueError as error:
                raise ImageError(
                    f"{error}; build it separately, and name it by `digest:…` (intercode images)"
                ) from None
    path = Path(spec.argument)
    is_build_context = (
        spec.scheme == "folder" and not (path / "usr").is_dir() and not (path / "bin").is_dir()
    )
    if spec.scheme == "dockerfile" or (is_build_context and (path / "Dockerfile").is_file()):
        raise ImageError(f"{name!r} is another Dockerfile: write its stages into this one")
    image = build(spec, context)
    if image.config.get("OnBuild"):
        raise ImageError(f"{name!r} has ONBUILD instructions, which are not supported")
    return replace(image, name=name)


def base_name(name: str, folder: Path) -> str:
    """Return InterCode's name for the image that a Dockerfile names.

    Args:
        name: The name in the Dockerfile.
        folder: The folder of the Dockerfile.

    Raises:
        ImageError: InterCode has no such image.
    """
    if is_path(name):
        path = folder / Path(name).expanduser()
        if name.endswith(ARCHIVES):
            return f"oci:{path}" if is_layout(path) else f"scratch+{path}"
        return name
    if debian_match := _DEBIAN.fullmatch(name):
        return f"debian:{_RELEASES.get(debian_match[1], debian_match[1])}{debian_match[2] or ''}"
    scheme = re.split(r"[:+]", name)[0]
    if (
        name.startswith("docker://")
        or scheme in RECIPES
        or (scheme != "docker" and SCHEMES.is_trusted(scheme))
    ):
        return name
    if shutil.which("skopeo"):
        return f"docker://{name}"
    raise ImageError(
        f"there is no image {name!r} here. Take host, debian:bookworm (or another suite), a "
        "folder or a tarball by its path, or its archive by `docker save`: FROM ./image.tar. "
        "With skopeo (apt-get install skopeo), InterCode pulls images from a registry"
    )
