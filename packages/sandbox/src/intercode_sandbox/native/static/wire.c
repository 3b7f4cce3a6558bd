#include "wire.h"

#include <linux/memfd.h>

enum { MAX_NESTING = 16 };

struct descriptors { /* cmsghdr, with its data */
    size_t bytes;
    int level, kind;
    int fds[MAX_FDS + 2];
};

/* One packet for the process, which reads one message at a time. */
static unsigned char packet[PACKET];

/* -- reading --------------------------------------------------------------------------------- */

static uint32_t read_size(const unsigned char *bytes) {
    uint32_t size;
    memcpy(&size, bytes, sizeof size);
    return size;
}

/* The bytes of the value or tag at `start`; 0: malformed. */
static size_t item_bytes(const unsigned char *start, const unsigned char *end) {
    size_t room = (size_t)(end - start);
    if (!room) return 0;
    switch (*start) {
    case 'i': return room >= 9 ? 9 : 0;
    case 's':
        if (room < 6) return 0;
        size_t count = (size_t)read_size(start + 1) + 6;
        return room >= count && start[count - 1] == 0 ? count : 0;
    case 't':
    case 'f':
    case 'n':
    case 'L':
    case 'M':
    case 'E': return 1;
    default: return 0;
    }
}

bool msg_is_valid(const unsigned char *cursor, size_t count) {
    const unsigned char *end = cursor + count;
    /* Whether each level is a map, and expects a key next. */
    bool map[MAX_NESTING], key[MAX_NESTING];
    int depth = 0;
    if (!count || *cursor != 'M') return false;
    while (cursor < end) {
        size_t nbytes = item_bytes(cursor, end);
        if (!nbytes) return false;
        if (*cursor == 'E') {
            if (!depth || (map[depth - 1] && !key[depth - 1])) return false;
            if (!--depth) return cursor + 1 == end;
        } else if (depth && map[depth - 1]) {
            if (key[depth - 1] && *cursor != 's') return false;
            key[depth - 1] = !key[depth - 1];
        }
        if (*cursor == 'L' || *cursor == 'M') {
            if (depth == MAX_NESTING) return false;
            map[depth] = key[depth] = *cursor == 'M';
            depth++;
        }
        cursor += nbytes;
    }
    return false;
}

char msg_kind(struct value value) {
    return value.start && value.start < value.end ? (char)*value.start : 0;
}

struct value msg_next(struct value value) {
    int depth = 0;
    const unsigned char *cursor = value.start;
    while (cursor && cursor < value.end) {
        if (*cursor == 'L' || *cursor == 'M') depth++;
        if (*cursor == 'E') depth--;
        size_t nbytes = item_bytes(cursor, value.end);
        if (!nbytes) break;
        cursor += nbytes;
        if (depth <= 0) {
            if (cursor < value.end && *cursor != 'E') return (struct value){cursor, value.end};
            break;
        }
    }
    return (struct value){0};
}

struct value msg_first(struct value list) {
    char kind = msg_kind(list);
    if (kind != 'L' && kind != 'M') return (struct value){0};
    const unsigned char *cursor = list.start + 1;
    if (cursor >= list.end || *cursor == 'E') return (struct value){0};
    return (struct value){cursor, list.end};
}

size_t msg_count(struct value list) {
    size_t count = 0;
    for (struct value item = msg_first(list); item.start; item = msg_next(item)) count++;
    return count;
}

struct value msg_find(struct value map, const char *key) {
    if (msg_kind(map) != 'M') return (struct value){0};
    for (struct value name = msg_first(map); name.start;) {
        struct value value = msg_next(name);
        const char *text = msg_text(name);
        if (text && text_equal(text, key)) return value;
        name = value.start ? msg_next(value) : value;
    }
    return (struct value){0};
}

int64_t msg_number(struct value value, int64_t otherwise) {
    if (msg_kind(value) != 'i') return otherwise;
    int64_t number;
    memcpy(&number, value.start + 1, sizeof number);
    return number;
}

bool msg_is_true(struct value value) { return msg_kind(value) == 't'; }

const char *msg_bytes(struct value value, size_t *count) {
    *count = 0;
    if (msg_kind(value) != 's') return NULL;
    *count = read_size(value.start + 1);
    return (const char *)value.start + 5;
}

const char *msg_text(struct value value) {
    size_t count;
    const char *text = msg_bytes(value, &count);
    return text && text_length(text) == count ? text : NULL;
}

/* -- receiving ------------------------------------------------------------------------------- */

static long keep_descriptors(struct message *message, struct descriptors *control, size_t bytes) {
    if (bytes < CMSG_HEADER_BYTES || control->level != SOL_SOCKET || control->kind != SCM_RIGHTS ||
        control->bytes > bytes)
        return 0;
    size_t count = (control->bytes - CMSG_HEADER_BYTES) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
        if (i < MAX_FDS)
            message->fds[message->count++] = control->fds[i];
        else
            sys_close(control->fds[i]);
    }
    return count > MAX_FDS ? -EMFILE : 0;
}

static long map_body(struct message *message) {
    struct statx status;
    if (!message->count) return -EPROTO;
    int memory = message->fds[--message->count];
    long error = sys_stat_fd(memory, &status);
    if (!error && !status.stx_size) error = -EPROTO;
    if (!error) {
        long address = CALL6(__NR_mmap, 0, status.stx_size, PROT_READ, MAP_PRIVATE, memory, 0);
        if (address < 0 && address >= -MAX_ERRNO) {
            error = address;
        } else {
            message->mapped = (void *)address;
            message->mapped_bytes = status.stx_size;
            message->body.start = message->mapped;
            message->body.end = message->body.start + status.stx_size;
        }
    }
    sys_close(memory);
    return error;
}

long msg_receive(int socket, struct message *message) {
    struct descriptors control;
    struct iovec part = {.iov_base = packet, .iov_len = sizeof packet};
    struct abi_msghdr header = {
        .parts = &part, .count = 1, .control = &control, .control_bytes = sizeof control};
    message->count = 0;
    message->mapped = NULL;
    message->body = (struct value){0};
    long nread;
    do nread = CALL3(__NR_recvmsg, socket, &header, MSG_CMSG_CLOEXEC);
    while (nread == -EINTR);
    if (nread < 0) return nread;
    long error = keep_descriptors(message, &control, header.control_bytes);
    if (header.flags & MSG_CTRUNC) error = -EMFILE;
    if (!error && !nread) return 0;
    if (!error && packet[0] == 'F') {
        error = map_body(message);
    } else if (!error) {
        message->body = (struct value){packet + 1, packet + nread};
        if (packet[0] != 'B') error = -EPROTO;
    }
    if (!error &&
        !msg_is_valid(message->body.start, (size_t)(message->body.end - message->body.start)))
        error = -EPROTO;
    if (error) {
        msg_release(message);
        return error;
    }
    return 1;
}

void msg_release(struct message *message) {
    for (int i = 0; i < message->count; i++) sys_close(message->fds[i]);
    message->count = 0;
    /* A failed unmap leaves read-only pages. */
    if (message->mapped)
        ignore(CALL2(__NR_munmap, message->mapped, message->mapped_bytes));
    else if (message->body.start)
        /* A plan names folders of the machine, and a worker could search its memory for them. */
        memset(packet, 0, (size_t)(message->body.end - packet));
    message->mapped = NULL;
    message->body = (struct value){0};
}

int msg_take_fd(struct message *message, int index) {
    if (index < 0 || index >= message->count) return -1;
    int fd = message->fds[index];
    message->fds[index] = -1;
    return fd;
}

/* -- writing --------------------------------------------------------------------------------- */

void msg_begin(struct reply *reply) {
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
    if (!reply->error) reply->error = sys_write_all(reply->memory, reply->bytes, reply->used);
    reply->used = 0;
}

static void put_raw(struct reply *reply, const void *bytes, size_t count) {
    const unsigned char *cursor = bytes;
    while (count) {
        if (reply->used == sizeof reply->bytes) spill(reply);
        size_t room = sizeof reply->bytes - reply->used, part = count < room ? count : room;
        memcpy(reply->bytes + reply->used, cursor, part);
        reply->used += part;
        cursor += part;
        count -= part;
    }
}

void msg_put_open(struct reply *reply, char kind) { put_raw(reply, &kind, 1); }

void msg_put_close(struct reply *reply) { put_raw(reply, "E", 1); }

void msg_put_number(struct reply *reply, int64_t number) {
    put_raw(reply, "i", 1);
    put_raw(reply, &number, sizeof number);
}

void msg_put_bytes(struct reply *reply, const void *bytes, size_t count) {
    uint32_t size = (uint32_t)count;
    put_raw(reply, "s", 1);
    put_raw(reply, &size, sizeof size);
    put_raw(reply, bytes, count);
    put_raw(reply, "", 1);
}

void msg_put_text(struct reply *reply, const char *text) {
    msg_put_bytes(reply, text, text_length(text));
}

void msg_put_bool(struct reply *reply, bool truth) { put_raw(reply, truth ? "t" : "f", 1); }

void msg_put_null(struct reply *reply) { put_raw(reply, "n", 1); }

void msg_put_fd(struct reply *reply, int fd) { reply->fds[reply->count++] = fd; }

void msg_discard(struct reply *reply) {
    sys_close(reply->memory);
    for (int i = 0; i < reply->count; i++) sys_close(reply->fds[i]);
    msg_begin(reply);
}

long msg_send(struct reply *reply, int socket) {
    if (reply->memory >= 0) spill(reply);
    long result = reply->error;
    if (!result) {
        char place = reply->memory < 0 ? 'B' : 'F';
        struct iovec parts[2] = {{&place, 1}, {reply->bytes, reply->used}};
        struct abi_msghdr header = {.parts = parts, .count = 2};
        struct descriptors control = {.level = SOL_SOCKET, .kind = SCM_RIGHTS};
        int count = 0;
        for (int i = 0; i < reply->count; i++) control.fds[count++] = reply->fds[i];
        if (reply->memory >= 0) control.fds[count++] = reply->memory;
        if (count) {
            control.bytes = CMSG_HEADER_BYTES + (size_t)count * sizeof(int);
            header.control = &control;
            header.control_bytes = (control.bytes + 7) & ~(size_t)7;
        }
        do result = CALL3(__NR_sendmsg, socket, &header, MSG_NOSIGNAL);
        while (result == -EINTR);
    }
    msg_discard(reply);
    return result < 0 ? result : 0;
}
