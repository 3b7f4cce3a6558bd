#include "sandbox.h"

#include <linux/prctl.h>
#include <linux/signal.h>

bool user_parse(struct value list, struct user *user) {
    uint32_t ids[2 + MAX_GROUPS];
    size_t count = 0;
    if (msg_kind(list) != 'L') return false;
    for (struct value item = msg_first(list); item.start; item = msg_next(item)) {
        int64_t id = msg_number(item, -1);
        /* To the kernel the highest id means "unchanged": the program would run as process 1's
         * user. */
        if (id < 0 || id >= UINT32_MAX || count == 2 + MAX_GROUPS) return false;
        ids[count++] = (uint32_t)id;
    }
    if (count < 2) return false;
    *user = (struct user){.uid = ids[0], .gid = ids[1], .count = (int)count - 2};
    memcpy(user->groups, ids + 2, (count - 2) * sizeof *ids);
    return true;
}

long user_set_capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {
        {(uint32_t)effective, (uint32_t)permitted, (uint32_t)inheritable},
        {(uint32_t)(effective >> 32), (uint32_t)(permitted >> 32), (uint32_t)(inheritable >> 32)},
    };
    return CALL2(__NR_capset, &header, sets);
}

long user_get_permitted(uint64_t *capabilities) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {0};
    long error = CALL2(__NR_capget, &header, sets);
    *capabilities = (uint64_t)sets[1].permitted << 32 | sets[0].permitted;
    return error;
}

long user_protect_process(const struct sandbox *sandbox) {
    /* Without this, programs of the same user could trace process 1. */
    long error = CALL2(__NR_prctl, PR_SET_DUMPABLE, 0);
    /* The parent of a container's process 1 is a thread of its engine, which may end before the
     * engine. */
    return error || sandbox->contained ? error : CALL2(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL);
}

/* The capabilities of a user's programs. */
static uint64_t program_capabilities(const struct sandbox *sandbox, const struct user *user) {
    /* An ordinary user owns all files of the sandbox, and could read loaders with this
     * capability. */
    bool is_private = user->private && !sandbox->many_ids;
    return user->uid ? 0
                     : sandbox->program_capabilities & ~((uint64_t)is_private << CAP_DAC_OVERRIDE);
}

long user_set_file_ids(uint32_t uid, uint32_t gid) {
    /* These two calls return the previous id, not an error. The next two read it back. */
    ignore(CALL1(__NR_setfsgid, gid));
    ignore(CALL1(__NR_setfsuid, uid));
    bool is_set =
        (uint32_t)CALL1(__NR_setfsuid, -1) == uid && (uint32_t)CALL1(__NR_setfsgid, -1) == gid;
    return is_set ? 0 : -EPERM;
}

long user_assume(const struct sandbox *sandbox, const struct user *user) {
    long error = 0;
    if (sandbox->many_ids) {
        error = CALL2(__NR_setgroups, user->count, user->groups);
        if (!error) error = user_set_file_ids(user->uid, user->gid);
    }
    /* Capabilities follow the ids, which need process 1's own. */
    if (!error)
        error = user_set_capabilities(program_capabilities(sandbox, user), sandbox->capabilities,
                                      sandbox->program_capabilities);
    if (!error) error = user_protect_process(sandbox);
    if (error) user_resume(sandbox);
    return error;
}

long user_restore(const struct sandbox *sandbox) {
    long error = user_set_capabilities(sandbox->capabilities, sandbox->capabilities,
                                       sandbox->program_capabilities);
    if (sandbox->many_ids) {
        /* Process 1's own ids have no number in this namespace. Each of these two calls changes
         * no id, but resets the file ids to the process's own. */
        if (!error) error = CALL2(__NR_setregid, -1, -1);
        if (!error) error = CALL2(__NR_setreuid, -1, -1);
        if (!error) error = CALL2(__NR_setgroups, 0, 0);
    }
    return error ? error : user_protect_process(sandbox);
}

void user_resume(const struct sandbox *sandbox) {
    if (user_restore(sandbox)) sys_exit(1);
}

long user_become(const struct sandbox *sandbox, const struct user *user) {
    uint64_t capabilities = program_capabilities(sandbox, user);
    long error = 0;
    /* Groups precede the user: afterwards, this process may lack the privilege to set them. */
    if (sandbox->many_ids) {
        error = CALL2(__NR_setgroups, user->count, user->groups);
        if (!error) error = CALL3(__NR_setresgid, user->gid, user->gid, user->gid);
        if (!error) error = CALL3(__NR_setresuid, user->uid, user->uid, user->uid);
    }
    /* The change of user may have made this process dumpable, by fs.suid_dumpable, and programs
     * have the same user. The death signal is for process 1 alone. */
    if (!error) error = CALL2(__NR_prctl, PR_SET_DUMPABLE, 0);
    if (!error) error = CALL2(__NR_prctl, PR_SET_PDEATHSIG, 0);
    /* Capabilities come last: the calls above need process 1's own. */
    return error ? error : user_set_capabilities(capabilities, capabilities, capabilities);
}
