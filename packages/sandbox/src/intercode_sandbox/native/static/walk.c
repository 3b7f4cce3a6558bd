#include "walk.h"

#include "blake2b.h"

enum {
    DEEPEST_DELETED = 1200,
    LONGEST_PATH = (DEEPEST_DELETED + 2) * 256,
    LINKS = 256,
    SEEK_START = 0,
    SEEK_TO_DATA = 3,
    SEEK_TO_HOLE = 4,
};

/* -- limits ---------------------------------------------------------------------------------- */

void begin_walk(struct walk *walk, int64_t timeout_ms) {
    if (timeout_ms > INT32_MAX) timeout_ms = INT32_MAX;
    *walk = (struct walk){.deadline = milliseconds() + timeout_ms, .room = MOST_BYTES};
}

void fail(struct walk *walk, long error, const char *message) {
    if (walk->error) return;
    walk->error = error;
    walk->message = message;
}

bool has_room(struct walk *walk, const struct trees *trees) {
    if (trees->count < 0 || trees->count > MOST_UPPERS)
        fail(walk, -E2BIG, "there are too many layers");
    return !walk->error;
}

bool has_time(struct walk *walk) {
    if (milliseconds() >= walk->deadline)
        fail(walk, -ETIMEDOUT, "walking over the file system took too long");
    return !walk->error;
}

bool count_path(struct walk *walk, size_t bytes) {
    walk->room -= (int64_t)bytes + ENTRY_BYTES;
    if (walk->room < 0)
        fail(walk, -EOVERFLOW, "the names of what was changed have more than 32 MiB");
    return has_time(walk);
}

/* -- folders --------------------------------------------------------------------------------- */

void restart(struct listing *listing, int fd) {
    /* Where it cannot go back, it is not to be read from the middle: its first name is an error. */
    long failed = CALL3(__NR_lseek, fd, 0, SEEK_START);
    listing->fd = failed < 0 ? -1 : fd;
    listing->got = listing->at = 0;
}

bool look_at(struct walk *walk, int folder, const char *name, struct statx *status) {
    if (folder < 0 || walk->error) return false;
    long failed = status_of(folder, name, status);
    if (failed && failed != -ENOENT) fail(walk, failed, NULL);
    return !failed;
}

bool is_folder(const struct statx *status) { return (status->stx_mode & S_IFMT) == S_IFDIR; }

bool has_name(struct walk *walk, const int *folders, int count, const char *name) {
    struct statx status;
    for (int i = 0; i < count; i++)
        if (look_at(walk, folders[i], name, &status)) return true;
    return false;
}

bool is_opaque(struct walk *walk, const struct trees *trees) {
    struct listing names;
    struct statx status;
    const char *name;
    if (trees->lower < 0) return false;
    restart(&names, trees->lower);
    while ((name = next_name(&names)))
        if (!has_name(walk, trees->uppers, trees->count, name))
            return !look_at(walk, trees->merged, name, &status) && !walk->error;
    if (names.got < 0) fail(walk, names.got, NULL);
    return false;
}

static int open_folder(struct walk *walk, int folder, const char *name) {
    if (folder < 0 || walk->error) return -1;
    long fd = open_at(folder, name, FOLDER, 0);
    if (fd < 0 && fd != -ENOENT && fd != -ENOTDIR) fail(walk, fd, NULL);
    return fd < 0 ? -1 : (int)fd;
}

void open_below_all(struct walk *walk, const struct trees *trees, bool in_lower, const char *name,
                    int *fds, struct trees *below) {
    int count = 0;
    for (int i = 0; i < trees->count; i++) {
        int fd = open_folder(walk, trees->uppers[i], name);
        if (fd >= 0) fds[count++] = fd;
    }
    below->since = trees->since;
    below->uppers = fds;
    below->count = count;
    below->lower = in_lower ? open_folder(walk, trees->lower, name) : -1;
    below->merged = open_folder(walk, trees->merged, name);
}

void close_trees(const struct trees *trees) {
    for (int i = 0; i < trees->count; i++) close_fd(trees->uppers[i]);
    close_fd(trees->lower);
    close_fd(trees->merged);
}

const char *type_of(const struct statx *status) {
    switch (status->stx_mode & S_IFMT) {
    case S_IFREG: return "file";
    case S_IFDIR: return "dir";
    case S_IFLNK: return "symlink";
    case S_IFIFO: return "fifo";
    case S_IFSOCK: return "socket";
    default: return "device";
    }
}

/* Whether this is overlayfs's mark for "deleted". No agent can make one. */
static bool is_whiteout(const struct statx *status) {
    return (status->stx_mode & S_IFMT) == S_IFCHR && !status->stx_rdev_major &&
           !status->stx_rdev_minor;
}

/* -- content --------------------------------------------------------------------------------- */

unsigned char block[BLOCK];

long open_content(struct content *content, int folder, const char *name) {
    struct statx status;
    long fd = open_at(folder, name, HOSTILE_FILE, 0);
    if (fd < 0) return fd;
    long failed = status_of_fd((int)fd, &status);
    if (failed) close_fd((int)fd);
    *content = (struct content){.fd = (int)fd, .size = (int64_t)status.stx_size};
    return failed;
}

static int64_t whole_pages(int64_t size) { return (size + PAGE - 1) / PAGE * PAGE; }

/* Moves on to the next data: 1, 0 if only a hole is left, or an error. */
static long find_data(struct content *content) {
    if (content->offset >= content->size) return 0;
    long data = CALL3(__NR_lseek, content->fd, content->offset, SEEK_TO_DATA);
    if (data < 0) return data == -ENXIO ? 0 : data;
    content->offset = data / PAGE * PAGE;
    content->end = CALL3(__NR_lseek, content->fd, content->offset, SEEK_TO_HOLE);
    /* If the page's head is a hole, it is read all the same. */
    if (content->end <= content->offset) content->end = content->offset + 1;
    return 1;
}

long next_block(struct walk *walk, struct content *content, int64_t *from) {
    long data = content->offset < content->end ? 1 : find_data(content);
    if (data <= 0) return data;
    if (!has_time(walk)) return walk->error;
    int64_t count = whole_pages(content->end - content->offset);
    if (count > BLOCK) count = BLOCK;
    long got;
    do got = CALL4(__NR_pread64, content->fd, block, count, content->offset);
    while (got == -EINTR);
    *from = content->offset;
    if (got > 0) content->offset += whole_pages(got);
    return got;
}

static bool is_zero(const unsigned char *bytes, size_t count) {
    uint64_t any = 0, word;
    size_t at = 0;
    for (; at + sizeof word <= count; at += sizeof word) {
        __builtin_memcpy(&word, bytes + at, sizeof word);
        any |= word;
    }
    for (; at < count; at++) any |= bytes[at];
    return !any;
}

/* BLAKE2b of a file's size and of its pages that are not all zero, by position: a hole and written
 * zeros are one content; a sparse file of terabytes costs what it holds, wherever that is. */
void hash_content(struct walk *walk, int folder, const char *name, unsigned char *digest) {
    struct content content;
    struct blake2b hash;
    int64_t from = 0;
    long got = open_content(&content, folder, name);
    if (got) {
        fail(walk, got, NULL);
        return;
    }
    blake2b_begin(&hash);
    blake2b_add(&hash, &content.size, sizeof content.size);
    while ((got = next_block(walk, &content, &from)) > 0) {
        for (long at = 0; at < got; at += PAGE) {
            size_t count = (size_t)(got - at < PAGE ? got - at : PAGE);
            if (is_zero(block + at, count)) continue;
            int64_t position = from + at;
            blake2b_add(&hash, &position, sizeof position);
            blake2b_add(&hash, block + at, count);
        }
    }
    if (got < 0) fail(walk, got, NULL);
    close_fd(content.fd);
    blake2b_end(&hash, digest);
}

/* -- digests --------------------------------------------------------------------------------- */

/* Of files that have more names than one, which may be any number. What is replaced is computed
 * again. */
static struct link {
    uint64_t device, inode;
    unsigned char digest[DIGEST];
} links[LINKS];

static void hash_link(struct walk *walk, int folder, const char *name, unsigned char *digest) {
    char target[PATH_MAX];
    struct blake2b hash;
    long got = CALL4(__NR_readlinkat, folder, name, target, sizeof target);
    if (got < 0) fail(walk, got, NULL);
    blake2b_begin(&hash);
    blake2b_add(&hash, target, got > 0 ? (size_t)got : 0);
    blake2b_end(&hash, digest);
}

/* The digest of a file or symbolic link: false where there is none to be had. */
static bool digest_of(struct walk *walk, int folder, const char *name, const struct statx *status,
                      unsigned char *digest) {
    uint32_t type = status->stx_mode & S_IFMT;
    if (walk->error) return false;
    if (type == S_IFLNK) hash_link(walk, folder, name, digest);
    if (type != S_IFREG) return type == S_IFLNK;
    struct link *link = &links[status->stx_ino % LINKS];
    bool known = link->inode == status->stx_ino && link->device == device_of(status);
    if (known && status->stx_nlink > 1) {
        memcpy(digest, link->digest, DIGEST);
        return true;
    }
    hash_content(walk, folder, name, digest);
    if (status->stx_nlink > 1 && !walk->error) {
        link->device = device_of(status);
        link->inode = status->stx_ino;
        memcpy(link->digest, digest, DIGEST);
    }
    return true;
}

/* -- entries --------------------------------------------------------------------------------- */

static char path_bytes[LONGEST_PATH];
static struct text path; /* of what is looked at */
static struct walk *now;
static struct reply *to;

struct digest {
    bool any;
    unsigned char bytes[DIGEST];
};

static void put_digest(const struct digest *digest) {
    static const char digits[] = "0123456789abcdef";
    char text[2 * DIGEST];
    for (int i = 0; i < DIGEST; i++) {
        text[2 * i] = digits[digest->bytes[i] >> 4];
        text[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    put_bytes(to, text, digest->any ? sizeof text : 0);
}

static void put_entry(const char *kind, const struct statx *status, bool gone,
                      const struct digest *digest, bool content) {
    if (!count_path(now, path.used) || same(path.at, "/dev/shm")) return;
    uint32_t type = status->stx_mode & S_IFMT;
    bool sized = !gone && (type == S_IFREG || type == S_IFLNK);
    put_open(to, 'L');
    put_text(to, path.at);
    put_text(to, kind);
    put_text(to, type_of(status));
    put_number(to, gone ? 0 : status->stx_mode & 07777);
    put_number(to, gone ? 0 : status->stx_uid);
    put_number(to, gone ? 0 : status->stx_gid);
    put_number(to, sized ? (int64_t)status->stx_size : 0);
    put_digest(digest);
    put_truth(to, content);
    put_number(to, !gone && type == S_IFREG ? status->stx_nlink : 0);
    put_close(to);
}

/* Adds a name to the path; returns what to give `leave_name` afterwards. */
static size_t enter_name(const char *name) {
    size_t before = path.used;
    add(&path, "/");
    add(&path, name);
    if (path.cut) fail(now, -EOVERFLOW, "folders are nested too deep");
    return before;
}

static void leave_name(size_t before) {
    path.used = before;
    path.at[before] = 0;
}

static void put_deleted(const char *name, int lower, int depth);

static void put_deleted_below(const char *name, int lower, int depth) {
    int folder = open_folder(now, lower, name);
    struct listing names;
    const char *each;
    if (folder < 0) return;
    if (depth > DEEPEST_DELETED) fail(now, -EOVERFLOW, "folders are nested too deep");
    restart(&names, folder);
    while (!now->error && (each = next_name(&names))) {
        size_t before = enter_name(each);
        put_deleted(each, folder, depth + 1);
        leave_name(before);
    }
    if (names.got < 0) fail(now, names.got, NULL);
    close_fd(folder);
}

static void put_deleted(const char *name, int lower, int depth) {
    struct statx old;
    struct digest none = {0};
    if (!look_at(now, lower, name, &old) || is_whiteout(&old)) return;
    put_entry("deleted", &old, true, &none, true);
    if (is_folder(&old)) put_deleted_below(name, lower, depth);
}

static bool same_metadata(const struct statx *one, const struct statx *other) {
    return (one->stx_mode & 07777) == (other->stx_mode & 07777) && one->stx_uid == other->stx_uid &&
           one->stx_gid == other->stx_gid;
}

static bool same_content(const struct trees *trees, const char *name, const struct statx *status,
                         const struct statx *old, const struct digest *digest) {
    struct digest before = {0};
    if (is_folder(status)) return true;
    if (status->stx_size != old->stx_size || status->stx_rdev_major != old->stx_rdev_major ||
        status->stx_rdev_minor != old->stx_rdev_minor)
        return false;
    before.any = digest_of(now, trees->lower, name, old, before.bytes);
    return memcmp(before.bytes, digest->bytes, DIGEST) == 0;
}

static void compare(const struct trees *trees, int depth);

static void compare_name(const struct trees *trees, const char *name, const struct statx *status,
                         int depth) {
    struct statx old;
    bool was = look_at(now, trees->lower, name, &old) && !is_whiteout(&old), in_lower = true;
    struct digest digest = {0};
    digest.any = digest_of(now, trees->merged, name, status, digest.bytes);
    if (!was) {
        put_entry("added", status, false, &digest, true);
    } else if ((old.stx_mode & S_IFMT) != (status->stx_mode & S_IFMT)) {
        put_entry("modified", status, false, &digest, true);
        if (is_folder(&old)) put_deleted_below(name, trees->lower, depth);
        in_lower = false; /* what it has there is not what is below this */
    } else {
        bool content = !same_content(trees, name, status, &old, &digest);
        if (content || !same_metadata(status, &old))
            put_entry("modified", status, false, &digest, content);
    }
    if (!is_folder(status) || depth >= MAX_DEPTH || now->error) return;
    int fds[MOST_UPPERS];
    struct trees below;
    open_below_all(now, trees, in_lower, name, fds, &below);
    if (below.merged >= 0) compare(&below, depth + 1); /* else it went away just now */
    close_trees(&below);
}

static void visit(const struct trees *trees, const char *name, const struct statx *status, int depth) {
    enum visit what = visit_of(now, trees, path.at, name, status);
    struct digest digest = {0};
    if (what == COMPARE) compare_name(trees, name, status, depth);
    if (what == COMPARE || what == PASS_BY) return;
    digest.any = digest_of(now, trees->merged, name, status, digest.bytes);
    put_entry("modified", status, false, &digest, what == REPORT);
}

static void compare_each(const struct trees *trees, int upper, int depth) {
    struct listing names;
    struct statx status;
    const char *name;
    restart(&names, trees->uppers[upper]);
    while (!now->error && (name = next_name(&names))) {
        if (has_name(now, trees->uppers, upper, name) || !has_time(now)) continue;
        size_t before = enter_name(name);
        if (look_at(now, trees->merged, name, &status))
            visit(trees, name, &status, depth);
        else
            put_deleted(name, trees->lower, depth);
        leave_name(before);
    }
    if (names.got < 0) fail(now, names.got, NULL);
}

/* Compares a folder, `depth` names below the root, and what is below it. */
static void compare(const struct trees *trees, int depth) {
    struct listing names;
    const char *name;
    for (int upper = 0; upper < trees->count; upper++) compare_each(trees, upper, depth);
    if (now->error || !is_opaque(now, trees)) return;
    restart(&names, trees->lower);
    while (!now->error && (name = next_name(&names))) {
        if (has_name(now, trees->uppers, trees->count, name)) continue;
        size_t before = enter_name(name);
        put_deleted(name, trees->lower, depth);
        leave_name(before);
    }
    if (names.got < 0) fail(now, names.got, NULL);
}

void put_changes(struct reply *reply, const struct trees *trees, struct walk *walk) {
    struct statx root, old;
    struct digest none = {0};
    now = walk;
    to = reply;
    path = text_in(path_bytes, sizeof path_bytes);
    memset(links, 0, sizeof links);
    put_open(reply, 'L');
    if (!has_room(walk, trees)) return;
    long failed = status_of_fd(trees->merged, &root);
    if (!failed) failed = status_of_fd(trees->lower, &old);
    if (failed) fail(walk, failed, NULL);
    if (!failed && !same_metadata(&root, &old)) {
        add(&path, "/");
        put_entry("modified", &root, false, &none, false);
        leave_name(0);
    }
    compare(trees, 1);
    put_close(reply);
}
