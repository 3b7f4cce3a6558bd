"""Attacks on the shell and on its framing: each gives an observation, and the episode goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from intercode.interpreters.bash import BashInterpreter
from intercode_sandbox import SandboxBackend

HANGS = 0.25
"""Seconds for an attack after which the shell never answers."""


def output_of(bash: BashInterpreter, action: str) -> str:
    return bash.execute(action).output.decode()


def assert_goes_on(bash: BashInterpreter) -> None:
    assert output_of(bash, "echo $kept; pwd") == "1\n/tmp/w\n"
    assert bash.execute("(exit 5)").exit_code == 5


@pytest.fixture
def bash(
    start: Callable[..., SandboxBackend], monkeypatch: pytest.MonkeyPatch
) -> Iterator[BashInterpreter]:
    # Those that hang here hang for good: nothing is lost by not waiting for them.
    monkeypatch.setattr("intercode.interpreters.bash._GRACE_SECONDS", 0.5)  # allow limit: the same
    sandbox = start("host", timeout=60.0)
    opened = BashInterpreter(sandbox)
    assert opened.execute("mkdir /tmp/w; cd /tmp/w; kept=1").ok
    yield opened
    opened.close()


@pytest.mark.case(20)
def test_set_n(bash: BashInterpreter) -> None:
    bash.execute("set -n")
    assert_goes_on(bash)


@pytest.mark.case(23)
def test_a_debug_trap_that_skips_every_command(bash: BashInterpreter) -> None:
    done = bash.execute("shopt -s extdebug; trap false DEBUG; echo hidden", HANGS)
    assert b"hidden" not in done.output
    assert done.info["timed_out"] is True
    assert_goes_on(bash)


@pytest.mark.case(26)
def test_overridden_commands_are_honoured(bash: BashInterpreter) -> None:
    bash.execute(
        'echo() { builtin echo mine "$@"; }; eval() { builtin echo evil; }; '
        "for f in declare trap set shopt umask alias source pwd; do "
        'builtin eval "$f() { builtin echo $f; }"; done; alias .=false cd=false case2=x'
    )
    assert output_of(bash, "echo a; eval x; pwd") == "mine a\nevil\npwd\n"
    bash.execute("exit")
    assert output_of(bash, "echo $kept; trap") == "mine 1\ntrap\n"


@pytest.mark.case(27)
@pytest.mark.parametrize(
    "attack",
    [
        "builtin() { :; }; printf() { :; }",
        "builtin() { while :; do :; done; }",
        ".() { :; }",
        "exec() { exit; }; exec 2>&-",
        "enable -n builtin printf",
        "alias builtin=false case=false",
        "set -r",
        "readonly BASH_ARGV0",
        "unset BASH_ARGV0",
    ],
)
def test_the_means_of_the_report_are_overridden(bash: BashInterpreter, attack: str) -> None:
    bash.execute(attack, HANGS)
    bash.execute("true")
    assert_goes_on(bash)


@pytest.mark.case(31)
def test_all_descriptors_are_closed(bash: BashInterpreter) -> None:
    bash.execute('for i in {0..260}; do eval "exec $i>&-"; done; echo x')
    assert_goes_on(bash)


@pytest.mark.case(33)
@pytest.mark.parametrize("number", [195, 196, 197, 198, 199, 254, 255])
def test_a_descriptor_of_ours_is_closed_or_replaced(bash: BashInterpreter, number: int) -> None:
    bash.execute(f"exec {number}>&-", HANGS)
    assert_goes_on(bash)
    bash.execute(f"exec {number}>/dev/null", HANGS)
    bash.execute("true")
    bash.execute("true")
    assert b"alive" in bash.execute("echo alive").output or bash.execute("exit").info["restarted"]


@pytest.mark.case(33)
def test_writing_to_every_descriptor(bash: BashInterpreter) -> None:
    bash.execute("for i in /proc/self/fd/*; do echo junk > $i; done 2>/dev/null")
    bash.execute("for i in {3..260}; do echo junk >&$i; done 2>/dev/null")
    bash.execute("head -c 300000 /dev/urandom >&199")
    assert bash.execute("true").exit_code == 0
    assert_goes_on(bash)


@pytest.mark.case(34)
@pytest.mark.defends("escape")
def test_a_forged_report_changes_at_most_the_own_exit_code(bash: BashInterpreter) -> None:
    for number in range(2, 12):  # the fixture's action was the first
        done = bash.execute(
            f"printf '%s\\0' '' {number} A 0 hB /etc a:b c:d /proc/1 >&199; "
            f"printf 'forged=1\\n\\000\\000end\\000{number}\\000' >&199; (exit 9)"
        )
        assert done.exit_code in (0, 9)
    assert output_of(bash, "echo $kept") == "1\n"
    assert bash.execute("(exit 5)").exit_code == 5


FORGED = """
report() {{
printf '%s\\0' '' {number} {kind} "${{1:-0}}" hB "${{2:-/tmp/w}}" "${{options:-a:b}}" c:d \\
"${{3:-/proc/2}}"
printf '%s\\n\\000\\000end\\000{number}\\000' "${{4:-x=1}}"; }} 2>/dev/null >&199
long=$(printf '9%.0s' {{1..5000}})
"""


@pytest.mark.ordinary
@pytest.mark.defends("self DoS", "host DoS")
@pytest.mark.parametrize(
    "attack",
    [
        *("report $long", "report 0 /tmp /proc/$long", "options=${long//9/a:} report"),
        "head -c 5000000 /dev/zero >&199; report",  # it is not read to its end: it hangs for good
    ],
)
def test_a_forged_report_that_is_no_report(bash: BashInterpreter, attack: str) -> None:
    bash.execute(FORGED.format(number=2, kind="A") + attack, HANGS if "5000000" in attack else None)
    assert_goes_on(bash)


@pytest.mark.defends("host DoS")
def test_a_directory_without_end(bash: BashInterpreter) -> None:
    big = "head -c 3000000 /dev/zero | tr '\\0' A"
    bash.execute(f"unset DIRSTACK; DIRSTACK=$({big})")
    assert len(str(bash.execute("true").info["cwd"])) < 20_000


@pytest.mark.defends("self DoS")
def test_a_state_that_never_is_restored(
    bash: BashInterpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "intercode.interpreters.shell._RESTORE_SECONDS", 0.5
    )  # allow limit: it hangs for good
    attack = "report 0 /tmp /proc/2 'sleep 1000'; kill -9 $$"
    done = bash.execute(FORGED.format(number=0, kind="X") + attack)
    assert "lost" in done.notes[0]
    assert output_of(bash, "echo on") == "on\n"


@pytest.mark.ordinary
@pytest.mark.defends("self DoS")
def test_a_full_control_pipe(bash: BashInterpreter) -> None:
    """As an ordinary user, and in a container, the agent owns what its shell reads from."""
    fill = "for fd in /proc/$$/fd/25?; do chmod 666 $fd; cat /dev/zero > $fd & done"
    bash.execute(f"{{ {fill}; sleep 1; }} 2>/dev/null")
    assert_goes_on(bash)


@pytest.mark.case(48)
@pytest.mark.defends("self DoS")
@pytest.mark.parametrize("target", ["-1", "0", "$$", "1"])
def test_kill_9(bash: BashInterpreter, target: str) -> None:
    bash.execute(f"sleep 50 & kill -9 {target}; kill -9 {target}")
    assert_goes_on(bash)


@pytest.mark.case(49)
@pytest.mark.parametrize("name", ["STOP", "SEGV", "TERM", "INT", "HUP", "QUIT", "ABRT", "PIPE"])
def test_a_signal_to_the_shell(bash: BashInterpreter, name: str) -> None:
    bash.execute(f"kill -{name} $$", HANGS if name == "STOP" else None)
    assert_goes_on(bash)


@pytest.mark.case(49)
def test_every_signal_ignored_and_sent(bash: BashInterpreter) -> None:
    bash.execute("for i in {1..64}; do trap '' $i; kill -$i $$; done")
    assert_goes_on(bash)


@pytest.mark.case(66)
@pytest.mark.defends("self DoS")
def test_everything_is_removed(bash: BashInterpreter) -> None:
    # /usr, which is read-only, and /proc are left out: they are other file systems, and large.
    bash.execute("rm -rf --one-file-system --no-preserve-root / /dev/* 2>/dev/null")
    assert bash.execute("[ -e /etc/passwd ]").exit_code == 1
    done = bash.execute("echo still here")
    assert done.output == b"still here\n"
    done = bash.execute("exit")
    if done.info.get("restarted") and not bash.execute("true").info.get("gone"):
        assert bash.execute("echo on").output == b"on\n"  # /usr is read-only in the host image
    else:
        assert bash.execute("echo x").observation.startswith("[there is no bash left")


@pytest.mark.case(66)
def test_bash_is_replaced(bash: BashInterpreter) -> None:
    bash.execute("mkdir /bad; cp /bin/true /bad/bash; chmod 755 /bad/bash; rm -f /bin /bin/bash")
    bash.execute("exit")
    done = bash.execute("echo x")
    assert done.output == b"x\n" or done.info.get("gone") is True
