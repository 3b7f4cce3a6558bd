/* From a fresh fork of the zygote to process 1 of a sandbox: the order of steps is the security.
 *
 * The mounts are made while this process still has rights over its mount namespace; then it enters
 * a user namespace that owns none of what was set up before, and can never undo any of it. */
#include "inside.h"

#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/mount.h>
#include <linux/prctl.h>
#include <linux/resource.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>

enum {
    QUIET = MS_NOSUID | MS_NODEV,
    DEVICES_QUIET = MS_NOSUID | MS_NOEXEC,
    DETACH = 2, /* MNT_DETACH */
    RESOLVER_BYTES = 65536,
    SPECIAL_BYTES = 16 << 20,
    FILE_BYTES = 4096, /* more than what the kernel keeps of an empty file with a long name */
    FILES_OF_A_WALK = 5 * MAX_DEPTH, /* for each folder that is nested, and those of programs */
    OWN_THREADS = 2, /* process 1, and a program that it is just starting */
    LEAST_BYTES = 1 << 18, /* that there is room for also where frozen layers fill all that may be */
    LEAST_FILES = 64,
    OPTIONS = 4096,
    MOST_LAYERS = 512,
};

const char *failed_call;

long noted(const char *call, long result) {
    if (result < 0 && !failed_call) failed_call = call;
    return result;
}

/* Ends the function with the error of a step, if it has one. */
#define MUST(step)                        \
    do {                                  \
        long failed_ = (step);            \
        if (failed_ < 0) return failed_;  \
    } while (0)

/* -- the kernel's calls for mounts ------------------------------------------------------------ */

CHECKED static long mount(const char *source, const char *target, const char *kind, unsigned long flags,
                  const char *options) {
    static const char *const calls[] = {"mount overlay", "mount proc", "mount tmpfs", "mount devpts"};
    const char *called = "mount bind";
    for (int i = 0; kind && i < 4; i++)
        if (same(calls[i] + 6, kind)) called = calls[i];
    return noted(called, CALL5(__NR_mount, source, target, kind, flags, options));
}

CHECKED static long open_tree_at(int folder, const char *path) {
    int flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (*path ? 0 : AT_EMPTY_PATH);
    return noted("open_tree", CALL3(__NR_open_tree, folder, path, flags));
}

CHECKED static long open_tree(const char *path) { return open_tree_at(AT_FDCWD, path); }

CHECKED static long move_mount(int tree, const char *target) {
    int flags = MOVE_MOUNT_F_EMPTY_PATH;
    return noted("move_mount", CALL5(__NR_move_mount, tree, "", AT_FDCWD, target, flags));
}

/* Moves a mount, by its descriptor or by its name on the stage, over what an image has: `place` is a
 * descriptor of that, as a name could lead out of the image. */
CHECKED static long cover(int tree, const char *mounted, int place) {
    int flags = MOVE_MOUNT_T_EMPTY_PATH | (*mounted ? 0 : MOVE_MOUNT_F_EMPTY_PATH);
    return noted("move_mount", CALL5(__NR_move_mount, tree, mounted, place, "", flags));
}

CHECKED static long map_ids(int tree, int namespace) {
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)namespace};
    long failed = CALL5(__NR_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes);
    return noted("mount_setattr", failed);
}

CHECKED static long make_folder(const char *path) { return noted("mkdir", CALL3(__NR_mkdirat, AT_FDCWD, path, 0777)); }

CHECKED static long make_empty(const char *path, int mode) {
    long fd = open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_CLOEXEC, mode);
    close_fd((int)fd);
    return noted("open", fd);
}

CHECKED static long own(const char *path, uint32_t uid, uint32_t gid) {
    return noted("chown", CALL5(__NR_fchownat, AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW));
}

CHECKED static long set_mode(const char *path, uint32_t mode) {
    return noted("chmod", CALL3(__NR_fchmodat, AT_FDCWD, path, mode & 07777));
}

/* -- before it is known what for ---------------------------------------------------------------- */

static long raise_loopback(void) {
    struct {
        char name[16];
        short flags;
        char rest[22];
    } request = {.name = "lo"};
    long probe = noted("socket", CALL3(__NR_socket, 2 /* AF_INET */, 2 /* DGRAM */, 0));
    MUST(probe);
    long failed = noted("ioctl", CALL3(__NR_ioctl, probe, 0x8913 /* SIOCGIFFLAGS */, &request));
    request.flags |= 1; /* IFF_UP */
    if (!failed) failed = noted("ioctl", CALL3(__NR_ioctl, probe, 0x8914 /* SIOCSIFFLAGS */, &request));
    close_fd((int)probe);
    return failed;
}

static long copy_resolver(void) {
    static char servers[RESOLVER_BYTES];
    long got = read_text(AT_FDCWD, "/etc/resolv.conf", servers, sizeof servers);
    if (got == -ENOENT) return 0;
    MUST(noted("read", got));
    long copy = noted("open", open_at(AT_FDCWD, "x/e/resolv.conf", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    MUST(copy);
    long failed = noted("write", write_all((int)copy, servers, (size_t)got));
    close_fd((int)copy);
    return failed;
}

/* Mounts `e`, which cannot be written: what stands for things that are not to be seen.
 *
 * It is the sandbox's own, as file locks are of a file and not of its name. */
static long mount_empty(bool network) {
    MUST(make_folder("x/e/folder"));
    MUST(make_empty("x/e/file", 0444));
    if (network) MUST(copy_resolver());
    MUST(mount("x/e", "e", NULL, MS_BIND, NULL));
    return mount("", "e", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | QUIET, NULL);
}

static const struct {
    const char *name;
    unsigned major, minor;
} devices[] = {{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};
static const char *const device_links[][2] = {
    {"fd", "/proc/self/fd"},         {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"},
    {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"},
};
enum { DEVICES = sizeof devices / sizeof *devices, LINKS = sizeof device_links / sizeof *device_links };

/* Mounts `d`, a /dev of the sandbox's own, which will be for reading only.
 *
 * As root its nodes are made here: a bind of the machine's would share file locks between
 * sandboxes. An ordinary user cannot make nodes and gets the binds. */
static long mount_devices(bool root) {
    MUST(mount("tmpfs", "d", "tmpfs", DEVICES_QUIET, "size=1m,nr_inodes=4096,mode=755"));
    for (int i = 0; i < DEVICES; i++) {
        TEXT(path, 64);
        TEXT(source, 64);
        add(&path, "d/");
        add(&path, devices[i].name);
        add(&source, "/dev/");
        add(&source, devices[i].name);
        unsigned number = devices[i].major << 8 | devices[i].minor;
        if (root) {
            MUST(noted("mknod", CALL4(__NR_mknodat, AT_FDCWD, path.at, S_IFCHR | 0666, number)));
        } else {
            MUST(make_empty(path.at, 0666));
            MUST(mount(source.at, path.at, NULL, MS_BIND, NULL));
        }
    }
    for (int i = 0; i < LINKS; i++) {
        TEXT(path, 64);
        add(&path, "d/");
        add(&path, device_links[i][0]);
        MUST(noted("symlink", CALL3(__NR_symlinkat, device_links[i][1], AT_FDCWD, path.at)));
    }
    MUST(make_folder("d/shm"));
    MUST(make_folder("d/pts"));
    /* The machine has some 3,000 terminals for all sandboxes together. */
    return mount("devpts", "d/pts", "devpts", DEVICES_QUIET, "newinstance,ptmxmode=0666,mode=620,max=16");
}

/* Mounts `p`, a /proc for reading only, without what tells of the machine; returns one that can be
 * written, and is mounted nowhere. */
static long mount_processes(const struct machine *machine) {
    unsigned long flags = QUIET | MS_NOEXEC;
    MUST(mount("proc", "p", "proc", flags, NULL));
    long writable = open_tree("p");
    MUST(writable);
    MUST(mount("", "p", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | flags, NULL));
    for (struct value mask = first_of(machine->masks); mask.at; mask = after(mask)) {
        struct value name = first_of(mask);
        TEXT(source, 64);
        TEXT(target, 64);
        add(&source, "e/");
        add(&source, text_of(after(name)));
        add(&target, "p/");
        add(&target, text_of(name));
        MUST(mount(source.at, target.at, NULL, MS_BIND, NULL));
    }
    return writable;
}

/* Writes a limit of the namespace's, by the sandbox's own /proc: in the machine's, the kernel looks for it
 * among those of all namespaces. Older kernels do not let an ordinary user, and a kernel without
 * such objects has none. */
CHECKED static long limit_namespace(bool root, int proc, const char *name, const char *value) {
    long failed = write_text(proc, name, value);
    if (failed == -ENOENT || (!root && (failed == -EACCES || failed == -EPERM))) return 0;
    return noted("write sysctl", failed);
}

/* What programs leave there outlives them: it must leave room for others, and be few enough to be
 * removed at once. */
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

/* Raises the loopback of the sandbox's own network, and limits what programs do with it. */
static long begin_network(bool root, int proc) {
    MUST(raise_loopback());
    /* So that `ping` needs no capability, as on most machines today: a kernel may have none. */
    ignore(write_text(proc, "sys/net/ipv4/ping_group_range", root ? "0 2147483647" : "0 0"));
    /* The kernel leaves groups one by one, under a lock of the machine: this is beside the filter,
     * which refuses to join one. */
    ignore(write_text(proc, "sys/net/ipv4/igmp_max_memberships", "0"));
    return 0;
}

/* Settles what the kernel does with this process's memory: in a dump, and where there is too little. */
static long set_memory(struct inside *inside) {
    char text[16];
    const char *at = text;
    /* What handlers of cores get in spite of the limit, by a socket since Linux 6.16, is empty. */
    MUST(noted("write", write_text(AT_FDCWD, "/proc/self/coredump_filter", "0")));
    long fd = noted("open", open_at(AT_FDCWD, "/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC, 0));
    MUST(fd);
    long got = CALL4(__NR_pread64, fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = 0;
    bool negative = *at == '-';
    at += negative;
    inside->score = (int)number_at(&at) * (negative ? -1 : 1);
    inside->score_fd = (int)fd;
    return noted("read", got < 0 ? got : 0);
}

long prepare(bool network, const struct machine *machine, struct inside *inside) {
    MUST(noted("umask", CALL1(__NR_umask, 0)));
    MUST(noted("sethostname", CALL2(__NR_sethostname, "intercode", 9)));
    MUST(noted("chdir", CALL1(__NR_chdir, "/dev/pts")));
    MUST(mount("tmpfs", "x", "tmpfs", QUIET, "mode=755"));
    static const char *const folders[] = {"x/u", "x/w", "x/m", "x/e"};
    for (int i = 0; i < 4; i++) MUST(make_folder(folders[i]));
    MUST(mount_empty(network));
    MUST(mount_devices(machine->root));
    long proc = mount_processes(machine);
    MUST(proc);
    inside->proc = (int)proc;
    if (!network) MUST(begin_network(machine->root, inside->proc));
    MUST(limit_shared(machine->root, inside->proc));
    return set_memory(inside);
}

/* -- files ---------------------------------------------------------------------------------------- */

struct entry { /* what entering needs to know */
    struct value plan;
    const struct machine *machine;
    struct inside *inside;
    int namespace; /* the user namespace; ids are mapped by it if `root` */
    int merged;    /* the image with the sandbox's files over it: its places are opened in it */
    uint32_t first, own;
    bool root;
};

static int64_t planned(const struct entry *entry, const char *name) {
    return number_of(find(entry->plan, name), 0);
}

/* Whether a plan says all that there is to say: what is missing would limit or hide nothing. */
static bool is_whole(const struct entry *entry) {
    static const char *const limits[] = {"memory", "disk", "files", "processes", "open_files"};
    static const char *const numbers[] = {"used_bytes", "used_files", "shared_pages", "kept", "rights",
                                          "filter", "frozen", "image", "first_id", "own_id",
                                          "private"};
    static const char *const lists[] = {"layers", "programs", "hide", "special", "user"};
    bool whole = entry->root == (entry->first > 0) && entry->root == (entry->own > 0);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) whole &= planned(entry, limits[i]) > 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        whole &= number_of(find(entry->plan, numbers[i]), -1) >= 0;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        whole &= kind_of(find(entry->plan, lists[i])) == 'L';
    return whole;
}

static long limit_files(const struct entry *entry) {
    /* Names and inodes count for the sandbox's memory, of which process 1 must find some left, also
     * when the disk is full. */
    int64_t memory_files = planned(entry, "memory") / FILE_BYTES, files = planned(entry, "files");
    int64_t disk = planned(entry, "disk");
    int64_t used = planned(entry, "used_bytes"), used_files = planned(entry, "used_files");
    if (files > memory_files) files = memory_files;
    if (used || used_files) {
        files = files - used_files > LEAST_FILES ? files - used_files : LEAST_FILES;
        disk = disk - used > LEAST_BYTES ? disk - used : LEAST_BYTES;
    }
    TEXT(options, 96);
    add(&options, "size=");
    add_number(&options, disk);
    add(&options, ",nr_inodes=");
    add_number(&options, files);
    return mount("", "x", NULL, MS_REMOUNT | QUIET, options.at);
}

/* Mounts a detached mount in a new folder; as root with ids mapped to the sandbox's own. */
static long attach(const struct entry *entry, int tree, const char *folder) {
    if (entry->root) MUST(map_ids(tree, entry->namespace));
    MUST(make_folder(folder));
    return move_mount(tree, folder);
}

/* Mounts a layer once more; as root with its files' ids mapped to the sandbox's own. Writes its
 * relative name, which shows in the sandbox's list of mounts. */
static long own_copy(const struct entry *entry, const char *name, struct text *copy) {
    if (!entry->root) {
        add(copy, name);
        return 0;
    }
    long tree = open_tree(name);
    MUST(tree);
    TEXT(folder, 64);
    add(&folder, "x/");
    add(&folder, name);
    long failed = attach(entry, (int)tree, folder.at);
    close_fd((int)tree);
    if (!failed) add(copy, folder.at);
    return failed;
}

static long overlay(const struct entry *entry, const char *target, const char *layers, const char *upper) {
    TEXT(options, OPTIONS);
    add(&options, "lowerdir=");
    add(&options, layers);
    add(&options, entry->root ? ",index=off,metacopy=off,redirect_dir=off" : ",userxattr");
    if (upper) {
        add(&options, ",upperdir=");
        add(&options, upper);
        add(&options, "/u,workdir=");
        add(&options, upper);
        add(&options, "/w");
    }
    if (options.cut) return noted("mount overlay", -E2BIG);
    return mount("overlay", target, "overlay", upper ? QUIET : QUIET | MS_RDONLY, options.at);
}

static long dress(const char *path, const struct statx *status, uint32_t mode) {
    int64_t times[4] = {status->stx_atime.tv_sec, status->stx_atime.tv_nsec, status->stx_mtime.tv_sec,
                        status->stx_mtime.tv_nsec};
    MUST(own(path, status->stx_uid, status->stx_gid));
    MUST(set_mode(path, mode));
    return noted("utimes", CALL4(__NR_utimensat, AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW));
}

static long copy_bytes(int from, const char *to) {
    static char block[65536];
    long copy = noted("open", open_at(AT_FDCWD, to, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
    MUST(copy);
    long got, failed = 0;
    while (!failed && (got = read_fd(from, block, sizeof block)) != 0)
        failed = got < 0 ? got : write_all((int)copy, block, (size_t)got);
    close_fd((int)copy);
    return noted("copy", failed);
}

/* Names the folder of `folder` that the first `end` bytes of a path lead to: where in `named` the path
 * begins, or an error. */
static long name_above(struct text *named, const char *folder, const char *path, size_t end) {
    add(named, folder);
    add(named, "/");
    size_t base = named->used;
    add(named, path);
    if (named->cut) return -ENAMETOOLONG;
    named->at[base + end] = 0;
    return (long)base;
}

/* Makes the folders above a file, the highest first. */
static long make_above(const char *folder, const char *path) {
    for (size_t end = 1; path[end]; end++) {
        if (path[end] != '/') continue;
        TEXT(each, PATH_MAX);
        MUST(name_above(&each, folder, path, end));
        long made = CALL3(__NR_mkdirat, AT_FDCWD, each.at, 0777);
        if (made && made != -EEXIST) return noted("mkdir", made);
    }
    return 0;
}

/* Gives the folders above a file what they have in the layer, the deepest first. */
static long dress_above(int layer, const char *folder, const char *path) {
    struct statx status;
    for (size_t end = length(path); end > 0; end--) {
        if (path[end] != '/') continue;
        TEXT(each, PATH_MAX);
        long base = name_above(&each, folder, path, end);
        MUST(base);
        MUST(noted("stat", status_of(layer, each.at + base, &status)));
        MUST(dress(each.at, &status, status.stx_mode));
    }
    return 0;
}

static long copy_special(int layer, const char *folder, const char *path, uint32_t mode, int64_t *room) {
    struct statx status;
    TEXT(target, PATH_MAX);
    long file = noted("open", open_below(layer, path));
    MUST(file);
    long failed = noted("stat", status_of_fd((int)file, &status));
    if (!failed) *room -= (int64_t)status.stx_size;
    if (!failed && *room >= 0) {
        add(&target, folder);
        add(&target, "/");
        add(&target, path);
        failed = target.cut ? -ENAMETOOLONG : make_above(folder, path);
        if (!failed) failed = copy_bytes((int)file, target.at);
        if (!failed) failed = dress(target.at, &status, mode);
    }
    close_fd((int)file);
    return failed;
}

/* Makes a layer of copies of some files of another one, with modes that no disk is to have. The
 * copies take room that the sandbox has: files beyond a quarter of it keep their plain modes. */
static long special_modes(const struct entry *entry, const char *folder, const char *copy, struct value special) {
    int64_t room = planned(entry, "disk") / 4, count = planned(entry, "files") / 4, done = 0;
    if (room > SPECIAL_BYTES) room = SPECIAL_BYTES;
    MUST(make_folder(folder));
    long layer = noted("open", open_at(AT_FDCWD, copy, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)), failed = 0;
    MUST(layer);
    struct value each = first_of(special);
    for (; each.at && !failed && done < count; each = after(each), done++) {
        struct value path = first_of(each);
        failed = copy_special((int)layer, folder, text_of(path), (uint32_t)number_of(after(path), 0), &room);
        if (room < 0) break;
    }
    for (each = first_of(special); each.at && !failed && done--; each = after(each))
        failed = dress_above((int)layer, folder, text_of(first_of(each)));
    struct statx status;
    if (!failed) failed = noted("stat", status_of((int)layer, ".", &status));
    if (!failed) failed = dress(folder, &status, status.stx_mode);
    close_fd((int)layer);
    return failed;
}

struct layers { /* names, the topmost first, as overlayfs has them */
    char bytes[OPTIONS];
    struct text names;
    int count;
    char top[64]; /* the first of them */
};

static void begin_layers(struct layers *layers) {
    layers->names = text_in(layers->bytes, sizeof layers->bytes);
    layers->count = 0;
    layers->top[0] = 0;
}

static void add_layer(struct layers *layers, const char *name) {
    if (layers->count++) add(&layers->names, ":");
    add(&layers->names, name);
    if (layers->count == 1) {
        struct text top = text_in(layers->top, sizeof layers->top);
        add(&top, name);
    }
}

static struct value special_of(struct value plan, const char *name) {
    for (struct value each = first_of(find(plan, "special")); each.at; each = after(each)) {
        struct value layer = first_of(each);
        if (text_of(layer) && same(text_of(layer), name)) return after(layer);
    }
    return (struct value){0};
}

/* Mounts the layers, with copies of files of special modes over them: those over the image, to the
 * mounts of frozen ones, and those of the image. Opens those over the image. */
static long mount_layers(const struct entry *entry, struct message *message, int frozen_at,
                         struct layers *over, struct layers *image) {
    struct value names = find(entry->plan, "layers");
    int64_t over_count = (int64_t)count_of(names) - planned(entry, "image"), index = 0;
    int64_t frozen = planned(entry, "frozen");
    begin_layers(over);
    begin_layers(image);
    for (int64_t i = frozen - 1; i >= 0; i--) { /* the message has the lowest first */
        int tree = take_fd(message, frozen_at + (int)i);
        TEXT(folder, 64);
        add(&folder, "x/f");
        add_number(&folder, i);
        MUST(attach(entry, tree, folder.at));
        close_fd(tree);
        add(&folder, "/u");
        add_layer(over, folder.at);
    }
    for (struct value each = first_of(names); each.at; each = after(each), index++) {
        struct layers *layers = index < over_count ? over : image;
        const char *name = text_of(each);
        TEXT(copy, 64);
        MUST(own_copy(entry, name, &copy));
        struct value special = special_of(entry->plan, name);
        if (special.at) {
            TEXT(folder, 64);
            add(&folder, "x/s");
            add(&folder, name);
            MUST(special_modes(entry, folder.at, copy.at, special));
            add_layer(layers, folder.at);
        }
        add_layer(layers, copy.at);
    }
    return over->names.cut || image->names.cut ? noted("mount overlay", -E2BIG) : 0;
}

/* Opens the folders that are written, or were before: the topmost first. */
static long open_uppers(struct inside *inside, const char *own_files, const char *over) {
    TEXT(name, 64);
    add(&name, own_files);
    add(&name, "/u");
    for (;;) {
        if (inside->upper_count == MOST_UPPERS) return noted("open", -E2BIG);
        long fd = noted("open", open_at(AT_FDCWD, name.at, FOLDER, 0));
        MUST(fd);
        inside->uppers[inside->upper_count++] = (int)fd;
        if (!*over) return 0;
        name.used = 0;
        while (*over && *over != ':' && name.used < name.size - 1) name.at[name.used++] = *over++;
        name.at[name.used] = 0;
        if (*over == ':') over++;
    }
}

/* Mounts `o`, as root: the sandbox's files with its own ids. On `x` all have the same ones. Returns
 * the folder that the sandbox is to write to; `whole`: whether another one can have what is in it as
 * a layer, which as root it cannot before Linux 6.3. */
static const char *own_files(const struct entry *entry, bool *whole) {
    *whole = true;
    if (!entry->root) return "x";
    long tree = open_tree("x");
    long failed = tree < 0 ? tree : map_ids((int)tree, entry->namespace);
    if (!failed) failed = move_mount((int)tree, "o");
    close_fd((int)tree);
    if (failed) {
        failed_call = NULL;
        *whole = false;
        return "x";
    }
    return "o";
}

/* Overlayfs acts as who mounts it, whose id must be one of the sandbox's own where its files are. */
CHECKED static long own_files_inside(const struct entry *entry, const char *files_at) {
    uint64_t rights = (uint64_t)number_of(find(entry->plan, "rights"), 0);
    if (!same(files_at, "o")) return 0;
    MUST(noted("setfsuid", own_files_as(entry->first, entry->first)));
    return noted("capset", capabilities(rights, rights, 0));
}

/* Mounts `m`, a folder of the machine's own, with inodes of the sandbox's own: a watch, a lock or a lease
 * on the machine's would be felt by the machine, and by other sandboxes. */
static long mount_programs(const struct entry *entry, const char *name) {
    TEXT(layers, 128);
    if (own_copy(entry, name, &layers)) {
        /* Not every file system can be id-mapped, as a container's root. Root's files then belong to
         * `nobody`, which is all that it changes in a read-only tree. */
        failed_call = NULL;
        layers = text_in(layers_bytes, sizeof layers_bytes);
        add(&layers, name);
    }
    add(&layers, ":e/folder");
    long failed = overlay(entry, "m", layers.at, NULL);
    if (failed != -EINVAL || entry->root) return failed;
    failed_call = NULL;
    /* The kernel does not let an ordinary user take apart what is mounted below. */
    return mount(name, "m", NULL, MS_BIND | MS_REC, NULL);
}

/* Opens a folder of the image for something to be mounted there; what it has instead is its fault. */
static long open_folder_of(const struct entry *entry, const char *fault, const char *name) {
    long place = open_place(entry->merged, name);
    bool other = place == -ELOOP || place == -ENOTDIR || place == -ENOENT;
    return noted(other ? fault : "openat2", place);
}

static long mount_all_programs(const struct entry *entry) {
    for (struct value each = first_of(find(entry->plan, "programs")); each.at; each = after(each)) {
        struct value name = first_of(each);
        long place = open_folder_of(entry, "image programs", text_of(name));
        MUST(place);
        long failed = mount_programs(entry, text_of(after(name)));
        if (!failed) failed = cover(AT_FDCWD, "m", (int)place);
        close_fd((int)place);
        MUST(failed);
    }
    return 0;
}

static long hide(const struct entry *entry) {
    for (struct value each = first_of(find(entry->plan, "hide")); each.at; each = after(each)) {
        struct statx status;
        /* Through links as programs go: what is there is to be hidden, wherever it is. */
        long place = open_within(entry->merged, text_of(each), O_PATH);
        if (place == -ENOENT || place == -ENOTDIR) continue;
        MUST(noted("open", place));
        long failed = noted("stat", status_of_fd((int)place, &status));
        bool folder = (status.stx_mode & S_IFMT) == S_IFDIR;
        long tree = failed ? failed : open_tree(folder ? "e/folder" : "e/file");
        if (tree >= 0) failed = cover((int)tree, "", (int)place);
        if (tree >= 0) close_fd((int)tree);
        close_fd((int)place);
        MUST(tree < 0 ? tree : failed);
    }
    return 0;
}

/* -- programs that no other one can look at -------------------------------------------------------- */

/* A program whose file, or whose loader, it may not read cannot be looked at by others, whoever runs it:
 * neither traced nor, in this /proc, seen. So loaders are replaced by copies of theirs: members of one
 * group may execute, but not read them. An ordinary user has one id: there it holds for all programs.
 *
 * The kernel finds the loader of a program by itself, and libraries name it without opening it. Only
 * linkers read it, where glibc's script of libc.so sends them: to a copy in /dev. (musl's loader is the
 * library itself, and stays as it is.) */
static const char *const loaders[] = {
    "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux.so.2", "/lib/ld-linux-aarch64.so.1",
};
static const char *const scripts[] = {
    "/usr/lib/x86_64-linux-gnu/libc.so", "/usr/lib/aarch64-linux-gnu/libc.so",
    "/usr/lib/i386-linux-gnu/libc.so",   "/usr/lib64/libc.so",
    "/usr/lib/libc.so",                  "/usr/lib32/libc.so",
};
enum { LOADERS = sizeof loaders / sizeof *loaders, SCRIPTS = sizeof scripts / sizeof *scripts, LONGEST_SCRIPT = 2048 };

/* Mounts a file over an open one; programs cannot write it. */
static long mount_over(int file, const char *copy) {
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    int flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    long tree = open_tree(copy);
    MUST(tree);
    long failed = CALL5(__NR_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes);
    if (!failed) failed = CALL5(__NR_move_mount, tree, "", file, "", flags);
    close_fd((int)tree);
    return noted("mount loader", failed);
}

/* Opens a file of the image for reading: 0 if there is none. */
static long open_of_image(int root, const char *path) {
    long file = open_within(root, path, O_RDONLY | O_NONBLOCK);
    return file == -ENOENT || file == -ENOTDIR ? 0 : noted("open", file);
}

/* Writes to `name` the path of the copy that linkers read of a loader. */
static void copy_for_linkers(struct text *name, int loader) {
    add(name, "/loader");
    add_number(name, loader);
}

static long replace_loader(const struct entry *entry, int root, int number) {
    TEXT(private, 16);
    TEXT(readable, 16);
    long file = open_of_image(root, loaders[number]);
    if (file <= 0) return file;
    add(&private, "x/l");
    add_number(&private, number);
    add(&readable, "d");
    copy_for_linkers(&readable, number);
    long failed = copy_bytes((int)file, private.at);
    if (!failed) failed = noted("seek", CALL3(__NR_lseek, file, 0, 0));
    if (!failed) failed = copy_bytes((int)file, readable.at);
    if (!failed) failed = set_mode(readable.at, 0644);
    /* As root its owner is nobody's in the sandbox: no capability of theirs is over it. */
    if (!failed && entry->root) failed = own(private.at, 0, entry->first + PRIVATE);
    if (!failed) failed = set_mode(private.at, entry->root ? 0715 : 0111);
    if (!failed) failed = mount_over((int)file, private.at);
    close_fd((int)file);
    return failed;
}

static bool begins(const char *text, const char *with) {
    while (*with && *text == *with) text++, with++;
    return !*with;
}

/* Replaces a script for linkers by one that names the copies of loaders. */
static long replace_script(int root, int number) {
    static char text[LONGEST_SCRIPT + 1];
    static char more[2 * LONGEST_SCRIPT];
    struct text edited = text_in(more, sizeof more);
    long file = open_of_image(root, scripts[number]);
    if (file <= 0) return file;
    long got = read_fd((int)file, text, sizeof text), failed = 0;
    if (got >= 0 && got <= LONGEST_SCRIPT) { /* else it is a library */
        text[got] = 0;
        for (const char *at = text; *at;) {
            int loader = 0;
            while (loader < LOADERS && !begins(at, loaders[loader])) loader++;
            if (loader < LOADERS) {
                add(&edited, "/dev");
                copy_for_linkers(&edited, loader);
                at += length(loaders[loader]);
            } else {
                const char one[2] = {*at++, 0};
                add(&edited, one);
            }
        }
        TEXT(private, 16);
        add(&private, "x/s");
        add_number(&private, number);
        long made = noted("open", open_at(AT_FDCWD, private.at, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644));
        failed = made < 0 ? made : write_all((int)made, edited.at, edited.used);
        if (made >= 0) close_fd((int)made);
        if (!failed) failed = set_mode(private.at, 0644);
        if (!failed) failed = mount_over((int)file, private.at);
    }
    close_fd((int)file);
    return got < 0 ? noted("read", got) : failed;
}

static long make_private(const struct entry *entry) {
    unsigned long flags = QUIET | MS_NOEXEC;
    TEXT(options, 64);
    add(&options, "hidepid=2");
    if (entry->root) { /* process 1 alone has this group, and sees all */
        add(&options, ",gid=");
        add_number(&options, entry->own);
    }
    MUST(mount("proc", "p", NULL, MS_REMOUNT | flags, options.at));
    MUST(mount("", "p", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | flags, NULL));
    for (int i = 0; i < LOADERS; i++) MUST(replace_loader(entry, entry->merged, i));
    for (int i = 0; i < SCRIPTS; i++) MUST(replace_script(entry->merged, i));
    return 0;
}

/* Makes `shm` a folder in the image's /dev, whatever it has there, and opens it. */
static long make_shared_memory(const struct entry *entry, int place) {
    struct statx status;
    long failed = status_of(place, "shm", &status);
    if (!failed && (status.stx_mode & S_IFMT) != S_IFDIR)
        MUST(noted("unlink", CALL3(__NR_unlinkat, place, "shm", 0)));
    failed = CALL3(__NR_mkdirat, place, "shm", 0777);
    if (failed && failed != -EEXIST) return noted("mkdir", failed);
    long folder = noted("open", open_at(place, "shm", FOLDER, 0));
    MUST(folder);
    failed = entry->root ? noted("chown", CALL3(__NR_fchown, folder, entry->first, entry->first)) : 0;
    if (!failed) failed = noted("chmod", CALL2(__NR_fchmod, folder, 01777));
    if (failed) close_fd((int)folder);
    return failed ? failed : folder;
}

/* Mounts `d/shm`, a folder of the sandbox's files: it is compared and saved as they are. */
static long mount_shared_memory(const struct entry *entry, int place) {
    long folder = make_shared_memory(entry, place);
    MUST(folder);
    long tree = open_tree_at((int)folder, "");
    long failed = tree < 0 ? tree : move_mount((int)tree, "d/shm");
    if (tree >= 0) close_fd((int)tree);
    close_fd((int)folder);
    MUST(failed);
    return mount("", "d/shm", NULL, MS_BIND | MS_REMOUNT | DEVICES_QUIET, NULL);
}

static long own_devices(const struct entry *entry) {
    MUST(own("d", entry->first, entry->first));
    for (int i = 0; i < DEVICES + LINKS; i++) {
        TEXT(path, 64);
        add(&path, "d/");
        add(&path, i < DEVICES ? devices[i].name : device_links[i - DEVICES][0]);
        MUST(own(path.at, entry->first, entry->first));
    }
    return 0;
}

/* Mounts the machine's name servers, a detached mount: links lead out of the root no more. */
static long bind_resolver(int servers) {
    const char *path = "/etc/resolv.conf";
    struct statx status;
    close_fd((int)open_plainly(path, O_CREAT | O_WRONLY | O_NONBLOCK, 0644));
    /* It may have no /etc, or in its place a loop, or a link to a device. */
    long target = open_plainly(path, O_PATH, 0), failed = 0;
    if (target < 0) return 0;
    bool file = !status_of_fd((int)target, &status) && (status.stx_mode & S_IFMT) == S_IFREG;
    if (file) failed = cover(servers, "", (int)target);
    close_fd((int)target);
    return failed;
}

static long change_root(void) {
    long servers = CALL3(__NR_open_tree, AT_FDCWD, "e/resolv.conf", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (servers < 0 && servers != -ENOENT) return noted("open_tree", servers);
    MUST(noted("chdir", CALL1(__NR_chdir, "x/m")));
    MUST(noted("pivot_root", CALL2(__NR_pivot_root, ".", ".")));
    MUST(noted("umount", CALL2(__NR_umount2, ".", DETACH)));
    MUST(noted("chdir", CALL1(__NR_chdir, "/")));
    long failed = servers >= 0 ? bind_resolver((int)servers) : 0;
    close_fd((int)servers);
    return failed;
}

static long tell_files(int link, int files, bool whole) {
    struct reply reply;
    begin(&reply);
    put_open(&reply, 'M');
    put_close(&reply);
    if (whole)
        put_fd(&reply, files);
    else
        close_fd(files);
    return noted("send", finish(&reply, link));
}

/* Joins the layers of the image, if they are several: where they are. */
static long join_image(const struct entry *entry, struct layers *image) {
    if (image->count < 2) return 0;
    MUST(make_folder("x/i"));
    MUST(overlay(entry, "x/i", image->names.at, NULL));
    struct text top = text_in(image->top, sizeof image->top);
    add(&top, "x/i");
    return 0;
}

/* Mounts everything and changes the root. */
static long make_file_system(struct entry *entry, struct message *message, int frozen_at, int link) {
    static struct layers over, image;
    static char all[OPTIONS];
    struct inside *inside = entry->inside;
    struct statx status;
    bool whole;
    MUST(limit_files(entry));
    MUST(mount_layers(entry, message, frozen_at, &over, &image));
    struct text both = text_in(all, sizeof all);
    add(&both, over.names.at);
    if (over.count) add(&both, ":");
    add(&both, image.names.at);
    if (both.cut) return noted("mount overlay", -E2BIG);
    MUST(join_image(entry, &image));
    inside->lower = (int)noted("open", open_at(AT_FDCWD, image.top, FOLDER, 0));
    MUST(inside->lower);
    MUST(noted("stat", status_of(AT_FDCWD, over.count ? over.top : image.top, &status)));
    long files = open_tree("x");
    MUST(files);
    const char *files_at = own_files(entry, &whole);
    MUST(own_files_inside(entry, files_at));
    TEXT(upper, 16);
    add(&upper, files_at);
    add(&upper, "/u");
    MUST(own(upper.at, status.stx_uid, status.stx_gid));
    MUST(set_mode(upper.at, status.stx_mode));
    MUST(open_uppers(inside, files_at, over.names.at));
    MUST(overlay(entry, "x/m", all, files_at));
    entry->merged = (int)noted("open", open_at(AT_FDCWD, "x/m", FOLDER, 0));
    MUST(entry->merged);
    /* Before anything is done in it: a link of the image's would lead this process, which still has
     * all rights, to a folder of the machine's. */
    long processes = open_folder_of(entry, "image /proc", "proc");
    MUST(processes);
    long devices_at = open_folder_of(entry, "image /dev", "dev");
    MUST(devices_at);
    MUST(mount_all_programs(entry));
    MUST(hide(entry));
    if (planned(entry, "private")) MUST(make_private(entry));
    MUST(cover(AT_FDCWD, "p", (int)processes));
    if (entry->root) MUST(own_devices(entry));
    inside->root = (int)open_tree("x/m");
    MUST(inside->root);
    MUST(mount_shared_memory(entry, (int)devices_at));
    MUST(tell_files(link, (int)files, whole));
    /* What stands there decides what a verification reads, and no comparison looks there. */
    MUST(mount("", "d", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | DEVICES_QUIET, NULL));
    MUST(cover(AT_FDCWD, "d", (int)devices_at));
    close_fd((int)devices_at);
    close_fd((int)processes);
    close_fd(entry->merged);
    return change_root();
}

/* -- limits and rights ---------------------------------------------------------------------------- */

static long limit_to(int which, uint64_t soft, uint64_t hard) {
    struct rlimit64 now;
    MUST(noted("prlimit", CALL4(__NR_prlimit64, 0, which, 0, &now)));
    if (hard > now.rlim_max) hard = now.rlim_max;
    if (soft > hard) soft = hard;
    now = (struct rlimit64){soft, hard};
    return noted("prlimit", CALL4(__NR_prlimit64, 0, which, &now, 0));
}

static long limit(int which, uint64_t most) { return limit_to(which, most, most); }

static long limit_all(const struct entry *entry) {
    uint64_t processes = (uint64_t)planned(entry, "processes");
    uint64_t open_files = (uint64_t)planned(entry, "open_files");
    uint64_t walk = FILES_OF_A_WALK + ((uint64_t)entry->inside->upper_count - 1) * MAX_DEPTH;
    /* A core pattern with a pipe hands a dump to the machine's root, unless the limit is 1 byte. */
    MUST(limit(RLIMIT_CORE, 1));
    MUST(limit(RLIMIT_NICE, 0));
    MUST(limit(RLIMIT_RTPRIO, 0));
    /* An ordinary user's process 1 has the same id as its programs. In a container, processes are
     * for its engine: by their user's id, the machine's would count. */
    if (!entry->inside->contained)
        MUST(limit(RLIMIT_NPROC, (processes > 2 ? processes : 2) + (entry->own ? 0 : OWN_THREADS)));
    MUST(limit(RLIMIT_DATA, (uint64_t)planned(entry, "memory")));
    MUST(limit(RLIMIT_MEMLOCK, 1 << 20));
    MUST(limit(RLIMIT_MSGQUEUE, 1 << 20));
    MUST(limit(RLIMIT_SIGPENDING, 4096));
    MUST(limit(RLIMIT_FSIZE, (uint64_t)planned(entry, "disk")));
    /* The hard limit is for this process's own walk over nested folders. */
    return limit_to(RLIMIT_NOFILE, open_files, open_files > walk ? open_files : walk);
}

/* Limits what programs have of the kernel's objects that are counted for a whole user namespace. What an
 * ordinary user's sandboxes have is part of what the user has. */
static long limit_users(bool root, int proc) {
    static const char *const none[] = {
        "sys/user/max_user_namespaces",   "sys/user/max_pid_namespaces",  "sys/user/max_uts_namespaces",
        "sys/user/max_ipc_namespaces",    "sys/user/max_net_namespaces",  "sys/user/max_mnt_namespaces",
        "sys/user/max_cgroup_namespaces", "sys/user/max_time_namespaces", "sys/user/max_fanotify_groups",
        "sys/user/max_fanotify_marks",
    };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) MUST(limit_namespace(root, proc, none[i], "0"));
    MUST(limit_namespace(root, proc, "sys/user/max_inotify_instances", "16"));
    return limit_namespace(root, proc, "sys/user/max_inotify_watches", "8192");
}

/* Leaves the user namespace that owns the mounts, and is process 1's own user from now on. */
static long leave_machine(const struct entry *entry) {
    /* After this process has entered its cgroup, which becomes the namespace's root. */
    MUST(noted("unshare", CALL1(__NR_unshare, CLONE_NEWCGROUP)));
    if (entry->own) {
        MUST(noted("setgroups", CALL2(__NR_setgroups, 0, 0)));
        MUST(noted("setresgid", CALL3(__NR_setresgid, entry->own, entry->own, entry->own)));
        MUST(noted("setresuid", CALL3(__NR_setresuid, entry->own, entry->own, entry->own)));
    }
    MUST(noted("setns", CALL2(__NR_setns, entry->namespace, CLONE_NEWUSER)));
    MUST(limit_users(entry->root, entry->inside->proc));
    return noted("prctl", stay_private(entry->inside)); /* as a change of credentials clears it */
}

/* Gives programs started from here no capability but those in `kept`; keeps all itself. */
static long drop_rights(struct inside *inside) {
    uint64_t kept = inside->kept;
    MUST(noted("capget", permitted(&inside->rights)));
    for (int each = 0; each < 64; each++) {
        long failed = kept >> each & 1 ? 0 : CALL2(__NR_prctl, PR_CAPBSET_DROP, each);
        if (failed == -EINVAL) break; /* the kernel has no more */
        MUST(noted("prctl", failed));
    }
    MUST(noted("prctl", CALL2(__NR_prctl, PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED)));
    MUST(noted("capset", capabilities(inside->rights, inside->rights, kept)));
    for (int each = 0; each < 64; each++)
        if (kept >> each & 1)
            MUST(noted("prctl", CALL5(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, each, 0, 0)));
    MUST(noted("prctl", CALL5(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)));
    return noted("prctl", stay_private(inside));
}

/* Keeps this process and its children to themselves, where the kernel can: they reach no abstract
 * socket and no process of others with connections or signals. */
static long scope(void) {
    struct {
        uint64_t files, ports, scopes; /* struct landlock_ruleset_attr */
    } rules = {.scopes = 3};
    long version = CALL3(__NR_landlock_create_ruleset, 0, 0, 1 /* to tell its version */);
    if (version == -ENOSYS || version == -EOPNOTSUPP) return 0; /* not built, or not enabled */
    MUST(noted("landlock", version));
    if (version < 6) return 0;
    long fd = noted("landlock", CALL3(__NR_landlock_create_ruleset, &rules, sizeof rules, 0));
    MUST(fd);
    long failed = noted("landlock", CALL2(__NR_landlock_restrict_self, fd, 0));
    close_fd((int)fd);
    return failed;
}

static long filter(const struct entry *entry) {
    int64_t which = planned(entry, "filter");
    if (which < 0 || which > 3) return noted("seccomp", -EINVAL);
    struct sock_fprog program = {
        .len = (unsigned short)(entry->machine->filters[which].count / sizeof(struct sock_filter)),
        .filter = (struct sock_filter *)(uintptr_t)entry->machine->filters[which].bytes,
    };
    return noted("seccomp", CALL3(__NR_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static long confine(const struct entry *entry) {
    MUST(limit_all(entry));
    MUST(drop_rights(entry->inside));
    /* A container has all namespaces of its own, the network's, too. */
    if (!entry->inside->contained) MUST(scope());
    MUST(filter(entry));
    MUST(noted("umask", CALL1(__NR_umask, 022)));
    return 0;
}

long enter(struct message *message, struct value plan, int link, const struct machine *machine,
           struct inside *inside) {
    struct entry entry = {.plan = plan, .machine = machine, .inside = inside, .root = machine->root};
    entry.first = (uint32_t)planned(&entry, "first_id");
    entry.own = (uint32_t)planned(&entry, "own_id");
    if (!is_whole(&entry)) return noted("plan", -EINVAL);
    entry.namespace = take_fd(message, 0);
    if (entry.own) ignore(take_fd(message, 1)); /* holds the range of ids for as long as this runs */
    TEXT(pages, 32);
    add_number(&pages, planned(&entry, "shared_pages"));
    MUST(limit_namespace(entry.root, inside->proc, "sys/kernel/shmall", pages.at));
    if (is_true(find(plan, "low_ports")))
        MUST(noted("write", write_text(inside->proc, "sys/net/ipv4/ip_unprivileged_port_start", "0")));
    inside->kept = (uint64_t)planned(&entry, "kept");
    inside->many_ids = machine->root;
    if (!user_of(find(plan, "user"), &inside->user)) return noted("user", -EINVAL);
    MUST(make_file_system(&entry, message, entry.own ? 2 : 1, link));
    MUST(leave_machine(&entry));
    close_fd(entry.namespace);
    return confine(&entry);
}

/* -- in a container ------------------------------------------------------------------------------- */

long count_ids(void) {
    char map[4096];
    const char *at = map;
    long got = read_text(AT_FDCWD, "/proc/self/uid_map", map, sizeof map), count = 0, number = 0;
    for (int field = 1; got >= 0 && *at; field++) {
        while (*at == ' ' || *at == '\n') at++;
        number = number_at(&at);
        if (number >= 0 && field % 3 == 0) count += number;
        if (number < 0) break;
    }
    return noted("read", got < 0 ? got : count);
}

long enter_container(struct value plan, struct inside *inside) {
    struct machine machine = {0};
    struct entry entry = {.plan = plan, .machine = &machine, .inside = inside};
    machine.filters[0].bytes = bytes_of(find(plan, "code"), &machine.filters[0].count);
    bool whole = planned(&entry, "memory") > 0 && planned(&entry, "disk") > 0 &&
                 planned(&entry, "open_files") > 0 && number_of(find(plan, "kept"), -1) >= 0;
    if (!whole || !machine.filters[0].bytes || !user_of(find(plan, "user"), &inside->user))
        return noted("plan", -EINVAL);
    inside->kept = (uint64_t)planned(&entry, "kept");
    MUST(noted("setgroups", CALL2(__NR_setgroups, 0, 0)));
    MUST(set_memory(inside));
    long ids = count_ids();
    MUST(ids);
    inside->many_ids = ids > 1;
    inside->peak = -1;
    inside->proc = (int)noted("open", open_at(AT_FDCWD, "/proc", FOLDER, 0));
    MUST(inside->proc);
    inside->root = (int)noted("open", open_at(AT_FDCWD, "/", FOLDER, 0));
    MUST(inside->root);
    inside->uppers[inside->upper_count++] = inside->root;
    return confine(&entry);
}
