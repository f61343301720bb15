"""The tokens of each step, of which a process reads its own."""

import mmap
import sys
import zlib
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from storage import Fault, Safetensors

# The target of a token that does not count, as PyTorch and transformers have it.
IGNORED = -100


class Tokens:
    """The sequences of each step: listed in a safetensors file, or windows of a text, byte by byte.

    A file has `tokens` (steps x sequences x tokens + 1). Tokens that are not to be predicted, such as prompts and padding, are zero in a
    `loss-mask` of the same shape, or -100 in `targets` (steps x sequences x tokens).
    """

    def __init__(self, path: str, batch: dict[str, int], vocabulary: int, seed: int, in_order: bool = False) -> None:
        self.path, self.vocabulary, self.seed, self.in_order = path, vocabulary, seed, in_order
        self.sequences, self.length = batch["sequences"], batch["seq-len"]
        self.listed: torch.Tensor | None = None
        self.mask: torch.Tensor | None = None
        self.targets: torch.Tensor | None = None
        if path.endswith(".safetensors"):
            file = Safetensors(path)
            self.listed = self.tensor(file, "tokens", self.length + 1)
            self.mask = self.tensor(file, "loss-mask", self.length + 1)
            self.targets = self.tensor(file, "targets", self.length)
            if self.listed is None:
                raise Fault(f"`{path}` has no `tokens`")
        else:
            self.text = mapped(path)
            if len(self.text) <= self.length:
                raise Fault(f"`{path}` has {len(self.text)} bytes, one sequence and the token after it needs {self.length + 1}")

    def tensor(self, file: Safetensors, name: str, length: int) -> torch.Tensor | None:
        if name not in file.header:
            return None
        found, wanted = file.read(name), [self.sequences, length]
        if list(found.shape[1:]) != wanted or not len(found):
            raise Fault(f"each step of `{name}` in `{self.path}` is {list(found.shape[1:])}, the plan's is {wanted}")
        if self.listed is not None and len(found) != len(self.listed):
            raise Fault(f"`{name}` in `{self.path}` has {len(found)} steps, its tokens have {len(self.listed)}")
        return found

    @property
    def is_masked(self) -> bool:
        """Whether the number of tokens that count differs from step to step."""
        return self.mask is not None or self.targets is not None or (self.listed is None and self.in_order)

    def steps(self) -> int:
        """The steps of a list, or those that a text in order has."""
        if self.listed is not None:
            return len(self.listed)
        windows = (len(self.text) - 1) // self.length
        return -(-windows // self.sequences)

    def warnings(self, steps: int) -> list[str]:
        """The warnings for a user of these tokens for this many steps."""
        found = []
        if self.listed is not None and steps > len(self.listed):
            found.append(f"`{self.path}` has the tokens of {len(self.listed)} steps: after them it begins again")
        if self.listed is None and self.vocabulary > 256:
            found.append(f"`{self.path}` is read byte by byte, and the model has {self.vocabulary} tokens: `spipe export --data {self.path} "
                         "--tokenizer FOLDER` writes those of its tokenizer")
        return found

    def rows(self, step: int, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of some sequences of a step, each sequences x tokens."""
        targets = None
        if self.listed is None:
            tokens, targets = self.windows(step, rows)
        else:
            place = step % len(self.listed)
            tokens = self.listed[place][list(rows)].long()
            if self.targets is not None:
                targets = self.targets[place][list(rows)].long()
            elif self.mask is not None:
                targets = tokens[:, 1:].masked_fill(self.mask[place][list(rows)][:, 1:] == 0, IGNORED)
        targets = tokens[:, 1:] if targets is None else targets
        self.check(tokens)
        self.check(targets[targets != IGNORED])
        return tokens[:, :-1].contiguous(), targets.contiguous()

    def check(self, tokens: torch.Tensor) -> None:
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocabulary:
            wrong = int(tokens.max()) if int(tokens.max()) >= self.vocabulary else int(tokens.min())
            raise Fault(f"`{self.path}` has token {wrong}, the model's vocabulary has {self.vocabulary}")

    def windows(self, step: int, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Windows of the text: drawn, or one after the other, of which those behind its end do not count."""
        if self.in_order:
            starts = torch.arange(self.sequences) * self.length + step * self.sequences * self.length
        else:
            # Of a seed PyTorch takes 32 bits on cores.
            generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{step}".encode()))
            starts = torch.randint(len(self.text) - self.length, (self.sequences,), generator=generator)
        places = starts[list(rows)]
        counts = places + self.length < len(self.text)
        tokens = torch.stack([self.text[start : start + self.length + 1] for start in places.where(counts, 0).tolist()]).long()
        return tokens, tokens[:, 1:].masked_fill(~counts[:, None], IGNORED)


def mapped(path: str) -> torch.Tensor:
    """The bytes of a file, of which those are read that are used."""
    try:
        with open(path, "rb") as file:
            return torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    except (OSError, ValueError) as error:
        raise Fault(f"cannot read `{path}`: {error}") from None


def count(targets: torch.Tensor) -> int:
    """The targets that count."""
    return int((targets != IGNORED).sum())


def loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of all targets that count, in 32 bits."""
    wanted = targets.to(logits.device).flatten()
    return F.cross_entropy(logits.flatten(0, 1).float(), wanted, ignore_index=IGNORED, reduction="sum")


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
