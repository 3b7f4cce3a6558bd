/* What an engine has mounted in a container, and made for it: no part of what its programs change.
 *
 * A file that was not written to is, in two containers of an image, the same file of the same layer,
 * with the same change time, which no program can set. In an overlay a write to any file copies all
 * folders above it up, and gives them new change times: a folder with the old one has nothing new
 * below it, and is not entered. So a walk costs what the folders with changes in them do. */
#include "walk.h"

#include "blake2b.h"

enum { MOUNTS_BYTES = 1 << 18, STAMPS = 8192, MOUNTED_FILES = 8, LONGEST_NAME = 64, LOOK_MS = 60000 };

struct look { /* at a mounted file */
    uint32_t mode, uid, gid;
    uint64_t size;
    unsigned char digest[DIGEST];
};

struct mounted_file {
    char path[LONGEST_NAME]; /* as all paths here, without the first slash */
    struct look in_image, in_snapshot;
};

struct stamp {
    uint64_t device, inode;
    int64_t seconds; /* of its last change, of whatever kind */
    uint32_t nanoseconds;
};

static char mounts[MOUNTS_BYTES], volumes[PATH_MAX]; /* paths, each with its NUL; an empty one ends them */
static struct text all_volumes;
static struct mounted_file files[MOUNTED_FILES];
static int file_count;
static struct stamp stamps[STAMPS]; /* what is not among them is compared */
static int stamp_count;
static bool overlay;

/* -- what there is at first ------------------------------------------------------------------- */

/* Whether a path is that one, or leads to it. */
static bool leads_to(const char *path, const char *place) {
    while (*path && *path == *place) path++, place++;
    return !*path && (!*place || *place == '/');
}

static bool is_one(const char *path, const char *other) {
    while (*path && *path == *other) path++, other++;
    return *path == *other;
}

static bool is_volume(const char *path) {
    for (const char *each = volumes; *each; each += length(each) + 1)
        if (is_one(path, each)) return true;
    return false;
}

/* Takes a field of a line of mountinfo, in which blanks and backslashes are octal numbers. */
static char *next_field(char **at) {
    char *field = *at, *to = *at;
    while (**at && **at != ' ' && **at != '\n') {
        const char *from = *at;
        if (from[0] == '\\' && from[1] && from[2] && from[3]) {
            *to++ = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
            *at += 4;
        } else {
            *to++ = *(*at)++;
        }
    }
    if (**at == ' ') ++*at;
    *to = 0;
    return field;
}

/* Reads the mount points, in place: each path is shorter than its line. */
static long read_mounts(void) {
    static char lines[MOUNTS_BYTES];
    char *at = lines, *to = mounts;
    long got = read_text(AT_FDCWD, "/proc/self/mountinfo", lines, sizeof lines);
    if (got < 0) return got;
    if (got >= (long)sizeof lines - 1) return -E2BIG;
    while (*at) {
        char *end = at, *path = NULL;
        while (*end && *end != '\n') end++;
        bool more = *end;
        *end = 0;
        for (int field = 0; field < 5; field++) path = next_field(&at);
        while (*at && !starts(at, "- ")) (void)next_field(&at);
        if (same(path, "/") && *at) overlay = starts(at, "- overlay ");
        if (path[0] == '/' && path[1] && !is_volume(path + 1)) {
            size_t count = length(path + 1) + 1;
            memcpy(to, path + 1, count);
            to += count;
        }
        at = more ? end + 1 : end;
    }
    return 0;
}

static struct stamp stamp_of(const struct statx *status) {
    return (struct stamp){device_of(status), status->stx_ino, status->stx_ctime.tv_sec,
                          status->stx_ctime.tv_nsec};
}

static long note_folder(const char *path) {
    struct listing names = {.fd = (int)open_at(AT_FDCWD, path, FOLDER, 0)};
    struct statx status;
    const char *name;
    if (names.fd < 0) return names.fd == -ENOENT || names.fd == -ENOTDIR || names.fd == -ELOOP ? 0 : names.fd;
    while ((name = next_name(&names)))
        if (stamp_count < STAMPS && !status_of(names.fd, name, &status))
            stamps[stamp_count++] = stamp_of(&status);
    close_fd(names.fd);
    return names.got;
}

static long look_at_file(const char *path, struct look *look) {
    struct statx status;
    struct walk walk;
    TEXT(name, LONGEST_NAME + 1);
    add(&name, "/");
    add(&name, path);
    begin_walk(&walk, LOOK_MS);
    long failed = status_of(AT_FDCWD, name.at, &status);
    if (failed) return failed;
    *look = (struct look){status.stx_mode & 07777, status.stx_uid, status.stx_gid, status.stx_size, {0}};
    hash_content(&walk, AT_FDCWD, name.at, look->digest);
    return walk.error;
}

/* Gives a mounted file the content that the image has there; nothing: it keeps the engine's. */
static long fill(const char *path, struct value text) {
    size_t count;
    const char *bytes = bytes_of(text, &count);
    if (!bytes) return 0;
    long fd = open_at(AT_FDCWD, path, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0) return fd;
    long failed = write_all((int)fd, bytes, count);
    close_fd((int)fd);
    return failed;
}

static void note_file(const char *path, struct value content) {
    struct mounted_file *file = &files[file_count];
    struct text name = text_in(file->path, sizeof file->path);
    if (!path || *path != '/' || file_count == MOUNTED_FILES) return;
    add(&name, path + 1);
    /* An engine need not mount it. */
    if (name.cut || fill(path, content) || look_at_file(file->path, &file->in_image)) return;
    file->in_snapshot = file->in_image;
    file_count++;
}

long begin_container(struct value plan) {
    all_volumes = text_in(volumes, sizeof volumes - 1);
    for (struct value each = first_of(find(plan, "volumes")); each.at; each = after(each)) {
        const char *path = text_of(each);
        if (!path || *path != '/') continue;
        add(&all_volumes, path + 1);
        if (all_volumes.cut || all_volumes.used + 1 >= all_volumes.size) return -E2BIG;
        all_volumes.at[++all_volumes.used] = 0;
    }
    long failed = read_mounts();
    if (!failed) failed = note_folder("/");
    if (!failed) failed = note_folder("/etc");
    for (struct value each = first_of(find(plan, "files")); each.at; each = after(after(each)))
        note_file(text_of(each), after(each));
    return failed;
}

long look_at_mounted(void) {
    for (int i = 0; i < file_count; i++) {
        long failed = look_at_file(files[i].path, &files[i].in_snapshot);
        if (failed) return failed;
    }
    return 0;
}

/* -- what has come of it ---------------------------------------------------------------------- */

bool has_begun_so(const struct statx *status) {
    struct stamp stamp = stamp_of(status);
    for (int i = 0; i < stamp_count; i++)
        if (stamps[i].inode == stamp.inode && stamps[i].device == stamp.device)
            return stamps[i].seconds == stamp.seconds && stamps[i].nanoseconds == stamp.nanoseconds;
    return false;
}

static bool is_mounted(const char *path) {
    for (const char *each = mounts; *each; each += length(each) + 1)
        if (is_one(path, each)) return true;
    return false;
}

/* Whether a folder's own times tell of what is below it. */
static bool tells(const char *path) {
    if (!overlay) return false;
    for (const char *each = volumes; *each; each += length(each) + 1)
        if (leads_to(path, each)) return false;
    for (int i = 0; i < file_count; i++)
        if (leads_to(path, files[i].path)) return false;
    return true;
}

static bool same_time(const struct statx_timestamp *one, const struct statx_timestamp *other) {
    return one->tv_sec == other->tv_sec && one->tv_nsec == other->tv_nsec;
}

static bool is_untouched(const struct statx *status, const struct statx *old) {
    return same_time(&status->stx_ctime, &old->stx_ctime) && same_time(&status->stx_mtime, &old->stx_mtime) &&
           status->stx_size == old->stx_size && status->stx_mode == old->stx_mode &&
           status->stx_uid == old->stx_uid && status->stx_gid == old->stx_gid;
}

static enum visit visit_mounted(struct walk *walk, const struct trees *trees, const char *path) {
    for (int i = 0; i < file_count; i++) {
        struct look now;
        if (!is_one(path, files[i].path)) continue;
        long failed = look_at_file(path, &now);
        if (failed) fail(walk, failed, NULL);
        const struct look *was = trees->since == SINCE_IMAGE ? &files[i].in_image : &files[i].in_snapshot;
        if (now.size != was->size || memcmp(now.digest, was->digest, DIGEST)) return REPORT;
        return now.mode == was->mode && now.uid == was->uid && now.gid == was->gid ? PASS_BY : REPORT_METADATA;
    }
    return PASS_BY;
}

enum visit visit_of(struct walk *walk, const struct trees *trees, const char *path, const char *name,
                    const struct statx *status) {
    struct statx old;
    if (trees->since == SINCE_LAYERS) return COMPARE;
    if (*path == '/') path++;
    /* Its shared memory is compared as its files are, and nothing else of what is mounted there. */
    if (is_one(path, "dev") || is_one(path, "dev/shm")) return COMPARE;
    if (leads_to("dev", path)) return leads_to("dev/shm", path) ? COMPARE : PASS_BY;
    if (is_mounted(path)) return visit_mounted(walk, trees, path);
    if (is_folder(status) && !tells(path)) return COMPARE;
    if (!is_folder(status) && has_begun_so(status)) return PASS_BY;
    if (!look_at(walk, trees->lower, name, &old)) return COMPARE;
    return is_untouched(status, &old) ? PASS_BY : COMPARE;
}
