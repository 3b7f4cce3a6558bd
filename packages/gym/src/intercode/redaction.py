"""Redaction of secrets in records, by two methods: known values and patterns.

Known values are the values of environment variables, and of variables in ``.env``, whose names
contain ``KEY``, ``TOKEN`` or a similar word. The redactor replaces known values everywhere, except
short values, paths, plain URLs and numbers. No sandbox receives these values, unless the option
``variables`` of Harbor's tasks names one. No other task, reward or replay depends on them.

Patterns are the regular expressions in `PATTERNS`, and those in the file that the variable
``INTERCODE_REDACT`` names. By default, the redactor applies patterns only to errors, tracebacks and
``run.json``. In queries, actions, observations and dialogues, a text that looks like a key may be
the subject of the task. After its replacement, the episode could not be replayed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from intercode.episode import Episode
from intercode.errors import UsageError
from intercode.secrets import secret_labels, variables

PATTERNS_VARIABLE = "INTERCODE_REDACT"
"""The environment variable that names a file of further patterns, one regular expression per
line."""
REDACTED = "[redacted]"
MIN_DIALOGUE_LENGTH = 16
"""The minimum length of a known value that the redactor replaces. A shorter value may be a common
word, which dialogues contain, too."""
_NO_SECRET = re.compile(r"[~/].*|https?://[^@]*|[-+.\deE]*", re.DOTALL)
"""Pattern of values that are not secrets although their variables have secret names: paths, plain
URLs and numbers."""
PATTERNS = (
    r"\bsk-[A-Za-z0-9_-]{16,}",
    r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_)[A-Za-z0-9_-]{16,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    r"\bAIza[A-Za-z0-9_-]{35}",
    r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}",
    r"(?i)\b((?:x-)?api[_-]?key[\"']?\s*[:=]\s*[\"']?)[^\s\"',]{8,}",
    r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)(?!\*\*\*@|\[redacted\]@)[^\s/@]+(?=@)",
)
"""Regular expressions of secrets. If an expression has a group, the redaction keeps the text of the
first group, for instance ``Bearer ``, and replaces the rest of the match."""


class SecretRedactor:
    """A redactor of secrets. The known values are read once, in the constructor.

    Args:
        includes_dialogues: Whether patterns apply to all other texts of an episode, too: the query,
            the turns and the dialogues.

    Raises:
        UsageError: The file of further patterns cannot be read, or has a malformed pattern.
    """

    def __init__(self, *, includes_dialogues: bool = False) -> None:
        self._includes_dialogues = includes_dialogues
        self._values = {
            value: name
            for value, name in sorted(secret_labels().items(), key=lambda item: -len(item[0]))
            if len(value.strip()) >= MIN_DIALOGUE_LENGTH and not _NO_SECRET.fullmatch(value)
        }
        self._patterns = [re.compile(pattern) for pattern in PATTERNS] + _more_patterns()

    def values(self, text: str) -> str:
        """Replace the known values in a text with the names of their variables, in brackets."""
        for value, name in self._values.items():
            text = text.replace(value, name)
        return text

    def text(self, text: str) -> str:
        """Replace the known values in a text, and all matches of patterns."""
        text = self.values(text)
        for pattern in self._patterns:
            text = pattern.sub(rf"\g<1>{REDACTED}" if pattern.groups else REDACTED, text)
        return text

    def dialogue(self, dialogue_part: Mapping[str, Any]) -> dict[str, Any]:
        """Redact a part of a dialogue, given as JSON data. Patterns apply only if so configured."""
        redacted_part: dict[str, Any] = _map_texts(
            dialogue_part, self.text if self._includes_dialogues else self.values
        )
        return redacted_part

    def facts(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Redact the facts of a ``run.json``."""
        redacted_facts: dict[str, Any] = _map_texts(manifest, self.text)
        return redacted_facts

    def episode(self, episode: Episode) -> Episode:
        """Return an episode with secrets redacted; the argument stays unchanged."""
        failure_texts = {"error": episode.error, "traceback": episode.metadata.get("traceback")}
        redacted_texts = {
            name: self.text(text) for name, text in failure_texts.items() if isinstance(text, str)
        }
        if any(redacted_texts[name] != failure_texts[name] for name in redacted_texts):
            metadata = {
                **episode.metadata,
                **{k: v for k, v in redacted_texts.items() if k != "error"},
            }
            episode = replace(episode, error=redacted_texts.get("error"), metadata=metadata)
        if not self._includes_dialogues:
            line = episode.to_json() if self._values else ""
            if not any(json.dumps(value)[1:-1] in line for value in self._values):
                return episode
        return Episode.from_dict(self.dialogue(episode.to_dict()))


def _more_patterns() -> list[re.Pattern[str]]:
    """Read the patterns in the file that ``INTERCODE_REDACT`` names; empty without the variable.

    Raises:
        UsageError: The file cannot be read, or a line is not a regular expression.
    """
    if not (name := variables().get(PATTERNS_VARIABLE)):
        return []
    try:
        lines = Path(name).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{PATTERNS_VARIABLE}={name}: the file cannot be read: {error}") from None
    patterns = []
    for row, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            try:
                patterns.append(re.compile(line))
            except re.error as error:
                raise UsageError(f"{name}:{row}: not a regular expression: {error}") from None
    return patterns


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return JSON data in which `change` was applied to every text, except names of fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _map_texts(member, change) for name, member in value.items()}
    if isinstance(value, Sequence):
        return [_map_texts(member, change) for member in value]
    return value
