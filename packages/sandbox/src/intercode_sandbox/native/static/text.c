#include "sys.h"

/* An empty instruction. Without it, compilers replace each loop by a call of the function
 * itself. */
#define KEEP_LOOP __asm__ volatile("" ::: "memory")

void *memcpy(void *restrict target, const void *restrict source, size_t count) {
#if defined(__x86_64__)
    void *cursor = target;
    __asm__ volatile("rep movsb" : "+D"(cursor), "+S"(source), "+c"(count) : : "memory");
#else
    for (size_t i = 0; i < count; i++) {
        ((char *)target)[i] = ((const char *)source)[i];
        KEEP_LOOP;
    }
#endif
    return target;
}

void *memmove(void *target, const void *source, size_t count) {
    if ((uintptr_t)target <= (uintptr_t)source) {
        for (size_t i = 0; i < count; i++) {
            ((char *)target)[i] = ((const char *)source)[i];
            KEEP_LOOP;
        }
    } else {
        for (size_t i = count; i > 0; i--) {
            ((char *)target)[i - 1] = ((const char *)source)[i - 1];
            KEEP_LOOP;
        }
    }
    return target;
}

void *memset(void *target, int byte, size_t count) {
#if defined(__x86_64__)
    void *cursor = target;
    __asm__ volatile("rep stosb" : "+D"(cursor), "+c"(count) : "a"(byte) : "memory");
#else
    for (size_t i = 0; i < count; i++) {
        ((unsigned char *)target)[i] = (unsigned char)byte;
        KEEP_LOOP;
    }
#endif
    return target;
}

int memcmp(const void *left, const void *right, size_t count) {
    const unsigned char *a = left, *b = right;
    for (size_t i = 0; i < count; i++) {
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
        KEEP_LOOP;
    }
    return 0;
}

size_t text_length(const char *text) {
    size_t count = 0;
    while (text[count]) {
        count++;
        KEEP_LOOP;
    }
    return count;
}

bool text_equal(const char *left, const char *right) {
    size_t count = text_length(left);
    return count == text_length(right) && memcmp(left, right, count) == 0;
}

bool text_starts_with(const char *text, const char *prefix) {
    size_t count = text_length(prefix);
    return text_length(text) >= count && memcmp(text, prefix, count) == 0;
}

struct text text_init(char *buffer, size_t size) {
    buffer[0] = 0;
    return (struct text){.start = buffer, .size = size};
}

void text_add(struct text *text, const char *addition) {
    size_t count = text_length(addition), room = text->size - text->used - 1;
    if (count > room) {
        count = room;
        text->cut = true;
    }
    memcpy(text->start + text->used, addition, count);
    text->used += count;
    text->start[text->used] = 0;
}

void text_add_number(struct text *text, long number) {
    char digits[24];
    size_t position = sizeof digits - 1;
    unsigned long remainder = number < 0 ? -(unsigned long)number : (unsigned long)number;
    digits[position] = 0;
    do {
        digits[--position] = (char)('0' + remainder % 10);
        remainder /= 10;
    } while (remainder);
    if (number < 0) digits[--position] = '-';
    text_add(text, digits + position);
}

long text_read_number(const char **cursor) {
    long number = -1;
    for (; **cursor >= '0' && **cursor <= '9'; ++*cursor) {
        long digit = **cursor - '0';
        if (number > (INT64_MAX - digit) / 10) return -1;
        number = (number < 0 ? 0 : number) * 10 + digit;
    }
    return number;
}
