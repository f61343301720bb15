"""The check of a device in its short form on cores: every step, going on, what is left out; and the size of tree and binary."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "../../.."))
SPIPE = os.path.abspath(os.environ.get("SPIPE", os.path.join(ROOT, "target/release/spipe")))
STEPS = ["rates", "zero-offload", "superpipeline", "pytorch", "parity", "counts"]
# Bytes for the tree and the stripped binary. A binary with the features of GPUs is larger: with all of them it has some 78 MiB more.
MOST = 64 * 2**20


def check(folder: str, *options: str) -> tuple[int, str, str]:
    """Runs the check; the exit code, the report, and what it said."""
    command = [sys.executable, "-B", os.path.join(HERE, "device_check.py"), "emulated:0", "--short", "--calibration", "6", "--data",
               os.path.join(ROOT, "README.md"), "--out", os.path.join(folder, "out"), "--work", os.path.join(folder, "work"), *options]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=folder, env={**os.environ, "SPIPE": SPIPE})
    path = os.path.join(folder, "out", "report.md")
    report = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            report = file.read()
    return done.returncode, report, done.stdout + done.stderr


def found(folder: str, step: str) -> dict:
    with open(os.path.join(folder, "out", "steps", f"{step}.json"), encoding="utf-8") as file:
        return json.load(file)


class DeviceCheck(unittest.TestCase):
    def test_all_steps_run_once(self):
        with tempfile.TemporaryDirectory() as folder:
            code, report, said = check(folder)
            self.assertEqual(code, 0, said)
            self.assertEqual([line[3:] for line in report.splitlines() if line.startswith("## ")], STEPS)
            for system in ("zero-offload", "superpipeline"):
                results = found(folder, system)["results"]
                self.assertGreater(min(results["predicted-ms"], results["measured-ms"]), 0)
                self.assertIn("gpu0.h2d", results["lanes"])
                self.assertEqual(len(results["page-faults"]), 3)
            self.assertLess(found(folder, "parity")["results"]["fp32"]["difference"], 1e-4)
            # A second time, nothing runs, but PyTorch might be there now.
            code, again, said = check(folder)
            self.assertEqual((code, len(again.splitlines())), (0, len(report.splitlines())), said)
            self.assertGreaterEqual(said.count("kept from"), len(STEPS) - 1, said)
            # Other options are another check; steps can be left out.
            code, _, said = check(folder, "--steps", "4", "--only", "zero-offload", "counts", "--skip", "counts")
            self.assertEqual((code, said.count("kept from")), (0, 0), said)
            self.assertEqual(len(found(folder, "zero-offload")["results"]["page-faults"]), 4)

    def test_a_step_that_fails_is_tried_again(self):
        with tempfile.TemporaryDirectory() as folder:
            code, report, said = check(folder, "--model", "absent", "--only", "rates", "zero-offload")
            self.assertEqual(code, 1, said)
            self.assertRegex(report, "FAILED: rates: code [0-9]+: error: .*absent")
            _, _, said = check(folder, "--model", "absent", "--only", "rates")
            self.assertNotIn("kept from", said)

    def test_the_time_is_a_limit(self):
        with tempfile.TemporaryDirectory() as folder:
            code, report, said = check(folder, "--limit", "0")
            self.assertEqual(code, 1, said)
            self.assertEqual(report.count("left out: the time is over"), len(STEPS) - 1, report)

    def test_the_tree_and_the_binary_are_small(self):
        names = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True).stdout.split("\0")
        tree = sum(os.path.getsize(path) for name in names if os.path.isfile(path := os.path.join(ROOT, name)))
        with tempfile.NamedTemporaryFile() as stripped:
            subprocess.run(["strip", "-o", stripped.name, SPIPE], check=True)
            binary = os.path.getsize(stripped.name)
        self.assertLessEqual(tree + binary, MOST, f"tree {tree}, binary {binary}")


if __name__ == "__main__":
    unittest.main()
