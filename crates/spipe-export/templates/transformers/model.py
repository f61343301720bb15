"""The layers of the model, made of the classes that transformers has for config.json.

Parameters have the names that transformers gives them. Layer 0 is everything before the first block, layers 1 to n are the
blocks, and the last layer is everything behind them, which returns logits.

The model's own forward decides what is done around the blocks, and what a block is given beside its input (rotary embeddings,
masks). To use it for one layer, the modules that are not wanted get another forward: one that answers with shapes, writes down
how it was called, or answers with the output of the last block.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

import torch
import transformers
from torch import nn

from adapters import adapt
from base import narrow
from shapes import exchanged, shapes_only, without_memory
from storage import Fault

HERE = os.path.dirname(os.path.abspath(__file__))
HEAD = "lm_head.weight"
# What to do where weights have other names.
NAMES = "`python convert.py FROM TO` writes weights under the names that these classes have"
# Versions before this one have other names of parameters, and files of experts that are not converted.
OLDEST = 5

# What each block is called with beside its input.
Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


class Reached(Exception):
    """The first block is reached."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.x = x


class Whole:
    """The model of config.json, whose parameters have no memory before a stage gives them some."""

    # How each block is called, by shape, type and device of its input: the same for all stages of a process.
    calls: ClassVar[dict[tuple[object, ...], Calls]] = {}

    def __init__(self, adapters: dict[str, Any] | None, base: dict[str, Any] | None = None) -> None:
        if int(transformers.__version__.split(".")[0]) < OLDEST:
            raise Fault(f"transformers {transformers.__version__} is too old: `pip install 'transformers>={OLDEST}'`")
        try:
            self.config = transformers.AutoConfig.from_pretrained(HERE).get_text_config()
            with without_memory():
                self.model = transformers.AutoModelForCausalLM.from_config(self.config, dtype=torch.float32).eval()
        except (KeyError, OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise Fault(f"transformers {transformers.__version__} has no classes for config.json: {reason}") from None
        if adapters is not None:
            adapt(self.model, adapters)
        count = self.config.num_hidden_layers
        lists = ((name, list(it)) for name, it in self.model.named_modules() if isinstance(it, nn.ModuleList) and len(it) == count)
        found = next(lists, None)
        if found is None:
            raise Fault(f"`{type(self.model).__name__}` has no list of {count} blocks")
        self.path, self.blocks = found
        if base is not None:
            narrow(self.blocks, base)
        inside = self.path + "."
        edges = {name: it for name, it in self.model.named_modules() if it._parameters and not name.startswith(inside)}
        for block in self.blocks:
            keep(block)
        before = self.try_out(edges)
        self.front = {name: it for name, it in edges.items() if it in before}
        self.back = {name: it for name, it in edges.items() if it not in before}

    def try_out(self, edges: dict[str, nn.Module]) -> set[nn.Module]:
        """Runs shapes through the model: the modules before the blocks. Finds out, too, whether blocks return tuples."""
        seen: list[tuple[nn.Module, int]] = []
        before: set[nn.Module] = set()

        def note(module: nn.Module, x: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
            seen.append((module, x.dim()))
            return shapes_only(module, x)

        def block(*_args: Any, **_kwargs: Any) -> torch.Tensor:
            before.update(module for module, _ in seen)
            seen.clear()
            # Of a tuple the model takes the first part, which has one dimension less.
            return torch.zeros(2, 1, 3, self.config.hidden_size)

        around = exchanged(edges.values(), lambda module: partial(note, module))
        with torch.no_grad(), around, exchanged(self.blocks, lambda _: block):
            self.model(input_ids=torch.zeros(2, 3, dtype=torch.long), use_cache=False)
        self.returns_tuple = seen[0][1] == 3
        return before

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The input of the first block."""

        def first(x: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
            raise Reached(x)

        try:
            with exchanged(self.blocks, lambda _: first):
                self.model(input_ids=tokens, use_cache=False)
        except Reached as reached:
            return reached.x
        raise AssertionError("the model has run without its blocks")

    def calls_of(self, x: torch.Tensor) -> Calls:
        """How each block is called with an input like this one."""
        key = (x.shape, x.dtype, x.device)
        if key not in self.calls:
            first, second = self.written_down(torch.zeros_like(x)), self.written_down(torch.ones_like(x))
            if not same(first, second):
                raise Fault(f"blocks of `{type(self.model).__name__}` read more than the output of the block before")
            self.calls[key] = first
        return self.calls[key]

    def written_down(self, x: torch.Tensor) -> Calls:
        found: Calls = []

        def block(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            found.append((args, kwargs))
            return (hidden,) if self.returns_tuple else hidden

        behind = exchanged(self.back.values(), lambda module: partial(shapes_only, module))
        with torch.no_grad(), self.alone(x.device), exchanged(self.blocks, lambda _: block), behind:
            self.model(inputs_embeds=x, use_cache=False)
        return found

    @contextlib.contextmanager
    def alone(self, device: torch.device) -> Iterator[None]:
        """The model on a device without the modules before the blocks."""
        for module in self.model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.to(device)
        with exchanged(self.front.values(), lambda module: partial(shapes_only, module)):
            yield

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """The logits behind the blocks, whose output this is."""
        last = self.blocks[-1]

        def block(module: nn.Module, given: torch.Tensor, *_args: Any, **_kwargs: Any) -> Any:
            y = x if module is last else given
            return (y,) if self.returns_tuple else y

        # Masks and rotary embeddings are made for one token, and not used.
        one = x.new_zeros(x.shape[0], 1, x.shape[2])
        with self.alone(x.device), exchanged(self.blocks, lambda module: partial(block, module)):
            logits: torch.Tensor = self.model(inputs_embeds=one, use_cache=False).logits
        return logits.view(*x.shape[:2], -1)


def keep(block: nn.Module) -> None:
    """Makes buffers that are in files of weights parameters that are not trained."""
    for module in block.modules():
        for name in [name for name in module._buffers if name not in module._non_persistent_buffers_set]:
            buffer = module._buffers.pop(name)
            if buffer is not None:
                module.register_parameter(name, nn.Parameter(buffer.to("meta"), requires_grad=False))


def same(one: Any, other: Any) -> bool:
    """Whether two values that blocks are given are equal."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return True


class Layer(nn.Module):
    """Modules of the model, under the names that they have in it."""

    def __init__(self, modules: dict[str, nn.Module], run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.run = run
        for path, module in modules.items():
            home: nn.Module = self
            *parents, name = path.split(".")
            for parent in parents:
                if not hasattr(home, parent):
                    home.add_module(parent, nn.Module())
                home = getattr(home, parent)
            if not hasattr(home, name):
                home.add_module(name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)

    def train(self, mode: bool = True) -> Layer:
        """Dropout is left out."""
        return super().train(False)


def run_block(whole: Whole, index: int, x: torch.Tensor) -> torch.Tensor:
    args, kwargs = whole.calls_of(x)[index]
    y: torch.Tensor = whole.blocks[index](x, *args, **kwargs)
    return y[0] if whole.returns_tuple else y


def layers(model: dict[str, Any], indices: Iterable[int]) -> list[nn.Module]:
    """These layers of the model, whose parameters have no memory yet."""
    whole = Whole(model.get("adapters"), model.get("base"))
    found: list[nn.Module] = []
    for index in indices:
        if index == 0:
            found.append(Layer(whole.front, whole.embed))
        elif index > model["layers"]:
            found.append(Layer(whole.back, whole.head))
        else:
            block = {f"{whole.path}.{index - 1}": whole.blocks[index - 1]}
            found.append(Layer(block, partial(run_block, whole, index - 1)))
    return found


def name(_model: dict[str, Any], _index: int, inner: str) -> str:
    """The name that transformers gives a parameter of a layer; adapted matrices keep theirs."""
    return inner.replace(".base_layer.", ".")


def table(_model: dict[str, Any]) -> str:
    """The name of the embedding's table, with which a tied head projects."""
    return table_and_vectors()[0]


def first_numbers(name: str, shape: torch.Size) -> tuple[float, float]:
    """Mean and spread of a parameter's first numbers; those of adapters have the spread that PEFT gives them."""
    if ".lora_" in name:
        return 0.0, 0.0 if ".lora_B." in name else (3 * shape[1]) ** -0.5
    if name.endswith("bias"):
        return 0.0, 0.0
    mean = table_and_vectors()[1].get(name) if len(shape) == 1 else None
    return (mean, 0.0) if mean is not None else (0.0, 0.02)


def is_added(name: str) -> bool:
    """Whether a parameter is in no file of weights, and begins with its first numbers: adapters."""
    return ".lora_" in name


@functools.cache
def table_and_vectors() -> tuple[str, dict[str, float | None]]:
    """The name of the embedding's table, and the first numbers that transformers gives the model's vectors."""
    whole = Whole(None)
    inputs, found = whole.model.get_input_embeddings(), {}
    for path, module in whole.model.named_modules():
        vectors = {name: vector for name, vector in module._parameters.items() if vector is not None and vector.dim() == 1}
        for name, vector in vectors.items():
            module._parameters[name] = nn.Parameter(torch.ones(vector.shape))
        if vectors:
            whole.model._init_weights(module)
        for name in vectors:
            numbers = module._parameters[name]
            assert numbers is not None
            found[f"{path}.{name}"] = numbers[0].item() if bool((numbers == numbers[0]).all()) else None
    return next(f"{path}.weight" for path, module in whole.front.items() if module is inputs), found
