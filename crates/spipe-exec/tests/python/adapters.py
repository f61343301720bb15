"""Losses of low-rank adapters trained by PEFT on the shipped model `demo`, step by step.

Every number of every tensor follows from the tensor's name, and every token from its place, so that the
table holds neither weights nor data. B is zero at first, as always. Modules that are trained in full begin
with numbers of their own.

A quantised base is what bitsandbytes makes of the matrices of blocks, converted back to f32; embedding, norms and head are rounded to
16 bits.

    pip install torch transformers peft bitsandbytes
    python adapters.py ../fixtures/adapters.json
"""

import json
import sys

import bitsandbytes
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
    {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
]
# The storage of the base in each case.
BASES = [(CASES[0], None), (CASES[1], None), (CASES[0], "nf4"), (CASES[1], "int8"), (CASES[2], None)]


def tokens(step):
    """Rows of tokens and the one after them."""
    index = torch.arange(SEQUENCES * (SEQ_LEN + 1)).reshape(SEQUENCES, -1) + 1000 * step
    return (7 * index * index + 3 * index) % 251


def converted(name, tensor, base):
    """The numbers of a tensor of the base that its storage keeps."""
    if base is None:
        return tensor
    if ".layers." not in name or tensor.dim() < 2:
        return tensor.to(torch.bfloat16).float()
    if base == "nf4":
        stored = bitsandbytes.functional.quantize_4bit(tensor, compress_statistics=True, quant_type="nf4")
        return bitsandbytes.functional.dequantize_4bit(*stored)
    parameter = bitsandbytes.nn.Int8Params(tensor, requires_grad=False)._quantize("cpu")
    return bitsandbytes.functional.int8_vectorwise_dequant(parameter.CB, parameter.SCB)


def case(settings, base):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG, attn_implementation="eager"))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(converted(name, fill(name, tensor, SCALE), base))
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **settings))
    parameters = [(name.replace(".modules_to_save.default", ""), one) for name, one in model.named_parameters()]
    trained = {name.replace(".default", ""): one for name, one in parameters if one.requires_grad}
    with torch.no_grad():
        for name, tensor in trained.items():
            if not name.endswith("lora_B.weight"):
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
    return {"settings": settings, "base": base, "losses": losses, "norms": norms}


if __name__ == "__main__":
    torch.set_num_threads(1)
    table = {
        "source": ", ".join(f"{one.__name__} {one.__version__}" for one in (peft, transformers, torch, bitsandbytes)),
        "steps": STEPS,
        "rate": RATE,
        "cases": [case(settings, base) for settings, base in BASES],
    }
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(table, out, indent=0)
