"""The sums of a layer's gradients over microbatches, which are complete after the last backward."""

from abc import ABC, abstractmethod

import torch
from torch import nn


class Sums(ABC):
    """What the optimizers of a layer have in common."""

    def __init__(self) -> None:
        self.sums: dict[nn.Parameter, torch.Tensor] = {}
        self.is_complete = False

    @abstractmethod
    def add(self, parameter: torch.Tensor) -> None:
        """Adds the gradient of a microbatch to the sum, if there is one."""

    @abstractmethod
    def close(self) -> None:
        """Makes of complete sums what a step takes."""

    def add_rest(self) -> None:
        """Adds gradients that PyTorch's split backwards have set without its hooks."""
        for parameter in self.sums:
            self.add(parameter)

    @torch.no_grad()
    def complete(self) -> None:
        """Completes the sums after the last backward."""
        if not self.is_complete:
            self.is_complete = True
            self.add_rest()
            self.close()
