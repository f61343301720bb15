"""The processes, the stages of each, and PyTorch's pipeline runtime with the plan's order.

The order is `schedule.csv`, in the `compute_only` dialect that PyTorch's runtime loads: one row per process, and in each
its actions, such as 0F2 (stage 0, forward, microbatch 2), B (backward), I and W (gradients of inputs and of weights).
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.distributed.tensor.parallel import loss_parallel

import place
import team
from axes import Axes
from model import HEAD, table
from stage import Stage, tie
from storage import Fault
from tokens import loss_sum

OLDEST = (2, 8)
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class World:
    """This process among the others, and its device."""

    def __init__(self, settings: dict[str, Any], only_cpu: bool) -> None:
        version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
        if version < OLDEST:
            raise Fault(f"PyTorch {torch.__version__} is too old: pipelines hang on gloo before {OLDEST[0]}.{OLDEST[1]}")
        self.settings = settings
        self.device = place.place(settings, only_cpu)
        on_gpu = [rank["kind"] == "gpu" and not only_cpu for rank in settings["ranks"]]
        self.is_mixed, self.nccl = any(on_gpu) and not all(on_gpu), all(on_gpu)
        place.join("cpu:gloo,cuda:nccl" if self.nccl else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.axes = Axes(settings.get("mesh"), self.device.type)

    def stages(self) -> dict[int, Stage]:
        """The stages of this process, by their numbers."""
        plan = TYPES[self.settings["precision"]]
        # Cores compute in 32 bits where the plan says so. With GPUs and cores in one pipeline, what goes from stage to
        # stage goes by way of host memory.
        boundary = (torch.device("cpu") if self.is_mixed else self.device, plan)
        own = {}
        for index, stage in enumerate(self.settings["stages"]):
            if stage["rank"] == self.axes.row:
                dtype = TYPES[stage["computes-in"]] if self.device.type == "cpu" else plan
                own[index] = Stage(self.settings["model"], stage, self.device, dtype, boundary, self.divider(dtype))
        tie(own.values())
        return own

    def divider(self, dtype: torch.dtype) -> Callable[[torch.nn.ModuleList, int], None] | None:
        """The division of layers in a team."""
        mesh, model = self.axes.team, self.settings["model"]
        if mesh is None:
            return None

        def divide(layers: torch.nn.ModuleList, first: int) -> None:
            team.divide(layers, first, model, mesh, self.axes.divides_tokens)
            team.give_memory(layers, self.device, dtype)

        return divide

    def tied(self, stages: dict[int, Stage]) -> tuple[set[str], dist.ProcessGroup | None]:
        """Names of tied parameters that are here, and the group of the two processes that hold copies of them, or of the same part of them."""
        model, all_stages = self.settings["model"], self.settings["stages"]
        rows = sorted({all_stages[0]["rank"], all_stages[-1]["rank"]})
        if not model["tied"]:
            return set(), None
        # Both names are one parameter where both ends are in one process; gradients then add up by themselves.
        names = {table(model), HEAD}
        groups = [dist.new_group(pair) for pair in self.axes.across(rows)] if len(rows) > 1 else []
        # A process that is not in a group gets a number in its place.
        group = next((group for group in groups if isinstance(group, dist.ProcessGroup)), None)
        here = any(stage.is_first or stage.is_last for stage in stages.values())
        return (names if here else set()), group


class Order(Protocol):
    """The passes of a step over the stages of this process."""

    # The factor of fp16's losses.
    scale: float

    def step(self, inputs: torch.Tensor | None, targets: torch.Tensor | None, counted: int) -> float | None:
        """All forwards and backwards; the mean loss over `counted` targets, where the last stage is."""

    def evaluate(self, inputs: torch.Tensor | None, targets: torch.Tensor | None) -> float:
        """All forwards; the sum of the losses where the last stage is, and zero elsewhere."""


class ObservedStage(PipelineStage):
    """A stage that says when a backward is done, and when the last one of a step is."""

    on_backward: Callable[[int], None] | None = None
    on_last_backward: Callable[[int], None] | None = None

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        super().backward_one_chunk(*args, **kwargs)
        self.observe(bool(kwargs.get("last_backward")))

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        super().backward_weight_one_chunk(*args, **kwargs)
        self.observe(bool(kwargs.get("last_backward")))

    def observe(self, last_backward: bool) -> None:
        if self.on_backward is not None:
            self.on_backward(self.stage_index)
        if last_backward and self.on_last_backward is not None:
            self.on_last_backward(self.stage_index)


class Pipeline:
    """The stages of this process in PyTorch's runtime."""

    def __init__(self, world: World, stages: dict[int, Stage], csv: str) -> None:
        batch, settings = world.settings["batch"], world.settings
        self.axes, mesh = world.axes, world.axes.team
        self.loss_sum = loss_sum if mesh is None else partial(team.loss_sum, mesh)
        self.losses: Callable[[], AbstractContextManager[None]] = nullcontext if mesh is None else loss_parallel
        self.world, self.stages, self.microbatches = world, stages, batch["microbatches"]
        self.scale, self.counted, self.boundary = 1.0, 1, next(iter(stages.values())).boundary
        observed = [self.observe(index, stage, len(settings["stages"])) for index, stage in stages.items()]
        self.observed = {stage.stage_index: stage for stage in observed}
        self.schedule = _PipelineScheduleRuntime(observed, self.microbatches, loss_fn=self.loss, scale_grads=False)
        self.schedule._load_csv(csv, format="compute_only")
        # Since PyTorch 2.9 the logits of all microbatches need not be kept until the end of the step.
        keeps = "return_outputs" in inspect.signature(self.schedule.step).parameters
        self.options: dict[str, Any] = {"return_outputs": False} if keeps else {}

    def observe(self, index: int, stage: Stage, count: int) -> ObservedStage:
        """The stage with the shapes of its input and output, so that PyTorch need not find them by running it."""
        batch, model = self.world.settings["batch"], self.world.settings["model"]
        device, dtype = self.boundary
        shape = (batch["microbatch"], batch["seq-len"])
        hidden = torch.empty(self.hidden(), device="meta", dtype=dtype)
        tokens = torch.empty(shape, device="meta", dtype=torch.int64)
        logits = torch.empty(*shape, model["vocabulary"] // self.axes.members, device="meta", dtype=stage.dtype)
        first, last = tokens if stage.is_first else hidden.requires_grad_(), logits if stage.is_last else hidden
        return ObservedStage(stage, index, count, device, input_args=(first,), output_args=(last.requires_grad_(),), group=self.axes.pipeline)

    def hidden(self) -> tuple[int, int, int]:
        """The shape of what goes from stage to stage: all tokens of a microbatch, or this process's part of them."""
        batch, parts = self.world.settings["batch"], self.axes.members if self.axes.divides_tokens else 1
        return batch["microbatch"], batch["seq-len"] // parts, self.world.settings["model"]["hidden"]

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The part of one microbatch in the mean over all targets of the step."""
        return self.loss_sum(logits, targets) * (self.scale / self.counted)

    def step(self, inputs: torch.Tensor | None, targets: torch.Tensor | None, counted: int) -> float | None:
        self.counted = counted
        is_first = any(stage.is_first for stage in self.stages.values())
        is_last = any(stage.is_last for stage in self.stages.values())
        losses: list[torch.Tensor] | None = [] if is_last else None
        device = self.boundary[0]
        arguments = (inputs.to(device),) if is_first and inputs is not None else ()
        wanted = targets.to(device) if is_last and targets is not None else None
        with self.losses():
            self.schedule.step(*arguments, target=wanted, losses=losses, **self.options)
        return torch.stack(losses).sum().item() / self.scale if losses else None

    @torch.no_grad()
    def evaluate(self, inputs: torch.Tensor | None, targets: torch.Tensor | None) -> float:
        """One microbatch after the other through all stages: an order in which no two processes wait for each other."""
        ranks = [stage["rank"] for stage in self.world.settings["stages"]]
        device, dtype = self.boundary
        parts = [None if tensor is None else tensor.to(device).chunk(self.microbatches) for tensor in (inputs, targets)]
        total, held = 0.0, torch.empty(0)
        for microbatch in range(self.microbatches):
            for index, stage in self.stages.items():
                if stage.is_first and parts[0] is not None:
                    held = parts[0][microbatch]
                elif ranks[index - 1] != self.axes.row:
                    held = torch.empty(self.hidden(), device=device, dtype=dtype)
                    dist.recv(held, self.axes.of_row(ranks[index - 1]))
                held = stage(held)
                if stage.is_last and parts[1] is not None:
                    with self.losses():
                        total += self.loss_sum(held, parts[1][microbatch]).item()
                elif not stage.is_last and ranks[index + 1] != self.axes.row:
                    dist.send(held.contiguous(), self.axes.of_row(ranks[index + 1]))
        return total


class OneProcess:
    """The same stages one after the other in one process, as a reference."""

    def __init__(self, stages: dict[int, Stage], batch: dict[str, int]) -> None:
        self.stages, self.microbatches, self.scale = stages, batch["microbatches"], 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages.values():
            x = stage(x)
        return x

    def step(self, inputs: torch.Tensor | None, targets: torch.Tensor | None, counted: int) -> float | None:
        assert inputs is not None and targets is not None
        total = 0.0
        for x, y in zip(inputs.chunk(self.microbatches), targets.chunk(self.microbatches), strict=True):
            loss = loss_sum(self.forward(x), y) * (self.scale / counted)
            torch.autograd.backward(loss)
            total += loss.item() / self.scale
        return total

    @torch.no_grad()
    def evaluate(self, inputs: torch.Tensor | None, targets: torch.Tensor | None) -> float:
        assert inputs is not None and targets is not None
        parts = zip(inputs.chunk(self.microbatches), targets.chunk(self.microbatches), strict=True)
        return sum(loss_sum(self.forward(x), y).item() for x, y in parts)
