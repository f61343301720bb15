"""Numbers that tests and scripts make alike without reading them."""

import torch


def fill(name, tensor, scale):
    """`scale` (2 f - 1) for the i-th number, where f is the fraction of 43758.5453 sin(h + 12.9898 i), and h
    follows from the name; one more for norms.
    """
    start = 0
    for letter in name.encode():
        start = (31 * start + letter) % 1_000_003
    indices = torch.arange(tensor.numel(), dtype=torch.float64)
    fractions = torch.remainder(43758.5453 * torch.sin(start + 12.9898 * indices), 1.0)
    numbers = scale * (2.0 * fractions - 1.0)
    if name.endswith("norm.weight"):
        numbers += 1.0
    return numbers.float().reshape(tensor.shape)
