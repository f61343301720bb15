"""Checkpoints are whole or not there, and what is wrong with one is said."""

import json
import os
import signal
import sys
import tempfile
import threading
import time
import unittest

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../templates/common"))
import checkpoint
from checkpoint import Checkpoints
from storage import Fault

SIZE = 2


class Group:
    """Processes as threads."""

    def __init__(self, folder, keep=2, folders=None, plan="plan", size=SIZE):
        barrier = threading.Barrier(size)
        self.faults, self.members = {}, {}

        def start(rank):
            where = folders[rank] if folders else folder
            self.members[rank] = Checkpoints(where, rank, size, plan, keep, lambda: barrier.wait(20))

        self.barrier = barrier
        self.all(start, range(size))

    def all(self, run, ranks=None):
        """Calls `run` for every member at once; what each said is in `faults`."""

        def guarded(rank):
            try:
                run(rank)
            except (Fault, threading.BrokenBarrierError) as fault:
                if isinstance(fault, Fault):
                    self.faults[rank] = str(fault)
                self.barrier.abort()

        threads = [threading.Thread(target=guarded, args=(rank,)) for rank in (ranks or self.members)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def save(self, step, seed=None):
        self.all(lambda rank: self.members[rank].save(step, tensors(rank, step if seed is None else seed), {"scale": 2.0**rank}))

    def load(self):
        """The step, the numbers and the tensors of each member."""
        found = {}

        def run(rank):
            empty = {name: torch.zeros_like(tensor) for name, tensor in tensors(rank, 0).items()}
            places = {name: tensor.data_ptr() for name, tensor in empty.items()}
            found[rank] = (*self.members[rank].load(empty), empty)
            assert places == {name: tensor.data_ptr() for name, tensor in empty.items()}

        self.all(run)
        return found


def tensors(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    wide = torch.randn(7, 5, generator=generator)
    return {
        "master": wide, "narrow": wide.bfloat16(), "step": torch.tensor(float(step)), "none": torch.empty(0, 3),
        "tokens": torch.arange(4, dtype=torch.int64) * rank, "codes": torch.arange(9, dtype=torch.int8),
    }


class Whole(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.join(folder.name, "saved")

    def names(self):
        return sorted(name for name in os.listdir(self.root) if name.startswith("step-"))

    def test_the_newest_comes_back_in_place_and_older_ones_go(self):
        group = Group(self.root)
        for step in (3, 6, 9):
            group.save(step)
        self.assertEqual(group.faults, {})
        self.assertEqual(self.names(), ["step-000006", "step-000009"])
        self.assertEqual(sorted(os.listdir(os.path.join(self.root, "step-000009"))),
                         ["manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"])
        again = Group(self.root)
        found = again.load()
        self.assertEqual(again.faults, {})
        for rank in range(SIZE):
            step, numbers, empty = found[rank]
            self.assertEqual((step, numbers), (9, {"scale": 2.0**rank}))
            for name, tensor in tensors(rank, 9).items():
                self.assertTrue(torch.equal(empty[name], tensor), name)
        again.save(9, seed=1)
        self.assertEqual(Group(self.root).load()[0][2]["step"], 9.0, "a step that is saved stays as it is")

    def test_large_tensors_go_piece_by_piece(self):
        import storage

        piece, storage.PIECE = storage.PIECE, 64
        try:
            self.test_the_newest_comes_back_in_place_and_older_ones_go()
        finally:
            storage.PIECE = piece

    def test_others_read_the_files(self):
        from safetensors.torch import load_file

        Group(self.root).save(1)
        found = load_file(os.path.join(self.root, "step-000001", "rank-00001.safetensors"))
        for name, tensor in tensors(1, 1).items():
            self.assertTrue(torch.equal(found[name], tensor), name)

    def test_each_changed_byte_is_found(self):
        Group(self.root).save(1)
        path = os.path.join(self.root, "step-000001", "rank-00001.safetensors")
        with open(path, "rb") as file:
            whole = file.read()
        for place in range(0, len(whole), 13):
            with open(path, "wb") as file:
                file.write(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            group = Group(self.root)
            group.load()
            self.assertIn(f"`{path}` is damaged", group.faults.get(1, ""), place)
        with open(path, "wb") as file:
            file.write(whole[:-1])
        group = Group(self.root)
        group.load()
        self.assertIn(f"`{path}` is damaged", group.faults[1])

    def test_another_plan_or_number_of_processes_is_refused(self):
        Group(self.root).save(4)
        other = Group(self.root, plan="other")
        other.load()
        self.assertIn("is of plan plan, this one is other", other.faults[0])
        three = Group(self.root, size=3)
        three.load()
        self.assertIn("is of 2 processes, 3 were started", three.faults[0])

    def test_nothing_to_go_on_from_is_an_error_and_so_is_a_used_folder(self):
        group = Group(self.root)
        group.load()
        self.assertIn("has no checkpoint to go on from", group.faults[0])
        Group(self.root).save(2)
        with self.assertRaisesRegex(Fault, "holds checkpoints of another run.*--resume"):
            Group(self.root).members[0].refuse_used()

    def test_folders_that_differ_are_found(self):
        patience, checkpoint.PATIENCE = checkpoint.PATIENCE, 1.0
        try:
            group = Group(self.root, folders=[self.root, f"{self.root}-of-another-node"])
        finally:
            checkpoint.PATIENCE = patience
        self.assertLessEqual(patience, 30)
        self.assertIn("rank 1 does not see", group.faults[1])

    def test_a_process_that_is_killed_at_any_time_leaves_the_last_whole_one(self):
        big = {"x": torch.arange(300_000, dtype=torch.float32)}
        for wait in (0.0, 0.005, 0.01, 0.02, 0.04, 0.08):
            pid = os.fork()
            if pid == 0:
                one = Checkpoints(self.root, 0, 1, "plan", 2, lambda: None)
                step = 0
                if one.exists():
                    step, _ = one.load(big)
                while True:
                    step += 1
                    big["x"].fill_(step)
                    one.save(step, big, {})
            end = time.monotonic() + 20
            while not checkpoint_in(self.root) and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(wait)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            one = Checkpoints(self.root, 0, 1, "plan", 2, lambda: None)
            step, _ = one.load(big)
            self.assertGreater(step, 0)
            self.assertTrue((big["x"] == step).all())

    def test_a_full_drive_is_an_error_that_leaves_the_ones_before(self):
        one = Checkpoints(self.root, 0, 1, "plan", 2, lambda: None)
        one.save(1, {"x": torch.ones(4)}, {})
        import resource

        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            with self.assertRaisesRegex(Fault, "cannot write the checkpoint .*step-000002.*: File too large"):
                one.save(2, {"x": torch.ones(40_000)}, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
            signal.signal(signal.SIGXFSZ, ignored)
        found = {"x": torch.zeros(4)}
        self.assertEqual(one.load(found)[0], 1)
        self.assertEqual(os.listdir(os.path.join(self.root, "step-000002")), [])

    def test_other_tensors_are_refused(self):
        one = Checkpoints(self.root, 0, 1, "plan", 2, lambda: None)
        one.save(1, {"x": torch.ones(4)}, {})
        for others, said in (({"y": torch.ones(4)}, "has .x., this plan has none"), ({"x": torch.ones(5)}, r"is F32 \[4\].*F32 \[5\]"),
                             ({"x": torch.ones(4).half()}, "is F32.*has F16")):
            with self.assertRaisesRegex(Fault, said):
                one.load(others)

    def test_a_manifest_of_another_format_is_refused(self):
        one = Checkpoints(self.root, 0, 1, "plan", 2, lambda: None)
        one.save(1, {}, {})
        path = os.path.join(self.root, "step-000001", "manifest.json")
        with open(path) as file:
            manifest = json.load(file)
        with open(path, "w") as file:
            json.dump({**manifest, "format-version": 2}, file)
        with self.assertRaisesRegex(Fault, "has format 2, this script reads 1"):
            one.load({})


def checkpoint_in(root):
    return os.path.isdir(root) and any(os.path.exists(os.path.join(root, name, "manifest.json")) for name in os.listdir(root))


if __name__ == "__main__":
    unittest.main()
