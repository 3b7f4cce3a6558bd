"""Puzzles about searches: a few relevant facts among many others."""

from __future__ import annotations

import base64
import hashlib
import zlib
from functools import partial

from intercode.datasets.puzzles.base import CtfPuzzle, SeededRandom, python

_PAGES = ("/", "/shop", "/cart", "/login", "/img/logo.png", "/style.css", "/admin", "/wp-login.php")


def log(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about the log of a web server.

    A visitor exfiltrated the flag in pieces, in the addresses of many requests.
    """
    flag = draw.flag()
    thief, *other_addresses = (draw.address() for _ in range(12))
    requests = [
        (draw.choice(other_addresses), draw.choice(_PAGES), draw.choice((200, 404)))
        for _ in range(900)
    ]
    for visitor, secret, code in (
        (thief, flag, 200),
        (other_addresses[0], draw.flag(), 404),
        (other_addresses[1], draw.flag(), 403),
    ):
        pieces = [secret[offset : offset + 3] for offset in range(0, len(secret), 3)]
        requests += [
            (visitor, f"/pixel.gif?n={piece_index}&d={piece.encode().hex()}", code)
            for piece_index, piece in enumerate(pieces)
        ]
    draw.shuffle(requests)
    lines, time_seconds = [], 0
    for visitor, page, code in requests:
        time_seconds += draw.randint(0, 9)
        clock = f"{time_seconds // 3600 + 3:02}:{time_seconds // 60 % 60:02}:{time_seconds % 60:02}"
        lines.append(f'{visitor} - - [12/Mar/2024:{clock} +0000] "GET {page} HTTP/1.1" {code} 43\n')
    return CtfPuzzle(
        "Somebody has carried something out of our server in requests for a picture, and some were "
        "turned away. access.log has it all. Find the flag, intercode{…}. The address of the one "
        "who succeeded can be submitted, too.",
        flag,
        (
            "grep pixel.gif access.log | grep '\" 200 ' | cut -d ' ' -f 1 | sort -u",
            r"""grep pixel.gif access.log | grep '" 200 ' | """
            r"sed 's/.*n=\([^&]*\)&d=\([^ ]*\).*/\1 \2/'"
            " | sort -n | cut -d ' ' -f 2 | tr -d '\\n' | tr a-f A-F | basenc --base16 -d",
        ),
        "medium",
        "hunt",
        {"access.log": "".join(lines)},
        wrong_flags=(f"intercode{{{thief}}}",),
        requires=("grep", "sed"),
        facts={"subtasks": [{"name": "the address", "answer": thief}]},
    )


_READ_CAPTURE = """
import base64, re
requests, right = {}, None
for packet in open("capture.txt").read().split("IP ")[1:]:
    head, *rows = packet.splitlines()
    here, there, seq = re.match(r"(\\S+) > (\\S+): .* seq (\\d+)", head).groups()
    text = bytes.fromhex("".join(row[10:49] for row in rows)).decode()
    if there.endswith(".80"):
        requests.setdefault(here, {})[int(seq)] = text
    elif " 200 " in text:
        right = there
request = "".join(text for _, text in sorted(requests[right].items()))
print(base64.b64decode(re.search(r"Basic (\\S+)", request)[1]).decode())
"""


def capture(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about captured network packets.

    The flag is the password that a server accepted. Some packets are out of order.
    """
    flag = draw.flag()
    server, users = draw.address(), draw.people(4)
    correct_user = draw.choice(users)
    packets: list[list[str]] = []
    decoys = []
    for user in users:
        secret = flag if user == correct_user else draw.flag()
        if user != correct_user:
            decoys.append(secret)
        token = base64.b64encode(f"{user}:{secret}".encode()).decode()
        request = f"GET /vault HTTP/1.1\r\nHost: {draw.word()}.example\r\n"
        request += f"Authorization: Basic {token}\r\n\r\n"
        answer = (
            "HTTP/1.1 " + ("200 OK" if user == correct_user else "401 Unauthorized") + "\r\n\r\n"
        )
        client_address, server_address = (
            f"{draw.address()}.{draw.randrange(30000, 60000)}",
            f"{server}.80",
        )
        split_offset = draw.randrange(70, len(request) - 20)
        packets.append(
            [
                _packet(client_address, server_address, 1, request[:split_offset]),
                _packet(client_address, server_address, 1 + split_offset, request[split_offset:]),
                _packet(server_address, client_address, 1, answer),
            ]
        )
        if draw.random() < 0.5:
            packets[-1][0], packets[-1][1] = packets[-1][1], packets[-1][0]
    lines = []
    while any(packets):
        lines.append(draw.choice([packet_queue for packet_queue in packets if packet_queue]).pop(0))
    return CtfPuzzle(
        "capture.txt is what tcpdump -X printed, without the packets' headers. Several people "
        "tried to log in to a web server; the flag, intercode{…}, is the password that it "
        "accepted.",
        flag,
        (python(_READ_CAPTURE),),
        "hard",
        "forensics",
        {"capture.txt": "".join(lines)},
        wrong_flags=tuple(decoys),
    )


def _packet(source: str, target: str, sequence: int, text: str) -> str:
    payload = text.encode()
    rows = [f"IP {source} > {target}: Flags [P.], seq {sequence}, length {len(payload)}\n"]
    for offset in range(0, len(payload), 16):
        row = payload[offset : offset + 16]
        pairs = " ".join(row[n : n + 2].hex() for n in range(0, len(row), 2))
        printable_text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"\t0x{offset:04x}:  {pairs:39}  {printable_text}\n")
    return "".join(rows)


def history(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about a Git repository with a secret in a commit that was amended.

    The original commit is no longer in the history, but remains among the repository's objects.
    """
    flag, decoy = draw.flag(), draw.flag()
    owner = draw.people(1)[0]
    objects: dict[str, bytes] = {}
    readme = f"# {draw.word()}\n\n{draw.sentence()}\n"
    commit = partial(_commit, objects, owner)
    first_commit = commit("Begin", {"README.md": readme}, 0)
    settings = f"HOST={draw.word()}.example\nTOKEN="
    commit("Deploy", {"README.md": readme, "deploy.env": f"{settings}{flag}\n"}, 1, first_commit)
    second_commit = commit(
        "Deploy", {"README.md": readme, "deploy.env": f"{settings}{decoy}\n"}, 2, first_commit
    )
    last_commit = commit("Tokens belong elsewhere", {"README.md": readme}, 3, second_commit)
    files: dict[str, str | bytes] = {
        "shop.git/HEAD": "ref: refs/heads/main\n",
        "shop.git/config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
        "shop.git/refs/heads/main": f"{last_commit}\n",
        **{
            f"shop.git/objects/{key[:2]}/{key[2:]}": object_bytes
            for key, object_bytes in objects.items()
        },
    }
    return CtfPuzzle(
        f"shop.git is a bare repository. {owner.capitalize()} committed a token, amended the "
        "commit so that it has a token for tests, and then took that out, too. The flag, "
        "intercode{…}, is the first token.",
        flag,
        (
            "git -C shop.git log -p --all | grep TOKEN",
            "git -C shop.git fsck --no-progress | tee lost.txt",
            'git -C shop.git show "$(sed -n "s/dangling commit //p" lost.txt):deploy.env"',
        ),
        "medium",
        "hunt",
        files,
        wrong_flags=(decoy,),
        requires=("git", "grep", "sed"),
    )


def _commit(
    objects: dict[str, bytes],
    owner: str,
    message: str,
    files: dict[str, str],
    hour: int,
    *parents: str,
) -> str:
    """Add a Git commit, its tree and its files to `objects`; return the hash of the commit."""
    entries = b""
    for name, text in sorted(files.items()):
        blob = _store(objects, "blob", text.encode())
        entries += f"100644 {name}\0".encode() + bytes.fromhex(blob)
    signature = f"{owner} <{owner}@example.com> {1_700_000_000 + 3600 * hour} +0000"
    lines = [f"tree {_store(objects, 'tree', entries)}", *(f"parent {p}" for p in parents)]
    lines += [f"author {signature}", f"committer {signature}", "", message, ""]
    return _store(objects, "commit", "\n".join(lines).encode())


def _store(objects: dict[str, bytes], kind: str, content: bytes) -> str:
    """Add a Git object in the form of a loose object to `objects`; return its hash."""
    object_data = f"{kind} {len(content)}\0".encode() + content
    name = hashlib.sha1(object_data, usedforsecurity=False).hexdigest()
    objects[name] = zlib.compress(object_data)
    return name
