#include "wire.h"

#include <linux/memfd.h>
#include <linux/uio.h>

enum {
    SOCKETS = 1, /* SOL_SOCKET */
    RIGHTS = 1,  /* SCM_RIGHTS */
    NO_SIGNAL = 0x4000,
    CLOSE_ON_EXEC = 0x40000000,
    CUT = 8, /* MSG_CTRUNC */
    DEEPEST = 16,
    MAP_READ = 1,    /* PROT_READ */
    MAP_PRIVATE = 2,
};

struct header { /* the kernel's user_msghdr */
    void *name;
    int name_bytes;
    struct iovec *parts;
    size_t count;
    void *control;
    size_t control_bytes;
    unsigned flags;
};

struct descriptors { /* its cmsghdr, with what follows */
    size_t bytes;
    int level, kind;
    int fds[MOST_FDS + 2];
};

static unsigned char packet[PACKET];

/* -- reading --------------------------------------------------------------------------------- */

static uint32_t size_at(const unsigned char *at) {
    uint32_t size;
    memcpy(&size, at, sizeof size);
    return size;
}

/* The bytes of the value or the tag at `at`: 0 where it is broken. */
static size_t step(const unsigned char *at, const unsigned char *end) {
    size_t room = (size_t)(end - at);
    if (!room) return 0;
    switch (*at) {
    case 'i':
        return room >= 9 ? 9 : 0;
    case 's':
        if (room < 6) return 0;
        size_t count = (size_t)size_at(at + 1) + 6;
        return room >= count && at[count - 1] == 0 ? count : 0;
    case 't':
    case 'f':
    case 'n':
    case 'L':
    case 'M':
    case 'E':
        return 1;
    default:
        return 0;
    }
}

bool well_formed(const unsigned char *at, size_t count) {
    const unsigned char *end = at + count;
    bool map[DEEPEST], key[DEEPEST]; /* whether it is a map, whose next is a key */
    int depth = 0;
    if (!count || *at != 'M') return false;
    while (at < end) {
        size_t taken = step(at, end);
        if (!taken) return false;
        if (*at == 'E') {
            if (!depth || (map[depth - 1] && !key[depth - 1])) return false;
            if (!--depth) return at + 1 == end;
        } else if (depth && map[depth - 1]) {
            if (key[depth - 1] && *at != 's') return false;
            key[depth - 1] = !key[depth - 1];
        }
        if (*at == 'L' || *at == 'M') {
            if (depth == DEEPEST) return false;
            map[depth] = key[depth] = *at == 'M';
            depth++;
        }
        at += taken;
    }
    return false;
}

char kind_of(struct value value) {
    return value.at && value.at < value.end ? (char)*value.at : 0;
}

struct value after(struct value value) {
    int depth = 0;
    const unsigned char *at = value.at;
    while (at && at < value.end) {
        if (*at == 'L' || *at == 'M') depth++;
        if (*at == 'E') depth--;
        size_t taken = step(at, value.end);
        if (!taken) break;
        at += taken;
        if (depth <= 0) {
            if (at < value.end && *at != 'E') return (struct value){at, value.end};
            break;
        }
    }
    return (struct value){0};
}

struct value first_of(struct value list) {
    char kind = kind_of(list);
    if (kind != 'L' && kind != 'M') return (struct value){0};
    const unsigned char *at = list.at + 1;
    if (at >= list.end || *at == 'E') return (struct value){0};
    return (struct value){at, list.end};
}

size_t count_of(struct value list) {
    size_t count = 0;
    for (struct value each = first_of(list); each.at; each = after(each)) count++;
    return count;
}

struct value find(struct value map, const char *key) {
    if (kind_of(map) != 'M') return (struct value){0};
    for (struct value name = first_of(map); name.at;) {
        struct value value = after(name);
        const char *text = text_of(name);
        if (text && same(text, key)) return value;
        name = value.at ? after(value) : value;
    }
    return (struct value){0};
}

int64_t number_of(struct value value, int64_t otherwise) {
    if (kind_of(value) != 'i') return otherwise;
    int64_t number;
    memcpy(&number, value.at + 1, sizeof number);
    return number;
}

bool is_true(struct value value) { return kind_of(value) == 't'; }

const char *bytes_of(struct value value, size_t *count) {
    *count = 0;
    if (kind_of(value) != 's') return NULL;
    *count = size_at(value.at + 1);
    return (const char *)value.at + 5;
}

const char *text_of(struct value value) {
    size_t count;
    const char *text = bytes_of(value, &count);
    return text && length(text) == count ? text : NULL;
}

/* -- receiving ------------------------------------------------------------------------------- */

static long keep_descriptors(struct message *message, struct descriptors *came, size_t bytes) {
    if (bytes < 16 || came->level != SOCKETS || came->kind != RIGHTS || came->bytes > bytes) return 0;
    size_t count = (came->bytes - 16) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
        if (i < MOST_FDS)
            message->fds[message->count++] = came->fds[i];
        else
            close_fd(came->fds[i]);
    }
    return count > MOST_FDS ? -EMFILE : 0;
}

static long map_body(struct message *message) {
    struct statx status;
    if (!message->count) return -EPROTO;
    int memory = message->fds[--message->count];
    long failed = status_of_fd(memory, &status);
    if (!failed && !status.stx_size) failed = -EPROTO;
    if (!failed) {
        long at = CALL6(__NR_mmap, 0, status.stx_size, MAP_READ, MAP_PRIVATE, memory, 0);
        if (at < 0 && at > -4096) {
            failed = at;
        } else {
            message->mapped = (void *)at;
            message->mapped_bytes = status.stx_size;
            message->body.at = message->mapped;
            message->body.end = message->body.at + status.stx_size;
        }
    }
    close_fd(memory);
    return failed;
}

long receive(int socket, struct message *message) {
    struct descriptors came;
    struct iovec part = {.iov_base = packet, .iov_len = sizeof packet};
    struct header header = {
        .parts = &part, .count = 1, .control = &came, .control_bytes = sizeof came};
    message->count = 0;
    message->mapped = NULL;
    message->body = (struct value){0};
    long got;
    do got = CALL3(__NR_recvmsg, socket, &header, CLOSE_ON_EXEC);
    while (got == -EINTR);
    if (got < 0) return got;
    long failed = keep_descriptors(message, &came, header.control_bytes);
    if (header.flags & CUT) failed = -EMFILE;
    if (!failed && !got) return 0;
    if (!failed && packet[0] == 'F') {
        failed = map_body(message);
    } else if (!failed) {
        message->body = (struct value){packet + 1, packet + got};
        if (packet[0] != 'B') failed = -EPROTO;
    }
    if (!failed && !well_formed(message->body.at, (size_t)(message->body.end - message->body.at)))
        failed = -EPROTO;
    if (failed) {
        forget(message);
        return failed;
    }
    return 1;
}

void forget(struct message *message) {
    for (int i = 0; i < message->count; i++) close_fd(message->fds[i]);
    message->count = 0;
    if (message->mapped)
        ignore(CALL2(__NR_munmap, message->mapped, message->mapped_bytes)); /* it stays, read-only */
    else if (message->body.at)
        /* A plan names folders of the machine's, and a worker could look for them. */
        memset(packet, 0, (size_t)(message->body.end - packet));
    message->mapped = NULL;
    message->body = (struct value){0};
}

int take_fd(struct message *message, int index) {
    if (index < 0 || index >= message->count) return -1;
    int fd = message->fds[index];
    message->fds[index] = -1;
    return fd;
}

/* -- writing --------------------------------------------------------------------------------- */

void begin(struct reply *reply) {
    reply->memory = -1;
    reply->error = 0;
    reply->count = 0;
    reply->used = 0;
}

static void spill(struct reply *reply) {
    if (reply->memory < 0 && !reply->error) {
        long memory = CALL2(__NR_memfd_create, "message", MFD_CLOEXEC);
        if (memory < 0)
            reply->error = memory;
        else
            reply->memory = (int)memory;
    }
    if (!reply->error) reply->error = write_all(reply->memory, reply->bytes, reply->used);
    reply->used = 0;
}

static void put(struct reply *reply, const void *bytes, size_t count) {
    const unsigned char *at = bytes;
    while (count) {
        if (reply->used == sizeof reply->bytes) spill(reply);
        size_t room = sizeof reply->bytes - reply->used, part = count < room ? count : room;
        memcpy(reply->bytes + reply->used, at, part);
        reply->used += part;
        at += part;
        count -= part;
    }
}

void put_open(struct reply *reply, char kind) { put(reply, &kind, 1); }

void put_close(struct reply *reply) { put(reply, "E", 1); }

void put_number(struct reply *reply, int64_t number) {
    put(reply, "i", 1);
    put(reply, &number, sizeof number);
}

void put_bytes(struct reply *reply, const void *bytes, size_t count) {
    uint32_t size = (uint32_t)count;
    put(reply, "s", 1);
    put(reply, &size, sizeof size);
    put(reply, bytes, count);
    put(reply, "", 1);
}

void put_text(struct reply *reply, const char *text) { put_bytes(reply, text, length(text)); }

void put_truth(struct reply *reply, bool truth) { put(reply, truth ? "t" : "f", 1); }

void put_nothing(struct reply *reply) { put(reply, "n", 1); }

void put_fd(struct reply *reply, int fd) { reply->fds[reply->count++] = fd; }

void drop(struct reply *reply) {
    close_fd(reply->memory);
    for (int i = 0; i < reply->count; i++) close_fd(reply->fds[i]);
    begin(reply);
}

long finish(struct reply *reply, int socket) {
    if (reply->memory >= 0) spill(reply);
    long sent = reply->error;
    if (!sent) {
        char where = reply->memory < 0 ? 'B' : 'F';
        struct iovec parts[2] = {{&where, 1}, {reply->bytes, reply->used}};
        struct header header = {.parts = parts, .count = 2};
        struct descriptors go = {.level = SOCKETS, .kind = RIGHTS};
        int count = 0;
        for (int i = 0; i < reply->count; i++) go.fds[count++] = reply->fds[i];
        if (reply->memory >= 0) go.fds[count++] = reply->memory;
        if (count) {
            go.bytes = 16 + (size_t)count * sizeof(int);
            header.control = &go;
            header.control_bytes = (go.bytes + 7) & ~(size_t)7;
        }
        do sent = CALL3(__NR_sendmsg, socket, &header, NO_SIGNAL);
        while (sent == -EINTR);
    }
    drop(reply);
    return sent < 0 ? sent : 0;
}
