"""The layers of the model in plain PyTorch.

Parameters have the names and shapes that transformers gives them, so that weights are read as they are. Layer 0 is the
embedding, layers 1 to n are the blocks, and the last layer is the head, which returns logits.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

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


def heads(x: torch.Tensor, width: int) -> torch.Tensor:
    """Heads of this width: all of them, or those of a member of a team."""
    return x.view(*x.shape[:2], -1, width).transpose(1, 2)


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
        self.width, self.qk_norm, self.window = width, model["qk-norm"], window
        self.rotary = (width, model["rotary-base"], tuple((model["rotary-scaling"] or {}).items()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (heads(projection(x), self.width) for projection in (self.q_proj, self.k_proj, self.v_proj))
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
        self.width = model["head-dim"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (heads(part, self.width) for part in self.c_attn(x).chunk(3, dim=-1))
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
# The names of the embedding's tables.
TABLES = {"llama": "model.embed_tokens.weight", "gpt2": "transformer.wte.weight"}
HEAD = "lm_head.weight"
# What to do where weights have other names.
NAMES = "they must be those of the plan's model, as transformers writes them"


def layer(model: dict[str, Any], index: int) -> nn.Module:
    embedding, block, head, _, _ = FAMILIES[model["family"]]
    if index == 0:
        return embedding(model)
    return block(model, index - 1) if index <= model["layers"] else head(model)


def layers(model: dict[str, Any], indices: Iterable[int]) -> list[nn.Module]:
    """These layers of the model, whose parameters have no memory yet."""
    with torch.device("meta"):
        return [layer(model, index) for index in indices]


def name(model: dict[str, Any], index: int, inner: str) -> str:
    """The name that transformers gives a parameter of a layer."""
    _, _, _, prefix, blocks = FAMILIES[model["family"]]
    if 0 < index <= model["layers"]:
        return f"{blocks}{index - 1}.{inner}"
    return inner if inner == HEAD else prefix + inner


def table(model: dict[str, Any]) -> str:
    """The name of the embedding's table, with which a tied head projects."""
    return TABLES[model["family"]]


def first_numbers(name: str, shape: torch.Size) -> tuple[float, float]:
    """Mean and spread of a parameter's first numbers, as transformers has them for these families: norms are one, biases zero."""
    return (0.0 if name.endswith("bias") else 1.0, 0.0) if name.endswith("bias") or len(shape) == 1 else (0.0, 0.02)


def is_added(_name: str) -> bool:
    """Whether a parameter is in no file of weights, and begins with its first numbers."""
    return False
