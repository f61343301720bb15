"""Exports to Megatron: values that its classes take, and arguments that its script has."""

import json
import os
import re
import subprocess
import tempfile
import unittest
import warnings

from spipe import HERE, SPIPE, spipe

MODELS = {"llama2-7b": ["--precision", "bf16"], "gpt2": ["--precision", "fp16"]}
MACHINE = "a100-80g-x8-nvlink"
# By degrees of tensor, pipeline and data parallelism, more options.
MESHES = {
    (2, 2, 2): ["--sequence-parallel", "--sharding", "optimizer"],
    (1, 4, 2): ["--sharding", "none"],
    (4, 1, 2): ["--sharding", "optimizer"],
}


def configured(settings):
    """The classes of Megatron Core with the exported values; they refuse what is illegal."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.distributed import DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig
        from megatron.core.transformer.transformer_config import TransformerConfig

        functions = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}
        types = {"params_dtype", "pipeline_dtype"}

        def real(key, value):
            return functions[value] if key == "activation_func" else getattr(torch, value) if key in types else value

        def of(kind, part):
            return kind(**{key: real(key, value) for key, value in settings[part].items()})

        return of(TransformerConfig, "transformer"), of(DistributedDataParallelConfig, "ddp"), of(OptimizerConfig, "optimizer")


class Megatron(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def planned(self, model, mesh, *options, machine=MACHINE, system="1f1b,checkpointing,gpu-only"):
        tensor, pipeline, data = mesh
        path = os.path.join(self.root, f"{model}-{tensor}-{pipeline}-{data}.json")
        degrees = ["--tp", tensor, "--pp", pipeline, "--dp", data]
        common = ["--model", model, "--hardware", machine, "--global-batch", 16, "--microbatch", 1, "--effort", "low"]
        spipe("plan", *common, "--runtime", "megatron", "--system", system, *degrees, *options, "-o", path)
        return path

    def exported(self, path):
        folder = path.removesuffix(".json")
        spipe("export", "megatron", path, "-o", folder)
        with open(os.path.join(folder, "megatron.json"), encoding="utf-8") as file:
            settings = json.load(file)
        with open(os.path.join(folder, "arguments.txt"), encoding="utf-8") as file:
            return settings, [line.split() for line in file]

    def refused(self, path):
        """Why a plan is not exported, in one line."""
        done = subprocess.run([SPIPE, "export", "megatron", path, "-o", os.path.join(self.root, "no")], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertFalse(os.path.exists(os.path.join(self.root, "no")))
        return re.sub(r"\s+", " ", done.stderr)

    def unknown(self, arguments):
        """Arguments that the script does not have."""
        with open(os.path.join(HERE, "megatron-arguments.txt"), encoding="utf-8") as file:
            known = {line.strip() for line in file if line.startswith("--")}
        names = [words[0] for words in arguments]
        self.assertEqual(len(names), len(set(names)))
        return set(names) - known

    def test_classes_take_the_values(self):
        for model, common in MODELS.items():
            for mesh, options in MESHES.items():
                with self.subTest(model=model, mesh=mesh):
                    path = self.planned(model, mesh, *common, *options)
                    settings, arguments = self.exported(path)
                    transformer, ddp, optimizer = configured(settings)
                    degrees = (transformer.tensor_model_parallel_size, transformer.pipeline_model_parallel_size)
                    self.assertEqual((*degrees, settings["world-size"]), (*mesh[:2], mesh[0] * mesh[1] * mesh[2]))
                    divided = "optimizer" in options and mesh[2] > 1
                    self.assertEqual((ddp.use_distributed_optimizer, optimizer.use_distributed_optimizer), (divided,) * 2)
                    given = {words[0]: words[1:] for words in arguments}
                    self.assertEqual(given["--num-layers"], [str(transformer.num_layers)])
                    self.assertEqual("--sequence-parallel" in given, transformer.sequence_parallel)
                    self.assertEqual("--use-distributed-optimizer" in given, divided)
                    if mesh[1] > 1:
                        layout = given["--pipeline-model-parallel-layout"][0]
                        self.assertEqual(layout.count("|") + 1, mesh[1])

    def test_arguments_are_those_of_the_script(self):
        for model, mesh in (("llama2-7b", (2, 2, 2)), ("gpt2", (1, 4, 2))):
            path = self.planned(model, mesh, *MODELS[model], "--sharding", "optimizer", "--clip-norm", "1")
            self.assertEqual(self.unknown(self.exported(path)[1]), set())

    def test_sequences_and_experts_are_divided(self):
        path = self.planned("llama2-7b", (2, 2, 1), "--precision", "bf16", "--cp", 2, "--sharding", "optimizer")
        settings, arguments = self.exported(path)
        transformer, _, _ = configured(settings)
        self.assertEqual((transformer.context_parallel_size, settings["world-size"]), (2, 8))
        self.assertIn(["--context-parallel-size", "2"], arguments)
        large = ["--precision", "bf16", "--seq-len", 4096, "--nodes", 2, "--network", "8x400Gb"]
        divided = [*large, "--ep", 8, "--sharding", "optimizer"]
        path = self.planned("mixtral-8x7b", (2, 1, 8), *divided, "--sequence-parallel", machine="h100-80g-x8-nvlink")
        settings, arguments = self.exported(path)
        transformer, _, _ = configured(settings)
        degrees = (transformer.expert_model_parallel_size, transformer.num_moe_experts, transformer.moe_router_topk)
        self.assertEqual((degrees, settings["world-size"]), ((8, 8, 2), 16))
        self.assertEqual(self.unknown(arguments), set())
        path = self.planned("mixtral-8x7b", (2, 1, 8), *divided, machine="h100-80g-x8-nvlink")
        self.assertIn("plan with `--sequence-parallel`", self.refused(path))

    def test_products_are_in_eight_bits(self):
        options = ["--precision", "fp8", "--sharding", "optimizer"]
        path = self.planned("llama2-7b", (2, 2, 2), *options, machine="h100-80g-x8-nvlink")
        settings, arguments = self.exported(path)
        transformer, _, _ = configured(settings)
        self.assertEqual((transformer.fp8, transformer.bf16), ("hybrid", True))
        self.assertIn(["--fp8-format", "hybrid"], arguments)
        self.assertEqual(self.unknown(arguments), set())

    def test_what_megatron_cannot_do_is_refused(self):
        path = self.planned("llama2-7b", (2, 4, 1), "--precision", "bf16", system="zb-h1")
        self.assertRegex(self.refused(path), "Megatron runs 1F1B.*nearest: `--system 1f1b` or `interleaved-1f1b`")


if __name__ == "__main__":
    unittest.main()
