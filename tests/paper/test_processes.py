"""Process 1 looks as it did in a container, and nothing else is touched."""

from intercode.paper.bash import as_in_container

PS = [b"/bin/bash", b"-c", b"ps aux"]


def test_the_tree_is_one_idle_bash():
    argv = [b"bash", b"-c", b"pstree -a"]
    assert as_in_container(b"init\n  `-pstree -a\n", argv) == b"bash\n"
    assert as_in_container(b"init(1)---pstree(13)\n", argv) == b"bash(1)\n"
    assert as_in_container(b"init,1\n  `-pstree,9 -ap\n", argv) == b"bash,1\n"


def test_the_list_begins_with_an_idle_bash():
    line = b"root           1  0.0  0.0  20004 13564 ?        S    23:54   0:00 init\n"
    idle = b"root           1  0.0  0.0  20004 13564 pts/0    Ss+  23:54   0:00 /bin/bash\n"
    other = b"root           9  0.0  0.0   6764  2992 ?        Rs   23:54   0:00 ps aux\n"
    assert as_in_container(line + other, PS) == idle + other


def test_formats_without_a_terminal():
    assert (
        as_in_container(b"root 1 0 init\nroot 7 1 ps x\n", PS)
        == b"root 1 0 /bin/bash\nroot 7 1 ps x\n"
    )


def test_other_output_is_left_alone():
    for output in (b"init\n", b"root 1 init\n", b"systemd-init\n", b""):
        assert as_in_container(output, [b"bash", b"-c", b"cat notes"]) == output
    assert as_in_container(b"root 12 0 init\n", PS) == b"root 12 0 init\n"


def test_a_walk_through_proc_meets_no_closed_door():
    output = (
        b"find: '/proc/tty/driver': Permission denied\n"
        b"find: './proc/1/task/1/fdinfo': Permission denied\n"
        b"/etc/passwd\n"
        b"find: '/proc/12/fd': Permission denied\n"
        b"cat: secret: Permission denied\n"
    )
    assert as_in_container(output, []) == (
        b"/etc/passwd\nfind: '/proc/12/fd': Permission denied\ncat: secret: Permission denied\n"
    )
