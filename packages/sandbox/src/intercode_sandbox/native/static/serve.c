/* The loop of process 1: starts programs, reaps processes, and reads and compares files.
 *
 * Process 1 answers its caller's requests in turn over one socket. When that socket closes,
 * process 1 ends, and with it every process of the sandbox. Programs get no capabilities but
 * those of the sandbox's plan: with SECBIT_NOROOT, `execve` gives user 0 no others. */
#include "archive.h"
#include "sandbox.h"
#include "walk.h"

#include <asm/statfs.h>
#include <linux/poll.h>
#include <linux/signal.h>
#include <linux/signalfd.h>

int (*serve_fork_worker)(void);

/* The state that outlives a request. */
struct server {
    bool stopped;     /* by a request, until the next one that continues programs */
    char worker[256]; /* the module's name, in a worker alone */
};

struct request {
    struct server *server;
    const struct sandbox *sandbox;
    struct message *message;
    struct value body;
    struct reply *reply; /* an open map, to which an operation adds its results */
    struct failure failure;
};

static const char *text_at(const struct request *request, const char *name) {
    const char *text = msg_text(msg_find(request->body, name));
    return text ? text : "";
}

static int64_t number_in(const struct request *request, const char *name) {
    return msg_number(msg_find(request->body, name), 0);
}

/* Replies with a descriptor. */
static long give_fd(struct request *request, long fd) {
    if (fd < 0) return fd;
    msg_put_fd(request->reply, (int)fd);
    return 0;
}

static long give_number(struct request *request, const char *name, long number) {
    if (number < 0) return number;
    msg_put_text(request->reply, name);
    msg_put_number(request->reply, number);
    return 0;
}

/* -- processes ------------------------------------------------------------------------------- */

static long do_memory(struct request *request) {
    char text[32];
    const char *cursor = text;
    msg_put_text(request->reply, "peak");
    if (request->sandbox->peak_fd < 0) {
        msg_put_null(request->reply);
        return 0;
    }
    long nread = CALL4(__NR_pread64, request->sandbox->peak_fd, text, sizeof text - 1, 0);
    if (nread >= 0) text[nread] = 0;
    msg_put_number(request->reply, nread < 0 ? 0 : text_read_number(&cursor));
    return nread < 0 ? nread : 0;
}

static long do_spawn(struct request *request) {
    long pid = prog_start(request->sandbox, request->message, request->body, 0, &request->failure);
    return give_number(request, "pid", pid);
}

static long do_worker(struct request *request) {
    const char *module = msg_text(msg_find(request->body, "module"));
    size_t count = module ? text_length(module) : 0;
    if (!serve_fork_worker) return -ENOSYS;
    if (!count || count >= sizeof request->server->worker) return -EINVAL;
    long pid = prog_start_worker(request->sandbox, request->message);
    if (!pid) memcpy(request->server->worker, module, count);
    return give_number(request, "pid", pid);
}

static long do_socket(struct request *request) {
    return give_fd(request, CALL3(__NR_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

static long do_terminal(struct request *request) {
    return give_fd(request, file_open_terminal(request->sandbox));
}

static long do_signal(struct request *request) {
    proc_signal((int)number_in(request, "pid"), (int)number_in(request, "number"));
    return 0;
}

static long do_kill(struct request *request) {
    static int keep[4096];
    int count = 0;
    struct value item = msg_first(msg_find(request->body, "keep"));
    for (; item.start && count < 4096; item = msg_next(item))
        keep[count++] = (int)msg_number(item, -1);
    long killed = proc_kill_except(keep, count);
    long error = killed >= 0 && !count ? proc_remove_shared(request->sandbox) : 0;
    return give_number(request, "killed", error ? error : killed);
}

static long do_processes(struct request *request) {
    static int pids[MAX_PIDS];
    int count = proc_list(pids, MAX_PIDS);
    if (count < 0) return count;
    msg_put_text(request->reply, "pids");
    msg_put_open(request->reply, 'L');
    for (int i = 0; i < count; i++) msg_put_number(request->reply, pids[i]);
    msg_put_close(request->reply);
    return 0;
}

static long do_programs(struct request *request) {
    msg_put_text(request->reply, "programs");
    return proc_put_programs(request->reply);
}

static long do_kill_started(struct request *request) {
    return prog_kill_started((int)number_in(request, "pid"));
}

/* -- files ----------------------------------------------------------------------------------- */

static long do_open(struct request *request) {
    request->failure.path = msg_text(msg_find(request->body, "path"));
    if (!request->failure.path) return -EPROTO;
    return give_fd(request, file_open(request->sandbox, request->failure.path));
}

static long do_create(struct request *request) {
    request->failure.path = msg_text(msg_find(request->body, "path"));
    if (!request->failure.path) return -EPROTO;
    int mode = (int)number_in(request, "mode");
    return give_fd(request, file_create(request->sandbox, request->failure.path, mode));
}

/* Continues programs after a failed stop; returns the stop's error. */
static long resume_after(long error) {
    ignore(proc_thaw()); /* the stop's error says more */
    return error;
}

static long do_stop(struct request *request) {
    (void)request;
    long error = proc_freeze();
    if (error) return resume_after(error);
    request->server->stopped = true;
    return 0;
}

static long let_go(struct request *request) {
    long error = proc_thaw();
    if (error == -EAGAIN) request->failure.kind = "RestlessError";
    return error;
}

static long do_go_on(struct request *request) {
    if (!request->server->stopped) return 0;
    request->server->stopped = false;
    return let_go(request);
}

struct walking {
    struct request *request;
    struct trees trees;
    struct walk walk;
};

/* Runs a walk while all other processes stand still. */
static long walk_still(struct request *request, void (*run)(void *)) {
    const struct sandbox *sandbox = request->sandbox;
    struct walking walking = {
        .request = request,
        .trees = {.uppers = sandbox->uppers,
                  .count = sandbox->upper_count,
                  .lower = sandbox->lower,
                  .merged = sandbox->root},
    };
    if (sandbox->contained) {
        /* The folder is opened anew: all duplicates of a descriptor share one position in its
         * listing. */
        walking.trees.lower = request->message->count
                                  ? (int)sys_open(request->message->fds[0], ".", FOLDER_FLAGS, 0)
                                  : -1;
        if (walking.trees.lower < 0) return -EPROTO;
        bool layered = msg_is_true(msg_find(request->body, "layered"));
        walking.trees.baseline = layered ? SINCE_SNAPSHOT : SINCE_IMAGE;
    }
    long error = request->server->stopped ? 0 : proc_freeze();
    if (error) {
        if (sandbox->contained) sys_close(walking.trees.lower);
        return resume_after(error);
    }
    walk_begin(&walking.walk, number_in(request, "timeout"));
    error = sys_run_on_stack(run, &walking);
    if (error) walk_fail(&walking.walk, error, NULL);
    if (sandbox->contained) sys_close(walking.trees.lower);
    long thaw_error = request->server->stopped ? 0 : let_go(request);
    if (!walking.walk.error) return thaw_error;
    request->failure.kind = NULL;
    request->failure.message = walking.walk.message;
    return walking.walk.error;
}

static void walk_changes(void *context) {
    struct walking *walking = context;
    walk_put_changes(walking->request->reply, &walking->trees, &walking->walk);
}

static void walk_archive(void *context) {
    struct walking *walking = context;
    const struct message *message = walking->request->message;
    archive_write(&walking->trees, message->fds[message->count - 1], &walking->walk);
}

static long do_changes(struct request *request) {
    msg_put_text(request->reply, "changes");
    return walk_still(request, walk_changes);
}

static long do_archive(struct request *request) {
    return request->message->count ? walk_still(request, walk_archive) : -EPROTO;
}

/* Limits a count to the 63 bits of a message's number. */
static int64_t count_in(uint64_t count) { return count > INT64_MAX ? INT64_MAX : (int64_t)count; }

/* Reports the space for writes, as statfs in a program does; an agent could replace that
 * program. */
static long do_space(struct request *request) {
    struct statfs space;
    long error = CALL2(__NR_fstatfs, request->sandbox->root, &space);
    if (error) return error;
    msg_put_text(request->reply, "blocks");
    msg_put_number(request->reply, count_in((uint64_t)space.f_bavail));
    msg_put_text(request->reply, "block_bytes");
    msg_put_number(request->reply, count_in((uint64_t)space.f_frsize));
    msg_put_text(request->reply, "files");
    msg_put_number(request->reply, count_in((uint64_t)space.f_files));
    msg_put_text(request->reply, "free_files");
    msg_put_number(request->reply, count_in((uint64_t)space.f_ffree));
    return 0;
}

/* -- in a container -------------------------------------------------------------------------- */

/* Replies with the container's root, for a comparison with another container. */
static long do_root(struct request *request) {
    return give_fd(request, sys_open(request->sandbox->root, ".", FOLDER_FLAGS, 0));
}

static long do_apply(struct request *request) {
    if (!request->message->count) return -EPROTO;
    long error = apply_archive(request->message->fds[0], request->sandbox->root);
    return error ? error : cont_note_snapshot();
}

/* -- the loop -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    long (*run)(struct request *request);
} operations[] = {
    {"memory", do_memory},     {"spawn", do_spawn},
    {"worker", do_worker},     {"socket", do_socket},
    {"terminal", do_terminal}, {"signal", do_signal},
    {"kill", do_kill},         {"processes", do_processes},
    {"programs", do_programs}, {"kill_started", do_kill_started},
    {"open", do_open},         {"create", do_create},
    {"stop", do_stop},         {"go_on", do_go_on},
    {"changes", do_changes},   {"archive", do_archive},
    {"space", do_space},       {"root", do_root},
    {"apply", do_apply},
};

static long run_operation(struct request *request) {
    const char *name = text_at(request, "op");
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (text_equal(operations[i].name, name)) return operations[i].run(request);
    return -ENOSYS;
}

/* Replies with an error. An empty message stands for the kernel's text, which the caller knows. */
static void refuse(int control, long error, const struct failure *failure) {
    struct reply reply;
    msg_begin(&reply);
    msg_put_open(&reply, 'M');
    msg_put_text(&reply, "errno");
    msg_put_number(&reply, -error);
    msg_put_text(&reply, "error");
    msg_put_text(&reply, failure->message ? failure->message : "");
    msg_put_text(&reply, "kind");
    msg_put_text(&reply, failure->kind ? failure->kind : "OSError");
    msg_put_text(&reply, "path");
    msg_put_text(&reply, failure->path ? failure->path : "");
    msg_put_close(&reply);
    ignore(msg_send(&reply, control)); /* the loop notices a closed socket */
}

static void answer(struct server *server, const struct sandbox *sandbox, int control,
                   struct message *message) {
    struct reply reply;
    struct request request = {server, sandbox, message, message->body, &reply, {0}};
    msg_begin(&reply);
    msg_put_open(&reply, 'M');
    long error = run_operation(&request);
    if (*server->worker) return;
    msg_put_close(&reply);
    if (error)
        msg_discard(&reply);
    else /* for instance too many descriptors in flight; the loop notices a closed socket */
        error = msg_send(&reply, control);
    if (error) refuse(control, error, &request.failure);
    msg_release(message);
}

int serve_open_signals(void) {
    uint64_t children = (uint64_t)1 << (SIGCHLD - 1);
    long error = CALL4(__NR_rt_sigprocmask, SIG_SETMASK, &children, 0, sizeof children);
    if (error) return (int)error;
    return (int)CALL4(__NR_signalfd4, -1, &children, sizeof children, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void announce(int control, long first) {
    struct reply reply;
    msg_begin(&reply);
    msg_put_open(&reply, 'M');
    msg_put_text(&reply, "ready");
    msg_put_bool(&reply, true);
    msg_put_text(&reply, "first");
    if (first > 0)
        msg_put_number(&reply, first);
    else
        msg_put_null(&reply);
    msg_put_close(&reply);
    ignore(msg_send(&reply, control)); /* the loop notices a closed socket */
}

const char *serve_requests(int control, int children, int owner, const struct sandbox *sandbox,
                           long first) {
    static struct message message;
    static struct server server; /* static, because a worker returns its name */
    struct pollfd polls[3] = {
        {.fd = control, .events = POLLIN},
        {.fd = children, .events = POLLIN},
        /* The owner's end counts, too: a fork of the caller, in which none of our code runs, may
         * hold its socket. */
        {.fd = owner, .events = POLLIN},
    };
    announce(control, first);
    for (;;) {
        long ready = CALL5(__NR_ppoll, polls, 3, 0, 0, SIGSET_BYTES);
        if (ready < 0 && ready != -EINTR) sys_exit(1); /* otherwise the loop would wait for ever */
        if (ready < 0) continue;
        if (polls[2].revents) sys_exit(0);
        if (polls[1].revents) {
            struct signalfd_siginfo signal;
            while (sys_read(children, &signal, sizeof signal) > 0) continue;
            proc_reap(false);
        }
        if (!polls[0].revents) continue;
        long nread = msg_receive(control, &message);
        struct failure truncation = {.kind = "TruncatedError"};
        if (nread > 0)
            answer(&server, sandbox, control, &message);
        else if (nread == -EMFILE)
            refuse(control, nread, &truncation);
        else
            sys_exit(0);
        if (*server.worker) return server.worker;
    }
}
