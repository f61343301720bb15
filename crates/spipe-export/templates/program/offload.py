"""Saved activations that leave the device until the backward needs them: the tensors of a graph, in host memory that is kept."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

# Bytes at whose multiples tensors begin in the place of a graph: the width of vector instructions.
ALIGNED = 64


@dataclass
class Held:
    """A tensor that a graph has saved: on the device, or in a block of host memory."""

    tensor: torch.Tensor | None
    shape: torch.Size
    dtype: torch.dtype
    block: torch.Tensor | None = None
    # Its first byte in the place of its graph's tensors, if that goes on to a drive.
    first: int | None = None


@dataclass
class Holder:
    """The tensors that one graph has saved, each once."""

    held: dict[tuple[object, ...], Held] = field(default_factory=dict)

    def hold(self, tensor: torch.Tensor) -> Held:
        key = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        return self.held.setdefault(key, Held(tensor.detach(), tensor.shape, tensor.dtype))


class Blocks:
    """Host memory for offloaded tensors: blocks that are used again, pinned where there is a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.free: dict[int, list[tuple[torch.Tensor, torch.cuda.Event | None]]] = {}

    def take(self, bytes: int) -> torch.Tensor:
        """A block that no copy reads any more."""
        if self.free.get(bytes):
            block, event = self.free[bytes].pop(0)
            if event is not None:
                torch.cuda.current_stream(self.device).wait_event(event)
            return block
        return torch.empty(bytes, dtype=torch.uint8, pin_memory=self.device.type == "cuda")

    def give(self, block: torch.Tensor) -> None:
        event = torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None
        self.free.setdefault(block.nbytes, []).append((block, event))

    def offload(self, holder: Holder, bytes: int) -> None:
        """Copies tensors to the host until at least `bytes` have left the device."""
        for held in holder.held.values():
            if bytes <= 0:
                return
            if held.tensor is not None and held.tensor.numel() > 0:
                tensor = held.tensor
                held.block = self.take(tensor.numel() * tensor.element_size())
                held.block.view(held.dtype).copy_(tensor.reshape(-1), non_blocking=True)
                if tensor.is_cuda:
                    tensor.record_stream(torch.cuda.current_stream(self.device))
                held.tensor, bytes = None, bytes - held.block.nbytes

    def pack(self, holder: Holder, place: torch.Tensor) -> None:
        """Copies tensors to a place in host memory, as many as it holds; the others stay on the device."""
        end = 0
        for held in holder.held.values():
            if held.tensor is None or held.tensor.numel() == 0:
                continue
            tensor = held.tensor
            bytes = tensor.numel() * tensor.element_size()
            if end + bytes <= len(place):
                place[end : end + bytes].view(held.dtype).copy_(tensor.reshape(-1), non_blocking=True)
                if tensor.is_cuda:
                    tensor.record_stream(torch.cuda.current_stream(self.device))
                held.tensor, held.first, end = None, end, -(-(end + bytes) // ALIGNED) * ALIGNED

    def unpack(self, holder: Holder, place: torch.Tensor) -> None:
        """Copies the tensors in a place back to the device."""
        for held in holder.held.values():
            if held.first is not None:
                tensor = torch.empty(held.shape, dtype=held.dtype, device=self.device)
                tensor.view(-1).copy_(place[held.first : held.first + tensor.nbytes].view(held.dtype), non_blocking=True)
                held.tensor, held.first = tensor, None

    def reload(self, holder: Holder) -> None:
        """Copies the tensors back to the device."""
        for held in holder.held.values():
            if held.block is not None:
                tensor = torch.empty(held.shape, dtype=held.dtype, device=self.device)
                tensor.view(-1).copy_(held.block.view(held.dtype), non_blocking=True)
                self.give(held.block)
                held.tensor, held.block = tensor, None
