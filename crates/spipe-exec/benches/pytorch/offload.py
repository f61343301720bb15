"""Trains the model of a plan with PyTorch and CPU offload, with the plan's batches, beside what `spipe run` makes of it.

    python3 offload.py fsdp|zero-offload PLAN.json --device cuda:0 --cap "12 GiB" --steps 8 --text README.md

`fsdp` is PyTorch's own: FSDP2 on one device with parameters, gradients and optimizer in host memory (`CPUOffloadPolicy`).
`zero-offload` keeps parameters and gradients on the device, and steps in host memory (Ren et al. 2021). Both step with
PyTorch's fused AdamW on the CPU, in f32. Prints one object of JSON; needs Python 3.11 and PyTorch 2.6 or later.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
import transformer
from torch import nn

WARM_UP = 2
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def size(text):
    number, unit = text.split()
    return int(float(number) * UNITS[unit])


class Fsdp:
    """Blocks fetch their parameters before they compute, and send their gradients to the host."""

    def __init__(self, model, device, dtype):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        backend = "nccl" if device.type == "cuda" else "gloo"
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
        how = {
            "mesh": init_device_mesh(device.type, (1,)),
            "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda"),
            "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        }
        for block in model.blocks:
            fully_shard(block, **how)
        self.model = fully_shard(model, **how)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def end(self):
        torch.distributed.destroy_process_group()


class ZeroOffload:
    """Gradients go to the host once they are complete, parameters come back once they are stepped."""

    def __init__(self, model, device, dtype):
        pinned = (lambda tensor: tensor.pin_memory()) if device.type == "cuda" else (lambda tensor: tensor)
        self.masters = [nn.Parameter(pinned(parameter.detach().clone())) for parameter in model.parameters()]
        self.model = model.to(device=device, dtype=dtype)
        self.gradients = [pinned(torch.empty_like(master, dtype=dtype)) for master in self.masters]
        self.narrow = [pinned(torch.empty_like(master, dtype=dtype)) for master in self.masters]
        self.optimizer = torch.optim.AdamW(self.masters, fused=True)
        self.device = device

    def step(self):
        for parameter, gradient in zip(self.model.parameters(), self.gradients):
            gradient.copy_(parameter.grad, non_blocking=True)
            parameter.grad = None
        synchronize(self.device)
        for master, gradient in zip(self.masters, self.gradients):
            master.grad = gradient.float()
        self.optimizer.step()
        with torch.no_grad():
            for master, narrow, parameter in zip(self.masters, self.narrow, self.model.parameters()):
                narrow.copy_(master)
                parameter.copy_(narrow, non_blocking=True)

    def end(self):
        pass


STRATEGIES = {"fsdp": Fsdp, "zero-offload": ZeroOffload}


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategy", choices=sorted(STRATEGIES))
    parser.add_argument("plan")
    parser.add_argument("--device", type=torch.device, default="cuda:0")
    parser.add_argument("--cap", type=size, help="memory that may be allocated on the device, such as 12 GiB")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--text", default="README.md")
    options = parser.parse_args()
    with open(options.plan, encoding="utf-8") as file:
        plan = json.load(file)
    with open(options.text, "rb") as file:
        text = file.read()
    workload = plan["workload"]
    device, is_gpu = options.device, options.device.type == "cuda"
    if is_gpu:
        torch.cuda.set_device(device)
        if options.cap:
            whole = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, options.cap / whole), device)

    torch.manual_seed(0)
    model = transformer.Transformer(transformer.read(plan["model"]["toml"]))
    strategy = STRATEGIES[options.strategy](model, device, DTYPES[workload["precision"]])
    data = transformer.Text(text, workload["seq-len"])
    losses, times = [], []
    for _ in range(options.steps + WARM_UP):
        start = time.perf_counter()
        sum_of_losses = 0.0
        for _ in range(workload["microbatches"]):
            inputs, targets = data.batch(workload["microbatch"], device)
            part = transformer.loss(strategy.model(inputs), targets) / workload["microbatches"]
            part.backward()
            sum_of_losses = sum_of_losses + part.detach()
        strategy.step()
        synchronize(device)
        times.append(time.perf_counter() - start)
        losses.append(float(sum_of_losses))
    strategy.end()

    iteration = statistics.median(times[WARM_UP:])
    tokens = workload["seq-len"] * workload["microbatch"] * workload["microbatches"]
    print(json.dumps({
        "strategy": options.strategy,
        "pytorch": torch.__version__,
        "iteration-ms": 1e3 * iteration,
        "tokens-per-second": tokens / iteration,
        "peak-bytes": torch.cuda.max_memory_allocated(device) if is_gpu else 0,
        "losses": losses,
    }))


if __name__ == "__main__":
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    try:
        main()
    except torch.OutOfMemoryError:
        sys.exit("error: out of memory")
