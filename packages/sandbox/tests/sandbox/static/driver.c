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
    TEXT(told, 256);
    add_number(&told, -error);
    add(&told, "\n");
    add(&told, message ? message : "");
    ignore(write_all(ERRORS, told.at, told.used)); /* the test sees what is missing */
    return 1;
}

static int digest(size_t step) {
    static unsigned char bytes[4096];
    struct blake2b hash;
    unsigned char found[DIGEST];
    long got;
    blake2b_begin(&hash);
    while ((got = read_fd(INPUT, bytes, step < sizeof bytes ? step : sizeof bytes)) > 0)
        blake2b_add(&hash, bytes, (size_t)got);
    blake2b_end(&hash, found);
    ignore(write_all(OUTPUT, found, sizeof found)); /* the test sees what is missing */
    return 0;
}

static int write_reply(struct reply *reply) {
    static char bytes[4096];
    int64_t at = 0;
    long got = 0;
    while (reply->memory >= 0 &&
           (got = CALL4(__NR_pread64, reply->memory, bytes, sizeof bytes, at)) > 0) {
        ignore(write_all(OUTPUT, bytes, (size_t)got)); /* the test sees what is missing */
        at += got;
    }
    if (!got) got = write_all(OUTPUT, reply->bytes, reply->used);
    return got ? failed(got, NULL) : 0;
}

static int changes(const struct trees *trees, struct walk *walk) {
    static struct reply reply;
    begin(&reply);
    put_changes(&reply, trees, walk);
    if (!walk->error && reply.error) fail(walk, reply.error, NULL);
    return walk->error ? failed(walk->error, walk->message) : write_reply(&reply);
}

static int archive(const struct trees *trees, struct walk *walk) {
    write_archive(trees, OUTPUT, walk);
    return walk->error ? failed(walk->error, walk->message) : 0;
}

int main(int count, char **words) {
    static int uppers[MOST_WORDS];
    long numbers[MOST_WORDS];
    if (count < 3 || count > MOST_WORDS) return 2;
    for (int i = 2; i < count; i++) {
        const char *at = words[i];
        numbers[i] = number_at(&at);
    }
    if (same(words[1], "blake2b")) return digest((size_t)numbers[2]);
    if (count < 5) return 2;
    for (int i = 5; i < count; i++) uppers[i - 5] = (int)numbers[i];
    struct trees trees = {
        .uppers = uppers, .count = count - 5, .lower = (int)numbers[3], .merged = (int)numbers[4]};
    struct walk walk;
    begin_walk(&walk, numbers[2]);
    return same(words[1], "changes") ? changes(&trees, &walk) : archive(&trees, &walk);
}
