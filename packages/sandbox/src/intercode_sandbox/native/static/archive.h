/* A sandbox's changes as a stream: the one that archive.py and apply.c read; archive.py describes it. */
#ifndef ARCHIVE_H
#define ARCHIVE_H

#include "walk.h"

enum mark { PLAIN, OPAQUE, LINK, DELETED, END };

/* An entry of a stream begins with this; its path and its target follow, and a file's pieces. */
struct head {
    uint32_t mark, mode, uid, gid;
    int64_t seconds; /* the time of its last change */
    uint64_t size;
    uint32_t nanoseconds, path_bytes, target_bytes, unused;
};

/* Before each piece of a file: where it is, and how many bytes it has. After the last: 0 and 0. */
struct piece {
    int64_t offset, count;
};

/* Streams what differs from the image into `out`. */
void archive_write(const struct trees *trees, int out, struct walk *walk);

#endif
