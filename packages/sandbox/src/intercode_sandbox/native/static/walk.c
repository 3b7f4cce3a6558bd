#include "walk.h"

#include "blake2b.h"

enum {
    MAX_DELETED_DEPTH = 1200,
    MAX_PATH_LENGTH = (MAX_DELETED_DEPTH + 2) * 256,
    LINKS = 256,
};

/* -- limits ---------------------------------------------------------------------------------- */

void walk_begin(struct walk *walk, int64_t timeout_ms) {
    if (timeout_ms > INT32_MAX) timeout_ms = INT32_MAX;
    *walk = (struct walk){.deadline = sys_milliseconds() + timeout_ms, .room = MAX_PATH_BYTES};
}

void walk_fail(struct walk *walk, long error, const char *message) {
    if (walk->error) return;
    walk->error = error;
    walk->message = message;
}

bool walk_has_room(struct walk *walk, const struct trees *trees) {
    if (trees->count < 0 || trees->count > MAX_UPPERS)
        walk_fail(walk, -E2BIG, "there are too many layers");
    return !walk->error;
}

bool walk_has_time(struct walk *walk) {
    if (sys_milliseconds() >= walk->deadline)
        walk_fail(walk, -ETIMEDOUT, "walking over the file system took too long");
    return !walk->error;
}

bool walk_count_path(struct walk *walk, size_t bytes) {
    walk->room -= (int64_t)bytes + ENTRY_BYTES;
    if (walk->room < 0)
        walk_fail(walk, -EOVERFLOW, "the names of what was changed have more than 32 MiB");
    return walk_has_time(walk);
}

/* -- folders --------------------------------------------------------------------------------- */

void walk_rewind(struct listing *listing, int fd) {
    /* A listing that cannot rewind must not continue in its middle: its first name reports an
     * error. */
    long error = CALL3(__NR_lseek, fd, 0, SEEK_SET);
    listing->fd = error < 0 ? -1 : fd;
    listing->result = listing->position = 0;
}

bool walk_stat(struct walk *walk, int folder, const char *name, struct statx *status) {
    if (folder < 0 || walk->error) return false;
    long error = sys_stat(folder, name, status);
    if (error && error != -ENOENT) walk_fail(walk, error, NULL);
    return !error;
}

bool walk_is_folder(const struct statx *status) { return (status->stx_mode & S_IFMT) == S_IFDIR; }

bool walk_has_name(struct walk *walk, const int *folders, int count, const char *name) {
    struct statx status;
    for (int i = 0; i < count; i++)
        if (walk_stat(walk, folders[i], name, &status)) return true;
    return false;
}

bool walk_is_opaque(struct walk *walk, const struct trees *trees) {
    struct listing names;
    struct statx status;
    const char *name;
    if (trees->lower < 0) return false;
    walk_rewind(&names, trees->lower);
    while ((name = sys_next_name(&names)))
        if (!walk_has_name(walk, trees->uppers, trees->count, name))
            return !walk_stat(walk, trees->merged, name, &status) && !walk->error;
    if (names.result < 0) walk_fail(walk, names.result, NULL);
    return false;
}

static int open_folder(struct walk *walk, int folder, const char *name) {
    if (folder < 0 || walk->error) return -1;
    long fd = sys_open(folder, name, FOLDER_FLAGS, 0);
    if (fd < 0 && fd != -ENOENT && fd != -ENOTDIR) walk_fail(walk, fd, NULL);
    return fd < 0 ? -1 : (int)fd;
}

void walk_open_below(struct walk *walk, const struct trees *trees, bool in_lower, const char *name,
                     int *fds, struct trees *below) {
    int count = 0;
    for (int i = 0; i < trees->count; i++) {
        int fd = open_folder(walk, trees->uppers[i], name);
        if (fd >= 0) fds[count++] = fd;
    }
    below->baseline = trees->baseline;
    below->uppers = fds;
    below->count = count;
    below->lower = in_lower ? open_folder(walk, trees->lower, name) : -1;
    below->merged = open_folder(walk, trees->merged, name);
}

void walk_close_trees(const struct trees *trees) {
    for (int i = 0; i < trees->count; i++) sys_close(trees->uppers[i]);
    sys_close(trees->lower);
    sys_close(trees->merged);
}

const char *walk_type(const struct statx *status) {
    switch (status->stx_mode & S_IFMT) {
    case S_IFREG: return "file";
    case S_IFDIR: return "dir";
    case S_IFLNK: return "symlink";
    case S_IFIFO: return "fifo";
    case S_IFSOCK: return "socket";
    default: return "device";
    }
}

/* Whether this is overlayfs's mark for "deleted", which no agent can make. */
static bool is_whiteout(const struct statx *status) {
    return (status->stx_mode & S_IFMT) == S_IFCHR && !status->stx_rdev_major &&
           !status->stx_rdev_minor;
}

/* -- content --------------------------------------------------------------------------------- */

unsigned char walk_block[BLOCK];

long walk_open_content(struct content *content, int folder, const char *name) {
    struct statx status;
    long fd = sys_open(folder, name, HOSTILE_FILE_FLAGS, 0);
    if (fd < 0) return fd;
    long error = sys_stat_fd((int)fd, &status);
    if (error) sys_close((int)fd);
    *content = (struct content){.fd = (int)fd, .size = (int64_t)status.stx_size};
    return error;
}

static int64_t whole_pages(int64_t size) { return (size + PAGE - 1) / PAGE * PAGE; }

/* Advances to the next data: 1, 0 before a last hole, or an error. */
static long find_data(struct content *content) {
    if (content->offset >= content->size) return 0;
    long data = CALL3(__NR_lseek, content->fd, content->offset, SEEK_DATA);
    if (data < 0) return data == -ENXIO ? 0 : data;
    content->offset = data / PAGE * PAGE;
    content->end = CALL3(__NR_lseek, content->fd, content->offset, SEEK_HOLE);
    /* A page that starts with a hole is read all the same. */
    if (content->end <= content->offset) content->end = content->offset + 1;
    return 1;
}

long walk_next_block(struct walk *walk, struct content *content, int64_t *offset) {
    long data = content->offset < content->end ? 1 : find_data(content);
    if (data <= 0) return data;
    if (!walk_has_time(walk)) return walk->error;
    int64_t count = whole_pages(content->end - content->offset);
    if (count > BLOCK) count = BLOCK;
    long nread;
    do nread = CALL4(__NR_pread64, content->fd, walk_block, count, content->offset);
    while (nread == -EINTR);
    *offset = content->offset;
    if (nread > 0) content->offset += whole_pages(nread);
    return nread;
}

static bool is_zero(const unsigned char *bytes, size_t count) {
    uint64_t bits = 0, word;
    size_t position = 0;
    for (; position + sizeof word <= count; position += sizeof word) {
        __builtin_memcpy(&word, bytes + position, sizeof word);
        bits |= word;
    }
    for (; position < count; position++) bits |= bytes[position];
    return !bits;
}

/* BLAKE2b over a file's size and its non-zero pages, each with its position. Holes and written
 * zeros have one digest, and a sparse file of terabytes costs only its data. */
void walk_hash_content(struct walk *walk, int folder, const char *name, unsigned char *digest) {
    struct content content;
    struct blake2b hash;
    int64_t offset = 0;
    long nread = walk_open_content(&content, folder, name);
    if (nread) {
        walk_fail(walk, nread, NULL);
        return;
    }
    blake2b_begin(&hash);
    blake2b_add(&hash, &content.size, sizeof content.size);
    while ((nread = walk_next_block(walk, &content, &offset)) > 0) {
        for (long position = 0; position < nread; position += PAGE) {
            size_t count = (size_t)(nread - position < PAGE ? nread - position : PAGE);
            if (is_zero(walk_block + position, count)) continue;
            int64_t file_offset = offset + position;
            blake2b_add(&hash, &file_offset, sizeof file_offset);
            blake2b_add(&hash, walk_block + position, count);
        }
    }
    if (nread < 0) walk_fail(walk, nread, NULL);
    sys_close(content.fd);
    blake2b_end(&hash, digest);
}

/* -- digests --------------------------------------------------------------------------------- */

/* An entry of the cache of digests of files with several names. The cache has few entries: a
 * digest that another has replaced is computed again. */
struct hard_link {
    uint64_t device, inode;
    unsigned char digest[DIGEST];
};

/* The state of a comparison: its limits, its output and the present path. */
struct comparison {
    struct walk *walk;
    struct reply *reply;
    struct text path;
    struct hard_link links[LINKS];
};

static void hash_link(struct comparison *comparison, int folder, const char *name,
                      unsigned char *digest) {
    char target[PATH_MAX];
    struct blake2b hash;
    long nread = CALL4(__NR_readlinkat, folder, name, target, sizeof target);
    if (nread < 0) walk_fail(comparison->walk, nread, NULL);
    blake2b_begin(&hash);
    blake2b_add(&hash, target, nread > 0 ? (size_t)nread : 0);
    blake2b_end(&hash, digest);
}

/* Computes the digest of a file or symbolic link; false: another type. */
static bool digest_of(struct comparison *comparison, int folder, const char *name,
                      const struct statx *status, unsigned char *digest) {
    uint32_t type = status->stx_mode & S_IFMT;
    if (comparison->walk->error) return false;
    if (type == S_IFLNK) hash_link(comparison, folder, name, digest);
    if (type != S_IFREG) return type == S_IFLNK;
    struct hard_link *link = &comparison->links[status->stx_ino % LINKS];
    bool is_cached = link->inode == status->stx_ino && link->device == sys_device_number(status);
    if (is_cached && status->stx_nlink > 1) {
        memcpy(digest, link->digest, DIGEST);
        return true;
    }
    walk_hash_content(comparison->walk, folder, name, digest);
    if (status->stx_nlink > 1 && !comparison->walk->error) {
        link->device = sys_device_number(status);
        link->inode = status->stx_ino;
        memcpy(link->digest, digest, DIGEST);
    }
    return true;
}

/* -- entries --------------------------------------------------------------------------------- */

struct digest {
    bool exists;
    unsigned char bytes[DIGEST];
};

static void put_digest(struct comparison *comparison, const struct digest *digest) {
    static const char digits[] = "0123456789abcdef";
    char text[2 * DIGEST];
    for (int i = 0; i < DIGEST; i++) {
        text[2 * i] = digits[digest->bytes[i] >> 4];
        text[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    msg_put_bytes(comparison->reply, text, digest->exists ? sizeof text : 0);
}

static void put_entry(struct comparison *comparison, const char *kind, const struct statx *status,
                      bool gone, const struct digest *digest, bool content) {
    if (!walk_count_path(comparison->walk, comparison->path.used) ||
        text_equal(comparison->path.start, "/dev/shm"))
        return;
    uint32_t type = status->stx_mode & S_IFMT;
    bool sized = !gone && (type == S_IFREG || type == S_IFLNK);
    msg_put_open(comparison->reply, 'L');
    msg_put_text(comparison->reply, comparison->path.start);
    msg_put_text(comparison->reply, kind);
    msg_put_text(comparison->reply, walk_type(status));
    msg_put_number(comparison->reply, gone ? 0 : status->stx_mode & MODE_BITS);
    msg_put_number(comparison->reply, gone ? 0 : status->stx_uid);
    msg_put_number(comparison->reply, gone ? 0 : status->stx_gid);
    msg_put_number(comparison->reply, sized ? (int64_t)status->stx_size : 0);
    put_digest(comparison, digest);
    msg_put_bool(comparison->reply, content);
    msg_put_number(comparison->reply, !gone && type == S_IFREG ? status->stx_nlink : 0);
    msg_put_close(comparison->reply);
}

/* Appends a name to the path; returns the previous length, for `leave_name`. */
static size_t enter_name(struct comparison *comparison, const char *name) {
    size_t path_length = comparison->path.used;
    text_add(&comparison->path, "/");
    text_add(&comparison->path, name);
    if (comparison->path.cut)
        walk_fail(comparison->walk, -EOVERFLOW, "folders are nested too deep");
    return path_length;
}

static void leave_name(struct comparison *comparison, size_t path_length) {
    comparison->path.used = path_length;
    comparison->path.start[path_length] = 0;
}

static void put_deleted(struct comparison *comparison, const char *name, int lower, int depth);

static void put_deleted_below(struct comparison *comparison, const char *name, int lower,
                              int depth) {
    int folder = open_folder(comparison->walk, lower, name);
    struct listing names;
    const char *child;
    if (folder < 0) return;
    if (depth > MAX_DELETED_DEPTH)
        walk_fail(comparison->walk, -EOVERFLOW, "folders are nested too deep");
    walk_rewind(&names, folder);
    while (!comparison->walk->error && (child = sys_next_name(&names))) {
        size_t path_length = enter_name(comparison, child);
        put_deleted(comparison, child, folder, depth + 1);
        leave_name(comparison, path_length);
    }
    if (names.result < 0) walk_fail(comparison->walk, names.result, NULL);
    sys_close(folder);
}

static void put_deleted(struct comparison *comparison, const char *name, int lower, int depth) {
    struct statx lower_status;
    struct digest no_digest = {0};
    if (!walk_stat(comparison->walk, lower, name, &lower_status) || is_whiteout(&lower_status))
        return;
    put_entry(comparison, "deleted", &lower_status, true, &no_digest, true);
    if (walk_is_folder(&lower_status)) put_deleted_below(comparison, name, lower, depth);
}

static bool equal_metadata(const struct statx *left, const struct statx *right) {
    return (left->stx_mode & MODE_BITS) == (right->stx_mode & MODE_BITS) &&
           left->stx_uid == right->stx_uid && left->stx_gid == right->stx_gid;
}

static bool equal_content(struct comparison *comparison, const struct trees *trees,
                          const char *name, const struct statx *status,
                          const struct statx *lower_status, const struct digest *digest) {
    struct digest lower_digest = {0};
    if (walk_is_folder(status)) return true;
    if (status->stx_size != lower_status->stx_size ||
        status->stx_rdev_major != lower_status->stx_rdev_major ||
        status->stx_rdev_minor != lower_status->stx_rdev_minor)
        return false;
    lower_digest.exists =
        digest_of(comparison, trees->lower, name, lower_status, lower_digest.bytes);
    return memcmp(lower_digest.bytes, digest->bytes, DIGEST) == 0;
}

static void compare(struct comparison *comparison, const struct trees *trees, int depth);

static void compare_name(struct comparison *comparison, const struct trees *trees, const char *name,
                         const struct statx *status, int depth) {
    struct statx lower_status;
    bool was_present = walk_stat(comparison->walk, trees->lower, name, &lower_status) &&
                       !is_whiteout(&lower_status),
         in_lower = true;
    struct digest digest = {0};
    digest.exists = digest_of(comparison, trees->merged, name, status, digest.bytes);
    if (!was_present) {
        put_entry(comparison, "added", status, false, &digest, true);
    } else if ((lower_status.stx_mode & S_IFMT) != (status->stx_mode & S_IFMT)) {
        put_entry(comparison, "modified", status, false, &digest, true);
        if (walk_is_folder(&lower_status)) put_deleted_below(comparison, name, trees->lower, depth);
        in_lower = false; /* lower's folder of that name is unrelated */
    } else {
        bool content = !equal_content(comparison, trees, name, status, &lower_status, &digest);
        if (content || !equal_metadata(status, &lower_status))
            put_entry(comparison, "modified", status, false, &digest, content);
    }
    if (!walk_is_folder(status) || depth >= MAX_DEPTH || comparison->walk->error) return;
    int fds[MAX_UPPERS];
    struct trees below;
    walk_open_below(comparison->walk, trees, in_lower, name, fds, &below);
    if (below.merged >= 0)
        compare(comparison, &below, depth + 1); /* otherwise it has just been removed */
    walk_close_trees(&below);
}

static void visit(struct comparison *comparison, const struct trees *trees, const char *name,
                  const struct statx *status, int depth) {
    enum visit action = cont_visit(comparison->walk, trees, comparison->path.start, name, status);
    struct digest digest = {0};
    if (action == COMPARE) compare_name(comparison, trees, name, status, depth);
    if (action == COMPARE || action == SKIP) return;
    digest.exists = digest_of(comparison, trees->merged, name, status, digest.bytes);
    put_entry(comparison, "modified", status, false, &digest, action == REPORT);
}

static void compare_each(struct comparison *comparison, const struct trees *trees, int upper,
                         int depth) {
    struct listing names;
    struct statx status;
    const char *name;
    walk_rewind(&names, trees->uppers[upper]);
    while (!comparison->walk->error && (name = sys_next_name(&names))) {
        if (walk_has_name(comparison->walk, trees->uppers, upper, name) ||
            !walk_has_time(comparison->walk))
            continue;
        size_t path_length = enter_name(comparison, name);
        if (walk_stat(comparison->walk, trees->merged, name, &status))
            visit(comparison, trees, name, &status, depth);
        else
            put_deleted(comparison, name, trees->lower, depth);
        leave_name(comparison, path_length);
    }
    if (names.result < 0) walk_fail(comparison->walk, names.result, NULL);
}

/* Compares a folder, `depth` - 1 names below the root, with all below it. */
static void compare(struct comparison *comparison, const struct trees *trees, int depth) {
    struct listing names;
    const char *name;
    for (int upper = 0; upper < trees->count; upper++)
        compare_each(comparison, trees, upper, depth);
    if (comparison->walk->error || !walk_is_opaque(comparison->walk, trees)) return;
    walk_rewind(&names, trees->lower);
    while (!comparison->walk->error && (name = sys_next_name(&names))) {
        if (walk_has_name(comparison->walk, trees->uppers, trees->count, name)) continue;
        size_t path_length = enter_name(comparison, name);
        put_deleted(comparison, name, trees->lower, depth);
        leave_name(comparison, path_length);
    }
    if (names.result < 0) walk_fail(comparison->walk, names.result, NULL);
}

void walk_put_changes(struct reply *reply, const struct trees *trees, struct walk *walk) {
    static char
        path_bytes[MAX_PATH_LENGTH]; /* static, as the comparison: a stack has no room for them */
    static struct comparison comparison;
    struct statx root, lower_status;
    struct digest no_digest = {0};
    comparison.walk = walk;
    comparison.reply = reply;
    comparison.path = text_init(path_bytes, sizeof path_bytes);
    memset(comparison.links, 0, sizeof comparison.links);
    msg_put_open(reply, 'L');
    if (!walk_has_room(walk, trees)) return;
    long error = sys_stat_fd(trees->merged, &root);
    if (!error) error = sys_stat_fd(trees->lower, &lower_status);
    if (error) walk_fail(walk, error, NULL);
    if (!error && !equal_metadata(&root, &lower_status)) {
        text_add(&comparison.path, "/");
        put_entry(&comparison, "modified", &root, false, &no_digest, false);
        leave_name(&comparison, 0);
    }
    compare(&comparison, trees, 1);
    msg_put_close(reply);
}
