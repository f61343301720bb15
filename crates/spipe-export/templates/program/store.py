"""Values that the framework allocates: activations, their gradients, and graphs."""

from __future__ import annotations

import threading

import torch

from passes import Graph
from program import Action, Buffer, Program


class Store:
    """Values that the framework allocates, each until its last user in this process has ended."""

    def __init__(self, program: Program, rank: int) -> None:
        self.lock = threading.Lock()
        self.users: dict[int, int] = {}
        for lane in program.lanes:
            # Both ends of a lane between processes end each of its actions.
            for _ in range((lane.rank == rank) + (lane.to_rank == rank)):
                for action in lane.actions:
                    for buffer in action.buffers:
                        self.users[buffer] = self.users.get(buffer, 0) + 1
        self.values: dict[tuple[int, int], torch.Tensor | Graph] = {}
        self.used: dict[tuple[int, int], int] = {}

    def put(self, buffer: Buffer, iteration: int, value: torch.Tensor | Graph) -> None:
        self.values[buffer.id, iteration] = value

    def tensor(self, buffer: Buffer, iteration: int) -> torch.Tensor:
        value = self.values[buffer.id, iteration]
        assert isinstance(value, torch.Tensor)
        if value.is_cuda:
            value.record_stream(torch.cuda.current_stream())
        return value

    def graph(self, buffer: Buffer, iteration: int) -> Graph | None:
        value = self.values.get((buffer.id, iteration))
        return value if isinstance(value, Graph) else None

    def ended(self, action: Action, iteration: int) -> None:
        """Drops the values whose last user this action was in this process."""
        with self.lock:
            for buffer in action.buffers:
                key = (buffer, iteration)
                self.used[key] = self.used.get(key, 0) + 1
                if self.used[key] == self.users[buffer]:
                    del self.used[key]
                    self.values.pop(key, None)
