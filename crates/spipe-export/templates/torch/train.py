"""Trains the model of plan.json in the order of schedule.csv. README.md has the commands."""

import argparse
import gc
import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist

import storage
from optimizer import StageOptimizer
from pipeline import OneProcess, Pipeline, World

HERE = os.path.dirname(os.path.abspath(__file__))


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
    parser.add_argument("--warmup-steps", type=int, default=0)
    parser.add_argument("--decay", choices=["constant", "linear", "cosine"], default="constant")
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-dir", help="folder for checkpoints of torch.distributed.checkpoint")
    parser.add_argument("--checkpoint-every", type=int, default=100)
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--save-weights", help="folder for the weights at the end, as safetensors")
    parser.add_argument("--trace", help="folder for the profiler's trace of one step")
    parser.add_argument("--trace-step", type=int, default=None, help="the step to trace; the last one by default")
    parser.add_argument("--cpu", action="store_true", help="use CPU cores for every rank")
    parser.add_argument("--one-process", action="store_true", help="no pipeline: all stages in one process, as a reference")
    return parser.parse_args()


def factor(options, step):
    """The factor of the learning rate in a step, as in transformers' schedules."""
    if step < options.warmup_steps:
        return step / options.warmup_steps
    done = (step - options.warmup_steps) / max(options.steps - options.warmup_steps, 1)
    return {"constant": 1.0, "linear": max(1.0 - done, 0.0), "cosine": 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))}[options.decay]


class Training:
    """Stages, their optimizers, and what a step does after the backwards."""

    def __init__(self, settings, options):
        self.settings, self.options, self.step_index = settings, options, 0
        self.world = World(settings, options.cpu)
        self.stages = self.world.stages()
        storage.fill(self.stages.values(), options.weights, options.seed)
        self.tied, self.pair = self.world.tied(self.stages)
        kind = OneProcess(self.stages, settings["batch"]) if options.one_process else None
        self.pipeline = kind or Pipeline(self.world, self.stages, os.path.join(HERE, "schedule.csv"))
        self.build_optimizers()
        self.clip, self.is_scaled = settings["clip-norm"], settings["precision"] == "fp16"
        self.scale, self.good_steps = 2.0**16 if self.is_scaled else 1.0, 0
        if settings["overlaps"] and self.clip is None and not self.is_scaled:
            for index, stage in self.pipeline.observed.items():
                stage.on_last_backward = self.start_early
        self.started = set()

    def build_optimizers(self):
        adam = {"lr": self.options.learning_rate, "weight_decay": self.options.weight_decay, "betas": (0.9, 0.999), "eps": 1e-8}
        both_ends = self.settings["model"]["tied"] and self.pair is None
        self.optimizers = {}
        for index, stage in self.stages.items():
            # One parameter has one optimizer: a tied head in the process of its table leaves it to the embedding's stage.
            skipped = {"lm_head.weight"} if both_ends and stage.is_last else set()
            on_host = self.settings["stages"][index]["optimizer-on-host"]
            self.optimizers[index] = StageOptimizer(stage, on_host, skipped, adam)

    def rate(self):
        return self.options.learning_rate * factor(self.options, self.step_index)

    def start_early(self, index):
        """Starts a stage's optimizer step when its gradients are complete, unless they wait for those of a tied copy."""
        if not (self.tied and (self.stages[index].is_first or self.stages[index].is_last)):
            self.optimizers[index].start(self.rate())
            self.started.add(index)

    def add_tied_gradients(self):
        """Adds the gradients of the two copies of a tied table."""
        if self.pair is None or not self.tied:
            return
        for stage in self.stages.values():
            for _, name, parameter in stage.names():
                if name in self.tied and parameter.requires_grad:
                    total = parameter.grad if self.world.nccl else parameter.grad.float().cpu()
                    dist.all_reduce(total, group=self.pair)
                    parameter.grad.copy_(total)

    def norm(self):
        """The norm of all gradients; the second copy of a tied table does not count."""
        squares = 0.0
        for index, optimizer in self.optimizers.items():
            for part in optimizer.parts:
                for name, parameter in part.named:
                    if not (self.pair is not None and name == "lm_head.weight" and name in self.tied):
                        squares += parameter.grad.float().square().sum().item()
        return math.sqrt(self.world.sum(squares)) / self.scale

    def step(self, inputs, targets):
        self.pipeline.scale = self.scale
        loss = self.pipeline.step(inputs, targets)
        self.add_tied_gradients()
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
        for index, optimizer in self.optimizers.items():
            if index not in self.started:
                optimizer.start(self.rate(), change)
        for optimizer in self.optimizers.values():
            optimizer.finish()
        self.started.clear()
        return loss

    def state(self):
        state = {f"stage{index}": {} for index in self.stages}
        for index, optimizer in self.optimizers.items():
            for part in optimizer.parts:
                state[f"stage{index}"].update(part.state())
        state["progress"] = torch.tensor([float(self.step_index), self.scale, float(self.good_steps)], dtype=torch.float64)
        return state

    def save(self, folder):
        import torch.distributed.checkpoint as dcp

        name = f"step-{self.step_index:06}"
        dcp.save(self.state(), checkpoint_id=os.path.join(folder, name))
        if self.world.rank == 0:
            with open(os.path.join(folder, "newest.tmp"), "w") as file:
                file.write(name)
            os.replace(os.path.join(folder, "newest.tmp"), os.path.join(folder, "newest"))

    def resume(self, folder):
        import torch.distributed.checkpoint as dcp

        try:
            with open(os.path.join(folder, "newest")) as file:
                name = file.read().strip()
        except OSError:
            return
        state = self.state()
        dcp.load(state, checkpoint_id=os.path.join(folder, name))
        self.step_index, self.scale, self.good_steps = int(state["progress"][0]), float(state["progress"][1]), int(state["progress"][2])
        for optimizer in self.optimizers.values():
            for part in optimizer.parts:
                part.give()

    def save_weights(self, folder):
        """One file per process, and the index of all."""
        tensors = {name: parameter for stage in self.stages.values() for _, name, parameter in stage.names()}
        for optimizer in self.optimizers.values():
            for part in optimizer.parts:
                tensors.update({name: master for (name, _), master in zip(part.named, part.masters)})
        if self.settings["model"]["tied"]:
            tensors.pop("lm_head.weight", None)
        os.makedirs(folder, exist_ok=True)
        file = f"model-{self.world.rank + 1:05}-of-{self.world.size:05}.safetensors"
        storage.write(os.path.join(folder, file), tensors)
        dist.barrier()
        if self.world.rank == 0:
            # Collectives of objects need numpy; the files of all processes say the same.
            files = sorted(name for name in os.listdir(folder) if name.endswith(f"-of-{self.world.size:05}.safetensors"))
            homes = {name: file for file in files for name in storage.Safetensors(os.path.join(folder, file)).header}
            with open(os.path.join(folder, storage.INDEX), "w") as file:
                json.dump({"metadata": {}, "weight_map": homes}, file, indent=1)


def held_bytes():
    """Bytes of the tensors that the process holds, in the host's memory and on its GPU."""
    # Garbage in cycles would count, until Python finds it.
    gc.collect()
    blocks = {}
    for found in gc.get_objects():
        if issubclass(type(found), torch.Tensor):
            for tensor in (found, found.grad if found.is_leaf else None):
                if tensor is not None and tensor.device.type == "cpu" and tensor.layout == torch.strided:
                    blocks[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return {"host": sum(blocks.values()), "device": torch.cuda.memory_allocated() if torch.cuda.is_available() else 0}


class Tracer:
    """PyTorch's profiler over one step, after a step that warms it up; one file per rank, without names of hosts and paths."""

    def __init__(self, training, folder, step):
        self.training, self.folder, self.step, self.profiler, self.times = training, folder, step, None, []
        self.warmup, self.held = min(1, step), None

    def around(self, index, run):
        from torch.profiler import ProfilerActivity, profile, record_function, schedule

        if self.folder is None or not self.step - self.warmup <= index <= self.step:
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

    def write(self, profiler):
        os.makedirs(self.folder, exist_ok=True)
        world, settings = self.training.world, self.training.settings
        path = os.path.join(self.folder, f"rank{world.rank}.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            trace = json.load(file)
        for key in ("host_name", "trace_id", "traceName", "distributedInfo"):
            trace.pop(key, None)
        trace["spipe"] = {"rank": world.rank, "device": settings["ranks"][world.rank]["device"],
                          "plan": settings["fingerprint"], "held-bytes": self.held,
                          # Of the steps without the profiler.
                          "iterations-ms": self.times[: len(self.times) - self.warmup]}
        with open(path, "w") as file:
            json.dump(trace, file)


def step(training, inputs, targets):
    """One step of all processes; the loss where the last stage is."""
    loss = training.step(inputs, targets)
    if training.world.device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()
    return loss


def say(**line):
    print(json.dumps(line), flush=True)


def main():
    options = arguments()
    with open(os.path.join(HERE, "plan.json")) as file:
        settings = json.load(file)
    if options.one_process:
        # One process on the device of the first rank, with every stage.
        settings["ranks"] = settings["ranks"][:1]
        for stage in settings["stages"]:
            stage["rank"] = 0
    training = Training(settings, options)
    batch = settings["batch"]
    tokens = storage.Tokens(options.data, batch, settings["model"]["vocabulary"], options.seed)
    if options.resume and options.checkpoint_dir:
        training.resume(options.checkpoint_dir)
    last = options.steps - 1 if options.trace_step is None else options.trace_step
    tracer = Tracer(training, options.trace, last)
    times = tracer.times
    while training.step_index < options.steps:
        inputs, targets = tokens.step(training.step_index)
        dist.barrier()
        start = time.perf_counter()
        loss = tracer.around(training.step_index, lambda: step(training, inputs, targets))
        times.append(1e3 * (time.perf_counter() - start))
        if loss is not None:
            rate = batch["sequences"] * batch["seq-len"] / times[-1] * 1e3
            say(event="step", step=training.step_index, loss=loss, **{"duration-ms": times[-1], "tokens-per-second": rate})
        training.step_index += 1
        if options.checkpoint_dir and (training.step_index % options.checkpoint_every == 0 or training.step_index == options.steps):
            training.save(options.checkpoint_dir)
    if options.save_weights:
        training.save_weights(options.save_weights)
    if training.world.device.type == "cuda":
        say(event="end", rank=training.world.rank, **{"peak-bytes": torch.cuda.max_memory_allocated()})


if __name__ == "__main__":
    try:
        main()
    except storage.Fault as fault:
        sys.exit(f"error: {fault}")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
