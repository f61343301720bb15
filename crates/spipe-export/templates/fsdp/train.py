"""Trains the model of plan.json with FSDP2: parameters, gradients and optimizer state are sharded over all processes."""

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

import loop
import parameters
import place
from stage import Stage, tie
from storage import Fault
from tokens import Tokens, count, loss_sum

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--cpu", action="store_true", help="use CPU cores for every rank")


def connect(settings: dict[str, Any], only_cpu: bool) -> torch.device:
    """The device of this process, after it has joined the others."""
    device = place.place(settings, only_cpu, any_size=True)
    place.join("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    size, microbatches = dist.get_world_size(), settings["batch"]["microbatches"]
    if microbatches % size:
        raise Fault(f"{microbatches} microbatches cannot be dealt to {size} processes: see README.md")
    if size % shards_of(settings):
        raise Fault(f"{size} processes are no whole groups of {shards_of(settings)}: see README.md")
    return device


def shards_of(settings: dict[str, Any]) -> int:
    """The processes among which everything is divided: a group of the plan, or all if there are fewer."""
    return min(int(settings["shard-group"]), dist.get_world_size())


def mesh_of(settings: dict[str, Any], device: torch.device) -> DeviceMesh:
    """All processes, or groups of them: a row each, and those with the same shards in a column."""
    size, shards = dist.get_world_size(), shards_of(settings)
    if size == shards:
        return init_device_mesh(device.type, (size,))
    return init_device_mesh(device.type, (size // shards, shards), mesh_dim_names=("replicate", "shard"))


class Model:
    """The whole model; each stage of the plan is gathered and sharded as one group of parameters."""

    def __init__(self, settings: dict[str, Any], options: argparse.Namespace, device: torch.device) -> None:
        dtype, meta = TYPES[settings["precision"]], torch.device("meta")
        # Nothing has memory before it is sharded: a process has its shards alone.
        self.stages = [Stage(settings["model"], stage, meta, torch.float32, (device, dtype)) for stage in settings["stages"]]
        tie(self.stages)
        self.whole = nn.Sequential(*self.stages)
        self.shapes = {name: parameter.shape for stage in self.stages for _, name, parameter in stage.names()}
        self.shard(settings, device)
        for stage in self.stages:
            stage.device, stage.dtype = device, dtype
        buffers = [(inner, name, buffer) for inner in self.whole.modules() for name, buffer in inner._buffers.items() if buffer is not None]
        self.whole.to_empty(device="cpu" if settings["offloads"] else device)
        # Those have numbers, which `to_empty` forgets.
        for inner, name, buffer in buffers:
            inner._buffers[name] = buffer.to(device)
        tie(self.stages)
        self.fill((options.weights, options.seed), shards_of(settings))

    def shard(self, settings: dict[str, Any], device: torch.device) -> None:
        # Gradients are added up over microbatches and processes in 32 bits, whatever the parameters are gathered in.
        narrow = MixedPrecisionPolicy(param_dtype=TYPES[settings["precision"]], reduce_dtype=torch.float32)
        policy = narrow if settings["precision"] != "fp32" else MixedPrecisionPolicy()
        offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if settings["offloads"] else OffloadPolicy()
        mesh = mesh_of(settings, device)
        # A table that the head shares belongs to the root, which is gathered for the whole step.
        tied = settings["model"]["tied"]
        shared = (0, settings["model"]["layers"] + 1) if tied else ()
        groups: list[FSDPModule] = []
        for stage in self.stages:
            own = [layer for index, layer in enumerate(stage.layers, start=stage.first) if index not in shared]
            if own:
                reshards = not settings["gathers-once"]
                sharded = fully_shard(
                    own, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=reshards
                )
                groups.append(sharded[0])
        reshards = not tied and not settings["gathers-once"]
        fully_shard(self.whole, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=reshards)
        prefetch(groups, settings["prefetch"])

    def sum_groups(self, sums: bool) -> None:
        """Whether the next backward sums gradients over groups, too."""
        if isinstance(self.whole, FSDPModule):
            self.whole.set_requires_all_reduce(sums)

    def stay_gathered(self, stays: bool) -> None:
        """Whether the next backward leaves parameters gathered, for the microbatch behind it."""
        if isinstance(self.whole, FSDPModule):
            self.whole.set_reshard_after_backward(not stays)

    @torch.no_grad()
    def fill(self, origin: tuple[str | None, int], shards: int) -> None:
        """Reads, or draws, the numbers of this process's shards, each one of so many."""
        source = parameters.source(*origin)
        for stage in self.stages:
            for _, name, parameter in stage.names():
                shape, local = self.shapes[name], shard_of(parameter)
                # Rows are dealt in equal parts, of which the last ones may be shorter.
                rows = -(-shape[0] // shards)
                first = min(dist.get_rank() % shards * rows, shape[0])
                if local.shape != (min(rows, shape[0] - first), *shape[1:]):
                    raise Fault(f"FSDP of PyTorch {torch.__version__} shards `{name}` otherwise than by rows")
                numbers = source.read(parameters.origin(stage, name), shape, first * shape[1:].numel(), local.numel())
                local.copy_(numbers.view(local.shape))


def shard_of(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor that this process has."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def prefetch(groups: list[FSDPModule], depth: int) -> None:
    """Gathers this many groups ahead of the one in computation, in both passes."""
    for index, group in enumerate(groups):
        ahead = groups[index + 1 : index + 1 + depth]
        behind = groups[max(index - depth, 0) : index][::-1]
        if ahead:
            group.set_modules_to_forward_prefetch(ahead)
        if behind:
            group.set_modules_to_backward_prefetch(behind)


class Training:
    def __init__(self, settings: dict[str, Any], options: argparse.Namespace) -> None:
        self.settings = settings
        self.device = connect(settings, options.cpu)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.model = Model(settings, options, self.device)
        adam = {"lr": options.learning_rate, "weight_decay": options.weight_decay, "betas": (0.9, 0.999), "eps": 1e-8}
        self.adam = torch.optim.AdamW(self.model.whole.parameters(), fused=True, **adam)
        for parameter in self.model.whole.parameters():
            # The state exists from the start, so that a checkpoint can be read into it.
            if parameter.requires_grad:
                step = torch.zeros((), dtype=torch.float32, device=shard_of(parameter).device)
                state = {"step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
                self.adam.state[parameter] = {name: tensor.detach() for name, tensor in state.items()}

    def read(self, index: int, tokens: Tokens) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The microbatches of this process: every one in turn, as the plan deals them. No others are read."""
        batch = self.settings["batch"]
        each = batch["microbatch"]
        mine = range(self.rank, batch["microbatches"], self.size)
        return [tokens.rows(index, range(each * number, each * (number + 1))) for number in mine]

    def counted(self, microbatches: list[tuple[torch.Tensor, torch.Tensor]], tokens: Tokens) -> int:
        """The targets of the whole step that count."""
        batch = self.settings["batch"]
        if not tokens.is_masked:
            return int(batch["sequences"] * batch["seq-len"])
        return max(int(loop.total(sum(count(targets) for _, targets in microbatches))), 1)

    def step(self, index: int, tokens: Tokens) -> float | None:
        microbatches = self.read(index, tokens)
        # FSDP averages the gradients over the processes; the loss is the mean over all targets of the step.
        scale = self.size / self.counted(microbatches, tokens)
        total = 0.0
        for number, (inputs, targets) in enumerate(microbatches, start=1):
            if self.settings["sums-once"]:
                self.model.sum_groups(number == len(microbatches))
            if self.settings["gathers-once"]:
                self.model.stay_gathered(number < len(microbatches))
            loss = loss_sum(self.model.whole(inputs.to(self.device)), targets) * scale
            torch.autograd.backward(loss)
            total += loss.item() / self.size
        if self.settings["clip-norm"] is not None:
            torch.nn.utils.clip_grad_norm_(self.model.whole.parameters(), self.settings["clip-norm"])
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        total = loop.total(total)
        return total if self.rank == 0 else None

    @torch.no_grad()
    def evaluate(self, index: int, tokens: Tokens) -> tuple[float, int]:
        microbatches = self.read(index, tokens)
        losses = [loss_sum(self.model.whole(inputs.to(self.device)), targets).item() for inputs, targets in microbatches]
        return sum(losses), sum(count(targets) for _, targets in microbatches)

    def tensors(self) -> dict[str, torch.Tensor]:
        state = {}
        for name, parameter in self.model.whole.named_parameters():
            if parameter.requires_grad:
                state[f"weights.{name}"] = shard_of(parameter)
                state.update({f"{key}.{name}": shard_of(tensor) for key, tensor in self.adam.state[parameter].items()})
        return state

    def numbers(self) -> dict[str, float]:
        return {}

    def restore(self, numbers: dict[str, float]) -> None:
        """The shards themselves were read."""


def main() -> None:
    options = loop.arguments(__doc__, options_of)
    settings = loop.read_settings()
    training = Training(settings, options)
    saver = loop.TensorSaver(training, settings["fingerprint"], options) if options.checkpoint_dir else None
    loop.Loop(training, settings, options, saver).run()
    if training.device.type == "cuda":
        loop.say(event="end", rank=training.rank, peak_bytes=torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    loop.end(main)
