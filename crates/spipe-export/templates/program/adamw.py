"""AdamW in place on flat numbers, in pieces, on the device or the cores where they lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.optim.adamw import adamw

# Numbers of one call: their 32-bit gradients stay in the caches of the cores.
PIECE = 1 << 22
BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(frozen=True)
class Part:
    """The numbers of some layers: parameters as stored, their 32-bit copy (the same numbers where they are stored so), gradients
    and both moments."""

    stored: torch.Tensor
    master: torch.Tensor
    gradients: torch.Tensor
    mean: torch.Tensor
    square: torch.Tensor


class AdamW:
    """The optimizer of a lane, with its workspace."""

    def __init__(self, device: torch.device, weight_decay: float) -> None:
        self.device, self.weight_decay = device, weight_decay
        self.wide = torch.empty(PIECE, device=device)

    @torch.no_grad()
    def step(self, part: Part, count: int, rate: float, factor: float) -> None:
        """Step number `count` with gradients times `factor`."""
        for first in range(0, len(part.master), PIECE):
            piece = slice(first, first + PIECE)
            master, gradients = part.master[piece], part.gradients[piece]
            if gradients.dtype != torch.float32 or factor != 1.0:
                gradients = self.wide[: len(master)].copy_(gradients)
                if factor != 1.0:
                    gradients.mul_(factor)
            before = torch.full((), float(count - 1), device=self.device)
            adamw(
                [master], [gradients], [part.mean[piece]], [part.square[piece]], [], [before],
                fused=True, amsgrad=False, beta1=BETAS[0], beta2=BETAS[1], lr=rate, weight_decay=self.weight_decay,
                eps=EPSILON, maximize=False,
            )  # fmt: skip
            if part.stored.data_ptr() != part.master.data_ptr():
                part.stored[piece].copy_(master)


@torch.no_grad()
def squares(gradients: torch.Tensor) -> float:
    """The sum of the squares of gradients."""
    parts = [torch.linalg.vector_norm(piece, dtype=torch.float64) for piece in gradients.split(PIECE)] if len(gradients) else []
    return float(sum(norm.item() ** 2 for norm in parts))
