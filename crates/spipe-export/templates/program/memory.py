"""The memories of a plan: each is allocated once, and every buffer with a fixed place is a view of it.

Host memories are one mapping that all processes share, pinned where there are GPUs. A layer's numbers lie flat, tensor after
tensor in the order of the module's parameters. Those of adapters, which may have another type, lie before all others.
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass, replace
from typing import Any

import torch

import model
from program import Buffer, Program
from storage import Fault

# Contents of buffers with numbers of layers, and those of trained numbers alone.
FLAT = ("parameters", "updated", "gradients")
LEARNT = ("gradients", "optimizer-state", "undo-log")
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PAGE = 4096


@dataclass(frozen=True)
class Tensor:
    """A parameter of a layer: its place among the layer's numbers, or among those of its adapters."""

    name: str
    shape: torch.Size
    first: int
    count: int
    trains: bool
    added: bool

    @property
    def place(self) -> slice:
        return slice(self.first, self.first + self.count)


@dataclass(frozen=True)
class Piece:
    """The numbers of a layer, or of its adapters, in a buffer: the first byte, their count and type."""

    start: int
    count: int
    dtype: torch.dtype

    @property
    def end(self) -> int:
        return self.start + self.count * self.dtype.itemsize

    def of(self, bytes: torch.Tensor) -> torch.Tensor:
        return bytes[self.start : self.end].view(self.dtype)


# The layer, and whether these are its adapters.
Pieces = dict[tuple[int, bool], Piece]


class Layout:
    """The tensors of each layer, and the type in which a buffer holds them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.half = TYPES[program.settings["precision"]]
        # Whether adapters alone are trained.
        self.adapts = program.model.get("adapters") is not None
        self.tensors: list[list[Tensor]] = []
        for index, layer in enumerate(model.layers(program.model, range(program.model["layers"] + 2))):
            firsts, tensors = {False: 0, True: 0}, []
            for name, parameter in layer.named_parameters():
                added = model.is_added(self.whole_name(index, name))
                tensors.append(Tensor(name, parameter.shape, firsts[added], parameter.numel(), parameter.requires_grad, added))
                firsts[added] += parameter.numel()
            self.tensors.append(self.own(index, tensors))
        self.found = {buffer.id: self.pieces_of(buffer) for buffer in program.buffers if buffer.offset is not None and buffer.content in FLAT}

    def own(self, layer: int, tensors: list[Tensor]) -> list[Tensor]:
        """Without the table that a head has from the embedding."""
        if not (self.program.model["tied"] and layer == self.program.model["layers"] + 1):
            return tensors
        kept: list[Tensor] = []
        for tensor in tensors:
            if tensor.name != model.HEAD:
                first = kept[-1].first + kept[-1].count if kept else 0
                kept.append(replace(tensor, first=first))
        return kept

    def whole_name(self, layer: int, name: str) -> str:
        """The name that transformers gives a tensor of a layer."""
        return model.name(self.program.model, layer, name)

    @property
    def table(self) -> Tensor:
        """The embedding's table, which a tied head shares."""
        return self.tensors[0][0]

    def count(self, layer: int, added: bool) -> int:
        return sum(tensor.count for tensor in self.tensors[layer] if tensor.added == added)

    def trained(self, layer: int) -> list[slice]:
        """The places of a layer's trained numbers among those that have gradients, without gaps."""
        found: list[slice] = []
        for tensor in self.tensors[layer]:
            if tensor.trains:
                first = found.pop().start if found and found[-1].stop == tensor.first else tensor.first
                found.append(slice(first, tensor.first + tensor.count))
        return found

    def held(self, buffer: Buffer) -> list[int]:
        """The layers whose numbers a buffer has: gradients and state are those of trained layers."""
        return [layer for layer in buffer.layers if not (buffer.content in LEARNT and layer in self.program.frozen)]

    def parts(self, buffer: Buffer) -> list[tuple[int, bool]]:
        """The numbers of a buffer in their order: those of adapters come first. If there are any, they alone have gradients."""
        kinds = [self.adapts] if buffer.content in LEARNT else [True, False]
        return [(layer, added) for added in kinds for layer in self.held(buffer)]

    def pieces_of(self, buffer: Buffer) -> Pieces:
        start, found = 0, {}
        for layer, added in self.parts(buffer):
            dtype = torch.float32 if added and self.is_mixed(buffer) else self.dtype(buffer)
            piece = Piece(start, self.count(layer, added), self.half if dtype == torch.uint8 else dtype)
            found[layer, added], start = piece, piece.end
        return found

    def pieces(self, buffer: Buffer) -> Pieces:
        """The places of the numbers of a buffer of parameters or gradients."""
        return self.found[buffer.id]

    def pairs(self, source: Buffer, target: Buffer) -> list[tuple[Piece, Piece]]:
        """The places of the numbers that both buffers have, without gaps."""
        found: list[tuple[Piece, Piece]] = []
        there = self.pieces(target)
        for part, piece in self.pieces(source).items():
            if part not in there or not piece.count:
                continue
            pair = (piece, there[part])
            if found and all(last.end == one.start and last.dtype == one.dtype for last, one in zip(found[-1], pair, strict=True)):
                first, last = found.pop()
                pair = (replace(first, count=first.count + piece.count), replace(last, count=last.count + piece.count))
            found.append(pair)
        return found

    def numbers(self, buffer: Buffer) -> int:
        if buffer.content == "saved":
            return buffer.bytes
        if buffer.content in ("shared", "shared-gradients"):
            return self.table.count
        return sum(self.count(layer, added) for layer, added in self.parts(buffer))

    def first(self, buffer: Buffer, layer: int) -> int:
        """The place of a layer among the numbers of gradients or of a state."""
        return sum(self.count(before, added) for before, added in self.parts(buffer) if before < layer)

    def is_mixed(self, buffer: Buffer) -> bool:
        """Whether adapters have 32 bits and the other parameters 16."""
        added = sum(self.count(layer, True) for layer in buffer.layers)
        return buffer.content in ("parameters", "updated") and added > 0 and self.half.itemsize == 2 and buffer.bytes == 2 * (self.numbers(buffer) + added)

    def has_master(self, state: Buffer) -> bool:
        """Whether a state has the parameters in 32 bits, beside both moments."""
        return state.bytes == 12 * self.numbers(state)

    def dtype(self, buffer: Buffer) -> torch.dtype:
        """The type of all numbers of a buffer: bytes if there are several."""
        if buffer.content == "saved" or self.is_mixed(buffer):
            return torch.uint8
        if buffer.content in ("optimizer-state", "undo-log"):
            return torch.float32
        return torch.float32 if buffer.bytes == 4 * self.numbers(buffer) else self.half

    def check(self) -> None:
        """Refuses a program whose bytes are not those of the model's parameters."""
        for buffer in self.program.buffers:
            if buffer.offset is None or buffer.content == "saved":
                continue
            count = self.numbers(buffer)
            widths = {"optimizer-state": (8, 12), "undo-log": (12,)}.get(buffer.content, (2, 4))
            if buffer.bytes not in [width * count for width in widths] and not self.is_mixed(buffer):
                raise Fault(f"{buffer.content} of layers {buffer.layers} has {buffer.bytes} bytes in program.json, and {count} numbers in model.py")


class Host:
    """The host memory of all processes: the places of every DRAM, and slots for copies between processes."""

    def __init__(self, program: Program) -> None:
        self.bytes = 0
        self.starts = {index: self.reserve(memory["bytes"]) for index, memory in enumerate(program.memories) if is_host(memory)}
        self.slots: dict[int, tuple[int, int]] = {}
        for lane in program.lanes:
            if lane.to_rank is not None:
                size = up(max(buffer.bytes for action in lane.actions for buffer, _ in action.writes))
                self.slots[lane.index] = (self.reserve(2 * size), size)
        # Copies that nobody reads go here: those of parameters that the host has unchanged.
        unread = [buffer.bytes for action in program.actions.values() if action.kind == "write-back" for buffer, _ in action.reads]
        self.unread = (self.reserve(max(unread, default=0)), max(unread, default=0))

    def reserve(self, bytes: int) -> int:
        """Adds a part to the memory; its start."""
        start = self.bytes
        self.bytes += up(bytes)
        return start

    def map(self, file: int) -> mmap.mmap:
        """Maps the memory, whose pages are those of the other processes; huge ones where the system has them."""
        mapping = mmap.mmap(file, max(self.bytes, PAGE))
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        self.all = torch.frombuffer(mapping, dtype=torch.uint8)
        return mapping

    def touch(self, start: int, size: int) -> None:
        """Gives pages to a part of the memory, on the NUMA node of the calling process."""
        self.all[start : start + size].zero_()

    def pin(self) -> None:
        """Pins the memory for copies of a GPU: `pin_memory()` would round its size up to a power of two."""
        code = torch.cuda.cudart().cudaHostRegister(self.all.data_ptr(), self.bytes, 0)
        if int(code) != 0:
            raise Fault(f"{self.bytes} bytes of host memory cannot be pinned (CUDA's error {int(code)}); `ulimit -l` may limit them")

    def slot(self, lane: int, position: int) -> torch.Tensor:
        """One of two slots of a lane between processes, in turn."""
        start, size = self.slots[lane]
        start += position % 2 * size
        return self.all[start : start + size]

    def scratch(self, bytes: int) -> torch.Tensor:
        return self.all[self.unread[0] : self.unread[0] + bytes]


def is_host(memory: dict[str, Any]) -> bool:
    """Whether a memory is a DRAM, which all processes share."""
    return memory["rank"] is None and not memory.get("drive", False)


def up(bytes: int) -> int:
    return -(-bytes // PAGE) * PAGE


class Memory:
    """The memories that a process sees: its own device's, and those of the host."""

    def __init__(self, program: Program, layout: Layout, host: Host, rank: int, device: torch.device) -> None:
        self.program, self.layout, self.host, self.device = program, layout, host, device
        self.regions = {index: host.all[start : start + program.memories[index]["bytes"]] for index, start in host.starts.items()}
        for index, memory in enumerate(program.memories):
            if memory["rank"] == rank:
                self.regions[index] = torch.zeros(memory["bytes"], dtype=torch.uint8, device=device)

    def sees(self, buffer: Buffer) -> bool:
        return buffer.memory in self.regions

    def at(self, buffer: Buffer, iteration: int) -> Buffer:
        """The buffer whose place this one has in an iteration: what leaves one and arrives in the next changes places with it."""
        return self.program.partners.get(buffer.id, buffer) if iteration % 2 else buffer

    def bytes(self, buffer: Buffer) -> torch.Tensor:
        assert buffer.offset is not None
        return self.regions[buffer.memory][buffer.offset : buffer.offset + buffer.bytes]

    def flat(self, buffer: Buffer) -> torch.Tensor:
        """The numbers of a buffer; bytes if they are of several types."""
        return self.bytes(buffer).view(self.layout.dtype(buffer))

    def all(self, buffer: Buffer, added: bool) -> torch.Tensor:
        """The parameters of all layers of a buffer, or their adapters."""
        pieces = [piece for (_, kind), piece in self.layout.pieces(buffer).items() if kind == added]
        return replace(pieces[0], count=sum(piece.count for piece in pieces)).of(self.bytes(buffer))

    def layer(self, buffer: Buffer, layer: int, added: bool) -> torch.Tensor:
        """The numbers of a layer, or of its adapters, in a buffer of parameters or gradients."""
        return self.layout.pieces(buffer)[layer, added].of(self.bytes(buffer))

    def learnt(self, buffer: Buffer, layer: int) -> torch.Tensor:
        """The numbers of a layer that have gradients, or these."""
        return self.layer(buffer, layer, self.layout.adapts)

    def table(self, buffer: Buffer) -> torch.Tensor:
        """The shared table in a buffer of the embedding's parameters or gradients, or in a copy of it."""
        if buffer.content in ("shared", "shared-gradients"):
            return self.flat(buffer)
        table = self.layout.table
        return self.layer(buffer, 0, added=False)[table.place]

    def state(self, buffer: Buffer) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        """The master copy of a state, if it has one, and both moments."""
        return self.state_of(buffer, self.flat(buffer))

    def state_of(self, buffer: Buffer, numbers: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        """The same of the numbers of a state."""
        parts = numbers.chunk(buffer.bytes // (4 * max(self.layout.numbers(buffer), 1)))
        return (parts[0] if len(parts) == 3 else None), parts[-2], parts[-1]
