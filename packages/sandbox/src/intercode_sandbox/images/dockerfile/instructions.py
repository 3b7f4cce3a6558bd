"""Parser of a Dockerfile's instructions, equivalent to the parser of BuildKit.

A directive at the top of the file sets the escape character. A line that ends with this character
continues in the next line. Comments and empty lines in between are ignored. The body of a heredoc
follows the lines of its instruction. Words keep their quotes, which `parse.expand` removes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from intercode_sandbox.errors import DockerfileError

_MAX_DISPLAY_LENGTH = 60
"""Maximum of characters of an instruction in a message."""
_LONGEST_LINE = 65535
"""Maximum of bytes of a line: BuildKit refuses longer lines."""
_BLANKS = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B)))
_BLANKS += "\u2028\u2029\u202f\u205f\u3000"
"""The characters that Go, BuildKit's language, treats as white space. The white space of Python's
patterns has four more characters."""
_ASCII_BLANKS = "\t\n\v\f\r "
_BLANK = re.compile(r"[\t\v\f\r ]+")
_DIRECTIVES = ("check", "escape", "syntax")
_DIRECTIVE = re.compile(r"#[ \t]*([a-zA-Z][a-zA-Z0-9]*)[ \t]*=[ \t]*(.+?)[ \t]*")
_FRONTEND = re.compile(r"(docker\.io/)?docker/dockerfile(-upstream)?([:@].*)?")
_HEREDOC = re.compile(r"[0-9]*<<(-?)([^<]+)", re.DOTALL)
_QUOTES = re.compile(r"\\(.?)|'([^']*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
_QUOTED_ESCAPE = re.compile(r'\\(["\\$])')
_FLAG = re.compile(
    r"--(?:[^\s'\"\\]|\\.|\\\Z|'(?:[^'\\]|\\.)*(?:'|\\?\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\\?\Z))*",
    re.DOTALL | re.ASCII,
)
_FLAG_PARTS = re.compile(r"\\(.?)|(['\"])((?:(?!\2)[^\\]|\\.?)*)\2?", re.DOTALL)
_ESCAPED_CHARACTER = re.compile(r"\\(.?)", re.DOTALL)
_JSON = json.JSONDecoder(parse_constant=lambda name: json.loads(name.lower()))
"""A decoder that refuses ``NaN`` and ``Infinity``: Python's default decoder accepts them, although
JSON does not have them."""

_LISTS = {"ADD", "COPY", "EXPOSE", "FROM", "VOLUME"}
_JSON_TAKERS = {"ADD", "COPY", "VOLUME", "CMD", "ENTRYPOINT", "RUN", "SHELL"}
_TEXTS = {
    *("CMD", "ENTRYPOINT", "RUN", "SHELL"),
    *("HEALTHCHECK", "MAINTAINER", "ONBUILD", "STOPSIGNAL", "USER", "WORKDIR"),
}
_HEREDOC_INSTRUCTIONS = {"ADD", "COPY", "RUN"}


@dataclass(frozen=True, slots=True)
class DockerfileInstruction:
    """One instruction as written, with variables and quotes not yet expanded."""

    line: int
    """The number of its first line."""
    name: str
    """The name in capitals."""
    flags: tuple[tuple[str, str], ...]
    """The name and the value of each flag ``--NAME=VALUE``; a missing value is empty."""
    values: tuple[str, ...]
    """The arguments after the flags."""
    is_json: bool
    """Whether the values come from a JSON array."""
    text: str
    """The whole instruction, with continuation lines joined."""
    heredocs: tuple[tuple[str, str], ...]
    """The name and the content of each heredoc."""

    def flag(self, name: str) -> str:
        """Return a flag's value; empty if the flag is missing."""
        return dict(self.flags).get(name, "")

    @property
    def display_text(self) -> str:
        """The instruction for a message: on one line, and shortened."""
        text = " ".join(self.text.split())
        return text if len(text) <= _MAX_DISPLAY_LENGTH else f"{text[: _MAX_DISPLAY_LENGTH - 1]}…"


def directives(text: str, file_name: str) -> dict[str, str]:
    """Return the directives (``# NAME=VALUE``) at the top of a Dockerfile.

    Args:
        text: The text of the Dockerfile.
        file_name: The name of the Dockerfile, for messages.

    Returns:
        Name in lower case → value.

    Raises:
        DockerfileError: A directive has an invalid value, is repeated, or names another parser.
    """
    values: dict[str, str] = {}
    for line_number, line in enumerate(text.split("\n"), 1):
        match = _DIRECTIVE.fullmatch(line.strip(_BLANKS))
        if match is None:
            break
        key, value = match[1].lower(), match[2]
        reason = ""
        if key in values and key in _DIRECTIVES:
            reason = f"only one {key} parser directive can be used"
        elif key == "escape" and value not in ("\\", "`"):
            reason = f"invalid ESCAPE '{value}'. Must be ` or \\"
        elif key == "syntax" and not _FRONTEND.fullmatch(value):
            reason = f"the syntax {value!r} is not Docker's own"
        if reason:
            raise DockerfileError(f"{file_name}:{line_number}: {reason}")
        values[key] = value
    return values


def instructions(text: str, escape: str, file_name: str) -> list[DockerfileInstruction]:
    """Return the instructions of a Dockerfile.

    Args:
        text: The text of the Dockerfile.
        escape: The escape character.
        file_name: The name of the Dockerfile, for messages.

    Raises:
        DockerfileError: The text is malformed, or has no instruction.
    """
    reader = _InstructionReader(text, escape)
    try:
        if parsed_instructions := list(reader.instructions()):
            return parsed_instructions
    except ValueError as error:
        raise DockerfileError(f"{file_name}:{reader.start}: {error}") from None
    raise DockerfileError(f"{file_name}:1: file with no instructions")


class _InstructionReader:
    """A reader of the instructions of a Dockerfile's text, line by line.

    Args:
        text: The text.
        escape: The escape character.

    Attributes:
        start: The number of the first line of the instruction that was read last.
    """

    def __init__(self, text: str, escape: str) -> None:
        self.start = 1
        self._lines = re.findall(r"[^\n]*\n|[^\n]+", text)
        self._position = 0
        escape_pattern = re.escape(escape)
        self._continuation = re.compile(
            rf"(^|[^{escape_pattern}]){escape_pattern}[ \t]*\Z", re.DOTALL
        )
        self._word = re.compile(
            rf"(?:[^{_BLANKS}'\"{escape_pattern}]|{escape_pattern}.|'[^']*(?:'|\Z)"
            rf"|\"(?:[^\"{escape_pattern}]|{escape_pattern}.)*(?:\"|(?P<dangling>{escape_pattern})?\Z))+",
            re.DOTALL,
        )

    def instructions(self) -> Iterator[DockerfileInstruction]:
        """Yield the instructions.

        Raises:
            ValueError: The instruction at line `start` is malformed.
        """
        while self._position < len(self._lines):
            self.start = self._position + 1
            line, is_continued = self._strip_continuation(
                _strip_comment(self._read_line().rstrip("\r\n").lstrip(_BLANKS))
            )
            if not line and not is_continued:
                continue
            while is_continued and self._position < len(self._lines):
                next_line = self._read_line().rstrip("\r\n")
                if not next_line.strip(_BLANKS) or next_line.lstrip(_BLANKS).startswith("#"):
                    continue
                next_line, is_continued = self._strip_continuation(next_line)
                line += next_line
            yield self._parse_instruction(line)

    def _read_line(self) -> str:
        """Return the next line, with its line feed."""
        line: str = self._lines[self._position]
        self._position += 1
        if len(line.encode("utf-8", "replace")) > _LONGEST_LINE:
            raise ValueError(f"a line is longer than {_LONGEST_LINE} bytes")
        return line

    def _strip_continuation(self, line: str) -> tuple[str, bool]:
        """Return a line without an escape character at its end, and whether the line had one."""
        match = self._continuation.search(line)
        return (line, False) if match is None else (line[: match.end(1)], True)

    def _parse_instruction(self, line: str) -> DockerfileInstruction:
        keyword, *argument_texts = _BLANK.split(line.strip(_BLANKS), maxsplit=1)
        name = keyword.upper()
        flags, arguments = _flags("".join(argument_texts))
        values, is_json = self._values(name, arguments)
        takes_heredocs = name in _HEREDOC_INSTRUCTIONS and not is_json
        heredocs = tuple(self._heredocs(line)) if takes_heredocs else ()
        bodies = [f"\n{content}{delimiter}" for delimiter, content in heredocs]
        return DockerfileInstruction(
            line=self.start,
            name=name,
            flags=tuple(
                (flag, value)
                for flag, _, value in (flag_text.partition("=") for flag_text in flags)
            ),
            values=tuple(values),
            is_json=is_json,
            text="".join([line, *bodies]).strip(),
            heredocs=heredocs,
        )

    def _values(self, name: str, arguments: str) -> tuple[list[str], bool]:
        """Return the values of an instruction, and whether they are a JSON array.

        Args:
            name: The instruction's name.
            arguments: The text after the flags.

        Raises:
            ValueError: The array has values that are not texts, or a pair is malformed.
        """
        if not arguments:
            return [], False
        if name in _JSON_TAKERS and (values := _array(arguments)) is not None:
            return values, True
        if name in _LISTS:
            return _BLANK.split(arguments), False
        if name in ("ENV", "LABEL"):
            return self._pairs(name, arguments), False
        if name == "ARG":
            return self._words(arguments), False
        return [arguments if name in _TEXTS else ""], False

    def _pairs(self, name: str, arguments: str) -> list[str]:
        """Return the names and values of ``ENV`` or ``LABEL``, alternating in one list.

        The arguments are ``NAME=VALUE …``, or in the old form ``NAME VALUE``.
        """
        words = self._words(arguments)
        if not words:  # the arguments are only an escape character
            return []
        if "=" not in words[0]:
            pair = _BLANK.split(arguments, maxsplit=1)
            if len(pair) < 2:
                raise ValueError(f"{name} must have two arguments")
            return pair
        for word in words:
            if "=" not in word:
                quoted_word = json.dumps(word, ensure_ascii=False)
                raise ValueError(
                    f"Syntax error - can't find = in {quoted_word}. Must be of the form: name=value"
                )
        return [side for word in words for side in word.split("=", 1)]

    def _words(self, arguments: str) -> list[str]:
        """Split arguments into words, with their quotes; drop an escape character at the end."""
        matches = self._word.finditer(arguments)
        return [match[0][: -1 if match["dangling"] else None] for match in matches]

    def _heredocs(self, line: str) -> Iterator[tuple[str, str]]:
        """Read the bodies of an instruction's heredocs; yield the name and the content of each."""
        for word in _shell_words(line):
            match = _HEREDOC.fullmatch(word)
            if match is None or not (delimiter := _QUOTES.sub(_unquote, match[2])):
                continue
            content = ""
            while True:
                if self._position == len(self._lines):
                    raise ValueError("unterminated heredoc")
                body_line = self._read_line()
                stripped_line = body_line.rstrip("\r\n")
                if (stripped_line.lstrip("\t") if match[1] else stripped_line) == delimiter:
                    break
                content += body_line
            yield delimiter, content


def _strip_comment(line: str) -> str:
    return "" if line.startswith("#") else line


def _flags(arguments: str) -> tuple[list[str], str]:
    """Split arguments into the flags at their beginning, and the remaining text.

    The flags have neither the leading ``--`` nor quotes.
    """
    flags = []
    remaining_text = arguments
    while match := _FLAG.match(remaining_text.lstrip(_ASCII_BLANKS)):
        remaining_text = remaining_text.lstrip(_ASCII_BLANKS)[match.end() :]
        flag = _FLAG_PARTS.sub(_unescape, match[0])
        if flag == "--":
            break
        flags.append(flag[2:])
    return flags, remaining_text.strip(_BLANKS)


def _unescape(match: re.Match[str]) -> str:
    """Return the replacement for a part of a flag: an escaped character, or a quoted text."""
    return match[1] or _ESCAPED_CHARACTER.sub(r"\1", match[3] or "")


def _array(arguments: str) -> list[str] | None:
    """Return the texts of a JSON array; None if the arguments do not begin with a valid array.

    Raises:
        ValueError: A value of the array is not a text.
    """
    if not arguments.startswith("["):
        return None
    try:
        values, _ = _JSON.raw_decode(arguments)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(value, str) for value in values):
        raise ValueError("when using JSON array syntax, arrays must be comprised of strings only")
    return [value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for value in values]


_SHELL_WORD = re.compile(
    rf"(?:[^{_BLANKS}'\"\\]|\\.|\\\Z|'[^']*'|\"(?:[^\"\\]|\\.)*\"|(?P<open>['\"]))+", re.DOTALL
)


def _shell_words(line: str) -> list[str]:
    """Split a line into words, with their quotes, as a shell does.

    The list is empty if a quote is not closed.
    """
    matches = list(_SHELL_WORD.finditer(line))
    return [] if any(match["open"] for match in matches) else [match[0] for match in matches]


def _unquote(quote_match: re.Match[str]) -> str:
    if quote_match[3] is not None:
        return _QUOTED_ESCAPE.sub(r"\1", quote_match[3])
    return quote_match[1] or quote_match[2] or ""
