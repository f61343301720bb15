"""Modules of transformers without memory, and with another forward than their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

Forward = Callable[..., Any]


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Parameters that are made in this context have shapes only; buffers have the numbers that the classes compute."""
    register = nn.Module.register_parameter

    def shaped(self: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(self, name, parameter)

    nn.Module.register_parameter = shaped  # type: ignore[assignment]
    try:
        with torch.device("cpu"):
            yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@contextlib.contextmanager
def exchanged(modules: Iterable[nn.Module], make: Callable[[nn.Module], Forward]) -> Iterator[None]:
    """Modules with another forward."""
    before = [(module, module.__dict__.get("forward")) for module in modules]
    for module, _ in before:
        module.__dict__["forward"] = make(module)
    try:
        yield
    finally:
        for module, own in before:
            del module.__dict__["forward"]
            if own is not None:
                module.__dict__["forward"] = own


def shapes_only(module: nn.Module, x: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
    """In the place of a module: zeros in the shape of its output."""
    if isinstance(module, nn.Embedding):
        return torch.zeros(*x.shape, module.embedding_dim, device=x.device)
    return x.new_zeros(*x.shape[:-1], module.out_features) if isinstance(module, nn.Linear) else x
