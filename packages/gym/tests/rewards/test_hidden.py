"""Programs under test look for what their verification expects, in all the ways that there are."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from intercode.envs.bash import BashEnv
from intercode.task import Dataset, Task
from intercode_sandbox.privileges import is_root
from ordinary import ordinary_user
from sources import SOURCES, TESTS

PROGRAM = "/root/prog"
FORM = "S[0-9a-f]{16}Z"
# Beside the program: its parent, which compares in its own process, and a sibling, which has it as
# an argument. Neither variables nor files of the verification hold it.
VERIFICATION = f"""
check() {{ [ "$1" = SECRET ]; }}
out=$({PROGRAM}; exit 0); check "$out" || {PROGRAM} | grep -qx -- SECRET
"""
LANGUAGES = {
    "sh": "BODY",
    "perl": """perl -e '
sub look { local $/; my $t = shift // ""; print "$1\\n" and exit if $t =~ /(FORM)/ }
sub slurp { open my $f, "<", shift or return ""; local $/; <$f> // "" }
BODY'""",
    "python": """exec python3 - <<'EOF'
import ctypes, glob, os, re, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def look(data):
    if found := re.search(rb"FORM", data):
        print(found[0].decode()); sys.exit()
def slurp(path):
    try:
        with open(path, "rb") as file: return file.read(1 << 20)
    except OSError: return b""
def memory(pid):
    for line in slurp(f"/proc/{pid}/maps").decode().splitlines():
        start, end = (int(n, 16) for n in line.split()[0].split("-"))
        try:
            with open(f"/proc/{pid}/mem", "rb") as file:
                file.seek(start); look(file.read(end - start))
        except (OSError, ValueError, OverflowError): pass
BODY
EOF""",
}
STATIC = """\
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void) {
    static char path[64], text[1 << 16];
    for (int n = 2; n < 400; n++) {
        snprintf(path, sizeof path, "/proc/%d/cmdline", n);
        int fd = open(path, O_RDONLY);
        long got = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
        for (long i = 0; i + 18 <= got; i++) {
            int digits = strspn(text + i + 1, "0123456789abcdef");
            if (text[i] == 'S' && text[i + 17] == 'Z' && digits == 16)
                return printf("%.18s", text + i) < 0;
        }
        if (fd >= 0) close(fd);
    }
    return 1;
}
"""


def read_ways() -> dict[str, str]:
    """Read the programs that look for a text of that form, by what they try."""
    text = Path(__file__).with_name("hidden_ways.txt").read_text()
    found = re.findall(r"### ([^\n]*) \((\w+)\)\n(.*?)\n(?=\n### |\Z)", text, re.DOTALL)
    return {name: LANGUAGES[kind].replace("BODY", body) for name, kind, body in found}


WAYS = read_ways()


def scored(
    body: str,
    provider: str = "native",
    verification: str = VERIFICATION,
    capabilities: tuple[str, ...] = (),
) -> float:
    """Return the reward of an episode that has made that program."""
    verification = verification.replace("SECRET", f"S{secrets.token_hex(8)}Z")
    task = Task("t", "q", verification=verification, capabilities=capabilities)
    body = body.replace("FIND", "grep -aohE FORM 2>/dev/null").replace("FORM", FORM)
    with closing(BashEnv(Dataset([task]), sandbox=provider)) as env:
        env.reset()
        if "/root/static" in body:
            build = f"cat > s.c <<'END'\n{STATIC}\nEND\ngcc -static -o /root/static s.c || echo no"
            if "no" in env.step(build)[0].split():
                pytest.skip("there is no compiler")
        env.step(f"cat > {PROGRAM} <<'END'\n#!/bin/bash\n{body}\nEND\nchmod 755 {PROGRAM}")
        return float(env.step("submit")[1])


@pytest.mark.parametrize("way", WAYS)
def test_a_program_finds_nothing_of_its_verification(way: str) -> None:
    assert scored(WAYS[way]) == 0.0


HONEST = """
[ "$(PROGRAM 2 3)" = 5 ] && PROGRAM 2 3 | grep -qx 5 && diff <(PROGRAM 1 1) <(echo 2) &&
while read -r line; do [ "$line" = 4 ]; done < <(PROGRAM 2 2) && PROGRAM 4 4 > /dev/stdout &&
[ "$(cat /dev/stdin <<< "$(timeout 5 bash PROGRAM 1 2)")" = 3 ] &&
python3 -c 'import subprocess as s; assert s.check_output(["PROGRAM", "1", "2"]) == b"3\\n"'
"""


def test_a_verification_compiles() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("there is no compiler")
    task = Task("t", "q", verification='gcc -o /tmp/made made.c && [ "$(/tmp/made)" = 42 ]')
    with closing(BashEnv(Dataset([task]), image="host")) as env:
        env.reset()
        env.step("printf '#include <stdio.h>\\nint main(void) { puts(\"42\"); }\\n' > made.c")
        assert env.step("submit")[1] == 1.0, env.episode.score


def test_honest_work_is_run_as_before() -> None:
    verification = HONEST.replace("PROGRAM", PROGRAM)
    assert scored("echo $(($1 + $2))", verification=verification) == 1.0
    assert scored("echo $(($1 - $2))", verification=verification) == 0.0


CAPABLE = ("chown", "dac_override", "fowner", "kill", "setgid", "setuid")


@pytest.mark.skipif(not is_root(), reason="an ordinary user's sandboxes have one user")
@pytest.mark.parametrize("way", ["another group", "another user", "modes of the loader", "a core"])
def test_capabilities_find_no_more(way: str) -> None:
    assert scored(WAYS[way], capabilities=CAPABLE) == 0.0


ORDINARY = """
import sys
from rewards.test_hidden import HONEST, PROGRAM, WAYS, scored
sets = ((), ("dac_override",))
won = [(way, caps) for caps in sets for way in sys.argv[1:] if scored(WAYS[way], capabilities=caps)]
assert not won, won
assert scored("echo $(($1 + $2))", verification=HONEST.replace("PROGRAM", PROGRAM)) == 1.0
"""


def test_an_ordinary_users_sandboxes_hide_as_much() -> None:
    with ordinary_user() as user:
        ways = (
            "ps",
            "arguments of all",
            "memory of siblings",
            "another loader",
            "a child that stays",
        )
        done = subprocess.run(
            [*user.prefix, sys.executable, "-c", ORDINARY, *ways],
            env={**user.env, "PYTHONPATH": os.pathsep.join(map(str, (*SOURCES, *TESTS)))},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout + done.stderr
