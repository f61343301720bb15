"""Where the sequences of each step come from: a text, listed tokens, a folder of the library `datasets`, or a function of yours.

Every process reads its own sequences of a step: tokens of sequences x (length + 1), and targets of sequences x length where some of them do
not count.
"""

import functools
import importlib
import mmap
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from storage import Fault, Safetensors

# The target of a token that does not count, as PyTorch and transformers have it.
IGNORED = -100
# Rows of a dataset whose lengths are read at a time, and steps of a function that are kept: lanes may be some steps apart.
CHUNK, KEPT = 10_000, 8
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Shape:
    """The sequences of a step and their tokens, a seed, and whether sequences are read in their order, once."""

    sequences: int
    length: int
    seed: int
    in_order: bool


class Source(Protocol):
    """The sequences of all steps."""

    # Whether the number of tokens that count may differ from step to step.
    is_masked: bool

    def steps(self) -> int:
        """The steps that it has before it begins again."""

    def warnings(self, steps: int, vocabulary: int) -> list[str]:
        """The warnings for a user who trains this many steps."""

    def rows(self, step: int, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens of some sequences of a step, and their targets if they are not simply the next tokens."""


def open_source(path: str, shape: Shape) -> Source:
    if FUNCTION.fullmatch(path) and not os.path.exists(path):
        return Function(path, shape)
    if os.path.isdir(path):
        return Dataset(path, shape)
    return Listed(path, shape) if path.endswith(".safetensors") else Text(path, shape)


def again(path: str, has: int, steps: int) -> list[str]:
    return [f"`{path}` has the tokens of {has} steps: after them it begins again"] if steps > has else []


class Listed:
    """A safetensors file with `tokens` (steps x sequences x tokens + 1).

    Tokens that are not to be predicted, such as prompts and padding, are zero in a `loss-mask` of the same shape, or -100 in `targets` (steps x
    sequences x tokens).
    """

    def __init__(self, path: str, shape: Shape) -> None:
        self.path, self.shape = path, shape
        file = Safetensors(path)
        tokens = self.tensor(file, "tokens", shape.length + 1)
        if tokens is None:
            raise Fault(f"`{path}` has no `tokens`")
        self.tokens = tokens
        self.mask = self.tensor(file, "loss-mask", shape.length + 1)
        self.targets = self.tensor(file, "targets", shape.length)
        for name, other in (("loss-mask", self.mask), ("targets", self.targets)):
            if other is not None and len(other) != len(tokens):
                raise Fault(f"`{name}` in `{path}` has {len(other)} steps, its tokens have {len(tokens)}")
        self.is_masked = self.mask is not None or self.targets is not None

    def tensor(self, file: Safetensors, name: str, length: int) -> torch.Tensor | None:
        if name not in file.header:
            return None
        found, wanted = file.read(name), [self.shape.sequences, length]
        if list(found.shape[1:]) != wanted or not len(found):
            raise Fault(f"each step of `{name}` in `{self.path}` is {list(found.shape[1:])}, the plan's is {wanted}")
        return found

    def steps(self) -> int:
        return len(self.tokens)

    def warnings(self, steps: int, _vocabulary: int) -> list[str]:
        return again(self.path, self.steps(), steps)

    def rows(self, step: int, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        place, own = step % len(self.tokens), list(rows)
        tokens = self.tokens[place][own].long()
        if self.targets is not None:
            return tokens, self.targets[place][own].long()
        if self.mask is not None:
            return tokens, tokens[:, 1:].masked_fill(self.mask[place][own][:, 1:] == 0, IGNORED)
        return tokens, None


class Text:
    """A text, byte by byte: windows that are drawn, or one after the other, of which those behind its end do not count."""

    def __init__(self, path: str, shape: Shape) -> None:
        self.path, self.shape, self.is_masked = path, shape, shape.in_order
        self.text = mapped(path)
        if len(self.text) <= shape.length:
            raise Fault(f"`{path}` has {len(self.text)} bytes, one sequence and the token after it needs {shape.length + 1}")

    def steps(self) -> int:
        return -(-((len(self.text) - 1) // self.shape.length) // self.shape.sequences)

    def warnings(self, _steps: int, vocabulary: int) -> list[str]:
        if vocabulary <= 256:
            return []
        hint = f"`spipe export --data {self.path} --tokenizer FOLDER` writes those of its tokenizer"
        return [f"`{self.path}` is read byte by byte, and the model has {vocabulary} tokens: {hint}"]

    def rows(self, step: int, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        sequences, length = self.shape.sequences, self.shape.length
        if self.shape.in_order:
            starts = torch.arange(sequences) * length + step * sequences * length
        else:
            # Of a seed PyTorch takes 32 bits on cores.
            generator = torch.Generator().manual_seed(zlib.crc32(f"{self.shape.seed}/{step}".encode()))
            starts = torch.randint(len(self.text) - length, (sequences,), generator=generator)
        places = starts[list(rows)]
        counts = places + length < len(self.text)
        tokens = torch.stack([self.text[start : start + length + 1] for start in places.where(counts, 0).tolist()]).long()
        return tokens, tokens[:, 1:].masked_fill(~counts[:, None], IGNORED)


class Dataset:
    """A folder that the library `datasets` has saved, with the column `input_ids`.

    With `labels` each row is a sequence, cut or padded to the plan's length; without them rows are one stream of tokens, which is cut into
    sequences. Sequences are drawn in an order of their own in each pass over the folder.
    """

    def __init__(self, path: str, shape: Shape) -> None:
        self.path, self.shape = path, shape
        self.data = self.opened()
        columns = self.data.column_names
        if "input_ids" not in columns:
            raise Fault(f"`{path}` has no column `input_ids`, but {', '.join(columns)}: "
                        "`dataset.map(lambda row: tokenizer(row['text']))` adds it")  # fmt: skip
        self.has_labels = "labels" in columns
        self.is_masked = self.has_labels or shape.in_order
        self.data = self.data.select_columns([name for name in ("input_ids", "labels", "attention_mask") if name in columns])
        # Without labels, the place of each row in the stream of all.
        self.starts = torch.zeros(1, dtype=torch.long) if self.has_labels else self.measured()
        self.count = len(self.data) if self.has_labels else int(self.starts[-1] - 1) // shape.length
        if self.count < 1:
            raise Fault(f"`{path}` has no sequence of {shape.length} tokens and one after them")
        # Of the last pass, the order of its sequences.
        self.order = functools.lru_cache(2)(self.drawn)

    def opened(self) -> Any:
        try:
            from datasets import DatasetDict, load_from_disk
        except ImportError:
            raise Fault(f"`{self.path}` is a folder, which the library `datasets` reads: `pip install datasets`") from None
        try:
            found = load_from_disk(self.path)
        except (OSError, ValueError) as error:
            raise Fault(f"`{self.path}` is no folder that `datasets` has saved with `save_to_disk`: {error}") from None
        if not isinstance(found, DatasetDict):
            return found
        wanted = ("validation", "test") if self.shape.in_order else ("train",)
        split = next((name for name in wanted if name in found), None)
        if split is None:
            raise Fault(f"`{self.path}` has the splits {', '.join(found)}: name the folder of one of them, `{self.path}/{next(iter(found))}`")
        return found[split]

    def measured(self) -> torch.Tensor:
        lengths = [0]
        rows = self.data.with_format("arrow")
        for first in range(0, len(self.data), CHUNK):
            lengths.extend(len(row) for row in rows[first : first + CHUNK]["input_ids"])
        return torch.tensor(lengths).cumsum(0)

    def drawn(self, turn: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.shape.seed}/{turn}".encode()))
        return torch.randperm(self.count, generator=generator)

    def steps(self) -> int:
        return -(-self.count // self.shape.sequences)

    def warnings(self, steps: int, _vocabulary: int) -> list[str]:
        return again(self.path, self.steps(), steps)

    def rows(self, step: int, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        found = [self.sequence(step * self.shape.sequences + row) for row in rows]
        return torch.stack([tokens for tokens, _ in found]), torch.stack([targets for _, targets in found])

    def sequence(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        turn, place = divmod(number, self.count)
        if not self.shape.in_order:
            place = int(self.order(turn)[place])
        tokens, targets = self.row(place) if self.has_labels else self.window(place)
        if self.shape.in_order and turn > 0:
            targets = torch.full_like(targets, IGNORED)
        return tokens, targets

    def row(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        row, length = self.data[place], self.shape.length
        tokens, targets = torch.zeros(length + 1, dtype=torch.long), torch.full((length,), IGNORED)
        given, labels = torch.tensor(row["input_ids"])[: length + 1], torch.tensor(row["labels"])[1 : length + 1]
        if "attention_mask" in row:
            labels = labels.masked_fill(torch.tensor(row["attention_mask"])[1 : length + 1] == 0, IGNORED)
        tokens[: len(given)] = given
        targets[: len(labels)] = labels
        return tokens, targets

    def window(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = place * self.shape.length
        end = first + self.shape.length + 1
        row = int(torch.searchsorted(self.starts, first, right=True)) - 1
        last = int(torch.searchsorted(self.starts, end))
        tokens = torch.tensor([token for ids in self.data[row:last]["input_ids"] for token in ids])
        tokens = tokens[first - int(self.starts[row]) :][: self.shape.length + 1]
        return tokens, tokens[1:]


class Function:
    """`module:function` of a module beside the working folder.

    It is called with `sequences`, `seq_len` and `seed`, in every process, and yields for each step the tokens (sequences x seq_len + 1), or inputs
    and targets (both sequences x seq_len), in which -100 does not count. What begins again after it ends must be the same in all processes.
    """

    is_masked = True

    def __init__(self, name: str, shape: Shape) -> None:
        self.name, self.shape = name, shape
        module, function = name.split(":")
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            self.function = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise Fault(f"cannot import `{name}` from `{os.getcwd()}`: {error}") from None
        self.batches: Iterator[Any] = self.called()
        self.next = 0
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def called(self) -> Iterator[Any]:
        return iter(self.function(sequences=self.shape.sequences, seq_len=self.shape.length, seed=self.shape.seed))

    def steps(self) -> int:
        return sys.maxsize

    def warnings(self, _steps: int, _vocabulary: int) -> list[str]:
        return []

    def rows(self, step: int, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        while self.next <= step:
            self.kept[self.next] = self.batch()
            self.kept.pop(self.next - KEPT, None)
            self.next += 1
        tokens, targets = self.kept[step]
        return tokens[list(rows)], targets[list(rows)] if targets is not None else None

    def batch(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        found = next(self.batches, None)
        if found is None:
            self.batches = self.called()
            found = next(self.batches, None)
        if found is None:
            raise Fault(f"`{self.name}` yields nothing")
        given = [torch.as_tensor(part).long() for part in (found if isinstance(found, tuple) else (found,))]
        one, two = (self.shape.sequences, self.shape.length + 1), (self.shape.sequences, self.shape.length)
        shapes = [tuple(part.shape) for part in given]
        if shapes == [one]:
            return given[0], None
        if shapes == [two, two]:
            inputs, targets = given
            # The last token of a sequence is only a target.
            return torch.cat([inputs, targets[:, -1:].clamp(min=0)], 1), targets
        raise Fault(f"`{self.name}` yields {' and '.join(map(str, shapes))} for step {self.next}, the plan has {one}, or {two} and {two}")


def mapped(path: str) -> torch.Tensor:
    """The bytes of a file, of which those are read that are used."""
    try:
        with open(path, "rb") as file:
            return torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    except (OSError, ValueError) as error:
        raise Fault(f"cannot read `{path}`: {error}") from None
