"""The optimizer of a stage on a mesh: gradients are summed over replicas after the last backward, and each replica steps all or a part.

A layer's parameters are views of one vector. With a divided optimizer (ZeRO 1, Rajbhandari et al. 2020, arXiv 1910.02054) replica r owns part r of
it: gradients are reduced and scattered, the part steps with its master and state, and parameters are gathered. Masters and states then take 1/replicas
of the bytes, as in the plan. Libraries that do less of this:

- DistributedDataParallel reduces what hooks see in the last backward, in the type of the parameters: neither sums in 32 bits of 16-bit
  gradients nor split backwards reach it.
- ZeroRedundancyOptimizer gives each replica whole parameters, so that parts differ, and reduces all gradients to all replicas.
- FSDP2 divides parameters, too, each by rows with a padding of its own.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from axes import Axes
from rules import make
from stage import Stage
from sums import Sums
from team import is_divided, local, move, piece, whole

Named = list[tuple[str, nn.Parameter]]


class Share(Sums):
    """The trained parameters of one layer, and this process's part of their optimizer."""

    def __init__(self, named: Named, axes: Axes, kind: str, options: dict[str, Any], wide: bool) -> None:
        super().__init__()
        self.named, self.axes = named, axes
        parts, index = (axes.replicas, axes.replica) if axes.divides_optimizer else (1, 0)
        found = [local(parameter) for _, parameter in named]
        count = sum(part.numel() for part in found)
        each = -(-count // parts)
        # The numbers of the vector that this process steps.
        self.own = slice(index * each, (index + 1) * each)
        self.vector = found[0].new_zeros(parts * each)
        self.places: list[slice] = []
        for part, (_, parameter) in zip(found, named, strict=True):
            start = self.places[-1].stop if self.places else 0
            self.places.append(slice(start, start + part.numel()))
            view = self.vector[self.places[-1]].view_as(part)
            view.copy_(part)
            move(parameter, view)
        self.sum = torch.zeros_like(self.vector, dtype=torch.float32 if wide else None)
        self.sums = {parameter: self.sum[place].view_as(part) for (_, parameter), place, part in zip(named, self.places, found, strict=True)}
        # Parameters of which each member of the team knows a part of the sum.
        self.partial: set[nn.Parameter] = set()
        for _, parameter in named:
            parameter.register_post_accumulate_grad_hook(self.add)
        self.master = self.vector[self.own].to(torch.float32)
        self.optimizer = make(kind, [self.master], **options)

    @torch.no_grad()
    def add(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None or not isinstance(parameter, nn.Parameter):
            return
        if isinstance(gradient, DTensor):
            if gradient.placements[0].is_partial():
                self.partial.add(parameter)
            elif isinstance(parameter, DTensor):
                # The gradient of an embedding's table comes with all rows to each member.
                gradient = gradient.redistribute(placements=parameter.placements)
            gradient = gradient.to_local()
        self.sums[parameter].add_(gradient)
        parameter.grad = None

    def close(self) -> None:
        """Sums over the team, where members know parts."""
        for _, parameter in self.named:
            if parameter in self.partial and isinstance(parameter, DTensor):
                dist.all_reduce(self.sums[parameter], group=parameter.device_mesh.get_group())

    @torch.no_grad()
    def reduce(self) -> None:
        """Sums over the replicas: all numbers, or those that this process steps."""
        if self.axes.divides_optimizer:
            part = torch.empty_like(self.sum[self.own])
            dist.reduce_scatter_tensor(part, self.sum, group=self.axes.peers)
            self.sum[self.own] = part
        elif self.axes.replicas > 1:
            dist.all_reduce(self.sum, group=self.axes.peers)

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The gradients of this process's backwards, by name."""
        for name, parameter in self.named:
            yield name, self.sums[parameter]

    def for_norm(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The reduced gradients of this process, by name, so that all processes together have each number once."""
        if self.axes.replica > 0 and not self.axes.divides_optimizer:
            return
        for (name, parameter), place in zip(self.named, self.places, strict=True):
            if self.axes.member == 0 or is_divided(parameter):
                yield name, self.sum[max(place.start, self.own.start) : max(min(place.stop, self.own.stop), self.own.start)]

    @torch.no_grad()
    def step(self, rate: float, factor: float) -> None:
        """One step of this process's numbers with their gradients, multiplied by `factor`; then all replicas get all numbers."""
        gradient = self.sum[self.own].to(torch.float32)
        self.master.grad = gradient.mul_(factor) if factor != 1.0 else gradient
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        self.master.grad = None
        self.give()

    def give(self) -> None:
        """Copies the masters of all replicas to the parameters."""
        if self.axes.divides_optimizer:
            dist.all_gather_into_tensor(self.vector, self.master.to(self.vector.dtype, copy=True), group=self.axes.peers)
        elif self.master.data_ptr() != self.vector.data_ptr():
            self.vector.copy_(self.master)

    def drop_gradients(self) -> None:
        self.is_complete = False
        for _, parameter in self.named:
            parameter.grad = None
        self.sum.zero_()

    def state(self) -> dict[str, torch.Tensor]:
        """The masters and the optimizer's state of this process's numbers, and numbers such as a count of steps."""
        found = {key: value if isinstance(value, torch.Tensor) else torch.tensor(value) for key, value in self.optimizer.state[self.master].items()}
        return {"weights": self.master, **found}

    @torch.no_grad()
    def wholes(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Masters and state as whole tensors, by key and name of the parameter; all processes of the row ask for them."""
        for key, value in self.state().items():
            if value.numel() != self.master.numel():
                yield from ((f"{key}.{name}", value) for name, _ in self.named)
                continue
            vector = value
            if self.axes.divides_optimizer:
                vector = value.new_empty(self.vector.shape)
                dist.all_gather_into_tensor(vector, value.contiguous(), group=self.axes.peers)
            for (name, parameter), place in zip(self.named, self.places, strict=True):
                yield f"{key}.{name}", whole(parameter, vector[place].view_as(local(parameter)))

    @torch.no_grad()
    def take(self, read: Callable[[str, str, torch.Size], torch.Tensor]) -> None:
        """Takes this process's numbers from whole tensors; `read` has them by key, name and shape."""
        for key, value in self.state().items():
            if value.numel() != self.master.numel():
                number = read(key, self.named[0][0], value.shape)
                value.copy_(number)
                if not isinstance(self.optimizer.state[self.master][key], torch.Tensor):
                    self.optimizer.state[self.master][key] = int(number)
                continue
            vector = torch.zeros(self.vector.shape)
            for (name, parameter), place in zip(self.named, self.places, strict=True):
                vector[place] = piece(parameter, read(key, name, parameter.shape)).flatten()
            value.copy_(vector[self.own])
        self.give()


class SharedOptimizer:
    """The optimizer of one stage, whose steps wait for the other replicas."""

    def __init__(self, stage: Stage, skipped: set[str], axes: Axes, kind: str, options: dict[str, Any], wide: bool) -> None:
        layers: dict[int, Named] = {}
        for index, name, parameter in stage.names():
            if parameter.requires_grad and name not in skipped:
                layers.setdefault(index, []).append((name, parameter))
        self.parts = [Share(named, axes, kind, options, wide) for named in layers.values()]

    def add_rest(self) -> None:
        for part in self.parts:
            part.add_rest()

    def complete(self) -> None:
        for part in self.parts:
            part.complete()

    def reduce(self) -> None:
        for part in self.parts:
            part.reduce()

    def start(self, rate: float, factor: float = 1.0) -> None:
        self.complete()
        for part in self.parts:
            part.step(rate, factor)

    def finish(self) -> None:
        for part in self.parts:
            part.drop_gradients()
