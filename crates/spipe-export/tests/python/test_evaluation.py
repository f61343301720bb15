"""Interpreted programs evaluate held-out tokens between their steps, which stay as they are."""

import json
import os
import unittest

from interpreted import TOLERANCE, Case
from processes import apart, script
from streamed import RATE, ROOMY, STEPS, exported, lines, planned, program, trained

# Windows of a held-out text: four batches, of which the last has one sequence that counts.
HELD_OUT = "".join(chr(97 + number * number % 23) for number in range(13 * 32 + 1))
EVERY = 3


class Evaluation(Case):
    def check(self, family, system, count, *options, drive=False, **more):
        folder = exported(planned(self.root, family, system, count, *options, name="evaluated", drive=drive, **more))
        text, weights = os.path.join(self.root, "held-out.txt"), os.path.join(folder, "saved")
        with open(text, "w") as file:
            file.write(HELD_OUT)
        drives = ["--drive", f"nvme0={self.root}"] if drive else []
        plain = [line["loss"] for line in trained(folder, *drives)]
        arguments = ["--eval-data", text, "--eval-every", str(EVERY), "--save-weights", weights, *drives]
        world = len(program(folder)["ranks"])
        codes, texts = script(folder, world, ["--steps", str(STEPS), "--learning-rate", str(RATE), "--cpu", *arguments])
        self.assertEqual(codes, [0] * world, texts)
        self.assertEqual([line["loss"] for line in lines(texts)], plain)
        found = lines(texts, "eval")
        self.assertEqual([(line["step"], line["tokens"]) for line in found], [(step, 13 * 32) for step in (3, 6, STEPS)])
        code, said = apart(folder, lambda: evaluated(folder, weights, text))
        self.assertEqual(code, 0, said)
        self.assertLess(abs(found[-1]["loss"] - json.loads(said.splitlines()[-1])), TOLERANCE)
        # It learns another text than this one.
        self.assertGreater(len({line["loss"] for line in found}), 1)


def evaluated(folder, weights, text):
    """The mean loss of plain forwards with the weights that a training has written."""
    import sys

    sys.path.insert(0, folder)
    import torch
    from stage import Stage, tie
    from parameters import fill
    from tokens import Tokens, count, loss_sum

    settings, cpu = program(folder), torch.device("cpu")
    layers = {"first-layer": 0, "last-layer": settings["model"]["layers"] + 1, "recomputed": 0, "offloads": False, "frozen": []}
    stage = Stage(settings["model"], layers, cpu, torch.float32, (cpu, torch.float32))
    tie([stage])
    fill([stage], weights, 1)
    tokens = Tokens(text, settings["batch"], settings["model"]["vocabulary"], 1, in_order=True)
    total, targets = 0.0, 0
    with torch.no_grad():
        for step in range(tokens.steps()):
            x, y = tokens.rows(step, range(settings["batch"]["sequences"]))
            total, targets = total + loss_sum(stage(x), y).item(), targets + count(y)
    print(json.dumps(total / targets))


def case(family, system, count, *options, **more):
    return lambda self: self.check(family, system, count, *options, **more)


CASES = [
    ("gpt2", "superpipeline", 2, (), {}),
    ("llama", "mobius", 2, (), {}),
    ("gpt2", "spipe", 2, (), {}),
    ("llama", "naive-swap", 1, (), {}),
    ("llama", "po-h", 2, (), {"memory": ROOMY}),
    ("gpt2", "zero-offload-delayed", 1, (), {"memory": ROOMY}),
    ("gpt2", "superpipeline", 1, ("--parameters-on", "nvme0", "--state-on", "nvme0"), {"drive": True}),
]
for family, system, count, options, more in CASES:
    name = f"test_{family}_{system}_in_{count}{'_on_a_drive' if options else ''}".replace("-", "_")
    setattr(Evaluation, name, case(family, system, count, *options, **more))


if __name__ == "__main__":
    unittest.main()
