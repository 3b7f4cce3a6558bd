/* The kernel's calls, and the few things that a C library would have given: text and memory.
 *
 * There is no C library here. Process 1 of a sandbox is attacked by what runs in it, so that it has
 * nothing but what it needs; and it is forked for each sandbox, so that it is small. Every call
 * returns what the kernel does: 0 or more, or the negative of an errno. */
#ifndef SYS_H
#define SYS_H

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

#ifndef AT_FDCWD
#define AT_FDCWD (-100)
#endif
#ifndef AT_EMPTY_PATH
#define AT_EMPTY_PATH 0x1000
#endif
#ifndef AT_SYMLINK_NOFOLLOW
#define AT_SYMLINK_NOFOLLOW 0x100
#endif

enum {
    FOLDER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
    /* To open a regular file that any program may have made. */
    HOSTILE_FILE = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
    HIGH_FD = 300, /* above the numbers that a caller asks for inside */
};

/* Of a function whose result tells of a failure: nobody may drop it. What may fail all the same is
 * given to `ignore`, with the reason in a comment. (A cast to void does not do for every compiler.) */
#define CHECKED __attribute__((warn_unused_result))
static inline void ignore(long result) { (void)result; }

CHECKED long call(long number, long a, long b, long c, long d, long e, long f);
#define CALL6(number, a, b, c, d, e, f) \
    call((number), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define CALL0(number) CALL6(number, 0, 0, 0, 0, 0, 0)
#define CALL1(number, a) CALL6(number, a, 0, 0, 0, 0, 0)
#define CALL2(number, a, b) CALL6(number, a, b, 0, 0, 0, 0)
#define CALL3(number, a, b, c) CALL6(number, a, b, c, 0, 0, 0)
#define CALL4(number, a, b, c, d) CALL6(number, a, b, c, d, 0, 0)
#define CALL5(number, a, b, c, d, e) CALL6(number, a, b, c, d, e, 0)

_Noreturn void leave(int status);
/* Calls a function on a stack of its own, which has room for the deepest walk: process 1's is as large
 * as the limit of whoever called InterCode. */
CHECKED long on_own_stack(void (*run)(void *), void *with);

/* Maps zeros to write to, which take memory as they are used and are no data by the limit on it: where
 * they are, or an error. */
CHECKED long map_shared(size_t bytes);

/* -- memory and text ------------------------------------------------------------------------- */

void *memcpy(void *restrict to, const void *restrict from, size_t count);
void *memmove(void *to, const void *from, size_t count);
void *memset(void *to, int byte, size_t count);
int memcmp(const void *one, const void *other, size_t count);
size_t length(const char *text);
bool same(const char *one, const char *other);
bool starts(const char *text, const char *with);

/* Text of limited length. What does not fit sets `cut`; the text is always terminated. */
struct text {
    char *at;
    size_t size, used;
    bool cut;
};
#define TEXT(name, bytes)   \
    char name##_bytes[bytes]; \
    struct text name = text_in(name##_bytes, sizeof name##_bytes)
struct text text_in(char *at, size_t size);
void add(struct text *text, const char *more);
void add_number(struct text *text, long number);

/* Reads decimal digits from `*at` on, and moves it behind them; -1: there are none, or too many. */
long number_at(const char **at);

/* -- files ----------------------------------------------------------------------------------- */

CHECKED long open_at(int folder, const char *path, int flags, int mode);
/* Opens a path with `flags`, and follows no link of /proc to what a process has open. */
CHECKED long open_plainly(const char *path, int flags, int mode);
/* Opens a file for reading that lies below a folder; follows no link. */
CHECKED long open_below(int folder, const char *path);
/* Opens a path as if that folder were the root. */
CHECKED long open_within(int root, const char *path, int flags);
/* Opens a folder of that name in a root, which is no link. */
CHECKED long open_place(int root, const char *name);
CHECKED long status_of(int folder, const char *name, struct statx *status); /* follows no link */
CHECKED long status_of_fd(int fd, struct statx *status);
uint64_t device_of(const struct statx *status);
void close_fd(int fd); /* nothing where it is negative */
/* Closes all from that number on. */
CHECKED long close_from(int first);
CHECKED long read_fd(int fd, void *to, size_t count);
CHECKED long write_fd(int fd, const void *from, size_t count);   /* once */
CHECKED long write_all(int fd, const void *from, size_t count);  /* 0, or an error */
CHECKED long write_text(int folder, const char *path, const char *text);
/* Reads a file of /proc as text, with a NUL behind it: how many bytes. */
CHECKED long read_text(int folder, const char *path, char *to, size_t size);
int64_t milliseconds(void); /* of a clock that is never set */
void pause_us(long microseconds);

/* Names in a folder, one after the other. It is 0 at first, but for `fd`. */
struct listing {
    int fd;
    long got, at;
    _Alignas(8) char buffer[2048];
};
/* The next name but for . and ..; NULL at the end, and after an error, which is in `got`. */
const char *next_name(struct listing *listing);

#endif
