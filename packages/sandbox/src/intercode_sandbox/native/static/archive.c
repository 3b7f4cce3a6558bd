#include "archive.h"

enum {
    LONGEST = 3072, /* bytes of a path: no longer one can be named where layers are kept */
    SLOTS = 1 << 20, /* more than the paths that a walk finds */
};

static struct walk *now;
static char buffer[1 << 16], path_bytes[LONGEST + 512];
static size_t used; /* bytes of `buffer` that are still to be written */
static int target;
static struct text path;

/* -- writing --------------------------------------------------------------------------------- */

static void flush(void) {
    if (now->error) return;
    long failed = write_all(target, buffer, used);
    if (failed) fail(now, failed, NULL);
    used = 0;
}

static void write_bytes(const void *bytes, size_t count) {
    const char *at = bytes;
    while (count && !now->error) {
        if (used == sizeof buffer) flush();
        size_t room = sizeof buffer - used, part = count < room ? count : room;
        if (now->error) return;
        memcpy(buffer + used, at, part);
        used += part;
        at += part;
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
    long at = map_shared(bytes);
    if (at < 0) {
        fail(now, at, NULL);
        return NULL;
    }
    return (void *)at;
}

/* The first name of a file of several; NULL: it is this one. `status` is of its layer: where a name
 * was given to a file of the image, the merged tree may show two files. */
static const struct first_name *first_name(const struct statx *status) {
    if (!slots) slots = reserve(SLOTS * sizeof *slots);
    if (!names) names = reserve(MOST_BYTES);
    if (!slots || !names) return NULL;
    uint64_t device = device_of(status);
    uint64_t slot = (status->stx_ino * 0x9e3779b97f4a7c15u + device) >> 44;
    for (;; slot = (slot + 1) % SLOTS) {
        if (!slots[slot % SLOTS]) break;
        const struct first_name *known = (void *)(names + slots[slot % SLOTS] - 1);
        if (known->inode == status->stx_ino && known->device == device) return known;
    }
    size_t bytes = (sizeof(struct first_name) + path.used + 7) & ~(size_t)7;
    if (bytes > MOST_BYTES - names_used) {
        fail(now, -EOVERFLOW, "too many files have several names");
        return NULL;
    }
    struct first_name *added = (struct first_name *)(names + names_used);
    *added = (struct first_name){device, status->stx_ino, (uint32_t)path.used};
    memcpy(added->name, path.at, path.used);
    slots[slot % SLOTS] = (uint32_t)names_used + 1;
    names_used += bytes;
    return NULL;
}

static void forget_names(void) {
    /* What cannot be given back is memory of this sandbox's. */
    if (slots) ignore(CALL2(__NR_munmap, slots, SLOTS * sizeof *slots));
    if (names) ignore(CALL2(__NR_munmap, names, MOST_BYTES));
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
    write_bytes(path.at, bytes);
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

static void write_piece(int64_t from, int64_t count) {
    write_bytes(&from, sizeof from);
    write_bytes(&count, sizeof count);
}

static void write_content(int folder, const char *name) {
    struct content content;
    int64_t from;
    long got = open_content(&content, folder, name);
    if (got) {
        fail(now, got, NULL);
        return;
    }
    while ((got = next_block(now, &content, &from)) > 0) {
        if (all_zero(block, (size_t)got)) continue; /* it may as well be a hole */
        write_piece(from, got);
        write_bytes(block, (size_t)got);
    }
    if (got < 0) fail(now, got, NULL);
    close_fd(content.fd);
    write_piece(0, 0);
}

/* Writes the file of the path, which is `name` in `folder`; of a folder not what is in it. `own` is
 * its status in its layer, NULL of a folder. */
static void write_file(int folder, const char *name, const struct statx *status,
                       const struct statx *own, bool opaque) {
    char link[PATH_MAX];
    struct entry entry = {.mark = opaque ? OPAQUE : PLAIN};
    const struct first_name *first = NULL;
    const char *type = type_of(status);
    if (!has_time(now)) return;
    if (same(type, "device")) /* only where programs have rights that ours have not */
        fail(now, -EOVERFLOW, "a device cannot be saved");
    bool linked = own && own->stx_nlink > 1;
    if (linked) first = first_name(own);
    if (now->error) return;
    if (first) {
        entry.mark = LINK;
        entry.target = first->name;
        entry.target_bytes = first->bytes;
    } else if (same(type, "symlink")) {
        long got = CALL4(__NR_readlinkat, folder, name, link, sizeof link);
        if (got < 0) fail(now, got, NULL);
        entry.target = link;
        entry.target_bytes = got > 0 ? (size_t)got : 0;
    }
    write_entry(&entry, status);
    if (!first && same(type, "file")) write_content(folder, name);
}

static void write_folder(const struct trees *trees, int depth);

/* `upper`: the first layer that has the name. */
static void write_name(const struct trees *trees, int upper, const char *name, int depth) {
    struct statx status, own, old;
    bool is = look_at(now, trees->merged, name, &status);
    bool was = look_at(now, trees->lower, name, &old);
    if (!is && !was) return;
    if (is && visit_of(now, trees, path.at, name, &status) == PASS_BY) return;
    if (path.used > LONGEST)
        fail(now, -EOVERFLOW, "what was changed has a path of more than 3072 bytes");
    if (now->error || !count_path(now, path.used)) return;
    if (!is) {
        write_entry(&(struct entry){.mark = DELETED}, NULL);
    } else if (!is_folder(&status)) {
        if (look_at(now, trees->uppers[upper], name, &own))
            write_file(trees->merged, name, &status, &own, false);
    } else {
        int fds[MOST_UPPERS];
        struct trees below;
        open_below_all(now, trees, was && is_folder(&old), name, fds, &below);
        if (below.merged >= 0) write_folder(&below, depth + 1);
        close_trees(&below);
    }
}

static void write_named(const struct trees *trees, int upper, const char *name, int depth) {
    if (depth > MAX_DEPTH) fail(now, -EOVERFLOW, "folders are nested more than 300 deep");
    size_t before = path.used;
    if (before) add(&path, "/");
    add(&path, name);
    write_name(trees, upper, name, depth);
    path.used = before;
    path.at[before] = 0;
}

static void write_each(const struct trees *trees, int upper, int depth) {
    struct listing listing;
    const char *name;
    restart(&listing, trees->uppers[upper]);
    while (!now->error && (name = next_name(&listing)))
        if (!has_name(now, trees->uppers, upper, name)) write_named(trees, upper, name, depth);
    if (listing.got < 0) fail(now, listing.got, NULL);
}

/* Writes what is deleted, where no layer marks it. */
static void write_deleted(const struct trees *trees, int depth) {
    struct listing listing;
    const char *name;
    if (now->error || trees->lower < 0) return;
    restart(&listing, trees->lower);
    while (!now->error && (name = next_name(&listing)))
        if (!has_name(now, trees->uppers, trees->count, name)) write_named(trees, 0, name, depth);
    if (listing.got < 0) fail(now, listing.got, NULL);
}

/* Writes a folder that the path names, `depth` - 1 names below the root, and what is in it. */
static void write_folder(const struct trees *trees, int depth) {
    struct statx status;
    bool layers = trees->since == SINCE_LAYERS;
    long failed = status_of_fd(trees->merged, &status);
    if (failed) fail(now, failed, NULL);
    bool opaque = layers && is_opaque(now, trees);
    if (now->error) return;
    if (!layers && depth == 2 && has_begun_so(&status)) {
        waiting.status = status;
        waiting.path_bytes = path.used;
    } else {
        write_file(trees->merged, ".", &status, NULL, opaque);
    }
    for (int upper = 0; upper < trees->count; upper++) write_each(trees, upper, depth);
    if (!layers) write_deleted(trees, depth);
    if (depth == 2) waiting.path_bytes = 0;
}

void write_archive(const struct trees *trees, int out, struct walk *walk) {
    now = walk;
    target = out;
    used = 0;
    path = text_in(path_bytes, sizeof path_bytes);
    waiting.path_bytes = 0;
    if (has_room(walk, trees)) write_folder(trees, 1);
    write_bytes(&(struct head){.mark = END}, sizeof(struct head));
    flush();
    forget_names();
}
