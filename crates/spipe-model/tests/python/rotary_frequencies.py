"""Frequencies of scaled rotary positions, as `transformers` computes them.

Each row of the table is a configuration, the length of a sequence, and the frequencies with the factor of cosines and sines that
`ROPE_INIT_FUNCTIONS` gives.

    pip install torch transformers
    python rotary_frequencies.py ../fixtures/rotary_frequencies.json
"""

import json
import sys

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SIZES = {
    "vocab_size": 100,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
# Type of model, its configuration, the length of a sequence. Both spellings of the tables occur.
ROWS = [
    ("llama", {"rope_theta": 500000.0, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 512}}, 64),
    ("llama", {"rope_theta": 10000.0, "rope_scaling": LLAMA3}, 64),
    ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 20000.0, "original_max_position_embeddings": 256}}, 64),
    ("llama", {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}, 64),
    ("llama", {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, 4096),
    ("llama", {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, 10000),
    ("qwen2", {"rope_theta": 1000000.0, "rope_scaling": YARN}, 64),
    ("qwen2", {"rope_theta": 10000.0, "rope_scaling": {**YARN, "beta_fast": 16, "beta_slow": 2, "attention_factor": 0.7}}, 64),
    ("qwen3", {"head_dim": 80, "rope_parameters": {**YARN, "rope_theta": 5000.0, "mscale": 0.8, "mscale_all_dim": 0.5}}, 64),
    ("llama", {"rope_theta": 10000.0, "rope_scaling": {**YARN, "truncate": False, "original_max_position_embeddings": 64}}, 64),
]


def row(kind, more, seq_len):
    config = {**SIZES, "num_key_value_heads": 2, **more}
    made = transformers.AutoConfig.for_model(kind, **json.loads(json.dumps(config)))
    name = made.rope_parameters["rope_type"]
    frequencies, factor = ROPE_INIT_FUNCTIONS[name](made, torch.device("cpu"), seq_len=seq_len)
    return {
        "config": {"model_type": kind, **config},
        "type": name,
        "seq-len": seq_len,
        "frequencies": frequencies.tolist(),
        "attention-factor": factor,
    }


def main():
    transformers.logging.set_verbosity_error()
    rows = ",\n".join(json.dumps(row(*each), separators=(",", ":")) for each in ROWS)
    versions = {module.__name__: module.__version__ for module in (torch, transformers)}
    with open(sys.argv[1], "w") as file:
        file.write(f'{{"versions":{json.dumps(versions)},"rows":[\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
