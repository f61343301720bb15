"""The tokens of each step, of which a process reads its own, and the loss of their predictions."""

import sys
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from sources import IGNORED, Shape, open_source
from storage import Fault


class Tokens:
    """The sequences of each step, whose tokens are in the model's vocabulary."""

    def __init__(self, path: str, batch: dict[str, int], vocabulary: int, seed: int, in_order: bool = False) -> None:
        self.path, self.vocabulary = path, vocabulary
        self.source = open_source(path, Shape(batch["sequences"], batch["seq-len"], seed, in_order))

    @property
    def is_masked(self) -> bool:
        """Whether the number of tokens that count may differ from step to step."""
        return self.source.is_masked

    def steps(self) -> int:
        """The steps of a list, or those that a text in order has."""
        return self.source.steps()

    def warnings(self, steps: int) -> list[str]:
        """The warnings for a user of these tokens for this many steps."""
        return self.source.warnings(steps, self.vocabulary)

    def rows(self, step: int, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of some sequences of a step, each sequences x tokens."""
        tokens, targets = self.source.rows(step, rows)
        targets = tokens[:, 1:] if targets is None else targets
        self.check(tokens)
        self.check(targets[targets != IGNORED])
        return tokens[:, :-1].contiguous(), targets.contiguous()

    def check(self, tokens: torch.Tensor) -> None:
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocabulary:
            wrong = int(tokens.max()) if int(tokens.max()) >= self.vocabulary else int(tokens.min())
            raise Fault(f"`{self.path}` has token {wrong}, the model's vocabulary has {self.vocabulary}")


def count(targets: torch.Tensor) -> int:
    """The targets that count."""
    return int((targets != IGNORED).sum())


def loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of all targets that count, in 32 bits."""
    wanted = targets.to(logits.device).flatten()
    return F.cross_entropy(logits.flatten(0, 1).float(), wanted, ignore_index=IGNORED, reduction="sum")


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
