"""Exported pipelines train as one process does, and as `spipe run` does."""

import glob
import json
import os
import re
import tempfile
import unittest

from processes import script
from spipe import TEXT, losses, plan, rows, spipe

STEPS = 10
# AdamW moves a parameter whose gradient vanishes by as much as the learning rate, in a direction that rounding decides.
RATE = "1e-4"
# The systems that PyTorch's actions can express; the last is PyTorch's looped BFS over the stages of the interleaved plan.
SYSTEMS = ["gpipe", "1f1b", "interleaved-1f1b", "zb-1p", "zb-h1", "zb-v", "v-half", "v-min", "custom"]
EXPORT = ["--data", TEXT, "--steps", STEPS, "--initial-weights"]


def looped_bfs(path, ranks, microbatches):
    """All microbatches through each stage of a rank in turn, backwards in reverse (arXiv 2211.05953)."""
    with open(path) as file:
        count = len(json.load(file)["stages"])
    lines = []
    for rank in range(ranks):
        own = range(rank, count, ranks)
        forward = [f"{stage}F{microbatch}" for stage in own for microbatch in range(microbatches)]
        backward = [f"{stage}B{microbatch}" for stage in reversed(own) for microbatch in reversed(range(microbatches))]
        lines.append(",".join(forward + backward))
    return "\n".join(lines) + "\n"


def tensors(folder):
    from safetensors.torch import load_file

    found = {}
    for file in glob.glob(os.path.join(folder, "*.safetensors")):
        found.update(load_file(file))
    return found


def labels(trace):
    """The computations of a rank's trace, in the order in which they began."""
    with open(trace) as file:
        text = file.read()
    events = json.loads(text)["traceEvents"]
    marks = [event for event in events if event.get("cat") == "user_annotation" and event["name"].startswith("PP:")]
    names = [event["name"][3:] for event in sorted(marks, key=lambda event: event["ts"])]
    return text, [name for name in names if re.fullmatch(r"\d+[FBIW]\d+", name)]


class Parity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = cls.folder.name
        cls.plans = {(system, ranks): cls.planned(system, ranks) for ranks in (2, 4) for system in SYSTEMS}
        # The references: one process of PyTorch with all stages, and the executor of the command.
        one = cls.exported("1f1b", 2)
        cls.one_process, cls.one_weights = cls.trained(one, 1, "--one-process")
        lines = spipe("run", cls.plans["1f1b", 2], "--data", os.path.join(one, "tokens.safetensors"), "--weights",
                      os.path.join(one, "weights"), "--steps", STEPS, "--learning-rate", RATE, "--save-weights", os.path.join(cls.root, "ours"),
                      "--format", "json").splitlines()
        events = [json.loads(line) for line in lines]
        cls.ours = [event["loss"] for event in events if event["event"] == "step"]
        cls.our_weights = tensors(os.path.join(cls.root, "ours"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def planned(cls, system, ranks):
        if system == "custom":
            return cls.plans["interleaved-1f1b", ranks] if hasattr(cls, "plans") else plan(cls.root, "interleaved-1f1b", ranks)
        return plan(cls.root, system, ranks)

    @classmethod
    def exported(cls, system, ranks):
        folder = os.path.join(cls.root, f"{system}-{ranks}")
        options = []
        if system == "custom":
            order = os.path.join(cls.root, f"bfs{ranks}.csv")
            with open(order, "w") as file:
                file.write(looped_bfs(cls.plans[system, ranks], ranks, 8))
            options = ["--order", order]
        if not os.path.exists(folder):
            spipe("export", "torch", cls.plans[system, ranks], "-o", folder, *EXPORT, *options)
        return folder

    @classmethod
    def trained(cls, folder, world, *options):
        weights = os.path.join(folder, f"after-{world}")
        codes, texts = script(folder, world, ["--steps", str(STEPS), "--learning-rate", RATE, "--save-weights", weights, *options])
        assert codes == [0] * world, (codes, texts)
        return losses(texts), tensors(weights)

    def largest(self, one, other):
        self.assertEqual(one.keys(), other.keys())
        return max((one[name] - other[name]).abs().max().item() for name in one)

    def test_losses_fall_and_are_those_of_spipe_run(self):
        self.assertEqual(len(self.ours), STEPS)
        self.assertLess(self.one_process[-1], 0.95 * self.one_process[0])
        for here, there in zip(self.one_process, self.ours):
            self.assertLess(abs(here - there), 1e-4)
        self.assertLess(self.largest(self.one_weights, self.our_weights), 1e-4)

    def check(self, system, ranks):
        folder = self.exported(system, ranks)
        trace = os.path.join(folder, "trace")
        found, weights = self.trained(folder, ranks, "--trace", trace)
        self.assertEqual(len(found), STEPS)
        for here, one, ours in zip(found, self.one_process, self.ours):
            self.assertLess(abs(here - one), 1e-5)
            self.assertLess(abs(here - ours), 1e-4)
        self.assertLess(self.largest(weights, self.our_weights), 1e-4)
        order = rows(folder)
        self.assertEqual(len(order), ranks)
        for rank, row in enumerate(order):
            text, seen = labels(os.path.join(trace, f"rank{rank}.json"))
            self.assertEqual(seen, row, f"{system}, rank {rank}")
            self.assertNotIn(os.uname().nodename, text)
            self.assertNotIn(self.root, text)

    def test_a_trace_is_imported_with_its_own_plan_alone(self):
        folder = os.path.join(self.root, "traced")
        spipe("export", "torch", self.plans["1f1b", 2], "-o", folder, "--data", TEXT, "--steps", "5")
        codes, texts = script(folder, 2, ["--steps", "5", "--trace", os.path.join(folder, "trace")])
        self.assertEqual(codes, [0, 0], texts)
        measured, predicted = os.path.join(self.root, "measured.json"), os.path.join(self.root, "predicted.json")
        spipe("trace", "import", os.path.join(folder, "trace"), "--plan", self.plans["1f1b", 2], "-o", measured)
        spipe("simulate", self.plans["1f1b", 2], "-o", predicted)
        self.holds_the_whole_rank(folder, measured)
        compared = json.loads(spipe("compare", predicted, measured, "--format", "json"))
        lines = [json.loads(line) for text in texts for line in text.splitlines() if line.startswith('{"event": "step"')]
        # Step 4 is traced, and step 3 warms the profiler up; step 0 warms the process up.
        times = sorted(line["duration-ms"] for line in lines if line["step"] in (1, 2))
        self.assertGreater(compared["measured-ms"], 0.9 * times[0])
        self.assertLess(compared["measured-ms"], 1.1 * times[1])
        spipe("timeline", predicted, measured, "-o", os.path.join(self.root, "both.perfetto.json"))
        said = spipe("trace", "import", os.path.join(folder, "trace"), "--plan", self.plans["gpipe", 2], "-o", measured, code=3)
        self.assertIn("the trace is of another plan than", said)

    def holds_the_whole_rank(self, folder, measured):
        """Before the step parameters and two moments of f32; the step adds gradients and activations."""
        with open(measured) as file:
            trace = json.load(file)
        with open(os.path.join(folder, "trace", "rank0.json")) as file:
            added = json.load(file)["spipe"]
        self.assertEqual(len(added["iterations-ms"]), 3)
        self.assertEqual(sorted(memory["name"] for memory in trace["memories"]), ["gpu0", "gpu1"])
        # The processes of the tests are forked, with the weights that this one holds.
        ours = sum(tensor.nbytes for weights in (self.one_weights, self.our_weights) for tensor in weights.values())
        whole = sum(memory["samples"][0]["bytes"] - ours for memory in trace["memories"])
        counted = json.loads(spipe("model", "show", "demo", "--format", "json"))["parameters"]
        self.assertGreater(whole, 2.9 * 4 * counted)
        self.assertLess(whole, 3.1 * 4 * counted)
        self.assertGreater(sum(memory["peak-bytes"] - ours for memory in trace["memories"]), 4 * 4 * counted)

    def test_a_step_of_another_microbatch_count_is_refused(self):
        folder = os.path.join(self.root, "refused")
        order = os.path.join(self.root, "short.csv")
        with open(order, "w") as file:
            file.write(looped_bfs(self.plans["interleaved-1f1b", 2], 2, 4))
        said = spipe("export", "torch", self.plans["interleaved-1f1b", 2], "-o", folder, "--order", order, code=3)
        self.assertIn("the order has 4 microbatches, the plan has 8", said)
        self.assertFalse(os.path.exists(folder))


def case(system, ranks):
    return lambda self: self.check(system, ranks)


# The others in 2 processes are in all_parity.py.
IN_TWO = ("1f1b", "interleaved-1f1b", "zb-v", "custom")
for ranks in (2, 4):
    for system in SYSTEMS if ranks == 4 else IN_TWO:
        setattr(Parity, f"test_{system}_in_{ranks}".replace("-", "_"), case(system, ranks))
