"""Writes weights under the names of the classes of transformers, as training reads them: `python convert.py FROM TO`.

Files of mixtures of experts have a tensor for each expert, and the classes one for all; GPT-NeoX has an old name of its head. The whole model passes through memory.
"""

import sys

import torch
import transformers

import parameters
from model import HEAD


def main(source: str, target: str) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    tensors: dict[str, torch.Tensor] = {name: tensor.detach().contiguous() for name, tensor in model.named_parameters()}
    tensors |= {name: tensor for name, tensor in model.state_dict().items() if name not in tensors and name != HEAD}
    model.config.save_pretrained(target)
    parameters.save(target, 0, 1, tensors, lambda: None)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
