"""The processes, the stages of each, and PyTorch's pipeline runtime with the plan's order.

The order is `schedule.csv`, in the `compute_only` dialect that PyTorch's runtime loads: one row per process, and in each
its actions, such as 0F2 (stage 0, forward, microbatch 2), B (backward), I and W (gradients of inputs and of weights).
"""

import inspect
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from model import HEAD, TABLES, Stage, tie
from storage import Fault

OLDEST = (2, 8)
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class World:
    """This process among the others, and its device."""

    def __init__(self, settings, only_cpu):
        version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
        if version < OLDEST:
            raise Fault(f"PyTorch {torch.__version__} is too old: pipelines hang on gloo before {OLDEST[0]}.{OLDEST[1]}")
        self.settings, ranks = settings, settings["ranks"]
        self.rank, self.size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if self.size != len(ranks):
            raise Fault(f"the plan has {len(ranks)} ranks, {self.size} processes were started: see README.md")
        on_gpu = [rank["kind"] == "gpu" and not only_cpu for rank in ranks]
        self.is_mixed = any(on_gpu) and not all(on_gpu)
        if on_gpu[self.rank] and not torch.cuda.is_available():
            raise Fault(f"rank {self.rank} is `{ranks[self.rank]['device']}` in the plan, but PyTorch finds no GPU; --cpu uses cores")
        if on_gpu[self.rank]:
            # The GPUs of one machine are counted over its GPU ranks alone.
            local = int(os.environ.get("LOCAL_RANK", 0))
            before = on_gpu[self.rank - local : self.rank].count(True)
            self.device = torch.device("cuda", before)
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
        self.nccl = all(on_gpu)
        alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group("cpu:gloo,cuda:nccl" if self.nccl else "gloo", **alone)

    def stages(self):
        """The stages of this process, by their numbers."""
        plan = TYPES[self.settings["precision"]]
        # Cores compute in 32 bits where the plan says so. With GPUs and cores in one pipeline, what goes from stage to
        # stage goes by way of host memory.
        boundary = (torch.device("cpu") if self.is_mixed else self.device, plan)
        own = {}
        for index, stage in enumerate(self.settings["stages"]):
            if stage["rank"] == self.rank:
                dtype = TYPES[stage["computes-in"]] if self.device.type == "cpu" else plan
                own[index] = Stage(self.settings["model"], stage, self.device, dtype, boundary)
        tie(own.values())
        return own

    def tied(self, stages):
        """Names of tied parameters that are here, and the group of the two processes that hold copies of them."""
        model, all_stages = self.settings["model"], self.settings["stages"]
        pair = sorted({all_stages[0]["rank"], all_stages[-1]["rank"]})
        if not model["tied"]:
            return set(), None
        # Both names are one parameter where both ends are in one process; gradients then add up by themselves.
        names = {TABLES[model["family"]], HEAD}
        group = dist.new_group(pair) if len(pair) > 1 else None
        here = any(stage.is_first or stage.is_last for stage in stages.values())
        return (names if here else set()), group

    def sum(self, number):
        """The sum of a number over all processes."""
        total = torch.tensor(float(number), dtype=torch.float64)
        dist.all_reduce(total)
        return total.item()


class ObservedStage(PipelineStage):
    """A stage that says when its last backward of a step is done."""

    on_last_backward = None

    def backward_one_chunk(self, *args, last_backward=False, **kwargs):
        super().backward_one_chunk(*args, last_backward=last_backward, **kwargs)
        self.observe(last_backward)

    def backward_weight_one_chunk(self, *args, last_backward=False, **kwargs):
        super().backward_weight_one_chunk(*args, last_backward=last_backward, **kwargs)
        self.observe(last_backward)

    def observe(self, last_backward):
        if last_backward and self.on_last_backward is not None:
            self.on_last_backward(self.stage_index)


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.to(logits.device).flatten())


class Pipeline:
    """The stages of this process in PyTorch's runtime."""

    def __init__(self, world, stages, csv):
        batch, settings = world.settings["batch"], world.settings
        self.world, self.stages, self.microbatches = world, stages, batch["microbatches"]
        self.scale, self.boundary = 1.0, next(iter(stages.values())).boundary
        observed = [self.observed(index, stage, len(settings["stages"])) for index, stage in stages.items()]
        self.observed = {stage.stage_index: stage for stage in observed}
        self.schedule = _PipelineScheduleRuntime(observed, self.microbatches, loss_fn=self.loss, scale_grads=False)
        self.schedule._load_csv(csv, format="compute_only")
        # Since PyTorch 2.9 the logits of all microbatches need not be kept until the end of the step.
        keeps = "return_outputs" in inspect.signature(self.schedule.step).parameters
        self.options = {"return_outputs": False} if keeps else {}

    def observed(self, index, stage, count):
        """The stage with the shapes of its input and output, so that PyTorch need not find them by running it."""
        batch, model = self.world.settings["batch"], self.world.settings["model"]
        device, dtype = self.boundary
        shape = (batch["microbatch"], batch["seq-len"])
        hidden = torch.empty(*shape, model["hidden"], device="meta", dtype=dtype)
        tokens = torch.empty(shape, device="meta", dtype=torch.int64)
        logits = torch.empty(*shape, model["vocabulary"], device="meta", dtype=stage.dtype)
        first, last = tokens if stage.is_first else hidden.requires_grad_(), logits if stage.is_last else hidden
        return ObservedStage(stage, index, count, device, input_args=(first,), output_args=(last.requires_grad_(),))

    def loss(self, logits, targets):
        """The part of one microbatch in the mean over all of them."""
        return cross_entropy(logits, targets) * (self.scale / self.microbatches)

    def step(self, inputs, targets):
        """All forwards and backwards of a step; the loss where the last stage is."""
        is_first = any(stage.is_first for stage in self.stages.values())
        is_last = any(stage.is_last for stage in self.stages.values())
        losses = [] if is_last else None
        device = self.boundary[0]
        arguments = (inputs.to(device),) if is_first else ()
        targets = targets.to(device) if is_last else None
        self.schedule.step(*arguments, target=targets, losses=losses, **self.options)
        return torch.stack(losses).sum().item() / self.scale if is_last else None


class OneProcess:
    """The same stages one after the other in one process, as a reference."""

    def __init__(self, stages, batch):
        self.stages, self.microbatches, self.scale = stages, batch["microbatches"], 1.0
        self.observed = {}

    def step(self, inputs, targets):
        total = 0.0
        for x, y in zip(inputs.chunk(self.microbatches), targets.chunk(self.microbatches)):
            for stage in self.stages.values():
                x = stage(x)
            loss = cross_entropy(x, y) * (self.scale / self.microbatches)
            loss.backward()
            total += loss.item() / self.scale
        return total
