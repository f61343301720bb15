"""Exports to torchtitan: its manager takes the module, and degrees, stages, order and model are the plan's."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

from spipe import SPIPE, rows, spipe

MACHINE = "a100-80g-x8-nvlink"
# By degrees of pipeline, data and tensor parallelism: system, and more options.
PLANS = {
    (2, 2, 2): ("1f1b", ["--sequence-parallel", "--sharding", "optimizer", "--clip-norm", "1"]),
    (4, 2, 1): ("1f1b", ["--sharding", "none", "--pin", "recompute=1..9"]),
    (2, 1, 4): ("interleaved-1f1b", []),
    (2, 2, 1): ("zb-v", ["--sharding", "none"]),
    (4, 1, 2): ("zb-h1", ["--sequence-parallel"]),
    (1, 1, 8): ("checkpointing", ["--sequence-parallel"]),
}
# Parses the module as torchtitan's trainer does, and builds what needs no process group.
PARSE = """
import dataclasses, json, sys
import torch
from torchtitan.config.manager import ConfigManager
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.distributed.pipeline_parallel import _get_pp_rank_to_stage_indices_mapping, _get_pipeline_metadata

config = ConfigManager().parse_args(["--module", "plan", "--config", "plan"])
dims = ParallelDims.from_config(config.parallelism, int(sys.argv[1]))
sizes = config.model_spec.model
sizes.update_from_config(config=config)
with torch.device("meta"):
    model = sizes.build()
again = []
if config.activation_checkpoint is not None:
    before = {name: block for name, block in model.layers.named_children()}
    config.activation_checkpoint.build(dump_folder="").apply(model)
    again = [int(name) for name, block in model.layers.named_children() if block is not before[name]]
parallelism, placed = config.parallelism, None
if dims.pp > 1:
    _get_pipeline_metadata(dims, parallelism, sizes)
    count = len(parallelism.module_fqns_per_model_part)
    placed = [_get_pp_rank_to_stage_indices_mapping(rank, dims.pp, parallelism.pipeline_parallel_schedule, count) for rank in range(dims.pp)]
names = {name for name, _ in model.named_modules()}
missing = [name for part in parallelism.module_fqns_per_model_part or [] for name in part if name not in names]
print(json.dumps({
    "dims": [dims.pp, dims.dp_replicate, dims.dp_shard, dims.tp], "parallelism": dataclasses.asdict(parallelism),
    "training": dataclasses.asdict(config.training), "placed": placed, "missing": missing, "recomputed": again, "is-full": isinstance(
    config.activation_checkpoint, FullAC.Config), "parameters": sum(parameter.numel() for parameter in model.parameters()),
}, default=str))
"""


def parsed(folder, world):
    environment = {**os.environ, "PYTHONPATH": folder}
    done = subprocess.run([sys.executable, "-c", PARSE, str(world)], capture_output=True, text=True, timeout=300, cwd=folder, env=environment)
    if done.returncode:
        raise AssertionError(done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


class Torchtitan(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def planned(self, degrees, system, *options, model="llama3-8b", precision="bf16", length=2048):
        pipeline, data, tensor = degrees
        path = os.path.join(self.root, f"{system}-{pipeline}-{data}-{tensor}.json")
        spipe("plan", "--model", model, "--hardware", MACHINE, "--seq-len", length, "--global-batch", 16, "--microbatch", 1, "--effort", "low", "--precision",
              precision, "--system", system, "--pp", pipeline, "--dp", data, "--tp", tensor, *options, "-o", path)
        with open(path, encoding="utf-8") as file:
            return path, json.load(file)

    def exported(self, path):
        folder = path.removesuffix(".json")
        spipe("export", "torchtitan", path, "-o", folder)
        return folder

    def test_the_manager_takes_the_plan(self):
        counted = json.loads(spipe("model", "show", "llama3-8b", "--format", "json"))
        for degrees, (system, options) in PLANS.items():
            with self.subTest(degrees=degrees, system=system):
                path, plan = self.planned(degrees, system, *options)
                folder = self.exported(path)
                pipeline, data, tensor = degrees
                found = parsed(folder, pipeline * data * tensor)
                divides = "optimizer" in options
                self.assertEqual(found["dims"], [pipeline, 1 if divides else data, data if divides else 1, tensor])
                parallelism, training = found["parallelism"], found["training"]
                self.assertEqual(parallelism["enable_sequence_parallel"], "--sequence-parallel" in options)
                self.assertEqual(found["parameters"], counted["parameters"])
                self.assertEqual((training["global_batch_size"], training["seq_len"]), (16, 2048))
                self.assertEqual(training["local_batch_size"], 16 // data if pipeline > 1 else 1)
                self.assertEqual(training["max_norm"], 1.0 if "--clip-norm" in options else float("inf"))
                self.assertEqual(found["missing"], [])
                self.check_stages(folder, plan, found)
                self.assertEqual(bool(found["recomputed"]), "--pin" in options or system == "checkpointing")
                self.assertEqual(found["recomputed"], self.recomputed(plan))

    def check_stages(self, folder, plan, found):
        """The modules of each stage are the plan's layers, on the processes where its order has them."""
        parts, schedule = found["parallelism"]["module_fqns_per_model_part"], found["parallelism"]["pipeline_parallel_schedule"]
        if parts is None:
            self.assertEqual(len(plan["stages"]), 1)
            return
        layers = [name for part in parts for name in part]
        self.assertEqual(layers, ["tok_embeddings", *(f"layers.{index}" for index in range(32)), "norm", "lm_head"])
        ends = [sum(len(part) for part in parts[: index + 1]) for index in range(len(parts))]
        # The head is two modules.
        ends[-1] -= 1
        # Neighbours of the plan on one device may be one stage.
        turns = [(stage, following) for stage, following in zip(plan["stages"], [*plan["stages"][1:], None])]
        joined = [stage["last-layer"] for stage, following in turns if following is None or following["device"] != stage["device"]]
        self.assertEqual([end - 1 for end in ends], joined if len(ends) < len(turns) else [stage["last-layer"] for stage in plan["stages"]])
        csv = found["parallelism"]["pipeline_parallel_schedule_csv"]
        self.assertEqual(bool(csv), schedule not in ("1F1B", "GPipe"))
        if csv:
            self.assertTrue(os.path.samefile(csv, os.path.join(folder, "schedule.csv")))
            for row, own in zip(rows(folder), found["placed"], strict=True):
                self.assertEqual({int(re.match(r"\d+", token)[0]) for token in row}, set(own))

    def recomputed(self, plan):
        """The blocks of a plan file that are computed again."""
        blocks = []
        for choice in (choice for stage in plan["stages"] for choice in stage["choices"] if choice["activations"] == "recomputed"):
            first, _, last = choice["layers"].partition("..")
            blocks += [layer - 1 for layer in range(int(first), int(last or first) + 1) if 1 <= layer <= 32]
        return blocks

    def test_1f1b_by_name_is_the_order_of_the_plan(self):
        """PyTorch's 1F1B: rank r of p runs p - r forwards before its first backward, then both in turn."""
        path, _ = self.planned((4, 2, 1), "1f1b", "--sharding", "none")
        self.assertFalse(os.path.exists(os.path.join(self.exported(path), "schedule.csv")))
        folder = os.path.join(self.root, "torch")
        spipe("export", "torch", path, "-o", folder)
        for rank, row in enumerate(sorted(rows(folder), key=lambda row: int(row[0].partition("F")[0]))):
            # A device may have several stages, one after the other.
            stage = row[0].partition("F")[0]
            passes = [token[len(stage)] for token in row if token[: len(stage)] == stage and token[len(stage)] in "FB"]
            self.assertEqual(passes, ["F"] * (4 - rank) + ["B", "F"] * (8 - 4 + rank) + ["B"] * (4 - rank))

    def tied(self):
        """A model with one table for both ends."""
        path = os.path.join(self.root, "tied.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write('format-version = 1\nkind = "transformer"\nname = "tied"\nvocabulary = 32000\nseq-len = 2048\nhidden = 2048\nlayers = 8\n'
                       "heads = 16\nintermediate = 5632\ntied = true\n")
        return path

    def test_what_torchtitan_cannot_do_is_refused(self):
        cases = [
            ((1, 2, 4), "gpu-only", ["--sharding", "none"], {}, "reduces gradients after each of the 8 microbatches.*nearest: a larger `--microbatch`"),
            ((2, 1, 4), "1f1b", [], {"model": self.tied()}, "ties embedding and head within one process alone.*`--pipeline-parallel 1`"),
            ((2, 1, 4), "1f1b", ["--optimizer", "lion"], {}, "its optimizer is not AdamW"),
            ((2, 1, 4), "1f1b", [], {"model": "gpt2", "precision": "fp16", "length": 1024}, "without scaled losses.*its feed-forward network is not SwiGLU"),
        ]
        for degrees, system, options, more, said in cases:
            with self.subTest(said=said):
                path, _ = self.planned(degrees, system, *options, **more)
                folder = os.path.join(self.root, "no")
                done = subprocess.run([SPIPE, "export", "torchtitan", path, "-o", folder], capture_output=True, text=True)
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertRegex(re.sub(r"\s+", " ", done.stderr), said)
                self.assertFalse(os.path.exists(folder))


if __name__ == "__main__":
    unittest.main()
