"""Adapters of PEFT in a model whose parameters have no memory yet."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from shapes import without_memory
from storage import Fault


def adapt(model: nn.Module, adapters: dict[str, Any]) -> None:
    """Adds the plan's adapters to the model, which alone are trained."""
    try:
        import peft
    except ImportError:
        raise Fault("the plan has adapters, which PEFT makes: `pip install peft`") from None
    config = peft.LoraConfig(r=adapters["rank"], lora_alpha=adapters["alpha"], use_rslora=adapters["rslora"], init_lora_weights=False,
                             target_modules=adapters["modules"], task_type="CAUSAL_LM")  # fmt: skip
    with without_memory(), warnings.catch_warnings():
        # GPT-2's matrices are transposed, which PEFT finds out.
        warnings.simplefilter("ignore")
        peft.inject_adapter_in_model(config, model)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    if trained != adapters["parameters"]:
        raise Fault(f"PEFT {peft.__version__} makes adapters of {trained} numbers, the plan's have {adapters['parameters']}")
