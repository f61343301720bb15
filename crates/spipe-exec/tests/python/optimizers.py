"""Twenty steps of each optimizer by its own library, for `tests/optimizers`.

    pip install torch lion-pytorch bitsandbytes safetensors numpy
    python optimizers.py ../fixtures/optimizers.safetensors

Written with torch 2.15.0, lion-pytorch 0.2.5 and bitsandbytes 0.50.2, whose AdamW8bit ran on the CPU. Parameters and gradients
follow from integers, so that the test makes the same ones without reading them.
"""

import sys

import bitsandbytes
import lion_pytorch
import numpy
import safetensors.torch
import torch

STEPS = 20
# A matrix whose last block of 256 is not full, one that is wider than tall, and a vector too short for 8 bits.
SHAPES = {"tall": (70, 61), "wide": (40, 64), "vector": (96,)}
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 0.1


def numbers(count, seed):
    """Multiples of 2^-k, exact in f32: from -1/2 to 1/2 in the first row of 61, smaller by eight in each of the next four."""
    index = numpy.arange(count, dtype=numpy.int64)
    fraction = ((index * 7919 + seed * 104729) % 2048 - 1024).astype(numpy.float32) / numpy.float32(2048)
    return torch.from_numpy(fraction * numpy.exp2(-3.0 * ((index // 61) % 5)).astype(numpy.float32))


def optimizers():
    settings = {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}
    return {
        "sgd": lambda parameters: torch.optim.SGD(parameters, **settings),
        "lion": lambda parameters: lion_pytorch.Lion(parameters, betas=(0.9, 0.99), **settings),
        "adamw": lambda parameters: torch.optim.AdamW(parameters, **settings),
        "adafactor": lambda parameters: torch.optim.Adafactor(parameters, **settings),
        "adamw-8bit": lambda parameters: bitsandbytes.optim.AdamW8bit(parameters, **settings),
    }


def trained(make):
    parameters = {
        name: torch.nn.Parameter(numbers(int(numpy.prod(shape)), 1000 + place).reshape(shape))
        for place, (name, shape) in enumerate(SHAPES.items())
    }
    optimizer = make(list(parameters.values()))
    for step in range(STEPS):
        for place, parameter in enumerate(parameters.values()):
            parameter.grad = numbers(parameter.numel(), 10 * step + place).reshape(parameter.shape)
        optimizer.step()
    return parameters, optimizer


def main(path):
    tensors = {}
    for name, make in optimizers().items():
        parameters, optimizer = trained(make)
        for tensor, parameter in parameters.items():
            tensors[f"{name}.{tensor}"] = parameter.detach().clone()
        if name == "adamw-8bit":
            state = optimizer.state[parameters["tall"]]
            for buffer in ("state1", "state2", "absmax1", "absmax2"):
                tensors[f"{name}.{buffer}"] = state[buffer].clone()
    safetensors.torch.save_file(tensors, path)


if __name__ == "__main__":
    main(sys.argv[1])
