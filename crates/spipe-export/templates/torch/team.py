"""Tensor and sequence parallelism: which part of each module a member of a team has, by the name of the module.

Heads, inner channels and the vocabulary are divided among the members, as in Megatron (Shoeybi et al. 2019, arXiv 1909.08053). Between the
products all members have all tokens or, with `sequence`, an equal part of the tokens each (Korthikanti et al. 2022, arXiv 2205.05198).
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from sources import IGNORED

TOKENS, HEADS = 1, 1


def styles(model: dict[str, Any], index: int, sequence: bool) -> dict[str, ParallelStyle]:
    """The parallel styles of a layer's modules, by name. Layers are those of model.py: embedding, blocks and head."""
    between = Shard(TOKENS) if sequence else Replicate()
    if index == 0:
        return {"embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between)}
    if index > model["layers"]:
        norm = {"norm": SequenceParallel()} if sequence else {}
        # Logits stay divided by the vocabulary: see loss_sum.
        return {**norm, "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1))}
    found: dict[str, ParallelStyle] = {}
    products = {"self_attn": (("q_proj", "k_proj", "v_proj"), "o_proj"), "mlp": (("gate_proj", "up_proj"), "down_proj")}
    for name, (first, last) in products.items():
        # One gathering of the input serves all products.
        found[name] = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
        found.update({f"{name}.{inner}": ColwiseParallel() for inner in first})
        found[f"{name}.{last}"] = RowwiseParallel(output_layouts=between)
    if model["qk-norm"]:
        # Their weights are common to all heads, of which each member has some.
        found.update({f"self_attn.{name}": SequenceParallel(sequence_dim=HEADS, use_local_output=True) for name in ("q_norm", "k_norm")})
    if sequence:
        found.update({name: SequenceParallel() for name in ("input_layernorm", "post_attention_layernorm")})
    return found


def divide(layers: nn.ModuleList, first: int, model: dict[str, Any], team: DeviceMesh, sequence: bool) -> None:
    """Divides layers whose parameters have shapes only; each divided parameter takes its part when it gets numbers."""
    for index, module in enumerate(layers, start=first):
        parallelize_module(module, team, styles(model, index, sequence), src_data_rank=None)


def give_memory(layers: nn.ModuleList, device: torch.device, dtype: torch.dtype) -> None:
    """Gives memory to the parts of this process."""
    for module in layers.modules():
        for key, parameter in module._parameters.items():
            if isinstance(parameter, DTensor):
                part = torch.empty(parameter.to_local().shape, dtype=dtype, device=device)
                whole = DTensor.from_local(part, parameter.device_mesh, parameter.placements, run_check=False)
                given = nn.Parameter(whole, requires_grad=parameter.requires_grad)
                # parameters.py hands such parameters all numbers.
                setattr(given, "receive", partial(receive, given))  # noqa: B010
                module.register_parameter(key, given)


def receive(parameter: DTensor, numbers: torch.Tensor, _device: torch.device, _dtype: torch.dtype) -> None:
    """Takes this process's part of all numbers of a parameter."""
    local(parameter).copy_(piece(parameter, numbers))


@torch.no_grad()
def local(parameter: torch.Tensor) -> torch.Tensor:
    """The part of this process, in place."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()


@torch.no_grad()
def move(parameter: nn.Parameter, place: torch.Tensor) -> None:
    """Makes the part of this process a view of other memory, which has its numbers."""
    part = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
    part.data = place


def is_divided(parameter: torch.Tensor) -> bool:
    """Whether the members of the team have different parts of a parameter."""
    return isinstance(parameter, DTensor) and parameter.placements[0].is_shard()


def piece(parameter: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor that is divided as the parameter is."""
    if not isinstance(parameter, DTensor):
        return numbers
    placement, mesh = parameter.placements[0], parameter.device_mesh
    return numbers.chunk(mesh.size(), placement.dim)[mesh.get_local_rank()] if isinstance(placement, Shard) else numbers


@torch.no_grad()
def whole(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """All of a tensor of which each member has the part of a parameter; all members of the team ask for it."""
    if not isinstance(parameter, DTensor):
        return part
    return DTensor.from_local(part.contiguous(), parameter.device_mesh, parameter.placements, run_check=False).full_tensor()


def loss_sum(team: DeviceMesh, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of all targets that count, from logits divided by the vocabulary; inside `loss_parallel`."""
    divided = DTensor.from_local(logits.flatten(0, 1).float(), team, [Shard(1)], run_check=False)
    wanted = DTensor.from_local(targets.to(logits.device).flatten(), team, [Replicate()], run_check=False)
    found = F.cross_entropy(divided, wanted, ignore_index=IGNORED, reduction="sum")
    assert isinstance(found, DTensor)
    return found.to_local()
