#include "archive.h"

enum {
    MAX_ARCHIVE_PATH = 3072, /* bytes; stored layers have no room for a longer path */
    NAME_SLOTS = 1 << 20,    /* more than the paths of a walk */
};

/* The first name of a file with several names; its bytes follow. */
struct first_name {
    uint64_t device, inode;
    uint32_t bytes;
    char name[];
};

/* The state of a stream under construction. */
struct writer {
    struct walk *walk;
    int target;
    struct text path;
    uint32_t *slots; /* offsets of first names in `names`, plus 1; 0: free */
    char *names;
    size_t names_used;
    struct { /* a folder of the engine's, written only before changes in it */
        struct statx status;
        size_t path_bytes; /* 0: none */
    } waiting;
    size_t used; /* unwritten bytes of `buffer` */
    char buffer[1 << 16], path_bytes[MAX_ARCHIVE_PATH + 512];
};

/* -- writing --------------------------------------------------------------------------------- */

static void flush(struct writer *writer) {
    if (writer->walk->error) return;
    long error = sys_write_all(writer->target, writer->buffer, writer->used);
    if (error) walk_fail(writer->walk, error, NULL);
    writer->used = 0;
}

static void write_bytes(struct writer *writer, const void *bytes, size_t count) {
    const char *cursor = bytes;
    while (count && !writer->walk->error) {
        if (writer->used == sizeof writer->buffer) flush(writer);
        size_t room = sizeof writer->buffer - writer->used, part = count < room ? count : room;
        if (writer->walk->error) return;
        memcpy(writer->buffer + writer->used, cursor, part);
        writer->used += part;
        cursor += part;
        count -= part;
    }
}

/* -- files of several names ------------------------------------------------------------------ */

static void *reserve(struct writer *writer, size_t bytes) {
    long address = sys_map_shared(bytes);
    if (address < 0) {
        walk_fail(writer->walk, address, NULL);
        return NULL;
    }
    return (void *)address;
}

/* Returns the first name of a file with several names; NULL: the present path is the first, or an
 * error occurred. `status` is of the file's layer: a new name for a file of the image may show as
 * two files in the merged tree. */
static const struct first_name *first_name(struct writer *writer, const struct statx *status) {
    if (!writer->slots) writer->slots = reserve(writer, NAME_SLOTS * sizeof *writer->slots);
    if (!writer->names) writer->names = reserve(writer, MAX_PATH_BYTES);
    if (!writer->slots || !writer->names) return NULL;
    uint64_t device = sys_device_number(status);
    uint64_t slot = (status->stx_ino * 0x9e3779b97f4a7c15u + device) >> 44;
    for (;; slot = (slot + 1) % NAME_SLOTS) {
        if (!writer->slots[slot % NAME_SLOTS]) break;
        const struct first_name *entry =
            (void *)(writer->names + writer->slots[slot % NAME_SLOTS] - 1);
        if (entry->inode == status->stx_ino && entry->device == device) return entry;
    }
    size_t bytes = (sizeof(struct first_name) + writer->path.used + 7) & ~(size_t)7;
    if (bytes > MAX_PATH_BYTES - writer->names_used) {
        walk_fail(writer->walk, -EOVERFLOW, "too many files have several names");
        return NULL;
    }
    struct first_name *addition = (struct first_name *)(writer->names + writer->names_used);
    *addition = (struct first_name){device, status->stx_ino, (uint32_t)writer->path.used};
    memcpy(addition->name, writer->path.start, writer->path.used);
    writer->slots[slot % NAME_SLOTS] = (uint32_t)writer->names_used + 1;
    writer->names_used += bytes;
    return NULL;
}

static void forget_names(struct writer *writer) {
    const size_t slot_bytes = NAME_SLOTS * sizeof *writer->slots;
    /* A failed unmap costs only the sandbox's memory. */
    if (writer->slots) ignore(CALL2(__NR_munmap, writer->slots, slot_bytes));
    if (writer->names) ignore(CALL2(__NR_munmap, writer->names, MAX_PATH_BYTES));
    writer->slots = NULL;
    writer->names = NULL;
    writer->names_used = 0;
}

/* -- entries --------------------------------------------------------------------------------- */

struct entry {
    enum mark mark;
    const char *target;
    size_t target_bytes;
};

static void write_head(struct writer *writer, const struct entry *entry, const struct statx *status,
                       size_t bytes) {
    bool file = entry->mark == PLAIN && (status->stx_mode & S_IFMT) == S_IFREG;
    struct head head = {
        .mark = (uint32_t)entry->mark,
        .mode = status->stx_mode,
        .uid = status->stx_uid,
        .gid = status->stx_gid,
        .seconds = status->stx_mtime.tv_sec,
        .size = file ? status->stx_size : 0,
        .nanoseconds = status->stx_mtime.tv_nsec,
        .path_bytes = (uint32_t)bytes,
        .target_bytes = (uint32_t)entry->target_bytes,
    };
    write_bytes(writer, &head, sizeof head);
    write_bytes(writer, writer->path.start, bytes);
    write_bytes(writer, entry->target, entry->target_bytes);
}

static void write_entry(struct writer *writer, const struct entry *entry,
                        const struct statx *status) {
    static const struct statx nothing;
    if (writer->waiting.path_bytes) {
        size_t bytes = writer->waiting.path_bytes;
        writer->waiting.path_bytes = 0;
        write_head(writer, &(struct entry){.mark = PLAIN}, &writer->waiting.status, bytes);
    }
    write_head(writer, entry, status ? status : &nothing, writer->path.used);
}

static bool all_zero(const unsigned char *bytes, size_t count) {
    return !bytes[0] && memcmp(bytes, bytes + 1, count - 1) == 0;
}

static void write_piece(struct writer *writer, int64_t offset, int64_t count) {
    write_bytes(writer, &offset, sizeof offset);
    write_bytes(writer, &count, sizeof count);
}

static void write_content(struct writer *writer, int folder, const char *name) {
    struct content content;
    int64_t offset;
    long nread = walk_open_content(&content, folder, name);
    if (nread) {
        walk_fail(writer->walk, nread, NULL);
        return;
    }
    while ((nread = walk_next_block(writer->walk, &content, &offset)) > 0) {
        if (all_zero(walk_block, (size_t)nread)) continue; /* a hole has the same content */
        write_piece(writer, offset, nread);
        write_bytes(writer, walk_block, (size_t)nread);
    }
    if (nread < 0) walk_fail(writer->walk, nread, NULL);
    sys_close(content.fd);
    write_piece(writer, 0, 0);
}

/* Writes the entry of the present path, which is `name` in `folder`, and a regular file's
 * content. `layer_status` is its status in its layer; NULL for a folder. */
static void write_file(struct writer *writer, int folder, const char *name,
                       const struct statx *status, const struct statx *layer_status, bool opaque) {
    char link[PATH_MAX];
    struct entry entry = {.mark = opaque ? OPAQUE : PLAIN};
    const struct first_name *first = NULL;
    const char *type = walk_type(status);
    if (!walk_has_time(writer->walk)) return;
    if (text_equal(type, "device")) /* possible only for programs with more privileges than ours */
        walk_fail(writer->walk, -EOVERFLOW, "a device cannot be saved");
    bool linked = layer_status && layer_status->stx_nlink > 1;
    if (linked) first = first_name(writer, layer_status);
    if (writer->walk->error) return;
    if (first) {
        entry.mark = LINK;
        entry.target = first->name;
        entry.target_bytes = first->bytes;
    } else if (text_equal(type, "symlink")) {
        long nread = CALL4(__NR_readlinkat, folder, name, link, sizeof link);
        if (nread < 0) walk_fail(writer->walk, nread, NULL);
        entry.target = link;
        entry.target_bytes = nread > 0 ? (size_t)nread : 0;
    }
    write_entry(writer, &entry, status);
    if (!first && text_equal(type, "file")) write_content(writer, folder, name);
}

static void write_folder(struct writer *writer, const struct trees *trees, int depth);

/* `upper`: the first layer with the name. */
static void write_name(struct writer *writer, const struct trees *trees, int upper,
                       const char *name, int depth) {
    struct statx status, layer_status, lower_status;
    bool is_present = walk_stat(writer->walk, trees->merged, name, &status);
    bool was_present = walk_stat(writer->walk, trees->lower, name, &lower_status);
    if (!is_present && !was_present) return;
    if (is_present && cont_visit(writer->walk, trees, writer->path.start, name, &status) == SKIP)
        return;
    if (writer->path.used > MAX_ARCHIVE_PATH)
        walk_fail(writer->walk, -EOVERFLOW, "what was changed has a path of more than 3072 bytes");
    if (writer->walk->error || !walk_count_path(writer->walk, writer->path.used)) return;
    if (!is_present) {
        write_entry(writer, &(struct entry){.mark = DELETED}, NULL);
    } else if (!walk_is_folder(&status)) {
        if (walk_stat(writer->walk, trees->uppers[upper], name, &layer_status))
            write_file(writer, trees->merged, name, &status, &layer_status, false);
    } else {
        int fds[MAX_UPPERS];
        struct trees below;
        walk_open_below(writer->walk, trees, was_present && walk_is_folder(&lower_status), name,
                        fds, &below);
        if (below.merged >= 0) write_folder(writer, &below, depth + 1);
        walk_close_trees(&below);
    }
}

static void write_named(struct writer *writer, const struct trees *trees, int upper,
                        const char *name, int depth) {
    if (depth > MAX_DEPTH)
        walk_fail(writer->walk, -EOVERFLOW, "folders are nested more than 300 deep");
    size_t path_length = writer->path.used;
    if (path_length) text_add(&writer->path, "/");
    text_add(&writer->path, name);
    write_name(writer, trees, upper, name, depth);
    writer->path.used = path_length;
    writer->path.start[path_length] = 0;
}

static void write_each(struct writer *writer, const struct trees *trees, int upper, int depth) {
    struct listing listing;
    const char *name;
    walk_rewind(&listing, trees->uppers[upper]);
    while (!writer->walk->error && (name = sys_next_name(&listing)))
        if (!walk_has_name(writer->walk, trees->uppers, upper, name))
            write_named(writer, trees, upper, name, depth);
    if (listing.result < 0) walk_fail(writer->walk, listing.result, NULL);
}

/* Writes the deletions in a container, where no layer marks them. */
static void write_deleted(struct writer *writer, const struct trees *trees, int depth) {
    struct listing listing;
    const char *name;
    if (writer->walk->error || trees->lower < 0) return;
    walk_rewind(&listing, trees->lower);
    while (!writer->walk->error && (name = sys_next_name(&listing)))
        if (!walk_has_name(writer->walk, trees->uppers, trees->count, name))
            write_named(writer, trees, 0, name, depth);
    if (listing.result < 0) walk_fail(writer->walk, listing.result, NULL);
}

/* Writes the folder at the present path, `depth` - 1 names below the root, and its contents. */
static void write_folder(struct writer *writer, const struct trees *trees, int depth) {
    struct statx status;
    bool layers = trees->baseline == SINCE_LAYERS;
    long error = sys_stat_fd(trees->merged, &status);
    if (error) walk_fail(writer->walk, error, NULL);
    bool opaque = layers && walk_is_opaque(writer->walk, trees);
    if (writer->walk->error) return;
    if (!layers && depth == 2 && cont_is_initial(&status)) {
        writer->waiting.status = status;
        writer->waiting.path_bytes = writer->path.used;
    } else {
        write_file(writer, trees->merged, ".", &status, NULL, opaque);
    }
    for (int upper = 0; upper < trees->count; upper++) write_each(writer, trees, upper, depth);
    if (!layers) write_deleted(writer, trees, depth);
    if (depth == 2) writer->waiting.path_bytes = 0;
}

void archive_write(const struct trees *trees, int output, struct walk *walk) {
    static struct writer writer; /* static: a stack has no room for it */
    writer.walk = walk;
    writer.target = output;
    writer.used = 0;
    writer.path = text_init(writer.path_bytes, sizeof writer.path_bytes);
    writer.waiting.path_bytes = 0;
    if (walk_has_room(walk, trees)) write_folder(&writer, trees, 1);
    write_bytes(&writer, &(struct head){.mark = END}, sizeof(struct head));
    flush(&writer);
    forget_names(&writer);
}
