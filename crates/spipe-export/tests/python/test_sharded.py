"""Exported FSDP2 trains in two processes with the losses of one; DeepSpeed's own parser reads its configuration."""

import json
import os
import tempfile
import unittest

from processes import apart, script
from spipe import TEXT, losses, plan, spipe


def parse(path, batch):
    """Reads a configuration with DeepSpeed's own parser, which takes a process without a launcher for the only one."""
    from deepspeed.runtime.config import DeepSpeedConfig

    config = DeepSpeedConfig(path)
    assert config.train_batch_size == batch, config.train_batch_size
    zero = config.zero_config
    place = lambda section: section and str(getattr(section.device, "value", section.device))  # noqa: E731
    print(json.dumps({"stage": int(zero.stage), "optimizer": place(zero.offload_optimizer), "parameters": place(zero.offload_param),
                      "prefetch": zero.prefetch_bucket_size, "live": zero.max_live_parameters}))


class Sharded(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def trains(self, *options, system="fsdp"):
        path = plan(self.root, system, 2, *options, batch=4)
        folder = os.path.join(self.root, "export")
        spipe("export", "fsdp", path, "-o", folder, "--data", TEXT, "--steps", "4", "--initial-weights")
        codes, texts = script(folder, 2, ["--steps", "4"])
        self.assertEqual(codes, [0, 0], texts)
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

    def test_shards_in_host_memory_have_the_losses_of_one_process(self):
        self.trains(system="zero-infinity")

    def test_pipelines_are_no_fsdp(self):
        path = plan(self.root, "1f1b", 2, batch=4)
        said = spipe("export", "fsdp", path, "-o", os.path.join(self.root, "no"), code=3)
        self.assertIn("use `spipe export torch`", said)

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
        self.assertEqual(self.parsed("fsdp")["stage"], 3)
