"""The layers of the model in plain PyTorch, and the stages made of them.

Parameters have the names and shapes that transformers gives them, so that weights are read as they are. Layer 0 is the
embedding, layers 1 to n are the blocks, and the last layer is the head, which returns logits.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from rotary import rotate


class RMSNorm(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * wide.to(x.dtype)


class Conv1D(nn.Module):
    """A linear layer whose weight is inputs x outputs, as in GPT-2."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.t(), self.bias)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None) -> torch.Tensor:
    """Causal attention; with a window, each token sees itself and the window - 1 tokens before it."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    tokens = query.shape[-2]
    if window is None or window >= tokens:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)
    place = torch.arange(tokens, device=query.device)
    behind = place[:, None] - place[None, :]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=(behind >= 0) & (behind < window))


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.view(*x.shape[:2], count, -1).transpose(1, 2)


class LlamaAttention(nn.Module):
    def __init__(self, model: dict[str, Any], window: int | None) -> None:
        super().__init__()
        hidden, width = model["hidden"], model["head-dim"]
        queries, keys = model["heads"] * width, model["kv-heads"] * width
        self.q_proj = nn.Linear(hidden, queries, bias=model["qkv-bias"])
        self.k_proj = nn.Linear(hidden, keys, bias=model["qkv-bias"])
        self.v_proj = nn.Linear(hidden, keys, bias=model["qkv-bias"])
        self.o_proj = nn.Linear(queries, hidden, bias=model["output-bias"])
        if model["qk-norm"]:
            self.q_norm = RMSNorm(width, model["norm-epsilon"])
            self.k_norm = RMSNorm(width, model["norm-epsilon"])
        self.counts = (model["heads"], model["kv-heads"])
        self.qk_norm, self.window = model["qk-norm"], window
        self.rotary = (width, model["rotary-base"], tuple((model["rotary-scaling"] or {}).items()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = heads(self.q_proj(x), self.counts[0])
        key, value = (heads(projection(x), self.counts[1]) for projection in (self.k_proj, self.v_proj))
        if self.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        mixed = attend(rotate(query, self.rotary), rotate(key, self.rotary), value, self.window)
        y: torch.Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return y


class LlamaMlp(nn.Module):
    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        hidden, inner, bias = model["hidden"], model["intermediate"], model["mlp-bias"]
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class LlamaBlock(nn.Module):
    def __init__(self, model: dict[str, Any], index: int) -> None:
        super().__init__()
        window = model["sliding-window"] if index >= model["full-attention-layers"] else None
        self.input_layernorm = RMSNorm(model["hidden"], model["norm-epsilon"])
        self.self_attn = LlamaAttention(model, window)
        self.post_attention_layernorm = RMSNorm(model["hidden"], model["norm-epsilon"])
        self.mlp = LlamaMlp(model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        y: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class LlamaEmbedding(nn.Module):
    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(model["vocabulary"], model["hidden"])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.embed_tokens(tokens)
        return y


class LlamaHead(nn.Module):
    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        self.norm = RMSNorm(model["hidden"], model["norm-epsilon"])
        self.lm_head = nn.Linear(model["hidden"], model["vocabulary"], bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.lm_head(self.norm(x))
        return y


class Gpt2Attention(nn.Module):
    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        self.c_attn = Conv1D(model["hidden"], 3 * model["hidden"])
        self.c_proj = Conv1D(model["hidden"], model["hidden"])
        self.count = model["heads"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (heads(part, self.count) for part in self.c_attn(x).chunk(3, dim=-1))
        y: torch.Tensor = self.c_proj(attend(query, key, value, None).transpose(1, 2).flatten(2))
        return y


class Gpt2Mlp(nn.Module):
    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        self.c_fc = Conv1D(model["hidden"], model["intermediate"])
        self.c_proj = Conv1D(model["intermediate"], model["hidden"])
        self.approximate = "tanh" if model["mlp"] == "gelu-tanh" else "none"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate=self.approximate))
        return y


class Gpt2Block(nn.Module):
    def __init__(self, model: dict[str, Any], _index: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(model["hidden"], model["norm-epsilon"])
        self.attn = Gpt2Attention(model)
        self.ln_2 = nn.LayerNorm(model["hidden"], model["norm-epsilon"])
        self.mlp = Gpt2Mlp(model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        y: torch.Tensor = x + self.mlp(self.ln_2(x))
        return y


class Gpt2Embedding(nn.Module):
    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        self.wte = nn.Embedding(model["vocabulary"], model["hidden"])
        self.wpe = nn.Embedding(model["places"], model["hidden"])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[-1], device=tokens.device))
        return y


class Gpt2Head(nn.Module):
    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        self.ln_f = nn.LayerNorm(model["hidden"], model["norm-epsilon"])
        self.lm_head = nn.Linear(model["hidden"], model["vocabulary"], bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.lm_head(self.ln_f(x))
        return y


# Of each family: embedding, block, head, and the prefix of their names.
FAMILIES = {
    "llama": (LlamaEmbedding, LlamaBlock, LlamaHead, "model.", "model.layers."),
    "gpt2": (Gpt2Embedding, Gpt2Block, Gpt2Head, "transformer.", "transformer.h."),
}
# With a tied head, the name of the table that it projects with.
TABLES = {"llama": "model.embed_tokens.weight", "gpt2": "transformer.wte.weight"}
HEAD = "lm_head.weight"


def layer(model: dict[str, Any], index: int) -> nn.Module:
    embedding, block, head, _, _ = FAMILIES[model["family"]]
    if index == 0:
        return embedding(model)
    return block(model, index - 1) if index <= model["layers"] else head(model)


class Stage(nn.Module):
    """Consecutive layers: the first `recomputed` of them are computed again in the backward.

    The stage computes on `device` in `dtype`. Its input arrives, and its output leaves, on the device and in the type of
    the boundary: `.to` copies them, and their gradients on the way back.
    """

    def __init__(self, model: dict[str, Any], stage: dict[str, Any], device: torch.device, dtype: torch.dtype,
                 boundary: tuple[torch.device, torch.dtype]) -> None:
        super().__init__()
        self.model = model
        self.first: int = stage["first-layer"]
        self.last: int = stage["last-layer"]
        self.recomputed, self.offloads = stage["recomputed"], stage["offloads"]
        self.device, self.dtype, self.boundary = device, dtype, boundary
        with torch.device(device):
            self.layers = nn.ModuleList(layer(model, index) for index in range(self.first, self.last + 1)).to(dtype)
        for index in stage["frozen"]:
            self.layers[index - self.first].requires_grad_(False)

    @property
    def is_first(self) -> bool:
        return self.first == 0

    @property
    def is_last(self) -> bool:
        last: int = self.model["layers"] + 1
        return self.last == last

    def names(self) -> Iterator[tuple[int, str, nn.Parameter]]:
        """The parameters by transformers' names, in the order of the layers."""
        _, _, _, prefix, blocks = FAMILIES[self.model["family"]]
        for index, module in enumerate(self.layers, start=self.first):
            for name, parameter in module.named_parameters():
                block = 0 < index <= self.model["layers"]
                whole = f"{blocks}{index - 1}.{name}" if block else name if name == HEAD else prefix + name
                yield index, whole, parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.device) if self.is_first else x.to(self.device, self.dtype)
        for index, module in enumerate(self.layers):
            if index < self.recomputed and torch.is_grad_enabled():
                x = checkpoint(module, x, use_reentrant=False)
            elif self.offloads:
                with torch.autograd.graph.save_on_cpu(pin_memory=self.device.type != "cpu"):
                    x = module(x)
            else:
                x = module(x)
        device, dtype = self.boundary
        return x.to(device) if self.is_last else x.to(device, dtype)


def tie(stages: Iterable[Stage]) -> None:
    """Makes a tied head use the table of the embedding in the same process, if both are there."""
    first = next((stage for stage in stages if stage.is_first), None)
    last = next((stage for stage in stages if stage.is_last), None)
    if first is not None and last is not None and first.model["tied"]:
        tables = {name: parameter for _, name, parameter in first.names()}
        last.layers[-1].get_submodule("lm_head").register_parameter("weight", tables[TABLES[first.model["family"]]])
