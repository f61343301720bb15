"""Trains the model of plan.json with DeepSpeed, as ds_config.json says."""

import argparse
import json
import os
import sys
import time

import deepspeed
import torch
import torch.nn.functional as F
from torch import nn

import parameters
import storage
from model import Stage, tie
from tokens import Tokens

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def arguments():
    default = os.path.join(HERE, "tokens.safetensors")
    weights = os.path.join(HERE, "weights")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=default if os.path.exists(default) else None, required=not os.path.exists(default),
                        help="a text, read byte by byte, or a safetensors file with the tokens of each step")
    parser.add_argument("--weights", default=weights if os.path.exists(weights) else None,
                        help="folder or file of safetensors in transformers' layout; random weights without")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-dir", help="folder for DeepSpeed's checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--local_rank", type=int, default=0, help="set by DeepSpeed's launcher")
    return parser.parse_args()


class Model(nn.Module):
    """The whole model with its loss."""

    def __init__(self, settings, device, dtype):
        super().__init__()
        home = (device, dtype)
        self.stages = nn.ModuleList(Stage(settings["model"], stage, device, dtype, home) for stage in settings["stages"])
        tie(self.stages)

    def forward(self, inputs, targets):
        x = inputs
        for stage in self.stages:
            x = stage(x)
        return F.cross_entropy(x.flatten(0, 1).float(), targets.flatten())


def main():
    options = arguments()
    with open(os.path.join(HERE, "plan.json")) as file:
        settings = json.load(file)
    with open(os.path.join(HERE, "ds_config.json")) as file:
        config = json.load(file)
    deepspeed.init_distributed()
    rank, size = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    batch, rounds = settings["batch"], config["gradient_accumulation_steps"]
    if rounds * size != batch["microbatches"]:
        raise storage.Fault(f"the plan has {settings['ranks']} ranks, {size} processes were started: see README.md")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", options.local_rank))) if torch.cuda.is_available() else torch.device("cpu")
    model = Model(settings, device if config["zero_optimization"]["stage"] < 3 else torch.device("cpu"), TYPES[settings["precision"]])
    parameters.fill(model.stages, options.weights, options.seed)
    for stage in model.stages:
        stage.device, stage.boundary = device, (device, TYPES[settings["precision"]])
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    first = 0
    if options.resume and options.checkpoint_dir:
        _, state = engine.load_checkpoint(options.checkpoint_dir)
        first = (state or {}).get("step", 0)
    tokens = Tokens(options.data, batch, settings["model"]["vocabulary"], options.seed)
    for index in range(first, options.steps):
        start, total = time.perf_counter(), torch.zeros((), dtype=torch.float64, device=device)
        parts = [tensor.chunk(batch["microbatches"])[rank::size] for tensor in tokens.step(index)]
        for x, y in zip(*parts):
            loss = engine(x.to(device), y.to(device))
            engine.backward(loss)
            engine.step()
            total += loss.detach().double() / rounds
        deepspeed.comm.all_reduce(total)
        took = 1e3 * (time.perf_counter() - start)
        if rank == 0:
            rate = batch["sequences"] * batch["seq-len"] / took * 1e3
            line = {"event": "step", "step": index, "loss": total.item() / size, "duration-ms": took, "tokens-per-second": rate}
            print(json.dumps(line), flush=True)
    if options.checkpoint_dir:
        engine.save_checkpoint(options.checkpoint_dir, client_state={"step": options.steps})


if __name__ == "__main__":
    try:
        main()
    except storage.Fault as fault:
        sys.exit(f"error: {fault}")
