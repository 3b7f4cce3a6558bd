/* The files that an engine has mounted in a container or made for it (`cont_`): they are no
 * changes of its programs.
 *
 * An unchanged file is, in two containers of an image, the same file of the same layer. It has
 * the same change time, which no program can set. A write to any file of an overlay copies up
 * all folders above it, with new change times. A folder with the old time has no change below
 * it, and is not entered: a walk costs only the changed folders.
 *
 * The variables of this file describe this container. `cont_begin` sets them before any program
 * runs; later only `cont_note_snapshot` changes the snapshot's state of mounted files. */
#include "walk.h"

#include "blake2b.h"

enum {
    MOUNTS_BYTES = 1 << 18,
    MAX_STAMPS = 8192,
    MAX_MOUNTED_FILES = 8,
    MAX_NAME = 64,
    READ_MS = 60000
};

struct look { /* the state of a mounted file */
    uint32_t mode, uid, gid;
    uint64_t size;
    unsigned char digest[DIGEST];
};

struct mounted_file {
    char path[MAX_NAME]; /* as all paths here, without the first slash */
    struct look in_image, in_snapshot;
};

struct stamp {
    uint64_t device, inode;
    int64_t seconds; /* of its last change of any kind */
    uint32_t nanoseconds;
};

/* Paths, each with its NUL; an empty path ends the list. */
static char mounts[MOUNTS_BYTES], volumes[PATH_MAX];
static struct text all_volumes;
static struct mounted_file files[MAX_MOUNTED_FILES];
static int file_count;
static struct stamp stamps[MAX_STAMPS]; /* files without a stamp are compared */
static int stamp_count;
static bool overlay;

/* -- the initial state ------------------------------------------------------------------------ */

/* Whether a path is that place or a parent of it. */
static bool leads_to(const char *path, const char *place) {
    while (*path && *path == *place) path++, place++;
    return !*path && (!*place || *place == '/');
}

static bool path_equal(const char *path, const char *expected) {
    while (*path && *path == *expected) path++, expected++;
    return *path == *expected;
}

static bool is_volume(const char *path) {
    for (const char *item = volumes; *item; item += text_length(item) + 1)
        if (path_equal(path, item)) return true;
    return false;
}

/* Returns the next field of a line of mountinfo, with its octal escapes decoded in place. */
static char *next_field(char **cursor) {
    char *field = *cursor, *target = *cursor;
    while (**cursor && **cursor != ' ' && **cursor != '\n') {
        const char *source = *cursor;
        if (source[0] == '\\' && source[1] && source[2] && source[3]) {
            *target++ = (char)((source[1] - '0') << 6 | (source[2] - '0') << 3 | (source[3] - '0'));
            *cursor += 4;
        } else {
            *target++ = *(*cursor)++;
        }
    }
    if (**cursor == ' ') ++*cursor;
    *target = 0;
    return field;
}

/* Reads the mount points, except volumes, into `mounts`. There is room for all: each path is
 * shorter than its line. */
static long read_mounts(void) {
    static char lines[MOUNTS_BYTES];
    char *cursor = lines, *target = mounts;
    long nread = sys_read_text(AT_FDCWD, "/proc/self/mountinfo", lines, sizeof lines);
    if (nread < 0) return nread;
    if (nread >= (long)sizeof lines - 1) return -E2BIG;
    while (*cursor) {
        char *end = cursor, *path = NULL;
        while (*end && *end != '\n') end++;
        bool has_next = *end;
        *end = 0;
        for (int field = 0; field < 5; field++) path = next_field(&cursor);
        while (*cursor && !text_starts_with(cursor, "- ")) (void)next_field(&cursor);
        if (text_equal(path, "/") && *cursor) overlay = text_starts_with(cursor, "- overlay ");
        if (path[0] == '/' && path[1] && !is_volume(path + 1)) {
            size_t count = text_length(path + 1) + 1;
            memcpy(target, path + 1, count);
            target += count;
        }
        cursor = has_next ? end + 1 : end;
    }
    return 0;
}

static struct stamp stamp_of(const struct statx *status) {
    return (struct stamp){sys_device_number(status), status->stx_ino, status->stx_ctime.tv_sec,
                          status->stx_ctime.tv_nsec};
}

static long note_folder(const char *path) {
    struct listing names = {.fd = (int)sys_open(AT_FDCWD, path, FOLDER_FLAGS, 0)};
    struct statx status;
    const char *name;
    if (names.fd < 0)
        return names.fd == -ENOENT || names.fd == -ENOTDIR || names.fd == -ELOOP ? 0 : names.fd;
    while ((name = sys_next_name(&names)))
        if (stamp_count < MAX_STAMPS && !sys_stat(names.fd, name, &status))
            stamps[stamp_count++] = stamp_of(&status);
    sys_close(names.fd);
    return names.result;
}

static long read_look(const char *path, struct look *look) {
    struct statx status;
    struct walk walk;
    TEXT(name, MAX_NAME + 1);
    text_add(&name, "/");
    text_add(&name, path);
    walk_begin(&walk, READ_MS);
    long error = sys_stat(AT_FDCWD, name.start, &status);
    if (error) return error;
    *look = (struct look){
        status.stx_mode & MODE_BITS, status.stx_uid, status.stx_gid, status.stx_size, {0}};
    walk_hash_content(&walk, AT_FDCWD, name.start, look->digest);
    return walk.error;
}

/* Fills a mounted file with the image's content; without content it keeps the engine's. */
static long fill_file(const char *path, struct value text) {
    size_t count;
    const char *bytes = msg_bytes(text, &count);
    if (!bytes) return 0;
    long fd = sys_open(AT_FDCWD, path, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0) return fd;
    long error = sys_write_all((int)fd, bytes, count);
    sys_close((int)fd);
    return error;
}

static void note_file(const char *path, struct value content) {
    struct mounted_file *file = &files[file_count];
    struct text name = text_init(file->path, sizeof file->path);
    if (!path || *path != '/' || file_count == MAX_MOUNTED_FILES) return;
    text_add(&name, path + 1);
    /* Not every engine mounts each file. */
    if (name.cut || fill_file(path, content) || read_look(file->path, &file->in_image)) return;
    file->in_snapshot = file->in_image;
    file_count++;
}

long cont_begin(struct value plan) {
    all_volumes = text_init(volumes, sizeof volumes - 1);
    for (struct value item = msg_first(msg_find(plan, "volumes")); item.start;
         item = msg_next(item)) {
        const char *path = msg_text(item);
        if (!path || *path != '/') continue;
        text_add(&all_volumes, path + 1);
        if (all_volumes.cut || all_volumes.used + 1 >= all_volumes.size) return -E2BIG;
        all_volumes.start[++all_volumes.used] = 0;
    }
    long error = read_mounts();
    if (!error) error = note_folder("/");
    if (!error) error = note_folder("/etc");
    for (struct value item = msg_first(msg_find(plan, "files")); item.start;
         item = msg_next(msg_next(item)))
        note_file(msg_text(item), msg_next(item));
    return error;
}

long cont_note_snapshot(void) {
    for (int i = 0; i < file_count; i++) {
        long error = read_look(files[i].path, &files[i].in_snapshot);
        if (error) return error;
    }
    return 0;
}

/* -- comparison with the initial state -------------------------------------------------------- */

bool cont_is_initial(const struct statx *status) {
    struct stamp stamp = stamp_of(status);
    for (int i = 0; i < stamp_count; i++)
        if (stamps[i].inode == stamp.inode && stamps[i].device == stamp.device)
            return stamps[i].seconds == stamp.seconds && stamps[i].nanoseconds == stamp.nanoseconds;
    return false;
}

static bool is_mounted(const char *path) {
    for (const char *item = mounts; *item; item += text_length(item) + 1)
        if (path_equal(path, item)) return true;
    return false;
}

/* Whether a folder's own times cover all changes below it. */
static bool time_covers_tree(const char *path) {
    if (!overlay) return false;
    for (const char *item = volumes; *item; item += text_length(item) + 1)
        if (leads_to(path, item)) return false;
    for (int i = 0; i < file_count; i++)
        if (leads_to(path, files[i].path)) return false;
    return true;
}

static bool equal_time(const struct statx_timestamp *left, const struct statx_timestamp *right) {
    return left->tv_sec == right->tv_sec && left->tv_nsec == right->tv_nsec;
}

static bool is_untouched(const struct statx *status, const struct statx *lower_status) {
    return equal_time(&status->stx_ctime, &lower_status->stx_ctime) &&
           equal_time(&status->stx_mtime, &lower_status->stx_mtime) &&
           status->stx_size == lower_status->stx_size &&
           status->stx_mode == lower_status->stx_mode && status->stx_uid == lower_status->stx_uid &&
           status->stx_gid == lower_status->stx_gid;
}

static enum visit visit_mounted(struct walk *walk, const struct trees *trees, const char *path) {
    for (int i = 0; i < file_count; i++) {
        struct look current;
        if (!path_equal(path, files[i].path)) continue;
        long error = read_look(path, &current);
        if (error) walk_fail(walk, error, NULL);
        const struct look *baseline =
            trees->baseline == SINCE_IMAGE ? &files[i].in_image : &files[i].in_snapshot;
        if (current.size != baseline->size || memcmp(current.digest, baseline->digest, DIGEST) != 0)
            return REPORT;
        return current.mode == baseline->mode && current.uid == baseline->uid &&
                       current.gid == baseline->gid
                   ? SKIP
                   : REPORT_METADATA;
    }
    return SKIP;
}

enum visit cont_visit(struct walk *walk, const struct trees *trees, const char *path,
                      const char *name, const struct statx *status) {
    struct statx lower_status;
    if (trees->baseline == SINCE_LAYERS) return COMPARE;
    if (*path == '/') path++;
    /* Shared memory is compared as files are; all other paths in /dev are skipped. */
    if (path_equal(path, "dev") || path_equal(path, "dev/shm")) return COMPARE;
    if (leads_to("dev", path)) return leads_to("dev/shm", path) ? COMPARE : SKIP;
    if (is_mounted(path)) return visit_mounted(walk, trees, path);
    if (walk_is_folder(status) && !time_covers_tree(path)) return COMPARE;
    if (!walk_is_folder(status) && cont_is_initial(status)) return SKIP;
    if (!walk_stat(walk, trees->lower, name, &lower_status)) return COMPARE;
    return is_untouched(status, &lower_status) ? SKIP : COMPARE;
}
