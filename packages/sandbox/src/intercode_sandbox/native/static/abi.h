/* Numbers and structures of the kernel that its headers for programs lack or leave to a C library.
 *
 * Names are the kernel's. Values are equal on x86-64 and aarch64, and never change: they are part
 * of the system call interface. System call numbers come from <asm/unistd.h>. */
#ifndef ABI_H
#define ABI_H

#include <asm/unistd.h>
#include <linux/fcntl.h>
#include <linux/landlock.h>
#include <linux/stat.h> /* before <stdint.h>: after glibc's it would define nothing */
#include <linux/uio.h>
#include <stddef.h>
#include <stdint.h>

/* -- numbers that old headers lack ------------------------------------------------------------- */

#ifndef __NR_openat2
#define __NR_openat2 437
#endif
#ifndef AT_FDCWD
#define AT_FDCWD (-100)
#endif
#ifndef AT_EMPTY_PATH
#define AT_EMPTY_PATH 0x1000
#endif
#ifndef AT_SYMLINK_NOFOLLOW
#define AT_SYMLINK_NOFOLLOW 0x100
#endif
#ifndef AT_REMOVEDIR
#define AT_REMOVEDIR 0x200
#endif
#ifndef LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
#define LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET (1ULL << 0)
#define LANDLOCK_SCOPE_SIGNAL (1ULL << 1)
#endif

enum {
    MAX_ERRNO = 4095,           /* a result from -4095 to -1 is an error, any other one a value */
    LANDLOCK_SCOPE_VERSION = 6, /* the first version with scopes: Linux 6.12 */
    MAX_CAPABILITY_BITS = 64,
};

/* -- files and memory -------------------------------------------------------------------------- */

enum {
    SEEK_SET = 0,
    SEEK_CUR = 1,
    SEEK_DATA = 3,
    SEEK_HOLE = 4,
    MNT_DETACH = 2,
    UTIME_NOW = (1 << 30) - 1, /* in place of nanoseconds: the present time */
    MODE_BITS = 07777,         /* a mode without the file's type */
    PROT_NONE = 0,
    PROT_READ = 1,
    PROT_WRITE = 2,
    MAP_SHARED = 1,
    MAP_PRIVATE = 2,
    MAP_ANONYMOUS = 0x20,
    MAP_NORESERVE = 0x4000,
};

/* An entry of getdents64: linux_dirent64. */
struct abi_dirent {
    uint64_t inode;
    int64_t offset;
    uint16_t size;
    uint8_t kind;
    char name[];
};

/* -- sockets ----------------------------------------------------------------------------------- */

enum {
    AF_UNIX = 1,
    AF_INET = 2,
    SOCK_STREAM = 1,
    SOCK_DGRAM = 2,
    SOCK_SEQPACKET = 5,
    SOCK_CLOEXEC = O_CLOEXEC,
    SOL_SOCKET = 1,
    SCM_RIGHTS = 1,
    MSG_CTRUNC = 8,
    MSG_NOSIGNAL = 0x4000,
    MSG_CMSG_CLOEXEC = 0x40000000,
    IFF_UP = 1,
    CMSG_HEADER_BYTES = 16, /* of a control message, before its data */
};

/* user_msghdr */
struct abi_msghdr {
    void *name;
    int name_bytes;
    struct iovec *parts;
    size_t count;
    void *control;
    size_t control_bytes;
    unsigned flags;
};

/* sockaddr_un */
struct abi_sockaddr_un {
    uint16_t family;
    char path[108];
};

/* ifreq, for the flags of an interface */
struct abi_ifreq {
    char name[16];
    short flags;
    char padding[22];
};

/* landlock_ruleset_attr, with the scopes of version 6 */
struct abi_landlock_ruleset {
    uint64_t files, ports, scopes;
};

/* -- signals and ends -------------------------------------------------------------------------- */

enum {
    SIGNALS = 64,
    SIGSET_BYTES = SIGNALS / 8,
    IPC_RMID = 0,
};

/* The kernel's sigaction; all zero is the default action. */
struct abi_sigaction {
    uint64_t fields[4];
};

/* The parts of a status of wait4. */
#define STATUS_SIGNAL(status) ((status) & 0x7f)    /* 0: the process has exited */
#define STATUS_CODE(status) ((status) >> 8 & 0xff) /* of an exit; of a stop, its signal */
#define STATUS_STOPPED(status) (((status) & 0xff) == 0x7f)

#endif
