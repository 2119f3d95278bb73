"""A seccomp filter that denies new processes and memory that no limit counts.

Resource limits do not stop a fork bomb of the superuser, under whom containers often run, nor count
memory in anonymous files and System V segments. The kernel denies the system calls instead.

Source: the manual pages seccomp(2) and bpf(2), and the tables of system calls of Linux.
"""

import errno
import platform
import struct

# By machine: the number of the architecture, of clone, and of the system calls that are denied.
# fork, vfork, ptrace, unshare, setns, mount, keyctl, add_key, request_key, bpf, perf_event_open,
# userfaultfd, io_uring_setup, process_vm_readv, process_vm_writev, shmget, msgget, memfd_create,
# memfd_secret
TABLES = {
    "x86_64": (
        *(0xC000003E, 56),
        (57, 58, 101, 272, 308, 165, 250, 248, 249, 321, 298, 323, 425, 310, 311, 29, 68, 319, 447),
    ),
    "aarch64": (  # has no fork and no vfork
        *(0xC00000B7, 220),
        (117, 97, 268, 40, 219, 217, 218, 280, 241, 282, 425, 270, 271, 194, 186, 279, 447),
    ),
}
CLONE3 = 435  # on all machines
X32 = 0x40000000  # the bit of a second table of system calls of x86_64
CLONE_THREAD = 0x10000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
LOAD, IF_EQUAL, IF_AT_LEAST, IF_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, DENY, NO_SUCH_CALL, KILL = (
    *(0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x80000000),
)


def no_new_processes() -> bytes | None:
    """Returns the filter as an array of struct sock_filter; None for a machine without a table.

    Threads are allowed. clone3 is reported as missing, so that the C library uses clone, whose
    flags a filter can read.
    """
    table = TABLES.get(platform.machine())
    if table is None:
        return None
    architecture, clone, denied = table
    rules = [
        *((LOAD, 0, 0, ARCHITECTURE), (IF_EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL)),
        *((LOAD, 0, 0, NUMBER), (IF_AT_LEAST, 0, 1, X32), (RETURN, 0, 0, DENY)),
        *((IF_EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, NO_SUCH_CALL)),
    ]
    for number in denied:
        rules += [(IF_EQUAL, 0, 1, number), (RETURN, 0, 0, DENY)]
    rules += [
        *((IF_EQUAL, 1, 0, clone), (RETURN, 0, 0, ALLOW)),
        *((LOAD, 0, 0, FIRST_ARGUMENT), (IF_BIT, 1, 0, CLONE_THREAD)),
        *((RETURN, 0, 0, DENY), (RETURN, 0, 0, ALLOW)),
    ]
    return b"".join(struct.pack("HBBI", *rule) for rule in rules)
