"""Reads what a MySQL server answers to a query, once PyMySQL has sent it.

PyMySQL makes the connection, but its own reader costs as much as the server's work on a small
query, decodes every row that is only to be counted, and gives up on text that is not UTF-8. This
one does none of that. The text protocol is stable since MySQL 4.1: packets of a length, a number
and a body; a result is the count of its columns, their definitions, and its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, BinaryIO

from intercode.databases.base import Result, Row
from intercode.databases.servers.kept_rows import Keeper
from intercode.databases.servers.private_mysql import driver
from intercode.databases.servers.session import ConnectionLost

pymysql = driver()

_OK, _NULL, _END, _ERROR = 0x00, 0xFB, 0xFE, 0xFF
_LONGEST = 0xFFFFFF
_MORE_RESULTS = 0x0008
_BINARY = 63
_FIELD = pymysql.constants.FIELD_TYPE
_TEXTS = {
    *(_FIELD.BIT, _FIELD.BLOB, _FIELD.LONG_BLOB, _FIELD.MEDIUM_BLOB, _FIELD.TINY_BLOB),
    *(_FIELD.STRING, _FIELD.VAR_STRING, _FIELD.VARCHAR, _FIELD.GEOMETRY),
}
_WHOLE = {_FIELD.TINY, _FIELD.SHORT, _FIELD.LONG, _FIELD.LONGLONG, _FIELD.INT24, _FIELD.YEAR}
_REAL = {_FIELD.FLOAT, _FIELD.DOUBLE}

Decode = Callable[[bytes], Any]


class ServerError(Exception):
    """What the server says is wrong with a statement.

    Attributes:
        code: Its number.
        state: Its SQLSTATE.
        message: In the server's words.
    """

    def __init__(self, packet: bytes) -> None:
        self.code = int.from_bytes(packet[1:3], "little")
        has_state = packet[3:4] == b"#"
        self.state = packet[4:9].decode("ascii", "replace") if has_state else ""
        self.message = packet[9 if has_state else 3 :].decode("utf-8", "replace")
        super().__init__(self.message)


class Reply:
    """What the server answers to one query: a result for each of its statements.

    Args:
        file: What the server sends.

    Attributes:
        more: Whether there is another result.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.more = True
        self._read = file.read

    def result(self, keeper: Keeper) -> Result:
        """The next result.

        Raises:
            ServerError: The statement failed; then there are no more.
            ConnectionLost: The connection is gone.
        """
        packet = self._packet()
        if packet[0] == _OK:
            changed, position = _number(packet, 1)
            _, position = _number(packet, position)  # the last number that was given to a row
            self._end(packet, position)
            return Result(changed=changed)
        if packet[0] == _NULL:
            raise ConnectionLost("the server asks for a file")
        columns = [_column(self._packet()) for _ in range(_number(packet, 0)[0])]
        self._packet()  # the end of the columns
        decoders = [decode for _, decode in columns]
        packet = self._packet()
        while packet[0] != _END or len(packet) >= 9:
            if keeper.full:
                keeper.total += 1
            else:
                keeper.extend([_row(packet, decoders)])
            packet = self._packet()
        self._end(packet, 3)
        return Result(tuple(name for name, _ in columns), keeper.kept, keeper.total)

    def _end(self, packet: bytes, position: int) -> None:
        self.more = bool(int.from_bytes(packet[position : position + 2], "little") & _MORE_RESULTS)

    def _packet(self) -> bytes:
        packet = self._part()
        if len(packet) == _LONGEST:
            parts = [packet]
            while len(parts[-1]) == _LONGEST:
                parts.append(self._part())
            packet = b"".join(parts)
        if not packet:
            raise ConnectionLost("the server sent nothing")
        if packet[0] == _ERROR:
            self.more = False
            raise ServerError(packet)
        return packet

    def _part(self) -> bytes:
        header = self._read(4)
        size = int.from_bytes(header[:3], "little")
        part = self._read(size)
        if len(header) < 4 or len(part) < size:
            raise ConnectionLost("Lost connection to MySQL server during query")
        return part


def _number(packet: bytes, position: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    first = packet[position]
    if first < _NULL:
        return first, position + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    end = position + 1 + size
    return int.from_bytes(packet[position + 1 : end], "little"), end


@lru_cache(maxsize=4096)
def _column(packet: bytes) -> tuple[str, Decode | None]:
    """Name and decoder of a column, from its definition; None: its bytes as they are."""
    position = 0
    fields = []
    for _ in range(6):  # catalogue, database, alias, table, name, name in the table
        size, start = _number(packet, position)
        position = start + size
        fields.append(packet[start:position])
    charset = int.from_bytes(packet[position + 1 : position + 3], "little")
    return _text(fields[4]), _decoder(packet[position + 7], charset)


def _decoder(field: int, charset: int) -> Decode | None:
    if field in _TEXTS:
        return None if charset == _BINARY else _text
    if field in _WHOLE:
        return int
    if field in _REAL:
        return float
    convert = pymysql.converters.decoders.get(field)
    if convert is None or field == _FIELD.JSON:
        return _text
    return lambda value: convert(value.decode("ascii"))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _row(packet: bytes, decoders: list[Decode | None]) -> Row:
    row: list[Any] = []
    position = 0
    for decode in decoders:
        size = packet[position]
        if size == _NULL:
            row.append(None)
            position += 1
            continue
        if size < _NULL:
            start = position + 1
        else:
            size, start = _number(packet, position)
        position = start + size
        value = packet[start:position]
        row.append(value if decode is None else decode(value))
    return tuple(row)
