#include "inside.h"

#include <linux/fcntl.h>
#include <linux/poll.h>
#include <linux/signal.h>

enum {
    PROGRAMS = 1024,
    LOOK_MS = 200,
    STARTING = 500, /* the score of a program that is being started: see `set_score` */
};

struct program { /* one that the caller started, until it ends */
    int pid, exit_pipe;
    int *before; /* the processes that ran then, if it is tracked: else NULL */
    int before_count;
};
static struct program programs[PROGRAMS];
static int running_before[32768];

enum stage { FOLDER_OF = 1, RIGHTS_OF, DESCRIPTORS_OF, EXECUTION_OF };

struct trouble { /* what a child says of its start that failed */
    int32_t stage, error;
};

/* -- the caller's programs ------------------------------------------------------------------- */

static struct program *program_of(int pid) {
    for (int i = 0; i < PROGRAMS; i++)
        if (programs[i].pid == pid) return &programs[i];
    return NULL;
}

static size_t before_bytes(int count) { return ((size_t)count + 1) * sizeof(int); }

static void forget_before(struct program *program) {
    /* What cannot be given back is memory of this sandbox's. */
    if (program->before)
        ignore(CALL2(__NR_munmap, program->before, before_bytes(program->before_count)));
    program->before = NULL;
}

void ended(int pid, int status) {
    struct program *program = program_of(pid);
    if (!program) return;
    int code = status & 0x7f ? -(status & 0x7f) : status >> 8 & 0xff;
    ignore(write_fd(program->exit_pipe, &code, sizeof code)); /* nobody may listen any more */
    close_fd(program->exit_pipe);
    forget_before(program);
    program->pid = 0;
}

long kill_started(int pid) {
    struct program *program = pid > 1 ? program_of(pid) : NULL;
    if (!program || !program->before) return 0;
    struct program taken = *program;
    program->before = NULL; /* it ends meanwhile, and would take the list with it */
    long killed = kill_except(taken.before, taken.before_count);
    forget_before(&taken);
    return killed < 0 ? killed : 0;
}

static long map_memory(size_t bytes) {
    return CALL6(__NR_mmap, 0, bytes, 3 /* read and write */, 0x22 /* private, anonymous */, -1, 0);
}

static bool is_error(long result) { return result < 0 && result > -4096; }

/* Notes what runs before a tracked program. */
static long note_before(struct program *program) {
    int count = alive(running_before, (int)(sizeof running_before / sizeof *running_before));
    if (count < 0) return count;
    long at = map_memory(before_bytes(count));
    if (is_error(at)) return at;
    program->before = (int *)at;
    program->before_count = count;
    memcpy(program->before, running_before, (size_t)count * sizeof(int));
    return 0;
}

/* -- in the child ---------------------------------------------------------------------------- */

static _Noreturn void give_up(int report, enum stage stage, long error) {
    struct trouble trouble = {stage, (int32_t)-error};
    ignore(write_fd(report, &trouble, sizeof trouble)); /* else its end is all that is known */
    leave(127);
}

/* Leaves process 1's session, and what signals it has blocked. */
static long begin_session(void) {
    uint64_t none = 0;
    long session = CALL0(__NR_setsid);
    if (session < 0) return session;
    return CALL4(__NR_rt_sigprocmask, SIG_SETMASK, &none, 0, sizeof none);
}

/* The texts of a list, as the kernel wants them. */
static const char **texts(struct value list) {
    size_t count = count_of(list);
    long at = map_memory((count + 1) * sizeof(char *));
    if (is_error(at)) return NULL;
    const char **found = (const char **)at;
    size_t used = 0;
    for (struct value each = first_of(list); each.at && used < count; each = after(each))
        if (text_of(each)) found[used++] = text_of(each);
    return found;
}

struct channels {
    int numbers[MOST_FDS], fds[MOST_FDS], count;
};

static void add_channel(struct channels *channels, int number, int fd) {
    for (int i = 0; i < channels->count; i++)
        if (channels->numbers[i] == number) return;
    if (channels->count < MOST_FDS) {
        channels->numbers[channels->count] = number;
        channels->fds[channels->count++] = fd;
    }
}

static int channel_at(const struct channels *channels, int number, int otherwise) {
    for (int i = 0; i < channels->count; i++)
        if (channels->numbers[i] == number) return channels->fds[i];
    return otherwise;
}

/* Gives the descriptors their numbers. What is to have a number that another comes from must not
 * replace that one first: such a one is moved away. */
static long place(struct channels *channels) {
    for (int i = 0; i < channels->count; i++) {
        if (channel_at(channels, channels->fds[i], -1) < 0) continue;
        long moved = CALL3(__NR_fcntl, channels->fds[i], F_DUPFD_CLOEXEC, HIGH_FD);
        if (moved < 0) return moved;
        channels->fds[i] = (int)moved;
    }
    for (int i = 0; i < channels->count; i++) {
        long placed = CALL3(__NR_dup3, channels->fds[i], channels->numbers[i], 0);
        if (placed < 0) return placed;
    }
    return 0;
}

static long go_to(const struct inside *inside, const char *path) {
    long failed = assume(inside, &inside->user);
    if (failed) return failed;
    long folder = open_plainly(path, O_PATH | O_DIRECTORY, 0);
    failed = folder < 0 ? folder : CALL1(__NR_fchdir, folder);
    close_fd((int)folder);
    long restored = restore(inside);
    return failed ? failed : restored;
}

/* Executes the first file of a search path that can be. */
static long execute(const char **arguments, const char **variables) {
    const char *name = arguments[0], *path = "/bin:/usr/bin";
    for (const char *at = name; *at; at++)
        if (*at == '/') return CALL3(__NR_execve, name, arguments, variables);
    for (const char **each = variables; *each; each++)
        if (starts(*each, "PATH=")) path = *each + 5;
    long failure = -ENOENT;
    for (;;) {
        TEXT(file, PATH_MAX);
        size_t count = 0;
        while (path[count] && path[count] != ':') count++;
        if (count < file.size) {
            memcpy(file.at, count ? path : ".", count ? count : 1);
            file.used = count ? count : 1;
            file.at[file.used] = 0;
            if (file.at[file.used - 1] != '/') add(&file, "/");
            add(&file, name);
            struct statx status;
            if (!file.cut && !status_of(AT_FDCWD, file.at, &status)) {
                long failed = CALL3(__NR_execve, file.at, arguments, variables);
                if (failure == -ENOENT) failure = failed;
            }
        }
        if (!path[count]) return failure;
        path += count + 1;
    }
}

/* In the child, which still is a part of process 1, and by its memory all the same. */
static _Noreturn void begin_program(const struct inside *inside, const struct user *user,
                                    struct channels *channels, struct value request, int report) {
    const char *folder = text_of(find(request, "cwd"));
    long failed = begin_session();
    if (failed) give_up(report, RIGHTS_OF, failed);
    failed = folder ? go_to(inside, folder) : -EINVAL;
    /* No path is refused so: it is process 1's own rights that were. */
    bool of_rights = failed == -EPERM || failed == -ENOSYS;
    if (failed) give_up(report, of_rights ? RIGHTS_OF : FOLDER_OF, failed);
    const char **arguments = texts(find(request, "argv"));
    const char **variables = texts(find(request, "env"));
    if (!arguments || !variables || !arguments[0]) give_up(report, RIGHTS_OF, -ENOMEM);
    long moved = CALL3(__NR_fcntl, report, F_DUPFD_CLOEXEC, HIGH_FD);
    if (moved >= 0) report = (int)moved; /* else it is where the failure can be told */
    failed = moved < 0 ? moved : place(channels);
    if (failed) give_up(report, DESCRIPTORS_OF, failed);
    failed = become(inside, user);
    if (failed) give_up(report, RIGHTS_OF, failed);
    give_up(report, EXECUTION_OF, execute(arguments, variables));
}

/* In a worker, which still is a part of process 1: nothing comes before its rights are its own. */
static void become_worker(const struct inside *inside, const struct message *message) {
    struct channels channels = {.count = 0};
    if (become(inside, &inside->user) || begin_session()) leave(1);
    add_channel(&channels, 0, inside->null);
    add_channel(&channels, 1, inside->null);
    add_channel(&channels, 2, message->fds[1]);
    add_channel(&channels, SOCKET, message->fds[0]);
    if (place(&channels)) leave(1);
    if (CALL3(__NR_fcntl, SOCKET, F_SETFD, FD_CLOEXEC) || close_from(SOCKET + 1)) leave(1);
}

/* -- in process 1 ---------------------------------------------------------------------------- */

/* Waits until the child executes its program, or says why it cannot. */
static long await_start(int pid, int report, struct trouble *trouble) {
    struct pollfd poll = {.fd = report, .events = POLLIN};
    struct __kernel_timespec {
        int64_t seconds, nanoseconds;
    };
    for (;;) {
        struct __kernel_timespec wait = {0, LOOK_MS * 1000000L};
        long ready = CALL5(__NR_ppoll, &poll, 1, &wait, 0, 8);
        if (ready > 0) break;
        if (ready < 0 && ready != -EINTR) return ready;
        /* It has the user of other programs already: one that has stopped it would stop all. */
        if (is_stopped(pid)) kill_pid(pid, SIGKILL);
    }
    return read_fd(report, trouble, sizeof *trouble);
}

static long name_failure(const struct trouble *trouble, const char *folder, struct failure *failure) {
    if (trouble->stage == FOLDER_OF) failure->path = folder;
    if (trouble->stage == EXECUTION_OF) failure->kind = "ExecError";
    return -(long)trouble->error;
}

static bool channels_of(const struct inside *inside, const struct message *message,
                        struct value request, int first_fd, struct channels *channels) {
    struct value number = first_of(find(request, "numbers"));
    channels->count = 0;
    for (int i = first_fd; i < message->count - 1; i++, number = after(number)) {
        if (!number.at || message->fds[i] < 0) return false;
        add_channel(channels, (int)number_of(number, -1), message->fds[i]);
    }
    int output = channel_at(channels, 1, inside->null);
    add_channel(channels, 0, inside->null);
    add_channel(channels, 1, inside->null);
    add_channel(channels, 2, output);
    return true;
}

/* Sets how readily the kernel ends this process to free memory. A program that is being started has
 * that from its first instruction: it is to go before this one, and before the machine's own. Against
 * one that fills memory files, which count for no process, this one would be the largest. */
static long set_score(const struct inside *inside, int score) {
    TEXT(number, 16);
    add_number(&number, score);
    long put = CALL4(__NR_pwrite64, inside->score_fd, number.at, number.used, 0);
    return put < 0 ? put : 0;
}

static long begin_start(const struct inside *inside) {
    return set_score(inside, inside->score > STARTING ? inside->score : STARTING);
}

/* Lets the kernel end a program before any that is just starting, as this process may be. */
static void end_start(const struct inside *inside, long pid) {
    TEXT(path, 64);
    ignore(set_score(inside, inside->score)); /* it was just set, and at worst stays a program's */
    if (pid <= 0) return;
    add_number(&path, pid);
    add(&path, "/oom_score_adj");
    ignore(write_text(inside->proc, path.at, "1000")); /* it may have ended, and has one already */
}

static long fork_program(const struct inside *inside, const struct user *user,
                         struct channels *channels, struct value request, struct failure *failure) {
    int report[2];
    long failed = CALL2(__NR_pipe2, report, O_CLOEXEC);
    if (failed) return failed;
    long pid = begin_start(inside);
    if (!pid) pid = CALL5(__NR_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) begin_program(inside, user, channels, request, report[1]);
    close_fd(report[1]);
    if (pid == -EAGAIN) failure->kind = "ExecError"; /* the programs leave room for none */
    if (pid > 0) {
        struct trouble trouble;
        long got = await_start((int)pid, report[0], &trouble);
        if (got) {
            int status;
            kill_pid((int)pid, SIGKILL); /* it may be stopped by now, and would never end */
            ignore(CALL4(__NR_wait4, pid, &status, 0, 0)); /* else `reap` finds it */
            pid = got < 0 ? got : -EIO;
            if (got == sizeof trouble)
                pid = name_failure(&trouble, text_of(find(request, "cwd")), failure);
        }
    }
    end_start(inside, pid);
    close_fd(report[0]);
    return pid;
}

long start_program(const struct inside *inside, struct message *message, struct value request,
                   int first_fd, struct failure *failure) {
    struct channels channels;
    struct user user = inside->user;
    struct program program = {0}, *place_for = program_of(0);
    struct value named = find(request, "user");
    if (kind_of(named) && kind_of(named) != 'n' && !user_of(named, &user)) return -EINVAL;
    user.private = is_true(find(request, "private"));
    if (user.private && inside->many_ids && user.count < MOST_GROUPS)
        user.groups[user.count++] = PRIVATE;
    if (message->count <= first_fd) return -EPROTO;
    if (!channels_of(inside, message, request, first_fd, &channels)) return -EPROTO;
    if (!place_for) return -EAGAIN;
    long failed = is_true(find(request, "track")) ? note_before(&program) : 0;
    if (failed) return failed;
    long pid = fork_program(inside, &user, &channels, request, failure);
    if (pid < 0) {
        forget_before(&program);
        return pid;
    }
    program.pid = (int)pid;
    program.exit_pipe = take_fd(message, message->count - 1);
    *place_for = program;
    return pid;
}

long start_worker(const struct inside *inside, struct message *message) {
    struct program *place_for = program_of(0);
    if (message->count != 3) return -EPROTO;
    if (!place_for) return -EAGAIN;
    long failed = begin_start(inside);
    if (failed) return failed;
    /* Not by the bare system call: the C library keeps a thread's number, and has locks. */
    int pid = fork_worker();
    if (pid == 0) {
        become_worker(inside, message);
        return 0;
    }
    end_start(inside, pid);
    if (pid < 0) return -EAGAIN; /* `errno` is the C library's, which is not known here */
    *place_for = (struct program){.pid = pid, .exit_pipe = take_fd(message, 2)};
    return pid;
}
