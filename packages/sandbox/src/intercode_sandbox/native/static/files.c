#include "inside.h"

/* Why a descriptor is not to be read: it is no regular file, or is process 1's own. */
static long why_not_to_read(int fd) {
    struct statx status;
    long failed = status_of_fd(fd, &status);
    if (failed) return failed;
    if ((status.stx_mode & S_IFMT) == S_IFDIR) return -EISDIR;
    if ((status.stx_mode & S_IFMT) != S_IFREG) return -EINVAL;
    /* /proc/self is process 1 here, which a link of the agent's must not lead to.
     * Of /proc/sys a reader outside would see its own. */
    char target[PATH_MAX];
    TEXT(path, 64);
    add(&path, "/proc/self/fd/");
    add_number(&path, fd);
    long got = CALL4(__NR_readlinkat, AT_FDCWD, path.at, target, sizeof target - 1);
    if (got < 0) return got;
    target[got] = 0;
    return starts(target, "/proc/1/") || starts(target, "/proc/sys/") ? -EACCES : 0;
}

static long checked(long fd, long in_place_of_all) {
    if (fd < 0) return fd;
    long failed = why_not_to_read((int)fd);
    if (!failed) return fd;
    close_fd((int)fd);
    return in_place_of_all ? in_place_of_all : failed;
}

long open_regular(const struct inside *inside, const char *path) {
    long fd = assume(inside, &inside->user);
    if (fd) return fd;
    fd = open_plainly(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    resume(inside);
    return checked(fd, 0);
}

/* The bytes of a path without its last name and the slashes around that. */
static size_t above(const char *path, size_t count) {
    while (count && path[count - 1] == '/') count--;
    while (count && path[count - 1] != '/') count--;
    while (count > 1 && path[count - 1] == '/') count--;
    return count ? count : 1;
}

/* Makes a folder, and the missing ones above it; there may be others at work on them. */
static long make_folders(char *path, size_t count) {
    size_t there = count;
    long folder;
    for (;;) {
        char kept = path[there];
        path[there] = 0;
        folder = open_plainly(path, O_PATH | O_DIRECTORY, 0);
        path[there] = kept;
        if (folder != -ENOENT || there <= 1) break;
        there = above(path, there);
    }
    while (folder >= 0 && there < count) {
        while (there < count && path[there] == '/') there++;
        size_t end = there;
        while (end < count && path[end] != '/') end++;
        if (end == there) break;
        char kept = path[end];
        path[end] = 0;
        long made = CALL3(__NR_mkdirat, folder, path + there, 0777);
        long below = made && made != -EEXIST
                         ? made
                         : open_at((int)folder, path + there, O_PATH | FOLDER, 0);
        path[end] = kept;
        close_fd((int)folder);
        folder = below;
        there = end;
    }
    if (folder < 0) return folder;
    close_fd((int)folder);
    return 0;
}

long create_regular(const struct inside *inside, const char *path, int mode) {
    TEXT(folder, PATH_MAX);
    add(&folder, path);
    if (folder.cut) return -ENAMETOOLONG;
    long fd = assume(inside, &inside->user);
    if (fd) return fd;
    /* The last name of a path that ends in a slash is empty: its folders are all of it. */
    size_t count = folder.used;
    while (count && folder.at[count - 1] != '/') count--;
    fd = make_folders(folder.at, count > 1 ? count - 1 : 1);
    if (!fd) fd = open_plainly(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY, mode);
    resume(inside);
    fd = checked(fd, -EINVAL);
    if (fd < 0) return fd;
    long failed = CALL2(__NR_ftruncate, fd, 0);
    if (!failed) return fd;
    close_fd((int)fd);
    return failed;
}

long open_terminal(const struct inside *inside) {
    long fd = assume(inside, &inside->user);
    if (fd) return fd;
    fd = open_plainly("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK, 0);
    resume(inside);
    return fd;
}
