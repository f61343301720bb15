"""A plain loop of PyTorch beside exported plans: ZeRO-Offload by hand, on the layers of an exported folder."""

import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

# The first steps take memory, and are left out of medians.
STEPS, IGNORED = 6, 2
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def settings_of(folder: str) -> dict:
    name = next(name for name in ("program.json", "plan.json") if os.path.exists(os.path.join(folder, name)))
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return json.load(file)


def chain(folder: str, device: str) -> tuple[nn.Sequential, dict]:
    """The layers of an exported model, with those modules that its scripts run; a tied head has the table."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import model

    settings = settings_of(folder)
    with torch.device(device):
        layers = nn.Sequential(*(model.layer(settings["model"], index) for index in range(settings["model"]["layers"] + 2)))
    if settings["model"]["tied"]:
        owner, _, name = model.HEAD.rpartition(".")
        setattr(layers[-1].get_submodule(owner), name, next(layers[0].parameters()))
    return layers, settings


class Yardstick:
    """ZeRO-Offload by hand: gradients leave after the last backward, layer by layer; each layer is stepped, and comes back."""

    def __init__(self, folder: str, data: str, is_gpu: bool) -> None:
        self.device = torch.device("cuda:0" if is_gpu else "cpu")
        self.model, settings = chain(folder, str(self.device))
        self.batch, dtype = settings["batch"], TYPES[settings["precision"]]
        for parameter in self.model.parameters():
            nn.init.normal_(parameter, 0.0, 0.02) if parameter.dim() > 1 else nn.init.constant_(parameter, 1.0)
        self.model.to(dtype)
        self.stream = torch.cuda.Stream() if is_gpu else None
        seen: set[int] = set()
        # Layers with their 32-bit copies, pinned numbers for both ways, and optimizer, the last layer first.
        self.groups = []
        for layer in reversed(self.model):
            own = [it for it in layer.parameters() if not (id(it) in seen or seen.add(id(it)))]
            masters = [nn.Parameter(it.detach().float().cpu()) for it in own]
            there = [torch.empty(it.shape, dtype=dtype, pin_memory=is_gpu) for it in own]
            if own:
                self.groups.append((own, masters, there, torch.optim.AdamW(masters, lr=1e-4, fused=True)))
        with open(data, "rb") as file:
            self.text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
        size = sum(it.numel() for it in self.model.parameters())
        times = [self.step() for _ in range(STEPS)]
        took = {way: sum(it if isinstance(it, float) else it[0].elapsed_time(it[1]) / 1e3 for it in found) for way, found in self.copied.items()}
        print(json.dumps({
            "iteration-ms": 1e3 * statistics.median(times[IGNORED:]), "peak-bytes": torch.cuda.max_memory_allocated() if is_gpu else 0,
            "params-per-second": size / self.stepped, **{way: size * dtype.itemsize / seconds for way, seconds in took.items()},
        }))  # fmt: skip

    @torch.no_grad()
    def copy(self, way: str, pairs: list) -> torch.cuda.Event | None:
        """Copies on the stream, between two marks of the device's clock."""
        start = time.perf_counter()
        with torch.cuda.stream(self.stream):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self.stream else []
            if marks:
                marks[0].record()
            for source, target in pairs:
                target.copy_(source, non_blocking=True)
            if marks:
                marks[1].record()
        self.copied[way].append(marks or time.perf_counter() - start)
        return marks[1] if marks else None

    def step(self) -> float:
        """Seconds of a step; the copies' and the optimizer's are kept."""
        start, length, self.copied, self.stepped = time.perf_counter(), self.batch["seq-len"], {"in": [], "out": []}, 0.0
        for _ in range(self.batch["microbatches"]):
            places = torch.randint(len(self.text) - length, (self.batch["microbatch"],))
            tokens = torch.stack([self.text[place : place + length + 1] for place in places]).long().to(self.device)
            loss = F.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
            (loss / self.batch["microbatches"]).backward()
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        arrived = [self.copy("out", [(it.grad, to) for it, to in zip(own, there)]) for own, _, there, _ in self.groups]
        for (own, masters, there, optimizer), event in zip(self.groups, arrived):
            if event is not None:
                event.synchronize()
            begin = time.perf_counter()
            for master, gradient in zip(masters, there):
                master.grad = gradient.float()
            optimizer.step()
            for master, narrow in zip(masters, there):
                narrow.copy_(master.detach())
            self.stepped += time.perf_counter() - begin
            self.copy("in", list(zip(there, own)))
        if self.stream is not None:
            torch.cuda.synchronize()
        self.model.zero_grad(set_to_none=True)
        return time.perf_counter() - start
