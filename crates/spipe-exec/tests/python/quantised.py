"""Matrices in the 4-bit and 8-bit formats of bitsandbytes on the CPU, for `src/quantised`.

    pip install torch bitsandbytes safetensors
    python quantised.py ../fixtures/quantised.safetensors

Written with torch 2.15.0 and bitsandbytes 0.50.2 on an x86 processor with one thread. Weights are outputs x inputs, as PyTorch has
them, and follow from integers. `nf4` is `Params4bit`, `double` the same with compressed statistics, `int8` `Int8Params`, which
rounds weights to 16 bits first.
"""

import sys

import bitsandbytes
import safetensors.torch
import torch

# Blocks of 64 and 128: several constants of 256 blocks, rows that are no multiple of a block, an odd count, a last block that is
# not full, and blocks and rows of zeros.
CASES = {
    "large": ((352, 256), 64),
    "narrow": ((40, 36), 64),
    "odd": ((7, 61), 64),
    "wide": ((24, 130), 128),
}


def weights(name):
    (rows, columns), _ = CASES[name]
    index = torch.arange(rows * columns, dtype=torch.int64)
    fraction = ((index * 7919 + (index // 97) * 104729) % 4093 - 2046).float() / 2048
    scaled = fraction * torch.exp2(-((index // 113) % 7).float())
    scaled[(index // 200) % 5 == 3] = 0.0
    return scaled.reshape(rows, columns)


def main(path):
    tensors = {}
    for name, (_, block) in CASES.items():
        tensor = weights(name)
        for double in (False, True):
            codes, state = bitsandbytes.functional.quantize_4bit(
                tensor, blocksize=block, compress_statistics=double, quant_type="nf4"
            )
            key = f"{name}.double" if double else f"{name}.nf4"
            known = tensors.setdefault(f"{name}.codes", codes.flatten())
            assert torch.equal(known, codes.flatten()), "compressed statistics change no code"
            tensors[f"{key}.constants"] = state.absmax
            if double:
                tensors[f"{key}.constants-of-constants"] = state.state2.absmax
                tensors[f"{key}.offset"] = state.offset.reshape(1)
            numbers = bitsandbytes.functional.dequantize_4bit(codes, state)
            # A checksum of the numbers: the sum of their bits.
            tensors[f"{key}.bits"] = numbers.flatten().view(torch.int32).to(torch.int64).sum().reshape(1)
        parameter = bitsandbytes.nn.Int8Params(tensor.clone(), requires_grad=False)
        parameter = parameter._quantize("cpu")
        tensors[f"{name}.int8.codes"] = parameter.CB.flatten().view(torch.uint8)
        tensors[f"{name}.int8.constants"] = parameter.SCB
        numbers = bitsandbytes.functional.int8_vectorwise_dequant(parameter.CB, parameter.SCB)
        tensors[f"{name}.int8.bits"] = numbers.float().flatten().view(torch.int32).to(torch.int64).sum().reshape(1)
    # Sums of f32 in the order of torch, which the mean of the constants takes.
    for count in (1, 7, 8, 65, 1000, 4097, 30011):
        index = torch.arange(count, dtype=torch.int64)
        tensors[f"mean.{count}"] = ((index * 7919 % 4093).float() / 3.0).mean().reshape(1)
    safetensors.torch.save_file(tensors, path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
