/* Sends back each message that comes to its standard input, a socket, from what it has read of it:
 * for test_static_protocol.py. One that it cannot read is answered with its error.
 *
 * With an argument, it reads a thread's status file, and writes what tells of its turns. */
#include "sandbox.h"

enum { INPUT = 0, OUTPUT = 1 };

/* What process.c needs of others, and is not called here. */
void prog_note_exit(int pid, int status) { (void)pid, (void)status; }
long user_set_capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable) {
    return (long)(effective & permitted & inheritable);
}

static int write_turns(void) {
    static char status[1 << 16];
    long nread = sys_read(INPUT, status, sizeof status - 1);
    uint64_t mark = proc_status_mark(status, nread > 0 ? (size_t)nread : 0);
    return sys_write_all(OUTPUT, &mark, sizeof mark) != 0;
}

static void copy(struct reply *reply, struct value value) {
    size_t count;
    const char *bytes;
    switch (msg_kind(value)) {
    case 'i': msg_put_number(reply, msg_number(value, 0)); break;
    case 's':
        bytes = msg_bytes(value, &count);
        msg_put_bytes(reply, bytes, count);
        break;
    case 't':
    case 'f': msg_put_bool(reply, msg_is_true(value)); break;
    case 'L':
    case 'M':
        msg_put_open(reply, msg_kind(value));
        for (struct value item = msg_first(value); item.start; item = msg_next(item))
            copy(reply, item);
        msg_put_close(reply);
        break;
    default: msg_put_null(reply);
    }
}

int main(int count, char **words) {
    static struct message message;
    static struct reply reply;
    long nread;
    (void)words;
    if (count > 1) return write_turns();
    while ((nread = msg_receive(INPUT, &message)) != 0) {
        msg_begin(&reply);
        if (nread > 0) {
            copy(&reply, message.body);
        } else {
            msg_put_open(&reply, 'M');
            msg_put_text(&reply, "errno");
            msg_put_number(&reply, -nread);
            msg_put_close(&reply);
        }
        if (msg_send(&reply, INPUT)) return 2;
        msg_release(&message);
    }
    return 0;
}
