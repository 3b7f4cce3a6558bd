#include "archive.h"

enum {
    MAX_ARCHIVE_PATH = 3072, /* bytes of a path: no longer one can be named where layers are kept */
    NAME_SLOTS = 1 << 20,    /* more than the paths that a walk finds */
};

static struct walk *now;
static char buffer[1 << 16], path_bytes[MAX_ARCHIVE_PATH + 512];
static size_t used; /* bytes of `buffer` that are still to be written */
static int target;
static struct text path;

/* -- writing --------------------------------------------------------------------------------- */

static void flush(void) {
    if (now->error) return;
    long error = sys_write_all(target, buffer, used);
    if (error) walk_fail(now, error, NULL);
    used = 0;
}

static void write_bytes(const void *bytes, size_t count) {
    const char *cursor = bytes;
    while (count && !now->error) {
        if (used == sizeof buffer) flush();
        size_t room = sizeof buffer - used, part = count < room ? count : room;
        if (now->error) return;
        memcpy(buffer + used, cursor, part);
        used += part;
        cursor += part;
        count -= part;
    }
}

/* -- files of several names ------------------------------------------------------------------ */

struct first_name { /* followed by the name */
    uint64_t device, inode;
    uint32_t bytes;
    char name[];
};

static uint32_t *slots; /* where a file's first name is in `names`, and 1 more; 0: free */
static char *names;
static size_t names_used;

static void *reserve(size_t bytes) {
    long address = sys_map_shared(bytes);
    if (address < 0) {
        walk_fail(now, address, NULL);
        return NULL;
    }
    return (void *)address;
}

/* The first name of a file of several; NULL: it is this one. `status` is of its layer: where a name
 * was given to a file of the image, the merged tree may show two files. */
static const struct first_name *first_name(const struct statx *status) {
    if (!slots) slots = reserve(NAME_SLOTS * sizeof *slots);
    if (!names) names = reserve(MAX_PATH_BYTES);
    if (!slots || !names) return NULL;
    uint64_t device = sys_device_number(status);
    uint64_t slot = (status->stx_ino * 0x9e3779b97f4a7c15u + device) >> 44;
    for (;; slot = (slot + 1) % NAME_SLOTS) {
        if (!slots[slot % NAME_SLOTS]) break;
        const struct first_name *entry = (void *)(names + slots[slot % NAME_SLOTS] - 1);
        if (entry->inode == status->stx_ino && entry->device == device) return entry;
    }
    size_t bytes = (sizeof(struct first_name) + path.used + 7) & ~(size_t)7;
    if (bytes > MAX_PATH_BYTES - names_used) {
        walk_fail(now, -EOVERFLOW, "too many files have several names");
        return NULL;
    }
    struct first_name *entry_new = (struct first_name *)(names + names_used);
    *entry_new = (struct first_name){device, status->stx_ino, (uint32_t)path.used};
    memcpy(entry_new->name, path.start, path.used);
    slots[slot % NAME_SLOTS] = (uint32_t)names_used + 1;
    names_used += bytes;
    return NULL;
}

static void forget_names(void) {
    /* What cannot be given back is memory of this sandbox's. */
    if (slots) ignore(CALL2(__NR_munmap, slots, NAME_SLOTS * sizeof *slots));
    if (names) ignore(CALL2(__NR_munmap, names, MAX_PATH_BYTES));
    slots = NULL;
    names = NULL;
    names_used = 0;
}

/* -- entries --------------------------------------------------------------------------------- */

struct entry {
    enum mark mark;
    const char *target;
    size_t target_bytes;
};

/* A folder that is as its engine has made it for this container: it is written before what is in it. */
static struct {
    struct statx status;
    size_t path_bytes; /* 0: there is none */
} waiting;

static void write_head(const struct entry *entry, const struct statx *status, size_t bytes) {
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
    write_bytes(&head, sizeof head);
    write_bytes(path.start, bytes);
    write_bytes(entry->target, entry->target_bytes);
}

static void write_entry(const struct entry *entry, const struct statx *status) {
    static const struct statx nothing;
    if (waiting.path_bytes) {
        size_t bytes = waiting.path_bytes;
        waiting.path_bytes = 0;
        write_head(&(struct entry){.mark = PLAIN}, &waiting.status, bytes);
    }
    write_head(entry, status ? status : &nothing, path.used);
}

static bool all_zero(const unsigned char *bytes, size_t count) {
    return !bytes[0] && memcmp(bytes, bytes + 1, count - 1) == 0;
}

static void write_piece(int64_t offset, int64_t count) {
    write_bytes(&offset, sizeof offset);
    write_bytes(&count, sizeof count);
}

static void write_content(int folder, const char *name) {
    struct content content;
    int64_t offset;
    long nread = walk_open_content(&content, folder, name);
    if (nread) {
        walk_fail(now, nread, NULL);
        return;
    }
    while ((nread = walk_next_block(now, &content, &offset)) > 0) {
        if (all_zero(walk_block, (size_t)nread)) continue; /* it may as well be a hole */
        write_piece(offset, nread);
        write_bytes(walk_block, (size_t)nread);
    }
    if (nread < 0) walk_fail(now, nread, NULL);
    sys_close(content.fd);
    write_piece(0, 0);
}

/* Writes the file of the path, which is `name` in `folder`; of a folder not what is in it. `layer_status` is
 * its status in its layer, NULL of a folder. */
static void write_file(int folder, const char *name, const struct statx *status,
                       const struct statx *layer_status, bool opaque) {
    char link[PATH_MAX];
    struct entry entry = {.mark = opaque ? OPAQUE : PLAIN};
    const struct first_name *first = NULL;
    const char *type = walk_type(status);
    if (!walk_has_time(now)) return;
    if (text_equal(type, "device")) /* only where programs have rights that ours have not */
        walk_fail(now, -EOVERFLOW, "a device cannot be saved");
    bool linked = layer_status && layer_status->stx_nlink > 1;
    if (linked) first = first_name(layer_status);
    if (now->error) return;
    if (first) {
        entry.mark = LINK;
        entry.target = first->name;
        entry.target_bytes = first->bytes;
    } else if (text_equal(type, "symlink")) {
        long nread = CALL4(__NR_readlinkat, folder, name, link, sizeof link);
        if (nread < 0) walk_fail(now, nread, NULL);
        entry.target = link;
        entry.target_bytes = nread > 0 ? (size_t)nread : 0;
    }
    write_entry(&entry, status);
    if (!first && text_equal(type, "file")) write_content(folder, name);
}

static void write_folder(const struct trees *trees, int depth);

/* `upper`: the first layer that has the name. */
static void write_name(const struct trees *trees, int upper, const char *name, int depth) {
    struct statx status, layer_status, lower_status;
    bool is_present = walk_stat(now, trees->merged, name, &status);
    bool was_present = walk_stat(now, trees->lower, name, &lower_status);
    if (!is_present && !was_present) return;
    if (is_present && cont_visit(now, trees, path.start, name, &status) == SKIP) return;
    if (path.used > MAX_ARCHIVE_PATH)
        walk_fail(now, -EOVERFLOW, "what was changed has a path of more than 3072 bytes");
    if (now->error || !walk_count_path(now, path.used)) return;
    if (!is_present) {
        write_entry(&(struct entry){.mark = DELETED}, NULL);
    } else if (!walk_is_folder(&status)) {
        if (walk_stat(now, trees->uppers[upper], name, &layer_status))
            write_file(trees->merged, name, &status, &layer_status, false);
    } else {
        int fds[MAX_UPPERS];
        struct trees below;
        walk_open_below(now, trees, was_present && walk_is_folder(&lower_status), name, fds,
                        &below);
        if (below.merged >= 0) write_folder(&below, depth + 1);
        walk_close_trees(&below);
    }
}

static void write_named(const struct trees *trees, int upper, const char *name, int depth) {
    if (depth > MAX_DEPTH) walk_fail(now, -EOVERFLOW, "folders are nested more than 300 deep");
    size_t path_length = path.used;
    if (path_length) text_add(&path, "/");
    text_add(&path, name);
    write_name(trees, upper, name, depth);
    path.used = path_length;
    path.start[path_length] = 0;
}

static void write_each(const struct trees *trees, int upper, int depth) {
    struct listing listing;
    const char *name;
    walk_rewind(&listing, trees->uppers[upper]);
    while (!now->error && (name = sys_next_name(&listing)))
        if (!walk_has_name(now, trees->uppers, upper, name)) write_named(trees, upper, name, depth);
    if (listing.result < 0) walk_fail(now, listing.result, NULL);
}

/* Writes what is deleted, where no layer marks it. */
static void write_deleted(const struct trees *trees, int depth) {
    struct listing listing;
    const char *name;
    if (now->error || trees->lower < 0) return;
    walk_rewind(&listing, trees->lower);
    while (!now->error && (name = sys_next_name(&listing)))
        if (!walk_has_name(now, trees->uppers, trees->count, name))
            write_named(trees, 0, name, depth);
    if (listing.result < 0) walk_fail(now, listing.result, NULL);
}

/* Writes a folder that the path names, `depth` - 1 names below the root, and what is in it. */
static void write_folder(const struct trees *trees, int depth) {
    struct statx status;
    bool layers = trees->baseline == SINCE_LAYERS;
    long error = sys_stat_fd(trees->merged, &status);
    if (error) walk_fail(now, error, NULL);
    bool opaque = layers && walk_is_opaque(now, trees);
    if (now->error) return;
    if (!layers && depth == 2 && cont_is_initial(&status)) {
        waiting.status = status;
        waiting.path_bytes = path.used;
    } else {
        write_file(trees->merged, ".", &status, NULL, opaque);
    }
    for (int upper = 0; upper < trees->count; upper++) write_each(trees, upper, depth);
    if (!layers) write_deleted(trees, depth);
    if (depth == 2) waiting.path_bytes = 0;
}

void archive_write(const struct trees *trees, int output, struct walk *walk) {
    now = walk;
    target = output;
    used = 0;
    path = text_init(path_bytes, sizeof path_bytes);
    waiting.path_bytes = 0;
    if (walk_has_room(walk, trees)) write_folder(trees, 1);
    write_bytes(&(struct head){.mark = END}, sizeof(struct head));
    flush();
    forget_names();
}
