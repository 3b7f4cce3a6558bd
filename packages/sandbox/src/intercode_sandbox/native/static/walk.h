/* Changes of an episode: the overlay's upper layers against the image.
 *
 * It trusts nothing that it finds: it walks by descriptors of folders, follows no symbolic link,
 * opens regular files only and never blocks on a FIFO; and it allocates nothing.
 *
 * Trees are walked side by side: the uppers (what was written, since the last freeze and before
 * it), lower (the image) and merged (what the sandbox sees). The uppers only name what may differ;
 * merged tells what has become of it. It also tells whether a folder is opaque, so that no
 * attribute of overlayfs's need be readable: if a name of lower's that no upper has is not visible,
 * it was deleted. */
#ifndef WALK_H
#define WALK_H

#include "sandbox.h"

enum {
    BLOCK = 1 << 16, /* bytes that are read at once */
    PAGE = 1 << 12,
    MAX_PATH_BYTES = 32 << 20, /* of all paths that are found, each with some more for itself */
    ENTRY_BYTES = 64,
};

/* Where the uppers are layers, they tell what was written. In a container the one upper is the merged
 * tree itself, and lower is the root of another container: of the image, or of a snapshot. */
enum baseline { SINCE_LAYERS, SINCE_IMAGE, SINCE_SNAPSHOT };

struct trees {
    const int *uppers;
    int count, lower, merged; /* -1: there is none */
    enum baseline baseline;
};

/* Limits of a walk over a tree that an agent has made, and its end. */
struct walk {
    int64_t deadline, room;
    long error;
    const char *message; /* NULL: the kernel's own words */
};

void walk_begin(struct walk *walk, int64_t timeout_ms);
void walk_fail(struct walk *walk, long error, const char *message);
/* Whether there are no more layers than a walk has room for. */
bool walk_has_room(struct walk *walk, const struct trees *trees);
/* Counts a path that was found, and looks at the time: false if either is too much. */
bool walk_count_path(struct walk *walk, size_t bytes);
bool walk_has_time(struct walk *walk);

void walk_rewind(struct listing *listing, int fd); /* from its first name on */
/* `lstat` in a folder: false if there is no such name, no such folder, or after an error. */
bool walk_stat(struct walk *walk, int folder, const char *name, struct statx *status);
bool walk_is_folder(const struct statx *status);
/* Whether one of the first `count` folders has that name. */
bool walk_has_name(struct walk *walk, const int *folders, int count, const char *name);
/* Whether lower's names are hidden that no upper has. */
bool walk_is_opaque(struct walk *walk, const struct trees *trees);
/* Opens the folder of that name in each of these that has it; `fds` has room for all. */
void walk_open_below(struct walk *walk, const struct trees *trees, bool in_lower, const char *name,
                     int *fds, struct trees *below);
void walk_close_trees(const struct trees *trees);

const char *walk_type(const struct statx *status);

/* A file's data, without its holes: at pages, and at most `BLOCK` bytes each. */
struct content {
    int fd;
    int64_t size, offset, end;
};
extern unsigned char walk_block[BLOCK];
CHECKED long walk_open_content(struct content *content, int folder, const char *name);
/* Reads on into `block`: how many bytes, from where; 0 at the end, or an error. */
CHECKED long walk_next_block(struct walk *walk, struct content *content, int64_t *offset);

/* The digest of a regular file's content. */
void walk_hash_content(struct walk *walk, int folder, const char *name, unsigned char *digest);

/* -- container.c ----------------------------------------------------------------------------- */

/* Notes what an engine has mounted and made in this container, and gives the files that it mounts the
 * content of the image's. */
CHECKED long cont_begin(struct value plan);
/* Has changes since the snapshot told from the mounted files as they are now. */
CHECKED long cont_note_snapshot(void);
/* What a walk does with a path. */
enum visit {
    COMPARE,         /* what is there differs from lower, or may do so below */
    SKIP,            /* nobody has touched it, or it is mounted */
    REPORT,          /* a mounted file was written to */
    REPORT_METADATA, /* its owner or mode were changed, and no more */
};
enum visit cont_visit(struct walk *walk, const struct trees *trees, const char *path,
                      const char *name, const struct statx *status);
/* Whether it is as the engine has made it for this container. */
bool cont_is_initial(const struct statx *status);

/* Writes a list of all changes, in no order: for each the fields of a `Change`, as base.py has them. */
void walk_put_changes(struct reply *reply, const struct trees *trees, struct walk *walk);

#endif
