"""Checkpoints of a mesh: whole tensors by the names of their parameters, which any other mesh of the same model goes on from.

The tensors of a layer are gathered by one process of its row, in turns, so that each process holds and writes about as many bytes as it steps. A process
that goes on reads what it needs from all files, each of which one process has checked. Checkpoints of pipelines without a mesh
have the same names behind those of their stages, and are read, too.
"""

import argparse
import json
import os
import re
from collections.abc import Iterator

import torch

import checkpoint
import loop
from axes import Axes
from shares import Share
from storage import Fault, Safetensors

# What pipelines without a mesh put before a name.
STAGE = re.compile(r"^stage\d+\.")


def wholes(parts: list[Share], axes: Axes) -> dict[str, torch.Tensor]:
    """The whole tensors that this process writes, in host memory; all processes of a row ask for them."""
    found = {}
    turn = axes.replica * axes.members + axes.member
    for index, part in enumerate(parts):
        for name, tensor in part.wholes():
            if index % (axes.replicas * axes.members) == turn:
                found[name] = tensor.to("cpu")
    return found


class Reader:
    """The tensors of all files of a checkpoint, by the names that meshes give them."""

    def __init__(self, folder: str, names: list[str]) -> None:
        self.folder = folder
        files = [Safetensors(os.path.join(folder, name)) for name in names]
        self.numbers: dict[str, float] = json.loads(files[0].described["numbers"])
        self.homes = {STAGE.sub("", name): (file, name) for file in files for name in file.header}

    def read(self, name: str, shape: torch.Size) -> torch.Tensor:
        """A tensor over the mapped file."""
        if name not in self.homes:
            raise Fault(f"the checkpoint `{self.folder}` has no `{name}`: it is of another model or optimizer than this plan's")
        file, full = self.homes[name]
        found = file.read(full)
        if found.shape != shape:
            raise Fault(f"`{name}` is {list(found.shape)} in the checkpoint `{self.folder}`, the plan's model has {list(shape)}")
        return found


class WholeSaver:
    """The checkpoints of a training on a mesh."""

    def __init__(self, parts: list[Share], axes: Axes, names: dict[str, str], engine: loop.Stateful, fingerprint: str, options: argparse.Namespace) -> None:
        """`names` has the names under which parameters are saved, where they differ: that of the table for a tied head."""
        self.parts, self.axes, self.names, self.engine = parts, axes, names, engine
        self.checkpoints = checkpoint.Checkpoints(options.checkpoint_dir, engine.rank, engine.size, fingerprint, options.keep_checkpoints, loop.meet)

    def save(self, step: int) -> None:
        copies = tuple(f".{name}" for name in self.names)
        tensors = {name: tensor for name, tensor in wholes(self.parts, self.axes).items() if not name.endswith(copies)}
        self.checkpoints.save(step, tensors, self.engine.numbers())

    def load(self) -> int:
        found = self.checkpoints.newest()
        files = found.manifest["files"]
        for name in self.turn(sorted(files)):
            checkpoint.verify(os.path.join(found.folder, name), files[name])
        loop.meet()
        reader = Reader(found.folder, sorted(files))
        for part in self.parts:
            part.take(lambda key, name, shape: reader.read(f"{key}.{self.names.get(name, name)}", shape))
        self.engine.restore(reader.numbers)
        self.checkpoints.step = int(found.manifest["step"])
        return self.checkpoints.step

    def turn(self, names: list[str]) -> Iterator[str]:
        """The files that this process checks for all."""
        return (name for index, name in enumerate(names) if index % self.engine.size == self.engine.rank)

    def refuse_used(self) -> None:
        self.checkpoints.refuse_used()
