"""Archives laid over an image of the engine's own: a task's files, a repository."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from intercode.errors import ImageError
from intercode.files import sha256
from intercode.sandbox.docker.engine import LABEL, LEASE, Engine
from intercode.sandbox.images.base import digest_of
from intercode.sandbox.images.spec import Addition
from intercode.sandbox.native import lease


def lay_over(
    engine: Engine, repository: str, base: str, additions: Sequence[Addition]
) -> tuple[str, str]:
    """An image of the engine's: `base` with these archives unpacked at its root.

    It is made once, and found again by what went into it.

    Args:
        engine: The engine.
        repository: What the image is called there.
        base: The engine's digest of what is below.
        additions: In order.

    Returns:
        Its name there, and the digest of what went into it: the same in every engine.

    Raises:
        ImageError: An archive cannot be read, or is a script.
        SandboxError: The engine failed.
    """
    parts = [base]
    for addition in additions:
        if addition.is_script:
            raise ImageError(
                f"{addition.text} cannot be run over an image of the engine's own: have its "
                "Dockerfile run it"
            )
        parts.append(_content(addition.path))
    digest = digest_of(*parts)
    name = f"{repository}:{digest}"
    with engine.errors("looking for an image") as api:
        found = api.images(name, quiet=True)
    if not found:
        _make(engine, repository, digest, base, additions)
    return name, digest


def _make(
    engine: Engine, repository: str, digest: str, base: str, additions: Sequence[Addition]
) -> None:
    labels = {LABEL: "1", LEASE: lease.name()}  # which a sweep finds, should we be killed
    with engine.errors("laying files over an image") as api:
        container = api.create_container(base, ["-"], labels=labels)["Id"]
        try:
            for addition in additions:
                with addition.path.open("rb") as archive:
                    api.put_archive(container, "/", archive)
            # A commit takes over the container's command: the image's own is never run either.
            api.commit(container, repository, digest, changes=[f"LABEL {LABEL}=1"])
        finally:
            api.remove_container(container, force=True, v=True)


def _content(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise ImageError(f"cannot read {path}: {error}") from error
