"""Trains the model of plan.json in the order of schedule.csv. README.md has the commands."""

import argparse
import gc
import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import loop
import parameters
import rates
from model import HEAD, is_added, table
from optimizer import Part, StageOptimizer
from pipeline import OneProcess, Order, Pipeline, World
from shares import Share, SharedOptimizer
from team import local, whole
from tokens import Tokens, count
from whole import WholeSaver, wholes


def options_of(parser: argparse.ArgumentParser) -> None:
    rates.add_options(parser)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--narrow-sums", action="store_true",
                        help="sum the gradients of 16-bit parameters in 16 bits: half the memory of the sums")
    parser.add_argument("--save-weights", help="folder for the weights at the end, as safetensors")
    parser.add_argument("--trace", help="folder for the profiler's trace of one step")
    parser.add_argument("--trace-step", type=int, default=None, help="the step to trace; the last one by default")
    parser.add_argument("--cpu", action="store_true", help="use CPU cores for every rank")
    parser.add_argument("--one-process", action="store_true", help="no pipeline: all stages in one process, as a reference")


class Training:
    """Stages, their optimizers, and what a step does after the backwards."""

    def __init__(self, settings: dict[str, Any], options: argparse.Namespace) -> None:
        self.settings, self.options, self.step_index = settings, options, 0
        self.world = World(settings, options.cpu)
        self.rank, self.size, self.axes = self.world.rank, self.world.size, self.world.axes
        self.stages = self.world.stages()
        parameters.fill(self.stages.values(), options.weights, options.seed)
        self.tied, self.pair = self.world.tied(self.stages)
        self.optimizers = self.build_optimizers()
        self.clip, self.is_scaled = settings["clip-norm"], settings["precision"] == "fp16"
        self.scale, self.good_steps = 2.0**16 if self.is_scaled else 1.0, 0
        self.started: set[int] = set()
        self.order: Order = OneProcess(self.stages, settings["batch"]) if options.one_process else self.pipeline()

    def pipeline(self) -> Pipeline:
        """PyTorch's runtime, with optimizer steps that start early where nothing waits for all gradients."""
        pipeline = Pipeline(self.world, self.stages, os.path.join(loop.HERE, "schedule.csv"))
        for stage in pipeline.observed.values():
            stage.on_backward = lambda index: self.optimizers[index].add_rest()
            if self.settings["overlaps"] and self.clip is None and not self.is_scaled:
                stage.on_last_backward = self.start_early
        return pipeline

    def build_optimizers(self) -> dict[int, StageOptimizer | SharedOptimizer]:
        given = {"lr": self.options.learning_rate, "weight_decay": self.options.weight_decay}
        both_ends = self.settings["model"]["tied"] and self.pair is None
        several = self.settings["batch"]["microbatches"] * self.axes.replicas > 1
        sums = several and self.settings["wide-sums"] and not self.options.narrow_sums
        optimizers: dict[int, StageOptimizer | SharedOptimizer] = {}
        for index, stage in self.stages.items():
            # One parameter has one optimizer: a tied head in the process of its table leaves it to the embedding's stage.
            skipped = {HEAD} if both_ends and stage.is_last else set()
            if "mesh" in self.settings:
                optimizers[index] = SharedOptimizer(stage, skipped, self.axes, self.settings["optimizer"], given, sums)
                continue
            on_host = self.settings["stages"][index]["optimizer-on-host"]
            optimizers[index] = StageOptimizer(stage, on_host, skipped, self.settings["optimizer"], given, sums)
        return optimizers

    def parts(self) -> Iterator[tuple[int, Part | Share]]:
        """The layers of this process with their optimizers, and the number of the stage of each."""
        return ((index, part) for index, optimizer in self.optimizers.items() for part in optimizer.parts)

    def shares(self) -> list[Share]:
        return [part for _, part in self.parts() if isinstance(part, Share)]

    def rate(self) -> float:
        return rates.rate(self.options, self.step_index)

    def start_early(self, index: int) -> None:
        """Starts a stage's optimizer step when its gradients are complete, unless they wait for those of a tied copy."""
        if not (self.tied and (self.stages[index].is_first or self.stages[index].is_last)):
            self.optimizers[index].start(self.rate())
            self.started.add(index)

    def add_tied_gradients(self) -> None:
        """Adds the gradients of the two copies of a tied table."""
        if self.pair is None or not self.tied:
            return
        for _, part in self.parts():
            for name, gradient in part.gradients():
                if name in self.tied:
                    total = gradient if self.world.nccl else gradient.float().cpu()
                    dist.all_reduce(total, group=self.pair)
                    gradient.copy_(total)

    def norm(self) -> float:
        """The norm of all gradients; the second copy of a tied table does not count."""
        squares = 0.0
        for _, part in self.parts():
            for name, gradient in part.for_norm():
                if not (self.pair is not None and name == HEAD and name in self.tied):
                    squares += gradient.float().square().sum().item()
        return math.sqrt(loop.total(squares)) / self.scale

    def read(self, index: int, tokens: Tokens) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The batch of a step, where a stage of this process takes its inputs or its targets."""
        if not any(stage.is_first or stage.is_last for stage in self.stages.values()):
            return None, None
        each = self.settings["batch"]["sequences"] // self.axes.replicas
        return tokens.rows(index, range(self.axes.replica * each, (self.axes.replica + 1) * each))

    def step(self, index: int, tokens: Tokens) -> float | None:
        self.step_index = index
        inputs, targets = self.read(index, tokens)
        self.order.scale = self.scale
        counted = int(self.axes.total(count(targets))) if targets is not None else 0
        loss = self.order.step(inputs, targets, max(counted, 1))
        if loss is not None:
            # The replicas' parts of the mean; one process says it.
            loss = self.axes.total(loss)
            loss = loss if self.axes.is_first else None
        for number, optimizer in self.optimizers.items():
            if number not in self.started:
                optimizer.complete()
        self.add_tied_gradients()
        for optimizer in self.optimizers.values():
            optimizer.reduce()
        change = 1.0
        if self.clip is not None or self.is_scaled:
            norm = self.norm()
            if not math.isfinite(norm):
                self.scale, self.good_steps = self.scale / 2.0, 0
                for optimizer in self.optimizers.values():
                    optimizer.finish()
                return loss
            change = min(self.clip / (norm + 1e-6), 1.0) / self.scale if self.clip is not None else 1.0 / self.scale
            self.good_steps += 1
            if self.is_scaled and self.good_steps % 2000 == 0:
                self.scale *= 2.0
        for number, optimizer in self.optimizers.items():
            if number not in self.started:
                optimizer.start(self.rate(), change)
        for optimizer in self.optimizers.values():
            optimizer.finish()
        self.started.clear()
        return loss

    def evaluate(self, index: int, tokens: Tokens) -> tuple[float, int]:
        inputs, targets = self.read(index, tokens)
        loss = self.order.evaluate(inputs, targets)
        is_last = any(stage.is_last for stage in self.stages.values())
        if targets is None or not is_last or self.axes.member > 0:
            return 0.0, 0
        return loss, count(targets)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {f"stage{index}.{name}": tensor for index, part in self.parts() for name, tensor in part.state().items()}

    def numbers(self) -> dict[str, float]:
        return {"scale": self.scale, "good-steps": float(self.good_steps)}

    def restore(self, numbers: dict[str, float]) -> None:
        self.scale, self.good_steps = numbers["scale"], int(numbers["good-steps"])
        for _, part in self.parts():
            part.give()

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights of this process."""
        tensors: dict[str, torch.Tensor] = {name: parameter for stage in self.stages.values() for _, name, parameter in stage.names()}
        for _, part in self.parts():
            if isinstance(part, Part):
                tensors.update({name: master for (name, _), master in zip(part.named, part.masters, strict=True)})
        return tensors

    def weights_of_mesh(self) -> dict[str, torch.Tensor]:
        """The whole weights that this process writes: its turns of what is trained, and for its row what is frozen."""
        frozen = ((name, parameter) for stage in self.stages.values() for _, name, parameter in stage.names() if not parameter.requires_grad)
        tensors = {name: whole(parameter, local(parameter)) for name, parameter in frozen}
        found = {name.removeprefix("weights."): tensor for name, tensor in wholes(self.shares(), self.axes).items() if name.startswith("weights.")}
        return {**(tensors if self.axes.is_first else {}), **found}

    def saver(self) -> loop.Saver:
        """The checkpoints of this training."""
        if "mesh" not in self.settings:
            return loop.TensorSaver(self, self.settings["fingerprint"], self.options)
        model = self.settings["model"]
        names = {HEAD: table(model)} if model["tied"] else {}
        return WholeSaver(self.shares(), self.axes, names, self, self.settings["fingerprint"], self.options)

    def save_weights(self, folder: str) -> None:
        """One file per process, and the index of all; of adapters one file of PEFT."""
        tensors = self.weights_of_mesh() if "mesh" in self.settings else self.weights()
        if self.settings["model"]["tied"]:
            tensors.pop(HEAD, None)
        adapters = self.settings["model"].get("adapters")
        if adapters is not None:
            parameters.save_adapters(folder, self.rank, {name: tensor for name, tensor in tensors.items() if is_added(name)}, adapters, loop.meet)
        else:
            parameters.save(folder, self.rank, self.size, tensors, loop.meet)


def held_bytes() -> dict[str, int]:
    """Bytes of the tensors that the process holds, in the host's memory and on its GPU."""
    # Garbage in cycles would count, until Python finds it.
    gc.collect()
    blocks = {}
    for found in gc.get_objects():
        # A tensor that a team divides has no bytes of its own: its part is found, too.
        if issubclass(type(found), torch.Tensor) and not issubclass(type(found), DTensor):
            for tensor in (found, found.grad if found.is_leaf else None):
                if tensor is not None and tensor.device.type == "cpu" and tensor.layout == torch.strided:
                    blocks[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return {"host": sum(blocks.values()), "device": torch.cuda.memory_allocated() if torch.cuda.is_available() else 0}


class Tracer:
    """PyTorch's profiler over one step, after a step that warms it up; one file per rank, without names of hosts and paths."""

    def __init__(self, training: Training, folder: str, step: int, times: list[float]) -> None:
        self.training, self.folder, self.step, self.times = training, folder, step, times
        self.profiler: profile | None = None
        self.warmup = min(1, step)
        self.held: dict[str, int] | None = None

    def around(self, index: int, run: Callable[[], float | None]) -> float | None:
        if not self.step - self.warmup <= index <= self.step:
            return run()
        if self.profiler is None:
            activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.training.world.device.type == "cuda" else [])
            self.profiler = profile(activities=activities, profile_memory=True, on_trace_ready=self.write,
                                    schedule=schedule(wait=0, warmup=self.warmup, active=1, repeat=1))
            self.profiler.start()
        if index == self.step:
            self.held = held_bytes()
        with record_function("spipe:step"):
            result = run()
        self.profiler.step()
        if index == self.step:
            self.profiler.stop()
        return result

    def write(self, profiler: profile) -> None:
        os.makedirs(self.folder, exist_ok=True)
        world, settings = self.training.world, self.training.settings
        path = os.path.join(self.folder, f"rank{world.rank}.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        for key in ("host_name", "trace_id", "traceName", "distributedInfo"):
            trace.pop(key, None)
        trace["spipe"] = {"rank": world.rank, "device": settings["ranks"][world.rank]["device"],
                          "plan": settings["fingerprint"], "held-bytes": self.held,
                          # The profiler takes time: its steps are left out.
                          "iterations-ms": self.times[: len(self.times) - self.warmup]}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(trace, file)


def main() -> None:
    options = loop.arguments(__doc__, options_of)
    settings = loop.read_settings()
    if options.one_process:
        # One process on the device of the first rank, with every stage and all microbatches.
        replicas = len(settings.pop("mesh")["ranks"][0]) if "mesh" in settings else 1
        settings["batch"]["microbatches"] *= replicas
        settings["ranks"] = settings["ranks"][:1]
        for stage in settings["stages"]:
            stage["rank"] = 0
    training = Training(settings, options)
    saver = training.saver() if options.checkpoint_dir else None
    run = loop.Loop(training, settings, options, saver)
    last = options.steps - 1 if options.trace_step is None else options.trace_step
    # Of a mesh one process of each row is traced: those of the prediction.
    traced = options.trace and training.axes.is_first
    run.run(Tracer(training, options.trace, last, run.times).around if traced else None)
    if options.save_weights:
        training.save_weights(options.save_weights)
    if training.world.device.type == "cuda":
        loop.say(event="end", rank=training.rank, peak_bytes=torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    loop.end(main)
