#include "sys.h"

#include <linux/openat2.h>
#include <linux/time.h>

#ifndef __NR_openat2
#define __NR_openat2 437
#endif

long call(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
#else
#error "there is no such architecture here yet: x86-64 and aarch64 are known"
#endif
}

_Noreturn void leave(int status) {
    ignore(CALL1(__NR_exit_group, status)); /* it does not return, */
    ignore(CALL1(__NR_exit, status));       /* unless a filter of the machine's refuses it */
    __builtin_trap();
}

/* -- a stack ---------------------------------------------------------------------------------- */

enum {
    STACK_BYTES = 16 << 20, /* twice what a walk needs at its most: 1200 folders deep, 7 KiB for each */
    GUARD_BYTES = 1 << 16,
    READ_AND_WRITE = 3,
    AS_IT_IS_USED = 0x4021, /* anonymous, shared, not reserved */
};

void call_on(void *top, void (*run)(void *), void *with) __attribute__((visibility("hidden")));
__asm__(".text\n.hidden call_on\n.global call_on\n.type call_on, %function\ncall_on:\n"
#if defined(__x86_64__)
        "push %rbp\nmov %rsp, %rbp\nmov %rdi, %rsp\nmov %rdx, %rdi\ncall *%rsi\n"
        "mov %rbp, %rsp\npop %rbp\nret\n"
#else
        "stp x29, x30, [sp, #-16]!\nmov x29, sp\nmov sp, x0\nmov x0, x2\nblr x1\n"
        "mov sp, x29\nldp x29, x30, [sp], #16\nret\n"
#endif
);

long map_shared(size_t bytes) {
    return CALL6(__NR_mmap, 0, bytes, READ_AND_WRITE, AS_IT_IS_USED, -1, 0);
}

long on_own_stack(void (*run)(void *), void *with) {
    long at = map_shared(STACK_BYTES);
    if (at < 0) return at;
    long failed = CALL3(__NR_mprotect, at, GUARD_BYTES, 0);
    if (!failed) call_on((char *)at + STACK_BYTES, run, with);
    ignore(CALL2(__NR_munmap, at, STACK_BYTES)); /* what cannot be given back is the sandbox's */
    return failed;
}

/* -- memory and text ------------------------------------------------------------------------- */

/* The empty instruction keeps a compiler from making of each loop a call of the function itself. */
#define ONE_BY_ONE __asm__ volatile("" ::: "memory")

void *memcpy(void *restrict to, const void *restrict from, size_t count) {
#if defined(__x86_64__)
    void *at = to;
    __asm__ volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(count) : : "memory");
#else
    for (size_t i = 0; i < count; i++) {
        ((char *)to)[i] = ((const char *)from)[i];
        ONE_BY_ONE;
    }
#endif
    return to;
}

void *memmove(void *to, const void *from, size_t count) {
    if ((uintptr_t)to <= (uintptr_t)from) {
        for (size_t i = 0; i < count; i++) {
            ((char *)to)[i] = ((const char *)from)[i];
            ONE_BY_ONE;
        }
    } else {
        for (size_t i = count; i > 0; i--) {
            ((char *)to)[i - 1] = ((const char *)from)[i - 1];
            ONE_BY_ONE;
        }
    }
    return to;
}

void *memset(void *to, int byte, size_t count) {
#if defined(__x86_64__)
    void *at = to;
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(count) : "a"(byte) : "memory");
#else
    for (size_t i = 0; i < count; i++) {
        ((unsigned char *)to)[i] = (unsigned char)byte;
        ONE_BY_ONE;
    }
#endif
    return to;
}

int memcmp(const void *one, const void *other, size_t count) {
    const unsigned char *a = one, *b = other;
    for (size_t i = 0; i < count; i++) {
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
        ONE_BY_ONE;
    }
    return 0;
}

size_t length(const char *text) {
    size_t count = 0;
    while (text[count]) {
        count++;
        ONE_BY_ONE;
    }
    return count;
}

bool same(const char *one, const char *other) {
    size_t count = length(one);
    return count == length(other) && memcmp(one, other, count) == 0;
}

bool starts(const char *text, const char *with) {
    size_t count = length(with);
    return length(text) >= count && memcmp(text, with, count) == 0;
}

struct text text_in(char *at, size_t size) {
    at[0] = 0;
    return (struct text){.at = at, .size = size};
}

void add(struct text *text, const char *more) {
    size_t count = length(more), room = text->size - text->used - 1;
    if (count > room) {
        count = room;
        text->cut = true;
    }
    memcpy(text->at + text->used, more, count);
    text->used += count;
    text->at[text->used] = 0;
}

void add_number(struct text *text, long number) {
    char digits[24];
    size_t at = sizeof digits - 1;
    unsigned long left = number < 0 ? -(unsigned long)number : (unsigned long)number;
    digits[at] = 0;
    do {
        digits[--at] = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    if (number < 0) digits[--at] = '-';
    add(text, digits + at);
}

long number_at(const char **at) {
    long found = -1;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        long digit = **at - '0';
        if (found > (INT64_MAX - digit) / 10) return -1;
        found = (found < 0 ? 0 : found) * 10 + digit;
    }
    return found;
}

/* -- files ----------------------------------------------------------------------------------- */

long open_at(int folder, const char *path, int flags, int mode) {
    return CALL4(__NR_openat, folder, path, flags, mode);
}

static long open_how(int folder, const char *path, int flags, int mode, uint64_t resolve) {
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC), .resolve = resolve};
    if (flags & O_CREAT) how.mode = (uint64_t)mode;
    long fd;
    do fd = CALL4(__NR_openat2, folder, path, &how, sizeof how);
    while (fd == -EINTR);
    return fd;
}

long open_plainly(const char *path, int flags, int mode) {
    return open_how(AT_FDCWD, path, flags, mode, RESOLVE_NO_MAGICLINKS);
}

long open_below(int folder, const char *path) {
    uint64_t resolve = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH;
    return open_how(folder, path, O_RDONLY | O_NONBLOCK, 0, resolve);
}

long open_within(int root, const char *path, int flags) {
    return open_how(root, path, flags, 0, RESOLVE_NO_MAGICLINKS | RESOLVE_IN_ROOT);
}

long open_place(int root, const char *name) {
    uint64_t resolve = RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT;
    return open_how(root, name, O_PATH | O_DIRECTORY, 0, resolve);
}

long status_of(int folder, const char *name, struct statx *status) {
    int flags = AT_SYMLINK_NOFOLLOW;
    return CALL5(__NR_statx, folder, name, flags, STATX_BASIC_STATS, status);
}

long status_of_fd(int fd, struct statx *status) {
    return CALL5(__NR_statx, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, status);
}

uint64_t device_of(const struct statx *status) {
    return (uint64_t)status->stx_dev_major << 32 | status->stx_dev_minor;
}

void close_fd(int fd) {
    /* After an error, too, the number is free; and no program gets one that was not meant for it. */
    if (fd >= 0) ignore(CALL1(__NR_close, fd));
}

/* Closes those that /proc lists, from `first` on, in one pass: how many, or an error. */
static long close_listed(int first) {
    struct listing fds = {.fd = (int)open_at(AT_FDCWD, "/proc/self/fd", FOLDER, 0)};
    long closed = 0, failed = 0;
    const char *name;
    if (fds.fd < 0) return fds.fd;
    while (!failed && (name = next_name(&fds))) {
        long fd = number_at(&name);
        if (fd < first || fd == fds.fd) continue;
        failed = CALL1(__NR_close, fd);
        closed++;
    }
    close_fd(fds.fd);
    return failed ? failed : fds.got < 0 ? fds.got : closed;
}

long close_from(int first) {
    long failed = CALL3(__NR_close_range, first, ~0U, 0);
    if (failed != -ENOSYS && failed != -EPERM) return failed;
    /* An older kernel, or a filter of the machine's. A folder that changes lists some only later. */
    do failed = close_listed(first);
    while (failed > 0);
    return failed;
}

long read_fd(int fd, void *to, size_t count) {
    long got;
    do got = CALL3(__NR_read, fd, to, count);
    while (got == -EINTR);
    return got;
}

long write_fd(int fd, const void *from, size_t count) {
    long put;
    do put = CALL3(__NR_write, fd, from, count);
    while (put == -EINTR);
    return put;
}

long write_all(int fd, const void *from, size_t count) {
    const char *at = from;
    while (count) {
        long put = write_fd(fd, at, count);
        if (put < 0) return put;
        at += put;
        count -= (size_t)put;
    }
    return 0;
}

long write_text(int folder, const char *path, const char *text) {
    long fd = open_at(folder, path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) return fd;
    long put = write_fd((int)fd, text, length(text));
    close_fd((int)fd);
    return put < 0 ? put : 0;
}

long read_text(int folder, const char *path, char *to, size_t size) {
    to[0] = 0;
    long fd = open_at(folder, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return fd;
    size_t used = 0;
    long got = 0;
    while (used + 1 < size && (got = read_fd((int)fd, to + used, size - used - 1)) > 0)
        used += (size_t)got;
    close_fd((int)fd);
    to[used] = 0;
    return got < 0 ? got : (long)used;
}

int64_t milliseconds(void) {
    struct __kernel_timespec now = {0};
    /* No deadline would ever come. */
    if (CALL2(__NR_clock_gettime, 1 /* CLOCK_MONOTONIC */, &now)) leave(1);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void pause_us(long microseconds) {
    struct __kernel_timespec wait = {.tv_nsec = microseconds * 1000};
    ignore(CALL2(__NR_nanosleep, &wait, 0)); /* who waits has a deadline */
}

struct entry { /* the kernel's linux_dirent64 */
    uint64_t inode;
    int64_t offset;
    uint16_t size;
    uint8_t kind;
    char name[];
};

const char *next_name(struct listing *listing) {
    for (;;) {
        if (listing->at >= listing->got) {
            listing->at = 0;
            listing->got =
                CALL3(__NR_getdents64, listing->fd, listing->buffer, sizeof listing->buffer);
            if (listing->got <= 0) return NULL;
        }
        const struct entry *entry = (const struct entry *)(listing->buffer + listing->at);
        listing->at += entry->size;
        if (!same(entry->name, ".") && !same(entry->name, "..")) return entry->name;
    }
}
