"""Puzzles about weak cryptography."""

from __future__ import annotations

import hashlib
from itertools import cycle

from intercode.datasets.puzzles.base import CtfPuzzle, SeededRandom, python

_VAULT = """\
\"""Opens vault.hex: python3 vault.py PASSWORD\"""
import hashlib
import sys

password = sys.argv[1].encode()
data = bytes.fromhex(open("vault.hex").read())
key = b"".join(hashlib.sha256(password + bytes([n])).digest() for n in range(len(data) // 32 + 1))
print(bytes(a ^ b for a, b in zip(data, key)).decode(errors="replace"))
"""


_SEARCH = """
import hashlib
users = dict(line.strip().split(":", 1) for line in open("users.txt"))
salt, wanted = users["OWNER"].split(":")
for word in open("words.txt").read().split():
    for number in range(100):
        password = f"{word}{number:02}"
        if hashlib.sha256((salt + password).encode()).hexdigest() == wanted:
            print(password)
"""


def passwords(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about salted hashes of passwords.

    Each password consists of a word in a list and two digits, so a search finds it.
    """
    flag = draw.flag()
    words, users = draw.words(60), draw.people(5)
    passwords_by_user = {user: f"{draw.choice(words)}{draw.randrange(100):02}" for user in users}
    owner = draw.choice(users)
    rows = []
    for user, password in passwords_by_user.items():
        salt = f"{draw.getrandbits(32):08x}"
        rows.append(f"{user}:{salt}:{hashlib.sha256((salt + password).encode()).hexdigest()}\n")
    secret = passwords_by_user[owner].encode()
    key = b"".join(hashlib.sha256(secret + bytes([n])).digest() for n in range(len(flag) // 32 + 1))
    sealed_flag = bytes(a ^ b for a, b in zip(flag.encode(), key, strict=False))
    return CtfPuzzle(
        f"vault.hex is {owner.capitalize()}'s; vault.py opens it with the right password. "
        "users.txt has user:salt:sha256(salt + password), and it is known that every password is a "
        "word of words.txt and two digits. Find the flag, intercode{…}.",
        flag,
        (
            f"password=$({python(_SEARCH.replace('OWNER', owner))}\n)",
            'echo "$password"',
            'python3 vault.py "$password"',
        ),
        "medium",
        "cryptography",
        {
            "users.txt": "".join(rows),
            "words.txt": "\n".join(words) + "\n",
            "vault.py": _VAULT,
            "vault.hex": sealed_flag.hex() + "\n",
        },
        wrong_flags=tuple(f"intercode{{{password}}}" for password in passwords_by_user.values()),
        facts={"subtasks": [{"name": f"{owner}'s password", "answer": passwords_by_user[owner]}]},
    )


def letter(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about a letter that is encrypted by XOR with a repeated key.

    The beginning of the letter is known, which reveals the key.
    """
    flag, decoy = draw.flag(), draw.flag()
    key = draw.randbytes(draw.randint(6, 12))
    text = f"Dear colleagues, {draw.sentence()} The old flag was {decoy}. {draw.sentence()} "
    text += f"The new flag is {flag}. {draw.sentence()}\n"
    return CtfPuzzle(
        "letter.enc was made by XOR with a short key that is repeated. All their letters begin "
        "with 'Dear colleagues,'. Find the new flag, intercode{…}.",
        flag,
        (
            python("""
from itertools import cycle
data = open("letter.enc", "rb").read()
start = bytes(a ^ b for a, b in zip(data, b"Dear colleagues,"))
for length in range(2, 15):
    text = bytes(a ^ b for a, b in zip(data, cycle(start[:length])))
    if text.isascii() and b"intercode{" in text:
        print(length, text.decode())
        break
"""),
        ),
        "easy",
        "cryptography",
        {"letter.enc": bytes(a ^ b for a, b in zip(text.encode(), cycle(key), strict=False))},
        wrong_flags=(decoy,),
    )


def rsa(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about RSA with a modulus of sixty bits, which can be factored."""
    flag, exponent = draw.flag(), 65537
    first_prime, second_prime = _prime(draw, exponent), _prime(draw, exponent)
    flag_bytes = flag.encode()
    blocks = [
        int.from_bytes(flag_bytes[offset : offset + 6], "big")
        for offset in range(0, len(flag_bytes), 6)
    ]
    lines = [
        f"n = {first_prime * second_prime}",
        f"e = {exponent}",
        "# six bytes of the message in each, big-endian",
    ]
    lines += [f"c = {pow(block, exponent, first_prime * second_prime)}" for block in blocks]
    return CtfPuzzle(
        f"{draw.people(1)[0].capitalize()} was told to use RSA, and chose a key that fits on the "
        "screen. message.txt has the public key and the blocks. Find the flag, intercode{…}.",
        flag,
        (
            "read -r _ p q <<< $(factor $(sed -n 's/^n = //p' message.txt)); echo $p $q",
            f"python3 - $p $q <<'END'\n{_DECRYPT.strip()}\nEND",
        ),
        "medium",
        "cryptography",
        {"message.txt": "\n".join(lines) + "\n"},
        wrong_flags=(f"intercode{{{first_prime}}}", f"intercode{{{first_prime}_{second_prime}}}"),
    )


_DECRYPT = """
import sys
p, q = map(int, sys.argv[1:])
d = pow(65537, -1, (p - 1) * (q - 1))
blocks = [int(line[4:]) for line in open("message.txt") if line.startswith("c = ")]
print("".join(pow(c, d, p * q).to_bytes(6, "big").lstrip(b"\\0").decode() for c in blocks))
"""


def _prime(draw: SeededRandom, exponent: int) -> int:
    while True:
        candidate = draw.randrange(1 << 29, 1 << 30) | 1
        if candidate % exponent != 1 and all(
            candidate % divisor for divisor in range(3, 1 << 15, 2)
        ):
            return candidate


_LOTTERY = """\
\"""Draws the numbers of the day, and seals tomorrow's prize with those that come next.\"""
import sys

A, C, STATE = map(int, sys.stdin.read().split())  # we do not tell
P = 2**61 - 1


def draw():
    global STATE
    STATE = (A * STATE + C) % P
    return STATE


print("drawn:", *(draw() for day in range(5)))
prize = input("prize: ").encode()
key = b"".join(draw().to_bytes(8, "big") for block in range(0, len(prize), 8))
print("sealed:", bytes(a ^ b for a, b in zip(prize, key)).hex())
"""


def lottery(draw: SeededRandom) -> CtfPuzzle:
    """Return a puzzle about a linear congruential generator of random numbers.

    The first five numbers are known, and determine all further numbers.
    """
    flag, prime = draw.flag(), 2**61 - 1
    multiplier, increment, state = (draw.randrange(2, prime) for _ in range(3))
    generator_outputs = []
    for _ in range(5 + (len(flag) + 7) // 8):
        state = (multiplier * state + increment) % prime
        generator_outputs.append(state)
    key = b"".join(
        generator_output.to_bytes(8, "big") for generator_output in generator_outputs[5:]
    )
    drawn_numbers = " ".join(map(str, generator_outputs[:5]))
    sealed_prize = bytes(x ^ y for x, y in zip(flag.encode(), key, strict=False)).hex()
    return CtfPuzzle(
        "lottery.py draws numbers, and today.txt is what it printed. Tomorrow's prize is sealed "
        "there: open it. Find the flag, intercode{…}.",
        flag,
        (
            python("""
P = 2**61 - 1
drawn, sealed = (line.split()[1:] for line in open("today.txt"))
x = [int(number) for number in drawn]
a = (x[2] - x[1]) * pow(x[1] - x[0], -1, P) % P
c = (x[1] - a * x[0]) % P
data, state, key = bytes.fromhex(sealed[0]), x[-1], b""
while len(key) < len(data):
    state = (a * state + c) % P
    key += state.to_bytes(8, "big")
print(bytes(p ^ q for p, q in zip(data, key)).decode())
"""),
        ),
        "hard",
        "cryptography",
        {
            "lottery.py": _LOTTERY,
            "today.txt": f"drawn: {drawn_numbers}\nsealed: {sealed_prize}\n",
        },
        wrong_flags=(f"intercode{{{generator_outputs[5]}}}", f"intercode{{{sealed_prize}}}"),
    )
