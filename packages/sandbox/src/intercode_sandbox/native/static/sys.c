#include "sys.h"

#include <linux/openat2.h>
#include <linux/time.h>

long sys_call(long number, long a, long b, long c, long d, long e, long f) {
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

_Noreturn void sys_exit(int status) {
    ignore(CALL1(__NR_exit_group, status)); /* does not return, */
    ignore(CALL1(__NR_exit, status)); /* unless a filter of the machine refuses the first call */
    __builtin_trap();
}

/* -- a stack ---------------------------------------------------------------------------------- */

enum {
    STACK_BYTES = 16 << 20, /* twice the deepest walk's need: 1200 folders, 7 KiB each */
    GUARD_BYTES = 1 << 16,
};

void sys_call_on_stack(void *top, void (*run)(void *), void *context)
    __attribute__((visibility("hidden")));
__asm__(".text\n.hidden sys_call_on_stack\n.global sys_call_on_stack\n"
        ".type sys_call_on_stack, %function\nsys_call_on_stack:\n"
#if defined(__x86_64__)
        "push %rbp\nmov %rsp, %rbp\nmov %rdi, %rsp\nmov %rdx, %rdi\ncall *%rsi\n"
        "mov %rbp, %rsp\npop %rbp\nret\n"
#else
        "stp x29, x30, [sp, #-16]!\nmov x29, sp\nmov sp, x0\nmov x0, x2\nblr x1\n"
        "mov sp, x29\nldp x29, x30, [sp], #16\nret\n"
#endif
);

long sys_map_shared(size_t bytes) {
    return CALL6(__NR_mmap, 0, bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

long sys_run_on_stack(void (*run)(void *), void *context) {
    long address = sys_map_shared(STACK_BYTES);
    if (address < 0) return address;
    long error = CALL3(__NR_mprotect, address, GUARD_BYTES, PROT_NONE);
    if (!error) sys_call_on_stack((char *)address + STACK_BYTES, run, context);
    /* A failed unmap costs only the sandbox's memory. */
    ignore(CALL2(__NR_munmap, address, STACK_BYTES));
    return error;
}

/* -- files ----------------------------------------------------------------------------------- */

long sys_open(int folder, const char *path, int flags, int mode) {
    return CALL4(__NR_openat, folder, path, flags, mode);
}

static long open_resolved(int folder, const char *path, int flags, int mode, uint64_t resolve) {
    struct open_how options = {.flags = (uint64_t)(flags | O_CLOEXEC), .resolve = resolve};
    if (flags & O_CREAT) options.mode = (uint64_t)mode;
    long fd;
    do fd = CALL4(__NR_openat2, folder, path, &options, sizeof options);
    while (fd == -EINTR);
    return fd;
}

long sys_open_plain(const char *path, int flags, int mode) {
    return open_resolved(AT_FDCWD, path, flags, mode, RESOLVE_NO_MAGICLINKS);
}

long sys_open_below(int folder, const char *path) {
    uint64_t resolve = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH;
    return open_resolved(folder, path, O_RDONLY | O_NONBLOCK, 0, resolve);
}

long sys_open_in_root(int root, const char *path, int flags) {
    return open_resolved(root, path, flags, 0, RESOLVE_NO_MAGICLINKS | RESOLVE_IN_ROOT);
}

long sys_open_folder(int root, const char *name) {
    uint64_t resolve = RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT;
    return open_resolved(root, name, O_PATH | O_DIRECTORY, 0, resolve);
}

long sys_stat(int folder, const char *name, struct statx *status) {
    int flags = AT_SYMLINK_NOFOLLOW;
    return CALL5(__NR_statx, folder, name, flags, STATX_BASIC_STATS, status);
}

long sys_stat_fd(int fd, struct statx *status) {
    return CALL5(__NR_statx, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, status);
}

uint64_t sys_device_number(const struct statx *status) {
    return (uint64_t)status->stx_dev_major << 32 | status->stx_dev_minor;
}

void sys_close(int fd) {
    /* An error, too, frees the number. No program gets a descriptor that is not meant for it. */
    if (fd >= 0) ignore(CALL1(__NR_close, fd));
}

/* Closes the descriptors from `first` on that /proc lists, in one pass. Returns their number or
 * an error. */
static long close_listed(int first) {
    struct listing fds = {.fd = (int)sys_open(AT_FDCWD, "/proc/self/fd", FOLDER_FLAGS, 0)};
    long count = 0, error = 0;
    const char *name;
    if (fds.fd < 0) return fds.fd;
    while (!error && (name = sys_next_name(&fds))) {
        long fd = text_read_number(&name);
        if (fd < first || fd == fds.fd) continue;
        error = CALL1(__NR_close, fd);
        count++;
    }
    sys_close(fds.fd);
    return error ? error : fds.result < 0 ? fds.result : count;
}

long sys_close_from(int first) {
    long error = CALL3(__NR_close_range, first, ~0U, 0);
    if (error != -ENOSYS && error != -EPERM) return error;
    /* The kernel is older than Linux 5.9, or a filter refuses close_range. A changing folder
     * lists some entries only in a later pass. */
    do error = close_listed(first);
    while (error > 0);
    return error;
}

long sys_read(int fd, void *buffer, size_t count) {
    long nread;
    do nread = CALL3(__NR_read, fd, buffer, count);
    while (nread == -EINTR);
    return nread;
}

long sys_write(int fd, const void *bytes, size_t count) {
    long nwritten;
    do nwritten = CALL3(__NR_write, fd, bytes, count);
    while (nwritten == -EINTR);
    return nwritten;
}

long sys_write_all(int fd, const void *bytes, size_t count) {
    const char *cursor = bytes;
    while (count) {
        long nwritten = sys_write(fd, cursor, count);
        if (nwritten < 0) return nwritten;
        cursor += nwritten;
        count -= (size_t)nwritten;
    }
    return 0;
}

long sys_write_text(int folder, const char *path, const char *text) {
    long fd = sys_open(folder, path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) return fd;
    long nwritten = sys_write((int)fd, text, text_length(text));
    sys_close((int)fd);
    return nwritten < 0 ? nwritten : 0;
}

long sys_read_text(int folder, const char *path, char *buffer, size_t size) {
    buffer[0] = 0;
    long fd = sys_open(folder, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return fd;
    size_t used = 0;
    long nread = 0;
    while (used + 1 < size && (nread = sys_read((int)fd, buffer + used, size - used - 1)) > 0)
        used += (size_t)nread;
    sys_close((int)fd);
    buffer[used] = 0;
    return nread < 0 ? nread : (long)used;
}

int64_t sys_milliseconds(void) {
    struct __kernel_timespec time = {0};
    /* Without a clock, no deadline would ever pass. */
    if (CALL2(__NR_clock_gettime, CLOCK_MONOTONIC, &time)) sys_exit(1);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

void sys_sleep_us(long microseconds) {
    struct __kernel_timespec wait = {.tv_nsec = microseconds * 1000};
    /* A shorter sleep is harmless: each waiting loop has a deadline. */
    ignore(CALL2(__NR_nanosleep, &wait, 0));
}

const char *sys_next_name(struct listing *listing) {
    for (;;) {
        if (listing->position >= listing->result) {
            listing->position = 0;
            listing->result =
                CALL3(__NR_getdents64, listing->fd, listing->buffer, sizeof listing->buffer);
            if (listing->result <= 0) return NULL;
        }
        const struct abi_dirent *entry =
            (const struct abi_dirent *)(listing->buffer + listing->position);
        listing->position += entry->size;
        if (!text_equal(entry->name, ".") && !text_equal(entry->name, "..")) return entry->name;
    }
}
