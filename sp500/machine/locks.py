"""Locks of the kernel, and an error that says so if a file system has none."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, Timeout

from sp500.errors import ConfigError
from sp500.machine.disk import disk_error

MISSING = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}


def acquire(lock: FileLock) -> AcquireReturnProxy:
    """Take a lock, to be held with `with`. Raises Timeout while another process has it.

    Raises ConfigError on a file system without locks, such as NFS without lockd, and DiskError for any other reason.
    """
    try:
        return lock.acquire()
    except Timeout:
        raise
    except OSError as error:
        path = Path(lock.lock_file)
        if error.errno in MISSING:
            raise ConfigError(
                f"{path}: its file system has no file locks ({error.strerror}), which keep two processes from writing "
                "over each other. Use a folder on another disk, or mount this one with locks"
            ) from error
        raise disk_error(path, error) from error


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take the lock of an open file until its last copy is closed. Returns False while another process has it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
