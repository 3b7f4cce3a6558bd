/* A sandbox's upper layer as a stream: the one that archive.py reads, and describes. */
#ifndef ARCHIVE_H
#define ARCHIVE_H

#include "walk.h"

/* Streams what differs from the image into `out`. */
void write_archive(const struct trees *trees, int out, struct walk *walk);

#endif
