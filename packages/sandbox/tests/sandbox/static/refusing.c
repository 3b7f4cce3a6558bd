/* Takes process 1's place: refuses the system call that the file of the folder's says to itself and all
 * that it starts, by a filter of the machine's as it were, and becomes what is named there.
 *
 *   NUMBER ERRNO, as two numbers of 32 bits, in the file `refused` */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **arguments) {
    uint32_t refused[2];
    int file = open(FOLDER "/refused", O_RDONLY);
    if (!count || read(file, refused, sizeof refused) != sizeof refused || close(file)) return 2;
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[0], 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | refused[1]),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        return 3; /* as root, no more is needed */
    /* What is refused may be this very call: then nothing starts. */
    execv(arguments[1] ? arguments[1] : PROGRAM, arguments[1] ? arguments + 1 : arguments);
    return 4;
}
