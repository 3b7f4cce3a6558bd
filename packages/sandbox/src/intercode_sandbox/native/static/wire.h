/* Messages between a caller, the spawner and process 1: the packed form, which wire.py has, too.
 *
 * A message is one packet: a byte that says where its body is, in the packet ('B') or in a memory
 * file that comes as the last descriptor ('F'), and a value. A value is a tag and what belongs to it:
 *
 *   i  a number, as 8 bytes, little-endian      s  text: its length as 4 bytes, itself, a NUL
 *   t  true   f  false   n  nothing             L  values, then E   M  keys and values, then E */
#ifndef WIRE_H
#define WIRE_H

#include "sys.h"

enum { MOST_FDS = 250, PACKET = 64 * 1024 };

/* A value in a message that was checked as a whole; `at` is NULL where there is none. */
struct value {
    const unsigned char *at, *end;
};

struct message {
    struct value body; /* a map */
    int fds[MOST_FDS]; /* -1: taken */
    int count;
    void *mapped;
    size_t mapped_bytes;
};

/* Waits for a message: 1, 0 at the other end's end, or an error; with EMFILE it came without its
 * descriptors, with EPROTO it is broken. There is one at a time: its text is in one place. */
CHECKED long receive(int socket, struct message *message);
void forget(struct message *message); /* closes its descriptors that were not taken */
CHECKED int take_fd(struct message *message, int index);

bool well_formed(const unsigned char *at, size_t count); /* one map, and no byte more */
struct value find(struct value map, const char *key);
char kind_of(struct value value); /* 0: there is none */
int64_t number_of(struct value value, int64_t otherwise);
bool is_true(struct value value);
const char *text_of(struct value value); /* NULL: it is no text, or has a NUL in it */
const char *bytes_of(struct value value, size_t *count);
/* The values of a list, or of a map its keys and values, one after the other. */
struct value first_of(struct value list); /* `at` is NULL at the end */
struct value after(struct value value);
size_t count_of(struct value list);

/* A message that is being written. */
struct reply {
    int memory; /* a memory file for what does not fit; -1: none */
    long error;
    size_t used;
    int fds[2];
    int count;
    unsigned char bytes[8192];
};

void begin(struct reply *reply);
void put_open(struct reply *reply, char kind); /* 'L' or 'M' */
void put_close(struct reply *reply);
void put_number(struct reply *reply, int64_t number);
void put_bytes(struct reply *reply, const void *bytes, size_t count);
void put_text(struct reply *reply, const char *text);
void put_truth(struct reply *reply, bool truth);
void put_nothing(struct reply *reply);
void put_fd(struct reply *reply, int fd); /* to be sent, and then closed */
CHECKED long finish(struct reply *reply, int socket);
void drop(struct reply *reply); /* closes what it holds, unsent */

#endif
