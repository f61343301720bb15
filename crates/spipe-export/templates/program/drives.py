"""Drives: a file stands for each, in which parameters, optimizer state and offloaded activations have fixed places.

    place of state 0: whole blocks of 4 KiB | place of state 1 | ...

The first process makes the file and gives it all its bytes before the first step. It has no name: it ends with the last process,
however that ends. Transfers go past the system's cache where the file system takes that.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist

from memory import Layout, Memory
from program import Action, Buffer, Program
from storage import Fault, bytes_of
from tokens import warn

# Places, sizes and addresses of direct transfers are multiples of this, for any drive in use.
BLOCK = 4096
# Bytes of one transfer: enough for a drive's full rate.
CHUNK = 1 << 24


class Drive:
    """The file of a drive, in one process."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.local = threading.local()

    def read(self, place: int, numbers: torch.Tensor) -> None:
        """Fills a contiguous tensor in host memory from a place."""
        self.transfer(os.preadv, place, numbers, self.read_apart)

    def write(self, place: int, numbers: torch.Tensor) -> None:
        """Writes a contiguous tensor in host memory to a place."""
        self.transfer(os.pwritev, place, numbers, self.write_apart)

    def transfer(self, call: Callable[..., int], place: int, numbers: torch.Tensor, apart: Callable[[int, memoryview], None]) -> None:
        """Transfers whole blocks between the file and the tensor itself; through a block of its own, what does not lie on blocks."""
        bytes = bytes_of(numbers)
        aligned = place % BLOCK == 0 and numbers.data_ptr() % BLOCK == 0
        whole = len(bytes) // BLOCK * BLOCK if aligned else 0
        done = 0
        while done < whole:
            moved = call(self.file, [bytes[done : min(done + CHUNK, whole)]], place + done)
            # The file has all its bytes: a transfer that ends early goes on where it ended.
            if moved <= 0 or moved % BLOCK:
                raise Fault(f"a drive moved {moved} bytes of {whole - done}")
            done += moved
        while done < len(bytes):
            part = min(CHUNK - BLOCK, len(bytes) - done)
            apart(place + done, bytes[done : done + part])
            done += part

    def block(self, place: int, size: int) -> tuple[memoryview, int]:
        """Blocks around some bytes of the file, read into memory of this thread; the first block's place."""
        if not hasattr(self.local, "memory"):
            self.local.memory = mmap.mmap(-1, CHUNK)
        first = place // BLOCK * BLOCK
        blocks = memoryview(self.local.memory)[: -(-(place + size - first) // BLOCK) * BLOCK]
        if os.preadv(self.file, [blocks], first) != len(blocks):
            raise Fault("a drive's file ends before its last place")
        return blocks, first

    def read_apart(self, place: int, bytes: memoryview) -> None:
        blocks, first = self.block(place, len(bytes))
        bytes[:] = blocks[place - first : place - first + len(bytes)]

    def write_apart(self, place: int, bytes: memoryview) -> None:
        blocks, first = self.block(place, len(bytes))
        blocks[place - first : place - first + len(bytes)] = bytes
        if os.pwritev(self.file, [blocks], first) != len(blocks):
            raise Fault("a drive took fewer bytes than were written")


class OnDrive:
    """Numbers on a drive, of which a piece at a time is in memory."""

    def __init__(self, drive: Drive, place: int, shape: torch.Size, stored: torch.dtype, dtype: torch.dtype | None = None) -> None:
        self.drive, self.place, self.shape, self.stored = drive, place, shape, stored
        self.dtype = stored if dtype is None else dtype

    def numel(self) -> int:
        return self.shape.numel()

    def element_size(self) -> int:
        return self.dtype.itemsize

    def read(self, first: int, count: int) -> torch.Tensor:
        numbers = torch.empty(count, dtype=self.stored)
        self.drive.read(self.place + first * self.stored.itemsize, numbers)
        return numbers.to(self.dtype)

    def write(self, first: int, numbers: torch.Tensor) -> None:
        self.drive.write(self.place + first * self.stored.itemsize, numbers.to(self.stored))


class Drives:
    """The drives of a program, and the copies between their places and those of the host memory."""

    def __init__(self, program: Program, layout: Layout, memory: Memory, folders: list[str], rank: int) -> None:
        self.program, self.layout, self.memory = program, layout, memory
        used = {index: it for index, it in enumerate(program.memories) if it.get("drive") and it["bytes"]}
        # The first process makes the files, and says what is wrong with their folders.
        named = chosen(folders, {it["name"] for it in used.values()}) if rank == 0 else {}
        self.files = {index: shared(it["name"], named.get(it["name"], ""), it["bytes"], rank) for index, it in used.items()}

    def has(self, buffer: Buffer) -> bool:
        return buffer.memory in self.files

    def part(self, buffer: Buffer, start: int, shape: torch.Size, stored: torch.dtype, dtype: torch.dtype | None = None) -> OnDrive:
        """Some numbers of a buffer, from a byte on."""
        assert buffer.offset is not None
        return OnDrive(self.files[buffer.memory], buffer.offset + start, shape, stored, dtype)

    def whole(self, buffer: Buffer) -> OnDrive:
        dtype = self.layout.dtype(buffer)
        return self.part(buffer, 0, torch.Size([buffer.bytes // dtype.itemsize]), dtype)

    def copy(self, action: Action, _iteration: int) -> None:
        """Copies between a drive and host memory: whole buffers, or the table that a tied head shares."""
        for target, _ in action.writes:
            source = next(buffer for buffer, _ in action.reads if target.content == "shared" or (buffer.content, buffer.layers) == (target.content, target.layers))
            assert source.offset is not None and target.offset is not None
            if self.has(target):
                self.files[target.memory].write(target.offset, self.memory.flat(source))
                continue
            first, table = 0, self.layout.table
            if target.content == "shared" and source.content != "shared":
                piece = self.layout.pieces(source)[0, False]
                first = piece.start + table.first * piece.dtype.itemsize
            self.files[source.memory].read(source.offset + first, self.memory.flat(target))


def chosen(folders: list[str], names: set[str]) -> dict[str, str]:
    """The folder of each drive, from words such as nvme0=/mnt/nvme."""
    found = {}
    for word in folders:
        name, is_pair, folder = word.partition("=")
        if not is_pair or not folder:
            raise Fault(f"`--drive {word}` names no folder: write --drive NAME=FOLDER")
        if name not in names:
            known = ", ".join(f"`{name}`" for name in sorted(names)) or "none"
            raise Fault(f"`--drive {word}` is no drive of the plan, whose drives are: {known}")
        found[name] = folder
    for name in sorted(names - set(found)):
        raise Fault(f"the plan uses the drive `{name}`, which has no folder: name one with --drive {name}=FOLDER")
    return found


def shared(name: str, folder: str, bytes: int, rank: int) -> Drive:
    """The file of a drive in all processes, made by the first one."""
    place = torch.zeros(3, dtype=torch.int64)
    if rank == 0:
        made_here, takes_direct = made(name, folder, bytes)
        place = torch.tensor([os.getpid(), made_here, int(takes_direct)])
        if not takes_direct:
            warn(f"`{folder}` takes no direct transfers: the system caches the drive `{name}`")
    dist.broadcast(place, 0)
    process, file, direct = (int(number) for number in place)
    return Drive(file if rank == 0 else os.open(f"/proc/{process}/fd/{file}", os.O_RDWR | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)))


def made(name: str, folder: str, bytes: int) -> tuple[int, bool]:
    """A file of this size without a name, and whether it takes direct transfers."""
    try:
        first, path = tempfile.mkstemp(prefix=f"{name}.", suffix=".state", dir=folder)
        try:
            file, direct = opened(path)
        finally:
            os.remove(path)
            os.close(first)
    except OSError as error:
        raise Fault(f"the drive `{name}` cannot be used in `{folder}`: {error.strerror}; name another folder with --drive {name}=FOLDER") from None
    try:
        os.posix_fallocate(file, 0, bytes)
    except OSError as error:
        free = shutil.disk_usage(folder).free
        raise Fault(f"the drive `{name}` has no room in `{folder}`: the plan keeps {bytes} bytes there, and {free} are free "
                    f"({error.strerror}); name another folder with --drive {name}=FOLDER") from None
    return file, direct


def opened(path: str) -> tuple[int, bool]:
    """The file, for direct transfers if one of them succeeds."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        file = os.open(path, flags | os.O_DIRECT)
        try:
            os.pwritev(file, [mmap.mmap(-1, BLOCK)], 0)
            return file, True
        except OSError as error:
            os.close(file)
            if error.errno != errno.EINVAL:
                raise
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, flags), False
