"""The tokens of each step."""

import torch

from storage import Fault, Safetensors


class Tokens:
    """The sequences of each step: listed in a safetensors file (steps x sequences x tokens + 1), or drawn from a text,
    byte by byte."""

    def __init__(self, path: str, batch: dict[str, int], vocabulary: int, seed: int) -> None:
        self.sequences, self.length, self.seed = batch["sequences"], batch["seq-len"], seed
        if path.endswith(".safetensors"):
            self.steps, self.text = Safetensors(path).read("tokens"), None
            wanted = [self.sequences, self.length + 1]
            if list(self.steps.shape[1:]) != wanted:
                raise Fault(f"each step of `{path}` is {list(self.steps.shape[1:])} tokens, the plan's is {wanted}")
        else:
            with open(path, "rb") as file:
                self.steps, self.text = None, torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
            if len(self.text) <= self.length:
                raise Fault(f"`{path}` has {len(self.text)} bytes, one sequence and the token after it needs {self.length + 1}")
        largest = int((self.steps if self.text is None else self.text).max())
        if largest >= vocabulary:
            raise Fault(f"`{path}` has token {largest}, the model's vocabulary has {vocabulary}")

    def step(self, index):
        """Inputs and targets of a step, each sequences x tokens. A list of steps is read again from its start."""
        if self.text is None:
            rows = self.steps[index % len(self.steps)]
        else:
            generator = torch.Generator().manual_seed(self.seed * 2**32 + index)
            starts = torch.randint(len(self.text) - self.length, (self.sequences,), generator=generator)
            rows = torch.stack([self.text[start : start + self.length + 1] for start in starts.tolist()])
        rows = rows.long()
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
