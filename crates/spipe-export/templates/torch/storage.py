"""Weights and tokens from files.

A safetensors file is 8 bytes with the length of its header, the header (JSON: type, shape and place of each tensor), and
the numbers. Nothing else is read: no pickles, and no code.
"""

import ctypes
import json
import mmap
import os
import struct
import zlib

import torch

TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I32": torch.int32, "I64": torch.int64}
INDEX = "model.safetensors.index.json"


class Fault(Exception):
    """A fault of the input, in words for the user."""


class Safetensors:
    """The tensors of one file, each read when it is asked for."""

    def __init__(self, path):
        self.path = path
        try:
            with open(path, "rb") as file:
                self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            (length,) = struct.unpack("<Q", self.bytes[:8])
            self.header = json.loads(self.bytes[8 : 8 + length])
        except (OSError, ValueError, struct.error) as error:
            raise Fault(f"cannot read `{path}` as safetensors: {error}") from None
        self.start = 8 + length
        self.header.pop("__metadata__", None)

    def read(self, name):
        entry = self.header[name]
        if entry["dtype"] not in TYPES:
            raise Fault(f"`{name}` in `{self.path}` holds {entry['dtype']}, which is not read")
        first, end = entry["data_offsets"]
        numbers = torch.frombuffer(bytearray(self.bytes[self.start + first : self.start + end]), dtype=TYPES[entry["dtype"]])
        return numbers.reshape(entry["shape"])


class Weights:
    """The weights in a folder, or in one file."""

    def __init__(self, path):
        self.path = path
        names = [path]
        if os.path.isdir(path):
            index = os.path.join(path, INDEX)
            names = [os.path.join(path, "model.safetensors")]
            if os.path.exists(index):
                with open(index) as file:
                    names = sorted({os.path.join(path, name) for name in json.load(file)["weight_map"].values()})
        self.home = {name: file for file in map(Safetensors, names) for name in file.header}

    def read(self, name, shape):
        # The first GPT-2 files leave the prefix out.
        short = name.removeprefix("transformer.")
        found = name if name in self.home else short
        if found not in self.home:
            raise Fault(f"the weights in `{self.path}` have no `{name}`")
        numbers = self.home[found].read(found)
        if numbers.shape != shape:
            raise Fault(f"`{name}` is {list(numbers.shape)} in `{self.path}`, the plan's model has {list(shape)}")
        return numbers


def draw(name, parameter, seed):
    """Random initial numbers, the same however the model is cut: norms are one, biases zero, the rest normal."""
    if name.endswith("bias"):
        return parameter.zero_()
    if parameter.dim() == 1:
        return parameter.fill_(1.0)
    generator = torch.Generator(parameter.device).manual_seed(seed * 2**32 + zlib.crc32(name.encode()))
    return parameter.normal_(0.0, 0.02, generator=generator)


@torch.no_grad()
def fill(stages, path, seed):
    """Reads, or draws, the parameters of these stages; a tied head reads the embedding's table."""
    from model import HEAD, TABLES

    weights = Weights(path) if path is not None else None
    for stage in stages:
        for _, name, parameter in stage.names():
            source = TABLES[stage.model["family"]] if name == HEAD and stage.model["tied"] else name
            if weights is None:
                draw(source, parameter, seed)
            else:
                parameter.copy_(weights.read(source, parameter.shape))


def write(path, tensors):
    """Writes f32 tensors as one safetensors file."""
    header, place = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        end = place + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            numbers = tensor.detach().to("cpu", torch.float32).contiguous()
            file.write(ctypes.string_at(numbers.data_ptr(), 4 * numbers.numel()))


class Tokens:
    """The sequences of each step: listed in a safetensors file (steps x sequences x tokens + 1), or drawn from a text,
    byte by byte."""

    def __init__(self, path, batch, vocabulary, seed):
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
