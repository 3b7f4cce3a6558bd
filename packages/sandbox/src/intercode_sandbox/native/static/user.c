#include "inside.h"

#include <linux/prctl.h>

enum { KILLED = 9 };

bool user_of(struct value list, struct user *user) {
    uint32_t ids[2 + MOST_GROUPS];
    size_t count = 0;
    if (kind_of(list) != 'L') return false;
    for (struct value each = first_of(list); each.at; each = after(each)) {
        int64_t id = number_of(each, -1);
        /* The highest one means "as it is" to the kernel: the program would be process 1's user. */
        if (id < 0 || id >= UINT32_MAX || count == 2 + MOST_GROUPS) return false;
        ids[count++] = (uint32_t)id;
    }
    if (count < 2) return false;
    *user = (struct user){.uid = ids[0], .gid = ids[1], .count = (int)count - 2};
    memcpy(user->groups, ids + 2, (count - 2) * sizeof *ids);
    return true;
}

long capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {
        {(uint32_t)effective, (uint32_t)permitted, (uint32_t)inheritable},
        {(uint32_t)(effective >> 32), (uint32_t)(permitted >> 32), (uint32_t)(inheritable >> 32)},
    };
    return CALL2(__NR_capset, &header, sets);
}

long permitted(uint64_t *rights) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {0};
    long failed = CALL2(__NR_capget, &header, sets);
    *rights = (uint64_t)sets[1].permitted << 32 | sets[0].permitted;
    return failed;
}

long stay_private(const struct inside *inside) {
    /* Or programs of the same user could trace it. */
    long failed = CALL2(__NR_prctl, PR_SET_DUMPABLE, 0);
    /* A container's parent is a thread of its engine's, which may end before the engine does. */
    return failed || inside->contained ? failed : CALL2(__NR_prctl, PR_SET_PDEATHSIG, KILLED);
}

/* The capabilities with which a user's programs act. */
static uint64_t rights_of(const struct inside *inside, const struct user *user) {
    /* The owner of all files, which an ordinary user is there, could read loaders by this one. */
    bool closed = user->private && !inside->many_ids;
    return user->uid ? 0 : inside->kept & ~((uint64_t)closed << CAP_DAC_OVERRIDE);
}

long own_files_as(uint32_t uid, uint32_t gid) {
    /* These two return what was, not whether it could be done. */
    ignore(CALL1(__NR_setfsgid, gid));
    ignore(CALL1(__NR_setfsuid, uid));
    bool is_so = (uint32_t)CALL1(__NR_setfsuid, -1) == uid && (uint32_t)CALL1(__NR_setfsgid, -1) == gid;
    return is_so ? 0 : -EPERM;
}

long assume(const struct inside *inside, const struct user *user) {
    long failed = 0;
    if (inside->many_ids) {
        failed = CALL2(__NR_setgroups, user->count, user->groups);
        if (!failed) failed = own_files_as(user->uid, user->gid);
    }
    if (!failed) failed = capabilities(rights_of(inside, user), inside->rights, inside->kept);
    if (!failed) failed = stay_private(inside);
    if (failed) resume(inside);
    return failed;
}

long restore(const struct inside *inside) {
    long failed = capabilities(inside->rights, inside->rights, inside->kept);
    if (inside->many_ids) {
        /* Its own ids have no number in this namespace. Each of these two, which are to change none
         * of the others, gives it back its ids for files. */
        if (!failed) failed = CALL2(__NR_setregid, -1, -1);
        if (!failed) failed = CALL2(__NR_setreuid, -1, -1);
        if (!failed) failed = CALL2(__NR_setgroups, 0, 0);
    }
    return failed ? failed : stay_private(inside);
}

void resume(const struct inside *inside) {
    if (restore(inside)) leave(1);
}

long become(const struct inside *inside, const struct user *user) {
    uint64_t rights = rights_of(inside, user);
    long failed = 0;
    if (inside->many_ids) {
        failed = CALL2(__NR_setgroups, user->count, user->groups);
        if (!failed) failed = CALL3(__NR_setresgid, user->gid, user->gid, user->gid);
        if (!failed) failed = CALL3(__NR_setresuid, user->uid, user->uid, user->uid);
    }
    /* fs.suid_dumpable may have made it so: a program has this process's user. */
    if (!failed) failed = CALL2(__NR_prctl, PR_SET_DUMPABLE, 0);
    if (!failed) failed = CALL2(__NR_prctl, PR_SET_PDEATHSIG, 0);
    return failed ? failed : capabilities(rights, rights, rights);
}
