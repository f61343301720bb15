"""Plans on a mesh, pipeline x replica x tensor, train as one process does, and go on from each other's checkpoints."""

import glob
import json
import os
import re
import subprocess
import tempfile
import unittest

import torch

from processes import script
from spipe import SPIPE, TEXT, events, losses, plan, rows, spipe, stages, write_tensors
from test_parity import labels, tensors

STEPS = 4
RATE = ["--learning-rate", "1e-4"]
# With SGD a step is proportional to the gradient; AdamW would hide a wrong sum or norm.
STEEP = ["--learning-rate", "0.3"]
SGD = ["--optimizer", "sgd"]
CLIPPED = [*SGD, "--clip-norm", "0.5"]
# Pipeline, replicas, members of a team; then what else is divided.
MESHES = {
    (2, 2, 1): ["--sharding", "none"],
    (2, 1, 2): ["--sequence-parallel"],
    (1, 2, 2): ["--sharding", "optimizer"],
    (2, 2, 2): ["--sequence-parallel", "--sharding", "optimizer"],
}


def model(folder, tied=False, config=""):
    """A model file with grouped heads, whose steps take milliseconds."""
    path = os.path.join(folder, f"small-{tied}-{bool(config)}.toml")
    with open(path, "w") as file:
        file.write(f'format-version = 1\nkind = "transformer"\nname = "small"\nvocabulary = 256\nseq-len = 64\nhidden = 32\nlayers = 4\nheads = 4\n'
                   f"kv-heads = 2\nintermediate = 48\ntied = {str(tied).lower()}\n{config}")
    return path


def size(mesh):
    return mesh[0] * mesh[1] * mesh[2]


class Meshes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = cls.folder.name

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def exported(self, mesh, *options, tied=False, system="1f1b", config="", **more):
        """The folder of a plan on a mesh, made once; without a mesh, of a plan for as many devices as it has rows."""
        name = "".join(letter if letter.isalnum() else "-" for letter in f"{mesh}{options}{tied}{system}{bool(config)}{sorted(more.items())}")
        folder = os.path.join(self.root, name)
        if not os.path.exists(folder):
            degrees = ["--pp", mesh[0], "--dp", mesh[1], "--tp", mesh[2]]
            path = plan(self.root, system, size(mesh), *degrees, *options, model=model(self.root, tied, config), name=f"plan-{name}", **more)
            spipe("export", "torch", path, "-o", folder, "--data", TEXT, "--steps", 8, "--initial-weights")
        return folder

    def plan_of(self, folder):
        return os.path.join(self.root, f"plan-{os.path.basename(folder)}-{self.devices_of(folder)}.json")

    def devices_of(self, folder):
        with open(os.path.join(folder, "plan.json")) as file:
            return len(json.load(file)["ranks"])

    def run_in(self, folder, world, *options, steps=STEPS):
        codes, texts = script(folder, world, ["--steps", str(steps), *map(str, options)])
        self.assertEqual(codes, [0] * world, "\n".join(texts)[-6000:])
        return texts

    def close(self, found, expected, limit=1e-5):
        self.assertEqual(len(found), len(expected))
        for here, there in zip(found, expected):
            self.assertLess(abs(here - there), limit, (found, expected))

    def check(self, mesh, folder, *options, limit=1e-5):
        """The losses of a mesh are those of one process; what the processes of the mesh printed."""
        texts = self.run_in(folder, size(mesh), *options)
        self.close(losses(texts), losses(self.run_in(folder, 1, "--one-process", *options)), limit)
        return texts

    def test_losses_and_weights_are_those_of_one_process(self):
        for mesh, options in MESHES.items():
            with self.subTest(mesh=mesh):
                folder = self.exported(mesh, *options, *SGD)
                self.assertEqual(len(rows(folder)), mesh[0])
                weights = os.path.join(folder, "after"), os.path.join(folder, "after-one")
                one = losses(self.run_in(folder, 1, "--one-process", *STEEP, "--save-weights", weights[1]))
                self.close(losses(self.run_in(folder, size(mesh), *STEEP, "--save-weights", weights[0])), one)
                found, expected = map(tensors, weights)
                self.assertEqual(found.keys(), expected.keys())
                for name, tensor in expected.items():
                    self.assertLess((found[name] - tensor).abs().max().item(), 1e-4, name)

    def test_norms_of_all_axes_clip_and_tied_ends_stay_equal(self):
        for mesh, options in MESHES.items():
            with self.subTest(mesh=mesh):
                folder = self.exported(mesh, *options, *CLIPPED, tied=True)
                clipped = losses(self.check(mesh, folder, *STEEP))
        free = losses(self.run_in(self.exported((2, 2, 1), *SGD, tied=True), 4, *STEEP))
        self.assertGreater(abs(free[-1] - clipped[-1]), 0.1, "the norm is above the limit")

    def test_other_orders_recompute_and_norms_of_heads(self):
        heads = "qk-norm = true\n"
        cases = [("interleaved-1f1b", (2, 1, 2), ["--sequence-parallel"], ""), ("zb-v", (2, 1, 2), [], ""), ("zb-h1", (2, 2, 1), ["--sharding", "optimizer"], ""),
                 ("1f1b", (2, 1, 2), ["--sequence-parallel", "--pin", "recompute=1..4"], ""), ("1f1b", (2, 1, 2), [], heads),
                 ("1f1b", (1, 2, 2), ["--sequence-parallel"], heads)]
        for system, mesh, options, config in cases:
            with self.subTest(system=system, mesh=mesh, options=options, config=config):
                folder = self.exported(mesh, *options, *SGD, system=system, config=config)
                self.assertEqual(any(stage["recomputed"] for stage in stages(folder)), "--pin" in options)
                self.check(mesh, folder, *STEEP)

    def test_targets_that_do_not_count_are_shared_unequally(self):
        generator = torch.Generator().manual_seed(3)
        tokens = torch.randint(256, (2, 8, 33), generator=generator, dtype=torch.int32)
        mask = torch.rand(2, 8, 33, generator=generator) < torch.linspace(0.05, 0.9, 8)[None, :, None]
        path = os.path.join(self.root, "mask.safetensors")
        write_tensors(path, {"tokens": tokens, "loss-mask": mask.to(torch.uint8)})
        mesh = (2, 2, 2)
        folder = self.exported(mesh, *MESHES[mesh])
        options = [*RATE, "--data", path, "--eval-data", path, "--eval-every", 1]
        texts = self.check(mesh, folder, *options)
        one = self.run_in(folder, 1, "--one-process", *options)
        found, expected = (events(printed, "eval") for printed in (texts, one))
        self.assertEqual([event["tokens"] for event in found], [event["tokens"] for event in expected])
        self.close([event["loss"] for event in found], [event["loss"] for event in expected])

    def test_a_run_goes_on_on_another_mesh(self):
        """From each mesh to the next, the last time from a pipeline without a mesh, with the losses of one run."""
        path = plan(self.root, "1f1b", 2, model=model(self.root, True), name="pair")
        pair = os.path.join(self.root, "pair")
        spipe("export", "torch", path, "-o", pair, "--data", TEXT, "--steps", 8, "--initial-weights")
        meshes = [*MESHES, (2, 2, 2)]
        folders = [pair, *(self.exported(mesh, *MESHES[mesh], tied=True) for mesh in MESHES), self.exported((2, 2, 2), "--sharding", "none", tied=True)]
        worlds = [2, *map(size, meshes)]
        whole = losses(self.run_in(pair, 1, "--one-process", *RATE, steps=len(folders) + 1))
        saved = os.path.join(self.root, "saved")
        for step, (folder, world) in enumerate(zip(folders, worlds), start=1):
            options = [*RATE, "--checkpoint-dir", saved, *(["--resume"] if step > 1 else [])]
            texts = self.run_in(folder, world, *options, steps=step)
            self.assertEqual([event["step"] for event in events(texts, "step")], [step - 1])
            self.close(losses(texts), whole[step - 1 : step])
        self.refuses_what_is_wrong(saved, folders[-1])

    def refuses_what_is_wrong(self, saved, folder):
        options = ["--steps", "9", *RATE, "--checkpoint-dir", saved, "--resume"]
        newest = sorted(glob.glob(os.path.join(saved, "step-*")))[-1]
        path = os.path.join(newest, "rank-00005.safetensors")
        with open(path, "r+b") as file:
            file.seek(-3, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        self.assertIn(f"`{path}` is damaged", self.fault(folder, 8, options))
        other = self.exported((2, 2, 1), "--optimizer", "lion")
        self.assertIn("it is of another model or optimizer", self.fault(other, 4, [*options[:-3], "--checkpoint-dir", self.saved_by((2, 2, 1)), "--resume"]))

    def saved_by(self, mesh):
        """A checkpoint of SGD, which has no moments."""
        saved = os.path.join(self.root, "without-moments")
        self.run_in(self.exported(mesh, *SGD, tied=True), size(mesh), "--checkpoint-dir", saved, steps=1)
        return saved

    def fault(self, folder, world, options):
        codes, texts = script(folder, world, options)
        self.assertNotIn(0, codes)
        faults = [line for text in texts for line in text.splitlines() if line.startswith("error:")]
        self.assertTrue(faults, "\n".join(texts)[-4000:])
        return faults[0]

    def test_a_divided_optimizer_takes_a_part_of_the_bytes(self):
        """In 16 bits a process has masters and two moments of its part alone: 12 bytes of each number that it steps."""
        held = {}
        for sharding in ("none", "optimizer"):
            folder = self.exported((1, 2, 1), "--sharding", sharding, precision="bf16")
            with open(os.path.join(folder, "plan.json")) as file:
                text = file.read()
            with open(os.path.join(folder, "plan.json"), "w") as file:
                # Cores compute in 32 bits of their own; here they play a GPU.
                file.write(text.replace('"computes-in": "fp32"', '"computes-in": "bf16"'))
            trace = os.path.join(folder, "trace")
            texts = self.run_in(folder, 2, *RATE, "--trace", trace)
            self.assertEqual(os.listdir(trace), ["rank0.json"])
            with open(os.path.join(trace, "rank0.json")) as file:
                held[sharding] = json.load(file)["spipe"]["held-bytes"]["host"]
            # Products in 16 bits round otherwise in microbatches of another order.
            self.close(losses(texts), losses(self.run_in(folder, 1, "--one-process", *RATE)), 2e-3)
        parameters = sum(tensor.numel() for tensor in tensors(os.path.join(folder, "weights")).values())
        self.assertAlmostEqual((held["none"] - held["optimizer"]) / (6 * parameters), 1.0, delta=0.02)

    def test_a_trace_of_the_first_replica_is_imported(self):
        mesh = (2, 2, 2)
        folder = self.exported(mesh, *MESHES[mesh])
        trace = os.path.join(folder, "trace")
        self.run_in(folder, 8, *RATE, "--trace", trace, steps=3)
        names = sorted(os.listdir(trace))
        self.assertEqual(len(names), 2)
        for name, row in zip(names, rows(folder)):
            self.assertEqual(labels(os.path.join(trace, name))[1], row)
        measured = os.path.join(self.root, "measured.json")
        spipe("trace", "import", trace, "--plan", self.plan_of(folder), "-o", measured)
        with open(measured) as file:
            self.assertEqual(len(json.load(file)["memories"]), 2)

    def test_what_a_mesh_cannot_do_is_refused(self):
        cases = [
            ((1, 2, 1), ["--optimizer", "adafactor"], "adafactor.*wants whole matrices.*plan with `--optimizer adamw`"),
            ((1, 1, 4), [], "4 members of a team cannot share 2 heads of keys and values equally"),
            ((1, 2, 2), ["--modules", "transformers"], "teams divide layers by the names of the folder's own modules"),
        ]
        for mesh, options, said in cases:
            of_export = options if options[:1] == ["--modules"] else []
            of_plan = [] if of_export else options
            path = plan(self.root, "1f1b", size(mesh), "--pp", mesh[0], "--dp", mesh[1], "--tp", mesh[2], *of_plan, model=model(self.root), name="refused")
            folder = os.path.join(self.root, "no")
            done = subprocess.run([SPIPE, "export", "torch", path, "-o", folder, *of_export], capture_output=True, text=True)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertRegex(re.sub(r"\s+", " ", done.stderr), said)
            self.assertFalse(os.path.exists(folder))


if __name__ == "__main__":
    unittest.main()
