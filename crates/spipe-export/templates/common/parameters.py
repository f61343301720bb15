"""The first numbers of parameters: from safetensors in transformers' layout, or random."""

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch

from model import HEAD, NAMES, first_numbers, is_added, table
from stage import Stage
from storage import Fault, Numbers, Safetensors, write

INDEX = "model.safetensors.index.json"
# Random numbers are drawn in blocks of this many, each from its own seed: a part of a parameter needs only its blocks.
BLOCK = 1 << 20


class Source(Protocol):
    """Where parameters come from."""

    def read(self, name: str, shape: torch.Size, first: int, count: int) -> torch.Tensor:
        """`count` numbers of a parameter of this shape, from number `first` on."""


class Weights:
    """The weights in a folder, or in one file."""

    def __init__(self, path: str, seed: int) -> None:
        self.path, self.random = path, Random(seed)
        names = [path]
        if os.path.isdir(path):
            index = os.path.join(path, INDEX)
            names = [os.path.join(path, "model.safetensors")]
            if os.path.exists(index):
                with open(index, encoding="utf-8") as file:
                    names = sorted({os.path.join(path, name) for name in json.load(file)["weight_map"].values()})
        self.home = {name: file for file in map(Safetensors, names) for name in file.header}

    def read(self, name: str, shape: torch.Size, first: int, count: int) -> torch.Tensor:
        if is_added(name):
            return self.random.read(name, shape, first, count)
        # The first GPT-2 files leave the prefix out.
        short = name.removeprefix("transformer.")
        found = name if name in self.home else short
        if found not in self.home:
            raise Fault(f"the weights in `{self.path}` have no `{name}`: {NAMES}")
        numbers = self.home[found].read(found)
        if numbers.shape != shape:
            raise Fault(f"`{name}` is {list(numbers.shape)} in `{self.path}`, the plan's model has {list(shape)}")
        return numbers.view(-1)[first : first + count]


class Random:
    """Random numbers, the same however the model is cut; vectors such as norms and biases have one number."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def read(self, name: str, shape: torch.Size, first: int, count: int) -> torch.Tensor:
        mean, spread = first_numbers(name, shape)
        if spread == 0.0:
            return torch.full((count,), mean)
        numbers = torch.empty(count)
        start, end = first // BLOCK, -(-(first + count) // BLOCK)
        for block in range(start, end):
            length = min(BLOCK, shape.numel() - block * BLOCK)
            # Of a seed PyTorch takes 32 bits on cores.
            seed = zlib.crc32(f"{self.seed}/{name}/{block}".encode())
            drawn = torch.empty(length).normal_(mean, spread, generator=torch.Generator().manual_seed(seed))
            skipped = max(first - block * BLOCK, 0)
            kept = drawn[skipped : first + count - block * BLOCK]
            place = block * BLOCK + skipped - first
            numbers[place : place + len(kept)] = kept
        return numbers


def source(path: str | None, seed: int) -> Source:
    return Random(seed) if path is None else Weights(path, seed)


def origin(stage: Stage, name: str) -> str:
    """The name under which a parameter is read or drawn: a tied head has the embedding's table."""
    return table(stage.model) if name == HEAD and stage.model["tied"] else name


@torch.no_grad()
def fill(stages: Iterable[Stage], path: str | None, seed: int) -> None:
    """Reads, or draws, the parameters of these stages."""
    found = source(path, seed)
    for stage in stages:
        # Modules may be exchanged on the way.
        for _, name, parameter in list(stage.names()):
            numbers = found.read(origin(stage, name), parameter.shape, 0, parameter.numel()).view(parameter.shape)
            receive = getattr(parameter, "receive", None)
            if receive is None:
                parameter.copy_(numbers)
            else:
                receive(numbers, stage.device, stage.dtype)


def save(folder: str, rank: int, size: int, tensors: Mapping[str, Numbers], meet: Callable[[], None]) -> None:
    """Writes the weights of all processes: a file for each, and the index of all. `meet` returns when all are there."""
    os.makedirs(folder, exist_ok=True)
    end = f"-of-{size:05}.safetensors"
    write(os.path.join(folder, f"model-{rank + 1:05}{end}"), tensors)
    meet()
    if rank == 0:
        # Collectives of objects need numpy; the files of all processes say the same.
        files = sorted(name for name in os.listdir(folder) if name.endswith(end))
        homes = {name: found for found in files for name in Safetensors(os.path.join(folder, found)).header}
        with open(os.path.join(folder, INDEX), "w", encoding="utf-8") as file:
            json.dump({"metadata": {}, "weight_map": homes}, file, indent=1)


def save_adapters(folder: str, rank: int, tensors: Mapping[str, Numbers], adapters: dict[str, Any], meet: Callable[[], None]) -> None:
    """Writes the adapters of all processes as PEFT has them: one file, and their configuration."""
    os.makedirs(folder, exist_ok=True)
    write(os.path.join(folder, f"part-{rank:05}.safetensors"), {f"base_model.model.{name.replace('.default.', '.')}": it for name, it in tensors.items()})
    meet()
    if rank == 0:
        parts = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("part-"))
        files = [Safetensors(part) for part in parts]
        write(os.path.join(folder, "adapter_model.safetensors"), {name: file.read(name) for file in files for name in file.header})
        settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": adapters["rank"], "lora_alpha": adapters["alpha"], "bias": "none",
                    "use_rslora": adapters["rslora"], "target_modules": adapters["modules"], "inference_mode": True}  # fmt: skip
        with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
            json.dump(settings, file, indent=1)
        for part in parts:
            os.remove(part)
