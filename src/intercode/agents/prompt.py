"""Prompts: Jinja templates whose blocks are the pieces of a dialogue."""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.errors import UsageError

if TYPE_CHECKING:
    from jinja2 import Environment, Template

FOLDER = Path(__file__).parent / "prompts"
VALUES = frozenset(
    (
        *("env", "language", "setting", "query", "schema", "max_turns", "show_reward"),
        *("observation", "reward", "few_shot", "max_steps", "step", "number", "steps"),
        *("answer", "briefing", "candidates"),
    )
)
"""What templates can speak of, each where it makes sense."""


class Prompt:
    """The texts of one strategy.

    Args:
        name: The strategy's template.
        own: A file of the reader's; the blocks that it has replace the strategy's.

    Raises:
        UsageError: The file cannot be read, is no template, or has a block that is of no use.
    """

    def __init__(self, name: str, own: Path | None = None) -> None:
        self._templates = [_environment().get_template(f"{name}.j2")]
        if own is not None:
            self._templates.insert(0, _load(own, self._templates[0]))
        self._own = own

    @cached_property
    def digest(self) -> str:
        """What identifies all texts, for a run's record."""
        return _digest(self._own)

    def render(self, block: str, **values: Any) -> str:
        """One piece, with these values.

        Raises:
            UsageError: The template uses a value that there is not, or fails.
        """
        from jinja2 import TemplateError

        template = next(found for found in self._templates if block in found.blocks)
        try:
            return "".join(template.blocks[block](template.new_context(values))).strip()
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            where = template.filename or template.name
            raise UsageError(f"prompt {where}, block {block!r}: {error}") from error


def _load(path: Path, ours: Template) -> Template:
    from jinja2 import TemplateError, meta

    try:
        text = path.read_text(encoding="utf-8")
        template = _environment().from_string(text)
        names = meta.find_undeclared_variables(_environment().parse(text)) - VALUES
    except (OSError, UnicodeError, TemplateError) as error:
        line = f", line {error.lineno}" if hasattr(error, "lineno") else ""
        raise UsageError(f"prompt {path}{line}: {error}") from error
    template.filename = str(path)
    known = ", ".join(ours.blocks)
    if not template.blocks:
        raise UsageError(f"prompt {path}: it has no block; this agent's are {known}")
    if unknown := sorted(template.blocks.keys() - ours.blocks.keys()):
        raise UsageError(f"prompt {path}: block {unknown[0]!r} is unknown; known: {known}")
    if names:
        raise UsageError(f"prompt {path}: there is no value {min(names)!r}")
    return template


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment  # prompts are passed round like data

    return SandboxedEnvironment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the texts are no HTML
    )


def _digest(own: Path | None) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in [*sorted(FOLDER.glob("*.j2")), *([] if own is None else [own])]:
        digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()
