/* A sandbox's changes as a stream (`archive_`), which archive.py and apply.c read; archive.py
 * describes it. */
#ifndef ARCHIVE_H
#define ARCHIVE_H

#include "walk.h"

enum mark { PLAIN, OPAQUE, LINK, DELETED, END };

/* The head of each entry; its path, its target and a file's pieces follow. */
struct head {
    uint32_t mark, mode, uid, gid;
    int64_t seconds; /* of its last modification */
    uint64_t size;
    uint32_t nanoseconds, path_bytes, target_bytes, unused;
};

/* The head of each piece of a file: its position and its number of bytes. A head with 0 and 0
 * follows the last piece. */
struct piece {
    int64_t offset, count;
};

/* Writes to `output` all differences between the merged tree and the lower one. */
void archive_write(const struct trees *trees, int output, struct walk *walk);

#endif
