"""Profiles measured under PyTorch: plans can be made on them, and layers have measured times."""

import json
import os
import sys
import tempfile
import tomllib
import unittest

from spipe import spipe


class Calibration(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def test_a_profile_is_measured_and_planned_on(self):
        path, runtime = os.path.join(self.root, "machine.toml"), os.path.join(self.root, "runtime.toml")
        devices = "emulated:0,emulated:1,cpu:0"
        spipe("calibrate", "--runtime", "pytorch", "--python", sys.executable, "--devices", devices, "--model", "demo", "--seq-len", 32,
              "--time-limit", "4s", "-o", path, "--runtime-output", runtime)
        with open(path, "rb") as file:
            profile = tomllib.load(file)
        self.assertEqual([gpu["name"] for gpu in profile["gpu"]], ["gpu0", "gpu1"])
        for device in profile["gpu"] + profile["socket"]:
            layers = {layer["layer"].split()[0] for layer in device["layer-time"]}
            self.assertEqual(layers, {"embedding", "block", "head"})
            self.assertIn("--runtime pytorch", device["measured"]["command"])
        self.assertIn("copies between buffers while all processes copy and compute", profile["link"][0]["source"])
        links = {link["name"]: link for link in profile["link"]}
        self.assertIn("messages between processes", links["messages0-1"]["source"])
        routes = json.loads(spipe("hardware", "show", path, "--format", "json"))
        self.assertIn("messages0-1", json.dumps(routes))
        self.assertIn("bandwidth of the memory", links["root0-dram0"]["source"])
        with open(runtime, "rb") as file:
            self.assertIn("measured under PyTorch", tomllib.load(file)["host"]["source"])
        plan = os.path.join(self.root, "plan.json")
        spipe("plan", "--model", "demo", "--hardware", path, "--devices", "gpu0,gpu1", "--system", "1f1b", "--precision", "fp32", "--seq-len", 32,
              "--global-batch", 4, "--microbatch", 1, "--time-limit", "2s", "--runtime", runtime, "-o", plan)
        self.assertGreater(json.loads(spipe("simulate", plan, "--format", "json"))["iteration-ms"], 1)

    def test_what_cannot_be_measured_is_refused(self):
        path = os.path.join(self.root, "machine.toml")
        options = ["calibrate", "--runtime", "pytorch", "-o", path]
        said = spipe(*options, "--python", os.path.join(self.root, "none"), code=7)
        self.assertIn("there is no such program", said)
        # A Python without site-packages has no PyTorch.
        bare = os.path.join(self.root, "python")
        with open(bare, "w") as file:
            file.write(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -S "$@"\n')
        os.chmod(bare, 0o755)
        said = spipe(*options, "--python", bare, code=7)
        self.assertIn("has no PyTorch", said)
        said = spipe(*options, "--python", sys.executable, "--devices", "cuda:99,cpu:0", code=7)
        self.assertIn("PyTorch finds no device cuda:99", said)
        said = spipe(*options, "--python", sys.executable, "--devices", "cpu:0", "--model", "bloom-176b", code=3)
        self.assertIn("cannot be exported", said)
        self.assertFalse(os.path.exists(path))
