"""The language models of spipe's model files in PyTorch, as plain as its users would write them."""

import tomllib

import torch
import torch.nn.functional as F
from torch import nn

DEFAULTS = {
    "norm": "rms-norm",
    "norm-epsilon": 1e-5,
    "mlp": "swiglu",
    "positions": "rotary",
    "rotary-base": 10_000.0,
    "rotary-fraction": 1.0,
    "tied": False,
    "qkv-bias": False,
    "output-bias": False,
    "mlp-bias": False,
}
SIZES = ["vocabulary", "seq-len", "hidden", "layers", "heads", "intermediate"]
# What says nothing about the arithmetic.
ABOUT = ["format-version", "kind", "name", "source"]


def read(text):
    """The keys of a model file, with what is left out filled in. A ValueError says what is not built here."""
    found = tomllib.loads(text)
    if found.get("kind") != "transformer":
        raise ValueError(f"a model of kind {found.get('kind')!r} is not built here")
    model = DEFAULTS | found
    model.setdefault("kv-heads", model["heads"])
    model.setdefault("head-dim", model["hidden"] // model["heads"])
    model.setdefault("places", model["seq-len"])
    known = {*DEFAULTS, *SIZES, *ABOUT, "kv-heads", "head-dim", "places"}
    others = sorted(set(found) - known)
    built = model["positions"] in ("rotary", "learned") and model["rotary-fraction"] == 1.0
    if others or not built:
        raise ValueError(f"not built here: {', '.join(others) or 'these positions'}")
    return model


def norm(model):
    kind = nn.LayerNorm if model["norm"] == "layer-norm" else nn.RMSNorm
    return kind(model["hidden"], model["norm-epsilon"])


def angles(model, tokens):
    """Cosines and sines of rotary positions, tokens × width of a head."""
    width = model["head-dim"]
    speeds = model["rotary-base"] ** (-2.0 * (torch.arange(width, dtype=torch.float64) % (width // 2)) / width)
    turns = torch.outer(torch.arange(tokens, dtype=torch.float64), speeds)
    return turns.cos().float(), turns.sin().float()


def rotate(heads, cosines, sines):
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


class Block(nn.Module):
    def __init__(self, model):
        super().__init__()
        hidden, inner = model["hidden"], model["intermediate"]
        self.heads, self.kv_heads, self.width = model["heads"], model["kv-heads"], model["head-dim"]
        self.attention_norm, self.mlp_norm = norm(model), norm(model)
        linear = lambda bias, rows, columns: nn.Linear(rows, columns, bias=model[bias])
        self.query = linear("qkv-bias", hidden, self.heads * self.width)
        self.key, self.value = (linear("qkv-bias", hidden, self.kv_heads * self.width) for _ in range(2))
        self.output = linear("output-bias", self.heads * self.width, hidden)
        self.gate = linear("mlp-bias", hidden, inner) if model["mlp"] == "swiglu" else None
        self.approximate = "tanh" if model["mlp"] == "gelu-tanh" else "none"
        self.up, self.down = linear("mlp-bias", hidden, inner), linear("mlp-bias", inner, hidden)

    def forward(self, x, turns):
        inner = self.attention_norm(x)
        heads = lambda y, count: y.view(*y.shape[:2], count, self.width).transpose(1, 2)
        query, key = heads(self.query(inner), self.heads), heads(self.key(inner), self.kv_heads)
        if turns is not None:
            query, key = rotate(query, *turns), rotate(key, *turns)
        value = heads(self.value(inner), self.kv_heads)
        grouped = self.kv_heads != self.heads
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        inner = self.mlp_norm(x)
        if self.gate is None:
            fed = F.gelu(self.up(inner), approximate=self.approximate)
        else:
            fed = F.silu(self.gate(inner)) * self.up(inner)
        return x + self.down(fed)


class Transformer(nn.Module):
    """Takes token numbers, sequences × tokens, and returns logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.embedding = nn.Embedding(model["vocabulary"], model["hidden"])
        self.places = nn.Embedding(model["places"], model["hidden"]) if model["positions"] == "learned" else None
        self.blocks = nn.ModuleList(Block(model) for _ in range(model["layers"]))
        self.norm = norm(model)
        self.head = nn.Linear(model["hidden"], model["vocabulary"], bias=False)
        for matrix in self.parameters():
            if matrix.dim() == 2:
                nn.init.normal_(matrix, std=0.02)
        if model["tied"]:
            self.head.weight = self.embedding.weight
        self.turns = {}

    def forward(self, tokens):
        x, count = self.embedding(tokens), tokens.shape[1]
        if self.places is not None:
            x = x + self.places(torch.arange(count, device=x.device))
        for block in self.blocks:
            x = block(x, self.rotary(count, x))
        return self.head(self.norm(x))

    def rotary(self, count, x):
        if self.places is not None:
            return None
        key = (count, x.device, x.dtype)
        if key not in self.turns:
            self.turns[key] = tuple(part.to(x) for part in angles(self.model, count))
        return self.turns[key]


class Text:
    """Sequences from random places of a text that is read byte by byte."""

    def __init__(self, text, tokens, seed=0):
        self.text = torch.tensor(list(text), dtype=torch.long)
        self.tokens = tokens
        self.random = torch.Generator().manual_seed(seed)

    def batch(self, sequences, device="cpu"):
        """Inputs and, for each token, the one that follows it."""
        starts = torch.randint(len(self.text) - self.tokens - 1, (sequences,), generator=self.random)
        pieces = torch.stack([self.text[at : at + self.tokens + 1] for at in starts.tolist()]).to(device)
        return pieces[:, :-1], pieces[:, 1:]


def loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
