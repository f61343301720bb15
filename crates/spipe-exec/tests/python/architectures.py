"""Losses and gradients of small decoders, as `transformers` computes them.

Every number of every tensor follows from the tensor's name, so that the table holds no weights.

    pip install torch transformers
    python architectures.py ../fixtures/architectures.json
"""

import json
import math
import sys

import torch
import transformers

from filling import fill

# The largest magnitude of filled numbers.
SCALE = 0.3

SEQUENCES, SEQ_LEN = 2, 12
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
MODELS = {
    "gemma": {"head_dim": 16},
    "gemma2": {
        "head_dim": 16,
        "sliding_window": 5,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 1.5,
    },
    "gemma3_text": {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24, "layer_types": ["full_attention"] * 3},
    "llama": {},
    "olmo2": {},
    "phi": {"hidden_act": "gelu_new", "partial_rotary_factor": 0.5},
    "starcoder2": {"sliding_window": 5, "tie_word_embeddings": False},
}
# Scaled rotary positions; sequences are longer than the original places of `dynamic`.
SCALINGS = [
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.5}, "max_position_embeddings": 5}),
    ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8, "beta_fast": 2}}),
    ("phi", {**MODELS["phi"], "rope_scaling": {"type": "linear", "factor": 2.0}}),
    (
        "llama",
        {
            "rope_theta": 500.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 0.5,
                "high_freq_factor": 2.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
]


def row(kind, more):
    config = {**SIZES, **more}
    # The class completes the tables that it is given.
    made = transformers.AutoConfig.for_model(kind, **json.loads(json.dumps(config)))
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager").float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(fill(name, parameter, SCALE))
    # Token 0 pads, and PyTorch gives a padding row no gradient.
    tokens = [1 + (7 * i * i + 3 * i) % (SIZES["vocab_size"] - 1) for i in range(SEQUENCES * (SEQ_LEN + 1))]
    tokens = torch.tensor(tokens)
    tokens = tokens.reshape(SEQUENCES, SEQ_LEN + 1)
    logits = model(tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    norms = {name: parameter.grad.norm().item() for name, parameter in model.named_parameters()}
    assert math.isfinite(loss.item())
    return {"config": {"model_type": kind, **config}, "loss": loss.item(), "gradients": norms}


def main():
    transformers.logging.set_verbosity_error()
    rows = [row(kind, more) for kind, more in [*MODELS.items(), *SCALINGS]]
    versions = {module.__name__: module.__version__ for module in (torch, transformers)}
    with open(sys.argv[1], "w") as file:
        lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in rows)
        file.write(f'{{"versions":{json.dumps(versions)},"models":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
