"""Adapters that runs have trained are PEFT's, and PEFT's are those of runs."""

import json
import os
import tempfile
import unittest

import peft
import torch
import transformers

from spipe import spipe

SIZES = {"vocab_size": 256}
LLAMA = transformers.LlamaConfig(
    **SIZES, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
    max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
GPT2 = transformers.GPT2Config(
    **SIZES, n_positions=32, n_embd=32, n_layer=2, n_head=4, n_inner=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    bos_token_id=1, eos_token_id=2)
# Weights of a Conv1D are inputs × outputs, one of them is square, and one holds queries, keys and values. With `embeddings`
# copies of embedding and head are trained in full.
CASES = [(transformers.LlamaForCausalLM, LLAMA, "q,v,gate,down"), (transformers.GPT2LMHeadModel, GPT2, "c_attn,attn.c_proj,c_fc"),
         (transformers.LlamaForCausalLM, LLAMA, "q,down,embeddings")]


class Adapters(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        torch.manual_seed(1)
        with open(self.path("text"), "w", encoding="utf-8") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 50)

    def path(self, name):
        return os.path.join(self.root, name)

    def run_plan(self, *more):
        lines = spipe("run", self.path("plan.json"), "--data", self.path("text"), "--bind", "gpu0=emulated:0", "--weights", self.path("base"),
                      "--format", "json", *more)
        return [loss for loss in (json.loads(line).get("loss") for line in lines.splitlines()) if loss is not None]

    def test_peft_reads_them_and_back(self):
        tokens = 7 * torch.arange(16)[None] % 256
        for case, (kind, config, targets) in enumerate(CASES):
            with self.subTest(f"{kind.__name__}: {targets}"):
                kind(config).save_pretrained(self.path("base"))
                spipe("plan", "--model", self.path("base"), "--hardware", "one-gpu", "--system", "gpu-only", "--seq-len", 16, "--precision", "fp32",
                      "--materialised-attention", "--global-batch", 4, "--microbatch", 2, "--lora", f"rank=4,alpha=8,targets={targets}",
                      "-o", self.path("plan.json"))
                trained, again, merged = self.path("trained"), self.path("again"), self.path(f"merged-{case}")
                self.run_plan("--steps", 10, "--learning-rate", 0.01, "--save-adapter", trained)
                spipe("model", "merge", self.path("base"), "--adapter", trained, "-o", merged)
                base = lambda: kind.from_pretrained(self.path("base"))
                adapted = peft.PeftModel.from_pretrained(base(), trained)
                with torch.no_grad():
                    logits = adapted(tokens).logits
                    self.assertGreater((logits - base()(tokens).logits).abs().max().item(), 0.01)
                    off = (logits - kind.from_pretrained(merged)(tokens).logits).abs().max().item()
                self.assertLess(off, 1e-5)
                adapted.save_pretrained(again)
                still = ("--steps", 1, "--learning-rate", 0, "--adapter")
                self.assertEqual(self.run_plan(*still, again), self.run_plan(*still, trained))


if __name__ == "__main__":
    unittest.main()
