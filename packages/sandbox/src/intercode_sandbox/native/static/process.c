#include "inside.h"

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
    FEW = 8,
    FEW_MS = 20, /* for the end of each of a few */
    PIDS = 32768,
    LONGEST_STAT = 512,
    LONGEST_STATUS = 4096,
    END_OF_STATUS = 1024, /* its last lines: a list of groups before them may be of any length */
    TURNS = 16384,
    SHOWN_DESCRIPTORS = 256, /* of a program */
    SHOWN_BYTES = 4 << 20,   /* of what descriptors of all programs lead to */
};

static int found[PIDS], others[PIDS];

/* -- what runs ------------------------------------------------------------------------------- */

/* The number of a name that is nothing but one; -1: it is not. */
static int pid_of(const char *name) {
    const char *at = name;
    long pid = number_at(&at);
    return *at || pid > INT32_MAX ? -1 : (int)pid;
}

/* Reads a stat file of /proc, from the state on; NULL: it has just ended. */
static const char *stat_of(int pid, int thread, char *line) {
    TEXT(path, 64);
    add(&path, "/proc/");
    add_number(&path, pid);
    if (thread) {
        add(&path, "/task/");
        add_number(&path, thread);
    }
    add(&path, "/stat");
    long got = read_text(AT_FDCWD, path.at, line, LONGEST_STAT);
    for (; got > 1; got--) /* a name may have brackets in it */
        if (line[got - 2] == ')' && line[got - 1] == ' ') return line + got;
    return NULL;
}

/* Opens the list of a process's threads. */
static int threads_of(int pid) {
    TEXT(path, 64);
    add(&path, "/proc/");
    add_number(&path, pid);
    add(&path, "/task");
    return (int)open_at(AT_FDCWD, path.at, FOLDER, 0);
}

static bool runs(int pid) {
    char line[LONGEST_STAT];
    const char *stat = stat_of(pid, 0, line);
    if (!stat || *stat == 'X') return false;
    if (*stat != 'Z') return true;
    /* Where only the first thread has ended, the process looks like a zombie, too. */
    struct listing threads = {.fd = threads_of(pid)};
    if (threads.fd < 0) return false;
    bool several = next_name(&threads) && next_name(&threads);
    close_fd(threads.fd);
    return several;
}

int alive(int *pids, int room) {
    struct listing all = {.fd = (int)open_at(AT_FDCWD, "/proc", FOLDER, 0)};
    int count = 0;
    const char *name;
    if (all.fd < 0) return all.fd;
    while (count < room && (name = next_name(&all))) {
        int pid = pid_of(name);
        if (pid > 1 && runs(pid)) pids[count++] = pid;
    }
    close_fd(all.fd);
    return all.got < 0 ? (int)all.got : count;
}

bool is_stopped(int pid) {
    char line[LONGEST_STAT];
    const char *stat = stat_of(pid, 0, line);
    return stat && (*stat == 'T' || *stat == 't');
}

/* -- ends ------------------------------------------------------------------------------------ */

void kill_pid(int pid, int number) {
    if (pid > 1) ignore(CALL2(__NR_kill, pid, number)); /* it may have ended */
}

/* Whether anything else may be there, also what has ended and was not waited for: orphans become
 * children of this process, so that without a child it is alone. */
static bool has_children(void) {
    long failed = CALL5(__NR_waitid, P_ALL, 0, NULL, WEXITED | WNOHANG | WNOWAIT | __WALL, NULL);
    return failed != -ECHILD;
}

/* Sends all others a signal, at once. For that the kernel looks at each process of the machine, whose
 * other sandboxes may have thousands. */
static long signal_all(int number) {
    long failed = has_children() ? CALL2(__NR_kill, -1, number) : 0;
    return failed == -ESRCH ? 0 : failed;
}

/* Lets go of a program that has asked to be traced by its parent, as one with a debugger's capability
 * may: its stop is no end, and nobody here would let it continue. */
static void let_go(int pid, int status) {
    int number = status >> 8 & 0xff;
    /* The kernel stops a traced program by SIGTRAP where it executes another one. */
    ignore(CALL4(__NR_ptrace, PTRACE_DETACH, pid, 0, number == SIGTRAP ? 0 : number)); /* it may have ended */
}

void reap(bool wait) {
    int status;
    for (;;) {
        long pid = CALL4(__NR_wait4, -1, &status, wait ? 0 : WNOHANG, 0);
        if (pid == -EINTR) continue;
        if (pid <= 0) return;
        if ((status & 0xff) == 0x7f)
            let_go((int)pid, status);
        else
            ended((int)pid, status);
    }
}

static bool is_among(int pid, const int *pids, int count) {
    for (int i = 0; i < count; i++)
        if (pids[i] == pid) return true;
    return false;
}

/* Kills the processes that were found, of which there are few, and waits for their ends: but for what
 * was not found, nothing is left for a signal to all. */
static void kill_few(int count) {
    const struct __kernel_timespec most = {.tv_nsec = FEW_MS * 1000000L};
    const uint64_t child = (uint64_t)1 << (SIGCHLD - 1);
    for (int i = 0; i < count; i++) kill_pid(found[i], SIGKILL);
    for (int i = 0; i <= count; i++) {
        reap(false);
        if (!has_children() || CALL4(__NR_rt_sigtimedwait, &child, NULL, &most, sizeof child) < 0) return;
    }
}

long kill_except(const int *keep, int count) {
    int running = alive(found, PIDS), kept = 0, killed = 0;
    for (int i = 0; i < running; i++) kept += is_among(found[i], keep, count);
    if (running < 0) return running;
    if (!kept) {
        if (running <= FEW) kill_few(running);
        long failed = signal_all(SIGKILL); /* not even a fork bomb outruns it */
        if (!failed) reap(true);
        return failed ? failed : running;
    }
    int64_t deadline = milliseconds() + KILL_MS;
    int highest = 0;
    for (int attempt = 0;; attempt++) {
        int doomed = 0;
        for (int i = 0; i < running; i++) {
            if (is_among(found[i], keep, count)) continue;
            /* What forks faster than it is killed is stopped first. Not at once: a shell reports
             * children that stop. */
            kill_pid(found[i], attempt > 5 && attempt < 50 ? SIGSTOP : SIGKILL);
            doomed++;
            if (found[i] > highest || !attempt) killed++;
            if (found[i] > highest) highest = found[i];
        }
        if (!doomed || milliseconds() > deadline) return killed;
        reap(false);
        pause_us(200);
        running = alive(found, PIDS);
        if (running < 0) return running;
    }
}

/* -- standing still -------------------------------------------------------------------------- */

struct turn { /* how often a thread has waited, or was made to wait */
    int pid, thread;
    uint64_t times;
};
static struct turn before[TURNS]; /* more threads than these will seem to have moved */
static int before_count;
static struct rlimit64 files;

/* Does something for each thread of all others, until it says that this is enough. */
CHECKED static long each_thread(bool (*visit)(int pid, int thread, void *with), void *with) {
    int count = alive(others, PIDS);
    for (int i = 0; i < count; i++) {
        struct listing threads = {.fd = threads_of(others[i])};
        const char *name;
        if (threads.fd < 0) continue; /* it has just ended */
        while ((name = next_name(&threads)))
            if (!visit(others[i], pid_of(name), with)) break;
        close_fd(threads.fd);
    }
    return count < 0 ? count : 0;
}

struct waiting {
    bool running;
    int count;
    uint64_t mark; /* of what their stat files say */
};

static bool note_waiting(int pid, int thread, void *with) {
    struct waiting *waiting = with;
    char line[LONGEST_STAT];
    const char *stat = stat_of(pid, thread, line);
    if (!stat || (*stat != 'R' && *stat != 'D')) return true;
    waiting->running |= *stat == 'R';
    waiting->count++;
    for (; *stat; stat++) waiting->mark = (waiting->mark << 7 | waiting->mark >> 57) ^ (uint8_t)*stat;
    return true;
}

/* Waits until what was told to stop has: a write that had begun is done to its end first.
 *
 * A thread that waits for a child with which it shares its memory (vfork) cannot stop before that
 * goes on, and does nothing meanwhile: where nothing has come of waiting, that is what it is. */
static long await_still(void) {
    int64_t began = milliseconds(), since = began;
    struct waiting last = {0};
    for (;;) {
        int64_t now = milliseconds();
        struct waiting waiting = {0};
        long failed = each_thread(note_waiting, &waiting);
        if (failed || !waiting.count || now > began + STILL_MS) return failed;
        if (waiting.running || waiting.count != last.count || waiting.mark != last.mark) {
            last = waiting;
            since = now;
        } else if (now > since + STUCK_MS) {
            return 0;
        }
        pause_us(200);
    }
}

/* Reads the end of a text of any length, with a NUL behind it: how many bytes. */
static size_t read_end(const char *path, char *to, size_t size) {
    size_t used = 0;
    long got, fd = open_at(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    while (fd >= 0 && (got = read_fd((int)fd, to + used, size - used - 1)) > 0) {
        used += (size_t)got;
        if (used < size - 1) continue;
        memmove(to, to + used - END_OF_STATUS, END_OF_STATUS);
        used = END_OF_STATUS;
    }
    close_fd((int)fd);
    to[used] = 0;
    return used;
}

uint64_t turns_in(const char *status, size_t count) {
    static const char line[] = "\nvoluntary_ctxt_switches:";
    uint64_t times = 0;
    size_t at = count;
    /* From that line on: the next one tells of those that were not, and some kernels have more. */
    while (at && !starts(status + at, line)) at--;
    for (; at < count; at++) times = times * 31 + (uint8_t)status[at];
    return times;
}

static uint64_t turns_of(int pid, int thread) {
    static char status[LONGEST_STATUS];
    TEXT(path, 64);
    add(&path, "/proc/");
    add_number(&path, pid);
    add(&path, "/task/");
    add_number(&path, thread);
    add(&path, "/status");
    return turns_in(status, read_end(path.at, status, sizeof status));
}

static bool note_turn(int pid, int thread, void *with) {
    (void)with;
    if (before_count == TURNS) return false;
    before[before_count++] = (struct turn){pid, thread, turns_of(pid, thread)};
    return true;
}

static bool same_turn(struct turn turn) {
    for (int i = 0; i < before_count; i++)
        if (before[i].thread == turn.thread && before[i].pid == turn.pid)
            return before[i].times == turn.times;
    return false;
}

struct moved {
    int seen;
    bool any;
};

static bool kill_moved(int pid, int thread, void *with) {
    struct moved *moved = with;
    if (same_turn((struct turn){pid, thread, turns_of(pid, thread)})) {
        moved->seen++;
        return true;
    }
    moved->any = true;
    kill_pid(pid, SIGKILL);
    return false;
}

long freeze(void) {
    struct rlimit64 high;
    before_count = 0;
    long failed = CALL4(__NR_prlimit64, 0, RLIMIT_NOFILE, 0, &files);
    high.rlim_cur = high.rlim_max = files.rlim_max; /* for this process's walk */
    if (!failed) failed = CALL4(__NR_prlimit64, 0, RLIMIT_NOFILE, &high, 0);
    if (failed || !has_children()) return failed; /* nothing runs */
    failed = signal_all(SIGSTOP);
    if (!failed) failed = await_still();
    return failed ? failed : each_thread(note_turn, NULL);
}

/* A thread that was there and has gone: what it was of is killed as well. */
static void kill_gone(void) {
    for (int i = 0; i < before_count; i++) {
        char line[LONGEST_STAT];
        if (!stat_of(before[i].pid, before[i].thread, line)) kill_pid(before[i].pid, SIGKILL);
    }
}

long thaw(void) {
    struct moved moved = {0};
    /* Where nothing ran, nothing comes of it. */
    long failed = before_count ? each_thread(kill_moved, &moved) : 0;
    if (moved.seen != before_count) {
        moved.any = true;
        kill_gone();
    }
    before_count = 0;
    long on = signal_all(SIGCONT), limited = CALL4(__NR_prlimit64, 0, RLIMIT_NOFILE, &files, 0);
    if (!failed) failed = on ? on : limited;
    return failed ? failed : moved.any ? -EAGAIN : 0;
}

/* -- what outlives programs ------------------------------------------------------------------ */

/* Removes an object with its owner's rights: process 1's are of no use in a namespace for them that
 * its spawner owns. */
static void remove_as(const struct inside *inside, const struct user *owner, long which, long number) {
    uint64_t rights = owner->uid ? 0 : inside->kept;
    long failed = 0;
    if (inside->many_ids) {
        failed = CALL3(__NR_setresgid, owner->gid, owner->gid, owner->gid);
        if (!failed) failed = CALL3(__NR_setresuid, owner->uid, owner->uid, owner->uid);
    }
    if (!failed) failed = capabilities(rights, inside->rights, 0);
    /* The command is 0, IPC_RMID, and so is the argument before that of semctl. What could not be
     * removed is found by `any_shared`. */
    if (!failed) ignore(CALL4(which, number, 0, 0, 0));
    if (!failed) failed = capabilities(inside->rights, inside->rights, 0);
    if (failed) leave(1);
}

static void remove_kind(const struct inside *inside, const char *path, long which, int owner_at) {
    static char lines[65536];
    long got = read_text(AT_FDCWD, path, lines, sizeof lines);
    const char *at = lines;
    if (got <= 0) return;
    while (*at && *at++ != '\n') continue; /* the head */
    while (*at) {
        long fields[10] = {0};
        for (int field = 0; *at && *at != '\n'; field++) {
            while (*at == ' ') at++;
            if (field < 10) fields[field] = number_at(&at);
            while (*at && *at != ' ' && *at != '\n') at++; /* a key may be negative */
            while (*at == ' ') at++;
        }
        if (*at) at++;
        struct user owner = {.uid = (uint32_t)fields[owner_at], .gid = (uint32_t)fields[owner_at + 1]};
        remove_as(inside, &owner, which, fields[1]);
    }
}

static bool any_shared(void) {
    char lines[512];
    static const char *const paths[] = {"/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem"};
    for (int i = 0; i < 3; i++) {
        long got = read_text(AT_FDCWD, paths[i], lines, sizeof lines);
        int count = got < 0 && got != -ENOENT ? 2 : 0; /* a kernel may have none of it */
        for (long at = 0; at < got; at++) count += lines[at] == '\n';
        if (count > 1 || got >= (long)sizeof lines - 1) return true;
    }
    return false;
}

long remove_shared_memory(const struct inside *inside) {
    if (!any_shared()) return 0;
    /* In a child, which nothing else runs beside: it takes one user after the other. */
    long pid = CALL5(__NR_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP;
        if (CALL2(__NR_prctl, PR_SET_SECUREBITS, bits)) leave(1);
        remove_kind(inside, "/proc/sysvipc/shm", __NR_shmctl, 7);
        remove_kind(inside, "/proc/sysvipc/msg", __NR_msgctl, 7);
        remove_kind(inside, "/proc/sysvipc/sem", __NR_semctl, 4);
        leave(0);
    }
    int status;
    long ended_pid = pid;
    if (pid > 0)
        do ended_pid = CALL4(__NR_wait4, pid, &status, 0, 0);
        while (ended_pid == -EINTR);
    if (ended_pid < 0) return ended_pid;
    return any_shared() ? -EBUSY : 0;
}

/* -- what a program is ----------------------------------------------------------------------- */

static void put_descriptors(struct reply *reply, int pid, size_t *room) {
    TEXT(path, 64);
    add(&path, "/proc/");
    add_number(&path, pid);
    add(&path, "/fd");
    struct listing fds = {.fd = (int)open_at(AT_FDCWD, path.at, FOLDER, 0)};
    const char *name;
    if (fds.fd < 0) return;
    for (int shown = 0; shown < SHOWN_DESCRIPTORS && (name = next_name(&fds)); shown++) {
        char target[PATH_MAX];
        long got = CALL4(__NR_readlinkat, fds.fd, name, target, sizeof target);
        if (got < 0) continue;
        if ((size_t)got > *room) break;
        *room -= (size_t)got;
        put_text(reply, name);
        put_bytes(reply, target, (size_t)got);
    }
    close_fd(fds.fd);
}

long put_programs(struct reply *reply) {
    int count = alive(others, PIDS);
    size_t room = SHOWN_BYTES;
    if (count < 0) return count;
    put_open(reply, 'L');
    for (int i = 0; i < count; i++) {
        char name[64];
        TEXT(path, 64);
        add(&path, "/proc/");
        add_number(&path, others[i]);
        add(&path, "/comm");
        long got = read_text(AT_FDCWD, path.at, name, sizeof name);
        while (got > 0 && name[got - 1] == '\n') got--;
        put_open(reply, 'L');
        put_number(reply, others[i]);
        put_bytes(reply, name, got > 0 ? (size_t)got : 0);
        put_open(reply, 'M');
        put_descriptors(reply, others[i], &room);
        put_close(reply);
        put_close(reply);
    }
    put_close(reply);
    return 0;
}
