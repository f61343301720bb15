"""Tensors in files.

A safetensors file is 8 bytes with the length of its header, the header (JSON: type, shape and place of each tensor), and
the numbers. Nothing else is read: no pickles, and no code.
"""

import ctypes
import errno
import json
import math
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from io import BufferedReader
from typing import IO, Any, NamedTuple, Protocol

import torch

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
}
# Bytes that go between a drive and a tensor at a time.
PIECE = 1 << 24


class Fault(Exception):
    """A fault of the input, in words for the user."""


class Safetensors:
    """The tensors of one file, mapped into memory: what is not used is not read."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                # A private mapping may be written, as tensors over it want; nothing of it comes to the file.
                self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            (length,) = struct.unpack("<Q", self.bytes[:8])
            self.header: dict[str, Any] = json.loads(self.bytes[8 : 8 + length])
        except (OSError, ValueError, struct.error) as error:
            raise Fault(f"cannot read `{path}` as safetensors: {error}") from None
        self.start = 8 + length
        self.described: dict[str, str] = self.header.pop("__metadata__", {})

    def read(self, name: str) -> torch.Tensor:
        """A tensor over the mapped file."""
        entry = self.header[name]
        if entry["dtype"] not in TYPES:
            raise Fault(f"`{name}` in `{self.path}` holds {entry['dtype']}, which is not read")
        dtype, shape = TYPES[entry["dtype"]], entry["shape"]
        first, end = (self.start + place for place in entry["data_offsets"])
        if end > len(self.bytes) or end - first != math.prod(shape) * dtype.itemsize:
            raise Fault(f"`{name}` in `{self.path}` is not whole")
        if first == end:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self.bytes, dtype=dtype, offset=first, count=math.prod(shape)).reshape(shape)


class Kept(Protocol):
    """Numbers elsewhere than in memory, of which a piece at a time is."""

    shape: torch.Size
    dtype: torch.dtype

    def numel(self) -> int: ...

    def element_size(self) -> int: ...

    def read(self, first: int, count: int) -> torch.Tensor:
        """`count` numbers from number `first` on, in memory."""

    def write(self, first: int, numbers: torch.Tensor) -> None:
        """Puts numbers in their place, from number `first` on."""


Numbers = torch.Tensor | Kept


class Written(NamedTuple):
    """The size of a file, and the CRC-32 of its header and of all of it."""

    bytes: int
    header_crc32: int
    crc32: int


def type_name(dtype: torch.dtype) -> str:
    return next(name for name, known in TYPES.items() if known == dtype)


def write(path: str, tensors: Mapping[str, Numbers], described: Mapping[str, str] | None = None) -> Written:
    """Writes tensors as one safetensors file, which is on the drive when this returns; where that fails, no file is left."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(described or {})}}
    place = 0
    for name, tensor in tensors.items():
        end = place + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": type_name(tensor.dtype), "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    checksum = header_checksum = zlib.crc32(head)
    try:
        with open(path, "wb") as file:
            file.write(head)
            for tensor in tensors.values():
                for first, count in pieces(tensor):
                    numbers = tensor.detach().view(-1)[first : first + count].to("cpu") if isinstance(tensor, torch.Tensor) else tensor.read(first, count)
                    checksum = zlib.crc32(bytes_of(numbers), checksum)
                    file.write(bytes_of(numbers))
            synchronise(file)
    except OSError:
        if os.path.exists(path):
            os.remove(path)
        raise
    return Written(len(head) + place, header_checksum, checksum)


@torch.no_grad()
def fill_from(file: BufferedReader, tensor: Numbers, checksum: int) -> int:
    """Reads a contiguous tensor from where `file` is, piece by piece; the CRC-32 of all bytes so far."""
    for first, count in pieces(tensor):
        numbers = torch.empty(count, dtype=tensor.dtype)
        if file.readinto(bytes_of(numbers)) != numbers.nbytes:
            raise OSError(errno.EIO, "it ends too early")
        checksum = zlib.crc32(bytes_of(numbers), checksum)
        if isinstance(tensor, torch.Tensor):
            tensor.detach().view(-1)[first : first + count].copy_(numbers)
        else:
            tensor.write(first, numbers)
    return checksum


def pieces(tensor: Numbers) -> Iterator[tuple[int, int]]:
    """The first number and the count of pieces of at most PIECE bytes."""
    length = PIECE // tensor.element_size()
    return ((first, min(length, tensor.numel() - first)) for first in range(0, tensor.numel(), length))


def bytes_of(numbers: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor in host memory, in place; the tensor must outlive them."""
    return memoryview((ctypes.c_char * numbers.nbytes).from_address(numbers.data_ptr())).cast("B")


def synchronise(file: IO[Any]) -> None:
    """Returns when the file is on the drive."""
    file.flush()
    os.fsync(file.fileno())
