"""Other optimizers, and adapters of PEFT, in exported pipelines."""

import json
import os
import sys
import tempfile
import unittest

from processes import apart, script
from spipe import TEXT, losses, plan, spipe
from streamed import model, ours

STEPS, RATE = 6, 1e-3
CONFIG = {"model_type": "llama", "vocab_size": 256, "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
          "intermediate_size": 96, "max_position_embeddings": 64, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip


def adapted(root, folder, out, stored=None):
    """Trains the same adapters by PEFT on the whole model, whose base bitsandbytes may store in fewer bits; its losses, and the difference of
    the logits of what was saved."""
    import peft
    import torch
    import torch.nn.functional as F
    import transformers
    from safetensors.torch import load_file

    sys.path.insert(0, folder)
    from parameters import Random

    settings = {"nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": torch.float32},
                "fp4:single": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_compute_dtype": torch.float32},
                "int8": {"load_in_8bit": True}}  # fmt: skip

    def base():
        narrow = {"quantization_config": transformers.BitsAndBytesConfig(**settings[stored]), "device_map": "cpu"} if stored else {}
        whole = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(root, "base"), dtype=torch.float32, **narrow).eval()
        for module in whole.modules():
            # The form for inference on some processors has no backward.
            module.support_avx512bf16_for_cpu = False
        return whole

    whole = peft.get_peft_model(base(), peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])).eval()
    source, trained = Random(1), []
    for name, parameter in whole.named_parameters():
        if parameter.requires_grad:
            inner = name.removeprefix("base_model.model.")
            parameter.data.copy_(source.read(inner, parameter.shape, 0, parameter.numel()).view(parameter.shape))
            trained.append(parameter)
    adam = torch.optim.AdamW(trained, lr=RATE)
    found = []
    tokens = load_file(os.path.join(folder, "tokens.safetensors"))["tokens"].long()
    for batch in tokens[:STEPS]:
        total = 0.0
        for row in batch:
            loss = F.cross_entropy(whole(row[None, :-1]).logits.flatten(0, 1), row[1:]) / len(batch)
            loss.backward()
            total += loss.item()
        adam.step()
        adam.zero_grad()
        found.append(total)
    again = peft.PeftModel.from_pretrained(base(), os.path.join(folder, "saved")).eval()
    with torch.no_grad():
        row = tokens[0, :1, :-1]
        off = (again(row).logits - whole(row).logits).abs().max().item()
        moved = (again(row).logits - base()(row).logits).abs().max().item()
    with open(out, "w") as file:
        json.dump({"losses": found, "off": off, "moved": moved}, file)


class Kinds(unittest.TestCase):
    BASES = ("nf4",)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def plan(self, name, which, *options, system="1f1b", devices=2, **more):
        return plan(self.root, system, devices, *options, model=which, batch=4, name=name, search=("--effort", "low"), **more)

    def run_folder(self, folder, *options, steps=STEPS, devices=2):
        codes, texts = script(folder, devices, ["--steps", str(steps), "--learning-rate", str(RATE), "--cpu", *options])
        self.assertEqual(codes, [0] * devices, texts)
        return losses(texts)

    def near(self, found, expected, what, most=1e-5):
        self.assertEqual(len(found), len(expected), what)
        for here, there in zip(found, expected):
            self.assertLess(abs(here - there), most, (what, found, expected))

    def test_optimizers_step_as_spipe_run_does(self):
        for kind in ("sgd", "adafactor", "lion", "adamw-8bit"):
            path = self.plan(kind, model(self.root, "llama"), "--optimizer", kind)
            folder = os.path.join(self.root, kind)
            spipe("export", "torch", path, "-o", folder, "--data", TEXT, "--steps", "8", "--initial-weights")
            found = self.run_folder(folder, "--weight-decay", "0.01", steps=8)
            # Moments of 8 bits that are near the middle of two codes are rounded either way.
            self.near(found, ours(path, folder), kind, 5e-4 if kind == "adamw-8bit" else 1e-5)
            if kind in ("adafactor", "adamw-8bit"):
                saved = os.path.join(folder, "saved")
                self.run_folder(folder, "--weight-decay", "0.01", "--checkpoint-dir", saved, steps=3)
                again = self.run_folder(folder, "--weight-decay", "0.01", "--checkpoint-dir", saved, "--resume", steps=8)
                self.assertEqual(again, found[3:], kind)

    def save_model(self):
        """A model of transformers with weights, and the file of its sizes."""
        import torch
        import transformers

        config = os.path.join(self.root, "config.json")
        with open(config, "w") as file:
            json.dump(CONFIG, file)

        def save():
            torch.manual_seed(2)
            transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(self.root)).save_pretrained(self.root + "/base")

        code, text = apart(self.root, save)
        self.assertEqual(code, 0, text)
        spipe("model", "import", config, "-o", os.path.join(self.root, "model.toml"))

    def test_adapters_train_on_bases_of_bitsandbytes(self):
        self.save_model()
        found = {}
        for stored in self.BASES:
            found[stored], folder = self.adapters("1f1b", base=stored)
            self.near(found[stored], self.peft(folder, stored), stored)
        self.assertEqual(len({losses[0] for losses in found.values()}), len(self.BASES), found)

    def adapters(self, system, devices=2, base=None, **more):
        """The losses with adapters under a system, and the folder with what was saved."""
        engine = "fsdp" if system == "fsdp" else "torch"
        path = self.plan(f"lora-{system}", os.path.join(self.root, "model.toml"), "--lora", "rank=4,alpha=8,targets=q,v,down",
                         *(("--base", base) if base else ()), system=system, devices=devices, **more)  # fmt: skip
        folder = os.path.join(self.root, f"{system}-{base or more.get('precision')}")
        spipe("export", engine, path, "-o", folder, "--modules", "transformers", "--weights", os.path.join(self.root, "base"), "--data", TEXT,
              "--steps", STEPS)  # fmt: skip
        saves = ["--save-weights", os.path.join(folder, "saved"), "--weight-decay", "0.01"] if engine == "torch" else []
        return self.run_folder(folder, *saves, devices=devices), folder

    def peft(self, folder, stored=None):
        """The losses of PEFT, whose adapters those in the folder are."""
        out = os.path.join(self.root, "peft.json")
        code, text = apart(self.root, lambda: adapted(self.root, folder, out, stored))
        self.assertEqual(code, 0, text)
        with open(out) as file:
            expected = json.load(file)
        self.assertLess(expected["off"], 1e-5)
        self.assertGreater(expected["moved"], 1e-4)
        return expected["losses"]

    def test_adapters_train_as_those_of_peft(self):
        self.save_model()
        found, folder = self.adapters("1f1b")
        expected = self.peft(folder)
        self.near(found, expected, "1f1b")
        found, _ = self.adapters("fsdp")
        self.near(found, expected, "fsdp")

    def test_adapters_of_streamed_layers(self):
        self.save_model()
        found, folder = self.adapters("superpipeline", devices=1, memory="0.6 MiB", hosts=["cpu0"])
        expected = self.peft(folder)
        self.near(found, expected, "superpipeline")
        with open(os.path.join(folder, "program.json")) as file:
            self.assertIn("weights-in", file.read())
        # Adapters of 32 bits lie beside parameters of 16.
        found, _ = self.adapters("superpipeline", devices=1, memory="0.5 MiB", hosts=["cpu0"], precision="bf16")
        self.near(found, expected, "bf16", 2e-2)

    def test_what_an_export_does_not_train_is_refused(self):
        path = self.plan("own", model(self.root, "llama"), "--lora", "rank=4,targets=q,v")
        folder = os.path.join(self.root, "refused")
        said = spipe("export", "torch", path, "-o", folder, code=3)
        self.assertIn("the plan has adapters of rank 4, which this export does not have", said)
        self.assertIn("`--modules transformers` has them, from PEFT", said)
        path = self.plan("base", model(self.root, "llama"), "--lora", "rank=4,targets=q,v", "--base", "nf4", system="fsdp")
        said = spipe("export", "fsdp", path, "-o", folder, code=3)
        self.assertIn("the plan has a base stored as nf4, which this export does not have", said)
        path = self.plan("muon", model(self.root, "llama"), "--optimizer", "muon")
        said = spipe("export", "torch", path, "-o", folder, code=3)
        self.assertIn("the optimizer `muon` instead of adamw, adamw-8bit, adafactor, lion, sgd", said)
        self.assertFalse(os.path.exists(folder))


if __name__ == "__main__":
    unittest.main()
