"""Forward, recompute and backward of the stages of a process.

A stage's parameters are views of the place where its layers' numbers lie at that time. A graph that outlives its parameters'
place (they leave the device between the passes) keeps where in the stage its saved parameters were, not their numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

import model
from memory import Memory
from offload import Held, Holder
from program import Buffer, Program


@dataclass
class Graph:
    """The graph of consecutive layers on one microbatch: from its input, if that has a gradient, to its output."""

    first: int
    input: torch.Tensor | None
    output: torch.Tensor
    holder: Holder | None = None


@dataclass(frozen=True)
class Saved:
    """A saved tensor that is a view of a stage's parameters: which of them, and its place behind the first number."""

    base: int
    first: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Stage:
    """The layers of a stage, whose parameters have no memory of their own."""

    def __init__(self, program: Program, index: int, memory: Memory) -> None:
        self.program, self.memory, self.layers = program, memory, program.stages[index].layers
        self.modules = dict(zip(self.layers, model.layers(program.model, self.layers), strict=True))
        # By layer, the owner of each parameter and its name there, in the order in which the numbers lie.
        self.homes = {layer: homes(module) for layer, module in self.modules.items()}
        self.leaves: dict[tuple[int, str], nn.Parameter] = {}
        self.bases: list[torch.Tensor] = []
        self.holder: Holder | None = None

    @property
    def table(self) -> tuple[int, str]:
        """The head's parameter that is the embedding's table in tied models."""
        return (self.program.model["layers"] + 1, model.HEAD)

    def bind(self, parameters: Buffer, shared: Buffer | None) -> None:
        """Lets the layers read their parameters from these places."""
        self.bases = [self.memory.all(parameters, added) for added in (False, True)]
        for layer in self.layers:
            numbers, trains = [self.memory.layer(parameters, layer, added) for added in (False, True)], layer not in self.program.frozen
            for tensor in self.memory.layout.tensors[layer]:
                self.set(layer, tensor.name, numbers[tensor.added][tensor.place].view(tensor.shape), trains and tensor.trains)
        if self.program.model["tied"] and self.table[0] in self.layers:
            source = shared if shared is not None else parameters
            self.bases.append(self.memory.flat(source))
            table = self.memory.table(source).view(self.memory.layout.table.shape)
            self.set(*self.table, table, 0 not in self.program.frozen, None if shared is not None else (0, self.memory.layout.table.name))

    def set(self, layer: int, name: str, view: torch.Tensor, trains: bool, same: tuple[int, str] | None = None) -> None:
        """Points a parameter to its numbers; `same` is the parameter that it is, where both ends of a tied model are here."""
        key = (layer, name)
        # Writes to other places of the same memory are no changes of this parameter.
        view = view.data
        if key in self.leaves:
            self.leaves[key].data = view
            return
        leaf = self.leaves[same] if same is not None else nn.Parameter(view, requires_grad=trains)
        self.leaves[key] = leaf
        owner, own = self.homes[layer][name]
        owner._parameters[own] = leaf

    def trained(self, layer: int) -> list[tuple[str, nn.Parameter]]:
        found = [(tensor.name, self.leaves[layer, tensor.name]) for tensor in self.memory.layout.tensors[layer] if tensor.trains]
        return found if layer not in self.program.frozen else []

    def attach(self, gradients: Buffer, shared: Buffer | None, begins: bool) -> None:
        """Lets backwards add to these places, which the first one of an iteration finds empty."""
        if begins:
            for buffer in (gradients, shared):
                if buffer is not None:
                    self.memory.flat(buffer).zero_()
        for layer in self.layers:
            for name, leaf in self.trained(layer):
                tensor = next(tensor for tensor in self.memory.layout.tensors[layer] if tensor.name == name)
                leaf.grad = self.memory.learnt(gradients, layer)[tensor.place].view(tensor.shape)
        if shared is not None:
            self.leaves[self.table].grad = self.memory.table(shared).view(self.memory.layout.table.shape)

    def pack(self, tensor: torch.Tensor) -> Saved | Held | torch.Tensor:
        for index, base in enumerate(self.bases):
            if tensor.untyped_storage().data_ptr() == base.untyped_storage().data_ptr() and tensor.dtype == base.dtype:
                first = int(tensor.storage_offset()) - int(base.storage_offset())
                if 0 <= first < len(base):
                    return Saved(index, first, tuple(tensor.shape), tuple(tensor.stride()))
        return self.holder.hold(tensor) if self.holder is not None else tensor

    def unpack(self, saved: Saved | Held | torch.Tensor) -> torch.Tensor:
        if isinstance(saved, Saved):
            base = self.bases[saved.base]
            return base.as_strided(saved.size, saved.stride, base.storage_offset() + saved.first)
        if isinstance(saved, torch.Tensor):
            return saved
        assert saved.tensor is not None, "a saved tensor is still on the host"
        if saved.tensor.is_cuda:
            saved.tensor.record_stream(torch.cuda.current_stream())
        return saved.tensor

    @contextlib.contextmanager
    def outliving(self, moves: bool, leaves: bool) -> Iterator[None]:
        """Graphs made in this context outlive the place of their parameters (`moves`), or their saved tensors may leave the
        device until the backward (`leaves`)."""
        if not (moves or leaves):
            yield
            return
        self.holder = Holder() if leaves else None
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            yield
        self.holder = None

    @property
    def first_tracked(self) -> int:
        """The first layer that a backward runs through."""
        return max(self.layers[0], self.program.without_backward)

    def run(self, layers: range, x: torch.Tensor, outputs: dict[int, torch.Tensor]) -> torch.Tensor:
        """Runs layers without a graph, and keeps the outputs of those that `outputs` asks for."""
        with torch.no_grad():
            for layer in layers:
                x = self.modules[layer](x)
                if layer in outputs:
                    outputs[layer] = x
        return x

    def track(self, layers: range, x: torch.Tensor, outputs: dict[int, torch.Tensor]) -> Graph:
        """Runs layers with a graph. Their input has a gradient if a layer before them is trained."""
        has_gradient = layers[0] > self.program.without_backward and x.is_floating_point()
        x = x.detach().requires_grad_() if has_gradient else x.detach()
        given = x if has_gradient else None
        with torch.enable_grad():
            for layer in layers:
                x = self.modules[layer](x)
                if layer in outputs:
                    outputs[layer] = x.detach()
        return Graph(layers[0], given, x, self.holder)

    def backward(self, graphs: list[Graph], seed: torch.Tensor) -> torch.Tensor | None:
        """Runs the backward of graphs from the last to the first; the gradient of the first one's input."""
        gradient: torch.Tensor | None = seed
        for graph in sorted(graphs, key=lambda graph: graph.first, reverse=True):
            if not graph.output.requires_grad:
                return None
            assert gradient is not None
            torch.autograd.backward(graph.output, gradient.to(graph.output.dtype))
            gradient = graph.input.grad if graph.input is not None else None
        return gradient

    def backward_input(self, graphs: list[Graph], seed: torch.Tensor) -> tuple[torch.Tensor | None, list[Later]]:
        """The part of a backward that makes the gradient of the input, and what is left of it."""
        gradient: torch.Tensor | None = seed
        later: list[Later] = []
        for graph in sorted(graphs, key=lambda graph: graph.first, reverse=True):
            if not graph.output.requires_grad:
                break
            assert gradient is not None
            gradient = gradient.to(graph.output.dtype)
            if graph.input is None:
                # Without a gradient of the input all of it is the other part.
                later.append(Later(graph, gradient, []))
                break
            _, groups = stage_backward_input([graph.output], [gradient], [graph.input], iter(self.own()))
            later.append(Later(graph, None, groups))
            gradient = graph.input.grad
        return (gradient if graphs[0].input is not None else None), later

    def backward_weight(self, later: list[Later]) -> None:
        """The rest: the gradients of the parameters."""
        for one in later:
            if one.gradient is not None:
                torch.autograd.backward(one.graph.output, one.gradient)
            else:
                stage_backward_weight(iter(self.own()), one.groups)

    def own(self) -> list[nn.Parameter]:
        """The parameters with gradients, each once."""
        return list({id(leaf): leaf for leaf in self.leaves.values() if leaf.requires_grad}.values())


@dataclass
class Later:
    """The part of a backward that makes the gradients of parameters."""

    graph: Graph
    gradient: torch.Tensor | None
    groups: list[dict[str, Any]]


def homes(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """By name, the module that has a parameter, and its name there."""
    found = {}
    for prefix, inner in module.named_modules():
        for name in inner._parameters:
            found[f"{prefix}.{name}" if prefix else name] = (inner, name)
    return found
