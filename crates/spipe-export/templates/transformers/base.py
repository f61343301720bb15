"""Frozen matrices that bitsandbytes stores in 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from storage import Fault


class Unfilled(nn.Parameter):
    """A matrix without memory, whose module is exchanged for one of bitsandbytes when its numbers are known."""

    home: tuple[nn.Module, str]
    base: dict[str, Any]

    def receive(self, numbers: torch.Tensor, device: torch.device, dtype: torch.dtype) -> None:
        parent, name = self.home
        module = parent.get_submodule(name)
        # The matrices of GPT-2's classes are inputs × outputs.
        matrix = (numbers.t() if isinstance(module, Conv1D) else numbers).contiguous().to(dtype)
        stored: Any = four_bits(matrix, self.base, dtype) if self.base["bits"] == 4 else eight_bits(matrix)
        # On its way to the device the matrix becomes codes and constants.
        stored.weight = stored.weight.to(device)
        stored.bias = module.bias if isinstance(module.bias, nn.Parameter) else None
        parent.register_module(name, stored.eval())


def four_bits(matrix: torch.Tensor, base: dict[str, Any], dtype: torch.dtype) -> nn.Module:
    import bitsandbytes

    outputs, inputs = matrix.shape
    module = bitsandbytes.nn.Linear4bit(inputs, outputs, bias=False, compute_dtype=dtype, device="meta")
    # The form for inference on some processors has no backward.
    module.support_avx512bf16_for_cpu = False
    module.weight = bitsandbytes.nn.Params4bit(matrix, requires_grad=False, blocksize=base["block"], compress_statistics=base["double"],
                                               quant_type=base["format"], module=module)  # fmt: skip
    return module


def eight_bits(matrix: torch.Tensor) -> nn.Module:
    import bitsandbytes

    outputs, inputs = matrix.shape
    # Columns of inputs with a number above the threshold are multiplied in 16 bits (LLM.int8, arXiv 2208.07339).
    module = bitsandbytes.nn.Linear8bitLt(inputs, outputs, bias=False, has_fp16_weights=False, threshold=6.0, device="meta")
    module.weight = bitsandbytes.nn.Int8Params(matrix, requires_grad=False, has_fp16_weights=False)
    return module


def narrow(blocks: Iterable[nn.Module], base: dict[str, Any]) -> None:
    """Leaves the frozen matrices of blocks without memory, until bitsandbytes stores their numbers."""
    try:
        import bitsandbytes
    except ImportError:
        raise Fault(f"the plan's base is stored as {base['format']}, which bitsandbytes has: `pip install bitsandbytes`") from None
    count = 0
    for block in blocks:
        for module in list(block.modules()):
            for name, inner in module.named_children():
                if isinstance(inner, (nn.Linear, Conv1D)) and not inner.weight.requires_grad:
                    matrix = Unfilled(torch.empty(()).expand(inner.weight.shape), requires_grad=False)
                    matrix.home, matrix.base, inner.weight = (module, name), base, matrix
                    count += inner.weight.numel()
    if count != base["parameters"]:
        raise Fault(f"bitsandbytes {bitsandbytes.__version__} stores {count} numbers of these classes, the plan's base has {base['parameters']}")
