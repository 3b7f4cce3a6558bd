"""Files of common formats, without a clock: the same content gives the same bytes."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping

SECTOR = 512
GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\x03"


def gz(data: bytes) -> bytes:
    """A gzip file. Python's own way has other headers in other versions."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    end = struct.pack("<II", zlib.crc32(data), len(data))
    return GZIP_HEADER + packer.compress(data) + packer.flush() + end


def archive(files: Mapping[str, bytes]) -> bytes:
    """A zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name, data in files.items():
            target.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def png(width: int, pixels: bytes, notes: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """A grey PNG picture, with other chunks between its header and its pixels."""
    height = len(pixels) // width
    rows = b"".join(b"\0" + pixels[at : at + width] for at in range(0, height * width, width))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), *notes, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bmp(width: int, pixels: bytes) -> bytes:
    """A picture of 24 bits per pixel, in the order of the file: from below, blue first.

    Args:
        width: A multiple of four, so that rows need no filling.
        pixels: Three bytes for each.
    """
    height = len(pixels) // (3 * width)
    header = b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54)
    return header + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0) + pixels


def disk(files: Iterable[tuple[str, bytes]], deleted: Iterable[str] = ()) -> bytes:
    """A small disk with a FAT12 file system. Of a deleted file the content is still there.

    Args:
        files: Name (of 8 characters, a point and 3, at the most) and content, at most 16.
        deleted: The names of those that are deleted.
    """
    gone = set(deleted)
    entries: list[int] = [0xFF8, 0xFFF]
    root, data = b"", b""
    for name, content in files:
        clusters = max(1, -(-len(content) // SECTOR))
        first = len(entries)
        stem, _, extension = name.upper().partition(".")
        label = f"{stem:8}{extension:3}".encode()
        if name in gone:
            label = b"\xe5" + label[1:]
            entries += [0] * clusters
        else:
            entries += [*range(first + 1, first + clusters), 0xFFF]
        root += label + struct.pack("<B14xHI", 0x20, first, len(content))
        data += content.ljust(clusters * SECTOR, b"\0")
    total = 4 + len(data) // SECTOR + 16
    boot = struct.pack(
        "<3s8sHBHBHHBH", b"\xeb\x3c\x90", b"INTERCOD", SECTOR, 1, 1, 2, 16, total, 0xF8, 1
    )
    boot = boot.ljust(SECTOR - 2, b"\0") + b"\x55\xaa"
    parts = [boot, _fat12(entries), _fat12(entries), root.ljust(SECTOR, b"\0"), data]
    return b"".join(parts).ljust(total * SECTOR, b"\0")


def _fat12(entries: list[int]) -> bytes:
    """A table of 12 bits for each cluster, in one sector."""
    packed = sum(entry << 12 * number for number, entry in enumerate(entries))
    return packed.to_bytes(SECTOR, "little")
