/* The changes of an episode (`walk_`): the overlay's upper layers against the image. And
 * container.c (`cont_`): which paths of a container belong to its engine.
 *
 * A walk trusts no file. It opens folders by descriptors, follows no symbolic link, opens
 * regular files only, and never blocks on a FIFO. Its own memory has a fixed size.
 *
 * Three trees are walked side by side: the uppers (writes since the last freeze, and before it),
 * lower (the image) and merged (the sandbox's view). Uppers only name the candidates; merged has
 * their state. Merged also shows whether a folder is opaque, so that no attribute of overlayfs
 * need be readable: a name of lower that is in no upper and not visible was deleted. */
#ifndef WALK_H
#define WALK_H

#include "sandbox.h"

enum {
    BLOCK = 1 << 16, /* bytes of one read */
    PAGE = 1 << 12,
    MAX_PATH_BYTES = 32 << 20, /* of all reported paths, with ENTRY_BYTES for each */
    ENTRY_BYTES = 64,
};

/* With layers, the uppers name the writes. In a container the one upper is the merged tree
 * itself, and lower is the root of another container: of the image or of a snapshot. */
enum baseline { SINCE_LAYERS, SINCE_IMAGE, SINCE_SNAPSHOT };

struct trees {
    const int *uppers;
    int count, lower, merged; /* -1: an absent tree */
    enum baseline baseline;
};

/* The limits of a walk over an agent's tree, and its error. */
struct walk {
    int64_t deadline, room;
    long error;
    const char *message; /* NULL: the kernel's text for the error */
};

void walk_begin(struct walk *walk, int64_t timeout_ms);
void walk_fail(struct walk *walk, long error, const char *message);
/* Whether a walk has room for that many layers. */
bool walk_has_room(struct walk *walk, const struct trees *trees);
/* Counts a reported path and checks the time; false: a limit is exceeded. */
bool walk_count_path(struct walk *walk, size_t bytes);
bool walk_has_time(struct walk *walk);

void walk_rewind(struct listing *listing, int fd); /* back to its first name */
/* Stats a name in a folder, not its target. Returns false without such a name or folder, and
 * after an error. */
bool walk_stat(struct walk *walk, int folder, const char *name, struct statx *status);
bool walk_is_folder(const struct statx *status);
/* Whether one of the first `count` folders has that name. */
bool walk_has_name(struct walk *walk, const int *folders, int count, const char *name);
/* Whether lower's names are hidden, unless an upper has them. */
bool walk_is_opaque(struct walk *walk, const struct trees *trees);
/* Opens the folder of that name in each tree that has it; `fds` has room for all. */
void walk_open_below(struct walk *walk, const struct trees *trees, bool in_lower, const char *name,
                     int *fds, struct trees *below);
void walk_close_trees(const struct trees *trees);

const char *walk_type(const struct statx *status);

/* A file's data without its holes, in page-aligned blocks of at most `BLOCK` bytes. */
struct content {
    int fd;
    int64_t size, offset, end;
};
extern unsigned char walk_block[BLOCK];
CHECKED long walk_open_content(struct content *content, int folder, const char *name);
/* Reads the next data into `walk_block`, the process's one buffer: a walk reads one file at a
 * time. Returns the bytes, 0 at the end, or an error; `offset` is their position. */
CHECKED long walk_next_block(struct walk *walk, struct content *content, int64_t *offset);

/* Computes the digest of a regular file's content. */
void walk_hash_content(struct walk *walk, int folder, const char *name, unsigned char *digest);

/* -- container.c ----------------------------------------------------------------------------- */

/* Records the mounts and files that an engine has made in this container. Fills each mounted
 * file with the image's content. */
CHECKED long cont_begin(struct value plan);
/* Records the mounted files' state: later comparisons with the snapshot start from it. */
CHECKED long cont_note_snapshot(void);
/* How a walk treats a path. */
enum visit {
    COMPARE,         /* it, or a path below it, may differ from lower */
    SKIP,            /* nobody has changed it, or it is a mount */
    REPORT,          /* a mounted file has other content */
    REPORT_METADATA, /* only its owner or mode differ */
};
enum visit cont_visit(struct walk *walk, const struct trees *trees, const char *path,
                      const char *name, const struct statx *status);
/* Whether a file is as the engine has made it for this container. */
bool cont_is_initial(const struct statx *status);

/* Writes a list of all changes, in no order: for each, the fields of a `Change` in base.py. */
void walk_put_changes(struct reply *reply, const struct trees *trees, struct walk *walk);

#endif
