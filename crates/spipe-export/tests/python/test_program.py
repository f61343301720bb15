"""Interpreted programs train as plain PyTorch and `spipe run` do, in the program's order, from memory that stays where it is."""

import json
import os
import signal
import time

from interpreted import Case, read
from processes import apart, wait
from streamed import ROOMY, STEPS, SYSTEMS, exported, lines, planned, program, reference, trained

# A norm that the gradients of some steps exceed, and those of others do not.
CLIP = 2.75


class Programs(Case):
    def check(self, family, system, count):
        plan = planned(self.root, family, system, count)
        folder = exported(plan)
        trace = os.path.join(folder, "trace")
        losses = [line["loss"] for line in trained(folder, "--trace", trace)]
        self.assertLess(losses[-1], losses[0])
        for expected in self.expected(family, plan, folder):
            self.near(losses, expected)
        self.in_order(plan, folder, trace)

    def check_pipeline(self, family, system, count):
        """A pipeline with offloaded activations; its gradients are those of plain PyTorch."""
        plan = planned(self.root, family, system, count, memory=ROOMY)
        folder = exported(plan)
        kinds = {action["kind"] for lane in program(folder)["lanes"] for action in lane["actions"]}
        self.assertLessEqual({"offload", "reload", "backward-input", "backward-weight"}, kinds)
        trace = os.path.join(folder, "trace")
        losses = [line["loss"] for line in trained(folder, "--trace", trace)]
        for expected in self.expected(family, plan, folder):
            self.near(losses, expected)
        self.in_order(plan, folder, trace)

    def test_delayed_steps_use_gradients_of_the_iteration_before(self):
        folder = exported(planned(self.root, "gpt2", "zero-offload-delayed", 1, memory=ROOMY))
        self.near([line["loss"] for line in trained(folder)], [line["loss"] for line in reference(folder, late=True)])
        options = ["--checkpoint-dir", os.path.join(folder, "checkpoints"), "--checkpoint-every", "3"]
        whole = [line["loss"] for line in trained(folder, *options, steps=3)]
        rest = [line["loss"] for line in trained(folder, *options, "--resume")]
        self.near(whole + rest, [line["loss"] for line in reference(folder, late=True)])

    def test_gradients_leave_with_each_microbatch(self):
        plan = planned(self.root, "llama", "zero-offload", 1, "--pin", "gradients-leave=1", memory=ROOMY)
        folder = exported(plan)
        out = [action for lane in program(folder)["lanes"] for action in lane["actions"] if action["kind"] == "gradients-out"]
        self.assertGreater(len(out), len(program(folder)["stages"]))
        losses = [line["loss"] for line in trained(folder)]
        for expected in self.expected("llama", plan, folder):
            self.near(losses, expected)

    def test_a_pipeline_offloads_without_splitting(self):
        pins = [word for pin in ("layer=0..3:gpu0", "layer=4..6:gpu1", "offload=1..3") for word in ("--pin", pin)]
        plan = planned(self.root, "gpt2", "1f1b", 2, *pins, memory=ROOMY)
        folder = exported(plan)
        losses = [line["loss"] for line in trained(folder)]
        for expected in self.expected("gpt2", plan, folder):
            self.near(losses, expected)

    def test_clipping_undoes_speculative_steps(self):
        for count in (1, 2):
            folder = exported(planned(self.root, "gpt2", "spipe", count, "--clip-norm", CLIP, name="clip"))
            self.assertTrue(any(action["kind"] == "rollback" for lane in program(folder)["lanes"] for action in lane["actions"]))
            found, expected = trained(folder), reference(folder, clip=CLIP)
            strikes = [line["norm"] > CLIP for line in expected]
            self.assertIn(True, strikes)
            self.assertIn(False, strikes)
            self.assertEqual([line.get("steps-undone", 0) > 0 for line in found], strikes)
            self.near([line["loss"] for line in found], [line["loss"] for line in expected])

    def test_clipping_waits_for_the_norm(self):
        folder = exported(planned(self.root, "llama", "superpipeline", 2, "--clip-norm", CLIP, name="clip"))
        self.near([line["loss"] for line in trained(folder)], [line["loss"] for line in reference(folder, clip=CLIP)])

    def test_an_overflow_in_fp16_leaves_a_step_out(self):
        for system in ("superpipeline", "spipe"):
            folder = exported(planned(self.root, "llama", system, 1, precision="fp16", name="fp16"))
            found, expected = trained(folder, "--loss-scale", str(2.0**21)), reference(folder, scale=2.0**21)
            left_out = [line["left-out"] for line in expected]
            self.assertIn(True, left_out)
            self.assertIn(False, left_out)
            self.assertEqual([line.get("left-out", False) for line in found], left_out)
            self.near([line["loss"] for line in found], [line["loss"] for line in expected], 2e-3)

    def test_a_killed_training_goes_on_from_its_checkpoint(self):
        folder = exported(planned(self.root, "gpt2", "mobius", 2, name="killed"))
        whole = [line["loss"] for line in trained(folder)]
        options = ["--checkpoint-dir", os.path.join(folder, "checkpoints"), "--checkpoint-every", "3"]
        texts = self.stopped(folder, options, signal.SIGKILL)
        self.assertLess(len(lines(texts)), STEPS)
        found = trained(folder, *options, "--resume")
        self.assertIn(found[0]["step"], (3, 6))
        self.assertEqual([line["loss"] for line in found], whole[found[0]["step"] :])

    def test_a_stopped_training_saves_its_last_step(self):
        folder = exported(planned(self.root, "llama", "superpipeline", 1, name="stopped"))
        whole = [line["loss"] for line in trained(folder)]
        options = ["--checkpoint-dir", os.path.join(folder, "checkpoints")]
        before = [line["loss"] for line in lines(self.stopped(folder, options, signal.SIGTERM))]
        self.assertLess(len(before), STEPS)
        after = trained(folder, *options, "--resume")
        self.assertEqual(before + [line["loss"] for line in after], whole)

    def test_an_interrupted_process_ends_all(self):
        folder = exported(planned(self.root, "llama", "spipe", 2, name="interrupted"))
        options = ["--checkpoint-dir", os.path.join(folder, "checkpoints"), "--checkpoint-every", "2"]
        pids, logs = self.started(folder, options)
        os.kill(pids[1], signal.SIGINT)
        begin = time.monotonic()
        codes = wait(pids, alone=True)
        self.assertLess(time.monotonic() - begin, 10)
        texts = [read(log) for log in logs]
        self.assertEqual(codes, [1, 130], texts)
        self.assertEqual([text.splitlines().count("interrupted") for text in texts], [0, 1], texts)
        self.assertNotIn("Traceback", "".join(texts))
        found = trained(folder, *options, "--resume")
        self.assertIn(found[0]["step"], (2, 4, 6))

    def test_memory_stays_where_it_is(self):
        for system in SYSTEMS:
            plan = planned(self.root, "llama", system, 1, name="still")
            folder = exported(plan)
            code, text = apart(folder, lambda: still(folder))
            self.assertEqual(code, 0, text)
            with open(plan) as file:
                host = json.load(file)["peak-bytes"]["dram0"]
            found = json.loads(text.splitlines()[-1])
            self.assertEqual(found["moved"], [], system)
            self.assertGreater(found["seen"], 10)
            self.assertLessEqual(found["host-bytes"], 1.02 * host, system)

    def test_faults_are_said_once(self):
        folder = exported(planned(self.root, "llama", "mobius", 2, name="faults"))
        for wanted, changes in (
            ("the kind of action `teleport`", lambda it: it["lanes"][0]["actions"][0].update(kind="teleport")),
            ("format version 2", lambda it: it.update({"format-version": 2})),
            ("bytes in program.json", lambda it: it["model"].update(intermediate=96)),
        ):
            broken = program(folder)
            changes(broken)
            self.refused(folder, broken, wanted)
        shape = program(folder)
        self.refused(folder, shape, "the plan has 2 ranks, 3 processes were started", world=3)
        self.refused(folder, shape, "has no checkpoint to go on from", options=["--checkpoint-dir", os.path.join(folder, "none"), "--resume"])
        self.refused(folder, shape, "cannot read `absent`", options=["--weights", "absent"])

    def test_scripts_are_short_and_know_no_system(self):
        folder = exported(planned(self.root, "llama", "mobius", 1, name="short"))
        self.assertNotIn("system", program(folder))
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py"):
                text = read(os.path.join(folder, name))
                self.assertLessEqual(len(text.splitlines()), 300, name)
                # The name in the program is that of a trace, and nothing is decided by it.
                self.assertEqual(text.count('settings["name"]'), int(name == "traces.py"), name)


def still(folder):
    """Trains, and prints which places have moved after the second step."""
    import sys

    sys.argv = ["train.py", "--cpu", "--steps", "5"]
    sys.path.insert(0, folder)
    import train
    from program import Program

    training = train.Training(Program("program.json"), train.arguments(None, train.more))
    places: dict[str, set[int]] = {}

    def look(iteration):
        if iteration >= 2:
            memory = training.memory
            for buffer in training.program.buffers:
                if buffer.offset is not None:
                    places.setdefault(f"buffer {buffer.id}", set()).add(memory.flat(buffer).data_ptr())
            for index, stage in training.actions.compute.stages.items():
                for (layer, name), leaf in stage.leaves.items():
                    regions = [region for region in memory.regions.values() if inside(leaf.data_ptr(), region)]
                    places.setdefault(f"stage {index} layer {layer} {name}", set()).add(len(regions))
                    if leaf.grad is not None:
                        regions = [region for region in memory.regions.values() if inside(leaf.grad.data_ptr(), region)]
                        places.setdefault(f"gradient {index} layer {layer} {name}", set()).add(len(regions))
        training.say_before(iteration)

    def inside(address, region):
        return region.data_ptr() <= address < region.data_ptr() + region.nbytes

    training.say_before, training.say = training.say, look
    training.run()
    moved = [name for name, found in places.items() if len(found) != 1 or 0 in found]
    size = sum(memory["bytes"] for memory in training.program.memories if memory["rank"] is None)
    print(json.dumps({"moved": moved, "seen": len(places), "host-bytes": size}))


def case(family, system, count):
    return lambda self: self.check(family, system, count)


def pipeline(family, system, count):
    return lambda self: self.check_pipeline(family, system, count)


for family, system, count in (("llama", "po-h", 2), ("gpt2", "po-f", 2), ("gpt2", "po-h", 4)):
    setattr(Programs, f"test_{family}_{system}_in_{count}".replace("-", "_"), pipeline(family, system, count))
# The rest is in all_programs.py.
CASES = [("llama", "superpipeline", 1), ("gpt2", "superpipeline", 2), ("llama", "naive-swap", 1), ("gpt2", "mobius", 1),
         ("llama", "mobius", 2), ("llama", "spipe", 1), ("gpt2", "spipe", 2)]  # fmt: skip
for family, system, count in CASES:
    setattr(Programs, f"test_{family}_{system}_in_{count}".replace("-", "_"), case(family, system, count))
