"""Stages: consecutive layers of the model on one device."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from model import layers, name, table


def give_memory(module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Gives memory to parameters that have only shapes. Their numbers are read or drawn later."""
    for inner in module.modules():
        for key, parameter in inner._parameters.items():
            # Parameters of other classes take their numbers themselves.
            if type(parameter) is nn.Parameter:
                empty = torch.empty(parameter.shape, dtype=dtype, device=device)
                inner._parameters[key] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
        for key, buffer in inner._buffers.items():
            # Without a place for parameters, buffers keep theirs.
            if buffer is not None and device.type != "meta":
                inner._buffers[key] = buffer.to(device)


class Stage(nn.Module):
    """Consecutive layers: the first `recomputed` of them are computed again in the backward.

    The stage computes on `device` in `dtype`. Its input arrives, and its output leaves, on the device and in the type of
    the boundary: `.to` copies them, and their gradients on the way back.
    """

    def __init__(self, model: dict[str, Any], stage: dict[str, Any], device: torch.device, dtype: torch.dtype,
                 boundary: tuple[torch.device, torch.dtype], divide: Callable[[nn.ModuleList, int], None] | None = None) -> None:
        """`divide` gives this process its part of layers, whose first has this number, before they get memory."""
        super().__init__()
        self.model = model
        self.first: int = stage["first-layer"]
        self.last: int = stage["last-layer"]
        self.recomputed, self.offloads = stage["recomputed"], stage["offloads"]
        self.device, self.dtype, self.boundary = device, dtype, boundary
        self.layers = nn.ModuleList(layers(model, range(self.first, self.last + 1)))
        if divide is not None:
            divide(self.layers, self.first)
        give_memory(self.layers, device, dtype)
        for index in stage["frozen"]:
            self.layers[index - self.first].requires_grad_(False)

    @property
    def is_first(self) -> bool:
        return self.first == 0

    @property
    def is_last(self) -> bool:
        last: int = self.model["layers"] + 1
        return self.last == last

    def names(self) -> Iterator[tuple[int, str, nn.Parameter]]:
        """The parameters by transformers' names, in the order of the layers."""
        for index, module in enumerate(self.layers, start=self.first):
            for inner, parameter in module.named_parameters():
                yield index, name(self.model, index, inner), parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.device) if self.is_first else x.to(self.device, self.dtype)
        for index, module in enumerate(self.layers):
            if index < self.recomputed and torch.is_grad_enabled():
                x = checkpoint(module, x, use_reentrant=False)
            elif self.offloads:
                with torch.autograd.graph.save_on_cpu(pin_memory=self.device.type != "cpu"):
                    x = module(x)
            else:
                x = module(x)
        device, dtype = self.boundary
        return x.to(device) if self.is_last else x.to(device, dtype)


def tie(stages: Iterable[Stage]) -> None:
    """Makes a tied head use the table of the embedding in the same process, if both are there."""
    first = next((stage for stage in stages if stage.is_first), None)
    last = next((stage for stage in stages if stage.is_last), None)
    if first is not None and last is not None and first.model["tied"]:
        tables = {name: parameter for _, name, parameter in first.names()}
        last.layers[-1].get_submodule("lm_head").register_parameter("weight", tables[table(first.model)])
