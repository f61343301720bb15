"""The optimizers of the plan: PyTorch's own, and those of the libraries lion-pytorch and bitsandbytes."""

from typing import Any

import torch

from storage import Fault

# A rate with which a step changes no number, and makes the optimizer's state.
NEARLY_NOTHING = 1e-30


def make(kind: str, parameters: list[torch.Tensor], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """An optimizer with the state of zero steps, into which a checkpoint can be read."""
    optimizer = build(kind, parameters, {"lr": NEARLY_NOTHING, "weight_decay": weight_decay})
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None
        step = optimizer.state[parameter].get("step")
        if isinstance(step, torch.Tensor):
            step.zero_()
        elif step is not None:
            optimizer.state[parameter]["step"] = 0
    optimizer.param_groups[0]["lr"] = lr
    return optimizer


def build(kind: str, parameters: list[torch.Tensor], given: dict[str, Any]) -> torch.optim.Optimizer:
    if kind == "adamw":
        return torch.optim.AdamW(parameters, betas=(0.9, 0.999), eps=1e-8, fused=True, **given)
    if kind == "adafactor":
        return torch.optim.Adafactor(parameters, **given)
    if kind == "sgd":
        return torch.optim.SGD(parameters, **given)
    library = {"lion": "lion-pytorch", "adamw-8bit": "bitsandbytes"}[kind]
    try:
        found: torch.optim.Optimizer
        if kind == "lion":
            import lion_pytorch

            found = lion_pytorch.Lion(parameters, betas=(0.9, 0.99), **given)
        else:
            import bitsandbytes

            found = bitsandbytes.optim.AdamW8bit(parameters, betas=(0.9, 0.999), eps=1e-8, **given)
    except ImportError:
        raise Fault(f"the plan's optimizer is `{kind}`, which {library} has: `pip install {library}`") from None
    return found
