"""The check of a GPU, run on cores: every step, its report, and a step that fails."""

import os
import subprocess
import sys
import tempfile
import unittest

from spipe import SPIPE, TEXT, tiny

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/gpu_check.py")


def check(folder, *options):
    """Runs the check; the exit code, the report, and everything else that it said."""
    environment = {**os.environ, "SPIPE": os.path.abspath(SPIPE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-B", SCRIPT, "--data", TEXT, "--out", folder, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)
    path = os.path.join(folder, "torch.md")
    report = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            report = file.read()
    return done.returncode, report, done.stdout + done.stderr


class GpuCheck(unittest.TestCase):
    def test_all_steps_run_on_cores(self):
        with tempfile.TemporaryDirectory() as root:
            small = ["--model", tiny(root), "--sequence", "32", "--precision", "fp32", "--calibration", "4", "--cpu"]
            code, report, said = check(os.path.join(root, "report"), *small, "--cap", "700 KiB")
            self.assertEqual(code, 0, said)
            # The report is what was printed.
            self.assertEqual(said, report)
            rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in report.splitlines() if line.startswith("| ")]
            self.assertEqual([row[0] for row in rows[1:]], ["superpipeline", "zero-offload", "spipe"])
            for row in rows[1:]:
                predicted, measured = (float(cell.removesuffix(" ms")) for cell in row[2:4])
                self.assertGreater(min(predicted, measured), 0.0, row)
                self.assertAlmostEqual(predicted / measured - 1, float(row[4].removesuffix("%")) / 100, delta=0.02)
                if row[1] == "program":
                    self.assertRegex(row[5] + row[6], r"\d GB/s.*\d GB/s")
            self.assertIn("A plain loop", report)
            self.assertTrue(report.endswith("All steps ran.\n"))

    def test_a_step_that_fails_is_said(self):
        with tempfile.TemporaryDirectory() as root:
            code, report, said = check(root, "--model", "absent", "--cpu")
            self.assertEqual(code, 1, said)
            self.assertRegex(report, "FAILED: calibration: code [0-9]+: error: .*absent")

    def test_without_a_gpu_it_says_so(self):
        with tempfile.TemporaryDirectory() as root:
            code, report, said = check(root)
            self.assertEqual((code, report), (1, ""))
            self.assertIn("PyTorch finds no GPU; --cpu runs the steps on cores", said)


if __name__ == "__main__":
    unittest.main()
