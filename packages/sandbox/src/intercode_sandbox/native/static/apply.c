#include "archive.h"

enum { DEEPEST = 1200, REMOVE_FOLDER = 0x200 /* AT_REMOVEDIR */, FROM_START = 0, FROM_HERE = 1 };

struct stream {
    int source, root;
    bool folders; /* the second pass, over these alone */
    long error;
    struct head head;
    char path[PATH_MAX], target[PATH_MAX];
};

/* -- reading ---------------------------------------------------------------------------------- */

static long read_exactly(int fd, void *to, size_t count) {
    char *at = to;
    while (count) {
        long got = read_fd(fd, at, count);
        if (got <= 0) return got ? got : -EPROTO;
        at += got;
        count -= (size_t)got;
    }
    return 0;
}

/* Reads on: 1, 0 at the end, or an error. */
static long next_entry(struct stream *stream) {
    long failed = read_exactly(stream->source, &stream->head, sizeof stream->head);
    if (failed) return failed;
    if (stream->head.mark == END) return 0;
    if (stream->head.path_bytes >= PATH_MAX || stream->head.target_bytes >= PATH_MAX) return -EPROTO;
    stream->path[stream->head.path_bytes] = stream->target[stream->head.target_bytes] = 0;
    failed = read_exactly(stream->source, stream->path, stream->head.path_bytes);
    if (!failed) failed = read_exactly(stream->source, stream->target, stream->head.target_bytes);
    return failed ? failed : 1;
}

/* Writes the pieces of a file to it; -1: to none. */
static long write_pieces(const struct stream *stream, int file) {
    for (;;) {
        struct piece piece;
        long failed = read_exactly(stream->source, &piece, sizeof piece);
        if (failed || !piece.count) return failed;
        if (piece.count < 0 || piece.count > BLOCK) return -EPROTO;
        if (file < 0) {
            failed = CALL3(__NR_lseek, stream->source, piece.count, FROM_HERE);
            if (failed < 0) return failed;
            continue;
        }
        failed = read_exactly(stream->source, block, (size_t)piece.count);
        for (int64_t done = 0; !failed && done < piece.count;) {
            long put = CALL4(__NR_pwrite64, file, block + done, piece.count - done, piece.from + done);
            if (put > 0) done += put;
            if (put < 0 && put != -EINTR) failed = put;
        }
        if (failed) return failed;
    }
}

/* -- writing ---------------------------------------------------------------------------------- */

/* Opens the folder that a path is in, no link followed on the way; `name` becomes its last name. */
static long open_above(int root, const char *path, const char **name) {
    TEXT(above, PATH_MAX);
    add(&above, path);
    while (above.used && above.at[above.used - 1] != '/') above.used--;
    *name = path + above.used;
    above.at[above.used] = 0;
    return open_place(root, above.used ? above.at : ".");
}

static long remove(int folder, const char *name, int depth);

/* Removes what is in a folder: how many names, or an error. */
static long remove_below(int folder, int depth) {
    struct listing names;
    const char *name;
    long failed = 0, count = 0;
    restart(&names, folder);
    while (!failed && (name = next_name(&names))) {
        failed = remove(folder, name, depth);
        count++;
    }
    return failed ? failed : names.got < 0 ? names.got : count;
}

/* Removes a file or a tree. */
static long remove(int folder, const char *name, int depth) {
    long failed = CALL3(__NR_unlinkat, folder, name, 0);
    if (failed != -EISDIR) return failed == -ENOENT ? 0 : failed;
    if (depth > DEEPEST) return -EOVERFLOW;
    long below = open_at(folder, name, FOLDER, 0), count;
    if (below < 0) return below;
    do count = remove_below((int)below, depth + 1); /* a folder that changes lists some only later */
    while (count > 0);
    close_fd((int)below);
    return count ? count : CALL3(__NR_unlinkat, folder, name, REMOVE_FOLDER);
}

/* Gives a file its owner, mode and time. */
static long dress(const struct head *head, int folder, const char *name) {
    int64_t times[4] = {0, 0x3fffffff /* UTIME_NOW */, head->seconds, head->nanoseconds};
    int link = AT_SYMLINK_NOFOLLOW;
    long failed = CALL5(__NR_fchownat, folder, name, head->uid, head->gid, link);
    /* After the owner, which clears bits of it. */
    if (!failed && (head->mode & S_IFMT) != S_IFLNK)
        failed = CALL3(__NR_fchmodat, folder, name, head->mode & 07777);
    return failed ? failed : CALL4(__NR_utimensat, folder, name, times, link);
}

static long make_file(const struct stream *stream, int folder, const char *name) {
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    long file = open_at(folder, name, flags, 0600);
    if (file < 0) return file;
    long failed = write_pieces(stream, (int)file);
    if (!failed) failed = CALL2(__NR_ftruncate, file, stream->head.size);
    close_fd((int)file);
    return failed;
}

static long make_link(const struct stream *stream, int folder, const char *name) {
    const char *first;
    long above = open_above(stream->root, stream->target, &first);
    if (above < 0) return above;
    long failed = CALL5(__NR_linkat, above, first, folder, name, 0);
    close_fd((int)above);
    return failed;
}

/* Makes the file of an entry, in place of what is there. */
static long make(const struct stream *stream, int folder, const char *name) {
    const struct head *head = &stream->head;
    uint32_t type = head->mark == DELETED ? 0 : head->mode & S_IFMT;
    struct statx status;
    long failed = status_of(folder, name, &status);
    bool there = !failed && is_folder(&status);
    if (failed && failed != -ENOENT) return failed;
    if (type == S_IFDIR && head->mark != LINK && there) return 0;
    failed = failed ? 0 : remove(folder, name, 0);
    /* A file that is mounted is written to where it is. */
    if (failed && (failed != -EBUSY || type != S_IFREG)) return failed;
    if (!type) return 0;
    if (head->mark == LINK) return make_link(stream, folder, name);
    switch (type) {
    case S_IFDIR: return CALL3(__NR_mkdirat, folder, name, 0700);
    case S_IFLNK: failed = CALL3(__NR_symlinkat, stream->target, folder, name); break;
    case S_IFREG: failed = make_file(stream, folder, name); break;
    case S_IFIFO:
    case S_IFSOCK: failed = CALL4(__NR_mknodat, folder, name, type | 0600, 0); break;
    default: return -EPROTO;
    }
    return failed ? failed : dress(head, folder, name);
}

static long apply_entry(const struct stream *stream) {
    const struct head *head = &stream->head;
    const char *name = ".";
    bool plain = head->mark == PLAIN || head->mark == OPAQUE, root = same(stream->path, "");
    bool folder = plain && (head->mode & S_IFMT) == S_IFDIR;
    bool mounted = same(stream->path, "dev") || same(stream->path, "dev/shm"); /* and as it must be */
    if (mounted || (root && !stream->folders)) return 0;
    if (stream->folders && !folder)
        return plain && (head->mode & S_IFMT) == S_IFREG ? write_pieces(stream, -1) : 0;
    long above = root ? open_place(stream->root, ".") : open_above(stream->root, stream->path, &name);
    if (above < 0) return above;
    long failed = stream->folders ? dress(head, (int)above, name) : make(stream, (int)above, name);
    close_fd((int)above);
    return failed;
}

static void apply_all(void *with) {
    struct stream *stream = with;
    long more;
    while ((more = next_entry(stream)) > 0) {
        more = apply_entry(stream);
        if (more) break;
    }
    stream->error = more;
}

long apply_archive(int source, int root) {
    static struct stream stream;
    long failed = 0;
    /* Folders last: writing into one changes its times. */
    for (int pass = 0; pass < 2 && !failed; pass++) {
        stream = (struct stream){.source = source, .root = root, .folders = pass};
        failed = CALL3(__NR_lseek, source, 0, FROM_START);
        if (!failed) failed = on_own_stack(apply_all, &stream);
        if (!failed) failed = stream.error;
    }
    return failed;
}
