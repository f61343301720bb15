"""Folders whose layers are those of transformers: logits and losses of many types of decoders."""

import json
import os
import sys
import tempfile
import unittest

from processes import apart, script
from spipe import TEXT, losses, plan, spipe, without_compiler
from streamed import SYSTEMS

SIZES = {"vocab_size": 256, "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
         "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = {**SIZES, "num_key_value_heads": 2}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
# Types of transformers, each with what tells it apart: tied tables, experts, windows, scaled embeddings, bounded logits, tuples.
CONFIGURATIONS = {
    "llama": {**GROUPED, "tie_word_embeddings": False},
    "gpt2": {"vocab_size": 256, "n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2},
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "qwen3_moe": {**GROUPED, **EXPERTS, "num_experts": 4, "head_dim": 16},
    "deepseek_v3": {**SIZES, **EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1, "kv_lora_rank": 16,
                    "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_group": 1, "topk_group": 1,
                    "first_k_dense_replace": 1},
    "gpt_oss": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 5},
    "gemma2": {**GROUPED, "head_dim": 16, "sliding_window": 5},
    "gemma3_text": {**GROUPED, "head_dim": 16, "sliding_window": 5},
    "phi3": GROUPED,
    "cohere2": {**GROUPED, "sliding_window": 5},
    "gpt_neox": SIZES,
    "bloom": {"vocab_size": 256, "n_layer": 4, "hidden_size": 64, "n_head": 4},
    "falcon": SIZES,
    "opt": {"vocab_size": 256, "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "ffn_dim": 128,
            "max_position_embeddings": 64, "word_embed_proj_dim": 32},
    "olmo2": GROUPED,
    "starcoder2": GROUPED,
}
# Their files of weights have other names than the classes: a tensor for each expert, or an old one of the head.
CONVERTED = ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_neox")


def save(root, names):
    """Random models of transformers, saved as safetensors, and the logits of some tokens."""
    import torch
    import transformers

    for name in names:
        torch.manual_seed(3)
        configuration = transformers.AutoConfig.for_model(name, **CONFIGURATIONS[name])
        model = transformers.AutoModelForCausalLM.from_config(configuration).eval()
        with torch.no_grad():
            for _, parameter in sorted(model.named_parameters()):
                # Norms and biases, too, are other than one and zero.
                parameter.add_(torch.randn_like(parameter) * 0.05)
            tokens = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(5))
            logits = model(tokens).logits
        folder = os.path.join(root, name)
        model.save_pretrained(folder)
        torch.save({"tokens": tokens, "logits": logits}, os.path.join(folder, "expected.pt"))


def compare(root, names):
    """Fails if the logits of the stages of an export differ from the expected ones."""
    import torch

    for name in names:
        export = os.path.join(root, f"{name}-export")
        weights = os.path.join(export, "weights")
        before = set(sys.modules)
        sys.path.insert(0, export)
        if name in CONVERTED:
            import convert

            convert.main(weights, os.path.join(root, f"{name}-named"))
            weights = os.path.join(root, f"{name}-named")
        import parameters
        from stage import Stage, tie

        with open(os.path.join(export, "plan.json")) as file:
            settings = json.load(file)
        cpu = torch.device("cpu")
        found = [Stage(settings["model"], stage, cpu, torch.float32, (cpu, torch.float32)) for stage in settings["stages"]]
        tie(found)
        parameters.fill(found, weights, 1)
        expected = torch.load(os.path.join(root, name, "expected.pt"), weights_only=True)
        x = expected["tokens"]
        with torch.no_grad():
            for stage in found:
                x = stage(x)
        difference = (x - expected["logits"]).abs().max().item()
        assert difference < 1e-5, (name, difference)
        sys.path.remove(export)
        for module in set(sys.modules) - before:
            if (getattr(sys.modules[module], "__file__", None) or "").startswith(export):
                del sys.modules[module]


def trained(root, name, tokens, out, steps):
    """The losses of plain training of the whole model of transformers with PyTorch's AdamW."""
    import torch
    import torch.nn.functional as F
    import transformers
    from safetensors.torch import load_file

    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(root, name), dtype=torch.float32).eval()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = []
    for batch in load_file(tokens)["tokens"][:steps].long():
        total = 0.0
        for row in batch:
            loss = F.cross_entropy(model(row[None, :-1]).logits.flatten(0, 1), row[1:]) / len(batch)
            loss.backward()
            total += loss.item()
        adam.step()
        adam.zero_grad()
        found.append(total)
    with open(out, "w") as file:
        json.dump(found, file)


class Transformers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = cls.folder.name
        code, text = apart(cls.root, lambda: save(cls.root, CONFIGURATIONS))
        assert code == 0, text

    def model(self, name):
        path = os.path.join(self.root, f"{name}.toml")
        if not os.path.exists(path):
            spipe("model", "import", os.path.join(self.root, name, "config.json"), "-o", path)
        return path

    def plan(self, name, system="1f1b", devices=2, memory="2 GiB"):
        hosts = ["cpu0"] if system in SYSTEMS else []
        return plan(self.root, system, devices, model=self.model(name), batch=2, name=f"{name}-{system}", memory=memory, hosts=hosts,
                    search=("--effort", "low"))  # fmt: skip

    def export(self, name, engine, path, *options, code=0, weights=None, to=None):
        folder = os.path.join(self.root, to or f"{name}-{engine}-{os.path.basename(path)}")
        said = spipe("export", engine, path, "-o", folder, "--modules", "transformers", "--weights",
                     weights or os.path.join(self.root, name), *options, code=code)
        return folder, said

    def test_logits_are_those_of_the_whole_model(self):
        for name in CONFIGURATIONS:
            self.export(name, "torch", self.plan(name), to=f"{name}-export")
        code, text = apart(self.root, lambda: compare(self.root, CONFIGURATIONS))
        self.assertEqual(code, 0, text)

    def losses(self, name, engine, system, devices, memory, weights=None):
        """The losses of 6 steps, which must be those of the whole model."""
        path = self.plan(name, system, devices, memory)
        folder, _ = self.export(name, engine, path, "--data", TEXT, "--steps", "6", weights=weights)
        if engine == "deepspeed":
            without_compiler(folder)
        out = os.path.join(self.root, f"{name}.json")
        tokens = os.path.join(folder, "tokens.safetensors")
        code, text = apart(self.root, lambda: trained(self.root, name, tokens, out, 6))
        self.assertEqual(code, 0, text)
        with open(out) as file:
            expected = json.load(file)
        codes, texts = script(folder, devices, ["--steps", "6", "--learning-rate", "1e-3", "--cpu"])
        self.assertEqual(codes, [0] * devices, texts)
        for here, there in zip(losses(texts), expected, strict=True):
            self.assertLess(abs(here - there), 1e-5, (name, system))
        return folder

    def test_pipelines_train_scaled_embeddings_and_a_tied_head(self):
        self.losses("gemma2", "torch", "1f1b", 2, "2 GiB")

    def test_streamed_layers_with_windows(self):
        folder = self.losses("gemma3_text", "torch", "superpipeline", 1, "2 MiB")
        with open(os.path.join(folder, "program.json")) as file:
            self.assertIn("weights-in", file.read())

    def test_streamed_blocks_that_return_tuples(self):
        self.losses("bloom", "torch", "spipe", 2, "2 MiB")

    def test_shards_of_a_scaled_embedding(self):
        self.losses("gemma3_text", "fsdp", "fsdp", 2, "2 GiB")

    def test_shards_of_deepspeed(self):
        self.losses("bloom", "deepspeed", "fsdp", 2, "2 GiB")

    def named(self, name):
        """Weights under the names of transformers' classes."""
        folder, _ = self.export(name, "torch", self.plan(name), to=f"{name}-convert")
        target = os.path.join(self.root, f"{name}-for-classes")

        def convert():
            sys.path.insert(0, folder)
            import convert

            convert.main(os.path.join(folder, "weights"), target)

        code, text = apart(self.root, convert)
        self.assertEqual(code, 0, text)
        return target

    def test_experts_in_streams(self):
        self.losses("qwen3_moe", "torch", "superpipeline", 1, "2 MiB", weights=self.named("qwen3_moe"))

    def test_refusals(self):
        path = self.plan("llama")
        _, said = self.export("gemma2", "torch", path, code=3)
        self.assertIn("is of another model than the plan's", said)
        folder = os.path.join(self.root, "refused")
        said = spipe("export", "torch", path, "-o", folder, "--modules", "transformers", code=2)
        self.assertIn("`--config` names it", said)
        said = spipe("export", "torch", path, "-o", folder, "--config", os.path.join(self.root, "llama"), code=2)
        self.assertIn("`--modules transformers` does", said)
        said = spipe("export", "torch", self.plan("gemma2"), "-o", folder, code=3)
        self.assertIn("`--modules transformers` builds the layers of any decoder", said)
        self.assertFalse(os.path.exists(folder))

    def test_an_old_transformers_and_weights_with_other_names_are_refused(self):
        folder, _ = self.export("mixtral", "torch", self.plan("mixtral"), "--data", TEXT, "--steps", "1", to="old")
        codes, texts = script(folder, 2, ["--steps", "1", "--cpu"])
        self.assertNotIn(0, codes)
        self.assertIn("`python convert.py FROM TO`", "".join(texts))
        with open(os.path.join(folder, "model.py"), "a") as file:
            file.write("\ntransformers.__version__ = '4.57.1'\n")
        codes, texts = script(folder, 2, ["--steps", "1", "--cpu"])
        self.assertNotIn(0, codes)
        self.assertIn("error: transformers 4.57.1 is too old", "".join(texts))


if __name__ == "__main__":
    unittest.main()
