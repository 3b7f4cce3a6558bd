/* The zygote: the process that the spawner forks sandboxes from, and the program's entry points
 * (`main_`).
 *
 * Children of the zygote are the spawner's (CLONE_PARENT), which reaps them. Each child makes
 * the mounts that need no request, waits for a request, and becomes process 1 of a sandbox or
 * reports its failure.
 *
 * The build's result is a program and a library at once. With workers, the zygote is a Python
 * process that has loaded the workers' modules and calls `zygote`; a worker is a fork of process 1.
 * worker.py knows the two library functions by their names, which have no prefix.
 *
 * A container has no zygote: the program that the engine starts becomes its process 1. */
#include "sandbox.h"
#include "walk.h"

#include <linux/elf.h>
#include <linux/poll.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/signal.h>
#include <linux/time.h>
#include <linux/wait.h>

enum { NAMESPACES = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS };

/* The state of a zygote, which each of its forks inherits. */
struct state {
    struct machine machine;
    struct sandbox sandbox;
    struct message request;
    long startup_error; /* of a step before the first fork; the answer to each request */
};

static bool read_machine(struct machine *machine) {
    static struct message hello;
    /* The zygote's copy of the machine's properties: the next message overwrites the packet. */
    static char machine_text[PACKET];
    if (msg_receive(CONTROL_FD, &hello) <= 0) return false;
    size_t count = (size_t)(hello.body.end - hello.body.start);
    if (count > sizeof machine_text) return false;
    memcpy(machine_text, hello.body.start, count);
    struct value body = {(unsigned char *)machine_text, (unsigned char *)machine_text + count};
    msg_release(&hello);
    char root = msg_kind(msg_find(body, "root"));
    machine->root = root == 't';
    machine->masks = msg_find(body, "masks");
    struct value item = msg_first(msg_find(body, "filters"));
    for (int i = 0; i < 4; i++, item = msg_next(item))
        machine->filters[i].bytes = msg_bytes(item, &machine->filters[i].count);
    return machine->filters[3].bytes && msg_kind(machine->masks) == 'L' &&
           (root == 't' || root == 'f');
}

/* -- in a child ------------------------------------------------------------------------------ */

static long report(int control, long error) {
    struct reply reply;
    msg_begin(&reply);
    msg_put_open(&reply, 'M');
    msg_put_text(&reply, "call");
    msg_put_text(&reply, enter_failed_call ? enter_failed_call : "start");
    msg_put_text(&reply, "errno");
    msg_put_number(&reply, -error);
    msg_put_close(&reply);
    return msg_send(&reply, control);
}

/* Opens a file with the peak of memory use, and resets the peak: the cgroup may have had other
 * processes. */
static long open_peak(const char *path) {
    long fd = sys_open(AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    /* Before Linux 6.12 memory.peak is read-only. Each sandbox then has a new cgroup. */
    if (fd >= 0 && sys_write((int)fd, "0", 1) < 0) {
        sys_close((int)fd);
        fd = -EACCES;
    }
    return fd == -EACCES ? sys_open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0) : fd;
}

/* Enters the cgroups of the request, and opens the file with the peak of memory use. */
static long join_cgroups(struct sandbox *sandbox, struct value folders) {
    sandbox->peak_fd = -1;
    for (struct value item = msg_first(folders); item.start; item = msg_next(item)) {
        TEXT(path, PATH_MAX);
        text_add(&path, msg_text(item));
        text_add(&path, "/cgroup.procs");
        long error = path.cut ? -ENAMETOOLONG : sys_write_text(AT_FDCWD, path.start, "0");
        if (error) {
            enter_failed_call = "cgroup";
            return error;
        }
    }
    static const char *const names[] = {"/memory.max_usage_in_bytes", "/memory.peak"};
    for (struct value item = msg_first(folders); item.start; item = msg_next(item)) {
        for (int i = 0; i < 2 && sandbox->peak_fd < 0; i++) {
            TEXT(path, PATH_MAX);
            text_add(&path, msg_text(item));
            text_add(&path, names[i]);
            long fd = open_peak(path.start);
            if (fd >= 0) sandbox->peak_fd = (int)fd;
        }
    }
    return 0;
}

/* Moves this child's socket to `CONTROL_FD`, and closes all descriptors of the zygote. */
static long keep_only(int *link) {
    long error = *link == CONTROL_FD
                     ? 0
                     : enter_note("dup3", CALL3(__NR_dup3, *link, CONTROL_FD, O_CLOEXEC));
    if (error < 0) return error;
    *link = CONTROL_FD;
    return enter_note("close_range", sys_close_from(CONTROL_FD + 1));
}

/* Makes the calls that would otherwise fail first in `serve_requests`, where no caller would
 * hear the reason. */
static long try_calls(void) {
    struct __kernel_timespec zero = {0};
    long error = enter_note("ppoll", CALL5(__NR_ppoll, 0, 0, &zero, 0, SIGSET_BYTES));
    if (!error)
        error = enter_note("clock_gettime", CALL2(__NR_clock_gettime, CLOCK_MONOTONIC, &zero));
    if (!error) error = enter_note("kill", CALL2(__NR_kill, 1, 0));
    if (error) return error;
    long pid = CALL4(__NR_wait4, -1, 0, WNOHANG, 0);
    return pid >= 0 || pid == -ECHILD ? 0 : enter_note("wait4", pid);
}

/* Opens the descriptors of `serve_requests`. */
static long open_descriptors(struct sandbox *sandbox, int *children) {
    sandbox->null_fd =
        (int)enter_note("open", sys_open(AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0));
    *children = (int)enter_note("signalfd", serve_open_signals());
    return sandbox->null_fd < 0 ? sandbox->null_fd : *children < 0 ? *children : try_calls();
}

static int take_control(struct message *request, int link) {
    if (msg_receive(link, request) <= 0) sys_exit(1); /* the sandbox was not used */
    int control = msg_take_fd(request, 0);
    msg_release(request);
    return control;
}

/* Returns only in a worker: the name of its module.
 *
 * Order: descriptors and the death signal come first, so that nothing of the zygote outlives it.
 * The cgroup comes before any mount, whose memory counts for it. `enter_prepare` runs before the
 * request arrives, to save its time. */
static const char *become_sandbox(struct state *state, int link, bool network,
                                  struct value cgroups) {
    long error = keep_only(&link);
    if (!error) error = enter_note("prctl", CALL2(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL));
    if (!error) error = join_cgroups(&state->sandbox, cgroups);
    memset((void *)(uintptr_t)cgroups.start, 0, (size_t)(cgroups.end - cgroups.start));
    if (!error) error = enter_prepare(network, &state->machine, &state->sandbox);
    if (msg_receive(link, &state->request) <= 0) sys_exit(1);
    struct value plan = state->request.body;
    bool ahead = msg_is_true(msg_find(plan, "ahead"));
    int first_layer = msg_number(msg_find(plan, "own_id"), 0) ? 2 : 1;
    int next = first_layer + (int)msg_number(msg_find(plan, "frozen"), 0);
    int control = ahead ? -1 : msg_take_fd(&state->request, next);
    int children = -1;
    long first = 0;
    if (!error)
        error = enter_sandbox(&state->request, plan, link, &state->machine, &state->sandbox);
    if (!error) error = open_descriptors(&state->sandbox, &children);
    if (!error && ahead && msg_kind(msg_find(plan, "program")) == 'M') {
        struct failure failure = {0};
        first =
            prog_start(&state->sandbox, &state->request, msg_find(plan, "program"), next, &failure);
        error = first < 0 ? first : 0;
    }
    msg_release(&state->request);
    if (!error && ahead) control = take_control(&state->request, link);
    if (error && control >= 0)
        ignore(report(control, error)); /* the caller may have closed its end */
    if (error || control < 0) sys_exit(1);
    sys_close(link);
    return serve_requests(control, children, -1, &state->sandbox, first);
}

/* -- the zygote ------------------------------------------------------------------------------ */

static long send_pid(long pid) {
    struct reply reply;
    msg_begin(&reply);
    msg_put_open(&reply, 'M');
    msg_put_text(&reply, "pid");
    msg_put_number(&reply, pid);
    msg_put_close(&reply);
    return msg_send(&reply, CONTROL_FD);
}

/* Forks a sandbox, and returns NULL. In a worker of the sandbox, returns the name of its module. */
static const char *answer(struct state *state) {
    unsigned long flags = NAMESPACES | CLONE_PARENT;
    bool network = msg_is_true(msg_find(state->request.body, "network"));
    if (!network) flags |= CLONE_NEWNET;
    int link = msg_take_fd(&state->request, 0);
    long pid = state->startup_error ? state->startup_error
                                    : enter_note("clone", CALL5(__NR_clone, flags, 0, 0, 0, 0));
    if (pid == 0) {
        static char cgroups[PACKET / 4];
        struct value folders = msg_find(state->request.body, "cgroups");
        size_t count = (size_t)(folders.end - folders.start);
        if (link < 0 || msg_kind(folders) != 'L' || count > sizeof cgroups) sys_exit(1);
        memcpy(cgroups, folders.start, count);
        folders = (struct value){(unsigned char *)cgroups, (unsigned char *)cgroups + count};
        msg_release(&state->request);
        return become_sandbox(state, link, network, folders);
    }
    sys_close(link);
    long error = pid < 0 ? report(CONTROL_FD, pid) : send_pid(pid);
    if (error) sys_exit(1); /* otherwise requests and replies would no longer match */
    enter_failed_call = state->startup_error ? enter_failed_call : NULL;
    msg_release(&state->request);
    return NULL;
}

/* Resets signals: otherwise programs would inherit those that the spawner ignores or blocks. */
static long reset_signals(void) {
    const struct abi_sigaction default_action = {0};
    const uint64_t no_signals = 0;
    for (int signal = 1; signal <= SIGNALS; signal++) {
        if (signal == SIGKILL || signal == SIGSTOP) continue;
        long error = enter_note("rt_sigaction",
                                CALL4(__NR_rt_sigaction, signal, &default_action, 0, SIGSET_BYTES));
        if (error) return error;
    }
    return enter_note("rt_sigprocmask",
                      CALL4(__NR_rt_sigprocmask, SIG_SETMASK, &no_signals, 0, SIGSET_BYTES));
}

/* Forks a sandbox for each request, until the spawner closes its socket. Returns only in a worker:
 * the name of its module. */
static const char *fork_for_all(void) {
    static struct state state; /* static, because a worker returns through this function */
    const char *module = NULL;
    long error = reset_signals();
    if (!error) error = enter_note("prctl", CALL2(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL));
    if (!error) error = enter_note("prctl", CALL2(__NR_prctl, PR_SET_NAME, "init"));
    if (!error) error = enter_note("prctl", CALL2(__NR_prctl, PR_SET_DUMPABLE, 0));
    state.startup_error = error;
    if (!read_machine(&state.machine)) sys_exit(1);
    while (!module && msg_receive(CONTROL_FD, &state.request) > 0) module = answer(&state);
    if (!module) sys_exit(0);
    return module;
}

/* -- in a container --------------------------------------------------------------------------- */

/* Connects to the caller's socket at that path, as `CONTROL_FD`. */
static long call_caller(const char *path) {
    struct abi_sockaddr_un address = {.family = AF_UNIX};
    size_t count = text_length(path);
    if (count >= sizeof address.path) return -ENAMETOOLONG;
    memcpy(address.path, path, count);
    int link = (int)CALL3(__NR_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (link < 0) return link;
    long error = CALL3(__NR_connect, link, &address, sizeof address);
    return error ? error : keep_only(&link);
}

/* Sends a table of users or groups, by which the caller knows the image's; /dev/null if the
 * image has none. */
static void put_table(struct reply *reply, const char *path) {
    int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    long table = sys_open(AT_FDCWD, path, flags, 0);
    if (table < 0) table = sys_open(AT_FDCWD, "/dev/null", flags, 0);
    if (table >= 0) msg_put_fd(reply, (int)table);
}

static long introduce(void) {
    struct reply reply;
    long ids = enter_count_ids();
    if (ids < 0) return ids;
    msg_begin(&reply);
    msg_put_open(&reply, 'M');
    msg_put_text(&reply, "ids");
    msg_put_number(&reply, ids);
    msg_put_close(&reply);
    put_table(&reply, "/etc/passwd");
    put_table(&reply, "/etc/group");
    return enter_note("send", msg_send(&reply, CONTROL_FD));
}

/* Returns only in a worker: the name of its module. */
static const char *become_container(void) {
    static struct sandbox sandbox;
    static struct message request;
    int children = -1;
    sandbox.contained = true;
    long error = reset_signals();
    if (!error) error = enter_note("prctl", CALL2(__NR_prctl, PR_SET_NAME, "init"));
    if (!error) error = enter_note("prctl", user_protect_process(&sandbox));
    if (!error) error = introduce();
    if (!error && msg_receive(CONTROL_FD, &request) <= 0) sys_exit(1);
    int owner = msg_take_fd(&request, 0);
    if (!error && owner < 0) error = enter_note("plan", -EINVAL);
    if (!error) error = enter_note("look", cont_begin(request.body));
    if (!error) error = enter_container(request.body, &sandbox);
    if (!error) error = open_descriptors(&sandbox, &children);
    msg_release(&request);
    if (error) {
        ignore(report(CONTROL_FD, error)); /* the caller may have closed its end */
        sys_exit(1);
    }
    return serve_requests(CONTROL_FD, children, owner, &sandbox, 0);
}

/* -- as a library ------------------------------------------------------------------------------ */

__attribute__((visibility("default"))) const char *zygote(int (*fork)(void));
__attribute__((visibility("default"))) const char *contained(int (*fork)(void));

/* Returns only in workers, each with the name of its module. The control socket is descriptor 3.
 * `fork` forks a worker, and leaves its C library, and perhaps its Python, fit for use. */
const char *zygote(int (*fork)(void)) {
    serve_fork_worker = fork;
    return fork_for_all();
}

/* The same in a container. */
const char *contained(int (*fork)(void)) {
    serve_fork_worker = fork;
    return become_container();
}

/* -- as a program ------------------------------------------------------------------------------ */

/* Relocates the program: tables hold pointers as if it lay at address 0; adds its real address
 * to each. */
static void relocate(void) {
    extern const Elf64_Dyn _DYNAMIC[] __attribute__((visibility("hidden")));
    extern const char __ehdr_start[] __attribute__((visibility("hidden")));
    uintptr_t base = (uintptr_t)__ehdr_start, table = 0;
    size_t bytes = 0;
    for (const Elf64_Dyn *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_RELA) table = base + entry->d_un.d_ptr;
        if (entry->d_tag == DT_RELASZ) bytes = entry->d_un.d_val;
    }
    for (size_t i = 0; table && i < bytes / sizeof(Elf64_Rela); i++) {
        const Elf64_Rela *entry = (const Elf64_Rela *)table + i;
        *(uintptr_t *)(base + entry->r_offset) = base + (uintptr_t)entry->r_addend;
    }
}

/* The first C function. `stack` holds the number of arguments, then the arguments. A second
 * argument, the path of a socket, means a container. */
_Noreturn __attribute__((used)) void main_begin_process(const long *stack) {
    relocate();
    char *path = stack[0] == 2 ? (char *)stack[2] : NULL;
    if (!path) {
        fork_for_all();
    } else if (!call_caller(path)) {
        memset(path, 0, text_length(path)); /* programs can read the command line */
        become_container();
    }
    sys_exit(1);
}

/* The entry point, where the kernel starts the program. */
__asm__(".text\n.global _start\n.type _start, %function\n_start:\n"
#if defined(__x86_64__)
        "xor %ebp, %ebp\nmov %rsp, %rdi\nand $-16, %rsp\ncall main_begin_process\n"
#else
        "mov x29, xzr\nmov x30, xzr\nmov x0, sp\nbl main_begin_process\n"
#endif
);
