"""Plans on a mesh, pipeline x replica x tensor, train as one process does."""

import json
import os
import tempfile
import unittest

from processes import script
from spipe import HERE, TEXT, losses, plan, rows, spipe
from test_parity import tensors

STEPS = 4
RATE = "1e-4"
# Pipeline, replicas, members of a team; whether tokens are divided, too, and the optimizer.
MESHES = [
    ((2, 2, 1), False, "none"),
    ((2, 2, 1), False, "optimizer"),
    ((2, 1, 2), False, "none"),
    ((2, 1, 2), True, "none"),
    ((1, 2, 2), True, "none"),
    ((1, 2, 2), False, "optimizer"),
    ((2, 2, 2), True, "optimizer"),
]


def model(folder, tied=False):
    """A model file with grouped heads and norms of heads, whose steps take milliseconds."""
    path = os.path.join(folder, f"small-{tied}.toml")
    with open(path, "w") as file:
        file.write(f'format-version = 1\nkind = "transformer"\nname = "small"\nvocabulary = 256\nseq-len = 64\nhidden = 32\nlayers = 4\nheads = 4\n'
                   f"kv-heads = 2\nintermediate = 48\ntied = {str(tied).lower()}\n")
    return path


def options_of(mesh, sequence, sharding):
    pipeline, replicas, members = mesh
    degrees = ["--pp", pipeline, "--dp", replicas, "--tp", members, "--sharding", sharding]
    return degrees + (["--sequence-parallel"] if sequence else [])


class Meshes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = cls.folder.name
        cls.one = {}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def exported(self, mesh, sequence, sharding, *options, tied=False, system="1f1b", name=""):
        size = mesh[0] * mesh[1] * mesh[2]
        name = name or f"{'-'.join(map(str, mesh))}-{sequence}-{sharding}-{tied}-{system}"
        folder = os.path.join(self.root, f"export-{name}")
        if not os.path.exists(folder):
            path = plan(self.root, system, size, *options_of(mesh, sequence, sharding), *options, model=model(self.root, tied), name=name)
            spipe("export", "torch", path, "-o", folder, "--data", TEXT, "--steps", 8, "--initial-weights")
        return folder

    def train(self, folder, world, *options, steps=STEPS):
        codes, texts = script(folder, world, ["--steps", str(steps), "--learning-rate", RATE, *options])
        self.assertEqual(codes, [0] * world, "\n".join(texts)[-6000:])
        return losses(texts)

    def close(self, found, expected, limit=1e-5):
        self.assertEqual(len(found), len(expected))
        for here, there in zip(found, expected):
            self.assertLess(abs(here - there), limit)

    def plain(self, folder, *options, steps=STEPS):
        return self.train(folder, 1, "--one-process", *options, steps=steps)

    def test_losses_are_those_of_one_process(self):
        for mesh, sequence, sharding in MESHES:
            with self.subTest(mesh=mesh, sequence=sequence, sharding=sharding):
                folder = self.exported(mesh, sequence, sharding)
                self.assertEqual(len(rows(folder)), mesh[0])
                self.close(self.train(folder, mesh[0] * mesh[1] * mesh[2]), self.plain(folder))


if __name__ == "__main__":
    unittest.main()
