"""Bells in shared memory: a process rings its own when it has written on the board, and others sleep until it does (futex of Linux)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import threading
import time

# The number of the system call, by processor.
CALLS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}
WAIT, WAKE, ALL = 0, 1, 1 << 30
# Seconds after which a sleeper looks anyway, and those between two looks where the system call is not known.
PATIENCE, LOOK = 0.1, 1e-3


class Timespec(ctypes.Structure):
    """A duration, as the system takes it."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Bells:
    """The bells of all processes, one word of 32 bits each, of which this process rings its own."""

    def __init__(self, shared: mmap.mmap, start: int, size: int, rank: int) -> None:
        self.words = (ctypes.c_uint32 * size).from_buffer(shared, start)
        self.addresses = [ctypes.addressof(self.words) + 4 * index for index in range(size)]
        self.rank, self.lock = rank, threading.Lock()
        self.call = CALLS.get(platform.machine()) if platform.system() == "Linux" else None
        self.library = ctypes.CDLL(None, use_errno=True)
        self.patience = Timespec(0, int(PATIENCE * 1e9))

    @staticmethod
    def bytes(size: int) -> int:
        return 4 * size

    def ring(self) -> None:
        """Wakes all that sleep until this process writes something."""
        with self.lock:
            self.words[self.rank] = (self.words[self.rank] + 1) & 0xFFFFFFFF
        if self.call is not None:
            self.library.syscall(self.call, ctypes.c_void_p(self.addresses[self.rank]), WAKE, ALL, None, None, 0)

    def heard(self, rank: int) -> int:
        """How often a process has rung: read before one looks at what it has written."""
        return int(self.words[rank])

    def sleep(self, rank: int, heard: int) -> None:
        """Sleeps until a process rings once more than that, or for a moment."""
        if self.call is None:
            time.sleep(LOOK)
            return
        address, timeout = ctypes.c_void_p(self.addresses[rank]), ctypes.byref(self.patience)
        failed = self.library.syscall(self.call, address, WAIT, ctypes.c_uint32(heard), timeout, None, 0)
        reason = ctypes.get_errno() if failed else 0
        if reason not in (0, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            raise OSError(reason, os.strerror(reason))
