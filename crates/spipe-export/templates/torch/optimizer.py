"""AdamW for the stages of one process: on the device of the stage, or on the host with copies in pinned memory.

Where the plan has narrow parameters, or the optimizer on the host, the optimizer keeps its own copy of the parameters
in f32 (the master), and works layer by layer, so that at most one layer's gradients exist in f32.
"""

from concurrent.futures import ThreadPoolExecutor

import torch


class Part:
    """The trained parameters of one layer with their optimizer."""

    def __init__(self, named, device, options):
        self.named = named
        self.parameters = [parameter for _, parameter in named]
        first = self.parameters[0]
        self.is_apart = first.device.type != device.type or first.dtype != torch.float32
        masters = [parameter.detach().to(device, torch.float32) for parameter in self.parameters]
        self.masters = masters if self.is_apart else self.parameters
        self.pinned = None
        if first.device.type != device.type:
            self.pinned = [torch.empty_like(parameter, device=device).pin_memory() for parameter in self.parameters]
        self.adam = torch.optim.AdamW(self.masters, fused=True, **options)
        for master in self.masters:
            # The state exists from the start, so that a checkpoint can be read into it.
            self.adam.state[master] = {
                "step": torch.zeros((), dtype=torch.float32, device=master.device),
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }

    def step(self, rate, factor):
        """One step with these gradients, multiplied by `factor`, which are dropped."""
        if self.is_apart:
            gradients = self.pinned or [parameter.grad for parameter in self.parameters]
            for master, gradient in zip(self.masters, gradients):
                master.grad = gradient.to(torch.float32, copy=True)
        if factor != 1.0:
            torch._foreach_mul_([master.grad for master in self.masters], factor)
        self.adam.param_groups[0]["lr"] = rate
        self.adam.step()
        if self.is_apart:
            with torch.no_grad():
                for master, target in zip(self.masters, self.pinned or self.parameters):
                    target.copy_(master)
                    master.grad = None

    def state(self):
        """What a checkpoint holds, by name."""
        state = {}
        for (name, _), master in zip(self.named, self.masters):
            state[f"weights.{name}"] = master.detach()
            state.update({f"{key}.{name}": value for key, value in self.adam.state[master].items()})
        return state

    @torch.no_grad()
    def give(self):
        """Copies the masters to the parameters, after a checkpoint was read."""
        if self.is_apart:
            for master, parameter in zip(self.masters, self.parameters):
                parameter.copy_(master)


class StageOptimizer:
    """The optimizer of one stage. A step on the host runs beside the device until `finish`."""

    def __init__(self, stage, on_host, skipped, options):
        device = torch.device("cpu") if on_host else stage.device
        layers = {}
        for index, name, parameter in stage.names():
            if parameter.requires_grad and name not in skipped:
                layers.setdefault(index, []).append((name, parameter))
        self.parts = [Part(named, device, options) for named in layers.values()]
        self.copies = stage.device.type != device.type
        self.stream = torch.cuda.Stream(stage.device) if self.copies else None
        self.workers = ThreadPoolExecutor(1) if self.copies else None
        self.running = None

    def gradients(self):
        return [parameter.grad for part in self.parts for parameter in part.parameters if parameter.grad is not None]

    def start(self, rate, factor=1.0):
        """Starts the step, once the stage's gradients are complete."""
        if not self.copies:
            for part in self.parts:
                part.step(rate, factor)
            return
        arrivals = []
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream), torch.no_grad():
            for part in self.parts:
                for parameter, pinned in zip(part.parameters, part.pinned):
                    pinned.copy_(parameter.grad, non_blocking=True)
                    parameter.grad.record_stream(self.stream)
                arrivals.append(self.stream.record_event())
        self.running = self.workers.submit(self.step_on_host, arrivals, rate, factor)

    def step_on_host(self, arrivals, rate, factor):
        for part, arrival in zip(self.parts, arrivals):
            arrival.synchronize()
            part.step(rate, factor)
            with torch.cuda.stream(self.stream), torch.no_grad():
                for parameter, pinned in zip(part.parameters, part.pinned):
                    parameter.copy_(pinned, non_blocking=True)

    def finish(self):
        """Waits for a step on the host, and drops the gradients."""
        if self.running is not None:
            self.running.result()
            self.running = None
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
        for part in self.parts:
            for parameter in part.parameters:
                parameter.grad = None
