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

enum { MAX_FDS = 250, PACKET = 64 * 1024 };

/* A value in a message that was checked as a whole; `at` is NULL where there is none. */
struct value {
    const unsigned char *start, *end;
};

struct message {
    struct value body; /* a map */
    int fds[MAX_FDS];  /* -1: taken */
    int count;
    void *mapped;
    size_t mapped_bytes;
};

/* Waits for a message: 1, 0 at the other end's end, or an error; with EMFILE it came without its
 * descriptors, with EPROTO it is broken. There is one at a time: its text is in one place. */
CHECKED long msg_receive(int socket, struct message *message);
void msg_release(struct message *message); /* closes its descriptors that were not taken */
CHECKED int msg_take_fd(struct message *message, int index);

bool msg_is_valid(const unsigned char *start, size_t count); /* one map, and no byte more */
struct value msg_find(struct value map, const char *key);
char msg_kind(struct value value); /* 0: there is none */
int64_t msg_number(struct value value, int64_t otherwise);
bool msg_is_true(struct value value);
const char *msg_text(struct value value); /* NULL: it is no text, or has a NUL in it */
const char *msg_bytes(struct value value, size_t *count);
/* The values of a list, or of a map its keys and values, one after the other. */
struct value msg_first(struct value list); /* `at` is NULL at the end */
struct value msg_next(struct value value);
size_t msg_count(struct value list);

/* A message that is being written. */
struct reply {
    int memory; /* a memory file for what does not fit; -1: none */
    long error;
    size_t used;
    int fds[2];
    int count;
    unsigned char bytes[8192];
};

void msg_begin(struct reply *reply);
void msg_put_open(struct reply *reply, char kind); /* 'L' or 'M' */
void msg_put_close(struct reply *reply);
void msg_put_number(struct reply *reply, int64_t number);
void msg_put_bytes(struct reply *reply, const void *bytes, size_t count);
void msg_put_text(struct reply *reply, const char *text);
void msg_put_bool(struct reply *reply, bool truth);
void msg_put_null(struct reply *reply);
void msg_put_fd(struct reply *reply, int fd); /* to be sent, and then closed */
CHECKED long msg_send(struct reply *reply, int socket);
void msg_discard(struct reply *reply); /* closes what it holds, unsent */

#endif
