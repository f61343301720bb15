"""Losses of low-rank adapters trained by PEFT on the shipped model `demo`, step by step.

Every number of every tensor follows from the tensor's name, and every token from its place, so that the
table holds neither weights nor data. B is zero at first, as always.

    pip install torch transformers peft
    python adapters.py ../fixtures/adapters.json
"""

import json
import sys

import peft
import torch
import transformers

from filling import fill

# The largest magnitude of filled numbers.
SCALE = 0.08

STEPS, SEQUENCES, SEQ_LEN, RATE = 8, 2, 32, 0.001
CONFIG = {
    "vocab_size": 256,
    "hidden_size": 384,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "intermediate_size": 1024,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
}
CASES = [
    {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]},
    {"r": 3, "lora_alpha": 6, "use_rslora": True, "target_modules": ["v_proj", "down_proj", "lm_head"]},
]


def tokens(step):
    """Rows of tokens and the one after them."""
    index = torch.arange(SEQUENCES * (SEQ_LEN + 1)).reshape(SEQUENCES, -1) + 1000 * step
    return (7 * index * index + 3 * index) % 251


def case(settings):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG, attn_implementation="eager"))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(fill(name, tensor, SCALE))
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **settings))
    trained = {name.replace(".default", ""): one for name, one in model.named_parameters() if one.requires_grad}
    with torch.no_grad():
        for name, tensor in trained.items():
            if name.endswith("lora_A.weight"):
                tensor.copy_(fill(name, tensor, SCALE))
    model.train()
    optimizer = torch.optim.AdamW(trained.values(), lr=RATE)
    losses = []
    for step in range(STEPS):
        rows = tokens(step)
        logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    norms = {name: tensor.norm().item() for name, tensor in trained.items()}
    return {"settings": settings, "losses": losses, "norms": norms}


if __name__ == "__main__":
    torch.set_num_threads(1)
    table = {
        "source": f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}",
        "steps": STEPS,
        "rate": RATE,
        "cases": [case(settings) for settings in CASES],
    }
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(table, out, indent=0)
