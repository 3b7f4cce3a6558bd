"""What is removed, from where. Each probe is the function of that name in `probes`.

Where two layers defend from the same thing, both are removed: alone neither is missed, which is
why there are two.
"""

from __future__ import annotations

from dataclasses import dataclass

NATIVE = "intercode/sandbox/native/"
LAUNCH = NATIVE + "launch.py"
INIT = NATIVE + "init.py"
SPAWNER = NATIVE + "spawner.py"
CGROUP = NATIVE + "cgroup.py"
PROCESS = NATIVE + "process.py"
LAYERS = NATIVE + "layers.py"


@dataclass(frozen=True)
class Edit:
    """`old` occurs exactly once in the file."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Defence:
    name: str
    defends: str
    """By gVisor's classes: docs/explanation/sandbox.md."""
    edits: tuple[Edit, ...]
    needs_root: bool = False


def _one(
    name: str, defends: str, file: str, old: str, new: str, needs_root: bool = False
) -> Defence:
    return Defence(name, defends, (Edit(file, old, new),), needs_root)


DEFENCES = [
    _one(
        "seccomp", "escape", LAUNCH,
        "    sc.set_seccomp(machine.seccomp_program)\n", "",
    ),
    _one(
        "seccomp_clone_flags", "escape", NATIVE + "seccomp.py",
        "_CLONE_NEW_FLAGS = 0x7E020000", "_CLONE_NEW_FLAGS = 0",
    ),
    _one(
        "seccomp_socket_families", "lateral", NATIVE + "seccomp.py",
        '"socket": _allow_only(_ARG0, _SOCKET_FAMILIES, errno.EAFNOSUPPORT)',
        '"socket": [_op(_RET, _ALLOW)]',
    ),
    Defence(
        "network_namespace", "exfiltration, lateral",
        (
            Edit(LAUNCH, "NAMESPACES if network else NAMESPACES | sc.CLONE_NEWNET", "NAMESPACES"),
            # No defence: it must not touch the machine's own.
            Edit(LAUNCH, "    if not network:\n        _loopback_up()\n", ""),
        ),
    ),
    _one(
        "no_new_privileges", "escape", LAUNCH,
        "    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)\n", "",
    ),
    _one(
        # Each of the two suffices.
        "capabilities", "escape", LAUNCH,
        "    sc.drop_bounding_set(kept)\n"
        "    sc.prctl(sc.PR_SET_SECUREBITS, sc.SECUREBITS_NO_ROOT)\n", "",
    ),
    _one(
        "bounding_set", "escape", LAUNCH,
        "    sc.drop_bounding_set(kept)\n", "",
    ),
    Defence(
        "user_namespace", "escape",
        (
            Edit(LAUNCH, "    sc.unshare(sc.CLONE_NEWUSER)\n", ""),
            # No defence: the machine's root may have fewer than a namespace's.
            Edit(
                LAUNCH, "ALL_CAPABILITIES = (1 << 41) - 1",
                'ALL_CAPABILITIES = int(open("/proc/self/status").read().split("CapPrm:")[1]'
                ".split()[0], 16)",
            ),
            Edit(
                SPAWNER,
                "                layers.write_id_maps(child.pid, self.machine.root)\n", "",
            ),
        ),
        needs_root=True,
    ),
    _one(
        "unprivileged_ids", "escape", LAUNCH,
        "ID_BASE = 1_878_982_656", "ID_BASE = 0", needs_root=True,
    ),
    _one(
        "read_only_programs", "escape", LAYERS,
        "_READ_ONLY = sc.MOUNT_ATTR_RDONLY | ", "_READ_ONLY = ", needs_root=True,
    ),
    _one(
        "no_setuid_or_devices", "escape", LAUNCH,
        'sc.mount("overlay", "x/m", "overlay", sc.MS_NOSUID | sc.MS_NODEV, options)',
        'sc.mount("overlay", "x/m", "overlay", 0, options)', needs_root=True,
    ),
    _one(
        "read_only_proc_sys", "escape", LAUNCH,
        "None, sc.MS_BIND | sc.MS_REMOUNT | sc.MS_RDONLY | flags)",
        "None, sc.MS_BIND | sc.MS_REMOUNT | flags)",
    ),
    _one(
        "proc_of_its_own", "host leak", LAUNCH,
        'sc.mount("proc", "x/m/proc", "proc", flags)',
        'sc.mount("/proc", "x/m/proc", None, sc.MS_BIND | sc.MS_REC)', needs_root=True,
    ),
    _one(
        "old_root_unmounted", "host leak", LAUNCH,
        '    sc.pivot_root(".", ".")\n    sc.umount(".")\n',
        '    os.mkdir("old", 0o755)\n    sc.pivot_root(".", "old")\n', needs_root=True,
    ),
    _one(
        "ipc_namespace", "host leak, lateral", LAUNCH,
        " | sc.CLONE_NEWIPC | ", " | ",
    ),
    Defence(
        "clean_environment", "host leak",
        (
            Edit(NATIVE + "client.py", "                env={},\n", ""),
            Edit(INIT, " env=env,\n", " env={**os.environ, **env},\n"),
        ),
    ),
    _one(
        "hidden_arguments", "host leak", SPAWNER,
        '    hide_arguments(b"init")', '    b"init"',
    ),
    _one(
        "inherited_descriptors", "host leak", LAUNCH,
        "    os.closerange(4, 65536)\n", "",
    ),
    Defence(
        "process_limit", "host DoS",
        (
            Edit(
                LAUNCH, '    both(resource.RLIMIT_NPROC, limits["processes"] + 1)',
                "    pass",
            ),
            Edit(CGROUP, '            _write(folder + "/pids.max", str(processes))\n', ""),
        ),
    ),
    _one(
        "disk_size", "host DoS", LAUNCH,
        "size={limits['disk']},nr_inodes", "nr_inodes",
    ),
    _one(
        "file_count", "host DoS", LAUNCH,
        ",nr_inodes={limits['files']},", ",",
    ),
    _one(
        "file_size", "host DoS", LAUNCH,
        '    both(resource.RLIMIT_FSIZE, limits["disk"])\n', "",
    ),
    _one(
        "dev_size", "host DoS", LAUNCH,
        "size={_DEV_SIZE},nr_inodes=4096", "nr_inodes=4096",
    ),
    _one(
        "memory_of_a_process", "host DoS", LAUNCH,
        '    both(resource.RLIMIT_DATA, limits["memory"])\n', "",
    ),
    _one(
        "memory_of_a_sandbox", "host DoS, peer DoS", SPAWNER,
        'total = limits["memory"] + limits["disk"]', "total = 1 << 40",
    ),
    _one(
        "output_kept", "host DoS", "intercode/sandbox/output.py",
        "            if len(self._tail) > 2 * (self.limit // 2) + 65536:", "            if False:",
    ),
    _one(
        "endless_output", "host DoS", PROCESS,
        "too_much = any(b.total > output_limit * HARD_OUTPUT_FACTOR for b in buffers.values())",
        "too_much = False",
    ),
    _one(
        "device_nodes_of_its_own", "peer DoS", LAUNCH,
        "        if machine.root:\n            os.mknod", "        if False:\n            os.mknod",
        needs_root=True,
    ),
    _one(
        "timeout_kills_sessions", "host DoS, self DoS", INIT,
        "        self.kill_except(self.alive_before.pop(pid, set()))\n",
        "        self.do_signal(pid, signal.SIGKILL, [])\n",
    ),
    Defence(
        "caller_killed", "host DoS",
        (
            Edit(
                INIT,
                "                except (EOFError, OSError):\n                    return\n",
                "                except (EOFError, OSError):\n"
                "                    poll.unregister(self.control)\n"
                "                    continue\n",
            ),
            Edit(
                SPAWNER,
                "if not self.take_request():\n                            return\n",
                "if not self.take_request():\n"
                "                            self.poll.unregister(self.caller)\n",
            ),
        ),
    ),
    _one(
        "spawner_killed", "host DoS", LAUNCH,
        "    # A change of credentials clears it.\n"
        "    sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)\n", "",
        needs_root=True,
    ),
]  # fmt: skip
