"""Exported folders read well: types and style are checked in each, by the settings in the folder."""

import os
import subprocess
import sys
import tempfile
import unittest

from spipe import TEXT, plan, spipe
from streamed import model

# The folders: engines, each with a system that it takes.
ENGINES = {"torch": ("torch", "1f1b"), "program": ("torch", "mobius"), "fsdp": ("fsdp", "fsdp"), "deepspeed": ("deepspeed", "fsdp"),
           "transformers": ("torch", "mobius")}


class Reading(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = cls.folder.name
        for name, (engine, system) in ENGINES.items():
            is_own = name != "transformers"
            path = plan(cls.root, system, 2, batch=4, model="demo" if is_own else model(cls.root, "gpt2"), name=name)
            more = [] if is_own else ["--modules", "transformers", "--config", os.path.join(cls.root, "config.json")]
            spipe("export", engine, path, "-o", os.path.join(cls.root, name), "--data", TEXT, "--steps", "1", *more)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check(self, tool, *arguments):
        for engine in ENGINES:
            done = subprocess.run([sys.executable, "-m", tool, *arguments], cwd=os.path.join(self.root, engine), capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"{engine}: {done.stdout}\n{done.stderr}")

    def test_style(self):
        self.check("ruff", "check", "--no-cache", ".")

    def test_types(self):
        # PyTorch is read once for all folders.
        self.check("mypy", "--cache-dir", os.path.join(self.root, "cache"), ".")

    def test_types_that_are_wrong_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(self.root, "torch", "pyproject.toml"), encoding="utf-8") as file:
                settings = file.read()
            for name, text in (("pyproject.toml", settings), ("wrong.py", "def double(x):\n    return 2 * x\n")):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            done = subprocess.run([sys.executable, "-m", "mypy", "."], cwd=folder, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("missing a type annotation", done.stdout)

    def test_batch_scripts_are_scripts(self):
        for engine in ENGINES:
            path = os.path.join(self.root, engine, "train.sbatch")
            done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), engine)


if __name__ == "__main__":
    unittest.main()
