/* Messages between a caller, the spawner and process 1 (`msg_`): the packed form, as in wire.py.
 *
 * A message is one packet: one byte that shows where the body is, then the body. The body is in
 * the packet ('B') or in a memory file, the last descriptor ('F'). The body is one value. A
 * value is a tag and its data:
 *
 *   i  a number, as 8 bytes, little-endian      s  text: its length as 4 bytes, itself, a NUL
 *   t  true   f  false   n  null                L  values, then E   M  keys and values, then E */
#ifndef WIRE_H
#define WIRE_H

#include "sys.h"

enum { MAX_FDS = 250, PACKET = 64 * 1024 };

/* A value in a validated message; `start` is NULL for an absent one. */
struct value {
    const unsigned char *start, *end;
};

struct message {
    struct value body; /* a map */
    int fds[MAX_FDS];  /* -1: a taken descriptor */
    int count;
    void *mapped;
    size_t mapped_bytes;
};

/* Waits for a message. Returns 1, 0 when the other end has closed, or an error. EMFILE: the
 * message arrived without its descriptors; EPROTO: it is malformed. One message is in use at a
 * time, because all of them share one packet buffer. */
CHECKED long msg_receive(int socket, struct message *message);
void msg_release(struct message *message); /* closes the descriptors that nobody has taken */
CHECKED int msg_take_fd(struct message *message, int index);

bool msg_is_valid(const unsigned char *start, size_t count); /* exactly one map */
struct value msg_find(struct value map, const char *key);
char msg_kind(struct value value); /* the tag; 0: an absent value */
int64_t msg_number(struct value value, int64_t otherwise);
bool msg_is_true(struct value value);
const char *msg_text(struct value value); /* NULL: another kind, or text with a NUL in it */
const char *msg_bytes(struct value value, size_t *count);
/* The values of a list, or the keys and values of a map, alternating. */
struct value msg_first(struct value list); /* `start` is NULL at the end */
struct value msg_next(struct value value);
size_t msg_count(struct value list);

/* A message under construction. */
struct reply {
    int memory; /* a memory file for the overflow; -1: none yet */
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
void msg_put_fd(struct reply *reply, int fd); /* sends the descriptor, then closes it */
CHECKED long msg_send(struct reply *reply, int socket);
void msg_discard(struct reply *reply); /* closes its descriptors without sending */

#endif
