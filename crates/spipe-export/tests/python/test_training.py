"""A training is stopped, killed and gone on with; it reads masks and held-out texts; it sums in 32 bits."""

import json
import os
import signal
import tempfile
import threading
import time
import unittest

import torch

from processes import script
from spipe import TEXT, events, losses, plan, spipe, tiny, write_tensors

IGNORED = -100


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = cls.folder.name
        model = tiny(cls.root)
        cls.plans = {"torch": plan(cls.root, "1f1b", 2, model=model), "fsdp": plan(cls.root, "fsdp", 2, model=model)}
        cls.exports = {}
        for engine, path in cls.plans.items():
            cls.exports[engine] = os.path.join(cls.root, engine)
            spipe("export", engine, path, "-o", cls.exports[engine], "--data", TEXT, "--steps", 8, "--initial-weights")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=self.root)
        self.addCleanup(folder.cleanup)
        self.own = folder.name

    def saved(self, engine):
        return ["--checkpoint-dir", os.path.join(self.own, engine), "--checkpoint-every", "2"]

    def train(self, engine, *arguments, world=2):
        codes, texts = script(self.exports[engine], world, [str(argument) for argument in arguments])
        self.assertEqual(codes, [0] * world, texts)
        return texts

    def refused(self, engine, *arguments, world=2):
        codes, texts = script(self.exports[engine], world, [str(argument) for argument in arguments])
        self.assertNotIn(0, codes)
        # One process says it.
        faults = [line for text in texts for line in text.splitlines() if line.startswith("error:")]
        self.assertEqual(len(faults), 1, texts)
        return faults[0]

    def close(self, found, expected, limit=1e-5):
        self.assertEqual(len(found), len(expected))
        for here, there in zip(found, expected):
            self.assertLess(abs(here - there), limit)

    def interrupted(self, engine, sign, whole):
        """Runs until a checkpoint is there, and signals a process; the codes and what was printed."""
        folder = os.path.join(self.own, engine)

        def strike():
            end = time.monotonic() + 60
            while time.monotonic() < end and not os.path.exists(os.path.join(folder, whole)):
                time.sleep(0.002)
            path = f"/proc/{os.getpid()}/task/{threading.main_thread().native_id}/children"
            with open(path) as file:
                children = [int(pid) for pid in file.read().split()]
            for pid in children[-1:] if sign == signal.SIGTERM else children:
                os.kill(pid, sign)

        thread = threading.Thread(target=strike)
        thread.start()
        found = script(self.exports[engine], 2, ["--steps", "10000", *self.saved(engine)])
        thread.join()
        return found

    def test_a_signal_to_end_leaves_a_checkpoint_of_one_step(self):
        for engine in self.exports:
            codes, texts = self.interrupted(engine, signal.SIGTERM, "step-000002/manifest.json")
            self.assertEqual(codes, [0, 0], texts)
            (stopped,) = events(texts, "stopped")
            self.assertEqual(stopped["step"], len(losses(texts)))
            texts = self.train(engine, "--steps", stopped["step"] + 1, *self.saved(engine), "--resume")
            self.assertEqual([event["step"] for event in events(texts, "step")], [stopped["step"]])

    def test_a_killed_run_goes_on_with_the_same_losses(self):
        for engine in self.exports:
            whole = losses(self.train(engine, "--steps", 8))
            codes, _ = self.interrupted(engine, signal.SIGKILL, "step-000002/manifest.json")
            self.assertNotIn(0, codes)
            names = sorted(os.listdir(os.path.join(self.own, engine)))
            steps = [int(name[5:]) for name in names if name.startswith("step-")]
            if max(steps) >= 8:
                continue
            texts = self.train(engine, "--steps", 8, *self.saved(engine), "--resume")
            found = losses(texts)
            self.assertEqual(found, whole[8 - len(found) :])

    def test_checkpoints_are_pruned_and_what_is_wrong_is_said(self):
        for engine in self.exports:
            folder = os.path.join(self.own, engine)
            self.assertIn("has no checkpoint to go on from", self.refused(engine, *self.saved(engine), "--resume"))
            self.train(engine, "--steps", 7, *self.saved(engine), "--keep-checkpoints", 3)
            self.assertEqual(sorted(name for name in os.listdir(folder) if name[0] != "."), ["step-000004", "step-000006", "step-000007"])
            self.assertIn("holds checkpoints of another run", self.refused(engine, "--steps", 8, *self.saved(engine)))
            path = os.path.join(folder, "step-000007", "rank-00001.safetensors")
            with open(path, "r+b") as file:
                file.seek(-3, os.SEEK_END)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1]))
            said = self.refused(engine, "--steps", 8, *self.saved(engine), "--resume")
            self.assertIn(f"`{path}` is damaged", said)

    def test_another_plan_is_refused(self):
        self.train("fsdp", "--steps", 2, *self.saved("fsdp"))
        said = self.refused("torch", "--steps", 3, *self.saved("fsdp"), "--resume")
        self.assertRegex(said, "is of plan [0-9a-f]{8}, this one is")
        said = self.refused("fsdp", "--steps", 3, *self.saved("fsdp"), "--resume", world=1)
        self.assertIn("is of 2 processes, 1 were started", said)

    def test_losses_are_those_of_one_process(self):
        one = losses(self.train("torch", "--steps", 6, "--one-process", world=1))
        self.assertLess(one[-1], one[0])
        for engine in self.exports:
            self.close(losses(self.train(engine, "--steps", 6)), one)

    def test_random_weights_are_the_same_however_the_model_is_cut(self):
        bare = {}
        for engine, path in self.plans.items():
            bare[engine] = os.path.join(self.own, engine)
            spipe("export", engine, path, "-o", bare[engine], "--data", TEXT, "--steps", 2)
        one = losses(script(bare["torch"], 1, ["--steps", "2", "--one-process"])[1])
        self.close(losses(script(bare["torch"], 2, ["--steps", "2"])[1]), one)
        self.close(losses(script(bare["fsdp"], 2, ["--steps", "2"])[1]), one)
        other = losses(script(bare["torch"], 1, ["--steps", "2", "--one-process", "--seed", "2"])[1])
        self.assertGreater(abs(one[0] - other[0]), 1e-4)

    def masked(self, name):
        """Two steps in which prompts and padding do not count, in unequal parts of the microbatches."""
        generator = torch.Generator().manual_seed(3)
        tokens = torch.randint(256, (2, 8, 33), generator=generator, dtype=torch.int32)
        mask = torch.rand(2, 8, 33, generator=generator) < torch.linspace(0.05, 0.9, 8)[None, :, None]
        mask[0, 2] = False
        path = os.path.join(self.own, f"{name}.safetensors")
        if name == "mask":
            write_tensors(path, {"tokens": tokens, "loss-mask": mask.to(torch.uint8)})
        else:
            write_tensors(path, {"tokens": tokens, "targets": tokens[:, :, 1:].masked_fill(~mask[:, :, 1:], IGNORED)})
        return path, tokens.long(), mask

    def expected(self, tokens, mask):
        """The loss of the first step over all of its targets at once, by the model of the folder alone."""
        from processes import apart

        folder = self.exports["torch"]

        def run():
            import sys

            sys.path.insert(0, folder)
            import parameters
            from stage import Stage, tie

            with open(os.path.join(folder, "plan.json")) as file:
                settings = json.load(file)
            cpu = torch.device("cpu")
            stages = [Stage(settings["model"], stage, cpu, torch.float32, (cpu, torch.float32)) for stage in settings["stages"]]
            tie(stages)
            parameters.fill(stages, os.path.join(folder, "weights"), 1)
            x = tokens[0, :, :-1]
            for stage in stages:
                x = stage(x)
            each = torch.nn.functional.cross_entropy(x.flatten(0, 1), tokens[0, :, 1:].flatten(), reduction="none")
            counts = mask[0, :, 1:].flatten()
            print((each * counts).sum().item() / counts.sum().item())

        code, text = apart(self.own, run)
        self.assertEqual(code, 0, text)
        return float(text)

    def test_prompts_and_padding_do_not_count(self):
        path, tokens, mask = self.masked("mask")
        first = self.expected(tokens, mask)
        one = losses(self.train("torch", "--steps", 2, "--one-process", "--data", path, world=1))
        self.assertLess(abs(one[0] - first), 1e-5)
        for engine in self.exports:
            self.close(losses(self.train(engine, "--steps", 2, "--data", path)), one)
            self.close(losses(self.train(engine, "--steps", 2, "--data", self.masked("targets")[0])), one)

    def test_held_out_texts_are_evaluated(self):
        held_out = os.path.join(self.own, "held-out.txt")
        with open(held_out, "wb") as file:
            # Ten windows of 32 tokens: a batch of eight and one of two.
            file.write(os.urandom(32 * 10 + 5))
        options = ["--steps", 3, "--eval-data", held_out, "--eval-every", 2]
        one = events(self.train("torch", *options, "--one-process", world=1), "eval")
        self.assertEqual([(event["step"], event["tokens"]) for event in one], [(2, 320), (3, 320)])
        without = losses(self.train("torch", "--steps", 3))
        for engine in self.exports:
            texts = self.train(engine, *options)
            found = events(texts, "eval")
            self.assertEqual([(event["step"], event["tokens"]) for event in found], [(2, 320), (3, 320)])
            self.close([event["loss"] for event in found], [event["loss"] for event in one])
            # Evaluations change nothing.
            self.close(losses(texts), without)

    def test_stages_in_a_circle_are_evaluated(self):
        path = plan(self.root, "interleaved-1f1b", 2, model=tiny(self.root))
        folder = os.path.join(self.own, "circle")
        spipe("export", "torch", path, "-o", folder, "--data", TEXT, "--steps", 2, "--initial-weights")
        options = ["--steps", "2", "--eval-data", TEXT, "--eval-every", "1", "--eval-steps", "2"]
        codes, texts = script(folder, 2, options)
        self.assertEqual(codes, [0, 0], texts)
        one = events(script(folder, 1, [*options, "--one-process"])[1], "eval")
        self.close([event["loss"] for event in events(texts, "eval")], [event["loss"] for event in one])

    def test_steps_that_run_out_and_bytes_are_told_once(self):
        texts = self.train("torch", "--steps", 9)
        told = [line for text in texts for line in text.splitlines() if line.startswith("warning:")]
        self.assertEqual(len(told), 1, texts)
        self.assertIn("has the tokens of 8 steps: after them it begins again", told[0])
        self.assertNotIn("warning:", "".join(self.train("torch", "--steps", 8)))
        self.assertNotIn("byte by byte", "".join(self.train("torch", "--steps", 1, "--data", TEXT)))
        path = plan(self.root, "1f1b", 2, model=tiny(self.root, 300), name="large")
        folder = os.path.join(self.own, "large")
        spipe("export", "torch", path, "-o", folder)
        codes, texts = script(folder, 2, ["--steps", "1", "--data", TEXT])
        self.assertEqual(codes, [0, 0], texts)
        self.assertEqual("".join(texts).count("is read byte by byte, and the model has 300 tokens"), 1)

    def test_tokens_beyond_the_vocabulary_are_refused(self):
        path = os.path.join(self.own, "wrong.safetensors")
        tokens = torch.zeros(1, 8, 33, dtype=torch.int32)
        tokens[0, 5, 7] = 256
        write_tensors(path, {"tokens": tokens})
        for engine in self.exports:
            self.assertIn("has token 256, the model's vocabulary has 256", self.refused(engine, "--steps", 1, "--data", path))

    def test_narrow_gradients_are_summed_in_32_bits(self):
        """64 equal microbatches in 16 bits train as 2 do, unless their gradients are summed in 16 bits."""
        for system in ("1f1b", "zb-h1"):
            found = {}
            for batch in (2, 64):
                path = plan(self.root, system, 2, model=tiny(self.root), batch=batch, precision="bf16", name=f"{system}-{batch}")
                folder = os.path.join(self.own, f"{system}-{batch}")
                spipe("export", "torch", path, "-o", folder, "--initial-weights")
                settings = os.path.join(folder, "plan.json")
                with open(settings) as file:
                    text = file.read()
                with open(settings, "w") as file:
                    # Cores compute in 32 bits of their own; here they play a GPU.
                    file.write(text.replace('"computes-in": "fp32"', '"computes-in": "bf16"'))
                data = os.path.join(self.own, f"{batch}.safetensors")
                row = torch.arange(33, dtype=torch.int32) * 7 % 256
                write_tensors(data, {"tokens": row.expand(3, batch, 33).contiguous()})
                for options in ([], ["--narrow-sums"]) if batch > 2 else ([],):
                    codes, texts = script(folder, 2, ["--steps", "3", "--data", data, *options])
                    self.assertEqual(codes, [0, 0], texts)
                    found[batch, len(options)] = losses(texts)
            wide = max(abs(here - there) for here, there in zip(found[2, 0], found[64, 0]))
            narrow = max(abs(here - there) for here, there in zip(found[2, 0], found[64, 1]))
            self.assertLess(wide, narrow / 2, found)


if __name__ == "__main__":
    unittest.main()
