/* Calls what test_static_walk.py compares with Python.
 *
 *   driver blake2b BYTES                            of the standard input, so many bytes at a time
 *   driver changes TIMEOUT_MS LOWER MERGED UPPER…   open folders; writes the packed list
 *   driver archive TIMEOUT_MS LOWER MERGED UPPER…   writes the stream
 *
 * A failure is told on standard error: the errno, and the words for it on the next line. */
#include "archive.h"
#include "blake2b.h"
#include "walk.h"

enum { INPUT = 0, OUTPUT = 1, ERRORS = 2, MOST_WORDS = 200 };

static int failed(long error, const char *message) {
    TEXT(text, 256);
    text_add_number(&text, -error);
    text_add(&text, "\n");
    text_add(&text, message ? message : "");
    ignore(sys_write_all(ERRORS, text.start, text.used)); /* the test sees what is missing */
    return 1;
}

static int digest(size_t step) {
    static unsigned char bytes[4096];
    struct blake2b hash;
    unsigned char digest_bytes[DIGEST];
    long nread;
    blake2b_begin(&hash);
    while ((nread = sys_read(INPUT, bytes, step < sizeof bytes ? step : sizeof bytes)) > 0)
        blake2b_add(&hash, bytes, (size_t)nread);
    blake2b_end(&hash, digest_bytes);
    ignore(sys_write_all(OUTPUT, digest_bytes,
                         sizeof digest_bytes)); /* the test sees what is missing */
    return 0;
}

static int write_reply(struct reply *reply) {
    static char bytes[4096];
    int64_t offset = 0;
    long nread = 0;
    while (reply->memory >= 0 &&
           (nread = CALL4(__NR_pread64, reply->memory, bytes, sizeof bytes, offset)) > 0) {
        ignore(sys_write_all(OUTPUT, bytes, (size_t)nread)); /* the test sees what is missing */
        offset += nread;
    }
    if (!nread) nread = sys_write_all(OUTPUT, reply->bytes, reply->used);
    return nread ? failed(nread, NULL) : 0;
}

static int changes(const struct trees *trees, struct walk *walk) {
    static struct reply reply;
    msg_begin(&reply);
    walk_put_changes(&reply, trees, walk);
    if (!walk->error && reply.error) walk_fail(walk, reply.error, NULL);
    return walk->error ? failed(walk->error, walk->message) : write_reply(&reply);
}

static int archive(const struct trees *trees, struct walk *walk) {
    archive_write(trees, OUTPUT, walk);
    return walk->error ? failed(walk->error, walk->message) : 0;
}

int main(int count, char **words) {
    static int uppers[MOST_WORDS];
    long numbers[MOST_WORDS];
    if (count < 3 || count > MOST_WORDS) return 2;
    for (int i = 2; i < count; i++) {
        const char *cursor = words[i];
        numbers[i] = text_read_number(&cursor);
    }
    if (text_equal(words[1], "blake2b")) return digest((size_t)numbers[2]);
    if (count < 5) return 2;
    for (int i = 5; i < count; i++) uppers[i - 5] = (int)numbers[i];
    struct trees trees = {
        .uppers = uppers, .count = count - 5, .lower = (int)numbers[3], .merged = (int)numbers[4]};
    struct walk walk;
    walk_begin(&walk, numbers[2]);
    return text_equal(words[1], "changes") ? changes(&trees, &walk) : archive(&trees, &walk);
}
