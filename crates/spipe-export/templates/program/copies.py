"""Actions that copy: within a process, and between processes through slots of the host memory."""

from __future__ import annotations

import torch

from memory import Memory
from offload import Blocks
from passes import Graph
from program import Action, Program
from store import Store
from world import World


class Copies:
    """The copies of one process."""

    def __init__(self, program: Program, world: World, memory: Memory, store: Store) -> None:
        self.program, self.world, self.memory, self.store = program, world, memory, store
        self.blocks = Blocks(world.device)
        # By stage and microbatch, graphs whose tensors are on a drive.
        self.away: dict[tuple[int | None, int | None], Graph] = {}

    def pairs(self, action: Action, iteration: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The places from which, and to which, parameters or gradients are copied."""
        shared = action.written("shared", "shared-gradients")
        if shared:
            source = next(buffer for buffer, _ in action.reads if buffer.id != shared[0].id)
            return [(self.memory.table(source), self.memory.table(shared[0]))]
        written = action.written("parameters", "updated", "gradients")
        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for source in action.read("parameters", "updated", "gradients"):
            for target in (self.memory.at(buffer, iteration) for buffer in written):
                if source.id != target.id:
                    pieces = self.memory.layout.pairs(source, target)
                    found.extend((here.of(self.memory.bytes(source)), there.of(self.memory.bytes(target))) for here, there in pieces)
        return found

    @torch.no_grad()
    def move(self, action: Action, iteration: int) -> None:
        adds = any(buffer in action.read("gradients", "shared-gradients") for buffer, _ in action.writes)
        for source, target in self.pairs(action, iteration):
            if adds:
                target.add_(source.to(target.device))
            else:
                target.copy_(source, non_blocking=True)

    @torch.no_grad()
    def write_back(self, action: Action, iteration: int) -> None:
        """Copies updated parameters back; those that the host has unchanged go nowhere that is read."""
        if action.writes:
            self.move(action, iteration)
            return
        for buffer in action.read("parameters"):
            numbers = self.memory.flat(buffer)
            self.memory.host.scratch(numbers.nbytes).view(numbers.dtype).copy_(numbers, non_blocking=True)

    @torch.no_grad()
    def offload(self, action: Action, iteration: int) -> None:
        """Copies saved activations to the host; the buffer says how many bytes leave."""
        (source,), (target,) = action.read("saved"), action.written("saved")
        graph = self.store.graph(source, iteration)
        if graph is None or graph.holder is None:
            return
        if target.offset is not None:
            # A drive's lane copies on what is in this place, perhaps in another process.
            self.blocks.pack(graph.holder, self.memory.flat(target))
            self.away[action.stage, action.microbatch] = graph
            return
        self.blocks.offload(graph.holder, source.bytes)
        self.store.put(target, iteration, graph)

    @torch.no_grad()
    def reload(self, action: Action, iteration: int) -> None:
        """Copies them back."""
        (target,) = action.written("reloaded")
        for source in action.read("saved"):
            if source.offset is not None:
                away = self.away.pop((action.stage, action.microbatch), None)
                if away is not None and away.holder is not None:
                    self.blocks.unpack(away.holder, self.memory.flat(source))
                    self.store.put(target, iteration, away)
                continue
            graph = self.store.graph(source, iteration)
            if graph is not None and graph.holder is not None:
                self.blocks.reload(graph.holder)
                self.store.put(target, iteration, graph)

    @torch.no_grad()
    def accumulate(self, action: Action, _iteration: int) -> None:
        (source,), (target,) = action.read("shared-gradients"), action.written("gradients")
        self.memory.table(target).add_(self.memory.table(source))

    @torch.no_grad()
    def send(self, action: Action, iteration: int, slot: torch.Tensor) -> None:
        (source, _), (target, _) = action.reads[0], action.writes[0]
        value = self.memory.table(source) if source.offset is not None else self.store.tensor(source, iteration).reshape(-1)
        dtype = self.memory.layout.dtype(target) if target.offset is not None else self.memory.layout.half
        slot[: len(value) * dtype.itemsize].view(dtype).copy_(value, non_blocking=True)

    @torch.no_grad()
    def receive(self, action: Action, iteration: int, slot: torch.Tensor) -> None:
        (target, _) = action.writes[0]
        if target.offset is not None:
            place = self.memory.table(target)
            place.copy_(slot[: place.nbytes].view(place.dtype), non_blocking=True)
            return
        batch, dtype = self.program.settings["batch"], self.memory.layout.half
        shape = (batch["microbatch"], batch["seq-len"], self.program.model["hidden"])
        value = torch.empty(shape, dtype=dtype, device=self.world.device)
        value.view(-1).copy_(slot[: value.nbytes].view(dtype), non_blocking=True)
        self.store.put(target, iteration, value)
