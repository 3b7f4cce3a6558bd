"""The filter as a program: what it answers to each system call, of each architecture."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given, strategies as st

from intercode_sandbox.native import seccomp

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def answer(program: bytes, machine: int, number: int, *arguments: int) -> int:
    """What a filter makes of a call: 0 if it is allowed or has no effect, or its error number."""
    found = verdict(program, machine, number, *arguments)
    return 0 if found == ALLOW else found & 0xFFFF


def verdict(program: bytes, machine: int, number: int, *arguments: int) -> int:
    """Run a filter as the kernel does."""
    data = struct.pack("=IIQ6Q", number, machine, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    steps = list(struct.iter_unpack("=HBBI", program))
    at = value = 0
    while True:
        code, true, false, k = steps[at]
        at += 1
        if code == 0x20:
            value = int(struct.unpack_from("=I", data, k)[0])
        elif code == 0x54:
            value &= k
        elif code == 0x05:
            at += k
        elif code == 0x06:
            assert k == ALLOW or k & 0xFFFF0000 == ERRNO
            return k
        else:
            holds = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code]
            at += true if holds else false


# Numbers without a call in Linux 6.18.
NO_CALLS = {
    "x86_64": [*range(337, 424), *range(470, 1200)],
    "aarch64": [*range(244, 260), *range(295, 424), *range(470, 1200)],
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("debugger", [False, True])
def test_every_system_call_has_its_answer(machine: str, debugger: bool) -> None:
    tables = vars(seccomp)
    name = machine.upper()
    expected = dict.fromkeys(tables[f"_EPERM_{name}"].values(), errno.EPERM)
    if not debugger:
        expected |= dict.fromkeys(tables[f"_DEBUGGER_{name}"].values(), errno.EPERM)
    for number in [*tables["_ENOSYS"].values(), *tables[f"_ENOSYS_{name}"].values()]:
        expected[number] = errno.ENOSYS
    by_argument = set(tables["_ARGUMENT_RULES"][machine].values())
    assert by_argument & set(expected) <= set(tables[f"_DEBUGGER_{name}"].values())
    by_argument -= set(expected)
    program = seccomp.build(debugger, machine=machine)
    for number in NO_CALLS[machine]:
        assert number not in by_argument | set(expected)
        expected[number] = errno.ENOSYS
    for number in range(1200):
        if number not in by_argument:
            assert answer(program, MACHINES[machine], number) == expected.get(number, 0), number


@given(st.integers(0, (1 << 32) - 1), st.sampled_from(sorted(MACHINES)))
def test_other_abis(number: int, machine: str) -> None:
    program = seccomp.build(machine=machine)
    assert answer(program, 0x40000003, number) == errno.ENOSYS  # i386
    assert answer(program, MACHINES[machine], max(number, 470)) == errno.ENOSYS
    if machine == "x86_64":
        assert answer(program, MACHINES[machine], 0x4000_0000 | number) == errno.ENOSYS


@given(st.integers(0, 1 << 33), st.integers(0, 1 << 33), st.integers(0, 1 << 33))
def test_by_arguments(first: int, second: int, third: int) -> None:
    program, machine = seccomp.build(machine="x86_64"), MACHINES["x86_64"]
    calls = vars(seccomp)["_ARGUMENT_RULES"]["x86_64"]

    def asked(name: str, *arguments: int) -> int:
        return answer(program, machine, calls[name], *arguments)

    low = [value & 0xFFFFFFFF for value in (first, second, third)]
    assert asked("prlimit64", first, 7, third) == (errno.EPERM if low[0] else 0)
    refusals = {1024: errno.EPERM, 1026: errno.EPERM, 37: errno.EINVAL, 38: errno.EINVAL}
    assert asked("fcntl", first, second) == refusals.get(low[1], 0)
    assert asked("socketpair", first) == (0 if low[0] == 1 else errno.EAFNOSUPPORT)
    assert asked("prctl", first) == (errno.EINVAL if low[0] in (22, 62, 67) else 0)
    assert asked("memfd_create", 0, second) == (errno.ENOMEM if low[1] & 4 else 0)
    assert asked("mmap", 0, 0, 0, third) == (errno.ENOMEM if low[2] & 0x40000 else 0)
    assert asked("clone", first) == (errno.EPERM if low[0] & 0x7E020000 else 0)
    for family in (2, 10):
        refusal = 0 if low[2] in (0, 1, 6, 17, 58) else errno.EPROTONOSUPPORT
        if low[1] & 15 not in (1, 2, 3):
            refusal = errno.ESOCKTNOSUPPORT
        assert asked("socket", family, second, third) == refusal
        assert asked("socket", family, 0x80801, 6) == 0
    assert asked("socket", 16, second, third) == (0 if low[2] in (0, 4) else errno.EPROTONOSUPPORT)
    if low[0] not in (1, 2, 10, 16):
        assert asked("socket", first, second, third) == errno.EAFNOSUPPORT
    for name in ("sched_setscheduler", "sched_setattr"):
        assert asked(name, first, second, third) == (errno.EPERM if low[0] else 0)
    for name in ("setxattr", "lsetxattr", "fsetxattr"):
        assert asked(name, first, 0, 0, third) == (errno.E2BIG if third > 256 else 0)
    refused = (low[1] == 1 and low[2] in (26, 50, 51, 52)) or (low[1], low[2]) == (41, 32)
    refused = refused or low[2] in GROUPS.get(low[1], ())
    refused = refused or (low[1] == 6 and low[2] in (14, 32, 38, 39, 40, 41))
    assert asked("setsockopt", first, second, third) == (errno.EPERM if refused else 0)
    assert asked("setsockopt", first, 1, 26) == errno.EPERM
    assert asked("setsockopt", first, 41, 32) == errno.EPERM
    assert asked("setsockopt", first, 6, 14) == errno.EPERM
    assert asked("ptrace", first, second, third) == errno.EPERM
    others = errno.EPERM if low[0] in (16, 0x4206) else 0
    assert answer(seccomp.build(True, machine="x86_64"), machine, calls["ptrace"], first) == others
    assert asked("madvise", first, second, 12) == errno.EINVAL
    assert asked("process_madvise", first, second, third, 12) == errno.EINVAL


GROUPS = {0: (35, 38, 39, 41, 42, 43, 46, 48), 41: (20, 27, 42, 43, 46, 48)}
"""The options that join a multicast or anycast group, or a source of one, of each level."""


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("level", GROUPS)
def test_no_group_is_joined(machine: str, level: int) -> None:
    """Of all other options of the two levels only that for flow labels is refused."""
    number = vars(seccomp)["_ARGUMENT_RULES"][machine]["setsockopt"]
    program = seccomp.build(machine=machine)
    refused = [
        name for name in range(300) if answer(program, MACHINES[machine], number, 3, level, name)
    ]
    assert refused == sorted([*GROUPS[level], *([32] if level == 41 else [])])


@pytest.mark.parametrize("machine", MACHINES)
def test_locks_and_watches_of_descriptors(machine: str) -> None:
    """Leases, F_NOTIFY, and locks of open files; locks of processes are left."""
    number = vars(seccomp)["_ARGUMENT_RULES"][machine]["fcntl"]
    program = seccomp.build(machine=machine)
    answers = {
        command: refusal
        for command in range(2048)
        if (refusal := answer(program, MACHINES[machine], number, 3, command))
    }
    assert answers == {37: 22, 38: 22, 1024: 1, 1026: 1}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "allowed"),
    [
        ("sync", (), False),
        ("syncfs", (3,), False),
        ("setsockopt", (3, 1, 13), False),
        ("setsockopt", (3, 6, 13), True),
        ("setsockopt", (3, 41, 26), True),
        ("fadvise64", (3, 0, 0, 4), False),
        ("fadvise64", (3, 0, 0, 3), True),
        ("madvise", (0, 0, 4), True),
        ("madvise", (0, 0, 20), False),
        ("madvise", (0, 0, 21), False),
        ("process_madvise", (0, 0, 0, 21), False),
        ("process_madvise", (0, 0, 0, 8), True),
        ("setxattr", (0, 0, 0, 256), True),
        ("setrlimit", (4, 1 << 40), False),
        ("setrlimit", (7, 1 << 40), True),
        ("prlimit64", (0, 4, 1 << 40), False),
        ("prlimit64", (0, 4, 8), False),
        ("prlimit64", (0, 4, 0), True),
        ("prlimit64", (0, 7, 8), True),
    ],
)
def test_without_effect(machine: str, name: str, arguments: tuple[int, ...], allowed: bool) -> None:
    number = vars(seccomp)["_ARGUMENT_RULES"][machine][name]
    program = seccomp.build(machine=machine)
    assert verdict(program, MACHINES[machine], number, *arguments) == (ALLOW if allowed else ERRNO)
