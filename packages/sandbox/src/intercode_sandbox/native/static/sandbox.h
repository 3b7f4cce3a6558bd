/* The sandbox as process 1 knows it, and the functions over users (`user_`), processes
 * (`proc_`), programs (`prog_`) and files (`file_`), start-up (`enter_`), snapshots (`apply_`)
 * and requests (`serve_`). */
#ifndef SANDBOX_H
#define SANDBOX_H

#include "sys.h"
#include "wire.h"

enum {
    CONTROL_FD = 3, /* control socket of the zygote, of a forked child, and of a worker */
    MAX_UPPERS = 128,
    MAX_GROUPS = 64,
    MAX_PIDS = 32768, /* the longest list of processes */
    MAX_DEPTH = 300,  /* deeper folders are listed, but not entered */
    PRIVATE_GROUP =
        65533, /* group of the programs that no other program can inspect: see enter.c */
};

/* The user of a program. */
struct user {
    uint32_t uid, gid;
    uint32_t groups[MAX_GROUPS];
    int count;
    bool private; /* other programs cannot inspect this user's programs: see enter.c */
};

struct sandbox {
    int uppers[MAX_UPPERS]; /* the layers with all changes, the topmost first */
    int upper_count;
    int lower;   /* the image */
    int root;    /* the overlay of both, without the mounts in it */
    int proc_fd; /* a writable /proc; that of programs is read-only */
    int peak_fd; /* the file with the peak of memory use; -1: unavailable */
    int null_fd;
    int oom_score_fd;      /* process 1's own oom_score_adj */
    int oom_score;         /* its initial value: containers of a cluster can start with 1000 */
    uint64_t capabilities; /* the capabilities of process 1 */
    uint64_t program_capabilities; /* the capabilities of programs of user 0 */
    struct user user;              /* the default user of programs */
    bool many_ids;                 /* false: programs have the user of process 1 */
    bool contained; /* in a container, whose engine has made its namespaces and mounts */
};

/* -- user.c ---------------------------------------------------------------------------------- */

/* Parses a list of a user, a group and more groups; false: another kind of value, or too long. */
bool user_parse(struct value list, struct user *user);
/* Between `user_assume` and `user_resume`, file access has the privileges of that user. If
 * process 1 cannot regain its own, `user_resume` exits and `user_restore` returns the error. */
CHECKED long user_assume(const struct sandbox *sandbox, const struct user *user);
void user_resume(const struct sandbox *sandbox);
CHECKED long user_restore(const struct sandbox *sandbox);
/* Switches to that user permanently. */
CHECKED long user_become(const struct sandbox *sandbox, const struct user *user);
/* Sets the ids for file access alone. */
CHECKED long user_set_file_ids(uint32_t uid, uint32_t gid);
CHECKED long user_set_capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable);
/* Reads the permitted capabilities of this process. */
CHECKED long user_get_permitted(uint64_t *capabilities);
/* Refuses traces and dumps; outside containers, also makes this process end with its parent. Each
 * change of credentials needs the call again: the kernel may have undone both. */
CHECKED long user_protect_process(const struct sandbox *sandbox);

/* -- process.c ------------------------------------------------------------------------------- */

/* Lists the processes except this one and zombies. Returns their number, at most `room`, or an
 * error. */
CHECKED int proc_list(int *pids, int room);
bool proc_is_stopped(int pid);
/* Kills all processes except those in `keep`. Returns the number of killed processes or an
 * error. */
CHECKED long proc_kill_except(const int *keep, int count);
void proc_reap(bool wait); /* with `wait`: until no child remains */
/* `proc_freeze` stops all other processes, `proc_thaw` continues them: -EAGAIN if some moved in
 * between. */
CHECKED long proc_freeze(void);
CHECKED long proc_thaw(void);
void proc_signal(int pid, int number);
/* Removes System V memory, queues and semaphores, which outlive their makers. */
CHECKED long proc_remove_shared(const struct sandbox *sandbox);
CHECKED long proc_put_programs(struct reply *reply);
/* A mark of a thread's context switches, from its status file. The mark changes whenever the
 * thread has run. */
uint64_t proc_status_mark(const char *status, size_t count);

/* -- program.c ------------------------------------------------------------------------------- */

/* The description of a failure besides its errno, with kinds that the host knows. */
struct failure {
    const char *kind, *path, *message;
};

/* Starts the program of a request and keeps its exit pipe. Returns its pid or an error. */
CHECKED long prog_start(const struct sandbox *sandbox, struct message *message,
                        struct value request, int first_fd, struct failure *failure);
/* Forks a worker, in which `serve_requests` returns. Returns its pid, 0 in the worker itself, or
 * an error. The request's first descriptor is the worker's socket, the second its error output. */
CHECKED long prog_start_worker(const struct sandbox *sandbox, struct message *message);
/* Reports the end of a program, with the kernel's status, to its exit pipe. */
void prog_note_exit(int pid, int status);
/* Kills a tracked program, if it still runs, and every process that started after it. */
CHECKED long prog_kill_started(int pid);

/* -- files.c --------------------------------------------------------------------------------- */

CHECKED long file_open(const struct sandbox *sandbox, const char *path);
CHECKED long file_create(const struct sandbox *sandbox, const char *path, int mode);
CHECKED long file_open_terminal(const struct sandbox *sandbox);

/* -- enter.c --------------------------------------------------------------------------------- */

/* The machine's properties, which the spawner has sent to the zygote. */
struct machine {
    bool root; /* ids are a range, layers are id-mapped, device nodes can be made */
    struct value masks;
    struct {
        const char *bytes;
        size_t count;
    } filters[4];
};

/* The name of the first failed call, for a report. Like errno it is one for the process: any
 * step can set it, however deep, and only the report reads it. */
extern const char *enter_failed_call;
/* Records the name of a failed call, unless one is recorded; returns the result. */
CHECKED long enter_note(const char *call, long result);

/* Makes the mounts and limits that need no request, before the request arrives. */
CHECKED long enter_prepare(bool network, const struct machine *machine, struct sandbox *sandbox);
/* Turns this process permanently into process 1 of a sandbox. The message's descriptors: the user
 * namespace, a lock if ids are a range, the mounts of frozen layers. */
CHECKED long enter_sandbox(struct message *message, struct value plan, int link,
                           const struct machine *machine, struct sandbox *sandbox);
CHECKED long enter_count_ids(void); /* the number of mapped user ids, or an error */
/* Turns this process permanently into process 1 of a container. */
CHECKED long enter_container(struct value plan, struct sandbox *sandbox);

/* -- apply.c --------------------------------------------------------------------------------- */

/* Extracts a stream of `archive_write` from a file over a root, in two passes, each on a stack
 * of its own. */
CHECKED long apply_archive(int source, int root);

/* -- serve.c --------------------------------------------------------------------------------- */

/* Forks a worker; NULL without workers. Set once, by a Python process that has loaded the
 * workers' modules. */
extern int (*serve_fork_worker)(void);

/* Serves requests until the caller closes its socket. Returns only in a worker: the name of its
 * module. `owner` is a descriptor of the caller's process, whose end ends this process too; -1:
 * the end of its parent does. */
const char *serve_requests(int control, int children, int owner, const struct sandbox *sandbox,
                           long first);
CHECKED int serve_open_signals(void); /* a descriptor that reports ended children, or an error */

#endif
