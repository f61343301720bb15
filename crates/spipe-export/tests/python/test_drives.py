"""Interpreted programs whose parameters, optimizer state or activations are on a drive: losses, checkpoints, and files that fail."""

import json
import os
import signal
import tempfile
import unittest

from interpreted import Case
from processes import apart
from streamed import ROOMY, STEPS, exported, lines, planned, program, reference, trained

STATE, PARAMETERS, ACTIVATIONS = ("--state-on", "nvme0"), ("--parameters-on", "nvme0"), ("--activations-on", "nvme0")


class Drives(Case):
    def setUp(self):
        self.drive = os.path.join(self.root, "drive")
        os.makedirs(self.drive, exist_ok=True)
        self.options = ["--drive", f"nvme0={self.drive}"]

    def on_drive(self, family, system, count, *options, name, **more):
        plan = planned(self.root, family, system, count, *options, name=name, drive=True, **more)
        return plan, exported(plan)

    def check_drive(self, family, system, count, *options, kinds, **more):
        plan, folder = self.on_drive(family, system, count, *options, name="drive", **more)
        lanes = [lane for lane in program(folder)["lanes"] if lane["role"].startswith("nvme")]
        self.assertEqual({action["kind"] for lane in lanes for action in lane["actions"]}, kinds)
        on_drive = next(memory for memory in program(folder)["memories"] if memory.get("drive"))
        with open(plan) as file:
            planned_bytes = json.load(file)["peak-bytes"]["nvme0"]
        self.assertLessEqual(0.5 * planned_bytes, on_drive["bytes"])
        self.assertLessEqual(on_drive["bytes"], planned_bytes + 4096 * len(program(folder)["buffers"]))
        trace = os.path.join(folder, "trace")
        losses = [line["loss"] for line in trained(folder, "--trace", trace, *self.options)]
        self.near(losses, [line["loss"] for line in reference(folder)])
        self.in_order(plan, folder, trace)
        self.assertEqual(os.listdir(self.drive), [])

    def test_state_of_streamed_stages(self):
        self.check_drive("llama", "superpipeline", 1, *STATE, kinds={"state-in", "state-out"})

    def test_state_of_a_stage_that_stays(self):
        self.check_drive("gpt2", "zero-offload", 1, *STATE, kinds={"state-in", "state-out"}, memory=ROOMY)

    def test_parameters_and_state_of_tied_layers(self):
        self.check_drive("gpt2", "mobius", 2, *STATE, *PARAMETERS, kinds={"state-in", "state-out", "weights-in", "write-back"})

    def test_parameters_in_other_stages_backwards(self):
        pin = ("--pin", "synchronous-optimizer=1")
        self.check_drive("llama", "spipe", 2, *PARAMETERS, *pin, kinds={"weights-in", "write-back"})

    def test_activations_of_two_processes(self):
        self.check_drive("llama", "po-h", 2, *ACTIVATIONS, kinds={"offload", "reload"}, memory=ROOMY)

    def test_activations_and_state_of_one_process(self):
        pins = ("--pin", "layer=0..6:gpu0", "--pin", "offload=1..3", "--pin", "optimizer=0..6:cpu")
        kinds = {"offload", "reload", "state-in", "state-out"}
        self.check_drive("gpt2", "1f1b", 1, *STATE, *ACTIVATIONS, *pins, kinds=kinds, memory=ROOMY)

    def test_bf16_state_has_masters(self):
        _, folder = self.on_drive("llama", "superpipeline", 1, *STATE, *PARAMETERS, name="bf16", precision="bf16")
        in_memory = exported(planned(self.root, "llama", "superpipeline", 1, name="memory", precision="bf16"))
        weights = os.path.join(folder, "saved")
        found = trained(folder, *self.options, "--save-weights", weights)
        there = os.path.join(in_memory, "saved")
        self.assertEqual([line["loss"] for line in found], [line["loss"] for line in trained(in_memory, "--save-weights", there)])
        code, text = apart(folder, lambda: same_weights(weights, there))
        self.assertEqual((code, text), (0, ""))

    def test_a_killed_training_goes_on_from_its_checkpoint(self):
        for system, options in (("mobius", (*STATE, *PARAMETERS)), ("superpipeline", STATE)):
            _, folder = self.on_drive("gpt2", system, 2, *options, name="killed")
            whole = [line["loss"] for line in trained(folder, *self.options)]
            saving = [*self.options, "--checkpoint-dir", os.path.join(folder, "checkpoints"), "--checkpoint-every", "3"]
            texts = self.stopped(folder, saving, signal.SIGKILL)
            self.assertLess(len(lines(texts)), STEPS)
            # The file has no name, and ends with the processes.
            self.assertEqual(os.listdir(self.drive), [])
            found = trained(folder, *saving, "--resume")
            self.assertIn(found[0]["step"], (3, 6))
            self.assertEqual([line["loss"] for line in found], whole[found[0]["step"] :])

    def test_drives_that_fail_are_said_once(self):
        _, folder = self.on_drive("gpt2", "mobius", 2, *STATE, name="faults")
        shape = program(folder)
        self.refused(folder, shape, "the plan uses the drive `nvme0`, which has no folder: name one with --drive nvme0=FOLDER")
        self.refused(folder, shape, "`--drive other=/` is no drive of the plan, whose drives are: `nvme0`", options=["--drive", "other=/"])
        self.refused(folder, shape, "`--drive nvme0` names no folder", options=["--drive", "nvme0"])
        self.refused(folder, shape, "cannot be used in `/nowhere`", options=["--drive", "nvme0=/nowhere"])
        full = program(folder)
        next(memory for memory in full["memories"] if memory.get("drive"))["bytes"] = 1 << 62
        self.refused(folder, full, "the drive `nvme0` has no room", options=self.options)
        self.assertEqual(os.listdir(self.drive), [])


def same_weights(one, other):
    """Prints the names of tensors that differ."""
    import torch
    from safetensors.torch import load_file

    def load(folder):
        files = [name for name in os.listdir(folder) if name.endswith(".safetensors")]
        return {name: tensor for file in files for name, tensor in load_file(os.path.join(folder, file)).items()}

    here, there = load(one), load(other)
    assert here and here.keys() == there.keys()
    for name in here:
        if not torch.equal(here[name], there[name]):
            print(name)


class Transfers(unittest.TestCase):
    def test_bytes_anywhere_are_moved(self):
        """Whole blocks go directly, other bytes through blocks of their own, and neighbours stay."""
        with tempfile.TemporaryDirectory() as root:
            folder = exported(planned(root, "llama", "mobius", 1, *STATE, name="bytes", drive=True))
            code, text = apart(folder, lambda: moved(folder, root))
        self.assertEqual(code, 0, text)
        self.assertEqual(json.loads(text.splitlines()[-1]), [])


def moved(folder, root):
    """Writes and reads bytes of many sizes and places; prints those that came back otherwise."""
    import sys

    sys.path.insert(0, folder)
    import torch
    from drives import BLOCK, CHUNK, Drive, made

    size = 4 * CHUNK
    file, _ = made("nvme0", root, size)
    drive, expected, wrong = Drive(file), torch.zeros(size, dtype=torch.uint8), []
    memory = torch.empty(size + BLOCK, dtype=torch.uint8)
    aligned = -memory.data_ptr() % BLOCK
    cases = [(0, 2 * CHUNK + 5, 0), (BLOCK, BLOCK, 0), (3 * BLOCK + 7, 100, 0), (10 * BLOCK, 3 * BLOCK + 1, 4), (7, 2 * CHUNK, 1), (size - 9, 9, 0)]
    for seed, (place, count, shift) in enumerate(cases):
        numbers = memory[aligned + shift : aligned + shift + count]
        numbers.random_(0, 256, generator=torch.Generator().manual_seed(seed))
        expected[place : place + count] = numbers
        drive.write(place, numbers)
        for start, length in [(place, count), (0, size - BLOCK)]:
            found = memory[aligned + shift : aligned + shift + length].zero_()
            drive.read(start, found)
            if not torch.equal(found, expected[start : start + length]):
                wrong.append((place, count, shift, start))
    print(json.dumps(wrong))


if __name__ == "__main__":
    unittest.main()
