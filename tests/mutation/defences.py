"""What is removed, from where. Each probe is the function of that name in `probes`.

Where two layers defend from the same thing, both are removed: alone neither is missed, which is
why there are two.
"""

from __future__ import annotations

from dataclasses import dataclass

NATIVE = "intercode_sandbox/native/"
STATIC = NATIVE + "static/"
MAIN = STATIC + "main.c"
ENTER = STATIC + "enter.c"
SERVE = STATIC + "serve.c"
PROGRAM = STATIC + "program.c"
PROCESSES = STATIC + "process.c"
USER = STATIC + "user.c"
SYS = STATIC + "sys.c"
WALK = STATIC + "walk.c"
SPAWNER = NATIVE + "spawner.py"
CGROUP = NATIVE + "cgroup.py"
PROCESS = NATIVE + "process.py"
IDENTITY = NATIVE + "user_ids.py"
SECCOMP = NATIVE + "seccomp.py"
PROVIDER = NATIVE + "provider.py"
JUDGE = "intercode/rewards/judge.py"
READING = "intercode/rewards/answer_parsing.py"
QUANTITIES = "intercode/rewards/quantities.py"
REWARDS = "intercode/rewards/"
DOCKER = "docker_"
"""How the names of those begin that need an engine."""
CONTAINER = "intercode_sandbox/docker/container.py"
NETWORK = "intercode_sandbox/network.py"
FORWARD = "intercode_sandbox/forwarding.py"
PROXY = "intercode_sandbox/proxy.py"
GUARD = "intercode/request_guard.py"
VIEWER = "intercode/report/server.py"
EPISODES = "intercode/report/viewer_episodes.py"
SKILLS = "intercode/agents/skills.py"
LAYERS = "intercode_integrations/external_agents/agent_layers.py"
PLAY = "intercode_integrations/external_agents/episode_runner.py"
ARCHIVE = "intercode_sandbox/images/tarballs.py"
REPOSITORY = "intercode_sandbox/images/git_repository.py"
FIXES = "intercode/evaluate/leak_fixes.py"
GATE = "intercode_integrations/gateway/gateway.py"
FORWARDING = "intercode_integrations/gateway/forwarding.py"
UPSTREAM = "intercode/models/upstream.py"
RULES = "intercode_integrations/gateway/policy.py"
DOOR = "intercode_integrations/gateway/http.py"
INTAKE = "intercode_integrations/gateway/byte_quota.py"
JSON = "intercode/json_limits.py"
PLAIN = "intercode/json_checks.py"
FILES = "intercode_sandbox/host_files.py"
DOCKERFILE = "intercode_sandbox/images/dockerfile/parse.py"
ADMISSION = "intercode/connection_admission.py"
RETENTION = "intercode_integrations/gateway/episode_calls.py"
LEDGER = "intercode_integrations/ray/shared_limits.py"
TRUST = "intercode/trust.py"
RECORDS = "intercode/records.py"
OWNERSHIP = "intercode_sandbox/ownership.py"


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
    """By gVisor's classes: docs/sandbox/security.md."""
    edits: tuple[Edit, ...]
    needs_root: bool = False


def _one(
    name: str, defends: str, file: str, old: str, new: str, needs_root: bool = False
) -> Defence:
    return Defence(name, defends, (Edit(file, old, new),), needs_root)


def _filter(name: str, defends: str, old: str, new: str) -> Defence:
    return _one(f"seccomp_{name}", defends, SECCOMP, old, new)


def _docker(name: str, defends: str, file: str, old: str, new: str) -> Defence:
    return _one(DOCKER + name, defends, file, old, new, needs_root=True)


NO_NAMESPACES = Edit(ENTER, 'proc, zero_limits[i], "0")', 'proc, zero_limits[i], "9")')
"""Beside the filter, which alone would not be missed."""

NO_PIDS = Edit(CGROUP, 'CONTROLLERS = ("memory", "pids", "cpu")', 'CONTROLLERS = ("memory", "cpu")')
"""Beside the rlimit, which alone would not be missed."""
LATER_SCORE = Edit(
    PROGRAM, '    ignore(sys_write_text(sandbox->proc_fd, path.start, "1000"));\n', ""
)
"""Beside the first score, which comes a moment before."""
UNWATCHED = Edit(SPAWNER, "        self.poll.register(self.owner, select.EPOLLIN)\n", "")
"""Beside the end of its socket, which a fork of the caller may hold."""

DEFENCES = [
    Defence(
        "seccomp", "escape",
        (
            Edit(ENTER, "    MUST(install_filter(setup));\n", ""),
            NO_NAMESPACES,
        ),
    ),
    Defence(
        "seccomp_clone_flags", "escape",
        (
            Edit(SECCOMP, "_CLONE_NEW_FLAGS = 0x7E020000", "_CLONE_NEW_FLAGS = 0"),
            NO_NAMESPACES,
        ),
    ),
    Defence(
        "namespaces_of_ones_own", "escape",
        (
            NO_NAMESPACES,
            Edit(SECCOMP, "_CLONE_NEW_FLAGS = 0x7E020000", "_CLONE_NEW_FLAGS = 0"),
        ),
    ),
    _filter(
        "socket_families", "lateral",
        "_test(_NETLINK, on_match=netlink_rule, on_mismatch=eafnosupport_code)",
        "_test(_NETLINK, on_match=netlink_rule, on_mismatch=allow_code)",
    ),
    _filter(
        "socket_pairs", "lateral",
        "_test_word(_ARG0, _UNIX, on_match=allow_code, on_mismatch=eafnosupport_code)",
        "_test_word(_ARG0, _UNIX, on_match=allow_code, on_mismatch=allow_code)",
    ),
    _filter("socket_protocols", "escape", "_PROTOCOLS = (0, ", "_PROTOCOLS = (262, 0, "),
    _filter("socket_types", "escape", "_TYPE_BITS = (1, ", "_TYPE_BITS = (5, 6, 1, "),
    _filter("modules", "escape", "(0x5423, 0x8940, ", "("),
    _filter("huge_pages", "host DoS", "_MFD_HUGETLB = 0x40000, 0x4", "_MFD_HUGETLB = 0x40000, 8"),
    _filter(
        "other_programs_treatment", "peer DoS",
        "_PR_OF_THE_MACHINE = 22, (67, 62)", "_PR_OF_THE_MACHINE = 22, (62,)",
    ),
    _filter("lingering_sockets", "host DoS", "_SO_LINGER = 13", "_SO_LINGER = 99"),
    _filter(
        "scheduling_of_others", "self DoS",
        '"sched_setscheduler": _test_word(_ARG0, 0, on_match=allow_code, on_mismatch=deny_code)',
        '"sched_setscheduler": allow_code',
    ),
    _filter("page_cache", "host leak, lateral", ' "mincore": 27,', ""),
    _filter("emptied_page_cache", "host leak", "(20, 21), 4", "(20, 21), 9"),
    _filter("paged_out", "host leak", "(20, 21), 4", "(98, 99), 4"),
    _filter("merged_memory", "peer DoS", "_MADV_MERGEABLE = 12", "_MADV_MERGEABLE = 99"),
    _filter("keys_of_sockets", "host DoS", "_TCP_KEYS = 6, (14, ", "_TCP_KEYS = 6, (99, "),
    _filter("flow_labels", "peer DoS", "_FLOW_LABELS = 41, 32", "_FLOW_LABELS = 41, 99"),
    _filter("access_lists", "host DoS", "_LONGEST_ATTRIBUTE = 256", "_LONGEST_ATTRIBUTE = 65536"),
    _filter("kernel_events", "host leak", "_NETLINKS = (0, ", "_NETLINKS = (15, 0, "),
    _filter("socket_filters", "host DoS", "_SOCKET_FILTERS = (26, ", "_SOCKET_FILTERS = ("),
    _filter(
        "filters_of_ones_own", "host DoS",
        "\"seccomp\": [*einval_code],", "\"seccomp\": allow_code,",
    ),
    _filter("leases", "host DoS", "_F_SETLEASE = 1024", "_F_SETLEASE = 0xFFFF"),
    _filter("watched_folders", "peer DoS", "_F_NOTIFY = 1026", "_F_NOTIFY = 0xFFFF"),
    _filter("locks_of_open_files", "peer DoS", "_OFD_LOCKS = 37, 38", "_OFD_LOCKS = 99, 98"),
    _filter("groups", "host DoS, peer DoS", "_IPV4_GROUPS = (35, ", "_IPV4_GROUPS = ("),
    _filter("groups_of_ipv6", "host DoS, peer DoS", "_IPV6_GROUPS = 20, ", "_IPV6_GROUPS = 99, "),
    _filter("groups_of_both", "host DoS, peer DoS", "\n_GROUPS = (42, ", "\n_GROUPS = ("),
    _filter("asynchronous_io", "host DoS", '{"io_setup": 206}', "{}"),
    _filter(
        "limits_of_others", "escape",
        "_test_word(_ARG0, 0, on_match=core_limit_rule, on_mismatch=deny_code)", "core_limit_rule",
    ),
    _filter("tracing_of_others", "host DoS", "_PTRACE_OTHERS = (16, ", "_PTRACE_OTHERS = (99, "),
    _filter("tracing", "escape", "    if not debugger:", "    if False:"),
    Defence(
        "network_namespace", "exfiltration, lateral",
        (
            Edit(MAIN, "    if (!network) flags |= CLONE_NEWNET;\n", ""),
            Edit(ENTER, "    if (!network) MUST(begin_network", "    if (0) MUST(begin_network"),
        ),
    ),
    _one(
        "no_new_privileges", "escape", ENTER,
        '    MUST(enter_note("prctl", CALL5(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1,'
        " 0, 0, 0)));\n",
        "",
    ),
    Defence(
        "capabilities", "escape",
        (
            Edit(
                ENTER,
                "CALL2(__NR_prctl, PR_CAPBSET_DROP, capability);\n",
                "0;\n",
            ),
            Edit(
                ENTER,
                '    MUST(enter_note("prctl",\n'
                "                    CALL2(__NR_prctl, PR_SET_SECUREBITS, SECBIT_NOROOT"
                " | SECBIT_NOROOT_LOCKED)));\n",
                "",
            ),
            Edit(
                USER,
                "return error ? error : user_set_capabilities(capabilities,"
                " capabilities, capabilities);",
                "return error;",
            ),
        ),
    ),
    _one(
        "bounding_set", "escape", ENTER,
        "CALL2(__NR_prctl, PR_CAPBSET_DROP, capability);\n",
        "0;\n",
    ),
    Defence(
        "user_namespace", "escape",
        (
            Edit(
                ENTER,
                '    MUST(enter_note("setns", CALL2(__NR_setns, setup->namespace,'
                " CLONE_NEWUSER)));\n",
                "",
            ),
            Edit(
                ENTER,
                '    if (setup->own_id) {\n        MUST(enter_note("setgroups"',
                '    if (0) {\n        MUST(enter_note("setgroups"',
            ),
            Edit(
                USER,
                "    return CALL2(__NR_capset, &header, sets);",
                "    struct __user_cap_data_struct had[2];\n"
                "    ignore(CALL2(__NR_capget, &header, had));\n"
                "    for (int i = 0; i < 2; i++) {\n"
                "        sets[i].effective &= had[i].permitted;\n"
                "        sets[i].permitted &= had[i].permitted;\n"
                "        sets[i].inheritable &= had[i].permitted;\n"
                "    }\n"
                "    return CALL2(__NR_capset, &header, sets);",
            ),
        ),
        needs_root=True,
    ),
    Defence(
        "unprivileged_ids", "escape",
        (
            Edit(
                IDENTITY, "        (_range_start(range_index), _FIRST_ID + range_index) if",
                "        (0, _FIRST_ID + range_index) if",
            ),
            Edit(ENTER, "setup->root == (setup->first_id > 0) && ", ""),
        ),
        needs_root=True,
    ),
    Defence(
        "ids_of_its_own", "peer DoS",
        (
            Edit(IDENTITY, "range_index = (start_index + offset) % _RANGES", "range_index = 7"),
            Edit(IDENTITY, "            fcntl.fcntl(lock_fd, fcntl.F_OFD_SETLK, flock_struct)\n",
            ""),
        ),
        needs_root=True,
    ),
    _one(
        "process_1_is_nobody", "escape", IDENTITY,
        "        (_range_start(range_index), _FIRST_ID + range_index) if",
        "        (_range_start(range_index), _range_start(range_index)) if",
        needs_root=True,
    ),
    Defence(
        "never_the_machines_root", "escape",
        (
            Edit(SPAWNER, "        if has_machines_id():", "        if False:"),
            # No defence: whose the files are that it can have.
            Edit(
                "intercode_sandbox/privileges.py",
                "return STAND_IN_ID if needs_stand_in() else", "return",
            ),
        ),
        needs_root=True,
    ),
    _one(
        "watchers", "host DoS", ENTER,
        '    MUST(limit_namespace(root, proc, "sys/user/max_inotify_instances", "16"));\n', "",
    ),
    Defence(
        "read_only_programs", "escape",
        (
            Edit(SPAWNER, "_READ_ONLY = sc.MOUNT_ATTR_RDONLY | ", "_READ_ONLY = "),
            Edit(
                ENTER,
                '    text_add(&layers, ":e/folder");\n'
                '    long error = mount_overlay(setup, "m", layers.start, NULL);\n',
                '    long error = mount(layers.start, "m", NULL, MS_BIND, NULL);\n',
            ),
        ),
        needs_root=True,
    ),
    _one(
        "programs_inodes_of_its_own", "peer DoS, host leak", ENTER,
        '    text_add(&layers, ":e/folder");\n'
        '    long error = mount_overlay(setup, "m", layers.start, NULL);\n',
        '    long error = mount(layers.start, "m", NULL, MS_BIND | MS_REC, NULL);\n',
    ),
    _one(
        "private_folders", "host leak", ENTER,
        "    MUST(hide_paths(setup));\n",
        '', needs_root=True,
    ),
    _one(
        "the_same_host_for_gold", "cheating", "intercode/envs/base.py",
        "str(error)}\n        if self.stage.changed(task, workspace):\n",
        "str(error)}\n        if False:\n",
    ),
    _one(
        "no_setuid_or_devices", "escape", ENTER,
        '"overlay", upper ? NO_SUID_DEV :',
        '"overlay", upper ? 0 :', needs_root=True,
    ),
    _one(
        "read_only_proc", "escape", ENTER,
        "MS_BIND | MS_REMOUNT | MS_RDONLY | flags, NULL));\n    for (struct",
        "MS_BIND | MS_REMOUNT | flags, NULL));\n    for (struct",
    ),
    _one(
        "read_only_proc_of_the_private", "escape", ENTER,
        "MS_BIND | MS_REMOUNT | MS_RDONLY | flags, NULL));\n    for (int",
        "MS_BIND | MS_REMOUNT | flags, NULL));\n    for (int",
    ),
    Defence(
        "programs_are_ended_first", "self DoS",
        (
            Edit(
                PROGRAM,
                "set_score(sandbox,\n"
                "                     sandbox->oom_score > STARTING_SCORE ?"
                " sandbox->oom_score : STARTING_SCORE);\n",
                "0;",
            ),
            LATER_SCORE,
        ),
    ),
    _one(
        "masked_proc", "host leak", ENTER,
        "mask = msg_first(machine->masks);",
        "mask = {0};",
    ),
    _one(
        "proc_of_its_own", "host leak", ENTER,
        'mount("proc", "p", "proc", flags, NULL)',
        'mount("/proc", "p", NULL, MS_BIND | MS_REC, NULL)', needs_root=True,
    ),
    _one(
        "old_root_unmounted", "host leak", ENTER,
        '    MUST(enter_note("pivot_root", CALL2(__NR_pivot_root, ".", ".")));\n'
        '    MUST(enter_note("umount", CALL2(__NR_umount2, ".",'
        " MNT_DETACH)));\n",
        '    MUST(make_folder("old"));\n'
        '    MUST(enter_note("pivot_root", CALL2(__NR_pivot_root, ".", "old")));\n',
        needs_root=True,
    ),
    _one(
        "ipc_namespace", "host leak, lateral", MAIN,
        "CLONE_NEWPID | CLONE_NEWIPC |",
        "CLONE_NEWPID |",
    ),
    _one(
        "hidden_arguments", "host leak", NATIVE + "zygote.py",
        '["init"]',
        "[PROGRAM]",
    ),
    _one(
        "inherited_descriptors", "host leak", MAIN,
        'enter_note("close_range", sys_close_from(CONTROL_FD + 1));\n',
        "0;\n",
    ),
    _one(
        "inherited_descriptors_one_by_one", "host leak", SYS,
        "    do error = close_listed(first);\n"
        "    while (error > 0);\n"
        "    return error;\n",
        "    return 0;\n",
    ),
    Defence(
        "process_limit", "host DoS",
        (
            Edit(
                ENTER,
                "        MUST(set_limit(RLIMIT_NPROC,\n"
                "                       (processes > 2 ? processes : 2) + (setup->own_id"
                " ? 0 : OWN_PROCESSES)));\n",
                "",
            ),
            Edit(IDENTITY, "            limit_processes(max_processes + OWN_THREADS)\n", ""),
            NO_PIDS,
        ),
    ),
    Defence(
        "processes_of_all_users", "host DoS",
        (Edit(IDENTITY, "            limit_processes(max_processes + OWN_THREADS)\n", ""), NO_PIDS),
        needs_root=True,
    ),
    _one(
        "disk_size", "host DoS", ENTER,
        "    text_add_number(&options, disk);\n",
        '    text_add(&options, "50%");\n',
    ),
    _one(
        "frozen_counts", "host DoS", ENTER,
        "    if (used || used_files) {",
        "    if (0) {",
    ),
    _one(
        "frozen_bound", "host DoS", SPAWNER,
        "        if used_bytes <= max_bytes:\n", "        if True:\n",
    ),
    _one(
        "frozen_for_good", "cheating", NATIVE + "frozen_mounts.py",
        "                sc.make_read_only(mount_fd)\n", "",
    ),
    _one(
        "file_count", "host DoS", ENTER,
        "    text_add_number(&options, files);\n",
        "    text_add_number(&options, 0);\n",
    ),
    _one(
        "file_size", "host DoS", ENTER,
        '    MUST(set_limit(RLIMIT_FSIZE, (uint64_t)plan_number(setup, "disk")));\n',
        "",
    ),
    _one(
        "read_only_dev", "cheating", ENTER,
        "MS_REMOUNT | MS_BIND | MS_RDONLY | NO_SUID_EXEC",
        "MS_REMOUNT | MS_BIND | NO_SUID_EXEC",
    ),
    Defence("started_programs_are_ended_first", "self DoS", (LATER_SCORE,)),
    _one(
        "memory_of_sockets", "host DoS", CGROUP,
        "str(memory // _TCP_SHARE)", "str(1 << 62)",
    ),
    _one(
        "memory_of_those_before", "peer DoS", CGROUP,
        "            if self._is_clean(cgroup_name):\n", "            if True:\n", needs_root=True,
    ),
    _one(
        "limits_of_those_before", "host DoS, peer DoS", CGROUP,
        "        if self._limits.get(name) == (memory, processes):\n",
        "        if name in self._limits:\n", needs_root=True,
    ),
    _one(
        "room_beside_shared_memory", "host DoS, self DoS", ENTER,
        '"sys/kernel/shmall"',
        '"sys/kernel/none"',
    ),
    _one(
        "few_to_remove", "self DoS", ENTER,
        '"32000 8192 500 128"',
        '"32000 8192 500 9999"',
    ),
    Defence("pids_controller", "host DoS", (NO_PIDS,)),
    _one(
        "equal_weights", "peer DoS", CGROUP,
        "        self.sandboxes += count_change\n", "        self.sandboxes = 1\n",
    ),
    _one(
        "no_core_by_a_pipe", "host leak, escape", ENTER,
        "set_limit(RLIMIT_CORE, 1)",
        "set_limit(RLIMIT_CORE, 0)",
    ),
    _one(
        "empty_cores", "host leak", ENTER,
        '"/proc/self/coredump_filter", "0"',
        '"/proc/self/coredump_filter", "33"',
    ),
    _one(
        "room_beside_files", "self DoS", ENTER,
        "    if (files > memory_files) files = memory_files;\n",
        "",
    ),
    _one(
        "programs_of_the_image", "cheating", "intercode/rewards/verification.py",
        'change.kind == "added" and ', "",
    ),
    _one(
        "programs_of_the_setup", "cheating", "intercode/rewards/verification.py",
        " or _name(path) in removed_names", "",
    ),
    _one(
        "settings_of_tools", "cheating", "intercode/rewards/verification.py",
        "in changed_paths - scratch if not SYSTEM_PATHS.match(path)\n        )",
        "in changed_paths - changed_paths)",
    ),
    _one(
        "settings_of_the_setup", "cheating", "intercode/rewards/verification.py",
        "        if not task.setup and not task.files:", "        if True:",
    ),
    _one(
        "settings_by_a_link", "cheating", "intercode/rewards/verification.py",
        "return change.type == \"symlink\" and (\n            path", "return False and (path",
    ),
    _one(
        "settings_that_stay", "cheating", "intercode/rewards/verification.py",
        "return archive_result.ok and copy.exec(unpack_argv, stdin=archive_result.stdout, "
        "env=env).ok",
        "return True",
    ),
    _one(
        "settings_of_repositories", "cheating", "intercode/rewards/verification.py",
        "repositories = heads | refs & objects", "repositories = refs - refs",
    ),
    _one(
        "long_verifications", "cheating", "intercode_sandbox/script_arguments.py",
        "if len(script_bytes) <= _MAX_ARGUMENT_BYTES:", "if True:",
    ),
    _one(
        "room_for_a_verification", "cheating", "intercode/rewards/verification.py",
        "        if not _has_room(sandbox):", "        if False:",
    ),
    _one(
        "links_that_lead_elsewhere", "cheating", "intercode/rewards/agent_leftovers.py",
        "if link.escapes or not link.has_end:", "if False:",
    ),
    _one(
        "links_to_the_tasks_files", "cheating", "intercode/rewards/agent_leftovers.py",
        "if to_own and not is_asked_for", "if False",
    ),
    _one(
        "links_in_the_place_of_a_folder", "cheating", "intercode/rewards/agent_leftovers.py",
        " if _is_replacement(entry.path, agent_changes, setup_changes)", " if False",
    ),
    _one(
        "what_is_in_the_way", "cheating", "intercode/rewards/agent_leftovers.py",
        "if is_within_any(path, obstructed_paths))", "if False)",
    ),
    _one(
        "files_that_are_closed", "cheating", "intercode/rewards/agent_leftovers.py",
        "    if instruction_words.mentions_modes(task):", "    if True:",
    ),
    _one(
        "names_that_are_options", "cheating", "intercode/rewards/agent_leftovers.py",
        "if is_new and _OPTION", "if False and _OPTION",
    ),
    _one(
        "ends_that_tell", "cheating", "intercode/envs/base.py",
        "        if self.scores_later and not", "        if False and not",
    ),
    _one(
        "flags_in_forks", "cheating", "intercode/envs/base.py",
        "episode, snapshot.submissions)", "episode, type(snapshot.submissions)())",
    ),
    _one(
        "temporary_files", "cheating", "intercode/rewards/verification.py",
        "if not agent_leftovers.empty_temporary_folders(sandbox, scratch):", "if False:",
    ),
    _one(
        "files_of_two_names", "cheating", "intercode/rewards/agent_leftovers.py",
        "            if names & written_paths:", "            if False:",
    ),
    _one(
        "files_of_unknown_names", "cheating", "intercode/rewards/file_links.py",
        "if changes[path].links != 1]", "if changes[path].links > 1]",
    ),
    _one(
        "names_of_several_lines", "cheating", "intercode/rewards/file_links.py",
        '(.*)", re.DOTALL)', '(.*)")',
    ),
    _one(
        "files_of_counted_names", "cheating", STATIC + "walk.c",
        "S_IFREG ? status->stx_nlink : 0", "S_IFREG ? 1 : 0",
    ),
    _one(
        "room_by_a_program", "cheating", "intercode/rewards/verification.py",
        "    return FreeSpace(blocks * size, free_files if files else None)",
        "    return None",
    ),
    _one(
        "variables_of_the_image", "cheating", "intercode/rewards/agent_leftovers.py",
        "    if not _steering_variables(sandbox):", "    if True:",
    ),
    _one(
        "modules_of_python", "cheating", "intercode/rewards/verification.py",
        "        spec = PathFinder.find_spec(name, places)", "        spec = None",
    ),
    _one(
        "modules_that_there_are_not", "cheating", "intercode/rewards/verification.py",
        "spec is None and asked_by_a_library()", "False",
    ),
    _one(
        "messages_for_answers", "cheating", "intercode/rewards/answer_types.py",
        "is_message(line) and collapse_blanks(line) not in packed_lines", "False",
    ),
    _one(
        "hedges_beside_a_number", "cheating", QUANTITIES,
        "or not all(map(question.explains, non_unit_words)):", "or False:",
    ),
    _one(
        "candidates_for_a_number", "cheating", QUANTITIES,
        "if len(positions) != 1 or", "if not positions or",
    ),
    _one(
        "bounds_of_a_number", "cheating", QUANTITIES,
        "if positions[0] and words", "if False and words",
    ),
    _one(
        "units_of_a_number", "cheating", READING,
        "return len(units) == 1 or (", "return True or (",
    ),
    _one(
        "decimals_of_a_number", "cheating", QUANTITIES,
        "Decimal(5).scaleb(-min(decimal_counts) - 1)", "Decimal(5).scaleb(-min(decimal_counts))",
    ),
    _one(
        "one_choice", "cheating", QUANTITIES,
        "match is None or [(match[1] or match[2]).casefold()] != choices", "len(choices) != 1",
    ),
    _one(
        "hashes_beside_paths", "cheating", READING,
        "if sums != hashes:", "if False:",
    ),
    _one(
        "folders_before_names", "cheating", READING,
        "any(\n            _ends_with(gold_path, path) or _ends_with(path, gold_path)\n          "
        "  for gold_path in paths_by_name[_base_name(path)]\n        )",
        "True",
    ),
    _one(
        "folders_that_are_stated", "cheating", READING,
        "if answer.question.folders or len({*paths}) == 1:", "if False:",
    ),
    _one(
        "numbers_before_lines", "cheating", READING,
        "if line_number is not None and line_number <= last_number_by_name.get(name, 0):",
        "if False:",
    ),
    _one(
        "files_before_lines", "cheating", READING,
        "any(is_within(name, folder) for folder in question_names)", "True",
    ),
    _one(
        "cells_beside_those", "cheating", READING,
        "extra_cells = (*words[column_counts[1] :], *cells[column_counts[0] :])",
        "extra_cells = ()",
    ),
    _one(
        "totals_of_a_table", "cheating", READING,
        "(total and sums and total != sums)", "False",
    ),
    _one(
        "modules_that_are_installed", "cheating", "intercode/rewards/verification.py",
        "    PathFinder.find_distributions = of_libraries\n", "",
    ),
    _one(
        "what_a_checker_is_told", "cheating", "intercode/interpreters/inside/grader.py",
        "        original = json.loads(json.dumps(inputs))", "        original = inputs",
    ),
    _one(
        "loops_of_the_tests", "cheating", "intercode/interpreters/inside/grader.py",
        "isinstance(exception, StopIteration)", "False",
    ),
    _one(
        "ends_by_what_ran", "cheating", "intercode_sandbox/base.py", " or evidence.starved", "",
        needs_root=True,
    ),
    _one(
        "one_episodes_exceptions", "host DoS", "intercode/evaluate/worker.py",
        "            except BaseException as error:", "            except SandboxError as error:",
    ),
    _one(
        "a_crash_of_ours", "cheating", "intercode/interpreters/python_start.py",
        "            check_worker(sandbox)\n", "            return\n",
    ),
    _one(
        "late_gold", "peer DoS", "intercode/rewards/gold.py",
        "                return run(_RETRY_FACTOR)", "                raise",
    ),
    _one(
        "ages_of_files", "clock", "intercode/envs/stage.py",
        "if ages := self._age_arguments(task):", "if ages := []:",
    ),
    _one(
        "gold_of_the_hour", "clock", "intercode/task.py",
        "return not self.depends_on_clock and ", "return ",
    ),
    _one(
        "times_of_layers", "clock", "intercode_sandbox/images/resolve.py",
        "        set_times(layer, begin_time, _SCRIPT_TIME)\n", "",
    ),
    _one(
        "moved_clock", "clock", "intercode/evaluate/task_checks.py",
        "    _clock_effects,\n    _mislisted_tests", "    _mislisted_tests",
    ),
    _one(
        "twins", "cheating", "intercode/rewards/mutated_tests.py",
        "\nPAIRS = 2\n", "\nPAIRS = 0\n",
    ),
    _one(
        "twins_of_exceptions", "cheating", "intercode/rewards/mutated_tests.py",
        "if name in _RAISE_METHODS and", "if False and",
    ),
    _one(
        "twins_of_parts", "cheating", "intercode/rewards/mutated_tests.py",
        "if isinstance(text, str) and sum(", "if False and sum(",
    ),
    _one(
        "arguments_of_a_verification", "cheating", ENTER, '"hidepid=2"', '"hidepid=0"',
    ),
    _one(
        "loaders_that_cannot_be_read", "cheating", ENTER, "0715 : 0111", "0755 : 0755",
    ),
    _one(
        "the_group_that_cannot_read_them", "cheating", PROGRAM,
        "        user.groups[user.count++] = PRIVATE_GROUP;", " user.count += 0;",
        needs_root=True,
    ),
    _one(
        "private_copies", "cheating", "intercode/rewards/base.py",
        "is_fit = limits == sandbox.limits or", "is_fit = True or",
    ),
    _one(
        "arguments_of_a_command", "cheating", "intercode/rewards/swe_run.py",
        "if isinstance(sandbox, SupportsPrivateExec)", "if False",
    ),
    _one(
        "orders_to_a_judge", "cheating", JUDGE,
        'is_same and control == ["different", "different"]', "is_same",
    ),
    _one(
        "an_order_that_a_judge_likes", "cheating", JUDGE,
        "_ask(model, question, second_output, first_output),\n        ]",
        "_ask(model, question, first_output, second_output)]",
    ),
    _one("a_reply_to_the_judge", "cheating", JUDGE, '"id":\\s*"{word}"', '"id":\\s*"[^"]*"'),
    _one(
        "files_before_a_judge", "cheating", "intercode/rewards/bash.py",
        "if not any(score.detail[kind] for kind in _DIFFERENCE_KEYS):", "if True:",
    ),
    _one(
        "marked_failures", "cheating", "intercode/rewards/swe_run.py",
        "and (\n                self._expects_failure or not self._has_expected_failure\n        "
        "    )",
        "",
    ),
    _one(
        "reports_in_one_encoding", "cheating", "intercode/rewards/swe_run.py",
        'ParserCreate("UTF-8")', "ParserCreate()",
    ),
    _one(
        "commands_apart", "cheating", "intercode/rewards/swe.py",
        '        if plan.runner == "command":\n', "        if False:\n",
    ),
    Defence(
        "commits_before_the_base", "cheating",
        (
            Edit(REPOSITORY, 'return ["--depth=1"] if history == NO_HISTORY else []', "return []"),
            Edit(REPOSITORY, "            if history == NO_HISTORY:\n", "            if False:\n"),
        ),
    ),
    Defence(
        "objects_without_a_name", "cheating",
        (
            Edit(REPOSITORY, 'return ["--depth=1"] if history == NO_HISTORY else []', "return []"),
            Edit(REPOSITORY, '    git(*folder_option, "repack", "-a", "-d", "-n", "-q")\n', ""),
        ),
    ),
    _one(
        "repositories_of_an_image", "cheating", ARCHIVE,
        "            if REPLACES_HEADER in member.pax_headers:\n", "            if False:\n",
    ),
    _one(
        "fixes_in_objects", "cheating", FIXES,
        "self._report_location(path, self._search_pack(pack_content))",
        'self._report_location(path, "")',
    ),
    _one(
        "fixes_in_archives", "cheating", FIXES,
        " if depth < _MAX_DEPTH else ()", " if False else ()",
    ),
    _one("fixes_that_are_compiled", "cheating", FIXES, "in self._find_compiled_code():", "in ():"),
    _one(
        "tests_that_pass_before", "cheating", "intercode/evaluate/task_checks.py",
        "    _mislisted_tests,\n", "",
    ),
    _one(
        "golds_of_agents", "cheating", "intercode/agents/base.py",
        "AgentContext.from_env(env), task.shown()", "AgentContext.from_env(env), task",
    ),
    _one(
        "golds_below_usr", "cheating", "intercode_sandbox/images/host.py",
        ", *sorted(_hidden_paths)]", "]", needs_root=True,
    ),
    _one(
        "write_ups", "cheating", "intercode/envs/ctf.py",
        'self.directory(task), _names(task, "assets_without")', "self.directory(task), ()",
    ),
    _one(
        "secret_flags", "cheating", "intercode/datasets/puzzles/base.py",
        " if secret else draw", " if None else draw",
    ),
    _one(
        "bounded_options", "host DoS", "intercode/interpreters/shell.py",
        "_LONGEST_OPTIONS = 1 << 12", "_LONGEST_OPTIONS = 1 << 26",
    ),
    Defence(
        "links_of_images", "escape",
        (
            Edit(SYS, "resolve = RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT;", "resolve = 0;"),
            Edit(PROVIDER, "            _check_mount_points(image.layers)\n", ""),
        ),
        needs_root=True,
    ),
    _one(
        "a_stack_for_walks", "self DoS", SERVE,
        "    error = sys_run_on_stack(run, &walking);\n", "    run(&walking);\n",
    ),
    _one(
        "shared_memory_is_compared", "cheating", ENTER,
        '    return mount("", "d/shm", NULL, MS_BIND | MS_REMOUNT |'
        " NO_SUID_EXEC, NULL);\n",
        '    return mount("tmpfs", "d/shm", "tmpfs", NO_SUID_EXEC, NULL);\n',
    ),
    Defence(
        "name_servers", "escape",
        (
            Edit(ENTER, "servers >= 0 ? bind_resolver((int)servers) : 0;\n", "0;\n"),
            Edit(
                ENTER,
                '    MUST(enter_note("chdir", CALL1(__NR_chdir, "x/m")));\n',
                '    sys_close((int)sys_open(AT_FDCWD, "x/m/etc/resolv.conf", O_CREAT |'
                " O_WRONLY, 0644));\n"
                '    MUST(enter_note("chdir", CALL1(__NR_chdir, "x/m")));\n',
            ),
        ),
    ),
    _one(
        "standing_still", "cheating", PROCESSES,
        "    if (is_same_mark((struct thread_mark){pid, thread, read_mark(pid,"
        " thread)})) {",
        "    if (thread) {",
    ),
    _one(
        "one_moment", "cheating", "intercode/rewards/base.py",
        "        snapshot = sandbox.at_rest(save)\n",
        "        snapshot = sandbox.snapshot()\n        on_quiet()\n",
    ),
    _one(
        "only_what_runs_is_killed", "self DoS", PROGRAM,
        "    if (!program || !program->running) return 0;\n"
        "    struct program copy = *program;\n",
        "    struct program copy = program ? *program : (struct program){0};\n"
        "    if (!program) program = &copy;\n",
    ),
    _one(
        "looked_at_again", "self DoS", NATIVE + "sandbox.py",
        'if reply.get("kind") == "RestlessError":', "if False:",
    ),
    _one(
        "nothing_is_left_out", "cheating", STATIC + "archive.c",
        "    if (depth > MAX_DEPTH)\n"
        '        walk_fail(writer->walk, -EOVERFLOW, "folders are nested more than 300 deep");\n',
        "    if (depth > MAX_DEPTH) return;\n",
    ),
    _one(
        "read_once", "self DoS", WALK,
        "    if (is_cached && status->stx_nlink > 1) {", "    if (false) {", needs_root=True,
    ),
    _one(
        "holes_stay_holes", "host DoS", WALK,
        "    int64_t count = whole_pages(content->end - content->offset);\n"
        "    if (count > BLOCK) count = BLOCK;\n",
        "    int64_t count = BLOCK;\n",
    ),
    _filter(
        "core_limit", "host leak, escape",
        "_RLIMIT_CORE, on_match=query_rule, on_mismatch=allow_code)",
        "_RLIMIT_CORE, on_match=allow_code, on_mismatch=allow_code)",
    ),
    _one(
        "abstract_sockets", "lateral", ENTER,
        "    if (!setup->sandbox->contained) MUST(scope_landlock());\n", "",
    ),
    _one(
        "memory_of_a_process", "host DoS", ENTER,
        '    MUST(set_limit(RLIMIT_DATA, (uint64_t)plan_number(setup, "memory")));\n',
        "",
    ),
    _one(
        "memory_of_a_sandbox", "host DoS, peer DoS", SPAWNER,
        'memory_limit = limits["memory"] + limits["disk"]', "memory_limit = 1 << 40",
    ),
    _one(
        "output_kept", "host DoS", "intercode_sandbox/base.py",
        "            if len(self._tail) > 2 * (self.limit // 2) + 65536:", "            if False:",
    ),
    _one(
        "endless_output", "host DoS", PROCESS,
        "exceeds_limit = any(\n            output_buffer.total > output_limit * "
        "HARD_OUTPUT_FACTOR\n  "
        "          for output_buffer in buffers.values()\n        )",
        "exceeds_limit = False",
    ),
    _one(
        "device_nodes_of_its_own", "peer DoS", ENTER,
        '        if (root) {\n            MUST(enter_note("mknod"',
        '        if (0) {\n            MUST(enter_note("mknod"', needs_root=True,
    ),
    _one(
        "timeout_kills_sessions", "host DoS, self DoS", PROGRAM,
        "    long killed = proc_kill_except(copy.running, copy.running_count);\n",
        "    long killed = 0;\n    proc_signal(pid, 9);\n",
    ),
    Defence(
        "caller_killed", "host DoS",
        (
            Edit(
                SERVE,
                "        else\n            sys_exit(0);\n",
                "        else\n            polls[0].fd = -1;\n",
            ),
            Edit(
                SPAWNER,
                "and not self.take_request():\n                    return\n",
                "and not self.take_request():\n"
                "                    self.poll.unregister(self.caller)\n",
            ),
            UNWATCHED,
        ),
    ),
    _one(
        "spawner_killed", "host DoS", USER,
        "error || sandbox->contained ? error : CALL2(__NR_prctl,"
        " PR_SET_PDEATHSIG, SIGKILL);\n",
        "sandbox->contained ? error : error;\n", needs_root=True,
    ),
    _one(
        "private_layers", "host leak", "intercode_sandbox/privileges.py",
        "    mode = 0o700 if stand_in_id is None else 0o710\n", "    mode = 0o755\n",
    ),
    _one(
        "no_setuid_on_disk", "escape", NATIVE + "change_stream.py",
        "entry.mode & ~_SPECIAL_BITS", "entry.mode",
    ),
    _one(
        "read_only_cache", "self DoS", "intercode_sandbox/images/cache.py",
        "                if not os.access(folder, os.W_OK):", "                if False:",
        needs_root=True,
    ),
    _one(
        "bounded_paths", "host DoS", WALK,
        "    if (walk->room < 0)\n",
        "    if (0)",
    ),
    _one(
        "sockets_are_saved", "cheating", NATIVE + "change_stream.py",
        "else stat.S_IFSOCK)", "else stat.S_IFIFO)",
    ),
    _one(
        "magic_links", "escape", STATIC + "sys.c",
        "flags, mode, RESOLVE_NO_MAGICLINKS)",
        "flags, mode, 0)",
    ),
    _one(
        "files_of_process_1", "host leak", STATIC + "files.c",
        'return text_starts_with(target, "/proc/1/") || text_starts_with(target,'
        ' "/proc/sys/") ? -EACCES\n'
        "                                                                       "
        "                   : 0;",
        "return 0;",
    ),
    Defence(
        "close_kills", "host DoS",
        (
            Edit(
                PROCESS,
                "signal.pidfd_send_signal(self._file.fileno(), signal.SIGKILL)", "pass",
            ),
            # No defence: so that it is soon told.
            Edit(PROCESS, "\nEND_SECONDS = 5.0", "\nEND_SECONDS = 1.0"),
        ),
    ),
    _one(
        "slow_ends_are_kept", "host DoS, peer DoS", PROCESS,
        "            self.on_slow_end()\n", "            pass\n",
    ),
    _one(
        "memberships", "host DoS, peer DoS", ENTER,
        '    ignore(sys_write_text(proc, "sys/net/ipv4/igmp_max_memberships",'
        ' "0"));\n',
        "",
    ),
    Defence(
        "forks_do_not_delay", "host DoS",
        (
            Edit(PROVIDER, "self.socket.shutdown(socket.SHUT_WR)", "pass"),
            Edit(PROVIDER, "_START_SECONDS = 30.0", "_START_SECONDS = 15.0"),
        ),
    ),
    Defence("owner_is_watched", "host DoS", (UNWATCHED,)),
    _one(
        "forks_disown", "peer DoS", "intercode_sandbox/ownership.py",
        "os.register_at_fork(after_in_child=_disown_all)\n", "",
    ),
    _one(
        "finalizers_of_forks", "peer DoS", "intercode_sandbox/ownership.py",
        "    if os.getpid() == pid:\n", "    if True:\n",
    ),
    _one(
        "closed_calls", "self DoS", OWNERSHIP,
        "self._is_cut = self._is_cut or (\n                running_frame is not None and "
        "_is_executing(running_frame)\n            )",
        "pass\n",
    ),
    Defence(
        "signals_of_the_caller", "self DoS",
        (
            Edit(
                NATIVE + "process_start.py", "signal.pthread_sigmask(signal.SIG_SETMASK, ())\n", ""
            ),
            Edit(
                MAIN,
                "    long error = reset_signals();\n    if (!error) error = enter_note("
                '"prctl", CALL2(__NR_prctl, PR_SET_PDEATHSIG',
                "    long error = 0;\n    if (!error) error = enter_note("
                '"prctl", CALL2(__NR_prctl, PR_SET_PDEATHSIG',
            ),
            Edit(PROGRAM, "CALL4(__NR_rt_sigprocmask, SIG_SETMASK, &no_signals, 0, sizeof"
                          " no_signals);", "0;"),
            Edit(SERVE, "SIG_SETMASK, &children", "SIG_BLOCK, &children"),
        ),
    ),
    _one(
        "few_descriptors", "self DoS", PROVIDER,
        "    if new_limit < _FEWEST_OPEN_FILES:\n", "    if False:\n",
    ),
    _one(
        "shared_memory", "host DoS", SERVE,
        "killed >= 0 && !count ? proc_remove_shared(request->sandbox) : 0;\n",
        "0;\n",
    ),
    Defence(
        "vfork_is_not_awaited", "self DoS",
        (
            Edit(
                PROCESSES,
                "        } else if (time > unchanged_since + STUCK_MS) {",
                "        } else if (0) {",
            ),
            Edit(NATIVE + "sandbox.py", "_FILES_SECONDS = 60.0", "_FILES_SECONDS = 2.0"),
        ),
    ),
    _one(
        "cgroups_of_the_killed", "host DoS", PROVIDER,
        "            cgroup.remove_all(self.name)\n", "            pass\n",
        needs_root=True,
    ),
    _one(
        "answers_to_one_question", "self DoS", NATIVE + "sandbox.py",
        "                if not is_answered and self._end is None:\n",
        "                if False:\n",
    ),
    _one(
        "processes_without_a_first_thread", "self DoS", PROCESSES,
        "    if (*stat != 'Z') return true;\n",
        "    if (*stat) return *stat != 'Z';\n",
    ),
    _one("network_list", "exfiltration", NETWORK, "if not matching_hosts:", "if False:"),
    _one(
        "network_private", "host leak", NETWORK,
        "forbidden_reason if allows_private else non_public_reason",
        "forbidden_reason",
    ),
    _one(
        "network_rebinding", "host leak", NETWORK,
        "connect(socket_address)",
        "connect((name, port))",
    ),
    _one(
        "network_metadata", "host leak", NETWORK,
        "for network in _METADATA\n    )", "for network in [])",
    ),
    _one("network_translated", "host leak", NETWORK, "(candidate, *_translations(candidate))",
    "(candidate,)"), _one(
        "network_own_addresses", "host leak", NETWORK,
        '"an address of this machine" if _is_local(effective_address) else ""', '""',
    ),
    _one("network_mapped", "host leak", NETWORK, "if candidate in network:", "if False:"),
    _one("proxy_head", "host DoS", PROXY, "if len(received_data) > _LONGEST_HEAD:", "if False:"),
    _one("proxy_host_field", "exfiltration", PROXY, ".lower() not in _DROPPED_FIELDS\n    ]",
    ".lower()]"), _one(
        "forward_sockets", "host leak", FORWARD,
        "if traits != [socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP]:", "if False:",
    ),
    _one(
        "forward_network", "host leak", FORWARD,
        "if _network_cookie(passed_socket) == _machine_network_cookie():", "if False:",
    ),
    _one(
        "serve_token", "lateral", GUARD,
        "if not hmac.compare_digest(secret, token):", "if False:",
    ),
    _one(
        "serve_host", "lateral", GUARD,
        "if len(hosts) != 1 or not self._is_ours(hosts[0]):", "if len(hosts) != 1:",
    ),
    _one(
        "view_token", "lateral", VIEWER,
        "        if not is_known:", "        if False:",
    ),
    _one(
        "private_places", "host leak", "intercode_sandbox/images/host.py",
        "    paths += _cached_private_paths(str(cache_root()))\n", "", needs_root=True,
    ),
    _one(
        "cache_of_others", "lateral", "intercode_sandbox/host_files.py",
        "        _check_owner(folder, folder.stat())\n", "        pass\n", needs_root=True,
    ),
    _one(
        "tokens_of_data", "cheating", "intercode_integrations/trl/control_tokens.py",
        "            boundaries.add(position + 1)\n", "",
    ),
    _one(
        "archive_of_zeros", "host DoS", "intercode_sandbox/images/tarballs.py",
        "                self._budget.take(len(block))\n", "",
    ),
    _one(
        "script_of_a_database", "host DoS", "intercode/databases/convert/build.py",
        "max(1, budget.bytes // size)", "2**31",
    ),
    _one(
        "tables_without_formulas", "host leak", "intercode/report/text.py",
        "if _FORMULA.match(text) and", "if False and",
    ),
    _one(
        "view_link", "lateral", "intercode/cli/view.py",
        "link.resolve().as_uri()", "url",
    ),
    _one("view_guard", "lateral", VIEWER, "if refusal is not None:", "if False:"),
    _one("view_hidden_gold", "cheating", EPISODES, "if not hide_gold:", "if True:"),
    _one(
        "view_hidden_gold_of_agents", "cheating", EPISODES,
        "if hide_gold and shown_gold:", "if False:",
    ),
    _one(
        "view_search_of_hidden_gold", "cheating", "intercode/report/live_runs.py",
        " and self._has_words(rows[row_number], line, words)", "",
    ),
    _one(
        "view_end_of_an_element", "lateral", "intercode/report/viewer_page.py",
        're.sub("[<>&]"', 're.sub("[&]"',
    ),
    _one("serve_origin", "lateral", GUARD, "for origin in origins}", "for origin in ()}"),
    _one(
        "serve_site", "lateral", GUARD,
        'if {*headers.get_all("Sec-Fetch-Site")} - {"none", "same-origin"} and', "if False and",
    ),
    _one(
        "admission_of_few", "peer DoS", ADMISSION,
        "if len(self._entries) >= self._max_pending else None", "if False else None",
    ),
    _one(
        "admission_in_time", "peer DoS", ADMISSION,
        "time.monotonic() + self._seconds", "time.monotonic() + 3600",
    ),
    _one(
        "admission_of_silent_ones", "peer DoS", ADMISSION,
        "if key not in readable_keys)", "if True)",
    ),
    _one(
        "serve_admission", "peer DoS", "intercode_integrations/serve/http.py",
        '        self._admission.enter(self, transport.get_extra_info("socket"), drop)\n', "",
    ),
    _one(
        "view_head", "host DoS", VIEWER, "        if self._remainder < 0:", "        if False:",
    ),
    _one(
        "serve_wishes", "host leak", "intercode_integrations/serve/messages.py",
        "class ResetMessage(msgspec.Struct, forbid_unknown_fields=True):",
        "class ResetMessage(msgspec.Struct):",
    ),
    _one(
        "serve_capacity", "host DoS", "intercode_integrations/serve/metrics.py",
        'free = self.total("sessions") < max_sessions', "free = True",
    ),
    _one(
        "skill_link", "host leak", SKILLS,
        "if PurePosixPath(path).is_absolute() or not _is_within(home / path, home):",
        "if PurePosixPath(path).is_absolute():",
    ),
    _one(
        "skill_symlink", "host leak", SKILLS,
        "if target.is_absolute() or not _is_within(path, home):", "if target.is_absolute():",
    ),
    _one("skill_fifo", "host DoS", SKILLS, "elif kind != stat.S_IFDIR:", "elif False:"),
    _one(
        "skill_size", "host DoS", SKILLS,
        "            if remaining_bytes < 0:\n",
        "            if False:\n",
    ),
    _one("skill_files", "host DoS", SKILLS, "if len(paths) > FILES:", "if False:"),
    _one("skill_text", "self DoS", SKILLS, "if size > TEXT:", "if False:"),
    _one("skill_name", "escape", SKILLS, "_NAME.fullmatch(name) is None", "not name"),
    _one("skill_read_only", "cheating", SKILLS, ", read_only=True)", ")"),
    _one(
        "layer_elsewhere", "escape", LAYERS,
        'if ".." in member_parts or "/".join(member_parts[:3]) != agent_root:',
        'if ".." in member_parts:',
    ),
    _one(
        "layer_parents", "escape", LAYERS,
        'if ".." in member_parts or "/".join(member_parts[:3]) != agent_root:',
        'if "/".join(member_parts[:3]) != agent_root:',
    ),
    _one(
        "layer_checksums_of_npm", "escape", LAYERS,
        "if unverified_names := [\n        program_name for program_name, checksum in "
        "checksums.items() if not checksum\n    ]:",
        "if unverified_names := []:",
    ),
    _one(
        "layer_left_out_by_npm", "escape", LAYERS,
        'if absent_paths := sorted(required_paths - installed_lock["packages"].keys()):',
        "if absent_paths := []:",
    ),
    _one(
        "layer_lock_of_npm", "escape", LAYERS,
        'npm_command = "ci" if previous_lock is not None else "install"', 'npm_command = "install"',
    ),
    _one(
        "layer_checksums_of_pip", "escape", LAYERS,
        "        if not checksum:\n", "        if False:\n",
    ),
    _one(
        "layer_lock_of_pip", "escape", LAYERS,
        "    if previous_lock is not None:\n        sandbox.write_file(_LOCK",
        "    if False:\n        sandbox.write_file(_LOCK",
    ),
    _one(
        "layer_password", "host leak", LAYERS,
        r'error_text = re.sub(r"//[^/@\s]*@", "//", error_text)', "pass",
    ),
    _one(
        "network_operators_names", "host leak", NETWORK,
        "self._private = private", "self._private = True",
    ),
    _one(
        "archive_devices", "escape", ARCHIVE,
        """raise ImageError(f"{member.name!r} is a device or of an unknown type")""",
        "os.mkfifo(layer_path, 0o600)",
    ),
    _one("archive_parents", "escape", ARCHIVE, '    if ".." in parts:\n', "    if False:\n"),
    _one(
        "archive_links", "host leak", ARCHIVE,
        "os.link(target, path, follow_symlinks=False)", "os.link(target.resolve(), path)",
    ),
    _one(
        "player_kills_all", "host DoS", PLAY,
        "                    sandbox.kill()\n", "                    pass\n",
    ),
    _one(
        "player_hides_its_token", "host leak", PLAY,
        'output.replace(self._session.token, "***")', "output",
    ),
    _one(
        "purse_of_calls", "self DoS", PLAY,
        "(self._calls, self._max_calls)",
        "(self._calls, None)",
    ),
    _one("purse_of_tokens", "self DoS", PLAY, "tokens, episode_limits.tokens)", "tokens, None)"),
    _one("purse_of_dollars", "self DoS", PLAY, "cost, episode_limits.cost)", "cost, None)"),
    _one(
        "ignored_paths_of_the_task", "cheating", "intercode/rewards/bash.py",
        "if path in gold.setup_changes or (path in gold.changed_paths and not "
        "is_unnamed_temporary):",
        "if False:",
    ),
    _one(
        "gateway_paths", "exfiltration", GATE,
        'elif request.method == "POST" and parsed_target.path in {*_PATHS, COUNT}:',
        'elif request.method == "POST":',
    ),
    _one(
        "gateway_fields", "exfiltration", RULES,
        "        if key in allowed_fields:",
        "        if True:",
    ),
    _one(
        "gateway_stored", "exfiltration", RULES,
        "if not policy.stored and value is not False:", "if False:",
    ),
    _one(
        "gateway_hosted", "exfiltration", RULES,
        'if is_known or policy.hosted == "pass":', "if True:",
    ),
    _one("gateway_remote", "exfiltration", RULES, "    if policy.remote:\n", "    if True:\n"),
    _one("gateway_token", "lateral", GATE, "RequestGuard(self.token", "RequestGuard(None"),
    _one(
        "gateway_closed", "lateral", GATE,
        "        if self._closed:\n            raise GatewayRefusal(401",
        "        if False:\n            raise GatewayRefusal(401",
    ),
    _one(
        "gateway_credentials", "exfiltration", GATE,
        'headers = {"Content-Type": "application/json"}',
        'headers = {name: text for name, text in request.headers if name == "cookie"}',
    ),
    Defence(
        "gateway_key", "host leak",
        (
            Edit(UPSTREAM, "if len(self.key) >= MIN_SECRET_LENGTH", "if False"),
            Edit(
                FORWARDING,
                "self._body = hide_in(answer_data, upstream_backend.upstream.key)",
                "self._body = answer_data",
            ),
        ),
    ),
    _one(
        "gateway_environment", "host leak", NATIVE + "syscalls.py",
        "            ctypes.memset(start, 0, len(entry))\n", "            pass\n",
    ),
    _one(
        "gateway_memory", "host leak", NATIVE + "syscalls.py",
        "    prctl(PR_SET_DUMPABLE, 0)\n", "    pass\n",
    ),
    _one(
        "gateway_key_in_pieces", "host leak", "intercode_integrations/gateway/secret_filter.py",
        "        if self.secret in text:", "        if False:",
    ),
    _one(
        "gateway_budget", "peer DoS", "intercode/models/remote.py",
        ", *([budget] if budget else [])]", "]",
    ),
    _one(
        "gateway_calls", "peer DoS", GATE,
        "if max_calls is not None and self._started_calls >= max_calls:", "if False:",
    ),
    _one(
        "gateway_counts", "peer DoS", GATE,
        "if self._counts >= FREE_COUNTS + COUNTS_PER_CALL * self._started_calls:", "if False:",
    ),
    Defence(
        "gateway_body", "host DoS",
        (
            Edit(DOOR, "            if len(content) > max_bytes:", "            if False:"),
            Edit(GATE, "        if size > policy.max_body:", "        if False:"),
        ),
    ),
    _one("gateway_values", "host DoS", JSON, "if count > limit:", "if False:"),
    _one("gateway_levels", "host DoS", JSON, "if depth > MAX_DEPTH:", "if False:"),
    _one("levels_of_records", "host DoS", JSON, "        if depth > levels:", "        if False:"),
    _one("size_of_manifests", "host DoS", RECORDS, "> _LARGEST_FILE:", "> 1 << 40:"),
    _one("lines_of_records", "host DoS", RECORDS, "readline(_LONGEST_LINE)", "readline()"),
    _one("levels_of_data", "host DoS", PLAIN, "        if depth > MAX_DEPTH:", "        if False:"),
    _one(
        "aliases_of_data", "host DoS", PLAIN,
        "            if max_bytes < 0:", "            if False:",
    ),
    _one(
        "words_of_dockerfiles", "host DoS", DOCKERFILE,
        "        if self.remaining_length < 0:", "        if False:",
    ),
    _one(
        "fifos_of_data", "host DoS", FILES,
        "    if not stat.S_ISREG(os.fstat(descriptor).st_mode):", "    if False:",
    ),
    _one("deep_trees", "host DoS", FILES, "            _flatten(path)\n", "            pass\n"),
    _one("gateway_values_in_texts", "host DoS", INTAKE, "elif key in _EMBEDDED:", "elif False:"),
    _one("gateway_fragments", "host DoS", DOOR, "if fragment_count > _MAX_FRAGMENTS:", "if False:"),
    _one(
        "gateway_room", "host DoS", INTAKE,
        "return is_within_share and self._reserved_bytes + size <= self._total",
        "return is_within_share",
    ),
    _one("gateway_share", "peer DoS", INTAKE, "return is_within_share and", "return"),
    _one(
        "gateway_body_without_token", "host DoS", GATE,
        '            client.body()\n            client.answer(200, b""',
        '            client.body(2**30)\n            client.answer(200, b""',
    ),
    _one(
        "gateway_dialogues_of_refused", "host DoS", RETENTION,
        "is_repeated or sum(map(_characters, call.messages)) > MAX_FAILED_CHARACTERS", "False",
    ),
    _one(
        "gateway_dialogues", "host DoS", RETENTION,
        "return self._characters >= MAX_CHARACTERS", "return False",
    ),
    _one(
        "gateway_record_limit", "host DoS", "intercode_integrations/gateway/call_log.py",
        "return self._size >= self._limit", "return False",
    ),
    _one(
        "gateway_head", "host DoS", DOOR,
        "max_incomplete_event_size=MAX_HEAD_BYTES", "max_incomplete_event_size=2**30",
    ),
    _one(
        "gateway_slow_client", "host DoS", DOOR,
        "            if not self._deadline:\n                self._deadline = time.monotonic()",
        "            if False:\n                self._deadline = time.monotonic()",
    ),
    _one(
        "gateway_record", "self DoS", FORWARDING,
        "messages=read_dialogue(protocol, request_body),", "messages=(),",
    ),
    _one(
        "serve_orphans", "host DoS", "intercode_integrations/serve/session.py",
        "tasks: set[asyncio.Task[Any]] = {answer_task, disconnect_task, end_task}",
        "tasks: set[asyncio.Task[Any]] = {answer_task, end_task}",
    ),
    _one(
        "ray_passwords", "host leak", "intercode_integrations/ray/cluster.py",
        "if portable(value) != value:", "if False:",
    ),
    _one(
        "ray_paid_once", "peer DoS", LEDGER,
        "                return\n            _decrement(self._process_state(process_name).reserv",
        "                pass\n            _decrement(self._process_state(process_name).reserv",
    ),
    _one("ray_paid_at_all", "peer DoS", LEDGER, ".presume()", ".release()"),
    _one(
        "looked_up_once", "cheating", REWARDS + "database_mutator.py",
        "                if row not in retained_rows:", "                if False:",
    ),
    _one(
        "constraints_are_compared", "cheating", REWARDS + "sql_state_compare.py",
        "    yield from _constraint_keys(table)\n", "",
    ),
    _one(
        "checks_are_compared", "cheating", REWARDS + "sql_views_triggers.py",
        "if {*map(normalise_sql, texts[0])} != {\n            *map(normalise_sql, texts[1])\n    "
        "    } and not",
        "if False and not",
    ),
    _one(
        "triggers_are_run", "cheating", REWARDS + "sql_views_triggers.py",
        "            for probe in chain(*map(probes.constants, read_tables), "
        "probes.all_statements(name)):",
        "            for probe in ():",
    ),
    _one(
        "views_are_asked_on_copies", "cheating", REWARDS + "sql_views_triggers.py",
        "(source, *_mutated_copies(grader, task, gold, source))", "(source,)",
    ),
    _one(
        "explained_by_one_column", "cheating", REWARDS + "sql_explain.py",
        "        return (can_be_alias and bool(name) and alias) or "
        "_is_same_expression(own_expression, node)",
        "        return True",
    ),
    _one(
        "no_star_explains", "cheating", REWARDS + "sql_explain.py",
        "or any(\n        column.is_star for column in outer_select.expressions\n    )", "",
    ),
    _one(
        "file_has_one_database", "cheating", "intercode/databases/source.py",
        'source.kind != "dump" and source.name != location.stem', "False",
    ),
    _one(
        "record_of_code", "host leak", TRUST,
        "        if name not in approved_names and _has_effect(name, value, options)",
        "        if False",
    ),
    _one(
        "record_of_unknown_options", "host leak", TRUST,
        "    return not (is_harmless and isinstance",
        "    return bool(is_harmless) and not (isinstance",
    ),
    _one(
        "record_with_an_address_and_a_key", "host leak", TRUST,
        "if keys[effect.option] or not trust]", "if not trust]",
    ),
    _one(
        "record_of_another_value", "host leak", "intercode/spec.py",
        "if any(option_set.get(name) == value for option_set in option_sets)\n        and (",
        "if overrides or (",
    ),
    _one(
        "record_of_a_datasets_path", "host leak", TRUST,
        "    return DATASETS.is_trusted(name) and has_known_names",
        "    return DATASETS.is_trusted(name)",
    ),
    _one(
        "record_of_a_folder_to_write", "host leak", "intercode/spec.py",
        '    for name in (*list_section_options(RunOptions), "exclude"):', "    for name in ():",
    ),
    _one(
        "record_of_a_packages_name", "host leak", "intercode_sandbox/lazy_imports.py",
        "        return is_imported or name not in self._packages", "        return True",
    ),
    _one(
        "record_of_a_packages_environment", "host leak", "intercode/envs/traits.py",
        "            if not trust and entry in registry and", "            if False and",
    ),
    _one(
        "record_of_a_sandbox_of_code", "host leak", TRUST,
        "    return PROVIDERS.is_trusted(value)", "    return True",
    ),
    _one(
        "record_of_an_engine_of_code", "host leak", TRUST,
        "    return ENGINES.is_trusted(value)", "    return True",
    ),
    _one(
        "benchmark_of_code_for_tasks", "host leak", "intercode/project.py",
        "    if is_reference(tasks):", "    if False:",
    ),
    _one(
        "benchmark_of_code_for_a_sandbox", "host leak", "intercode/project.py",
        "    if isinstance(value, str) and _runs_code(option.name, value):", "    if False:",
    ),
    _one(
        "benchmark_of_a_stranger", "host leak", "intercode/project.py",
        "            if (folder / FILE).lstat().st_uid not in owners:", "            if False:",
    ),
    _one(
        "benchmark_of_any_size", "host DoS", "intercode/project.py",
        "    if len(content) > _MAX_FILE_BYTES:", "    if False:",
    ),
    _one(
        "task_with_an_image_of_code", "host leak", "intercode_sandbox/images/resolve.py",
        "    if not is_recipe and not SCHEMES.is_trusted(parsed_spec.scheme):",
        "    if not is_recipe and parsed_spec.scheme not in SCHEMES:",
    ),
    _one("record_link", "host leak", RECORDS, "os.O_NOFOLLOW | ", ""),
    _one("record_fifo", "host DoS", RECORDS, "    if not stat.S_ISREG(", "    if False and ("),
    _one(
        "record_link_to_write", "host leak", "intercode_sandbox/host_files.py",
        "    temporary_path.unlink(missing_ok=True)  # a link there would be written through\n", "",
    ),
    _one("record_link_of_the_writer", "host leak", RECORDS, "os.O_NOFOLLOW | ", ""),
    _one(
        "record_link_in_a_folder_of_runs", "host leak", "intercode/report/live_runs.py",
        "        if not path.is_symlink() or path.resolve().is_relative_to(root)\n", "",
    ),
    _one(
        "record_digest_is_no_path", "host leak", "intercode_sandbox/images/cache.py",
        "        if not digest.isalnum():", "        if False:",
    ),
    _one(
        "programs_before_episodes", "self DoS", "intercode/envs/stage.py",
        "        self.try_programs(task)\n        sandbox = ", "        sandbox = ",
    ),
    _one(
        "shell_gone", "self DoS", "intercode/interpreters/base.py",
        '    if execution.info.get("gone") and', "    if False and",
    ),
    _one(
        "calls_tried", "self DoS", PROVIDER, "        _try_calls()\n", "",
    ),
    _docker(
        "owner", "host DoS", STATIC + "serve.c", "        if (polls[2].revents) sys_exit(0);\n", "",
    ),
    Defence(
        "interrupted_attempt", "cheating",
        (
            Edit(
                "intercode/envs/episode_state.py",
                "loses the observation, too\n            self.interrupt(error)\n",
                "loses the observation, too\n",
            ),
            Edit(
                "intercode/envs/episode_state.py",
                "        except BaseException as error:\n            self._fail(error)",
                "        except Exception as error:\n            self._fail(error)",
            ),
        ),
    ),
    _one(
        "interrupted_call", "cheating", OWNERSHIP,
        " or not _is_executing(self._holder):", ":",
    ),
    Defence(
        "repeated_call", "self DoS",
        (
            Edit(
                "intercode/models/remote.py",
                "                if drain.is_interrupted:\n", "                if False:\n",
            ),
            Edit(
                "intercode/models/limits.py",
                "drain.check()\n                    now =", "now =",
            ),
        ),
    ),
    _one(
        "owed_answer", "cheating", "intercode/databases/embedded.py",
        "        self.has_pending_answer = True\n", "",
    ),
    _one(
        "interrupted_message", "self DoS", "intercode_sandbox/native/wire.py",
        "    sock.recv(1, socket.MSG_PEEK)\n", "",
    ),
    _one(
        "dropped_pipes", "cheating", OWNERSHIP,
        "    finalizer = weakref.finalize(owner, callback, ",
        "    finalizer = weakref.finalize(register_release, callback, ",
    ),
    Defence(
        "exit_in_an_agent", "cheating",
        (
            Edit(
                "intercode/evaluate/episode_loop.py",
                "    except BaseException as error:  # sys.exit() in an agent",
                "    except Exception as error:  # sys.exit() in an agent",
            ),
            Edit(
                "intercode/evaluate/worker.py",
                "            except BaseException as error:  # a callback",
                "            except Exception as error:  # a callback",
            ),
        ),
    ),
    _one(
        "exit_code_of_a_command", "cheating", "intercode/cli/main.py",
        "        if debug or error.code:", "        if True:",
    ),
    Defence(
        DOCKER + "close", "host DoS",
        (
            Edit(
                "intercode_sandbox/docker/sandbox.py",
                "        container.process,\n        on_slow_end=container.request_kill,\n",
                "        None,\n",
            ),
            Edit(CONTAINER, "if not self.process.end(_HANG_UP_SECONDS):", "if False:"),
            Edit(CONTAINER, "            self.process.end()\n\n", "\n"),
        ),
        needs_root=True,
    ),
    _docker("filter", "host DoS", ENTER, "    MUST(install_filter(setup));\n", ""),
    _docker(
        "written_and_set_back", "cheating", STATIC + "container.c",
        "equal_time(&status->stx_ctime, &lower_status->stx_ctime) &&\n", "",
    ),
    _docker(
        "shared_root", "host DoS", "intercode_sandbox/docker/mounted_runtime.py",
        "    if not has_own_users(info) and ", "    if False and ",
    ),
    _docker(
        "processes", "host DoS", CONTAINER,
        '        "PidsLimit": key.processes + OWN_THREADS,\n', "",
    ),
]  # fmt: skip
