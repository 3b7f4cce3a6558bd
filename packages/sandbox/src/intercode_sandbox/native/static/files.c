#include "sandbox.h"

/* Refuses descriptors that are no regular file, or belong to process 1 or the machine. */
static long check_readable(int fd) {
    struct statx status;
    long error = sys_stat_fd(fd, &status);
    if (error) return error;
    if ((status.stx_mode & S_IFMT) == S_IFDIR) return -EISDIR;
    if ((status.stx_mode & S_IFMT) != S_IFREG) return -EINVAL;
    /* /proc/self is process 1 here, and an agent's link must not lead to it. A reader outside the
     * sandbox would see the machine's own values in files of /proc/sys. */
    char target[PATH_MAX];
    TEXT(path, 64);
    text_add(&path, "/proc/self/fd/");
    text_add_number(&path, fd);
    long nread = CALL4(__NR_readlinkat, AT_FDCWD, path.start, target, sizeof target - 1);
    if (nread < 0) return nread;
    target[nread] = 0;
    return text_starts_with(target, "/proc/1/") || text_starts_with(target, "/proc/sys/") ? -EACCES
                                                                                          : 0;
}

static long check_regular(long fd, long in_place_of_all) {
    if (fd < 0) return fd;
    long error = check_readable((int)fd);
    if (!error) return fd;
    sys_close((int)fd);
    return in_place_of_all ? in_place_of_all : error;
}

long file_open(const struct sandbox *sandbox, const char *path) {
    long fd = user_assume(sandbox, &sandbox->user);
    if (fd) return fd;
    fd = sys_open_plain(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    user_resume(sandbox);
    return check_regular(fd, 0);
}

/* The length of a path without its last name and the slashes around that. */
static size_t parent_length(const char *path, size_t count) {
    while (count && path[count - 1] == '/') count--;
    while (count && path[count - 1] != '/') count--;
    while (count > 1 && path[count - 1] == '/') count--;
    return count ? count : 1;
}

/* Makes a folder and its missing parents; other processes may work on them at the same time. */
static long make_folders(char *path, size_t count) {
    size_t end_of_existing = count;
    long folder;
    for (;;) {
        char character = path[end_of_existing];
        path[end_of_existing] = 0;
        folder = sys_open_plain(path, O_PATH | O_DIRECTORY, 0);
        path[end_of_existing] = character;
        if (folder != -ENOENT || end_of_existing <= 1) break;
        end_of_existing = parent_length(path, end_of_existing);
    }
    while (folder >= 0 && end_of_existing < count) {
        while (end_of_existing < count && path[end_of_existing] == '/') end_of_existing++;
        size_t end = end_of_existing;
        while (end < count && path[end] != '/') end++;
        if (end == end_of_existing) break;
        char character = path[end];
        path[end] = 0;
        long error = CALL3(__NR_mkdirat, folder, path + end_of_existing, 0777);
        long below = error && error != -EEXIST
                         ? error
                         : sys_open((int)folder, path + end_of_existing, O_PATH | FOLDER_FLAGS, 0);
        path[end] = character;
        sys_close((int)folder);
        folder = below;
        end_of_existing = end;
    }
    if (folder < 0) return folder;
    sys_close((int)folder);
    return 0;
}

long file_create(const struct sandbox *sandbox, const char *path, int mode) {
    TEXT(folder, PATH_MAX);
    text_add(&folder, path);
    if (folder.cut) return -ENAMETOOLONG;
    long fd = user_assume(sandbox, &sandbox->user);
    if (fd) return fd;
    /* A path with a trailing slash has an empty last name: all of its names are folders. */
    size_t count = folder.used;
    while (count && folder.start[count - 1] != '/') count--;
    fd = make_folders(folder.start, count > 1 ? count - 1 : 1);
    if (!fd) fd = sys_open_plain(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY, mode);
    user_resume(sandbox);
    fd = check_regular(fd, -EINVAL);
    if (fd < 0) return fd;
    long error = CALL2(__NR_ftruncate, fd, 0);
    if (!error) return fd;
    sys_close((int)fd);
    return error;
}

long file_open_terminal(const struct sandbox *sandbox) {
    long fd = user_assume(sandbox, &sandbox->user);
    if (fd) return fd;
    fd = sys_open_plain("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK, 0);
    user_resume(sandbox);
    return fd;
}
