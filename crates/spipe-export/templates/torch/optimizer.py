"""The optimizer of the stages of one process: on the device of the stage, or on the host with copies in pinned memory.

Where the plan has narrow parameters, or the optimizer on the host, the optimizer keeps its own copy of the parameters
in f32 (the master), and works layer by layer, so that at most one layer's gradients exist in f32. Gradients of several
microbatches of narrow parameters are summed in f32, and rounded once where they go to the host.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from rules import make
from stage import Stage
from sums import Sums


class Part(Sums):
    """The trained parameters of one layer with their optimizer."""

    def __init__(self, named: list[tuple[str, nn.Parameter]], device: torch.device, kind: str, options: dict[str, Any], sums: bool) -> None:
        super().__init__()
        self.named = named
        self.parameters = [parameter for _, parameter in named]
        first = self.parameters[0]
        self.is_apart = first.device.type != device.type or first.dtype != torch.float32
        masters = [parameter.detach().to(device, torch.float32) for parameter in self.parameters]
        self.masters: list[torch.Tensor] = masters if self.is_apart else list(self.parameters)
        self.pinned: list[torch.Tensor] | None = None
        if first.device.type != device.type:
            self.pinned = [torch.empty_like(parameter, device=device).pin_memory() for parameter in self.parameters]
        if sums and first.dtype != torch.float32:
            for parameter in self.parameters:
                self.sums[parameter] = torch.zeros_like(parameter, dtype=torch.float32)
                parameter.register_post_accumulate_grad_hook(self.add)
        self.optimizer = make(kind, self.masters, **options)
        self.counts: dict[torch.Tensor, torch.Tensor] = {}

    @torch.no_grad()
    def add(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None and isinstance(parameter, nn.Parameter) and parameter in self.sums:
            self.sums[parameter].add_(parameter.grad)
            parameter.grad = None

    def close(self) -> None:
        """Sums that go to the host become gradients in the type of the parameters."""
        if self.pinned is not None:
            for parameter, summed in self.sums.items():
                parameter.grad = summed.to(parameter.dtype)

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The gradients of a step, by name."""
        for name, parameter in self.named:
            gradient = parameter.grad if parameter.grad is not None else self.sums.get(parameter)
            if gradient is not None:
                yield name, gradient

    def for_norm(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The gradients in the norm of all."""
        return self.gradients()

    def step(self, rate: float, factor: float) -> None:
        """One step with these gradients, multiplied by `factor`."""
        if self.is_apart:
            gradients = self.pinned or [gradient for _, gradient in self.gradients()]
            for master, gradient in zip(self.masters, gradients, strict=True):
                master.grad = gradient.to(torch.float32)
        if factor != 1.0:
            torch._foreach_mul_([master.grad for master in self.masters if master.grad is not None], factor)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        if self.is_apart:
            with torch.no_grad():
                for master, target in zip(self.masters, self.pinned or self.parameters, strict=True):
                    target.copy_(master)
                    master.grad = None

    def drop_gradients(self) -> None:
        self.is_complete = False
        for parameter in self.parameters:
            parameter.grad = None
        for summed in self.sums.values():
            summed.zero_()

    def state(self) -> dict[str, torch.Tensor]:
        """The parameters in 32 bits and the optimizer's state, by name."""
        state = {}
        for (name, _), master in zip(self.named, self.masters, strict=True):
            state[f"weights.{name}"] = master.detach()
            found = {**self.optimizer.state[master], **self.counted(master)}
            state.update({f"{key}.{name}": value for key, value in found.items() if isinstance(value, torch.Tensor)})
        return state

    def counted(self, master: torch.Tensor) -> dict[str, torch.Tensor]:
        """The number of steps, where the optimizer counts in an integer of Python."""
        step = self.optimizer.state[master].get("step")
        if not isinstance(step, int):
            return {}
        count = self.counts.setdefault(master, torch.zeros((), dtype=torch.int64))
        return {"step": count.fill_(step)}

    @torch.no_grad()
    def give(self) -> None:
        """Copies the masters to the parameters, after a checkpoint was read."""
        for master, count in self.counts.items():
            self.optimizer.state[master]["step"] = int(count)
        if self.is_apart:
            for master, parameter in zip(self.masters, self.parameters, strict=True):
                parameter.copy_(master)


class StageOptimizer:
    """The optimizer of one stage. A step on the host runs beside the device until `finish`."""

    def __init__(self, stage: Stage, on_host: bool, skipped: set[str], kind: str, options: dict[str, Any], sums: bool) -> None:
        device = torch.device("cpu") if on_host else stage.device
        layers: dict[int, list[tuple[str, nn.Parameter]]] = {}
        for index, name, parameter in stage.names():
            if parameter.requires_grad and name not in skipped:
                layers.setdefault(index, []).append((name, parameter))
        self.parts = [Part(named, device, kind, options, sums) for named in layers.values()]
        self.stream, self.workers = None, None
        if stage.device.type != device.type:
            self.stream, self.workers = torch.cuda.Stream(stage.device), ThreadPoolExecutor(1)
        self.running: Future[None] | None = None

    def add_rest(self) -> None:
        for part in self.parts:
            part.add_rest()

    def complete(self) -> None:
        for part in self.parts:
            part.complete()

    def reduce(self) -> None:
        """Nothing: there are no other replicas, whose gradients would be added."""

    def start(self, rate: float, factor: float = 1.0) -> None:
        """Starts the step, once the stage's gradients are complete."""
        self.complete()
        if self.stream is None or self.workers is None:
            for part in self.parts:
                part.step(rate, factor)
            return
        arrivals = []
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream), torch.no_grad():
            for part in self.parts:
                for parameter, pinned in zip(part.parameters, part.pinned or (), strict=True):
                    if parameter.grad is not None:
                        pinned.copy_(parameter.grad, non_blocking=True)
                        parameter.grad.record_stream(self.stream)
                arrivals.append(self.stream.record_event())
        self.running = self.workers.submit(self.step_on_host, self.stream, arrivals, rate, factor)

    def step_on_host(self, stream: torch.cuda.Stream, arrivals: list[torch.cuda.Event], rate: float, factor: float) -> None:
        for part, arrival in zip(self.parts, arrivals, strict=True):
            arrival.synchronize()
            part.step(rate, factor)
            with torch.cuda.stream(stream), torch.no_grad():
                for parameter, pinned in zip(part.parameters, part.pinned or (), strict=True):
                    parameter.copy_(pinned, non_blocking=True)

    def finish(self) -> None:
        """Waits for a step on the host, and drops the gradients."""
        if self.running is not None and self.stream is not None:
            self.running.result()
            self.running = None
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
        for part in self.parts:
            part.drop_gradients()
