/* Start-up of process 1 (`enter_`), from a fresh fork of the zygote to confinement. The order of
 * steps is the security.
 *
 * Mounts come first, while this process has privileges over its mount namespace. Then process 1
 * enters a user namespace that owns none of these mounts, and can never undo any of them.
 * Limits, capabilities, Landlock and the filter come last: each forbids calls of the steps
 * before it.
 *
 * Mounts, in the order of their steps. Their names are relative to the spawner's stage, which is
 * mounted on /dev/pts: the sandbox's mountinfo shows no path of the machine.
 *
 *   x        tmpfs of all files: u and w (upper, work), m (root), e (empty), f* s* l* r* i below
 *   e        read-only bind of x/e: covers hidden paths; carries the machine's resolv.conf
 *   d        tmpfs: the sandbox's /dev, with its own nodes (root) or binds (ordinary user)
 *   d/pts    devpts: 16 terminals
 *   p        proc, read-only, with masks from e; a second, writable one is mounted nowhere
 *   x        remounted with the request's size and inodes
 *   x/f0…    layers that were frozen before; x/…: id-mapped copies of image layers (root)
 *   x/s…     copies of files with special modes, as a layer of their own
 *   x/i      read-only overlay of the image's layers, if several: the base of comparisons
 *   o        x with ids mapped to the sandbox's (root): upper and work folder
 *   x/m      overlay of all layers: the root
 *   m        a folder of the machine's programs, moved into the root; one after the other
 *   x/l* x/r*  files mounted over loaders and linker scripts, if programs are private
 *   p        moved over the image's /proc
 *   d/shm    bind of the root's own /dev/shm folder
 *   d        moved over the image's /dev */
#include "sandbox.h"

#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/mount.h>
#include <linux/prctl.h>
#include <linux/resource.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <linux/sockios.h>

enum {
    NO_SUID_DEV = MS_NOSUID | MS_NODEV,
    NO_SUID_EXEC = MS_NOSUID | MS_NOEXEC,
    RESOLVER_BYTES = 65536,
    SPECIAL_BYTES = 16 << 20,
    FILE_BYTES = 4096, /* above the kernel's memory for an empty file with a long name */
    WALK_DESCRIPTORS = 5 * MAX_DEPTH, /* for each nested folder, and for programs */
    OWN_PROCESSES = 2,                /* process 1 and a program that it starts */
    /* The minimum left for the sandbox when frozen layers use up its quota. */
    MIN_BYTES = 1 << 18,
    MIN_FILES = 64,
    OPTIONS = 4096,
};

const char *enter_failed_call;

long enter_note(const char *call, long result) {
    if (result < 0 && !enter_failed_call) enter_failed_call = call;
    return result;
}

/* Returns a step's error from the function. */
#define MUST(step)                     \
    do {                               \
        long error_ = (step);          \
        if (error_ < 0) return error_; \
    } while (0)

/* -- the kernel's calls for mounts ------------------------------------------------------------ */

CHECKED static long mount(const char *source, const char *target, const char *kind,
                          unsigned long flags, const char *options) {
    static const char *const calls[] = {"mount overlay", "mount proc", "mount tmpfs",
                                        "mount devpts"};
    const char *called = "mount bind";
    for (int i = 0; kind && i < 4; i++)
        if (text_equal(calls[i] + 6, kind)) called = calls[i];
    return enter_note(called, CALL5(__NR_mount, source, target, kind, flags, options));
}

CHECKED static long open_tree_at(int folder, const char *path) {
    int flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (*path ? 0 : AT_EMPTY_PATH);
    return enter_note("open_tree", CALL3(__NR_open_tree, folder, path, flags));
}

CHECKED static long open_tree(const char *path) { return open_tree_at(AT_FDCWD, path); }

CHECKED static long move_mount(int tree, const char *target) {
    int flags = MOVE_MOUNT_F_EMPTY_PATH;
    return enter_note("move_mount", CALL5(__NR_move_mount, tree, "", AT_FDCWD, target, flags));
}

/* Moves a mount over a path of the image. The mount is a descriptor, or a name in the working
 * directory; `place` is a descriptor, because a name could lead out of the image. */
CHECKED static long cover_place(int tree, const char *mounted, int place) {
    int flags = MOVE_MOUNT_T_EMPTY_PATH | (*mounted ? 0 : MOVE_MOUNT_F_EMPTY_PATH);
    return enter_note("move_mount", CALL5(__NR_move_mount, tree, mounted, place, "", flags));
}

CHECKED static long map_ids(int tree, int namespace) {
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)namespace};
    long error = CALL5(__NR_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes);
    return enter_note("mount_setattr", error);
}

CHECKED static long make_folder(const char *path) {
    return enter_note("mkdir", CALL3(__NR_mkdirat, AT_FDCWD, path, 0777));
}

CHECKED static long make_empty(const char *path, int mode) {
    long fd = sys_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_CLOEXEC, mode);
    sys_close((int)fd);
    return enter_note("open", fd);
}

CHECKED static long set_owner(const char *path, uint32_t uid, uint32_t gid) {
    return enter_note("chown", CALL5(__NR_fchownat, AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW));
}

CHECKED static long set_mode(const char *path, uint32_t mode) {
    return enter_note("chmod", CALL3(__NR_fchmodat, AT_FDCWD, path, mode & MODE_BITS));
}

/* -- before the request ----------------------------------------------------------------------- */

static long raise_loopback(void) {
    struct abi_ifreq request = {.name = "lo"};
    long probe = enter_note("socket", CALL3(__NR_socket, AF_INET, SOCK_DGRAM, 0));
    MUST(probe);
    long error = enter_note("ioctl", CALL3(__NR_ioctl, probe, SIOCGIFFLAGS, &request));
    request.flags |= IFF_UP;
    if (!error) error = enter_note("ioctl", CALL3(__NR_ioctl, probe, SIOCSIFFLAGS, &request));
    sys_close((int)probe);
    return error;
}

static long copy_resolver(void) {
    static char servers[RESOLVER_BYTES];
    long nread = sys_read_text(AT_FDCWD, "/etc/resolv.conf", servers, sizeof servers);
    if (nread == -ENOENT) return 0;
    MUST(enter_note("read", nread));
    long copy = enter_note(
        "open", sys_open(AT_FDCWD, "x/e/resolv.conf", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    MUST(copy);
    long error = enter_note("write", sys_write_all((int)copy, servers, (size_t)nread));
    sys_close((int)copy);
    return error;
}

/* Mounts `e`, the read-only stand-in for hidden paths. Each sandbox has its own: file locks
 * belong to a file, whatever its name, and would be shared. */
static long mount_empty(bool network) {
    MUST(make_folder("x/e/folder"));
    MUST(make_empty("x/e/file", 0444));
    if (network) MUST(copy_resolver());
    MUST(mount("x/e", "e", NULL, MS_BIND, NULL));
    return mount("", "e", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | NO_SUID_DEV, NULL);
}

static const struct {
    const char *name;
    unsigned major, minor;
} devices[] = {{"null", 1, 3},   {"zero", 1, 5},    {"full", 1, 7},
               {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};
static const char *const device_links[][2] = {
    {"fd", "/proc/self/fd"},       {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"},
    {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"},
};
enum {
    DEVICES = sizeof devices / sizeof *devices,
    LINKS = sizeof device_links / sizeof *device_links
};

/* Mounts `d`, the sandbox's own /dev, which later becomes read-only.
 *
 * As root, nodes are made here: binds of the machine's nodes would share file locks between
 * sandboxes. An ordinary user cannot make nodes and gets binds. */
static long mount_devices(bool root) {
    MUST(mount("tmpfs", "d", "tmpfs", NO_SUID_EXEC, "size=1m,nr_inodes=4096,mode=755"));
    for (int i = 0; i < DEVICES; i++) {
        TEXT(path, 64);
        TEXT(source, 64);
        text_add(&path, "d/");
        text_add(&path, devices[i].name);
        text_add(&source, "/dev/");
        text_add(&source, devices[i].name);
        unsigned number = devices[i].major << 8 | devices[i].minor;
        if (root) {
            MUST(enter_note("mknod",
                            CALL4(__NR_mknodat, AT_FDCWD, path.start, S_IFCHR | 0666, number)));
        } else {
            MUST(make_empty(path.start, 0666));
            MUST(mount(source.start, path.start, NULL, MS_BIND, NULL));
        }
    }
    for (int i = 0; i < LINKS; i++) {
        TEXT(path, 64);
        text_add(&path, "d/");
        text_add(&path, device_links[i][0]);
        MUST(
            enter_note("symlink", CALL3(__NR_symlinkat, device_links[i][1], AT_FDCWD, path.start)));
    }
    MUST(make_folder("d/shm"));
    MUST(make_folder("d/pts"));
    /* The machine has some 3,000 terminals for all sandboxes together. */
    return mount("devpts", "d/pts", "devpts", NO_SUID_EXEC,
                 "newinstance,ptmxmode=0666,mode=620,max=16");
}

/* Mounts `p`, a read-only /proc without the machine's details. Returns a writable /proc that is
 * mounted nowhere. */
static long mount_processes(const struct machine *machine) {
    unsigned long flags = NO_SUID_DEV | MS_NOEXEC;
    MUST(mount("proc", "p", "proc", flags, NULL));
    long writable = open_tree("p");
    MUST(writable);
    MUST(mount("", "p", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | flags, NULL));
    for (struct value mask = msg_first(machine->masks); mask.start; mask = msg_next(mask)) {
        struct value name = msg_first(mask);
        TEXT(source, 64);
        TEXT(target, 64);
        text_add(&source, "e/");
        text_add(&source, msg_text(msg_next(name)));
        text_add(&target, "p/");
        text_add(&target, msg_text(name));
        MUST(mount(source.start, target.start, NULL, MS_BIND, NULL));
    }
    return writable;
}

/* Writes a limit of a namespace, through the sandbox's own /proc: through the machine's, the
 * kernel would search all namespaces for it. Older kernels refuse an ordinary user, and some
 * kernels lack the objects: both are no failure. */
CHECKED static long limit_namespace(bool root, int proc, const char *name, const char *value) {
    long error = sys_write_text(proc, name, value);
    if (error == -ENOENT || (!root && (error == -EACCES || error == -EPERM))) return 0;
    return enter_note("write sysctl", error);
}

/* Limits IPC objects, which outlive programs: enough room must remain for other sandboxes, and
 * one removal must reach all objects. */
CHECKED static long limit_shared(bool root, int proc) {
    static const char *const limits[][2] = {
        {"sys/kernel/msgmni", "64"},
        {"sys/kernel/shmmni", "128"},
        {"sys/kernel/sem", "32000 8192 500 128"},
        {"sys/fs/mqueue/queues_max", "16"},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        MUST(limit_namespace(root, proc, limits[i][0], limits[i][1]));
    return 0;
}

/* Raises the loopback of the sandbox's own network, and sets its limits. */
static long begin_network(bool root, int proc) {
    MUST(raise_loopback());
    /* With this range `ping` needs no capability, as on most machines today. A kernel may lack
     * the file. */
    ignore(sys_write_text(proc, "sys/net/ipv4/ping_group_range", root ? "0 2147483647" : "0 0"));
    /* The kernel leaves multicast groups one by one, under a lock of the machine. This limit
     * adds to the filter, which refuses the calls that join a group. */
    ignore(sys_write_text(proc, "sys/net/ipv4/igmp_max_memberships", "0"));
    return 0;
}

/* Excludes this process's memory from core dumps. Records the score by which the kernel chooses
 * processes to kill when memory is short, and opens its file for later changes. */
static long set_memory(struct sandbox *sandbox) {
    char text[16];
    const char *cursor = text;
    /* Core handlers get a dump in spite of the limit, since Linux 6.16 by a socket; with 0 it is
     * empty. */
    MUST(enter_note("write", sys_write_text(AT_FDCWD, "/proc/self/coredump_filter", "0")));
    long fd =
        enter_note("open", sys_open(AT_FDCWD, "/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC, 0));
    MUST(fd);
    long nread = CALL4(__NR_pread64, fd, text, sizeof text - 1, 0);
    text[nread > 0 ? nread : 0] = 0;
    bool negative = *cursor == '-';
    cursor += negative;
    sandbox->oom_score = (int)text_read_number(&cursor) * (negative ? -1 : 1);
    sandbox->oom_score_fd = (int)fd;
    return enter_note("read", nread < 0 ? nread : 0);
}

long enter_prepare(bool network, const struct machine *machine, struct sandbox *sandbox) {
    /* No umask: the steps below set exact modes. */
    MUST(enter_note("umask", CALL1(__NR_umask, 0)));
    MUST(enter_note("sethostname", CALL2(__NR_sethostname, "intercode", 9)));
    MUST(enter_note("chdir", CALL1(__NR_chdir, "/dev/pts")));
    /* `x` comes first: it holds the content of `e`. */
    MUST(mount("tmpfs", "x", "tmpfs", NO_SUID_DEV, "mode=755"));
    static const char *const folders[] = {"x/u", "x/w", "x/m", "x/e"};
    for (int i = 0; i < 4; i++) MUST(make_folder(folders[i]));
    /* `e` precedes `p`, whose masks are binds of it. */
    MUST(mount_empty(network));
    MUST(mount_devices(machine->root));
    long proc = mount_processes(machine);
    MUST(proc);
    sandbox->proc_fd = (int)proc;
    /* Limits follow `p`, whose writable copy they are written to. Privileges over the network
     * and IPC namespaces end with `leave_machine`. */
    if (!network) MUST(begin_network(machine->root, sandbox->proc_fd));
    MUST(limit_shared(machine->root, sandbox->proc_fd));
    return set_memory(sandbox);
}

/* -- files ------------------------------------------------------------------------------------ */

struct setup { /* the context of start-up */
    struct value plan;
    const struct machine *machine;
    struct sandbox *sandbox;
    int namespace; /* the user namespace, whose ids layers are mapped to if `root` */
    int merged;    /* the mounted root, in which the image's paths are opened */
    uint32_t first_id, own_id;
    bool root;
};

static int64_t plan_number(const struct setup *setup, const char *name) {
    return msg_number(msg_find(setup->plan, name), 0);
}

/* Whether a plan has all its fields: a missing one would limit or hide nothing. */
static bool is_complete(const struct setup *setup) {
    static const char *const limits[] = {"memory", "disk", "files", "processes", "open_files"};
    static const char *const numbers[] = {"used_bytes", "used_files", "shared_pages", "kept",
                                          "rights",     "filter",     "frozen",       "image",
                                          "first_id",   "own_id",     "private"};
    static const char *const lists[] = {"layers", "programs", "hide", "special", "user"};
    bool complete = setup->root == (setup->first_id > 0) && setup->root == (setup->own_id > 0);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        complete &= plan_number(setup, limits[i]) > 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        complete &= msg_number(msg_find(setup->plan, numbers[i]), -1) >= 0;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        complete &= msg_kind(msg_find(setup->plan, lists[i])) == 'L';
    return complete;
}

static long limit_files(const struct setup *setup) {
    /* Names and inodes count for the sandbox's memory, and a full disk must leave process 1
     * enough of it. */
    int64_t memory_files = plan_number(setup, "memory") / FILE_BYTES,
            files = plan_number(setup, "files");
    int64_t disk = plan_number(setup, "disk");
    int64_t used = plan_number(setup, "used_bytes"), used_files = plan_number(setup, "used_files");
    if (files > memory_files) files = memory_files;
    if (used || used_files) {
        files = files - used_files > MIN_FILES ? files - used_files : MIN_FILES;
        disk = disk - used > MIN_BYTES ? disk - used : MIN_BYTES;
    }
    TEXT(options, 96);
    text_add(&options, "size=");
    text_add_number(&options, disk);
    text_add(&options, ",nr_inodes=");
    text_add_number(&options, files);
    return mount("", "x", NULL, MS_REMOUNT | NO_SUID_DEV, options.start);
}

/* Mounts a detached mount at a new folder; as root, first maps its ids to the sandbox's. */
static long attach_mount(const struct setup *setup, int tree, const char *folder) {
    if (setup->root) MUST(map_ids(tree, setup->namespace));
    MUST(make_folder(folder));
    return move_mount(tree, folder);
}

/* As root, mounts a layer once more, with its files' ids mapped to the sandbox's. Writes the
 * relative name of this copy, or of the layer itself: the sandbox's mountinfo shows it. */
static long own_copy(const struct setup *setup, const char *name, struct text *copy) {
    if (!setup->root) {
        text_add(copy, name);
        return 0;
    }
    long tree = open_tree(name);
    MUST(tree);
    TEXT(folder, 64);
    text_add(&folder, "x/");
    text_add(&folder, name);
    long error = attach_mount(setup, (int)tree, folder.start);
    sys_close((int)tree);
    if (!error) text_add(copy, folder.start);
    return error;
}

static long mount_overlay(const struct setup *setup, const char *target, const char *layers,
                          const char *upper) {
    TEXT(options, OPTIONS);
    text_add(&options, "lowerdir=");
    text_add(&options, layers);
    text_add(&options, setup->root ? ",index=off,metacopy=off,redirect_dir=off" : ",userxattr");
    if (upper) {
        text_add(&options, ",upperdir=");
        text_add(&options, upper);
        text_add(&options, "/u,workdir=");
        text_add(&options, upper);
        text_add(&options, "/w");
    }
    if (options.cut) return enter_note("mount overlay", -E2BIG);
    return mount("overlay", target, "overlay", upper ? NO_SUID_DEV : NO_SUID_DEV | MS_RDONLY,
                 options.start);
}

static long dress(const char *path, const struct statx *status, uint32_t mode) {
    int64_t times[4] = {status->stx_atime.tv_sec, status->stx_atime.tv_nsec,
                        status->stx_mtime.tv_sec, status->stx_mtime.tv_nsec};
    MUST(set_owner(path, status->stx_uid, status->stx_gid));
    MUST(set_mode(path, mode));
    return enter_note("utimes", CALL4(__NR_utimensat, AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW));
}

static long copy_bytes(int source, const char *target) {
    static char block[65536];
    long copy = enter_note(
        "open", sys_open(AT_FDCWD, target, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
    MUST(copy);
    long nread, error = 0;
    while (!error && (nread = sys_read(source, block, sizeof block)) != 0)
        error = nread < 0 ? nread : sys_write_all((int)copy, block, (size_t)nread);
    sys_close((int)copy);
    return enter_note("copy", error);
}

/* Joins a folder and the first `end` bytes of a path in `name`. Returns where the path starts in
 * it, or an error. */
static long name_above(struct text *name, const char *folder, const char *path, size_t end) {
    text_add(name, folder);
    text_add(name, "/");
    size_t base = name->used;
    text_add(name, path);
    if (name->cut) return -ENAMETOOLONG;
    name->start[base + end] = 0;
    return (long)base;
}

/* Makes the folders above a file, the highest first. */
static long make_above(const char *folder, const char *path) {
    for (size_t end = 1; path[end]; end++) {
        if (path[end] != '/') continue;
        TEXT(parent, PATH_MAX);
        MUST(name_above(&parent, folder, path, end));
        long error = CALL3(__NR_mkdirat, AT_FDCWD, parent.start, 0777);
        if (error && error != -EEXIST) return enter_note("mkdir", error);
    }
    return 0;
}

/* Copies the metadata of the folders above a file from the layer, the deepest first. */
static long dress_above(int layer, const char *folder, const char *path) {
    struct statx status;
    for (size_t end = text_length(path); end > 0; end--) {
        if (path[end] != '/') continue;
        TEXT(parent, PATH_MAX);
        long base = name_above(&parent, folder, path, end);
        MUST(base);
        MUST(enter_note("stat", sys_stat(layer, parent.start + base, &status)));
        MUST(dress(parent.start, &status, status.stx_mode));
    }
    return 0;
}

static long copy_special(int layer, const char *folder, const char *path, uint32_t mode,
                         int64_t *room) {
    struct statx status;
    TEXT(target, PATH_MAX);
    long file = enter_note("open", sys_open_below(layer, path));
    MUST(file);
    long error = enter_note("stat", sys_stat_fd((int)file, &status));
    if (!error) *room -= (int64_t)status.stx_size;
    if (!error && *room >= 0) {
        text_add(&target, folder);
        text_add(&target, "/");
        text_add(&target, path);
        error = target.cut ? -ENAMETOOLONG : make_above(folder, path);
        if (!error) error = copy_bytes((int)file, target.start);
        if (!error) error = dress(target.start, &status, mode);
    }
    sys_close((int)file);
    return error;
}

/* Makes a layer with copies of some files of another layer, with modes that the machine's disk
 * must not have. Copies use the sandbox's own quota: beyond a quarter of it, or `SPECIAL_BYTES`,
 * files keep their plain modes. */
static long special_modes(const struct setup *setup, const char *folder, const char *copy,
                          struct value special) {
    int64_t room = plan_number(setup, "disk") / 4, count = plan_number(setup, "files") / 4,
            index = 0;
    if (room > SPECIAL_BYTES) room = SPECIAL_BYTES;
    MUST(make_folder(folder));
    long layer =
             enter_note("open", sys_open(AT_FDCWD, copy, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)),
         error = 0;
    MUST(layer);
    struct value item = msg_first(special);
    for (; item.start && !error && index < count; item = msg_next(item), index++) {
        struct value path = msg_first(item);
        error = copy_special((int)layer, folder, msg_text(path),
                             (uint32_t)msg_number(msg_next(path), 0), &room);
        if (room < 0) break;
    }
    for (item = msg_first(special); item.start && !error && index--; item = msg_next(item))
        error = dress_above((int)layer, folder, msg_text(msg_first(item)));
    struct statx status;
    if (!error) error = enter_note("stat", sys_stat((int)layer, ".", &status));
    if (!error) error = dress(folder, &status, status.stx_mode);
    sys_close((int)layer);
    return error;
}

struct layers { /* names, the topmost first, as overlayfs lists them */
    char bytes[OPTIONS];
    struct text names;
    int count;
    char top[64]; /* the first name */
};

static void begin_layers(struct layers *layers) {
    layers->names = text_init(layers->bytes, sizeof layers->bytes);
    layers->count = 0;
    layers->top[0] = 0;
}

static void add_layer(struct layers *layers, const char *name) {
    if (layers->count++) text_add(&layers->names, ":");
    text_add(&layers->names, name);
    if (layers->count == 1) {
        struct text top = text_init(layers->top, sizeof layers->top);
        text_add(&top, name);
    }
}

static struct value special_of(struct value plan, const char *name) {
    for (struct value item = msg_first(msg_find(plan, "special")); item.start;
         item = msg_next(item)) {
        struct value layer = msg_first(item);
        if (msg_text(layer) && text_equal(msg_text(layer), name)) return msg_next(layer);
    }
    return (struct value){0};
}

/* Mounts the frozen layers and those above the image (`over`), then the image's (`image`). A
 * layer with special modes gets a layer of copies above it. */
static long mount_layers(const struct setup *setup, struct message *message, int frozen_at,
                         struct layers *over, struct layers *image) {
    struct value names = msg_find(setup->plan, "layers");
    int64_t over_count = (int64_t)msg_count(names) - plan_number(setup, "image"), index = 0;
    int64_t frozen = plan_number(setup, "frozen");
    begin_layers(over);
    begin_layers(image);
    for (int64_t i = frozen - 1; i >= 0; i--) { /* the message has the lowest layer first */
        int tree = msg_take_fd(message, frozen_at + (int)i);
        TEXT(folder, 64);
        text_add(&folder, "x/f");
        text_add_number(&folder, i);
        MUST(attach_mount(setup, tree, folder.start));
        sys_close(tree);
        text_add(&folder, "/u");
        add_layer(over, folder.start);
    }
    for (struct value item = msg_first(names); item.start; item = msg_next(item), index++) {
        struct layers *layers = index < over_count ? over : image;
        const char *name = msg_text(item);
        TEXT(copy, 64);
        MUST(own_copy(setup, name, &copy));
        struct value special = special_of(setup->plan, name);
        if (special.start) {
            TEXT(folder, 64);
            text_add(&folder, "x/s");
            text_add(&folder, name);
            MUST(special_modes(setup, folder.start, copy.start, special));
            add_layer(layers, folder.start);
        }
        add_layer(layers, copy.start);
    }
    return over->names.cut || image->names.cut ? enter_note("mount overlay", -E2BIG) : 0;
}

/* Opens the folders with all changes, the topmost first. */
static long open_uppers(struct sandbox *sandbox, const char *own_files, const char *over) {
    TEXT(name, 64);
    text_add(&name, own_files);
    text_add(&name, "/u");
    for (;;) {
        if (sandbox->upper_count == MAX_UPPERS) return enter_note("open", -E2BIG);
        long fd = enter_note("open", sys_open(AT_FDCWD, name.start, FOLDER_FLAGS, 0));
        MUST(fd);
        sandbox->uppers[sandbox->upper_count++] = (int)fd;
        if (!*over) return 0;
        name.used = 0;
        while (*over && *over != ':' && name.used < name.size - 1)
            name.start[name.used++] = *over++;
        name.start[name.used] = 0;
        if (*over == ':') over++;
    }
}

/* Mounts `o`, as root: the sandbox's files with its own ids; on `x` their ids are the same for
 * all sandboxes. Returns the folder for the upper layer. `can_be_layer`: whether another sandbox
 * can use it as a layer, which as root needs Linux 6.3. */
static const char *own_files(const struct setup *setup, bool *can_be_layer) {
    *can_be_layer = true;
    if (!setup->root) return "x";
    long tree = open_tree("x");
    long error = tree < 0 ? tree : map_ids((int)tree, setup->namespace);
    if (!error) error = move_mount((int)tree, "o");
    sys_close((int)tree);
    if (error) {
        enter_failed_call = NULL;
        *can_be_layer = false;
        return "x";
    }
    return "o";
}

/* Overlayfs acts as the mounting process. On `o` its id must be one of the sandbox's. */
CHECKED static long own_files_inside(const struct setup *setup, const char *files_at) {
    uint64_t capabilities = (uint64_t)msg_number(msg_find(setup->plan, "rights"), 0);
    if (!text_equal(files_at, "o")) return 0;
    MUST(enter_note("setfsuid", user_set_file_ids(setup->first_id, setup->first_id)));
    return enter_note("capset", user_set_capabilities(capabilities, capabilities, 0));
}

/* Mounts `m`, a folder of the machine's programs, through an overlay with inodes of its own. A
 * watch, a lock or a lease on the machine's inodes would reach the machine and other sandboxes. */
static long mount_programs(const struct setup *setup, const char *name) {
    TEXT(layers, 128);
    if (own_copy(setup, name, &layers)) {
        /* Some file systems, such as a container's root, cannot be id-mapped. Root's files then
         * belong to `nobody`, which makes no other difference in a read-only tree. */
        enter_failed_call = NULL;
        layers = text_init(layers_bytes, sizeof layers_bytes);
        text_add(&layers, name);
    }
    text_add(&layers, ":e/folder");
    long error = mount_overlay(setup, "m", layers.start, NULL);
    if (error != -EINVAL || setup->root) return error;
    enter_failed_call = NULL;
    /* The kernel refuses an ordinary user a bind without the mounts below it. */
    return mount(name, "m", NULL, MS_BIND | MS_REC, NULL);
}

/* Opens a folder of the image for a mount. If the folder is missing, or is another type of file,
 * the reported call is `fault`, because the image is the cause. */
static long open_folder_of(const struct setup *setup, const char *fault, const char *name) {
    long place = sys_open_folder(setup->merged, name);
    bool is_unfit = place == -ELOOP || place == -ENOTDIR || place == -ENOENT;
    return enter_note(is_unfit ? fault : "openat2", place);
}

static long mount_all_programs(const struct setup *setup) {
    for (struct value item = msg_first(msg_find(setup->plan, "programs")); item.start;
         item = msg_next(item)) {
        struct value name = msg_first(item);
        long place = open_folder_of(setup, "image programs", msg_text(name));
        MUST(place);
        long error = mount_programs(setup, msg_text(msg_next(name)));
        if (!error) error = cover_place(AT_FDCWD, "m", (int)place);
        sys_close((int)place);
        MUST(error);
    }
    return 0;
}

static long hide_paths(const struct setup *setup) {
    for (struct value item = msg_first(msg_find(setup->plan, "hide")); item.start;
         item = msg_next(item)) {
        struct statx status;
        /* Links are followed as in a program: the target is hidden, wherever it is. */
        long place = sys_open_in_root(setup->merged, msg_text(item), O_PATH);
        if (place == -ENOENT || place == -ENOTDIR) continue;
        MUST(enter_note("open", place));
        long error = enter_note("stat", sys_stat_fd((int)place, &status));
        bool folder = (status.stx_mode & S_IFMT) == S_IFDIR;
        long tree = error ? error : open_tree(folder ? "e/folder" : "e/file");
        if (tree >= 0) error = cover_place((int)tree, "", (int)place);
        if (tree >= 0) sys_close((int)tree);
        sys_close((int)place);
        MUST(tree < 0 ? tree : error);
    }
    return 0;
}

/* -- private programs ------------------------------------------------------------------------- */

/* If a program may not read its own file or its loader, other programs can neither trace it nor
 * see it in this /proc. So a copy replaces each loader. Members of one group may execute the
 * copy, but not read it. An ordinary user has a single id: only a capability permits programs to
 * read the copy.
 *
 * The kernel finds a program's loader by itself, and libraries name it without opening it. Only
 * linkers read a loader, because glibc's script libc.so names it. The replaced script names a
 * readable copy in /dev. (musl's loader is the library itself, and stays.) */
static const char *const loaders[] = {
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux.so.2",
    "/lib/ld-linux-aarch64.so.1",
};
static const char *const scripts[] = {
    "/usr/lib/x86_64-linux-gnu/libc.so",
    "/usr/lib/aarch64-linux-gnu/libc.so",
    "/usr/lib/i386-linux-gnu/libc.so",
    "/usr/lib64/libc.so",
    "/usr/lib/libc.so",
    "/usr/lib32/libc.so",
};
enum {
    LOADERS = sizeof loaders / sizeof *loaders,
    SCRIPTS = sizeof scripts / sizeof *scripts,
    MAX_SCRIPT = 2048
};

/* Mounts a file over an open one, read-only for programs. */
static long mount_over(int file, const char *copy) {
    struct mount_attr attributes = {.attr_set =
                                        MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    int flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    long tree = open_tree(copy);
    MUST(tree);
    long error = CALL5(__NR_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes);
    if (!error) error = CALL5(__NR_move_mount, tree, "", file, "", flags);
    sys_close((int)tree);
    return enter_note("mount loader", error);
}

/* Opens a file of the image for reading; 0: no such file. */
static long open_of_image(int root, const char *path) {
    long file = sys_open_in_root(root, path, O_RDONLY | O_NONBLOCK);
    return file == -ENOENT || file == -ENOTDIR ? 0 : enter_note("open", file);
}

/* Writes the path of the loader's copy for linkers to `name`. */
static void copy_for_linkers(struct text *name, int loader) {
    text_add(name, "/loader");
    text_add_number(name, loader);
}

static long replace_loader(const struct setup *setup, int root, int number) {
    TEXT(private, 16);
    TEXT(readable, 16);
    long file = open_of_image(root, loaders[number]);
    if (file <= 0) return file;
    text_add(&private, "x/l");
    text_add_number(&private, number);
    text_add(&readable, "d");
    copy_for_linkers(&readable, number);
    long error = copy_bytes((int)file, private.start);
    if (!error) error = enter_note("seek", CALL3(__NR_lseek, file, 0, 0));
    if (!error) error = copy_bytes((int)file, readable.start);
    if (!error) error = set_mode(readable.start, 0644);
    /* As root, the copy's owner has no id in the sandbox: no capability of its programs covers
     * the file. */
    if (!error && setup->root) error = set_owner(private.start, 0, setup->first_id + PRIVATE_GROUP);
    if (!error) error = set_mode(private.start, setup->root ? 0715 : 0111);
    if (!error) error = mount_over((int)file, private.start);
    sys_close((int)file);
    return error;
}

static bool has_prefix(const char *text, const char *prefix) {
    while (*prefix && *text == *prefix) text++, prefix++;
    return !*prefix;
}

/* Replaces a linker script by one with the copies' paths. */
static long replace_script(int root, int number) {
    static char text[MAX_SCRIPT + 1];
    static char buffer[2 * MAX_SCRIPT];
    struct text edited = text_init(buffer, sizeof buffer);
    long file = open_of_image(root, scripts[number]);
    if (file <= 0) return file;
    long nread = sys_read((int)file, text, sizeof text), error = 0;
    if (nread >= 0 && nread <= MAX_SCRIPT) { /* a larger file is a library */
        text[nread] = 0;
        for (const char *cursor = text; *cursor;) {
            int loader = 0;
            while (loader < LOADERS && !has_prefix(cursor, loaders[loader])) loader++;
            if (loader < LOADERS) {
                text_add(&edited, "/dev");
                copy_for_linkers(&edited, loader);
                cursor += text_length(loaders[loader]);
            } else {
                const char character[2] = {*cursor++, 0};
                text_add(&edited, character);
            }
        }
        TEXT(private, 16);
        text_add(&private, "x/r");
        text_add_number(&private, number);
        long output = enter_note("open", sys_open(AT_FDCWD, private.start,
                                                  O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644));
        error = output < 0 ? output : sys_write_all((int)output, edited.start, edited.used);
        if (output >= 0) sys_close((int)output);
        if (!error) error = set_mode(private.start, 0644);
        if (!error) error = mount_over((int)file, private.start);
    }
    sys_close((int)file);
    return nread < 0 ? enter_note("read", nread) : error;
}

static long make_private(const struct setup *setup) {
    unsigned long flags = NO_SUID_DEV | MS_NOEXEC;
    TEXT(options, 64);
    text_add(&options, "hidepid=2");
    if (setup->root) { /* only process 1 has this group, and sees all processes */
        text_add(&options, ",gid=");
        text_add_number(&options, setup->own_id);
    }
    MUST(mount("proc", "p", NULL, MS_REMOUNT | flags, options.start));
    MUST(mount("", "p", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | flags, NULL));
    for (int i = 0; i < LOADERS; i++) MUST(replace_loader(setup, setup->merged, i));
    for (int i = 0; i < SCRIPTS; i++) MUST(replace_script(setup->merged, i));
    return 0;
}

/* Makes `shm` a folder in the image's /dev, replaces any other file there, and opens it. */
static long make_shared_memory(const struct setup *setup, int place) {
    struct statx status;
    long error = sys_stat(place, "shm", &status);
    if (!error && (status.stx_mode & S_IFMT) != S_IFDIR)
        MUST(enter_note("unlink", CALL3(__NR_unlinkat, place, "shm", 0)));
    error = CALL3(__NR_mkdirat, place, "shm", 0777);
    if (error && error != -EEXIST) return enter_note("mkdir", error);
    long folder = enter_note("open", sys_open(place, "shm", FOLDER_FLAGS, 0));
    MUST(folder);
    error = setup->root
                ? enter_note("chown", CALL3(__NR_fchown, folder, setup->first_id, setup->first_id))
                : 0;
    if (!error) error = enter_note("chmod", CALL2(__NR_fchmod, folder, 01777));
    if (error) sys_close((int)folder);
    return error ? error : folder;
}

/* Mounts `d/shm`, a folder among the sandbox's files: comparisons and snapshots cover it. */
static long mount_shared_memory(const struct setup *setup, int place) {
    long folder = make_shared_memory(setup, place);
    MUST(folder);
    long tree = open_tree_at((int)folder, "");
    long error = tree < 0 ? tree : move_mount((int)tree, "d/shm");
    if (tree >= 0) sys_close((int)tree);
    sys_close((int)folder);
    MUST(error);
    return mount("", "d/shm", NULL, MS_BIND | MS_REMOUNT | NO_SUID_EXEC, NULL);
}

static long own_devices(const struct setup *setup) {
    MUST(set_owner("d", setup->first_id, setup->first_id));
    for (int i = 0; i < DEVICES + LINKS; i++) {
        TEXT(path, 64);
        text_add(&path, "d/");
        text_add(&path, i < DEVICES ? devices[i].name : device_links[i - DEVICES][0]);
        MUST(set_owner(path.start, setup->first_id, setup->first_id));
    }
    return 0;
}

/* Mounts the machine's resolv.conf, a detached mount, after the change of root: links can no
 * longer lead out of the root. */
static long bind_resolver(int servers) {
    const char *path = "/etc/resolv.conf";
    struct statx status;
    sys_close((int)sys_open_plain(path, O_CREAT | O_WRONLY | O_NONBLOCK, 0644));
    /* The image may lack /etc, or have a loop or a link to a device there. */
    long target = sys_open_plain(path, O_PATH, 0), error = 0;
    if (target < 0) return 0;
    bool file = !sys_stat_fd((int)target, &status) && (status.stx_mode & S_IFMT) == S_IFREG;
    if (file) error = cover_place(servers, "", (int)target);
    sys_close((int)target);
    return error;
}

static long change_root(void) {
    long servers =
        CALL3(__NR_open_tree, AT_FDCWD, "e/resolv.conf", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (servers < 0 && servers != -ENOENT) return enter_note("open_tree", servers);
    /* pivot_root on one folder stacks the old root on the new one, where `.` names it: the
     * unmount removes it, and no path is left to the machine's files. A chroot could be left
     * again. */
    MUST(enter_note("chdir", CALL1(__NR_chdir, "x/m")));
    MUST(enter_note("pivot_root", CALL2(__NR_pivot_root, ".", ".")));
    MUST(enter_note("umount", CALL2(__NR_umount2, ".", MNT_DETACH)));
    MUST(enter_note("chdir", CALL1(__NR_chdir, "/")));
    long error = servers >= 0 ? bind_resolver((int)servers) : 0;
    sys_close((int)servers);
    return error;
}

static long send_files(int link, int files, bool can_be_layer) {
    struct reply reply;
    msg_begin(&reply);
    msg_put_open(&reply, 'M');
    msg_put_close(&reply);
    if (can_be_layer)
        msg_put_fd(&reply, files);
    else
        sys_close(files);
    return enter_note("send", msg_send(&reply, link));
}

/* Joins an image of several layers into one folder, the base of comparisons. */
static long join_image(const struct setup *setup, struct layers *image) {
    if (image->count < 2) return 0;
    MUST(make_folder("x/i"));
    MUST(mount_overlay(setup, "x/i", image->names.start, NULL));
    struct text top = text_init(image->top, sizeof image->top);
    text_add(&top, "x/i");
    return 0;
}

/* Mounts the file system and makes it the root. */
static long make_file_system(struct setup *setup, struct message *message, int frozen_at,
                             int link) {
    static struct layers over, image;
    static char all[OPTIONS];
    struct sandbox *sandbox = setup->sandbox;
    struct statx status;
    bool can_be_layer;
    /* The size comes first: layers of copies below fill `x`. */
    MUST(limit_files(setup));
    MUST(mount_layers(setup, message, frozen_at, &over, &image));
    struct text lower_dirs = text_init(all, sizeof all);
    text_add(&lower_dirs, over.names.start);
    if (over.count) text_add(&lower_dirs, ":");
    text_add(&lower_dirs, image.names.start);
    if (lower_dirs.cut) return enter_note("mount overlay", -E2BIG);
    /* The image, joined or one layer, is opened as the base of comparisons. Process 1 alone has
     * these descriptors: the folders have no path inside. */
    MUST(join_image(setup, &image));
    sandbox->lower = (int)enter_note("open", sys_open(AT_FDCWD, image.top, FOLDER_FLAGS, 0));
    MUST(sandbox->lower);
    MUST(enter_note("stat", sys_stat(AT_FDCWD, over.count ? over.top : image.top, &status)));
    /* This copy of `x` becomes the layer of a later sandbox, if this one is frozen. */
    long files = open_tree("x");
    MUST(files);
    /* The file ids of `o` precede the overlay, which keeps the credentials of its mount. */
    const char *files_at = own_files(setup, &can_be_layer);
    MUST(own_files_inside(setup, files_at));
    /* The root folder gets the owner and mode of the topmost layer's, before the overlay shows
     * it. */
    TEXT(upper, 16);
    text_add(&upper, files_at);
    text_add(&upper, "/u");
    MUST(set_owner(upper.start, status.stx_uid, status.stx_gid));
    MUST(set_mode(upper.start, status.stx_mode));
    /* Uppers are opened by their names here, which end with the change of root. */
    MUST(open_uppers(sandbox, files_at, over.names.start));
    MUST(mount_overlay(setup, "x/m", all, files_at));
    setup->merged = (int)enter_note("open", sys_open(AT_FDCWD, "x/m", FOLDER_FLAGS, 0));
    MUST(setup->merged);
    /* These places are opened before any mount in the image: a link of the image would lead this
     * process, which still has all privileges, to a folder of the machine. */
    long processes = open_folder_of(setup, "image /proc", "proc");
    MUST(processes);
    long devices_at = open_folder_of(setup, "image /dev", "dev");
    MUST(devices_at);
    MUST(mount_all_programs(setup));
    MUST(hide_paths(setup));
    /* Private programs need `p` by its name, and write to `d`: both moves follow. */
    if (plan_number(setup, "private")) MUST(make_private(setup));
    MUST(cover_place(AT_FDCWD, "p", (int)processes));
    if (setup->root) MUST(own_devices(setup));
    /* The copy has the overlay alone, without the mounts in it: walks see the sandbox's own
     * files. */
    sandbox->root = (int)open_tree("x/m");
    MUST(sandbox->root);
    /* `d/shm` precedes the move of `d`, which takes it along. */
    MUST(mount_shared_memory(setup, (int)devices_at));
    MUST(send_files(link, (int)files, can_be_layer));
    /* /dev becomes read-only: its files decide what a verification reads, and no comparison
     * covers them. */
    MUST(mount("", "d", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | NO_SUID_EXEC, NULL));
    MUST(cover_place(AT_FDCWD, "d", (int)devices_at));
    sys_close((int)devices_at);
    sys_close((int)processes);
    sys_close(setup->merged);
    return change_root();
}

/* -- limits and capabilities ------------------------------------------------------------------ */

static long set_limits(int resource, uint64_t soft, uint64_t hard) {
    struct rlimit64 limits;
    MUST(enter_note("prlimit", CALL4(__NR_prlimit64, 0, resource, 0, &limits)));
    if (hard > limits.rlim_max) hard = limits.rlim_max;
    if (soft > hard) soft = hard;
    limits = (struct rlimit64){soft, hard};
    return enter_note("prlimit", CALL4(__NR_prlimit64, 0, resource, &limits, 0));
}

static long set_limit(int resource, uint64_t maximum) {
    return set_limits(resource, maximum, maximum);
}

static long limit_all(const struct setup *setup) {
    uint64_t processes = (uint64_t)plan_number(setup, "processes");
    uint64_t open_files = (uint64_t)plan_number(setup, "open_files");
    uint64_t walk = WALK_DESCRIPTORS + ((uint64_t)setup->sandbox->upper_count - 1) * MAX_DEPTH;
    /* A core pattern with a pipe passes dumps to the machine's root, unless the limit is 1 byte. */
    MUST(set_limit(RLIMIT_CORE, 1));
    MUST(set_limit(RLIMIT_NICE, 0));
    MUST(set_limit(RLIMIT_RTPRIO, 0));
    /* An ordinary user's process 1 shares its id with its programs. In a container the engine
     * limits processes: a limit by user id would count the machine's. */
    if (!setup->sandbox->contained)
        MUST(set_limit(RLIMIT_NPROC,
                       (processes > 2 ? processes : 2) + (setup->own_id ? 0 : OWN_PROCESSES)));
    MUST(set_limit(RLIMIT_DATA, (uint64_t)plan_number(setup, "memory")));
    MUST(set_limit(RLIMIT_MEMLOCK, 1 << 20));
    MUST(set_limit(RLIMIT_MSGQUEUE, 1 << 20));
    MUST(set_limit(RLIMIT_SIGPENDING, 4096));
    MUST(set_limit(RLIMIT_FSIZE, (uint64_t)plan_number(setup, "disk")));
    /* The higher hard limit is for process 1's walks over nested folders. */
    return set_limits(RLIMIT_NOFILE, open_files, open_files > walk ? open_files : walk);
}

/* Limits kernel objects that count for a whole user namespace. An ordinary user's sandboxes
 * share that user's limits. */
static long limit_users(bool root, int proc) {
    static const char *const zero_limits[] = {
        "sys/user/max_user_namespaces",   "sys/user/max_pid_namespaces",
        "sys/user/max_uts_namespaces",    "sys/user/max_ipc_namespaces",
        "sys/user/max_net_namespaces",    "sys/user/max_mnt_namespaces",
        "sys/user/max_cgroup_namespaces", "sys/user/max_time_namespaces",
        "sys/user/max_fanotify_groups",   "sys/user/max_fanotify_marks",
    };
    for (size_t i = 0; i < sizeof zero_limits / sizeof *zero_limits; i++)
        MUST(limit_namespace(root, proc, zero_limits[i], "0"));
    MUST(limit_namespace(root, proc, "sys/user/max_inotify_instances", "16"));
    return limit_namespace(root, proc, "sys/user/max_inotify_watches", "8192");
}

/* Leaves the user namespace that owns the mounts, and takes process 1's own user. */
static long leave_machine(const struct setup *setup) {
    /* The cgroup namespace comes after the cgroup, which becomes its root. */
    MUST(enter_note("unshare", CALL1(__NR_unshare, CLONE_NEWCGROUP)));
    /* Groups precede the user: afterwards, this process may lack the privilege to set them. */
    if (setup->own_id) {
        MUST(enter_note("setgroups", CALL2(__NR_setgroups, 0, 0)));
        MUST(enter_note("setresgid",
                        CALL3(__NR_setresgid, setup->own_id, setup->own_id, setup->own_id)));
        MUST(enter_note("setresuid",
                        CALL3(__NR_setresuid, setup->own_id, setup->own_id, setup->own_id)));
    }
    /* The user namespace follows all mounts, and owns none of them: no capability in it can undo
     * one. */
    MUST(enter_note("setns", CALL2(__NR_setns, setup->namespace, CLONE_NEWUSER)));
    /* These limits are those of the namespace that this process has just entered. */
    MUST(limit_users(setup->root, setup->sandbox->proc_fd));
    /* The change of credentials has cleared the death signal, and may have allowed dumps. */
    return enter_note("prctl", user_protect_process(setup->sandbox));
}

/* Removes all capabilities except the plan's from programs; process 1 keeps all of its own. */
static long drop_capabilities(struct sandbox *sandbox) {
    uint64_t retained = sandbox->program_capabilities;
    MUST(enter_note("capget", user_get_permitted(&sandbox->capabilities)));
    /* The bounding set limits what any later execve can give to programs. */
    for (int capability = 0; capability < MAX_CAPABILITY_BITS; capability++) {
        long error =
            retained >> capability & 1 ? 0 : CALL2(__NR_prctl, PR_CAPBSET_DROP, capability);
        if (error == -EINVAL) break; /* beyond the kernel's last capability */
        MUST(enter_note("prctl", error));
    }
    MUST(enter_note("prctl",
                    CALL2(__NR_prctl, PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED)));
    MUST(enter_note("capset",
                    user_set_capabilities(sandbox->capabilities, sandbox->capabilities, retained)));
    /* Ambient capabilities follow capset: they must be permitted and inheritable. With NOROOT,
     * execve gives programs these alone. */
    for (int capability = 0; capability < MAX_CAPABILITY_BITS; capability++)
        if (retained >> capability & 1)
            MUST(enter_note("prctl", CALL5(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE,
                                           capability, 0, 0)));
    /* Landlock and seccomp need this, if the process has no CAP_SYS_ADMIN. */
    MUST(enter_note("prctl", CALL5(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)));
    return enter_note("prctl", user_protect_process(sandbox));
}

/* Restricts connections to abstract sockets and signals to this process's descendants, where the
 * kernel has Landlock scopes. */
static long scope_landlock(void) {
    const struct abi_landlock_ruleset rules = {
        .scopes = LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL,
    };
    long version = CALL3(__NR_landlock_create_ruleset, 0, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version == -ENOSYS || version == -EOPNOTSUPP) return 0; /* not built, or not enabled */
    MUST(enter_note("landlock", version));
    if (version < LANDLOCK_SCOPE_VERSION) return 0;
    long fd = enter_note("landlock", CALL3(__NR_landlock_create_ruleset, &rules, sizeof rules, 0));
    MUST(fd);
    long error = enter_note("landlock", CALL2(__NR_landlock_restrict_self, fd, 0));
    sys_close((int)fd);
    return error;
}

static long install_filter(const struct setup *setup) {
    int64_t index = plan_number(setup, "filter");
    if (index < 0 || index > 3) return enter_note("seccomp", -EINVAL);
    struct sock_fprog program = {
        .len = (unsigned short)(setup->machine->filters[index].count / sizeof(struct sock_filter)),
        .filter = (struct sock_filter *)(uintptr_t)setup->machine->filters[index].bytes,
    };
    return enter_note("seccomp", CALL3(__NR_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static long confine(const struct setup *setup) {
    /* Limits follow the change of user namespace: the kernel counts processes for each namespace,
     * and for its owner. */
    MUST(limit_all(setup));
    MUST(drop_capabilities(setup->sandbox));
    /* A container has its own namespaces, including the network's. */
    if (!setup->sandbox->contained) MUST(scope_landlock());
    /* The filter is the last restriction: it forbids calls of all steps before. */
    MUST(install_filter(setup));
    MUST(enter_note("umask", CALL1(__NR_umask, 022)));
    return 0;
}

long enter_sandbox(struct message *message, struct value plan, int link,
                   const struct machine *machine, struct sandbox *sandbox) {
    struct setup setup = {
        .plan = plan, .machine = machine, .sandbox = sandbox, .root = machine->root};
    setup.first_id = (uint32_t)plan_number(&setup, "first_id");
    setup.own_id = (uint32_t)plan_number(&setup, "own_id");
    if (!is_complete(&setup)) return enter_note("plan", -EINVAL);
    setup.namespace = msg_take_fd(message, 0);
    /* The lock stays open: it reserves the range of ids while this process runs. */
    if (setup.own_id) ignore(msg_take_fd(message, 1));
    /* Limits of the request, through the writable /proc, while privileges over its namespaces
     * last. */
    TEXT(pages, 32);
    text_add_number(&pages, plan_number(&setup, "shared_pages"));
    MUST(limit_namespace(setup.root, sandbox->proc_fd, "sys/kernel/shmall", pages.start));
    if (msg_is_true(msg_find(plan, "low_ports")))
        MUST(enter_note("write", sys_write_text(sandbox->proc_fd,
                                                "sys/net/ipv4/ip_unprivileged_port_start", "0")));
    sandbox->program_capabilities = (uint64_t)plan_number(&setup, "kept");
    sandbox->many_ids = machine->root;
    if (!user_parse(msg_find(plan, "user"), &sandbox->user)) return enter_note("user", -EINVAL);
    /* Mounts need the privileges that `leave_machine` gives up; `confine` forbids the calls of
     * both. */
    MUST(make_file_system(&setup, message, setup.own_id ? 2 : 1, link));
    MUST(leave_machine(&setup));
    sys_close(setup.namespace);
    return confine(&setup);
}

/* -- in a container --------------------------------------------------------------------------- */

long enter_count_ids(void) {
    char map[4096];
    const char *cursor = map;
    long nread = sys_read_text(AT_FDCWD, "/proc/self/uid_map", map, sizeof map), count = 0,
         number = 0;
    for (int field = 1; nread >= 0 && *cursor; field++) {
        while (*cursor == ' ' || *cursor == '\n') cursor++;
        number = text_read_number(&cursor);
        if (number >= 0 && field % 3 == 0) count += number;
        if (number < 0) break;
    }
    return enter_note("read", nread < 0 ? nread : count);
}

long enter_container(struct value plan, struct sandbox *sandbox) {
    struct machine machine = {0};
    struct setup setup = {.plan = plan, .machine = &machine, .sandbox = sandbox};
    machine.filters[0].bytes = msg_bytes(msg_find(plan, "code"), &machine.filters[0].count);
    bool complete = plan_number(&setup, "memory") > 0 && plan_number(&setup, "disk") > 0 &&
                    plan_number(&setup, "open_files") > 0 &&
                    msg_number(msg_find(plan, "kept"), -1) >= 0;
    if (!complete || !machine.filters[0].bytes ||
        !user_parse(msg_find(plan, "user"), &sandbox->user))
        return enter_note("plan", -EINVAL);
    sandbox->program_capabilities = (uint64_t)plan_number(&setup, "kept");
    MUST(enter_note("setgroups", CALL2(__NR_setgroups, 0, 0)));
    MUST(set_memory(sandbox));
    long ids = enter_count_ids();
    MUST(ids);
    sandbox->many_ids = ids > 1;
    sandbox->peak_fd = -1;
    sandbox->proc_fd = (int)enter_note("open", sys_open(AT_FDCWD, "/proc", FOLDER_FLAGS, 0));
    MUST(sandbox->proc_fd);
    sandbox->root = (int)enter_note("open", sys_open(AT_FDCWD, "/", FOLDER_FLAGS, 0));
    MUST(sandbox->root);
    sandbox->uppers[sandbox->upper_count++] = sandbox->root;
    return confine(&setup);
}
