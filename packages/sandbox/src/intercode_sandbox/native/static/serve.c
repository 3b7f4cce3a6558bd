/* Process 1 of a sandbox: starts programs, reaps the dead, and looks after the files.
 *
 * It answers its caller's requests one by one over one socket, and ends, and with it everything in
 * the sandbox, when that socket closes. Programs get none of its capabilities: SECBIT_NOROOT makes
 * `execve` give user 0 nothing. */
#include "archive.h"
#include "inside.h"
#include "walk.h"

#include <asm/statfs.h>
#include <linux/poll.h>
#include <linux/signal.h>
#include <linux/signalfd.h>

int (*fork_worker)(void);
static bool stopped; /* by a request, until another one */
static char worker[256]; /* in a worker, the name of its module */

struct request {
    const struct inside *inside;
    struct message *message;
    struct value body;
    struct reply *reply; /* a map that is open: an operation adds its results */
    struct failure failure;
};

static const char *text_at(const struct request *request, const char *name) {
    const char *text = text_of(find(request->body, name));
    return text ? text : "";
}

static int64_t number_in(const struct request *request, const char *name) {
    return number_of(find(request->body, name), 0);
}

/* Answers with a descriptor. */
static long give(struct request *request, long fd) {
    if (fd < 0) return fd;
    put_fd(request->reply, (int)fd);
    return 0;
}

static long give_number(struct request *request, const char *name, long number) {
    if (number < 0) return number;
    put_text(request->reply, name);
    put_number(request->reply, number);
    return 0;
}

/* -- processes ------------------------------------------------------------------------------- */

static long do_memory(struct request *request) {
    char text[32];
    const char *at = text;
    put_text(request->reply, "peak");
    if (request->inside->peak < 0) {
        put_nothing(request->reply);
        return 0;
    }
    long got = CALL4(__NR_pread64, request->inside->peak, text, sizeof text - 1, 0);
    if (got >= 0) text[got] = 0;
    put_number(request->reply, got < 0 ? 0 : number_at(&at));
    return got < 0 ? got : 0;
}

static long do_spawn(struct request *request) {
    long pid = start_program(request->inside, request->message, request->body, 0, &request->failure);
    return give_number(request, "pid", pid);
}

static long do_worker(struct request *request) {
    const char *module = text_of(find(request->body, "module"));
    size_t count = module ? length(module) : 0;
    if (!fork_worker) return -ENOSYS;
    if (!count || count >= sizeof worker) return -EINVAL;
    long pid = start_worker(request->inside, request->message);
    if (!pid) memcpy(worker, module, count);
    return give_number(request, "pid", pid);
}

static long do_socket(struct request *request) {
    return give(request, CALL3(__NR_socket, 2 /* AF_INET */, 1 | O_CLOEXEC /* STREAM */, 0));
}

static long do_terminal(struct request *request) { return give(request, open_terminal(request->inside)); }

static long do_signal(struct request *request) {
    kill_pid((int)number_in(request, "pid"), (int)number_in(request, "number"));
    return 0;
}

static long do_kill(struct request *request) {
    static int keep[4096];
    int count = 0;
    struct value each = first_of(find(request->body, "keep"));
    for (; each.at && count < 4096; each = after(each)) keep[count++] = (int)number_of(each, -1);
    long killed = kill_except(keep, count);
    long failed = killed >= 0 && !count ? remove_shared_memory(request->inside) : 0;
    return give_number(request, "killed", failed ? failed : killed);
}

static long do_processes(struct request *request) {
    static int pids[32768];
    int count = alive(pids, (int)(sizeof pids / sizeof *pids));
    if (count < 0) return count;
    put_text(request->reply, "pids");
    put_open(request->reply, 'L');
    for (int i = 0; i < count; i++) put_number(request->reply, pids[i]);
    put_close(request->reply);
    return 0;
}

static long do_programs(struct request *request) {
    put_text(request->reply, "programs");
    return put_programs(request->reply);
}

static long do_kill_started(struct request *request) {
    return kill_started((int)number_in(request, "pid"));
}

/* -- files ----------------------------------------------------------------------------------- */

static long do_open(struct request *request) {
    request->failure.path = text_of(find(request->body, "path"));
    if (!request->failure.path) return -EPROTO;
    return give(request, open_regular(request->inside, request->failure.path));
}

static long do_create(struct request *request) {
    request->failure.path = text_of(find(request->body, "path"));
    if (!request->failure.path) return -EPROTO;
    int mode = (int)number_in(request, "mode");
    return give(request, create_regular(request->inside, request->failure.path, mode));
}

/* Lets programs go on after a stop that failed half-way; returns its error. */
static long begin_again(long error) {
    ignore(thaw()); /* which tells no more than that error */
    return error;
}

static long do_stop(struct request *request) {
    (void)request;
    long failed = freeze();
    if (failed) return begin_again(failed);
    stopped = true;
    return 0;
}

static long let_go(struct request *request) {
    long failed = thaw();
    if (failed == -EAGAIN) request->failure.kind = "RestlessError";
    return failed;
}

static long do_go_on(struct request *request) {
    if (!stopped) return 0;
    stopped = false;
    return let_go(request);
}

struct walking {
    struct request *request;
    struct trees trees;
    struct walk walk;
};

/* Walks with everything else standing still. */
static long walk_still(struct request *request, void (*run)(void *)) {
    const struct inside *inside = request->inside;
    struct walking walking = {
        .request = request,
        .trees = {.uppers = inside->uppers, .count = inside->upper_count, .lower = inside->lower,
                  .merged = inside->root},
    };
    if (inside->contained) {
        /* The place in the listing of a descriptor is that of all of its copies. */
        walking.trees.lower = request->message->count ? (int)open_at(request->message->fds[0], ".", FOLDER, 0) : -1;
        if (walking.trees.lower < 0) return -EPROTO;
        bool layered = is_true(find(request->body, "layered"));
        walking.trees.since = layered ? SINCE_SNAPSHOT : SINCE_IMAGE;
    }
    long failed = stopped ? 0 : freeze();
    if (failed) {
        if (inside->contained) close_fd(walking.trees.lower);
        return begin_again(failed);
    }
    begin_walk(&walking.walk, number_in(request, "timeout"));
    failed = on_own_stack(run, &walking);
    if (failed) fail(&walking.walk, failed, NULL);
    if (inside->contained) close_fd(walking.trees.lower);
    long restless = stopped ? 0 : let_go(request);
    if (!walking.walk.error) return restless;
    request->failure.kind = NULL;
    request->failure.said = walking.walk.message;
    return walking.walk.error;
}

static void walk_changes(void *with) {
    struct walking *walking = with;
    put_changes(walking->request->reply, &walking->trees, &walking->walk);
}

static void walk_archive(void *with) {
    struct walking *walking = with;
    const struct message *message = walking->request->message;
    write_archive(&walking->trees, message->fds[message->count - 1], &walking->walk);
}

static long do_changes(struct request *request) {
    put_text(request->reply, "changes");
    return walk_still(request, walk_changes);
}

static long do_archive(struct request *request) {
    return request->message->count ? walk_still(request, walk_archive) : -EPROTO;
}

/* A count as a message has it, which knows no more than 63 bits. */
static int64_t count_in(uint64_t count) { return count > INT64_MAX ? INT64_MAX : (int64_t)count; }

/* Tells what may still be written: as the programs' own `statfs`, which an agent's could replace. */
static long do_space(struct request *request) {
    struct statfs space;
    long failed = CALL2(__NR_fstatfs, request->inside->root, &space);
    if (failed) return failed;
    put_text(request->reply, "blocks");
    put_number(request->reply, count_in((uint64_t)space.f_bavail));
    put_text(request->reply, "block_bytes");
    put_number(request->reply, count_in((uint64_t)space.f_frsize));
    put_text(request->reply, "files");
    put_number(request->reply, count_in((uint64_t)space.f_files));
    put_text(request->reply, "free_files");
    put_number(request->reply, count_in((uint64_t)space.f_ffree));
    return 0;
}

/* -- in a container -------------------------------------------------------------------------- */

/* Gives its root, for others to be compared with. */
static long do_root(struct request *request) {
    return give(request, open_at(request->inside->root, ".", FOLDER, 0));
}

static long do_apply(struct request *request) {
    if (!request->message->count) return -EPROTO;
    long failed = apply_archive(request->message->fds[0], request->inside->root);
    return failed ? failed : look_at_mounted();
}

/* -- the loop -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    long (*run)(struct request *request);
} operations[] = {
    {"memory", do_memory},     {"spawn", do_spawn},       {"worker", do_worker},
    {"socket", do_socket},     {"terminal", do_terminal}, {"signal", do_signal},     {"kill", do_kill},
    {"processes", do_processes}, {"programs", do_programs}, {"kill_started", do_kill_started},
    {"open", do_open},         {"create", do_create},     {"stop", do_stop},
    {"go_on", do_go_on},       {"changes", do_changes},   {"archive", do_archive},
    {"space", do_space},       {"root", do_root},         {"apply", do_apply},
};

static long run_operation(struct request *request) {
    const char *name = text_at(request, "op");
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (same(operations[i].name, name)) return operations[i].run(request);
    return -ENOSYS;
}

/* Replies with an error. The caller finds the kernel's words for it, where there are no others. */
static void refuse(int control, long error, const struct failure *failure) {
    struct reply reply;
    begin(&reply);
    put_open(&reply, 'M');
    put_text(&reply, "errno");
    put_number(&reply, -error);
    put_text(&reply, "error");
    put_text(&reply, failure->said ? failure->said : "");
    put_text(&reply, "kind");
    put_text(&reply, failure->kind ? failure->kind : "OSError");
    put_text(&reply, "path");
    put_text(&reply, failure->path ? failure->path : "");
    put_close(&reply);
    ignore(finish(&reply, control)); /* if the caller has gone, the loop sees it */
}

static void answer(const struct inside *inside, int control, struct message *message) {
    struct reply reply;
    struct request request = {inside, message, message->body, &reply, {0}};
    begin(&reply);
    put_open(&reply, 'M');
    long failed = run_operation(&request);
    if (*worker) return;
    put_close(&reply);
    if (failed)
        drop(&reply);
    else /* for instance too many descriptors in flight; if the caller has gone, the loop sees it */
        failed = finish(&reply, control);
    if (failed) refuse(control, failed, &request.failure);
    forget(message);
}

int child_signals(void) {
    uint64_t children = (uint64_t)1 << (SIGCHLD - 1);
    long failed = CALL4(__NR_rt_sigprocmask, SIG_SETMASK, &children, 0, sizeof children);
    if (failed) return (int)failed;
    return (int)CALL4(__NR_signalfd4, -1, &children, sizeof children, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void announce(int control, long first) {
    struct reply reply;
    begin(&reply);
    put_open(&reply, 'M');
    put_text(&reply, "ready");
    put_truth(&reply, true);
    put_text(&reply, "first");
    if (first > 0)
        put_number(&reply, first);
    else
        put_nothing(&reply);
    put_close(&reply);
    ignore(finish(&reply, control)); /* if the caller has gone, the loop sees it */
}

const char *serve(int control, int children, int owner, const struct inside *inside, long first) {
    static struct message message;
    struct pollfd polls[3] = {
        {.fd = control, .events = POLLIN},
        {.fd = children, .events = POLLIN},
        {.fd = owner, .events = POLLIN}, /* a fork that has run no code of ours may hold the socket */
    };
    announce(control, first);
    for (;;) {
        long ready = CALL5(__NR_ppoll, polls, 3, 0, 0, 8);
        if (ready < 0 && ready != -EINTR) leave(1); /* it would wait for nothing, for ever */
        if (ready < 0) continue;
        if (polls[2].revents) leave(0);
        if (polls[1].revents) {
            struct signalfd_siginfo told;
            while (read_fd(children, &told, sizeof told) > 0) continue;
            reap(false);
        }
        if (!polls[0].revents) continue;
        long got = receive(control, &message);
        struct failure lost = {.kind = "TruncatedError"};
        if (got > 0)
            answer(inside, control, &message);
        else if (got == -EMFILE)
            refuse(control, got, &lost);
        else
            leave(0);
        if (*worker) return worker;
    }
}
