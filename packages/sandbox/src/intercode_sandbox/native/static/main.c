/* The zygote: a process of the spawner's that is forked for each sandbox.
 *
 * Its children are the spawner's, which hears of their ends. Each one first makes what needs no
 * request, waits for one, and becomes process 1 of a sandbox, or says why it cannot.
 *
 * This file is a program and a library. Where sandboxes have workers, the zygote is a process of
 * Python which has loaded their modules and calls `zygote`; a worker is a fork of its process 1.
 *
 * In a container there is no zygote: the program that its engine starts becomes its process 1. */
#include "inside.h"
#include "walk.h"

#include <linux/elf.h>
#include <linux/poll.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/signal.h>
#include <linux/time.h>

enum { NAMESPACES = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS };

static struct machine machine;
static struct inside inside;
static struct message hello, request;

/* The zygote's copies of what the spawner said of the machine: a message's place is used again. */
static char said[PACKET];

static bool learn(void) {
    if (receive(SOCKET, &hello) <= 0) return false;
    size_t count = (size_t)(hello.body.end - hello.body.at);
    if (count > sizeof said) return false;
    memcpy(said, hello.body.at, count);
    struct value body = {(unsigned char *)said, (unsigned char *)said + count};
    forget(&hello);
    char root = kind_of(find(body, "root"));
    machine.root = root == 't';
    machine.masks = find(body, "masks");
    struct value each = first_of(find(body, "filters"));
    for (int i = 0; i < 4; i++, each = after(each))
        machine.filters[i].bytes = bytes_of(each, &machine.filters[i].count);
    return machine.filters[3].bytes && kind_of(machine.masks) == 'L' && (root == 't' || root == 'f');
}

/* -- in a child ------------------------------------------------------------------------------ */

static long report(int control, long error) {
    struct reply reply;
    begin(&reply);
    put_open(&reply, 'M');
    put_text(&reply, "call");
    put_text(&reply, failed_call ? failed_call : "start");
    put_text(&reply, "errno");
    put_number(&reply, -error);
    put_close(&reply);
    return finish(&reply, control);
}

/* Opens a file that tells of the most memory, and has it begin now: others may have used the cgroup. */
static long open_peak(const char *path) {
    long fd = open_at(AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd >= 0 && write_fd((int)fd, "0", 1) < 0) { /* before Linux 6.12, where it is a new one */
        close_fd((int)fd);
        fd = -EACCES;
    }
    return fd == -EACCES ? open_at(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0) : fd;
}

/* Enters the cgroups of the request, and opens the file that tells of the most memory. */
static long join(struct value folders) {
    inside.peak = -1;
    for (struct value each = first_of(folders); each.at; each = after(each)) {
        TEXT(path, PATH_MAX);
        add(&path, text_of(each));
        add(&path, "/cgroup.procs");
        long failed = path.cut ? -ENAMETOOLONG : write_text(AT_FDCWD, path.at, "0");
        if (failed) {
            failed_call = "cgroup";
            return failed;
        }
    }
    static const char *const names[] = {"/memory.max_usage_in_bytes", "/memory.peak"};
    for (struct value each = first_of(folders); each.at; each = after(each)) {
        for (int i = 0; i < 2 && inside.peak < 0; i++) {
            TEXT(path, PATH_MAX);
            add(&path, text_of(each));
            add(&path, names[i]);
            long fd = open_peak(path.at);
            if (fd >= 0) inside.peak = (int)fd;
        }
    }
    return 0;
}

/* Keeps the socket of its own, as `SOCKET`, and nothing of the zygote's. */
static long keep_only(int *link) {
    long failed = *link == SOCKET ? 0 : noted("dup3", CALL3(__NR_dup3, *link, SOCKET, O_CLOEXEC));
    if (failed < 0) return failed;
    *link = SOCKET;
    return noted("close_range", close_from(SOCKET + 1));
}

/* Makes the calls that can fail later only, when nobody would hear the reason. */
static long try_calls(void) {
    struct __kernel_timespec now = {0};
    long failed = noted("ppoll", CALL5(__NR_ppoll, 0, 0, &now, 0, 8));
    if (!failed) failed = noted("clock_gettime", CALL2(__NR_clock_gettime, 1, &now));
    if (!failed) failed = noted("kill", CALL2(__NR_kill, 1, 0));
    if (failed) return failed;
    long ended = CALL4(__NR_wait4, -1, 0, 1 /* WNOHANG */, 0);
    return ended >= 0 || ended == -ECHILD ? 0 : noted("wait4", ended);
}

/* Opens what `serve` needs. */
static long ready(int *children) {
    inside.null = (int)noted("open", open_at(AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0));
    *children = (int)noted("signalfd", child_signals());
    return inside.null < 0 ? inside.null : *children < 0 ? *children : try_calls();
}

static int take_control(int link) {
    if (receive(link, &request) <= 0) leave(1); /* it is not needed */
    int control = take_fd(&request, 0);
    forget(&request);
    return control;
}

/* Returns in a worker alone: the name of its module. */
static const char *become_sandbox(int link, bool network, struct value cgroups) {
    long failed = keep_only(&link);
    if (!failed) failed = noted("prctl", CALL2(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL));
    if (!failed) failed = join(cgroups);
    memset((void *)(uintptr_t)cgroups.at, 0, (size_t)(cgroups.end - cgroups.at));
    if (!failed) failed = prepare(network, &machine, &inside);
    if (receive(link, &request) <= 0) leave(1);
    struct value plan = request.body;
    bool ahead = is_true(find(plan, "ahead"));
    int own = number_of(find(plan, "own_id"), 0) ? 2 : 1;
    int next = own + (int)number_of(find(plan, "frozen"), 0);
    int control = ahead ? -1 : take_fd(&request, next);
    int children = -1;
    long first = 0;
    if (!failed) failed = enter(&request, plan, link, &machine, &inside);
    if (!failed) failed = ready(&children);
    if (!failed && ahead && kind_of(find(plan, "program")) == 'M') {
        struct failure failure = {0};
        first = start_program(&inside, &request, find(plan, "program"), next, &failure);
        failed = first < 0 ? first : 0;
    }
    forget(&request);
    if (!failed && ahead) control = take_control(link);
    if (failed && control >= 0) ignore(report(control, failed)); /* the caller may have gone */
    if (failed || control < 0) leave(1);
    close_fd(link);
    return serve(control, children, -1, &inside, first);
}

/* -- the zygote ------------------------------------------------------------------------------ */

/* The error of what it should have done before any fork. */
static long unfit;

static long give_pid(long pid) {
    struct reply reply;
    begin(&reply);
    put_open(&reply, 'M');
    put_text(&reply, "pid");
    put_number(&reply, pid);
    put_close(&reply);
    return finish(&reply, SOCKET);
}

/* Forks. Returns in a worker, too: the name of its module. */
static const char *answer(void) {
    unsigned long flags = NAMESPACES | CLONE_PARENT;
    bool network = is_true(find(request.body, "network"));
    if (!network) flags |= CLONE_NEWNET;
    int link = take_fd(&request, 0);
    long pid = unfit ? unfit : noted("clone", CALL5(__NR_clone, flags, 0, 0, 0, 0));
    if (pid == 0) {
        static char cgroups[PACKET / 4];
        struct value folders = find(request.body, "cgroups");
        size_t count = (size_t)(folders.end - folders.at);
        if (link < 0 || kind_of(folders) != 'L' || count > sizeof cgroups) leave(1);
        memcpy(cgroups, folders.at, count);
        folders = (struct value){(unsigned char *)cgroups, (unsigned char *)cgroups + count};
        forget(&request);
        return become_sandbox(link, network, folders);
    }
    close_fd(link);
    long failed = pid < 0 ? report(SOCKET, pid) : give_pid(pid);
    if (failed) leave(1); /* or its requests and replies would no longer fit */
    failed_call = unfit ? failed_call : NULL;
    forget(&request);
    return NULL;
}

/* What the spawner ignores or blocks, a sandbox's programs would ignore or block. */
static long reset_signals(void) {
    uint64_t nothing[4] = {0}; /* struct sigaction of the kernel's: the default */
    for (int signal = 1; signal <= 64; signal++) {
        if (signal == SIGKILL || signal == SIGSTOP) continue;
        long failed = noted("rt_sigaction", CALL4(__NR_rt_sigaction, signal, nothing, 0, 8));
        if (failed) return failed;
    }
    return noted("rt_sigprocmask", CALL4(__NR_rt_sigprocmask, SIG_SETMASK, nothing, 0, 8));
}

/* Forks for each request, until the spawner goes away. */
static const char *fork_for_all(void) {
    const char *module = NULL;
    unfit = reset_signals();
    if (!unfit) unfit = noted("prctl", CALL2(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL));
    if (!unfit) unfit = noted("prctl", CALL2(__NR_prctl, PR_SET_NAME, "init"));
    if (!unfit) unfit = noted("prctl", CALL2(__NR_prctl, PR_SET_DUMPABLE, 0));
    if (!learn()) leave(1);
    while (!module && receive(SOCKET, &request) > 0) module = answer();
    if (!module) leave(0);
    return module;
}

/* -- in a container ------------------------------------------------------------------------------ */

/* Calls the caller, at the socket of that path, as `SOCKET`. */
static long call_caller(const char *path) {
    struct {
        uint16_t family;
        char path[108];
    } address = {.family = 1 /* AF_UNIX */};
    size_t count = length(path);
    if (count >= sizeof address.path) return -ENAMETOOLONG;
    memcpy(address.path, path, count);
    int link = (int)CALL3(__NR_socket, 1, 5 | O_CLOEXEC /* SEQPACKET */, 0);
    if (link < 0) return link;
    long failed = CALL3(__NR_connect, link, &address, sizeof address);
    return failed ? failed : keep_only(&link);
}

/* Opens a table of users or groups, by which the caller knows the image's; nothing if there is none. */
static void put_table(struct reply *reply, const char *path) {
    int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    long table = open_at(AT_FDCWD, path, flags, 0);
    if (table < 0) table = open_at(AT_FDCWD, "/dev/null", flags, 0);
    if (table >= 0) put_fd(reply, (int)table);
}

static long introduce(void) {
    struct reply reply;
    long ids = count_ids();
    if (ids < 0) return ids;
    begin(&reply);
    put_open(&reply, 'M');
    put_text(&reply, "ids");
    put_number(&reply, ids);
    put_close(&reply);
    put_table(&reply, "/etc/passwd");
    put_table(&reply, "/etc/group");
    return noted("send", finish(&reply, SOCKET));
}

/* Returns in a worker alone: the name of its module. */
static const char *become_container(void) {
    int children = -1;
    inside.contained = true;
    long failed = reset_signals();
    if (!failed) failed = noted("prctl", CALL2(__NR_prctl, PR_SET_NAME, "init"));
    if (!failed) failed = noted("prctl", stay_private(&inside));
    if (!failed) failed = introduce();
    if (!failed && receive(SOCKET, &request) <= 0) leave(1);
    int owner = take_fd(&request, 0);
    if (!failed && owner < 0) failed = noted("plan", -EINVAL);
    if (!failed) failed = noted("look", begin_container(request.body));
    if (!failed) failed = enter_container(request.body, &inside);
    if (!failed) failed = ready(&children);
    forget(&request);
    if (failed) {
        ignore(report(SOCKET, failed)); /* the caller may have gone */
        leave(1);
    }
    return serve(SOCKET, children, owner, &inside, 0);
}

/* -- as a library ------------------------------------------------------------------------------ */

__attribute__((visibility("default"))) const char *zygote(int (*fork)(void));
__attribute__((visibility("default"))) const char *contained(int (*fork)(void));

/* Returns in workers alone, each with the name of its module. The socket is descriptor 3. A worker
 * is forked by `fork`, which leaves its C library, and maybe its Python, fit for use. */
const char *zygote(int (*fork)(void)) {
    fork_worker = fork;
    return fork_for_all();
}

/* The same, in a container. */
const char *contained(int (*fork)(void)) {
    fork_worker = fork;
    return become_container();
}

/* -- as a program ------------------------------------------------------------------------------ */

/* Pointers in tables are written for a program that lies at 0: adds where it does lie. */
static void relocate(void) {
    extern const Elf64_Dyn _DYNAMIC[] __attribute__((visibility("hidden")));
    extern const char __ehdr_start[] __attribute__((visibility("hidden")));
    uintptr_t base = (uintptr_t)__ehdr_start, table = 0;
    size_t bytes = 0;
    for (const Elf64_Dyn *each = _DYNAMIC; each->d_tag != DT_NULL; each++) {
        if (each->d_tag == DT_RELA) table = base + each->d_un.d_ptr;
        if (each->d_tag == DT_RELASZ) bytes = each->d_un.d_val;
    }
    for (size_t i = 0; table && i < bytes / sizeof(Elf64_Rela); i++) {
        const Elf64_Rela *each = (const Elf64_Rela *)table + i;
        *(uintptr_t *)(base + each->r_offset) = base + (uintptr_t)each->r_addend;
    }
}

/* `stack`: how many words the program was called with, and these. With a second one, the path of a
 * socket, it is in a container. */
_Noreturn __attribute__((used)) void begin_process(const long *stack) {
    relocate();
    char *path = stack[0] == 2 ? (char *)stack[2] : NULL;
    if (!path) {
        fork_for_all();
    } else if (!call_caller(path)) {
        memset(path, 0, length(path)); /* programs see what it was called */
        become_container();
    }
    leave(1);
}

/* Where the kernel begins. */
__asm__(".text\n.global _start\n.type _start, %function\n_start:\n"
#if defined(__x86_64__)
        "xor %ebp, %ebp\nmov %rsp, %rdi\nand $-16, %rsp\ncall begin_process\n"
#else
        "mov x29, xzr\nmov x30, xzr\nmov x0, sp\nbl begin_process\n"
#endif
);
