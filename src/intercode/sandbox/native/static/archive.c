#include "archive.h"

enum {
    LONGEST = 3072, /* bytes of a path: no longer one can be named where layers are kept */
    SLOTS = 1 << 20, /* more than the paths that a walk finds */
};

static struct walk *now;
static char line_bytes[1 << 16], path_bytes[LONGEST + 512];
static size_t used; /* bytes of `line_bytes` that are still to be written */
static int target;
static struct text path;

/* -- writing --------------------------------------------------------------------------------- */

static void flush(void) {
    if (now->error) return;
    long failed = write_all(target, line_bytes, used);
    if (failed) fail(now, failed, NULL);
    used = 0;
}

static void write_bytes(const void *bytes, size_t count) {
    const char *at = bytes;
    while (count && !now->error) {
        if (used == sizeof line_bytes) flush();
        size_t room = sizeof line_bytes - used, part = count < room ? count : room;
        if (now->error) return;
        memcpy(line_bytes + used, at, part);
        used += part;
        at += part;
        count -= part;
    }
}

static void write_words(const char *text) { write_bytes(text, length(text)); }

static void write_number(uint64_t number, int least_digits) {
    char digits[24];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
        least_digits--;
    } while (number || least_digits > 0);
    write_bytes(digits + at, sizeof digits - at);
}

/* Nanoseconds, which may be more than a number of 64 bits holds. */
static void write_time(int64_t seconds, uint32_t nanoseconds) {
    enum { SECOND = 1000000000 };
    uint64_t whole = (uint64_t)seconds;
    if (seconds < 0) {
        write_words("-");
        whole = 0 - whole;
        if (nanoseconds) {
            whole--;
            nanoseconds = SECOND - nanoseconds;
        }
    }
    if (whole) write_number(whole, 1);
    write_number(nanoseconds, whole ? 9 : 1);
}

/* -- text as JSON ---------------------------------------------------------------------------- */

/* The bytes of the character at `at`, as Python decodes UTF-8 strictly; 0: it is none. */
static size_t character(const unsigned char *at, size_t room) {
    if (at[0] < 0x80) return 1;
    size_t count = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || room < count) return 0;
    for (size_t i = 1; i < count; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    if (at[0] == 0xe0 && at[1] < 0xa0) return 0; /* it has a shorter form */
    if (at[0] == 0xed && at[1] > 0x9f) return 0; /* a surrogate */
    if (at[0] == 0xf0 && at[1] < 0x90) return 0;
    if (at[0] == 0xf4 && at[1] > 0x8f) return 0;
    return count;
}

static void write_escape(const char *before, unsigned byte) {
    static const char digits[] = "0123456789abcdef";
    char escape[2] = {digits[byte >> 4 & 15], digits[byte & 15]};
    write_words(before);
    write_bytes(escape, sizeof escape);
}

static void write_json(const char *text, size_t count) {
    const unsigned char *at = (const unsigned char *)text;
    write_words("\"");
    while (count) {
        size_t taken = character(at, count);
        if (!taken) {
            write_escape("\\udc", *at); /* as Python's "surrogateescape" has it */
            taken = 1;
        } else if (*at < ' ' || *at == '"' || *at == '\\' || *at == 0x7f) {
            write_escape("\\u00", *at);
        } else {
            write_bytes(at, taken);
        }
        at += taken;
        count -= taken;
    }
    write_words("\"");
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
    const char *kind, *target;
    size_t target_bytes;
    bool opaque;
};

static void write_line(const struct entry *entry, const struct statx *status) {
    static const struct statx nothing;
    bool file = same(entry->kind, "file");
    if (!status) status = &nothing;
    write_words("[");
    write_json(path.used ? path.at : ".", path.used ? path.used : 1);
    write_words(",");
    write_json(entry->kind, length(entry->kind));
    write_words(",");
    write_number(status->stx_mode & 07777, 1);
    write_words(",");
    write_number(status->stx_uid, 1);
    write_words(",");
    write_number(status->stx_gid, 1);
    write_words(",");
    write_time(status->stx_mtime.tv_sec, status->stx_mtime.tv_nsec);
    write_words(",");
    write_json(entry->target, entry->target_bytes);
    write_words(entry->opaque ? ",true," : ",false,");
    write_number(file ? status->stx_size : 0, 1);
    write_words("]\n");
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
    struct entry entry = {.kind = type_of(status), .target = "", .opaque = opaque};
    const struct first_name *first = NULL;
    if (!has_time(now)) return;
    if (same(entry.kind, "device")) /* only where programs have rights that ours have not */
        fail(now, -EOVERFLOW, "a device cannot be saved");
    bool linked = own && own->stx_nlink > 1;
    if (linked) first = first_name(own);
    if (now->error) return;
    if (first) {
        entry.kind = "link";
        entry.target = first->name;
        entry.target_bytes = first->bytes;
    } else if (same(entry.kind, "symlink")) {
        long got = CALL4(__NR_readlinkat, folder, name, link, sizeof link);
        if (got < 0) fail(now, got, NULL);
        entry.target = link;
        entry.target_bytes = got > 0 ? (size_t)got : 0;
    } else if (linked) {
        entry.target = same(entry.kind, "file") ? "" : path.at;
        entry.target_bytes = length(entry.target);
    }
    write_line(&entry, status);
    if (same(entry.kind, "file")) write_content(folder, name);
}

static void write_folder(const struct trees *trees, int depth);

/* `upper`: the first layer that has the name. */
static void write_name(const struct trees *trees, int upper, const char *name, int depth) {
    struct statx status, own, old;
    struct entry deleted = {.kind = "deleted", .target = ""};
    bool is = look_at(now, trees->merged, name, &status);
    bool was = look_at(now, trees->lower, name, &old);
    if (!is && !was) return;
    if (path.used > LONGEST)
        fail(now, -EOVERFLOW, "what was changed has a path of more than 3072 bytes");
    if (now->error || !count_path(now, path.used)) return;
    if (!is) {
        write_line(&deleted, NULL);
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

static void write_each(const struct trees *trees, int upper, int depth) {
    struct listing listing;
    const char *name;
    restart(&listing, trees->uppers[upper]);
    while (!now->error && (name = next_name(&listing))) {
        if (has_name(now, trees->uppers, upper, name)) continue;
        if (depth > MAX_DEPTH) fail(now, -EOVERFLOW, "folders are nested more than 300 deep");
        size_t before = path.used;
        if (before) add(&path, "/");
        add(&path, name);
        write_name(trees, upper, name, depth);
        path.used = before;
        path.at[before] = 0;
    }
    if (listing.got < 0) fail(now, listing.got, NULL);
}

/* Writes a folder that the path names, `depth` - 1 names below the root, and what is in it. */
static void write_folder(const struct trees *trees, int depth) {
    struct statx status;
    long failed = status_of_fd(trees->merged, &status);
    if (failed) fail(now, failed, NULL);
    bool opaque = is_opaque(now, trees);
    if (now->error) return;
    write_file(trees->merged, ".", &status, NULL, opaque);
    for (int upper = 0; upper < trees->count; upper++) write_each(trees, upper, depth);
}

void write_archive(const struct trees *trees, int out, struct walk *walk) {
    now = walk;
    target = out;
    used = 0;
    path = text_in(path_bytes, sizeof path_bytes);
    if (has_room(walk, trees)) write_folder(trees, 1);
    write_words("\n");
    flush();
    forget_names();
}
