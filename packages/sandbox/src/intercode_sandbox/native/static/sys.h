/* The kernel's calls, and the few things that a C library would have given: text and memory.
 *
 * There is no C library here. Process 1 of a sandbox is attacked by what runs in it, so that it has
 * nothing but what it needs; and it is forked for each sandbox, so that it is small. Every call
 * returns what the kernel does: 0 or more, or the negative of an errno. */
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
    /* To open a regular file that any program may have made. */
    HOSTILE_FILE_FLAGS = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
    HIGH_FD = 300, /* above the numbers that a caller asks for inside */
};

/* Of a function whose result tells of a failure: nobody may drop it. What may fail all the same is
 * given to `ignore`, with the reason in a comment. (A cast to void does not do for every compiler.) */
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
/* Calls a function on a stack of its own, which has room for the deepest walk: process 1's is as large
 * as the limit of whoever called InterCode. */
CHECKED long sys_run_on_stack(void (*run)(void *), void *context);

/* Maps zeros to write to, which take memory as they are used and are no data by the limit on it: where
 * they are, or an error. */
CHECKED long sys_map_shared(size_t bytes);

/* -- memory and text ------------------------------------------------------------------------- */

void *memcpy(void *restrict target, const void *restrict source, size_t count);
void *memmove(void *target, const void *source, size_t count);
void *memset(void *target, int byte, size_t count);
int memcmp(const void *left, const void *right, size_t count);
size_t text_length(const char *text);
bool text_equal(const char *left, const char *right);
bool text_starts_with(const char *text, const char *prefix);

/* Text of limited length. What does not fit sets `cut`; the text is always terminated. */
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

/* Reads decimal digits from `*at` on, and moves it behind them; -1: there are none, or too many. */
long text_read_number(const char **cursor);

/* -- files ----------------------------------------------------------------------------------- */

CHECKED long sys_open(int folder, const char *path, int flags, int mode);
/* Opens a path with `flags`, and follows no link of /proc to what a process has open. */
CHECKED long sys_open_plain(const char *path, int flags, int mode);
/* Opens a file for reading that lies below a folder; follows no link. */
CHECKED long sys_open_below(int folder, const char *path);
/* Opens a path as if that folder were the root. */
CHECKED long sys_open_in_root(int root, const char *path, int flags);
/* Opens a folder of that name in a root, which is no link. */
CHECKED long sys_open_folder(int root, const char *name);
CHECKED long sys_stat(int folder, const char *name, struct statx *status); /* follows no link */
CHECKED long sys_stat_fd(int fd, struct statx *status);
uint64_t sys_device_number(const struct statx *status);
void sys_close(int fd); /* nothing where it is negative */
/* Closes all from that number on. */
CHECKED long sys_close_from(int first);
CHECKED long sys_read(int fd, void *buffer, size_t count);
CHECKED long sys_write(int fd, const void *bytes, size_t count);     /* once */
CHECKED long sys_write_all(int fd, const void *bytes, size_t count); /* 0, or an error */
CHECKED long sys_write_text(int folder, const char *path, const char *text);
/* Reads a file of /proc as text, with a NUL behind it: how many bytes. */
CHECKED long sys_read_text(int folder, const char *path, char *buffer, size_t size);
int64_t sys_milliseconds(void); /* of a clock that is never set */
void sys_sleep_us(long microseconds);

/* Names in a folder, one after the other. It is 0 at first, but for `fd`. */
struct listing {
    int fd;
    long result, position;
    _Alignas(8) char buffer[2048];
};
/* The next name but for . and ..; NULL at the end, and after an error, which is in `got`. */
const char *sys_next_name(struct listing *listing);

#endif
