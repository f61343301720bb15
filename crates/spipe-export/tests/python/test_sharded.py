"""Exported FSDP2 trains in two processes with the losses of one; DeepSpeed's own parser reads its configuration."""

import json
import os
import tempfile
import unittest

from processes import apart, script
from spipe import TEXT, losses, machine, plan, spipe, tiny, without_compiler


def parse(path, batch):
    """Reads a configuration with DeepSpeed's own parser, which takes a process without a launcher for the only one."""
    from deepspeed.runtime.config import DeepSpeedConfig

    config = DeepSpeedConfig(path)
    assert config.train_batch_size == batch, config.train_batch_size
    zero = config.zero_config
    place = lambda section: section and str(getattr(section.device, "value", section.device))  # noqa: E731
    print(json.dumps({"stage": int(zero.stage), "optimizer": place(zero.offload_optimizer), "parameters": place(zero.offload_param),
                      "prefetch": zero.prefetch_bucket_size, "live": zero.max_live_parameters,
                      "clipping": config.gradient_clipping, "sums": config.grad_accum_dtype, "messages": str(config.communication_data_type),
                      "adam": config.optimizer_params}))


class Sharded(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def trains(self, *options, system="fsdp", world=2, batch=4):
        path = plan(self.root, system, world, *options, batch=batch)
        folder = os.path.join(self.root, "export")
        spipe("export", "fsdp", path, "-o", folder, "--data", TEXT, "--steps", "4", "--initial-weights")
        codes, texts = script(folder, world, ["--steps", "4"])
        self.assertEqual(codes, [0] * world, texts)
        code, reference = script(folder, 1, ["--steps", "4"])
        self.assertEqual(code, [0], reference)
        one = losses(reference)
        self.assertEqual(len(one), 4)
        self.assertLess(one[-1], one[0])
        for here, there in zip(losses(texts), one, strict=True):
            self.assertLess(abs(here - there), 1e-5)
        return folder

    def test_fsdp_has_the_losses_of_one_process(self):
        self.trains("--clip-norm", "1.0")

    def test_parameters_that_are_gathered_once_give_the_losses_of_one_process(self):
        folder = self.trains("--sharding", "gradients")
        with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
            self.assertTrue(json.load(file)["gathers-once"])

    def test_shards_in_host_memory_have_the_losses_of_one_process(self):
        self.trains(system="zero-infinity")

    def test_groups_with_a_copy_each_have_the_losses_of_one_process(self):
        folder = self.trains("--sharding", "parameters", "--shard-group", 2, "--clip-norm", "1.0", world=4, batch=8)
        with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
            settings = json.load(file)
        self.assertEqual((len(settings["ranks"]), settings["shard-group"], settings["sums-once"]), (4, 2, True))
        codes, texts = script(folder, 3, ["--steps", "1"])
        self.assertTrue(all(code != 0 for code in codes), texts)

    def test_groups_of_one_process_have_the_losses_of_one_process(self):
        self.trains("--sharding", "gradients", "--shard-group", 1)

    def test_groups_in_host_memory_have_the_losses_of_one_process(self):
        folder = self.trains("--sharding", "parameters", "--shard-group", 2, system="zero-infinity", world=4, batch=8)
        with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["shard-group"], 2)

    def test_pipelines_are_no_fsdp(self):
        path = plan(self.root, "1f1b", 2, batch=4)
        said = spipe("export", "fsdp", path, "-o", os.path.join(self.root, "no"), code=3)
        self.assertIn("`spipe export torch` takes this plan", said)

    def parsed(self, system, *options, streams=False):
        path = plan(self.root, system, 2, batch=8)
        if streams:
            with open(path) as file:
                edited = json.load(file)
            for stage in edited["stages"]:
                stage["weights-in"] = "dram0"
            with open(path, "w") as file:
                json.dump(edited, file)
        folder = os.path.join(self.root, f"ds-{system}-{len(options)}")
        spipe("export", "deepspeed", path, "-o", folder, *options)
        config = os.path.join(folder, "ds_config.json")
        with open(config) as file:
            self.assertNotIn("train_batch_size", json.load(file))
        code, text = apart(self.root, lambda: parse(config, 4))
        self.assertEqual(code, 0, text)
        return json.loads(next(line for line in text.splitlines() if line.startswith("{")))

    def test_deepspeed_parses_zero_infinity(self):
        found = self.parsed("zero-infinity", streams=True)
        self.assertEqual((found["stage"], found["optimizer"], found["parameters"]), (3, "cpu", "cpu"))
        self.assertGreater(found["live"], found["prefetch"])
        found = self.parsed("zero-infinity", "--nvme", "/mnt/drive", streams=True)
        self.assertEqual((found["optimizer"], found["parameters"]), ("nvme", "nvme"))

    def test_deepspeed_parses_fsdp(self):
        found = self.parsed("fsdp")
        self.assertEqual((found["stage"], found["clipping"], found["sums"]), (3, 0.0, "fp32"))
        self.assertEqual(found["messages"], "torch.float32")
        self.assertEqual(found["adam"], {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "bias_correction": True})

    def deepspeed(self, name, path):
        """A folder of DeepSpeed."""
        folder = os.path.join(self.root, name)
        spipe("export", "deepspeed", path, "-o", folder, "--data", TEXT, "--steps", 4, "--initial-weights")
        without_compiler(folder)
        return folder

    def test_deepspeed_has_the_losses_of_plain_training(self):
        model = tiny(self.root)
        sharded = plan(self.root, "fsdp", 2, model=model, batch=4)
        plain = os.path.join(self.root, "plain")
        spipe("export", "fsdp", sharded, "-o", plain, "--data", TEXT, "--steps", 4, "--initial-weights")
        expected = losses(script(plain, 1, ["--steps", "4"])[1])
        self.assertEqual(len(expected), 4)
        offloaded = os.path.join(self.root, "offloaded.json")
        spipe("plan", "--model", model, "--hardware", machine(self.root, 1), "--devices", "gpu0,cpu0", "--system", "zero-offload", "--precision", "fp32",
              "--materialised-attention", "--seq-len", 32, "--global-batch", 4, "--microbatch", 1, "--effort", "low", "-o", offloaded)
        for name, path, world in (("zero-3", sharded, 2), ("zero-2", offloaded, 1)):
            folder, saved = self.deepspeed(name, path), os.path.join(self.root, f"{name}-saved")
            codes, texts = script(folder, world, ["--steps", "3", "--checkpoint-dir", saved, "--checkpoint-every", "1"])
            self.assertEqual(codes, [0] * world, texts)
            self.assertEqual(sorted(entry for entry in os.listdir(saved) if not entry.endswith(".py") and entry[0] != "."), ["latest", "step-000002", "step-000003"])
            found = losses(texts)
            codes, texts = script(folder, world, ["--steps", "4", "--checkpoint-dir", saved, "--resume"])
            self.assertEqual(codes, [0] * world, texts)
            found += losses(texts)
            self.assertEqual(len(found), 4)
            for here, there in zip(found, expected):
                self.assertLess(abs(here - there), 1e-5, name)

    def test_each_process_has_its_shards_alone(self):
        """No tensor with memory is larger than one parameter while the model is built, and the shards are half of it."""
        path = plan(self.root, "fsdp", 2, model=tiny(self.root), batch=4)
        folder = os.path.join(self.root, "shards")
        spipe("export", "fsdp", path, "-o", folder, "--data", TEXT, "--steps", 1)
        train = os.path.join(folder, "train.py")
        with open(train) as file:
            text = file.read()
        counted = """        from torch.utils._python_dispatch import TorchDispatchMode

        sizes = []

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
                result = function(*arguments, **(keywords or {}))
                if isinstance(result, torch.Tensor) and result.device.type != "meta" and not isinstance(result, DTensor):
                    sizes.append(result.untyped_storage().nbytes())
                return result

        with Watch():
            self.model = Model(settings, options, self.device)
        own = sum(shard_of(parameter).nbytes for parameter in self.model.whole.parameters())
        print(max(sizes), own, sum(4 * shape.numel() for shape in self.model.shapes.values()))
"""
        with open(train, "w") as file:
            file.write(text.replace("        self.model = Model(settings, options, self.device)\n", counted))
        codes, texts = script(folder, 2, ["--steps", "1"])
        self.assertEqual(codes, [0, 0], texts)
        for text in texts:
            largest, own, whole = map(int, next(line for line in text.splitlines() if line[0].isdigit()).split())
            # The largest parameter is the table: 256 tokens of width 32.
            self.assertLessEqual(largest, 4 * 256 * 32)
            self.assertEqual(2 * own, whole)
