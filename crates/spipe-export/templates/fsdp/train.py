"""Trains the model of plan.json with FSDP2: parameters, gradients and optimizer state are sharded over all processes."""

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

import parameters
import storage
from model import Stage, tie
from tokens import Tokens

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def arguments():
    default = os.path.join(HERE, "tokens.safetensors")
    weights = os.path.join(HERE, "weights")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=default if os.path.exists(default) else None, required=not os.path.exists(default),
                        help="a text, read byte by byte, or a safetensors file with the tokens of each step")
    parser.add_argument("--weights", default=weights if os.path.exists(weights) else None,
                        help="folder or file of safetensors in transformers' layout; random weights without")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-dir", help="folder for checkpoints of torch.distributed.checkpoint")
    parser.add_argument("--checkpoint-every", type=int, default=100)
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--cpu", action="store_true", help="use CPU cores for every rank")
    return parser.parse_args()


def connect(settings, only_cpu):
    """The device of this process, after it has joined the others."""
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size > settings["batch"]["microbatches"] or settings["batch"]["microbatches"] % size:
        raise storage.Fault(f"{settings['batch']['microbatches']} microbatches cannot be dealt to {size} processes: see README.md")
    if settings["kind"] == "gpu" and not only_cpu:
        if not torch.cuda.is_available():
            raise storage.Fault("the plan is for GPUs, but PyTorch finds none; --cpu uses cores")
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", **alone)
    return device


def build(settings, options, device):
    """The whole model; each stage of the plan is gathered and sharded as one group of parameters."""
    dtype, home = TYPES[settings["precision"]], (device, torch.float32)
    stages = [Stage(settings["model"], stage, device, torch.float32, home) for stage in settings["stages"]]
    tie(stages)
    # Every process draws or reads the same numbers, and then keeps its shard of them.
    parameters.fill(stages, options.weights, options.seed)
    for stage in stages:
        stage.dtype, stage.boundary = dtype, (device, dtype)
    narrow = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype) if dtype != torch.float32 else MixedPrecisionPolicy()
    offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if settings["offloads"] else OffloadPolicy()
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    tied = settings["model"]["tied"]
    groups = []
    for stage in stages:
        # A table that the head shares belongs to the root, which is gathered for the whole step.
        own = [layer for layer in stage.layers if not (tied and hasattr_any(layer, ("embed_tokens", "wte", "lm_head")))]
        if own:
            groups.append(fully_shard(own, mesh=mesh, mp_policy=narrow, offload_policy=offload)[0])
    model = nn.Sequential(*stages)
    fully_shard(model, mesh=mesh, mp_policy=narrow, offload_policy=offload, reshard_after_forward=not tied)
    prefetch(groups, settings["prefetch"])
    return model


def hasattr_any(module, names):
    return any(hasattr(module, name) for name in names)


def prefetch(groups, depth):
    """Gathers this many groups ahead of the one in computation, in both passes."""
    for index, group in enumerate(groups):
        ahead = groups[index + 1 : index + 1 + depth]
        behind = groups[max(index - depth, 0) : index][::-1]
        if ahead:
            group.set_modules_to_forward_prefetch(ahead)
        if behind:
            group.set_modules_to_backward_prefetch(behind)


class Training:
    def __init__(self, settings, options):
        self.settings, self.options, self.step_index = settings, options, 0
        self.device = connect(settings, options.cpu)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.model = build(settings, options, self.device)
        adam = {"lr": options.learning_rate, "weight_decay": options.weight_decay}
        self.adam = torch.optim.AdamW(self.model.parameters(), fused=True, **adam)

    def own(self, tensor):
        """The microbatches of this process: every one in turn, as the plan deals them."""
        parts = tensor.chunk(self.settings["batch"]["microbatches"])
        return [part.to(self.device) for part in parts[self.rank :: self.size]]

    def step(self, inputs, targets):
        microbatches = list(zip(self.own(inputs), self.own(targets)))
        total = torch.zeros((), dtype=torch.float64)
        for x, y in microbatches:
            logits = self.model(x)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten()) / len(microbatches)
            loss.backward()
            total += loss.detach().double().cpu()
        if self.settings["clip-norm"] is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings["clip-norm"])
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        dist.all_reduce(total)
        return total.item() / self.size

    def state(self):
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.adam)
        return {"model": model, "optimizer": optimizer, "progress": torch.tensor(self.step_index)}

    def save(self, folder):
        import torch.distributed.checkpoint as dcp

        name = f"step-{self.step_index:06}"
        dcp.save(self.state(), checkpoint_id=os.path.join(folder, name))
        if self.rank == 0:
            with open(os.path.join(folder, "newest.tmp"), "w") as file:
                file.write(name)
            os.replace(os.path.join(folder, "newest.tmp"), os.path.join(folder, "newest"))

    def resume(self, folder):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        try:
            with open(os.path.join(folder, "newest")) as file:
                name = file.read().strip()
        except OSError:
            return
        state = self.state()
        dcp.load(state, checkpoint_id=os.path.join(folder, name))
        set_state_dict(self.model, self.adam, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step_index = int(state["progress"])


def main():
    options = arguments()
    with open(os.path.join(HERE, "plan.json")) as file:
        settings = json.load(file)
    training = Training(settings, options)
    batch = settings["batch"]
    tokens = Tokens(options.data, batch, settings["model"]["vocabulary"], options.seed)
    if options.resume and options.checkpoint_dir:
        training.resume(options.checkpoint_dir)
    while training.step_index < options.steps:
        start = time.perf_counter()
        loss = training.step(*tokens.step(training.step_index))
        took = 1e3 * (time.perf_counter() - start)
        if training.rank == 0:
            rate = batch["sequences"] * batch["seq-len"] / took * 1e3
            line = {"event": "step", "step": training.step_index, "loss": loss, "duration-ms": took, "tokens-per-second": rate}
            print(json.dumps(line), flush=True)
        training.step_index += 1
        if options.checkpoint_dir and (training.step_index % options.checkpoint_every == 0 or training.step_index == options.steps):
            training.save(options.checkpoint_dir)
    if training.device.type == "cuda":
        print(json.dumps({"event": "end", "rank": training.rank, "peak-bytes": torch.cuda.max_memory_allocated()}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except storage.Fault as fault:
        sys.exit(f"error: {fault}")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
