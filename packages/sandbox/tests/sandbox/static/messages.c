/* Sends back each message that comes to its standard input, a socket, from what it has read of it:
 * for test_static_protocol.py. One that it cannot read is answered with its error.
 *
 * With an argument, it reads a thread's status file, and writes what tells of its turns. */
#include "inside.h"

enum { INPUT = 0, OUTPUT = 1 };

/* What process.c needs of others, and is not called here. */
void ended(int pid, int status) { (void)pid, (void)status; }
long capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable) {
    return (long)(effective & permitted & inheritable);
}

static int write_turns(void) {
    static char status[1 << 16];
    long got = read_fd(INPUT, status, sizeof status - 1);
    uint64_t found = turns_in(status, got > 0 ? (size_t)got : 0);
    return write_all(OUTPUT, &found, sizeof found) != 0;
}

static void copy(struct reply *reply, struct value value) {
    size_t count;
    const char *bytes;
    switch (kind_of(value)) {
    case 'i':
        put_number(reply, number_of(value, 0));
        break;
    case 's':
        bytes = bytes_of(value, &count);
        put_bytes(reply, bytes, count);
        break;
    case 't':
    case 'f':
        put_truth(reply, is_true(value));
        break;
    case 'L':
    case 'M':
        put_open(reply, kind_of(value));
        for (struct value each = first_of(value); each.at; each = after(each)) copy(reply, each);
        put_close(reply);
        break;
    default:
        put_nothing(reply);
    }
}

int main(int count, char **words) {
    static struct message message;
    static struct reply reply;
    long got;
    (void)words;
    if (count > 1) return write_turns();
    while ((got = receive(INPUT, &message)) != 0) {
        begin(&reply);
        if (got > 0) {
            copy(&reply, message.body);
        } else {
            put_open(&reply, 'M');
            put_text(&reply, "errno");
            put_number(&reply, -got);
            put_close(&reply);
        }
        if (finish(&reply, INPUT)) return 2;
        forget(&message);
    }
    return 0;
}
