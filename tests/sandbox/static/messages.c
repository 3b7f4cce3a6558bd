/* Sends back each message that comes to its standard input, a socket, from what it has read of it:
 * for test_static_protocol.py. One that it cannot read is answered with its error. */
#include "wire.h"

enum { SOCKET = 0 };

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

int main(void) {
    static struct message message;
    static struct reply reply;
    long got;
    while ((got = receive(SOCKET, &message)) != 0) {
        begin(&reply);
        if (got > 0) {
            copy(&reply, message.body);
        } else {
            put_open(&reply, 'M');
            put_text(&reply, "errno");
            put_number(&reply, -got);
            put_close(&reply);
        }
        if (finish(&reply, SOCKET)) return 2;
        forget(&message);
    }
    return 0;
}
