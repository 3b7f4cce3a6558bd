"""Archives by what is in them: made in a sandbox, compared through the Bash reward."""

from __future__ import annotations

import base64
import io
import resource
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable

import pytest

import intercode
from intercode import Dataset, Task

FILES = {"f/a": "one\n", "f/b": "two\n"}
PACKED = "tar -czf x.tgz f"
SAME = [
    "tar -cf x.tgz f/b f/a", "tar -czf x.tgz f/a f/b f/a",
    "tar -C / -cf x.tgz root/f --transform s,root/,,",
    "touch -d 2001-01-01 f/a; gzip -1 -c <(tar -c f) >x.tgz",
]  # fmt: skip
OTHER = ["tar -cf x.tgz f/a", "cp -r f g; rm g/a; tar -cf x.tgz f g; rm -r g", "echo >x.tgz"]


def score(kind: str, *actions: str) -> float:
    answer = {"type": "state", "archives": {"/root/x.tgz": kind}}
    task = Task("t", "Pack f.", files=FILES, gold=(PACKED,), metadata={"answer": answer})
    env = intercode.make("bash", data=Dataset([task]))
    env.reset()
    for action in actions:
        assert env.step(action)[0] == ""
    reward = float(env.step("submit")[1])
    env.close()
    return reward


@pytest.mark.parametrize(
    ("action", "value"), [*((a, 1.0) for a in SAME), *((a, 0.0) for a in OTHER)]
)
def test_a_tarball(action: str, value: float) -> None:
    assert score("tar", action) == value


def long_name() -> bytes:
    """A name of 1.5 GiB: its reader wants as much memory."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 3 << 29
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    parts = [packer.compress(member.tobuf(tarfile.GNU_FORMAT))]
    parts += [packer.compress(bytes(1 << 22)) for _ in range(member.size >> 22)]
    return b"".join([*parts, packer.flush()])


def large_dictionary() -> bytes:
    """A dictionary of 4 GiB, for a file of some bytes."""
    packed = _packed(zipfile.ZIP_LZMA)
    return packed[:36] + b"\xff" * 4 + packed[40:]


def corrupt() -> bytes:
    """What `lzma` answers with an error of its own kind."""
    packed = _packed(zipfile.ZIP_LZMA)
    return packed[:40] + b"\xff" * 9 + packed[49:]


def no_number() -> bytes:
    """A size that is to be read elsewhere, and is not there: `zipfile` looks past an end."""
    packed = _packed(zipfile.ZIP_STORED)
    start = packed.index(b"PK\1\2")
    extra = struct.pack("<HH", 1, 16) + b"\xff" * 16
    entry = bytearray(packed[start : start + 46])
    entry[20:34] = struct.pack("<LLHHH", 2**32 - 1, 2**32 - 1, 0, len(extra), 0)
    entries = bytes(entry) + extra
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(entries), start, 0)
    return packed[:start] + entries + end


def _packed(how: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        archive.writestr("a", b"a" * 100)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "make"),
    [("tar", long_name), ("zip", large_dictionary), ("zip", corrupt), ("zip", no_number)],
)
def test_a_hostile_archive_is_none_and_no_error(kind: str, make: Callable[[], bytes]) -> None:
    """Whatever the standard library's readers raise, and however much they would take."""
    text = base64.b64encode(zlib.compress(make(), 9)).decode()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unpack = "import base64,zlib,sys;sys.stdout.buffer.write(zlib.decompress(base64.b64decode("
    actions = [f"printf %s {text[at : at + 60000]} >>/tmp/b" for at in range(0, len(text), 60000)]
    run = f"python3 -c \"{unpack}open('/tmp/b').read())))\" > x.tgz"
    assert score(kind, *actions, run) == 0.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def test_an_archive_that_is_too_large_ends_nothing() -> None:
    task = Task(
        "t", "q", ("tar -cf x.tgz f",), files=FILES,
        metadata={"answer": {"type": "state", "archives": {"/root/x.tgz": "tar"}}},
    )  # fmt: skip
    env = intercode.make("bash", data=Dataset([task]))
    env.reset()
    env.step("truncate -s 65M x.tgz")
    *_, info = env.step("submit")
    assert not info["success"]
    assert "ended" not in env.unwrapped.episode.score.detail
    env.close()
