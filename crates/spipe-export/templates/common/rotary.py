"""Rotary positions, with the scalings that transformers has for longer texts."""

import functools
import math
from typing import Any

import torch

# Width, base, and the parameters of the scaling.
Rotary = tuple[int, float, tuple[tuple[str, Any], ...]]


def yarn_ramp(scaling: dict[str, Any], base: float, width: int) -> torch.Tensor:
    """For each pair of channels, from 0 where its frequency stays to 1 where it is divided by the factor."""
    ends = [width * math.log(scaling["original-places"] / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (scaling["beta-fast"], scaling["beta-slow"])]
    low, high = (math.floor(ends[0]), math.ceil(ends[1])) if scaling["truncate"] else ends
    low, high = max(low, 0), min(high, width - 1)
    return ((torch.arange(width // 2) - low) / (high - low if high != low else 0.001)).clamp(0, 1)


def frequencies(width: int, base: float, scaling: dict[str, Any], tokens: int) -> tuple[torch.Tensor, float]:
    """Radians per position of each pair of channels, and the factor of cosines and sines, as transformers scales them."""
    kind, factor = scaling.get("type"), scaling.get("factor", 1.0)
    if kind == "dynamic":
        places = scaling["original-places"]
        base *= (factor * max(tokens, places) / places - (factor - 1)) ** (width / (width - 2))
    plain = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        low, high = scaling["low-frequency-factor"], scaling["high-frequency-factor"]
        turns = scaling["original-places"] * plain / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return plain * (kept + (1 - kept) / factor), 1.0
    if kind == "yarn":
        divided = yarn_ramp(scaling, base, width)
        return plain * (1 - divided + divided / factor), scaling["attention-factor"]
    return plain, 1.0


@functools.cache
def turns(rotary: Rotary, tokens: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of tokens x width, in the halves' order of Llama; made once for each device."""
    width, base, scaling = rotary
    rates, factor = frequencies(width, base, dict(scaling), tokens)
    angles = torch.outer(torch.arange(tokens, dtype=torch.float32), rates)
    angles = torch.cat((angles, angles), dim=-1)
    return (factor * angles.cos()).to(device, dtype), (factor * angles.sin()).to(device, dtype)


def rotate(x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Rotary positions for x of shape batch x heads x tokens x width."""
    cosines, sines = turns(rotary, x.shape[-2], x.dtype, x.device)
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines
