#include "sandbox.h"

#include <linux/prctl.h>
#include <linux/ptrace.h>
#include <linux/resource.h>
#include <linux/securebits.h>
#include <linux/signal.h>
#include <linux/time.h>
#include <linux/wait.h>

enum {
    KILL_MS = 5000,
    STILL_MS = 15000,
    STUCK_MS = 200,
    FEW_PROCESSES = 8,
    FEW_MS = 20, /* per process, for its end */
    STAT_BYTES = 512,
    STATUS_BYTES = 4096,
    /* The last lines of a status file; the list of groups before them has any length. */
    STATUS_TAIL_BYTES = 1024,
    MAX_MARKS = 16384,
    MAX_DESCRIPTORS = 256,          /* of a program */
    MAX_DESCRIPTOR_BYTES = 4 << 20, /* of the targets of all programs' descriptors */
};

/* -- what runs ------------------------------------------------------------------------------- */

/* Parses a name that is a number; -1: another name. */
static int pid_of(const char *name) {
    const char *cursor = name;
    long pid = text_read_number(&cursor);
    return *cursor || pid > INT32_MAX ? -1 : (int)pid;
}

/* Reads a stat file of /proc, from the state on; NULL: the process has ended. */
static const char *stat_of(int pid, int thread, char *line) {
    TEXT(path, 64);
    text_add(&path, "/proc/");
    text_add_number(&path, pid);
    if (thread) {
        text_add(&path, "/task/");
        text_add_number(&path, thread);
    }
    text_add(&path, "/stat");
    long nread = sys_read_text(AT_FDCWD, path.start, line, STAT_BYTES);
    for (; nread > 1; nread--) /* the name before it may contain brackets */
        if (line[nread - 2] == ')' && line[nread - 1] == ' ') return line + nread;
    return NULL;
}

/* Opens the list of a process's threads. */
static int threads_of(int pid) {
    TEXT(path, 64);
    text_add(&path, "/proc/");
    text_add_number(&path, pid);
    text_add(&path, "/task");
    return (int)sys_open(AT_FDCWD, path.start, FOLDER_FLAGS, 0);
}

static bool runs(int pid) {
    char line[STAT_BYTES];
    const char *stat = stat_of(pid, 0, line);
    if (!stat || *stat == 'X') return false;
    if (*stat != 'Z') return true;
    /* A process whose first thread alone has ended also looks like a zombie. */
    struct listing threads = {.fd = threads_of(pid)};
    if (threads.fd < 0) return false;
    bool has_threads = sys_next_name(&threads) && sys_next_name(&threads);
    sys_close(threads.fd);
    return has_threads;
}

int proc_list(int *pids, int room) {
    struct listing all = {.fd = (int)sys_open(AT_FDCWD, "/proc", FOLDER_FLAGS, 0)};
    int count = 0;
    const char *name;
    if (all.fd < 0) return all.fd;
    while (count < room && (name = sys_next_name(&all))) {
        int pid = pid_of(name);
        if (pid > 1 && runs(pid)) pids[count++] = pid;
    }
    sys_close(all.fd);
    return all.result < 0 ? (int)all.result : count;
}

bool proc_is_stopped(int pid) {
    char line[STAT_BYTES];
    const char *stat = stat_of(pid, 0, line);
    return stat && (*stat == 'T' || *stat == 't');
}

/* -- ends ------------------------------------------------------------------------------------ */

void proc_signal(int pid, int number) {
    if (pid > 1) ignore(CALL2(__NR_kill, pid, number)); /* an ended process is no failure */
}

/* Whether another process may exist, or has ended unreaped. Orphans become children of process
 * 1: without a child, it is alone. */
static bool has_children(void) {
    long error = CALL5(__NR_waitid, P_ALL, 0, NULL, WEXITED | WNOHANG | WNOWAIT | __WALL, NULL);
    return error != -ECHILD;
}

/* Signals all other processes at once, but only if any exist: the kernel visits each process of
 * the machine, whose other sandboxes may have thousands. */
static long signal_all(int number) {
    long error = has_children() ? CALL2(__NR_kill, -1, number) : 0;
    return error == -ESRCH ? 0 : error;
}

/* Detaches a program that has asked its parent to trace it, which a debugger's capability
 * permits. Its stop is no end, and nobody else would continue it. */
static void let_go(int pid, int status) {
    int number = STATUS_CODE(status);
    /* SIGTRAP is the kernel's own stop at execve, no signal of the program. A failure means: the
     * program has ended. */
    ignore(CALL4(__NR_ptrace, PTRACE_DETACH, pid, 0, number == SIGTRAP ? 0 : number));
}

void proc_reap(bool wait) {
    int status;
    for (;;) {
        long pid = CALL4(__NR_wait4, -1, &status, wait ? 0 : WNOHANG, 0);
        if (pid == -EINTR) continue;
        if (pid <= 0) return;
        if (STATUS_STOPPED(status))
            let_go((int)pid, status);
        else
            prog_note_exit((int)pid, status);
    }
}

static bool is_among(int pid, const int *pids, int count) {
    for (int i = 0; i < count; i++)
        if (pids[i] == pid) return true;
    return false;
}

/* Kills the listed processes, which are few, and waits for their ends. A signal to all is then
 * needed only if a process exists that was not listed. */
static void kill_few(const int *pids, int count) {
    const struct __kernel_timespec timeout = {.tv_nsec = FEW_MS * 1000000L};
    const uint64_t child = (uint64_t)1 << (SIGCHLD - 1);
    for (int i = 0; i < count; i++) proc_signal(pids[i], SIGKILL);
    for (int i = 0; i <= count; i++) {
        proc_reap(false);
        if (!has_children() ||
            CALL4(__NR_rt_sigtimedwait, &child, NULL, &timeout, sizeof child) < 0)
            return;
    }
}

long proc_kill_except(const int *keep, int count) {
    static int pids[MAX_PIDS];
    int running = proc_list(pids, MAX_PIDS), keep_count = 0, killed = 0;
    for (int i = 0; i < running; i++) keep_count += is_among(pids[i], keep, count);
    if (running < 0) return running;
    if (!keep_count) {
        if (running <= FEW_PROCESSES) kill_few(pids, running);
        long error = signal_all(SIGKILL); /* faster than any fork bomb */
        if (!error) proc_reap(true);
        return error ? error : running;
    }
    int64_t deadline = sys_milliseconds() + KILL_MS;
    int highest = 0;
    for (int attempt = 0;; attempt++) {
        int kill_count = 0;
        for (int i = 0; i < running; i++) {
            if (is_among(pids[i], keep, count)) continue;
            /* Attempts 6 to 49 stop processes before they are killed: these fork faster than
             * kills arrive. Earlier attempts do not: a shell reports stopped children. */
            proc_signal(pids[i], attempt > 5 && attempt < 50 ? SIGSTOP : SIGKILL);
            kill_count++;
            if (pids[i] > highest || !attempt) killed++;
            if (pids[i] > highest) highest = pids[i];
        }
        if (!kill_count || sys_milliseconds() > deadline) return killed;
        proc_reap(false);
        sys_sleep_us(200);
        running = proc_list(pids, MAX_PIDS);
        if (running < 0) return running;
    }
}

/* -- standing still -------------------------------------------------------------------------- */

struct thread_mark { /* the context switches of a thread */
    int pid, thread;
    uint64_t mark;
};

/* The state between `proc_freeze` and `proc_thaw`. It belongs to the process: either all
 * programs stand still or none. */
static struct thread_mark marks[MAX_MARKS]; /* further threads count as moved */
static int mark_count;
static struct rlimit64 descriptor_limit;

/* Visits each thread of all other processes, until `visit` returns false for a process. */
CHECKED static long each_thread(bool (*visit)(int pid, int thread, void *context), void *context) {
    static int pids[MAX_PIDS];
    int count = proc_list(pids, MAX_PIDS);
    for (int i = 0; i < count; i++) {
        struct listing threads = {.fd = threads_of(pids[i])};
        const char *name;
        if (threads.fd < 0) continue; /* the process has ended */
        while ((name = sys_next_name(&threads)))
            if (!visit(pids[i], pid_of(name), context)) break;
        sys_close(threads.fd);
    }
    return count < 0 ? count : 0;
}

struct waiting {
    bool running;
    int count;
    uint64_t mark; /* over their stat files */
};

static bool note_waiting(int pid, int thread, void *context) {
    struct waiting *waiting = context;
    char line[STAT_BYTES];
    const char *stat = stat_of(pid, thread, line);
    if (!stat || (*stat != 'R' && *stat != 'D')) return true;
    waiting->running |= *stat == 'R';
    waiting->count++;
    for (; *stat; stat++)
        waiting->mark = (waiting->mark << 7 | waiting->mark >> 57) ^ (uint8_t)*stat;
    return true;
}

/* Waits until all signalled processes have stopped, but at most `STILL_MS`: each finishes a write
 * that it has started.
 *
 * A thread in vfork waits for its child, and cannot stop before the child continues. It does
 * nothing meanwhile: 200 ms without any change mean that only such threads remain. */
static long await_still(void) {
    int64_t start = sys_milliseconds(), unchanged_since = start;
    struct waiting last = {0};
    for (;;) {
        int64_t time = sys_milliseconds();
        struct waiting waiting = {0};
        long error = each_thread(note_waiting, &waiting);
        if (error || !waiting.count || time > start + STILL_MS) return error;
        if (waiting.running || waiting.count != last.count || waiting.mark != last.mark) {
            last = waiting;
            unchanged_since = time;
        } else if (time > unchanged_since + STUCK_MS) {
            return 0;
        }
        sys_sleep_us(200);
    }
}

/* Reads the end of a text of any length, with a NUL behind it. Returns its bytes. */
static size_t read_end(const char *path, char *buffer, size_t size) {
    size_t used = 0;
    long nread, fd = sys_open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    while (fd >= 0 && (nread = sys_read((int)fd, buffer + used, size - used - 1)) > 0) {
        used += (size_t)nread;
        if (used < size - 1) continue;
        memmove(buffer, buffer + used - STATUS_TAIL_BYTES, STATUS_TAIL_BYTES);
        used = STATUS_TAIL_BYTES;
    }
    sys_close((int)fd);
    buffer[used] = 0;
    return used;
}

uint64_t proc_status_mark(const char *status, size_t count) {
    static const char line[] = "\nvoluntary_ctxt_switches:";
    uint64_t mark = 0;
    size_t position = count;
    /* The mark covers all lines from this one on: the next counts involuntary switches, and some
     * kernels add more. */
    while (position && !text_starts_with(status + position, line)) position--;
    for (; position < count; position++) mark = mark * 31 + (uint8_t)status[position];
    return mark;
}

static uint64_t read_mark(int pid, int thread) {
    static char status[STATUS_BYTES];
    TEXT(path, 64);
    text_add(&path, "/proc/");
    text_add_number(&path, pid);
    text_add(&path, "/task/");
    text_add_number(&path, thread);
    text_add(&path, "/status");
    return proc_status_mark(status, read_end(path.start, status, sizeof status));
}

static bool note_mark(int pid, int thread, void *context) {
    (void)context;
    if (mark_count == MAX_MARKS) return false;
    marks[mark_count++] = (struct thread_mark){pid, thread, read_mark(pid, thread)};
    return true;
}

static bool is_same_mark(struct thread_mark thread_mark) {
    for (int i = 0; i < mark_count; i++)
        if (marks[i].thread == thread_mark.thread && marks[i].pid == thread_mark.pid)
            return marks[i].mark == thread_mark.mark;
    return false;
}

struct movement {
    int unchanged;
    bool exists;
};

static bool kill_if_moved(int pid, int thread, void *context) {
    struct movement *movement = context;
    if (is_same_mark((struct thread_mark){pid, thread, read_mark(pid, thread)})) {
        movement->unchanged++;
        return true;
    }
    movement->exists = true;
    proc_signal(pid, SIGKILL);
    return false;
}

long proc_freeze(void) {
    struct rlimit64 high;
    mark_count = 0;
    long error = CALL4(__NR_prlimit64, 0, RLIMIT_NOFILE, 0, &descriptor_limit);
    high.rlim_cur = high.rlim_max = descriptor_limit.rlim_max; /* for this process's own walk */
    if (!error) error = CALL4(__NR_prlimit64, 0, RLIMIT_NOFILE, &high, 0);
    if (error || !has_children()) return error; /* no process runs */
    error = signal_all(SIGSTOP);
    if (!error) error = await_still();
    return error ? error : each_thread(note_mark, NULL);
}

/* Kills the process of each thread that existed at the freeze and is missing now. */
static void kill_missing(void) {
    for (int i = 0; i < mark_count; i++) {
        char line[STAT_BYTES];
        if (!stat_of(marks[i].pid, marks[i].thread, line)) proc_signal(marks[i].pid, SIGKILL);
    }
}

long proc_thaw(void) {
    struct movement movement = {0};
    /* Without marks no process ran, and none can have moved. */
    long error = mark_count ? each_thread(kill_if_moved, &movement) : 0;
    if (movement.unchanged != mark_count) {
        movement.exists = true;
        kill_missing();
    }
    mark_count = 0;
    long cont_error = signal_all(SIGCONT),
         limit_error = CALL4(__NR_prlimit64, 0, RLIMIT_NOFILE, &descriptor_limit, 0);
    if (!error) error = cont_error ? cont_error : limit_error;
    return error ? error : movement.exists ? -EAGAIN : 0;
}

/* -- what outlives programs ------------------------------------------------------------------ */

/* Removes an object as its owner: process 1's capabilities do not apply in an IPC namespace that
 * its spawner's user namespace owns. */
static void remove_as(const struct sandbox *sandbox, const struct user *owner, long call,
                      long number) {
    uint64_t capabilities = owner->uid ? 0 : sandbox->program_capabilities;
    long error = 0;
    if (sandbox->many_ids) {
        error = CALL3(__NR_setresgid, owner->gid, owner->gid, owner->gid);
        if (!error) error = CALL3(__NR_setresuid, owner->uid, owner->uid, owner->uid);
    }
    if (!error) error = user_set_capabilities(capabilities, sandbox->capabilities, 0);
    /* IPC_RMID is shmctl's and msgctl's second argument, and semctl's third. `any_shared` finds
     * the objects that remain. */
    if (!error) ignore(CALL4(call, number, IPC_RMID, IPC_RMID, 0));
    if (!error) error = user_set_capabilities(sandbox->capabilities, sandbox->capabilities, 0);
    if (error) sys_exit(1);
}

static void remove_kind(const struct sandbox *sandbox, const char *path, long call, int owner_at) {
    static char lines[65536];
    long nread = sys_read_text(AT_FDCWD, path, lines, sizeof lines);
    const char *cursor = lines;
    if (nread <= 0) return;
    while (*cursor && *cursor++ != '\n') continue; /* the header */
    while (*cursor) {
        long fields[10] = {0};
        for (int field = 0; *cursor && *cursor != '\n'; field++) {
            while (*cursor == ' ') cursor++;
            if (field < 10) fields[field] = text_read_number(&cursor);
            /* The skip is by hand: a key may be negative. */
            while (*cursor && *cursor != ' ' && *cursor != '\n') cursor++;
            while (*cursor == ' ') cursor++;
        }
        if (*cursor) cursor++;
        struct user owner = {.uid = (uint32_t)fields[owner_at],
                             .gid = (uint32_t)fields[owner_at + 1]};
        remove_as(sandbox, &owner, call, fields[1]);
    }
}

static bool any_shared(void) {
    char lines[512];
    static const char *const paths[] = {"/proc/sysvipc/shm", "/proc/sysvipc/msg",
                                        "/proc/sysvipc/sem"};
    for (int i = 0; i < 3; i++) {
        long nread = sys_read_text(AT_FDCWD, paths[i], lines, sizeof lines);
        int count = nread < 0 && nread != -ENOENT ? 2 : 0; /* a kernel may lack these files */
        for (long position = 0; position < nread; position++) count += lines[position] == '\n';
        if (count > 1 || nread >= (long)sizeof lines - 1) return true;
    }
    return false;
}

long proc_remove_shared(const struct sandbox *sandbox) {
    if (!any_shared()) return 0;
    /* A child does this, because it takes on one user after the other. No other process runs
     * beside it. */
    long pid = CALL5(__NR_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP;
        if (CALL2(__NR_prctl, PR_SET_SECUREBITS, bits)) sys_exit(1);
        remove_kind(sandbox, "/proc/sysvipc/shm", __NR_shmctl, 7);
        remove_kind(sandbox, "/proc/sysvipc/msg", __NR_msgctl, 7);
        remove_kind(sandbox, "/proc/sysvipc/sem", __NR_semctl, 4);
        sys_exit(0);
    }
    int status;
    long ended_pid = pid;
    if (pid > 0) {
        do ended_pid = CALL4(__NR_wait4, pid, &status, 0, 0);
        while (ended_pid == -EINTR);
    }
    if (ended_pid < 0) return ended_pid;
    return any_shared() ? -EBUSY : 0;
}

/* -- what a program is ----------------------------------------------------------------------- */

static void put_descriptors(struct reply *reply, int pid, size_t *room) {
    TEXT(path, 64);
    text_add(&path, "/proc/");
    text_add_number(&path, pid);
    text_add(&path, "/fd");
    struct listing fds = {.fd = (int)sys_open(AT_FDCWD, path.start, FOLDER_FLAGS, 0)};
    const char *name;
    if (fds.fd < 0) return;
    for (int count = 0; count < MAX_DESCRIPTORS && (name = sys_next_name(&fds)); count++) {
        char target[PATH_MAX];
        long nread = CALL4(__NR_readlinkat, fds.fd, name, target, sizeof target);
        if (nread < 0) continue;
        if ((size_t)nread > *room) break;
        *room -= (size_t)nread;
        msg_put_text(reply, name);
        msg_put_bytes(reply, target, (size_t)nread);
    }
    sys_close(fds.fd);
}

long proc_put_programs(struct reply *reply) {
    static int pids[MAX_PIDS];
    int count = proc_list(pids, MAX_PIDS);
    size_t room = MAX_DESCRIPTOR_BYTES;
    if (count < 0) return count;
    msg_put_open(reply, 'L');
    for (int i = 0; i < count; i++) {
        char name[64];
        TEXT(path, 64);
        text_add(&path, "/proc/");
        text_add_number(&path, pids[i]);
        text_add(&path, "/comm");
        long nread = sys_read_text(AT_FDCWD, path.start, name, sizeof name);
        while (nread > 0 && name[nread - 1] == '\n') nread--;
        msg_put_open(reply, 'L');
        msg_put_number(reply, pids[i]);
        msg_put_bytes(reply, name, nread > 0 ? (size_t)nread : 0);
        msg_put_open(reply, 'M');
        put_descriptors(reply, pids[i], &room);
        msg_put_close(reply);
        msg_put_close(reply);
    }
    msg_put_close(reply);
    return 0;
}
