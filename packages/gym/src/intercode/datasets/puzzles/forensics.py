"""Puzzles about files with hidden, deleted or damaged content."""

from __future__ import annotations

import io
import sqlite3
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from intercode.datasets.puzzles.base import CtfPuzzle, SeededRandom, python


def holiday(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about an image with the suffix of a text file.

    An archive with the flag follows after the end of the image.
    """
    flag, decoy = draw.flag(), draw.flag()
    town = draw.word()
    files = {f"{town}/readme.txt": b"Nothing in here.\n", f"{town}/key.txt": f"{flag}\n".encode()}
    image_bytes = png(32, draw.randbytes(32 * 24), [(b"tEXt", f"Title\0{decoy} (old)".encode())])
    return CtfPuzzle(
        "holiday.txt is a text that no editor wants to open. Somebody has put something behind "
        "it. Find the flag, intercode{…}; the one in the title is an old one.",
        flag,
        (
            python("""
import zipfile
files = zipfile.ZipFile("holiday.txt")
for name in files.namelist():
    print(name, files.read(name).decode())
"""),
        ),
        "easy",
        "forensics",
        {"holiday.txt": image_bytes + archive(files)},
        wrong_flags=(decoy,),
    )


def camera(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about a flag in the compressed metadata of an image."""
    flag, decoys = draw.flag(), [draw.flag() for _ in range(3)]
    author = draw.people(1)[0]
    hidden_note = f"Seen by {author}: {flag}".encode()
    text_chunks = [(b"tEXt", b"Software\0intercam 2.1"), (b"tEXt", f"Author\0{author}".encode())]
    text_chunks += [
        (b"zTXt", b"Comment\0\0" + zlib.compress(f"Draft {text}".encode())) for text in decoys
    ]
    text_chunks.insert(draw.randint(2, 5), (b"zTXt", b"Comment\0\0" + zlib.compress(hidden_note)))
    return CtfPuzzle(
        f"{author.capitalize()} has commented on camera.png in its metadata. Drafts do not count. "
        "Find the flag, intercode{…}.",
        flag,
        (
            python("""
import struct, zlib
data, at = open("camera.png", "rb").read(), 8
while at < len(data):
    size, kind = struct.unpack_from(">I4s", data, at)
    if kind == b"zTXt":
        name, text = data[at + 8 : at + 8 + size].split(b"\\0", 1)
        print(name.decode(), zlib.decompress(text[1:]).decode())
    at += 12 + size
"""),
        ),
        "medium",
        "forensics",
        {"camera.png": png(40, draw.randbytes(40 * 30), text_chunks)},
        wrong_flags=tuple(decoys),
    )


def deleted(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about a disk image with a file that was deleted, but not overwritten."""
    flag, decoy = draw.flag(), draw.flag()
    other_files = [
        (f"{word[:8]}.txt", " ".join(draw.sentence() for _ in range(30)).encode())
        for word in draw.words(5)
    ]
    secret = " ".join([*(draw.sentence() for _ in range(9)), flag, draw.sentence()])
    files = [*other_files, ("plans.gz", gz(secret.encode())), ("backup.gz", gz(decoy.encode()))]
    draw.shuffle(files)
    return CtfPuzzle(
        "disk.img is a small disk with a FAT file system. The flag, intercode{…}, was in plans.gz, "
        "which was deleted; that of backup.gz is an old one.",
        flag,
        (
            python("""
import gzip, struct
data = open("disk.img", "rb").read()
sector, cluster, reserved, fats, entries, _, _, size = struct.unpack_from("<HBHBHHBH", data, 11)
root = (reserved + fats * size) * sector
for at in range(root, root + 32 * entries, 32):
    name = data[at : at + 11]
    first, length = struct.unpack_from("<HI", data, at + 26)
    if name[:1] == b"\\xe5" and name.endswith(b"GZ "):
        start = root + 32 * entries + (first - 2) * cluster * sector
        print(gzip.decompress(data[start : start + length]).decode())
"""),
        ),
        "medium",
        "forensics",
        {"disk.img": disk(files, deleted_files=["plans.gz"])},
        wrong_flags=(decoy,),
    )


def torn(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about a gzip file whose first ten bytes were overwritten."""
    flag, decoy = draw.flag(), draw.flag()
    lines = [draw.sentence() for _ in range(200)]
    lines[draw.randrange(100)] = f"was: {decoy}"
    lines[draw.randrange(100, 200)] = f"is: {flag}"
    archive_data = gz("\n".join(lines).encode())
    return CtfPuzzle(
        "The first ten bytes of notes.gz were overwritten. What they were is no secret. Find the "
        "flag that is valid, intercode{…}.",
        flag,
        (
            r"{ printf '\037\213\010\0\0\0\0\0\0\003'; tail -c +11 notes.gz; } > mended.gz",
            "zcat mended.gz | grep ^is:",
        ),
        "easy",
        "forensics",
        {"notes.gz": draw.randbytes(10) + archive_data[10:]},
        wrong_flags=(decoy,),
        requires=("gzip", "grep"),
    )


def pixels(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about a text in the least significant bits of an image's pixels."""
    flag, width = draw.flag(), 32
    text = f"{draw.sentence()} {flag} {draw.sentence()}".encode() + b"\0"
    bits = [byte >> bit & 1 for byte in text for bit in range(7, -1, -1)]
    count = -(-len(bits) // width) * width
    pixel_bytes = bytearray(draw.randbytes(3 * count))
    channel = draw.randrange(3)
    for bit_index, bit in enumerate(bits):
        offset = 3 * bit_index + channel
        pixel_bytes[offset] = pixel_bytes[offset] & 0xFE | bit
    return CtfPuzzle(
        "noise.bmp is not only noise: one of its three colours says something, a bit in each of "
        "its pixels, in the order of the file. Find the flag, intercode{…}.",
        flag,
        (
            python("""
data = open("noise.bmp", "rb").read()[54:]
for channel in range(3):
    bits = "".join(str(byte & 1) for byte in data[channel::3])
    text = bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits) - 7, 8))
    print(text.partition(b"\\0")[0].decode("ascii", "replace"))
"""),
        ),
        "hard",
        "steganography",
        {"noise.bmp": bmp(width, bytes(pixel_bytes))},
    )


def ledger(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about an SQLite database with a deleted row, whose bytes are in the file."""
    flag, decoy = draw.flag(), draw.flag()
    people = draw.people(12)
    thief = draw.choice(people[:6])
    rows = [(payee, draw.randrange(10, 900), draw.sentence()) for payee in people for _ in range(3)]
    rows.insert(draw.randrange(9, 30), (thief, 9000, f"key {flag.encode().hex()}"))
    rows.append((people[7], 12, f"key {decoy.encode().hex()}"))
    return CtfPuzzle(
        "Somebody has deleted the payment of 9000 from ledger.db, an SQLite database, and with it "
        "its purpose: a key, in hexadecimal. It is the flag, intercode{…}. Who it was paid to can "
        "be submitted, too.",
        flag,
        (
            python("""
import re
data = open("ledger.db", "rb").read()
for key in re.findall(rb"([a-z]*)..key ((?:[0-9a-f]{2})*?7d)", data, re.S):
    print(key[0].decode(), bytes.fromhex(key[1].decode()).decode())
"""),
        ),
        "hard",
        "forensics",
        {"ledger.db": _database(rows)},
        wrong_flags=(decoy,),
        flag_files=("ledger.db",),
        facts={"subtasks": [{"name": "who was paid", "answer": thief}]},
    )


def _database(rows: list[tuple[str, int, str]]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="intercode-") as folder:
        path = Path(folder, "ledger.db")
        with closing(sqlite3.connect(path)) as database:
            # On Debian, SQLite overwrites deleted rows by default.
            database.execute("PRAGMA secure_delete = OFF")
            database.execute("CREATE TABLE payment (person TEXT, amount INTEGER, purpose TEXT)")
            database.executemany("INSERT INTO payment VALUES (?, ?, ?)", rows)
            database.commit()
            database.execute("DELETE FROM payment WHERE amount = 9000")
            database.commit()
        return path.read_bytes()


# Writers of common file formats. They write no timestamps, so equal content gives equal bytes.

SECTOR = 512
GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\x03"


def gz(content: bytes) -> bytes:
    """Return content as a gzip file with a constant header.

    The header that Python's module gzip writes depends on the version of Python.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    end = struct.pack("<II", zlib.crc32(content), len(content))
    return GZIP_HEADER + packer.compress(content) + packer.flush() + end


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return a ZIP archive of files, given as name → content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name, content in files.items():
            target.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def png(width: int, pixels: bytes, notes: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Return a greyscale PNG image, with additional chunks between the header and the pixels.

    Args:
        width: The width in pixels.
        pixels: One byte for each pixel.
        notes: The additional chunks: pairs of a type and data.
    """
    height = len(pixels) // width
    rows = b"".join(
        b"\0" + pixels[offset : offset + width] for offset in range(0, height * width, width)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), *notes, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, chunk_content) for kind, chunk_content in chunks
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def bmp(width: int, pixels: bytes) -> bytes:
    """Return a BMP image with 24 bits per pixel.

    Args:
        width: The width in pixels, a multiple of four. Rows of other widths would need padding.
        pixels: Three bytes for each pixel, in the order of the file: the lowest row comes first. In
            each pixel, the order is blue, green, red.
    """
    height = len(pixels) // (3 * width)
    header = b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54)
    return header + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0) + pixels


def disk(files: Iterable[tuple[str, bytes]], deleted_files: Iterable[str] = ()) -> bytes:
    """Return a small disk image with a FAT12 file system.

    Args:
        files: At most 16 files: pairs of name and content. A name has at most 8 characters before
            the dot, and at most 3 after it.
        deleted_files: The names of files that are marked as deleted. Their content remains on the
            disk.
    """
    deleted_names = set(deleted_files)
    entries: list[int] = [0xFF8, 0xFFF]
    root_directory, data_area = b"", b""
    for name, content in files:
        clusters = max(1, -(-len(content) // SECTOR))
        first_cluster = len(entries)
        stem, _, extension = name.upper().partition(".")
        label = f"{stem:8}{extension:3}".encode()
        if name in deleted_names:
            label = b"\xe5" + label[1:]
            entries += [0] * clusters
        else:
            entries += [*range(first_cluster + 1, first_cluster + clusters), 0xFFF]
        root_directory += label + struct.pack("<B14xHI", 0x20, first_cluster, len(content))
        data_area += content.ljust(clusters * SECTOR, b"\0")
    total = 4 + len(data_area) // SECTOR + 16
    boot = struct.pack(
        "<3s8sHBHBHHBH", b"\xeb\x3c\x90", b"INTERCOD", SECTOR, 1, 1, 2, 16, total, 0xF8, 1
    )
    boot = boot.ljust(SECTOR - 2, b"\0") + b"\x55\xaa"
    disk_areas = [
        boot,
        _fat12(entries),
        _fat12(entries),
        root_directory.ljust(SECTOR, b"\0"),
        data_area,
    ]
    return b"".join(disk_areas).ljust(total * SECTOR, b"\0")


def _fat12(entries: list[int]) -> bytes:
    """Return a file allocation table with 12 bits for each cluster, which fills a sector."""
    table = sum(entry << 12 * cluster for cluster, entry in enumerate(entries))
    return table.to_bytes(SECTOR, "little")
