/* What process 1 holds of its sandbox, and its means: over users, processes, programs and files. */
#ifndef SANDBOX_H
#define SANDBOX_H

#include "sys.h"
#include "wire.h"

enum {
    CONTROL_FD =
        3, /* by it a zygote, a child of it that is no sandbox yet, and a worker are spoken to */
    MAX_UPPERS = 128,
    MAX_GROUPS = 64,
    MAX_PIDS = 32768,      /* the highest number of processes that are listed */
    MAX_DEPTH = 300,       /* folders nested deeper are listed, but not entered */
    PRIVATE_GROUP = 65533, /* the group of programs that no other one can look at: see enter.c */
};

/* A user that a program runs as. */
struct user {
    uint32_t uid, gid;
    uint32_t groups[MAX_GROUPS];
    int count;
    bool private; /* no other program can look at this user's: see enter.c */
};

struct sandbox {
    int uppers[MAX_UPPERS]; /* the layers with all that is changed, the topmost first */
    int upper_count;
    int lower;   /* the image */
    int root;    /* the overlay of both, without what is mounted in it */
    int proc_fd; /* a /proc that can be written, unlike the programs' */
    int peak_fd; /* a file that tells how much memory was used at most; -1: there is none */
    int null_fd;
    int oom_score_fd;              /* its own oom_score_adj */
    int oom_score;                 /* what that is: a cluster's containers can begin with 1000 */
    uint64_t capabilities;         /* the capabilities of process 1 */
    uint64_t program_capabilities; /* the capabilities of programs of user 0 */
    struct user user;              /* the user of programs, unless another one is asked for */
    bool many_ids;                 /* false: programs have the user of process 1 */
    bool contained; /* in a container, whose engine has made its namespaces and mounts */
};

/* -- user.c ---------------------------------------------------------------------------------- */

/* Reads a list of a user, a group and more groups: false if it is none, or too long. */
bool user_parse(struct value list, struct user *user);
/* Between these two, this process touches files with no more rights than that user has. Where it
 * cannot be itself again, `user_resume` ends it, and `user_restore` returns the error. */
CHECKED long user_assume(const struct sandbox *sandbox, const struct user *user);
void user_resume(const struct sandbox *sandbox);
CHECKED long user_restore(const struct sandbox *sandbox);
/* Become that user for good. */
CHECKED long user_become(const struct sandbox *sandbox, const struct user *user);
/* Takes these ids for all that is done to files. */
CHECKED long user_set_file_ids(uint32_t uid, uint32_t gid);
CHECKED long user_set_capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable);
/* The capabilities that this process may have. */
CHECKED long user_get_permitted(uint64_t *capabilities);
/* After each change of credentials: the kernel may have undone both. */
CHECKED long user_protect_process(const struct sandbox *sandbox);

/* -- process.c ------------------------------------------------------------------------------- */

/* Lists all processes but this one, without zombies: how many, at most `room`; or an error. */
CHECKED int proc_list(int *pids, int room);
bool proc_is_stopped(int pid);
/* Kills until nothing but what is kept is left; how many were found to be killed, or an error. */
CHECKED long proc_kill_except(const int *keep, int count);
void proc_reap(bool wait); /* until there is no other child, if it is to wait */
/* Stops all other processes, and lets them go on: -EAGAIN where some had not stood still. */
CHECKED long proc_freeze(void);
CHECKED long proc_thaw(void);
void proc_signal(int pid, int number);
/* System V memory, queues and semaphores outlive those who made them. */
CHECKED long proc_remove_shared(const struct sandbox *sandbox);
CHECKED long proc_put_programs(struct reply *reply);
/* How often a thread has waited, or was made to wait, by its status file: once more if it went on. */
uint64_t proc_status_mark(const char *status, size_t count);

/* -- program.c ------------------------------------------------------------------------------- */

/* What has failed, besides its number: the names that the host knows. */
struct failure {
    const char *kind, *path, *message;
};

/* Starts the program of a request, and keeps its exit pipe: its pid, or an error. */
CHECKED long prog_start(const struct sandbox *sandbox, struct message *message,
                        struct value request, int first_fd, struct failure *failure);
/* Forks a worker, for `serve_requests` to return in: its pid, 0 in the worker itself, or an error. Of its
 * request's descriptors the first is its socket, the second its error output. */
CHECKED long prog_start_worker(const struct sandbox *sandbox, struct message *message);
/* The process `pid` has ended, by this status of the kernel's. */
void prog_note_exit(int pid, int status);
/* Kills a tracked program that still runs, and all that has been started since it was. */
CHECKED long prog_kill_started(int pid);

/* -- files.c --------------------------------------------------------------------------------- */

CHECKED long file_open(const struct sandbox *sandbox, const char *path);
CHECKED long file_create(const struct sandbox *sandbox, const char *path, int mode);
CHECKED long file_open_terminal(const struct sandbox *sandbox);

/* -- enter.c --------------------------------------------------------------------------------- */

/* What the spawner told the zygote of this machine, once. */
struct machine {
    bool root; /* ids are a range, layers are id-mapped, device nodes can be made */
    struct value masks;
    struct {
        const char *bytes;
        size_t count;
    } filters[4];
};

/* The call that failed, for a report. */
extern const char *enter_failed_call;
/* Notes the call that failed, unless one was noted before; returns its result. */
CHECKED long enter_note(const char *call, long result);

/* Does what can be done before it is known what for. */
CHECKED long enter_prepare(bool network, const struct machine *machine, struct sandbox *sandbox);
/* Becomes process 1 of a sandbox, for good. Its descriptors: the namespace, a lock where there is a
 * range of ids, then the mounts of frozen layers. */
CHECKED long enter_sandbox(struct message *message, struct value plan, int link,
                           const struct machine *machine, struct sandbox *sandbox);
CHECKED long enter_count_ids(void); /* how many users there can be here */
/* Becomes process 1 of a container, for good. */
CHECKED long enter_container(struct value plan, struct sandbox *sandbox);

/* -- apply.c --------------------------------------------------------------------------------- */

/* Lays the files of a stream of `archive_write`, from a file, over a root; both passes are on a stack
 * of their own. */
CHECKED long apply_archive(int source, int root);

/* -- serve.c --------------------------------------------------------------------------------- */

/* Forks a worker, where this is a process of Python, which has workers' modules: else NULL. */
extern int (*serve_fork_worker)(void);

/* Serves until the caller goes away. Returns in a worker alone: the name of its module. `owner` is a
 * descriptor of the caller's process, at whose end this one ends, too; -1: its parent's end does. */
const char *serve_requests(int control, int children, int owner, const struct sandbox *sandbox,
                           long first);
CHECKED int serve_open_signals(void); /* a descriptor that tells of ended children; or an error */

#endif
