#include "sandbox.h"

#include <linux/fcntl.h>
#include <linux/poll.h>
#include <linux/signal.h>
#include <linux/time.h>

enum {
    MAX_PROGRAMS = 1024,
    POLL_MS = 200,
    STARTING_SCORE = 500, /* oom_score_adj of a starting program: see `set_score` */
};

struct program { /* a program of the caller's, until its end */
    int pid, exit_pipe;
    int *running; /* the processes at its start, if it is tracked; else NULL */
    int running_count;
};
/* The process has one table of its children: their ends arrive as pids, out of any request. */
static struct program programs[MAX_PROGRAMS];

enum stage { STAGE_FOLDER = 1, STAGE_PRIVILEGES, STAGE_DESCRIPTORS, STAGE_EXECUTION };

struct trouble { /* the report of a child whose start has failed */
    int32_t stage, error;
};

/* -- the caller's programs ------------------------------------------------------------------- */

static struct program *program_of(int pid) {
    for (int i = 0; i < MAX_PROGRAMS; i++)
        if (programs[i].pid == pid) return &programs[i];
    return NULL;
}

static size_t before_bytes(int count) { return ((size_t)count + 1) * sizeof(int); }

static void forget_before(struct program *program) {
    /* A failed unmap costs only the sandbox's memory. */
    if (program->running)
        ignore(CALL2(__NR_munmap, program->running, before_bytes(program->running_count)));
    program->running = NULL;
}

void prog_note_exit(int pid, int status) {
    struct program *program = program_of(pid);
    if (!program) return;
    int code = STATUS_SIGNAL(status) ? -STATUS_SIGNAL(status) : STATUS_CODE(status);
    ignore(sys_write(program->exit_pipe, &code, sizeof code)); /* the reader may be gone */
    sys_close(program->exit_pipe);
    forget_before(program);
    program->pid = 0;
}

long prog_kill_started(int pid) {
    struct program *program = pid > 1 ? program_of(pid) : NULL;
    if (!program || !program->running) return 0;
    struct program copy = *program;
    program->running = NULL; /* its end, meanwhile, would free the list */
    long killed = proc_kill_except(copy.running, copy.running_count);
    forget_before(&copy);
    return killed < 0 ? killed : 0;
}

static long map_memory(size_t bytes) {
    return CALL6(__NR_mmap, 0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static bool is_error(long result) { return result < 0 && result >= -MAX_ERRNO; }

/* Records the processes that run before a tracked program. */
static long note_before(struct program *program) {
    static int running_pids[MAX_PIDS];
    int count = proc_list(running_pids, MAX_PIDS);
    if (count < 0) return count;
    long address = map_memory(before_bytes(count));
    if (is_error(address)) return address;
    program->running = (int *)address;
    program->running_count = count;
    memcpy(program->running, running_pids, (size_t)count * sizeof(int));
    return 0;
}

/* -- in the child ---------------------------------------------------------------------------- */

static _Noreturn void give_up(int report, enum stage stage, long error) {
    struct trouble trouble = {stage, (int32_t)-error};
    /* Without the report, the exit is all that process 1 learns. */
    ignore(sys_write(report, &trouble, sizeof trouble));
    sys_exit(127);
}

/* Leaves process 1's session, and unblocks its signals. */
static long begin_session(void) {
    uint64_t no_signals = 0;
    long session = CALL0(__NR_setsid);
    if (session < 0) return session;
    return CALL4(__NR_rt_sigprocmask, SIG_SETMASK, &no_signals, 0, sizeof no_signals);
}

/* The texts of a list, as an array for execve. */
static const char **text_array(struct value list) {
    size_t count = msg_count(list);
    long address = map_memory((count + 1) * sizeof(char *));
    if (is_error(address)) return NULL;
    const char **array = (const char **)address;
    size_t used = 0;
    for (struct value item = msg_first(list); item.start && used < count; item = msg_next(item))
        if (msg_text(item)) array[used++] = msg_text(item);
    return array;
}

struct channels {
    int numbers[MAX_FDS], fds[MAX_FDS], count;
};

static void add_channel(struct channels *channels, int number, int fd) {
    for (int i = 0; i < channels->count; i++)
        if (channels->numbers[i] == number) return;
    if (channels->count < MAX_FDS) {
        channels->numbers[channels->count] = number;
        channels->fds[channels->count++] = fd;
    }
}

static int channel_at(const struct channels *channels, int number, int otherwise) {
    for (int i = 0; i < channels->count; i++)
        if (channels->numbers[i] == number) return channels->fds[i];
    return otherwise;
}

/* Gives each descriptor its number. A descriptor whose present number is another's target moves
 * out of the way first: dup3 would close it. */
static long place_channels(struct channels *channels) {
    for (int i = 0; i < channels->count; i++) {
        if (channel_at(channels, channels->fds[i], -1) < 0) continue;
        long fd = CALL3(__NR_fcntl, channels->fds[i], F_DUPFD_CLOEXEC, HIGH_FD);
        if (fd < 0) return fd;
        channels->fds[i] = (int)fd;
    }
    for (int i = 0; i < channels->count; i++) {
        long error = CALL3(__NR_dup3, channels->fds[i], channels->numbers[i], 0);
        if (error < 0) return error;
    }
    return 0;
}

static long change_folder(const struct sandbox *sandbox, const char *path) {
    long error = user_assume(sandbox, &sandbox->user);
    if (error) return error;
    long folder = sys_open_plain(path, O_PATH | O_DIRECTORY, 0);
    error = folder < 0 ? folder : CALL1(__NR_fchdir, folder);
    sys_close((int)folder);
    long restore_error = user_restore(sandbox);
    return error ? error : restore_error;
}

/* Executes the first executable file of the search path. */
static long execute(const char **arguments, const char **variables) {
    const char *name = arguments[0], *path = "/bin:/usr/bin";
    for (const char *cursor = name; *cursor; cursor++)
        if (*cursor == '/') return CALL3(__NR_execve, name, arguments, variables);
    for (const char **variable = variables; *variable; variable++)
        if (text_starts_with(*variable, "PATH=")) path = *variable + 5;
    long failure = -ENOENT;
    for (;;) {
        TEXT(file, PATH_MAX);
        size_t count = 0;
        while (path[count] && path[count] != ':') count++;
        if (count < file.size) {
            memcpy(file.start, count ? path : ".", count ? count : 1);
            file.used = count ? count : 1;
            file.start[file.used] = 0;
            if (file.start[file.used - 1] != '/') text_add(&file, "/");
            text_add(&file, name);
            struct statx status;
            if (!file.cut && !sys_stat(AT_FDCWD, file.start, &status)) {
                long error = CALL3(__NR_execve, file.start, arguments, variables);
                if (failure == -ENOENT) failure = error;
            }
        }
        if (!path[count]) return failure;
        path += count + 1;
    }
}

/* Runs in the child, which still has process 1's capabilities and memory.
 *
 * Order: the session comes first, for signals. The folder is opened with the user's privileges,
 * before the final change of user. That change comes right before `execute`: from then on, other
 * programs of the same user can signal the child. */
static _Noreturn void begin_program(const struct sandbox *sandbox, const struct user *user,
                                    struct channels *channels, struct value request, int report) {
    const char *folder = msg_text(msg_find(request, "cwd"));
    long error = begin_session();
    if (error) give_up(report, STAGE_PRIVILEGES, error);
    error = folder ? change_folder(sandbox, folder) : -EINVAL;
    /* No path fails so: process 1's own change of privileges was refused. */
    bool of_rights = error == -EPERM || error == -ENOSYS;
    if (error) give_up(report, of_rights ? STAGE_PRIVILEGES : STAGE_FOLDER, error);
    const char **arguments = text_array(msg_find(request, "argv"));
    const char **variables = text_array(msg_find(request, "env"));
    if (!arguments || !variables || !arguments[0]) give_up(report, STAGE_PRIVILEGES, -ENOMEM);
    long fd = CALL3(__NR_fcntl, report, F_DUPFD_CLOEXEC, HIGH_FD);
    if (fd >= 0) report = (int)fd; /* the failure is reported at the old number */
    error = fd < 0 ? fd : place_channels(channels);
    if (error) give_up(report, STAGE_DESCRIPTORS, error);
    error = user_become(sandbox, user);
    if (error) give_up(report, STAGE_PRIVILEGES, error);
    give_up(report, STAGE_EXECUTION, execute(arguments, variables));
}

/* Runs in the worker, which still has process 1's capabilities: the change of user comes before
 * anything else. */
static void become_worker(const struct sandbox *sandbox, const struct message *message) {
    struct channels channels = {.count = 0};
    if (user_become(sandbox, &sandbox->user) || begin_session()) sys_exit(1);
    add_channel(&channels, 0, sandbox->null_fd);
    add_channel(&channels, 1, sandbox->null_fd);
    add_channel(&channels, 2, message->fds[1]);
    add_channel(&channels, CONTROL_FD, message->fds[0]);
    if (place_channels(&channels)) sys_exit(1);
    if (CALL3(__NR_fcntl, CONTROL_FD, F_SETFD, FD_CLOEXEC) || sys_close_from(CONTROL_FD + 1))
        sys_exit(1);
}

/* -- in process 1 ---------------------------------------------------------------------------- */

/* Waits until the child executes its program, or reports its failure. */
static long await_start(int pid, int report, struct trouble *trouble) {
    struct pollfd poll = {.fd = report, .events = POLLIN};
    for (;;) {
        struct __kernel_timespec wait = {0, POLL_MS * 1000000L};
        long ready = CALL5(__NR_ppoll, &poll, 1, &wait, 0, SIGSET_BYTES);
        if (ready > 0) break;
        if (ready < 0 && ready != -EINTR) return ready;
        /* The child already has the user of other programs. A program that stopped it would
         * block process 1. */
        if (proc_is_stopped(pid)) proc_signal(pid, SIGKILL);
    }
    return sys_read(report, trouble, sizeof *trouble);
}

static long name_failure(const struct trouble *trouble, const char *folder,
                         struct failure *failure) {
    if (trouble->stage == STAGE_FOLDER) failure->path = folder;
    if (trouble->stage == STAGE_EXECUTION) failure->kind = "ExecError";
    return -(long)trouble->error;
}

static bool channels_of(const struct sandbox *sandbox, const struct message *message,
                        struct value request, int first_fd, struct channels *channels) {
    struct value number = msg_first(msg_find(request, "numbers"));
    channels->count = 0;
    for (int i = first_fd; i < message->count - 1; i++, number = msg_next(number)) {
        if (!number.start || message->fds[i] < 0) return false;
        add_channel(channels, (int)msg_number(number, -1), message->fds[i]);
    }
    int output = channel_at(channels, 1, sandbox->null_fd);
    add_channel(channels, 0, sandbox->null_fd);
    add_channel(channels, 1, sandbox->null_fd);
    add_channel(channels, 2, output);
    return true;
}

/* Sets how readily the kernel ends this process to free memory. A starting program inherits the
 * score from its first instruction, so that it ends before process 1 and before the machine's
 * processes. Memory files count for no process: beside their writer, process 1 would be the
 * largest. */
static long set_score(const struct sandbox *sandbox, int score) {
    TEXT(number, 16);
    text_add_number(&number, score);
    long nwritten = CALL4(__NR_pwrite64, sandbox->oom_score_fd, number.start, number.used, 0);
    return nwritten < 0 ? nwritten : 0;
}

static long begin_start(const struct sandbox *sandbox) {
    return set_score(sandbox,
                     sandbox->oom_score > STARTING_SCORE ? sandbox->oom_score : STARTING_SCORE);
}

/* Gives a started program the highest score: the kernel ends it before any starting program, as
 * this process may be. */
static void end_start(const struct sandbox *sandbox, long pid) {
    TEXT(path, 64);
    /* The score was just set; at worst, a starting program's remains. */
    ignore(set_score(sandbox, sandbox->oom_score));
    if (pid <= 0) return;
    text_add_number(&path, pid);
    text_add(&path, "/oom_score_adj");
    /* The program may have ended, and has the first score. */
    ignore(sys_write_text(sandbox->proc_fd, path.start, "1000"));
}

static long fork_program(const struct sandbox *sandbox, const struct user *user,
                         struct channels *channels, struct value request, struct failure *failure) {
    int report[2];
    long error = CALL2(__NR_pipe2, report, O_CLOEXEC);
    if (error) return error;
    long pid = begin_start(sandbox);
    if (!pid) pid = CALL5(__NR_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) begin_program(sandbox, user, channels, request, report[1]);
    sys_close(report[1]);
    if (pid == -EAGAIN)
        failure->kind = "ExecError"; /* the programs of the sandbox leave room for none */
    if (pid > 0) {
        struct trouble trouble;
        long nread = await_start((int)pid, report[0], &trouble);
        if (nread) {
            int status;
            proc_signal((int)pid, SIGKILL);                /* a stopped child would never end */
            ignore(CALL4(__NR_wait4, pid, &status, 0, 0)); /* otherwise `proc_reap` reaps it */
            pid = nread < 0 ? nread : -EIO;
            if (nread == sizeof trouble)
                pid = name_failure(&trouble, msg_text(msg_find(request, "cwd")), failure);
        }
    }
    end_start(sandbox, pid);
    sys_close(report[0]);
    return pid;
}

long prog_start(const struct sandbox *sandbox, struct message *message, struct value request,
                int first_fd, struct failure *failure) {
    struct channels channels;
    struct user user = sandbox->user;
    struct program program = {0}, *slot = program_of(0);
    struct value user_value = msg_find(request, "user");
    if (msg_kind(user_value) && msg_kind(user_value) != 'n' && !user_parse(user_value, &user))
        return -EINVAL;
    user.private = msg_is_true(msg_find(request, "private"));
    if (user.private && sandbox->many_ids && user.count < MAX_GROUPS)
        user.groups[user.count++] = PRIVATE_GROUP;
    if (message->count <= first_fd) return -EPROTO;
    if (!channels_of(sandbox, message, request, first_fd, &channels)) return -EPROTO;
    if (!slot) return -EAGAIN;
    long error = msg_is_true(msg_find(request, "track")) ? note_before(&program) : 0;
    if (error) return error;
    long pid = fork_program(sandbox, &user, &channels, request, failure);
    if (pid < 0) {
        forget_before(&program);
        return pid;
    }
    program.pid = (int)pid;
    program.exit_pipe = msg_take_fd(message, message->count - 1);
    *slot = program;
    return pid;
}

long prog_start_worker(const struct sandbox *sandbox, struct message *message) {
    struct program *slot = program_of(0);
    if (message->count != 3) return -EPROTO;
    if (!slot) return -EAGAIN;
    long error = begin_start(sandbox);
    if (error) return error;
    /* The bare system call would not do: the C library stores the thread's number, and has
     * locks. */
    int pid = serve_fork_worker();
    if (pid == 0) {
        become_worker(sandbox, message);
        return 0;
    }
    end_start(sandbox, pid);
    if (pid < 0) return -EAGAIN; /* `errno` is in the C library, out of reach here */
    *slot = (struct program){.pid = pid, .exit_pipe = msg_take_fd(message, 2)};
    return pid;
}
