"""Stage modules compute the logits of transformers; recomputed layers run as often as planned."""

import json
import os
import tempfile
import unittest

from processes import apart, script
from spipe import TEXT, losses, machine, plan, spipe, stages

SIZES = {"vocab_size": 256, "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
         "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
# Configurations of transformers with the properties that tell the families apart.
CONFIGURATIONS = {
    "llama": {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False, "rope_theta": 50000.0},
    "llama-biases": {**SIZES, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {**SIZES, "num_key_value_heads": 2, "sliding_window": 7, "head_dim": 24},
    "qwen2": {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 9,
              "max_window_layers": 1},
    "qwen3": {**SIZES, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": False},
    "llama-llama3": {**SIZES, "rope_parameters": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0, "rope_theta": 500.0,
        "original_max_position_embeddings": 16}},
    "llama-linear": {**SIZES, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    # The sequences of the tests are longer than its places.
    "llama-dynamic": {**SIZES, "max_position_embeddings": 12,
                      "rope_parameters": {"rope_type": "dynamic", "factor": 2.5, "rope_theta": 10000.0}},
    "qwen2-yarn": {**SIZES, "num_key_value_heads": 2, "rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}},
    "qwen3-yarn-mscale": {**SIZES, "num_key_value_heads": 2, "head_dim": 24, "rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "mscale": 0.8, "mscale_all_dim": 0.4, "truncate": False, "rope_theta": 1000.0,
        "original_max_position_embeddings": 16}},
    "gpt2": {"vocab_size": 256, "n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0,
             "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}


def save(folder, name):
    """A random model of transformers, saved as safetensors, and the logits of some tokens."""
    import torch
    import transformers

    torch.manual_seed(3)
    kind = name.split("-")[0]
    configuration = transformers.AutoConfig.for_model(kind, **CONFIGURATIONS[name])
    configuration._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(configuration).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and biases, too, are other than one and zero.
            parameter.add_(torch.randn_like(parameter) * 0.05)
        tokens = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(5))
        logits = model(tokens).logits
    model.save_pretrained(folder, safe_serialization=True)
    torch.save({"tokens": tokens, "logits": logits}, os.path.join(folder, "expected.pt"))


def compare(export, weights):
    """The largest difference of the exported stages' logits from the expected ones."""
    import sys

    import torch

    sys.path.insert(0, export)
    import parameters
    from stage import Stage, tie

    with open(os.path.join(export, "plan.json")) as file:
        settings = json.load(file)
    cpu = torch.device("cpu")
    found = [Stage(settings["model"], stage, cpu, torch.float32, (cpu, torch.float32)) for stage in settings["stages"]]
    tie(found)
    parameters.fill(found, os.path.join(export, "weights"), 1)
    expected = torch.load(os.path.join(weights, "expected.pt"), weights_only=True)
    x = expected["tokens"]
    with torch.no_grad():
        for stage in found:
            x = stage(x)
    difference = (x - expected["logits"]).abs().max().item()
    assert difference < 1e-4, difference


class Models(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def weights(self, name):
        folder = os.path.join(self.root, name)
        code, text = apart(self.root, lambda: save(folder, name))
        self.assertEqual(code, 0, text)
        model = os.path.join(self.root, f"{name}.toml")
        spipe("model", "import", os.path.join(folder, "config.json"), "-o", model)
        return folder, model

    def export(self, name, path, *options, code=0):
        folder = os.path.join(self.root, f"{name}-export")
        return folder, spipe("export", "torch", path, "-o", folder, *options, code=code)

    def logits(self, name):
        weights, model = self.weights(name)
        path = plan(self.root, "1f1b", 2, model=model, batch=2, name=name)
        export, _ = self.export(name, path, "--weights", weights)
        code, text = apart(self.root, lambda: compare(export, weights))
        self.assertEqual(code, 0, text)

    def test_weights_of_another_model_are_refused(self):
        weights, model = self.weights("llama")
        path = plan(self.root, "1f1b", 2, batch=2)
        folder, said = self.export("other", path, "--weights", weights, code=3)
        self.assertIn("`hidden_size` is 64, the plan's model has 384", said)
        os.remove(os.path.join(weights, "config.json"))
        _, said = self.export("other", path, "--weights", weights, code=3)
        self.assertIn("it has no `model.layers.3.input_layernorm.weight`", said)
        self.assertFalse(os.path.exists(folder))

    def test_a_tensor_of_another_shape_is_refused(self):
        from safetensors.torch import load_file, save_file

        weights, model = self.weights("llama")
        path = plan(self.root, "1f1b", 2, batch=2, model=model, name="shape")
        file, name = os.path.join(weights, "model.safetensors"), "model.layers.1.mlp.up_proj.weight"
        tensors = load_file(file)
        tensors[name] = tensors[name][:-1].clone()
        save_file(tensors, file)
        folder, said = self.export("shape", path, "--weights", weights, code=3)
        self.assertIn(name, said)
        self.assertRegex(said, r"\b95\b.*\b96\b|\b96\b.*\b95\b")
        self.assertFalse(os.path.exists(folder))

    def test_an_old_pytorch_is_refused(self):
        path = plan(self.root, "1f1b", 2, batch=2)
        folder, _ = self.export("old", path, "--data", TEXT, "--steps", "1")
        train = os.path.join(folder, "train.py")
        with open(train) as file:
            text = file.read()
        with open(train, "w") as file:
            file.write(text.replace("import torch\n", "import torch\ntorch.__version__ = '2.7.1+cpu'\n", 1))
        codes, texts = script(folder, 2, ["--steps", "1"])
        self.assertNotIn(0, codes)
        self.assertIn("error: PyTorch 2.7.1+cpu is too old", "".join(texts))

    def test_a_script_says_what_is_wrong_with_its_weights(self):
        path = plan(self.root, "1f1b", 2, batch=2)
        folder, _ = self.export("plain", path, "--data", TEXT, "--steps", "1")
        weights, _ = self.weights("llama")
        codes, texts = script(folder, 2, ["--steps", "1", "--weights", weights])
        self.assertNotIn(0, codes)
        self.assertRegex("".join(texts), "error: (`model.embed_tokens.weight` is|the weights in .* have no `model.layers)")
        codes, texts = script(folder, 1, ["--steps", "1"])
        self.assertEqual(codes, [1])
        self.assertIn("error: the plan has 2 ranks, 1 processes were started", texts[0])

    def test_recomputed_layers_run_twice_and_split_stages_are_fused(self):
        path = plan(self.root, "zb-h1", 2, "--pin", "recompute=1..8")
        folder, _ = self.export("recomputed", path, "--data", TEXT, "--steps", "2")
        kinds = [stage["recomputed"] for stage in stages(folder)]
        self.assertTrue(all(kinds), kinds)
        with open(os.path.join(folder, "schedule.csv")) as file:
            order = file.read()
        self.assertIn("0W0", order)
        self.assertIn("1B0", order)
        self.assertNotIn("1W0", order)
        counting = os.path.join(folder, "train.py")
        with open(counting) as file:
            text = file.read()
        # Forwards of each layer on a rank, counted where they begin: a repeated one ends with the last tensor that is needed.
        text = text.replace("    last = options.steps - 1", """    counts = {}
    for stage in training.stages.values():
        for index, module in enumerate(stage.layers, start=stage.first):
            module.register_forward_pre_hook(lambda *_, i=index: counts.__setitem__(i, counts.get(i, 0) + 1))
    last = options.steps - 1""").replace("    if options.save_weights:\n", "    loop.say(event='counts', counts=counts)\n    if options.save_weights:\n")
        with open(counting, "w") as file:
            file.write(text)
        codes, texts = script(folder, 2, ["--steps", "2"])
        self.assertEqual(codes, [0, 0], texts)
        one, reference = script(folder, 1, ["--steps", "2", "--one-process"])
        self.assertEqual(one, [0], reference)
        for here, there in zip(losses(texts), losses(reference), strict=True):
            self.assertLess(abs(here - there), 1e-5)
        for text, stage in zip(texts, stages(folder)):
            counts = json.loads(next(line for line in text.splitlines() if '"counts"' in line))["counts"]
            for layer in range(stage["first-layer"], stage["last-layer"] + 1):
                again = layer - stage["first-layer"] < stage["recomputed"]
                self.assertEqual(counts[str(layer)], 2 * 8 * (2 if again else 1), f"layer {layer}")

    def test_checkpoints_resume_with_the_same_losses(self):
        path = plan(self.root, "1f1b", 2, "--clip-norm", "0.5")
        folder, _ = self.export("checkpoints", path, "--data", TEXT, "--steps", "6", "--initial-weights")
        codes, texts = script(folder, 2, ["--steps", "6"])
        self.assertEqual(codes, [0, 0], texts)
        whole = losses(texts)
        saved = os.path.join(self.root, "saved")
        os.mkdir(saved)
        codes, texts = script(folder, 2, ["--steps", "3", "--checkpoint-dir", saved])
        self.assertEqual(codes, [0, 0], texts)
        codes, texts = script(folder, 2, ["--steps", "6", "--checkpoint-dir", saved, "--resume"])
        self.assertEqual(codes, [0, 0], texts)
        self.assertEqual(losses(texts), whole[3:])

    def test_tied_tables_on_two_ranks_stay_equal(self):
        weights, model = self.weights("qwen2")
        path = plan(self.root, "1f1b", 2, "--clip-norm", "1.0", model=model, name="tied")
        folder, _ = self.export("tied", path, "--weights", weights, "--data", TEXT, "--steps", "5")
        codes, texts = script(folder, 2, ["--steps", "5"])
        self.assertEqual(codes, [0, 0], texts)
        one, reference = script(folder, 1, ["--steps", "5", "--one-process"])
        self.assertEqual(one, [0], reference)
        for here, there in zip(losses(texts), losses(reference), strict=True):
            self.assertLess(abs(here - there), 1e-5)

    def test_sixteen_bits_and_an_optimizer_on_the_host(self):
        folder = os.path.join(self.root, "bf16")
        path = os.path.join(self.root, "bf16.json")
        spipe("plan", "--model", "demo", "--hardware", machine(self.root, 2), "--devices", "gpu0,gpu1,cpu0", "--system", "1f1b",
              "--precision", "bf16", "--seq-len", 32, "--global-batch", 4, "--microbatch", 1, "--pin", "optimizer=0..9:cpu0",
              "--time-limit", "2s", "-o", path)
        spipe("export", "torch", path, "-o", folder, "--data", TEXT, "--steps", "4")
        count = len({stage["rank"] for stage in stages(folder)})
        codes, texts = script(folder, count, ["--steps", "4"])
        self.assertEqual(codes, [0] * count, texts)
        found = losses(texts)
        self.assertLess(found[-1], found[0])


for name in CONFIGURATIONS:
    setattr(Models, f"test_logits_of_{name}".replace("-", "_"), lambda self, name=name: self.logits(name))
