#include "archive.h"

enum {
    MAX_REMOVE_DEPTH = 1200,
};

struct stream {
    int source, root;
    bool folders; /* the second pass, over folders alone */
    long error;
    struct head head;
    char path[PATH_MAX], target[PATH_MAX];
};

/* -- reading ---------------------------------------------------------------------------------- */

static long read_exactly(int fd, void *buffer, size_t count) {
    char *cursor = buffer;
    while (count) {
        long nread = sys_read(fd, cursor, count);
        if (nread <= 0) return nread ? nread : -EPROTO;
        cursor += nread;
        count -= (size_t)nread;
    }
    return 0;
}

/* Reads the next entry: 1, 0 at the end, or an error. */
static long next_entry(struct stream *stream) {
    long error = read_exactly(stream->source, &stream->head, sizeof stream->head);
    if (error) return error;
    if (stream->head.mark == END) return 0;
    if (stream->head.path_bytes >= PATH_MAX || stream->head.target_bytes >= PATH_MAX)
        return -EPROTO;
    stream->path[stream->head.path_bytes] = stream->target[stream->head.target_bytes] = 0;
    error = read_exactly(stream->source, stream->path, stream->head.path_bytes);
    if (!error) error = read_exactly(stream->source, stream->target, stream->head.target_bytes);
    return error ? error : 1;
}

/* Writes the pieces of a file to `file`; -1 skips them. */
static long write_pieces(const struct stream *stream, int file) {
    for (;;) {
        struct piece piece;
        long error = read_exactly(stream->source, &piece, sizeof piece);
        if (error || !piece.count) return error;
        if (piece.count < 0 || piece.count > BLOCK) return -EPROTO;
        if (file < 0) {
            error = CALL3(__NR_lseek, stream->source, piece.count, SEEK_CUR);
            if (error < 0) return error;
            continue;
        }
        error = read_exactly(stream->source, walk_block, (size_t)piece.count);
        for (int64_t offset = 0; !error && offset < piece.count;) {
            long nwritten = CALL4(__NR_pwrite64, file, walk_block + offset, piece.count - offset,
                                  piece.offset + offset);
            if (nwritten > 0) offset += nwritten;
            if (nwritten < 0 && nwritten != -EINTR) error = nwritten;
        }
        if (error) return error;
    }
}

/* -- writing ---------------------------------------------------------------------------------- */

/* Opens a path's parent folder, and follows no link; `name` becomes the path's last name. */
static long open_above(int root, const char *path, const char **name) {
    TEXT(above, PATH_MAX);
    text_add(&above, path);
    while (above.used && above.start[above.used - 1] != '/') above.used--;
    *name = path + above.used;
    above.start[above.used] = 0;
    return sys_open_folder(root, above.used ? above.start : ".");
}

static long remove(int folder, const char *name, int depth);

/* Removes a folder's contents. Returns the number of removed names or an error. */
static long remove_below(int folder, int depth) {
    struct listing names;
    const char *name;
    long error = 0, count = 0;
    walk_rewind(&names, folder);
    while (!error && (name = sys_next_name(&names))) {
        error = remove(folder, name, depth);
        count++;
    }
    return error ? error : names.result < 0 ? names.result : count;
}

/* Removes a file or a tree. */
static long remove(int folder, const char *name, int depth) {
    long error = CALL3(__NR_unlinkat, folder, name, 0);
    if (error != -EISDIR) return error == -ENOENT ? 0 : error;
    if (depth > MAX_REMOVE_DEPTH) return -EOVERFLOW;
    long below = sys_open(folder, name, FOLDER_FLAGS, 0), count;
    if (below < 0) return below;
    /* A changing folder lists some names only later. */
    do count = remove_below((int)below, depth + 1);
    while (count > 0);
    sys_close((int)below);
    return count ? count : CALL3(__NR_unlinkat, folder, name, AT_REMOVEDIR);
}

/* Sets a file's owner, mode and time. */
static long dress(const struct head *head, int folder, const char *name) {
    int64_t times[4] = {0, UTIME_NOW, head->seconds, head->nanoseconds};
    int link = AT_SYMLINK_NOFOLLOW;
    long error = CALL5(__NR_fchownat, folder, name, head->uid, head->gid, link);
    /* The mode comes after the owner, whose change clears bits of the mode. */
    if (!error && (head->mode & S_IFMT) != S_IFLNK)
        error = CALL3(__NR_fchmodat, folder, name, head->mode & MODE_BITS);
    return error ? error : CALL4(__NR_utimensat, folder, name, times, link);
}

static long make_file(const struct stream *stream, int folder, const char *name) {
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    long file = sys_open(folder, name, flags, 0600);
    if (file < 0) return file;
    long error = write_pieces(stream, (int)file);
    if (!error) error = CALL2(__NR_ftruncate, file, stream->head.size);
    sys_close((int)file);
    return error;
}

static long make_link(const struct stream *stream, int folder, const char *name) {
    const char *first;
    long above = open_above(stream->root, stream->target, &first);
    if (above < 0) return above;
    long error = CALL5(__NR_linkat, above, first, folder, name, 0);
    sys_close((int)above);
    return error;
}

/* Makes the file of an entry, in place of an existing one; an existing folder stays a folder.
 * Removes the file of a deleted path. */
static long make(const struct stream *stream, int folder, const char *name) {
    const struct head *head = &stream->head;
    uint32_t type = head->mark == DELETED ? 0 : head->mode & S_IFMT;
    struct statx status;
    long error = sys_stat(folder, name, &status);
    bool is_directory = !error && walk_is_folder(&status);
    if (error && error != -ENOENT) return error;
    if (type == S_IFDIR && head->mark != LINK && is_directory) return 0;
    error = error ? 0 : remove(folder, name, 0);
    /* A mounted file cannot be removed: it is overwritten in place. */
    if (error && (error != -EBUSY || type != S_IFREG)) return error;
    if (!type) return 0;
    if (head->mark == LINK) return make_link(stream, folder, name);
    switch (type) {
    case S_IFDIR: return CALL3(__NR_mkdirat, folder, name, 0700);
    case S_IFLNK: error = CALL3(__NR_symlinkat, stream->target, folder, name); break;
    case S_IFREG: error = make_file(stream, folder, name); break;
    case S_IFIFO:
    case S_IFSOCK: error = CALL4(__NR_mknodat, folder, name, type | 0600, 0); break;
    default: return -EPROTO;
    }
    return error ? error : dress(head, folder, name);
}

static long apply_entry(const struct stream *stream) {
    const struct head *head = &stream->head;
    const char *name = ".";
    bool plain = head->mark == PLAIN || head->mark == OPAQUE, root = text_equal(stream->path, "");
    bool folder = plain && (head->mode & S_IFMT) == S_IFDIR;
    /* Both are mounts, already as they must be. */
    bool mounted = text_equal(stream->path, "dev") || text_equal(stream->path, "dev/shm");
    if (mounted || (root && !stream->folders)) return 0;
    if (stream->folders && !folder)
        return plain && (head->mode & S_IFMT) == S_IFREG ? write_pieces(stream, -1) : 0;
    long above =
        root ? sys_open_folder(stream->root, ".") : open_above(stream->root, stream->path, &name);
    if (above < 0) return above;
    long error = stream->folders ? dress(head, (int)above, name) : make(stream, (int)above, name);
    sys_close((int)above);
    return error;
}

static void apply_all(void *context) {
    struct stream *stream = context;
    long result;
    while ((result = next_entry(stream)) > 0) {
        result = apply_entry(stream);
        if (result) break;
    }
    stream->error = result;
}

long apply_archive(int source, int root) {
    static struct stream stream;
    long error = 0;
    /* Folders come in the second pass: a write into a folder changes its times. */
    for (int pass = 0; pass < 2 && !error; pass++) {
        stream = (struct stream){.source = source, .root = root, .folders = pass};
        error = CALL3(__NR_lseek, source, 0, SEEK_SET);
        if (!error) error = sys_run_on_stack(apply_all, &stream);
        if (!error) error = stream.error;
    }
    return error;
}
