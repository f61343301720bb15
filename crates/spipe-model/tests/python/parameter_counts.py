"""Parameter counts of random configurations, as `transformers` and `diffusers` count them.

Each configuration is instantiated on PyTorch's meta device, which allocates nothing. The table has one
row per line: the type, the configuration, the number of parameters.

    pip install torch transformers diffusers
    python parameter_counts.py --output ../fixtures/parameter-counts.json

The committed table was made with the versions that its first line names.
"""

import argparse
import json
import random

import diffusers
import torch
import transformers


def sizes(draw, *, grouped=True, square=True, step=2):
    """Sizes of a decoder under the usual names.

    Heads are a multiple of `step` wide; `square` ones are as wide as the hidden size together.
    """
    kv_heads = draw.randint(1, 4)
    heads = kv_heads * (draw.randint(1, 3) if grouped else 1)
    head_dim = step * draw.randint(2, 48 // step)
    config = {
        "vocab_size": draw.randint(50, 3000),
        "hidden_size": heads * (head_dim if square else 2 * draw.randint(2, 20)),
        "num_hidden_layers": draw.randint(1, 7),
        "num_attention_heads": heads,
        "intermediate_size": draw.randint(5, 400),
        "max_position_embeddings": draw.randint(8, 300),
    }
    if grouped:
        config["num_key_value_heads"] = kv_heads
    if not square:
        config["head_dim"] = head_dim
    return config


def maybe(draw, config, key, choices, share=0.7):
    """Sets a key to one of the choices, or leaves it out."""
    if draw.random() < share:
        config[key] = draw.choice(choices)


def flags(draw, config, *keys):
    for key in keys:
        maybe(draw, config, key, [True, False])


def llama_like(*bools, square=True, **choices):
    """A class with Llama's names, these flags and these choices."""

    def make(draw):
        config = sizes(draw, square=square)
        flags(draw, config, "tie_word_embeddings", *bools)
        for key, values in choices.items():
            maybe(draw, config, key, values)
        return config

    return make


def windows(make):
    """Adds a window with a list of the kinds of attention, or a pattern."""

    def wrapped(draw):
        config = make(draw)
        maybe(draw, config, "sliding_window", [4, 16, 128])
        if draw.random() < 0.5:
            kinds = ["full_attention", "sliding_attention"]
            config["layer_types"] = [draw.choice(kinds) for _ in range(config["num_hidden_layers"])]
        return config

    return wrapped


def experts(draw, config, count="num_experts"):
    config[count] = draw.randint(2, 9)
    config["num_experts_per_tok"] = draw.randint(1, config[count])
    return config


def mixtral(draw):
    return experts(draw, llama_like("tie_word_embeddings")(draw), "num_local_experts")


def gpt_oss(draw):
    config = windows(llama_like("attention_bias", square=False))(draw)
    return experts(draw, config, "num_local_experts")


def qwen_moe(draw, shared=False):
    config = experts(draw, llama_like(square=shared)(draw))
    config["moe_intermediate_size"] = draw.randint(4, 90)
    maybe(draw, config, "decoder_sparse_step", [1, 2, 3])
    maybe(draw, config, "mlp_only_layers", [[], [0], [0, 2]])
    if shared:
        config["shared_expert_intermediate_size"] = draw.randint(4, 90)
        flags(draw, config, "qkv_bias")
    else:
        flags(draw, config, "attention_bias")
    return config


def deepseek(draw):
    config = sizes(draw, grouped=False, square=False)
    del config["head_dim"]
    config["num_key_value_heads"] = config["num_attention_heads"]
    groups = draw.randint(1, 3)
    config["n_routed_experts"] = groups * draw.randint(2, 4)
    config["n_group"], config["topk_group"] = groups, draw.randint(1, groups)
    config["num_experts_per_tok"] = draw.randint(1, 2)
    config["n_shared_experts"] = draw.randint(1, 3)
    config["moe_intermediate_size"] = draw.randint(4, 90)
    config["first_k_dense_replace"] = draw.randint(0, config["num_hidden_layers"] + 1)
    config["q_lora_rank"] = draw.choice([None, draw.randint(4, 60)])
    config["kv_lora_rank"] = draw.randint(4, 60)
    config["qk_rope_head_dim"] = 2 * draw.randint(1, 12)
    config["qk_nope_head_dim"] = 2 * draw.randint(1, 20)
    config["v_head_dim"] = draw.randint(2, 40)
    flags(draw, config, "attention_bias", "tie_word_embeddings")
    return config


GPT_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}


def gpt(draw):
    config = {GPT_NAMES.get(key, key): value for key, value in sizes(draw, grouped=False).items()}
    if draw.random() < 0.5:
        config["n_inner"] = None
    flags(draw, config, "tie_word_embeddings")
    return config


def gptj(draw):
    config = gpt(draw)
    width = config["n_embd"] // config["n_head"]
    config["rotary_dim"] = 2 * draw.randint(1, width // 2)
    return config


def gpt_neox(draw):
    config = sizes(draw, grouped=False, step=8)
    flags(draw, config, "attention_bias", "use_parallel_residual", "tie_word_embeddings")
    return config


def bloom(draw):
    config = {GPT_NAMES.get(key, key): value for key, value in sizes(draw, grouped=False).items()}
    config["hidden_size"] = config.pop("n_embd")
    del config["n_inner"], config["n_positions"]
    flags(draw, config, "tie_word_embeddings")
    return config


def falcon(draw):
    config = sizes(draw)
    config["ffn_hidden_size"] = config.pop("intermediate_size")
    config["num_kv_heads"] = config.pop("num_key_value_heads")
    flags(draw, config, "bias", "alibi", "multi_query", "parallel_attn", "new_decoder_architecture", "tie_word_embeddings")
    return config


def opt(draw):
    config = sizes(draw, grouped=False)
    config["ffn_dim"] = config.pop("intermediate_size")
    flags(draw, config, "do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine", "tie_word_embeddings")
    maybe(draw, config, "word_embed_proj_dim", [16, 48, config["hidden_size"]])
    return config


def starcoder2(draw):
    config = sizes(draw)
    flags(draw, config, "use_bias", "tie_word_embeddings")
    return config


def phi(draw):
    config = sizes(draw, step=4)
    flags(draw, config, "qk_layernorm", "tie_word_embeddings")
    return config


def encoder(draw):
    config = sizes(draw, grouped=False)
    maybe(draw, config, "type_vocab_size", [1, 2, 4])
    task = draw.choice(["MaskedLM", "QuestionAnswering", "TokenClassification", "SequenceClassification"])
    config["architectures"] = [f"For{task}"]
    if "Classification" in task:
        config["id2label"] = {str(index): f"L{index}" for index in range(draw.randint(2, 7))}
    return config


def vit(draw):
    config = sizes(draw, grouped=False)
    del config["vocab_size"], config["max_position_embeddings"]
    config["patch_size"] = draw.choice([4, 8, 16])
    config["image_size"] = config["patch_size"] * draw.randint(1, 6)
    config["num_channels"] = draw.randint(1, 4)
    flags(draw, config, "qkv_bias")
    config["id2label"] = {str(index): f"L{index}" for index in range(draw.randint(2, 9))}
    return config


def dinov2(draw):
    config = vit(draw)
    del config["intermediate_size"]
    maybe(draw, config, "mlp_ratio", [2, 3, 4])
    flags(draw, config, "use_swiglu_ffn", "use_mask_token")
    config["architectures"] = [draw.choice(["ForImageClassification", "Dinov2Model"])]
    return config


def clip(draw):
    text, vision = sizes(draw, grouped=False), vit(draw)
    del vision["id2label"]
    vision.pop("qkv_bias", None)
    return {"projection_dim": draw.randint(4, 60), "text_config": text, "vision_config": vision}


def unet(draw):
    """Stable Diffusion's network, SDXL's, and either with further channels (inpainting)."""
    count, groups = draw.randint(2, 4), draw.choice([2, 4])
    heads = [draw.choice([1, 2]) for _ in range(count)]
    depths = [draw.randint(1, 3) for _ in range(count)]
    attends = [draw.random() < 0.6 for _ in range(count)]
    config = {
        "sample_size": 2 ** draw.randint(3, 5),
        "in_channels": draw.choice([4, 9]),
        "block_out_channels": [4 * draw.randint(2, 8) for _ in range(count)],
        "down_block_types": ["CrossAttnDownBlock2D" if each else "DownBlock2D" for each in attends],
        "up_block_types": ["CrossAttnUpBlock2D" if each else "UpBlock2D" for each in reversed(attends)],
        "layers_per_block": draw.randint(1, 3),
        "attention_head_dim": heads,
        "transformer_layers_per_block": depths,
        "cross_attention_dim": draw.randint(4, 60),
        "norm_num_groups": groups,
    }
    flags(draw, config, "use_linear_projection")
    if draw.random() < 0.5:
        config["addition_embed_type"] = "text_time"
        config["addition_time_embed_dim"] = draw.randint(2, 20)
        config["projection_class_embeddings_input_dim"] = draw.randint(8, 90)
    return config


def dit(draw):
    config = {
        "num_attention_heads": draw.randint(1, 6),
        "attention_head_dim": 4 * draw.randint(1, 8),
        "in_channels": draw.randint(1, 5),
        "num_layers": draw.randint(1, 5),
        "patch_size": draw.choice([1, 2, 4]),
        "sample_size": 4 * draw.randint(1, 8),
        "num_embeds_ada_norm": draw.randint(2, 200),
    }
    maybe(draw, config, "out_channels", [3, 8])
    flags(draw, config, "attention_bias")
    return config


def flux(draw):
    head = 6 * draw.randint(1, 4)
    config = {
        "in_channels": draw.randint(1, 20),
        "num_layers": draw.randint(1, 4),
        "num_single_layers": draw.randint(1, 4),
        "attention_head_dim": head,
        "num_attention_heads": draw.randint(1, 4),
        "joint_attention_dim": draw.randint(4, 60),
        "pooled_projection_dim": draw.randint(4, 60),
        "axes_dims_rope": [head // 3] * 3,
    }
    maybe(draw, config, "out_channels", [3, 8])
    flags(draw, config, "guidance_embeds")
    return config


def sd3(draw):
    config = {
        "sample_size": 2 * draw.randint(4, 16),
        "in_channels": draw.randint(1, 8),
        "num_layers": draw.randint(1, 5),
        "attention_head_dim": 4 * draw.randint(1, 6),
        "num_attention_heads": draw.randint(1, 4),
        "joint_attention_dim": draw.randint(4, 60),
        "caption_projection_dim": draw.randint(4, 60),
        "pooled_projection_dim": draw.randint(4, 60),
    }
    maybe(draw, config, "out_channels", [None, 3, 8])
    maybe(draw, config, "dual_attention_layers", [[], [0], [0, 1]])
    maybe(draw, config, "qk_norm", [None, "rms_norm"])
    return config


def t5(draw):
    config = {
        "vocab_size": draw.randint(50, 3000),
        "d_model": draw.randint(4, 90),
        "d_kv": draw.randint(2, 40),
        "d_ff": draw.randint(4, 200),
        "num_layers": draw.randint(1, 5),
        "num_heads": draw.randint(1, 6),
        "feed_forward_proj": draw.choice(["relu", "gated-gelu"]),
    }
    maybe(draw, config, "num_decoder_layers", [None, 2, 3])
    maybe(draw, config, "relative_attention_num_buckets", [8, 16])
    return config


def whisper(draw):
    heads = draw.randint(1, 4)
    config = {
        "vocab_size": draw.randint(50, 3000),
        "d_model": heads * 2 * draw.randint(2, 12),
        "encoder_layers": draw.randint(1, 4),
        "decoder_layers": draw.randint(1, 4),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": draw.randint(4, 200),
        "decoder_ffn_dim": draw.randint(4, 200),
        "pad_token_id": 0,
    }
    maybe(draw, config, "num_mel_bins", [40, 128])
    maybe(draw, config, "max_source_positions", [100, 400])
    maybe(draw, config, "max_target_positions", [30, 60])
    return config


def tower(draw):
    config = vit(draw)
    del config["id2label"]
    config.pop("qkv_bias", None)
    return config


# The type, how a configuration of it is made, and how many the table has.
TYPES = [
    ("bert", encoder, 10),
    ("bloom", bloom, 6),
    ("clip", clip, 6),
    ("cohere", llama_like("attention_bias", "use_qk_norm"), 8),
    ("cohere2", windows(llama_like("attention_bias")), 6),
    ("deepseek_v2", deepseek, 12),
    ("deepseek_v3", deepseek, 12),
    ("dinov2", dinov2, 10),
    ("falcon", falcon, 14),
    ("gemma", llama_like("attention_bias", square=False), 8),
    ("gemma2", windows(llama_like("attention_bias", square=False)), 8),
    ("gemma3_text", windows(llama_like("attention_bias", square=False)), 8),
    ("gpt2", gpt, 6),
    ("gpt_neox", gpt_neox, 8),
    ("gpt_oss", gpt_oss, 10),
    ("gptj", gptj, 8),
    ("granite", llama_like("attention_bias", "mlp_bias"), 6),
    ("llama", llama_like("attention_bias", "mlp_bias", head_dim=[4, 10]), 10),
    ("mistral", llama_like(head_dim=[4, 10]), 6),
    ("mixtral", mixtral, 8),
    ("olmo", llama_like("attention_bias"), 6),
    ("olmo2", llama_like("attention_bias"), 8),
    ("olmo3", windows(llama_like("attention_bias")), 6),
    ("opt", opt, 14),
    ("phi", phi, 8),
    # Its default is beyond these vocabularies.
    ("phi3", lambda draw: llama_like()(draw) | {"pad_token_id": 0}, 6),
    ("qwen2", llama_like(), 6),
    ("qwen2_moe", lambda draw: qwen_moe(draw, shared=True), 10),
    ("qwen3", llama_like("attention_bias", square=False), 6),
    ("qwen3_moe", qwen_moe, 10),
    ("roberta", encoder, 10),
    ("starcoder2", starcoder2, 8),
    ("vit", vit, 8),
    # Counted, not planned.
    ("clip_vision_model", tower, 4),
    ("siglip_vision_model", tower, 4),
    ("t5", t5, 10),
    ("whisper", whisper, 8),
    # Classes of diffusers.
    ("UNet2DConditionModel", unet, 14),
    ("DiTTransformer2DModel", dit, 8),
    ("FluxTransformer2DModel", flux, 8),
    ("SD3Transformer2DModel", sd3, 8),
]

# The class of a type where it is not the causal language model.
CLASSES = {
    "bert": "AutoModelForMaskedLM",
    "dinov2": "AutoModelForImageClassification",
    "roberta": "AutoModelForMaskedLM",
    "clip": "AutoModel",
    "clip_vision_model": "AutoModel",
    "siglip_vision_model": "AutoModel",
    "t5": "T5ForConditionalGeneration",
    "vit": "AutoModelForImageClassification",
    "whisper": "WhisperForConditionalGeneration",
}


def count(kind, config):
    """The parameters of the class for the configuration, each tied one once."""
    keys = {key: value for key, value in config.items() if key != "architectures"}
    name = CLASSES.get(kind, "AutoModelForCausalLM")
    if "architectures" in config:
        name = "AutoModel" + config["architectures"][0].replace("Dinov2Model", "")
    with torch.device("meta"):
        if hasattr(diffusers, kind):
            model = getattr(diffusers, kind)(**keys)
        else:
            made = transformers.AutoConfig.for_model(kind, **keys)
            cls = getattr(transformers, name)
            model = cls.from_config(made) if name.startswith("Auto") else cls(made)
    # DeepSeek-V3's files hold a weight per expert that training adjusts without a gradient. It counts,
    # although `transformers` keeps it as a buffer.
    corrections = [each for name, each in model.named_buffers() if name.endswith("e_score_correction_bias")]
    return sum(weight.numel() for weight in [*model.parameters(), *corrections])


def rows(seed):
    for kind, make, number in TYPES:
        draw = random.Random(f"{seed} {kind}")
        # The defaults of the class.
        yield kind, {}, count(kind, {})
        for _ in range(number):
            config = make(draw)
            yield kind, config, count(kind, config)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--output", default="-")
    given = arguments.parse_args()
    transformers.logging.set_verbosity_error()
    versions = {module.__name__: module.__version__ for module in (torch, transformers, diffusers)}
    lines = [json.dumps(versions)]
    for kind, config, parameters in rows(given.seed):
        lines.append(json.dumps([kind, config, parameters], separators=(",", ":")))
    text = "[" + ",\n".join(lines) + "]\n"
    if given.output == "-":
        print(text, end="")
    else:
        with open(given.output, "w") as file:
            file.write(text)


if __name__ == "__main__":
    main()
