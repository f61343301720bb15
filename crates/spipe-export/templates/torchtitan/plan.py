"""The plan of plan.json as a configuration of torchtitan: `torchrun … -m torchtitan.train --module plan --config plan`.

Data, tokenizer, learning rate and checkpoints are yours: options of torchtitan change what is here.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.config_utils import get_attention_config, make_ffn_config, make_gqa_config
from torchtitan.models.llama3 import Llama3Model, parallelize_llama
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

HERE = os.path.dirname(os.path.abspath(__file__))
# First numbers as transformers draws them for these models.
MATRIX: dict[str, Callable[..., Any]] = {"weight": partial(nn.init.normal_, std=0.02)}
NORM: dict[str, Callable[..., Any]] = {"weight": nn.init.ones_}


class PlannedAC(FullAC):
    """Recomputes the blocks of the plan."""

    @dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config):
        blocks: list[int] = field(default_factory=list)
        """The blocks that are computed again in the backward."""

    def _wrap_block(self, module: nn.Module, *, base_fqn: str | None = None) -> nn.Module:
        planned = isinstance(self.config, PlannedAC.Config) and base_fqn is not None and int(base_fqn.rpartition(".")[2]) in self.config.blocks
        return super()._wrap_block(module, base_fqn=base_fqn) if planned else module


def block(sizes: dict[str, Any], rope: ComplexRoPE.Config) -> Llama3TransformerBlock.Config:
    """A block of a model of Llama's family."""
    norm = partial(RMSNorm.Config, normalized_shape=sizes["hidden"], eps=sizes["norm-epsilon"], param_init=NORM)
    attention = make_gqa_config(
        dim=sizes["hidden"], n_heads=sizes["heads"], n_kv_heads=sizes["kv-heads"], head_dim=sizes["head-dim"], wqkv_param_init=MATRIX,
        wo_param_init=MATRIX, inner_attention=get_attention_config("flex"), fuse_qkv=True, rope=rope,
    )  # fmt: skip
    feed_forward = make_ffn_config(dim=sizes["hidden"], hidden_dim=sizes["intermediate"], w1_param_init=MATRIX, w2w3_param_init=MATRIX)
    return Llama3TransformerBlock.Config(attention_norm=norm(), ffn_norm=norm(), attention=attention, feed_forward=feed_forward)


def model(sizes: dict[str, Any], tokens: int) -> ModelSpec:
    """The model of the plan, for sequences of at most this many tokens."""
    scaling = sizes["rotary-scaling"]
    scaled: dict[str, Any] = {"scaling": "none"}
    if scaling is not None:
        scaled = {"scaling": "llama", "scaling_factor": scaling["factor"], "low_freq_factor": scaling["low-frequency-factor"],
                  "high_freq_factor": scaling["high-frequency-factor"], "original_max_position_embeddings": scaling["original-places"]}  # fmt: skip
    rope = ComplexRoPE.Config(dim=sizes["head-dim"], max_seq_len=tokens, theta=sizes["rotary-base"], **scaled)
    hidden, vocabulary = sizes["hidden"], sizes["vocabulary"]
    config = Llama3Model.Config(
        dim=hidden, vocab_size=vocabulary, enable_weight_tying=sizes["tied"],
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=hidden, param_init=MATRIX),
        norm=RMSNorm.Config(normalized_shape=hidden, eps=sizes["norm-epsilon"], param_init=NORM),
        lm_head=Linear.Config(in_features=hidden, out_features=vocabulary, param_init=MATRIX),
        layers=[block(sizes, rope) for _ in range(sizes["layers"])],
    )  # fmt: skip
    return ModelSpec(name="llama3", flavor=sizes["name"], model=config, parallelize_fn=parallelize_llama, pipelining_fn=pipeline_llm,
                     post_optimizer_build_fn=None, state_dict_adapter=Llama3StateDictAdapter)


def plan() -> Trainer.Config:
    """The configuration that `--config plan` names."""
    with open(os.path.join(HERE, "plan.json"), encoding="utf-8") as file:
        settings: dict[str, Any] = json.load(file)
    degrees, batch, order = settings["degrees"], settings["batch"], settings["schedule"]
    parallelism = ParallelismConfig(
        pipeline_parallel_degree=degrees["pipeline"],
        data_parallel_replicate_degree=degrees["replicate"],
        data_parallel_shard_degree=degrees["shard"],
        tensor_parallel_degree=degrees["tensor"],
        enable_sequence_parallel=settings["sequence-parallel"],
        # Parameters are gathered before the first forward and kept until the last backward: of a step the traffic is that of ZeRO 1.
        fsdp_reshard_after_forward="never",
        module_fqns_per_model_part=settings["stages"],
        pipeline_parallel_schedule=order["name"],
        pipeline_parallel_schedule_csv=os.path.join(HERE, "schedule.csv") if order["csv"] else "",
        pipeline_parallel_microbatch_size=batch["microbatch"],
    )
    training = TrainingConfig(
        local_batch_size=batch["local"], global_batch_size=batch["global"], seq_len=batch["seq-len"],
        max_norm=float("inf") if settings["clip-norm"] is None else settings["clip-norm"], mixed_precision_param=settings["parameters"],
        disable_cuda_graphs=degrees["pipeline"] > 1,
    )  # fmt: skip
    return Trainer.Config(
        model_spec=model(settings["model"], batch["seq-len"]),
        loss=CrossEntropyLoss.Config(global_vocab_size=settings["model"]["vocabulary"]),
        optimizer=default_adamw(lr=3e-4),
        training=training,
        parallelism=parallelism,
        activation_checkpoint=PlannedAC.Config(blocks=settings["recomputed"]) if settings["recomputed"] else None,
    )
