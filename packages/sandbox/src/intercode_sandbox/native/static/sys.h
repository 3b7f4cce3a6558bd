/* System calls (`sys_`), text and memory (`text_`), without a C library.
 *
 * Programs of the sandbox attack process 1, so it contains nothing that it does not need. The
 * zygote forks it for each sandbox, so it is small. Every call returns the kernel's result: 0 or
 * more, or the negative of an errno. */
#ifndef SYS_H
#define SYS_H

#include "abi.h"

#include <asm/unistd.h>
#include <linux/capability.h>
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/limits.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FOLDER_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
    /* Flags to open a regular file that any program may have made. */
    HOSTILE_FILE_FLAGS = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
    HIGH_FD = 300, /* above the descriptor numbers that callers request for programs */
};

/* Marks a function whose result reports a failure: a dropped result does not compile. A failure
 * that does no harm goes to `ignore`, with its reason in a comment. (A cast to void does not
 * silence every compiler.) */
#define CHECKED __attribute__((warn_unused_result))
static inline void ignore(long result) { (void)result; }

CHECKED long sys_call(long number, long a, long b, long c, long d, long e, long f);
#define CALL6(number, a, b, c, d, e, f) \
    sys_call((number), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define CALL0(number) CALL6(number, 0, 0, 0, 0, 0, 0)
#define CALL1(number, a) CALL6(number, a, 0, 0, 0, 0, 0)
#define CALL2(number, a, b) CALL6(number, a, b, 0, 0, 0, 0)
#define CALL3(number, a, b, c) CALL6(number, a, b, c, 0, 0, 0)
#define CALL4(number, a, b, c, d) CALL6(number, a, b, c, d, 0, 0)
#define CALL5(number, a, b, c, d, e) CALL6(number, a, b, c, d, e, 0)

_Noreturn void sys_exit(int status);
/* Calls a function on a stack of its own, with room for the deepest walk. Process 1's own stack
 * has only the size that its caller's limit allows. */
CHECKED long sys_run_on_stack(void (*run)(void *), void *context);

/* Maps zeroed memory and returns its address, or an error. Pages cost memory on first use, and
 * RLIMIT_DATA does not count them. */
CHECKED long sys_map_shared(size_t bytes);

/* -- memory and text ------------------------------------------------------------------------- */

void *memcpy(void *restrict target, const void *restrict source, size_t count);
void *memmove(void *target, const void *source, size_t count);
void *memset(void *target, int byte, size_t count);
int memcmp(const void *left, const void *right, size_t count);
size_t text_length(const char *text);
bool text_equal(const char *left, const char *right);
bool text_starts_with(const char *text, const char *prefix);

/* Text of limited length. An addition that does not fit is cut and sets `cut`; the text always
 * ends with a NUL. */
struct text {
    char *start;
    size_t size, used;
    bool cut;
};
#define TEXT(name, bytes)     \
    char name##_bytes[bytes]; \
    struct text name = text_init(name##_bytes, sizeof name##_bytes)
struct text text_init(char *buffer, size_t size);
void text_add(struct text *text, const char *addition);
void text_add_number(struct text *text, long number);

/* Parses decimal digits at `*cursor` and advances it behind them. Returns -1 without digits or
 * at an overflow. */
long text_read_number(const char **cursor);

/* -- files ----------------------------------------------------------------------------------- */

CHECKED long sys_open(int folder, const char *path, int flags, int mode);
/* Opens a path, but refuses links of /proc to files that a process has open. */
CHECKED long sys_open_plain(const char *path, int flags, int mode);
/* Opens a file below a folder for reading; refuses every symbolic link. */
CHECKED long sys_open_below(int folder, const char *path);
/* Opens a path with that folder as the root of all links. */
CHECKED long sys_open_in_root(int root, const char *path, int flags);
/* Opens a folder below a root; refuses every symbolic link. */
CHECKED long sys_open_folder(int root, const char *name);
CHECKED long sys_stat(int folder, const char *name, struct statx *status); /* of the link itself */
CHECKED long sys_stat_fd(int fd, struct statx *status);
uint64_t sys_device_number(const struct statx *status);
void sys_close(int fd); /* ignores a negative descriptor */
/* Closes all descriptors from that number on. */
CHECKED long sys_close_from(int first);
CHECKED long sys_read(int fd, void *buffer, size_t count);
CHECKED long sys_write(int fd, const void *bytes, size_t count);     /* in one call */
CHECKED long sys_write_all(int fd, const void *bytes, size_t count); /* 0 or an error */
CHECKED long sys_write_text(int folder, const char *path, const char *text);
/* Reads a file of /proc as text with a NUL behind it; returns its bytes. */
CHECKED long sys_read_text(int folder, const char *path, char *buffer, size_t size);
int64_t sys_milliseconds(void); /* CLOCK_MONOTONIC, which nobody sets */
void sys_sleep_us(long microseconds);

/* The names in a folder, in the kernel's order. All fields but `fd` start as 0. */
struct listing {
    int fd;
    long result, position;
    _Alignas(8) char buffer[2048];
};
/* Returns the next name except . and .., or NULL at the end and after an error. The error is in
 * `result`. */
const char *sys_next_name(struct listing *listing);

#endif
