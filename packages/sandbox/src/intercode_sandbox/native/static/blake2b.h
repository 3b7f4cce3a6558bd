/* BLAKE2b (`blake2b_`) with digests of 16 bytes and no key: RFC 7693. */
#ifndef BLAKE2B_H
#define BLAKE2B_H

#include "sys.h"

enum { DIGEST = 16, BLAKE_BLOCK = 128 };

struct blake2b {
    uint64_t state[8], count;
    unsigned char block[BLAKE_BLOCK];
    size_t used;
};

void blake2b_begin(struct blake2b *hash);
void blake2b_add(struct blake2b *hash, const void *bytes, size_t count);
void blake2b_end(struct blake2b *hash, unsigned char digest[DIGEST]);

#endif
