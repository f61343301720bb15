"""Trains the model of plan.json with DeepSpeed, as ds_config.json says."""

import argparse
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

import checkpoint
import loop
import parameters
import place
from stage import Stage, tie
from storage import Fault
from tokens import Tokens, count, loss_sum

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--learning-rate", type=float, default=None, help="that of ds_config.json by default")
    parser.add_argument("--cpu", action="store_true", help="use CPU cores for every rank")
    parser.add_argument("--local_rank", type=int, default=0, help="set by DeepSpeed's launcher")


class Model(nn.Module):
    """The whole model with the sum of its losses."""

    def __init__(self, settings: dict[str, Any], device: torch.device, dtype: torch.dtype, ready: Callable[[Stage], object]) -> None:
        super().__init__()
        stages = []
        for stage in settings["stages"]:
            stages.append(Stage(settings["model"], stage, device, dtype, (device, dtype)))
            ready(stages[-1])
        tie(stages)
        self.stages = nn.ModuleList(stages)

    def all_stages(self) -> list[Stage]:
        return [stage for stage in self.stages if isinstance(stage, Stage)]

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = inputs
        for stage in self.stages:
            x = stage(x)
        return loss_sum(x, targets)


def build(settings: dict[str, Any], config: dict[str, Any], device: torch.device, options: argparse.Namespace) -> Model:
    """The model with its first numbers; with ZeRO-3 no process ever holds more of it than one group of layers and its shards."""
    dtype = TYPES[settings["precision"]]
    if config["zero_optimization"]["stage"] < 3:
        model = Model(settings, device, dtype, lambda _: None)
        parameters.fill(model.all_stages(), options.weights, options.seed)
        return model
    # The type follows from the configuration; DeepSpeed 0.19 reads the argument for it wrongly.
    model = Model(settings, device, dtype, partial(deepspeed.zero.Init, config_dict_or_path=config))
    # The first process reads, or draws, each parameter once, and the others get their parts of it.
    source = parameters.source(options.weights, options.seed) if dist.get_rank() == 0 else None
    for stage in model.all_stages():
        for _, name, parameter in stage.names():
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
                if source is not None:
                    numbers = source.read(parameters.origin(stage, name), parameter.shape, 0, parameter.numel())
                    parameter.copy_(numbers.view(parameter.shape))
    return model


class Training:
    def __init__(self, settings: dict[str, Any], config: dict[str, Any], options: argparse.Namespace) -> None:
        self.settings = settings
        os.environ.setdefault("LOCAL_RANK", str(options.local_rank))
        self.device = place.place(settings, options.cpu)
        place.join("cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo")
        deepspeed.init_distributed()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        if options.learning_rate is not None:
            config["optimizer"]["params"]["lr"] = options.learning_rate
        self.rounds = config["gradient_accumulation_steps"]
        model = build(settings, config, self.device, options)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=trained, config=config)

    def read(self, index: int, tokens: Tokens) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The microbatches of this process: every one in turn. No others are read."""
        batch = self.settings["batch"]
        each = batch["microbatch"]
        mine = range(self.rank, batch["microbatches"], self.size)
        found = [tokens.rows(index, range(each * number, each * (number + 1))) for number in mine]
        return [(inputs.to(self.device), targets.to(self.device)) for inputs, targets in found]

    def step(self, index: int, tokens: Tokens) -> float | None:
        microbatches, batch = self.read(index, tokens), self.settings["batch"]
        counted = batch["sequences"] * batch["seq-len"]
        if tokens.is_masked:
            counted = max(int(loop.total(sum(count(targets) for _, targets in microbatches))), 1)
        # DeepSpeed averages over processes and rounds; the loss is the mean over all targets of the step.
        scale, total = self.size * self.rounds / counted, 0.0
        for inputs, targets in microbatches:
            loss = self.engine(inputs, targets) * scale
            self.engine.backward(loss)
            self.engine.step()
            total += loss.item() / (self.size * self.rounds)
        total = loop.total(total)
        return total if self.rank == 0 else None

    @torch.no_grad()
    def evaluate(self, index: int, tokens: Tokens) -> tuple[float, int]:
        self.engine.eval()
        microbatches = self.read(index, tokens)
        losses = [self.engine(inputs, targets).item() for inputs, targets in microbatches]
        self.engine.train()
        return sum(losses), sum(count(targets) for _, targets in microbatches)


class EngineSaver:
    """DeepSpeed's own checkpoints: a folder per step, and `latest`, which names the newest whole one."""

    def __init__(self, training: Training, fingerprint: str, options: argparse.Namespace) -> None:
        self.training, self.folder, self.keep = training, options.checkpoint_dir, options.keep_checkpoints
        self.state = {"plan": fingerprint, "ranks": training.size}
        self.latest = os.path.join(self.folder, "latest")
        self.saved: int | None = None
        checkpoint.check_shared(self.folder, training.rank, loop.meet)

    def save(self, step: int) -> None:
        if self.saved == step:
            return
        tag = f"step-{step:06}"
        os.makedirs(os.path.join(self.folder, tag), exist_ok=True)
        try:
            self.training.engine.save_checkpoint(self.folder, tag, client_state={"step": step, **self.state}, save_latest=False)
        except (OSError, RuntimeError) as error:
            raise Fault(f"cannot write the checkpoint `{tag}` to `{self.folder}`: {error}; the ones before are whole") from None
        loop.meet()
        if self.training.rank == 0:
            # Read before the tensors, so that what cannot be gone on from is said in words.
            checkpoint.write_text(os.path.join(self.folder, tag, checkpoint.MANIFEST), json.dumps({"step": step, **self.state}))
            checkpoint.write_text(self.latest, tag)
            for _, old in sorted(checkpoint.steps(self.folder))[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)
        loop.meet()
        self.saved = step

    def load(self) -> int:
        if not os.path.exists(self.latest):
            raise Fault(f"`{self.folder}` has no checkpoint to go on from: leave --resume out to start at the first step")
        with open(self.latest, encoding="utf-8") as file:
            tag = file.read().strip()
        found = checkpoint.read_json(os.path.join(self.folder, tag, checkpoint.MANIFEST))
        for what, name in (("plan", "plan"), ("processes", "ranks")):
            if found[name] != self.state[name]:
                raise Fault(f"the checkpoint `{tag}` in `{self.folder}` is of {what} {found[name]}, this is {self.state[name]}")
        path, _ = self.training.engine.load_checkpoint(self.folder, tag)
        if path is None:
            raise Fault(f"DeepSpeed cannot read the checkpoint `{tag}` in `{self.folder}`")
        self.saved = int(found["step"])
        return self.saved

    def refuse_used(self) -> None:
        if os.path.exists(self.latest):
            raise Fault(f"`{self.folder}` holds checkpoints of another run: go on from them with --resume, or name another folder")


def main() -> None:
    options = loop.arguments(__doc__, options_of)
    settings = loop.read_settings()
    with open(os.path.join(loop.HERE, "ds_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    training = Training(settings, config, options)
    saver = EngineSaver(training, settings["fingerprint"], options) if options.checkpoint_dir else None
    loop.Loop(training, settings, options, saver).run()
    if training.device.type == "cuda":
        loop.say(event="end", rank=training.rank, peak_bytes=torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    loop.end(main)
