/* What process 1 holds of its sandbox, and its means: over users, processes, programs and files. */
#ifndef INSIDE_H
#define INSIDE_H

#include "sys.h"
#include "wire.h"

enum {
    SOCKET = 3, /* by it a zygote, a child of it that is no sandbox yet, and a worker are spoken to */
    MOST_UPPERS = 128,
    MOST_GROUPS = 64,
    MAX_DEPTH = 300, /* folders nested deeper are listed, but not entered */
    PRIVATE = 65533, /* the group of programs that no other one can look at: see enter.c */
};

/* A user that a program runs as. */
struct user {
    uint32_t uid, gid;
    uint32_t groups[MOST_GROUPS];
    int count;
    bool private; /* no other program can look at this user's: see enter.c */
};

struct inside {
    int uppers[MOST_UPPERS]; /* the layers with all that is changed, the topmost first */
    int upper_count;
    int lower; /* the image */
    int root;  /* the overlay of both, without what is mounted in it */
    int proc;  /* a /proc that can be written, unlike the programs' */
    int peak;  /* a file that tells how much memory was used at most; -1: there is none */
    int null;
    int score_fd; /* its own oom_score_adj */
    int score;    /* what that is: a cluster's containers can begin with 1000 */
    uint64_t rights;  /* the capabilities of process 1 */
    uint64_t kept;    /* the capabilities of programs of user 0 */
    struct user user; /* the user of programs, unless another one is asked for */
    bool many_ids;    /* false: programs have the user of process 1 */
    bool contained;   /* in a container, whose engine has made its namespaces and mounts */
};

/* -- user.c ---------------------------------------------------------------------------------- */

/* Reads a list of a user, a group and more groups: false if it is none, or too long. */
bool user_of(struct value list, struct user *user);
/* Between these two, this process touches files with no more rights than that user has. Where it
 * cannot be itself again, `resume` ends it, and `restore` returns the error. */
CHECKED long assume(const struct inside *inside, const struct user *user);
void resume(const struct inside *inside);
CHECKED long restore(const struct inside *inside);
/* Become that user for good. */
CHECKED long become(const struct inside *inside, const struct user *user);
/* Takes these ids for all that is done to files. */
CHECKED long own_files_as(uint32_t uid, uint32_t gid);
CHECKED long capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable);
/* The capabilities that this process may have. */
CHECKED long permitted(uint64_t *rights);
/* After each change of credentials: the kernel may have undone both. */
CHECKED long stay_private(const struct inside *inside);

/* -- process.c ------------------------------------------------------------------------------- */

/* Lists all processes but this one, without zombies: how many, at most `room`; or an error. */
CHECKED int alive(int *pids, int room);
bool is_stopped(int pid);
/* Kills until nothing but what is kept is left; how many were found to be killed, or an error. */
CHECKED long kill_except(const int *keep, int count);
void reap(bool wait); /* until there is no other child, if it is to wait */
/* Stops all other processes, and lets them go on: -EAGAIN where some had not stood still. */
CHECKED long freeze(void);
CHECKED long thaw(void);
void kill_pid(int pid, int number);
/* System V memory, queues and semaphores outlive those who made them. */
CHECKED long remove_shared_memory(const struct inside *inside);
CHECKED long put_programs(struct reply *reply);
/* How often a thread has waited, or was made to wait, by its status file: once more if it went on. */
uint64_t turns_in(const char *status, size_t count);

/* -- program.c ------------------------------------------------------------------------------- */

/* What has failed, besides its number: the names that the host knows. */
struct failure {
    const char *kind, *path, *said;
};

/* Starts the program of a request, and keeps its exit pipe: its pid, or an error. */
CHECKED long start_program(const struct inside *inside, struct message *message, struct value request,
                   int first_fd, struct failure *failure);
/* Forks a worker, for `serve` to return in: its pid, 0 in the worker itself, or an error. Of its
 * request's descriptors the first is its socket, the second its error output. */
CHECKED long start_worker(const struct inside *inside, struct message *message);
/* The process `pid` has ended, by this status of the kernel's. */
void ended(int pid, int status);
/* Kills a tracked program that still runs, and all that has been started since it was. */
CHECKED long kill_started(int pid);

/* -- files.c --------------------------------------------------------------------------------- */

CHECKED long open_regular(const struct inside *inside, const char *path);
CHECKED long create_regular(const struct inside *inside, const char *path, int mode);
CHECKED long open_terminal(const struct inside *inside);

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
extern const char *failed_call;
/* Notes the call that failed, unless one was noted before; returns its result. */
CHECKED long noted(const char *call, long result);

/* Does what can be done before it is known what for. */
CHECKED long prepare(bool network, const struct machine *machine, struct inside *inside);
/* Becomes process 1 of a sandbox, for good. Its descriptors: the namespace, a lock where there is a
 * range of ids, then the mounts of frozen layers. */
CHECKED long enter(struct message *message, struct value plan, int link, const struct machine *machine,
           struct inside *inside);
CHECKED long count_ids(void); /* how many users there can be here */
/* Becomes process 1 of a container, for good. */
CHECKED long enter_container(struct value plan, struct inside *inside);

/* -- apply.c --------------------------------------------------------------------------------- */

/* Lays the files of a stream of `write_archive`, from a file, over a root; both passes are on a stack
 * of their own. */
CHECKED long apply_archive(int source, int root);

/* -- serve.c --------------------------------------------------------------------------------- */

/* Forks a worker, where this is a process of Python, which has workers' modules: else NULL. */
extern int (*fork_worker)(void);

/* Serves until the caller goes away. Returns in a worker alone: the name of its module. `owner` is a
 * descriptor of the caller's process, at whose end this one ends, too; -1: its parent's end does. */
const char *serve(int control, int children, int owner, const struct inside *inside, long first);
CHECKED int child_signals(void); /* a descriptor that tells of ended children; or an error */

#endif
