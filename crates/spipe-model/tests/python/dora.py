"""Floating-point operations and saved numbers of DoRA in PEFT, counted by PyTorch on one linear layer.

Prints the rows of `tests/adapters.rs`, each beyond what the same adapter takes without magnitudes.

    pip install torch peft
    python dora.py
"""

import peft
import torch
from torch.utils.flop_counter import FlopCounterMode

SIZES = [(32, 64, 48, 4), (16, 32, 96, 8)]


def counted(tokens, inputs, outputs, rank, dropout, dora):
    """Operations of forward and backward, and numbers saved that have a row for each token."""
    layers = torch.nn.Sequential(torch.nn.Linear(inputs, inputs, bias=False), torch.nn.Linear(inputs, outputs, bias=False))
    config = peft.LoraConfig(r=rank, target_modules=["1"], use_dora=dora, lora_dropout=dropout)
    model = peft.get_peft_model(layers, config)
    input = torch.randn(tokens, inputs, requires_grad=True)
    saved = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda one: (saved.append(tuple(one.shape)), one)[1], lambda one: one)
    with FlopCounterMode(display=False) as forward, hooks:
        output = model(input)
    with FlopCounterMode(display=False) as backward:
        output.sum().backward()
    rows = sum(columns for count, columns in (shape for shape in saved if len(shape) == 2) if count == tokens)
    return forward.get_total_flops(), backward.get_total_flops(), rows


if __name__ == "__main__":
    for sizes in SIZES:
        for dropout in (0.0, 0.1):
            with_, without = (counted(*sizes, dropout, dora) for dora in (True, False))
            print(sizes, dropout, [one - other for one, other in zip(with_, without)])
