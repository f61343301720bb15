"""Shared by the tests of interpreted programs: a folder, references, signals, and refusals."""

import json
import os
import signal
import tempfile
import time
import unittest

from processes import child, port, wait
from spipe import spipe
from streamed import RATE, STEPS, ours, program, reference

TOLERANCE = 1e-5


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = cls.folder.name
        cls.references = {}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def expected(self, family, plan, folder):
        """The losses of plain PyTorch and of `spipe run`, which are the same for all plans of a model."""
        if family not in self.references:
            self.references[family] = ([line["loss"] for line in reference(folder)], ours(plan, folder))
        return self.references[family]

    def near(self, found, expected, tolerance=TOLERANCE):
        self.assertEqual(len(found), len(expected))
        for here, there in zip(found, expected):
            self.assertLess(abs(here - there), tolerance, (found, expected))

    def in_order(self, plan, folder, trace):
        """The imported trace has the program's actions on every lane, in the program's order."""
        measured = os.path.join(folder, "measured.json")
        spipe("trace", "import", trace, "--plan", plan, "-o", measured)
        with open(measured) as file:
            found = json.load(file)
        simulated = os.path.join(folder, "simulated.json")
        spipe("simulate", plan, "-o", simulated)
        spipe("compare", simulated, measured)
        wanted = {lane["name"]: lane["actions"] for lane in program(folder)["lanes"] if lane["actions"]}
        names = [lane["name"] for lane in found["lanes"]]
        self.assertEqual(sorted(names), sorted(wanted))
        for index, name in enumerate(names):
            spans = [(span["kind"], span["subject"]) for span in found["spans"] if span["lane"] == index]
            self.assertEqual(spans, [(action["kind"], action["subject"]) for action in wanted[name]], name)

    def stopped(self, folder, options, how):
        """The lines that a training printed before all of its processes got a signal after the fourth step."""
        pids, logs = self.started(folder, options)
        for pid in pids:
            os.kill(pid, how)
        codes = wait(pids, alone=True)
        self.assertEqual(codes, [0 if how == signal.SIGTERM else -signal.SIGKILL] * len(pids))
        return [read(logs[0])]

    def started(self, folder, options):
        """The processes of a training that has ended its fourth step, and their logs."""
        world, master = len(program(folder)["ranks"]), port()
        logs = [os.path.join(folder, f"stopped-{rank}.log") for rank in range(world)]
        environments = [{"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": master} for rank in range(world)]
        arguments = ["--steps", str(STEPS), "--learning-rate", str(RATE), "--cpu", *options]
        pids = [child(it, folder, log, lambda: run(folder, arguments)) for it, log in zip(environments, logs)]
        end = time.monotonic() + 120
        while time.monotonic() < end and '"step": 3' not in read(logs[0]):
            time.sleep(0.01)
        return pids, logs

    def refused(self, folder, document, wanted, world=2, options=()):
        path = os.path.join(folder, "program.json")
        with open(path) as file:
            before = file.read()
        with open(path, "w") as file:
            json.dump(document, file)
        master = port()
        environments = [{"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": master} for rank in range(world)]
        logs = [os.path.join(folder, f"refused-{rank}.log") for rank in range(world)]
        start = time.monotonic()
        pids = [child(it, folder, log, lambda: run(folder, ["--cpu", *options])) for it, log in zip(environments, logs)]
        codes = wait(pids, alone=True)
        self.assertLess(time.monotonic() - start, 30)
        self.assertNotIn(0, codes)
        texts = [read(log) for log in logs]
        self.assertEqual(sum(text.count("error: ") for text in texts), 1, texts)
        self.assertIn(wanted, "".join(texts))
        with open(path, "w") as file:
            file.write(before)


def read(path):
    """The text of a file; nothing if it is not there yet."""
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def run(folder, arguments):
    """Runs the script of a folder in this process."""
    import runpy
    import sys

    sys.argv = ["train.py", *arguments]
    sys.path.insert(0, folder)
    runpy.run_path(os.path.join(folder, "train.py"), run_name="__main__")
