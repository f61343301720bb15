"""The commands of a folder start the plan's processes, each on the plan's device."""

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
import unittest

from spipe import HERE, TEXT, spipe

sys.path.insert(0, os.path.join(HERE, "../../templates/common"))
import place
from storage import Fault

STUBS = {
    # The command of every node, as Slurm starts it.
    "srun": '#!/bin/bash\nshift\nfor node in $(seq 0 $((SLURM_NNODES - 1))); do SLURM_NODEID=$node "$@"; done\n',
    "scontrol": "#!/bin/bash\nprintf 'first\\nsecond\\n'\n",
    "torchrun": '#!/bin/bash\nprintf "%s\\n" "$*"\n',
}


def torchrun(line):
    """The options of a command, as torchrun itself reads them."""
    from torch.distributed.run import get_args_parser

    words = shlex.split(line)
    assert words[0] == "torchrun", line
    return get_args_parser().parse_args(words[1:])


def readme_commands(folder):
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
        return [line for line in file.read().splitlines() if line.startswith("torchrun ")]


class Commands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def planned(self, hardware, devices, system, *options):
        path = os.path.join(self.root, "plan.json")
        spipe("plan", "--model", "demo", "--hardware", hardware, "--devices", devices, "--system", system, "--seq-len", 32,
              "--effort", "low", "-o", path, *options)
        return path

    def export(self, engine, path, *options):
        folder = os.path.join(self.root, f"{engine}-{len(os.listdir(self.root))}")
        spipe("export", engine, path, "-o", folder, *options)
        return folder

    def submitted(self, folder, nodes, whole=None):
        """What each node runs where the batch script is submitted."""
        stubs = os.path.join(self.root, "stubs")
        os.makedirs(stubs, exist_ok=True)
        for name, text in STUBS.items():
            with open(os.path.join(stubs, name), "w") as file:
                file.write(text)
            os.chmod(file.name, os.stat(file.name).st_mode | stat.S_IXUSR)
        if whole:
            os.makedirs(os.path.dirname(os.path.join(folder, whole)), exist_ok=True)
            open(os.path.join(folder, whole), "w").close()
        slurm = {"SLURM_SUBMIT_DIR": folder, "SLURM_JOB_ID": "777", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": str(nodes)}
        environment = {**os.environ, **slurm, "PATH": f"{stubs}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", os.path.join(folder, "train.sbatch")], env=environment, capture_output=True, text=True, cwd="/")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(os.path.isdir(os.path.join(folder, "logs", "777")))
        return [torchrun("torchrun " + line) for line in done.stdout.splitlines()]

    def directives(self, folder):
        with open(os.path.join(folder, "train.sbatch")) as file:
            return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)", file.read(), re.MULTILINE))

    def test_one_machine_with_five_ranks(self):
        path = self.planned("rtx3090-x4-two-sockets", "gpu0..gpu3,cpu0", "hybrid", "--global-batch", 8, "--microbatch", 1,
                            "--pin", "layer=9:cpu0")
        folder = self.export("torch", path, "--data", TEXT, "--steps", 7)
        (line,) = readme_commands(folder)
        found = torchrun(line)
        with open(os.path.join(folder, "plan.json")) as file:
            ranks = json.load(file)["ranks"]
        self.assertEqual((found.standalone, found.nproc_per_node), (True, str(len(ranks))))
        self.assertIn("cpu", [rank["kind"] for rank in ranks])
        self.assertEqual(found.training_script_args, ["--steps", "7"])
        self.assertEqual([node.nproc_per_node for node in self.submitted(folder, 1)], [str(len(ranks))])
        self.assertEqual(self.directives(folder)["gpus-per-node"], str(len(ranks) - 1))

    def test_several_machines(self):
        path = self.planned("v100-32g-x16", "gpu0..gpu15", "fsdp", "--global-batch", 16, "--microbatch", 1)
        for engine, whole in (("fsdp", "checkpoints/step-000003/manifest.json"), ("deepspeed", "checkpoints/latest")):
            folder = self.export(engine, path)
            (line,) = readme_commands(folder)
            found = torchrun(line.replace("$NODE", "1"))
            self.assertEqual((found.nnodes, found.nproc_per_node, found.node_rank), ("4", "4", 1))
            self.assertEqual(found.training_script_args, ["--data", "text.txt", "--steps", "100"])
            nodes = self.submitted(folder, 4)
            self.assertEqual([(node.nnodes, node.node_rank, node.nproc_per_node) for node in nodes], [("4", node, "4") for node in range(4)])
            self.assertEqual({node.master_addr for node in nodes}, {"first"})
            self.assertEqual(nodes[0].training_script_args[-2:], ["--checkpoint-dir", "checkpoints"])
            self.assertEqual(self.submitted(folder, 4, whole)[1].training_script_args[-1], "--resume")
            found = self.directives(folder)
            self.assertEqual((found["nodes"], found["ntasks-per-node"], found["gpus-per-node"]), ("4", "1", "4"))

    def test_machines_with_unequal_parts(self):
        path = self.planned("v100-32g-x16", "gpu6,gpu7,gpu8", "1f1b", "--global-batch", 8, "--microbatch", 1)
        folder = self.export("torch", path)
        found = [torchrun(line) for line in readme_commands(folder)]
        self.assertEqual([(line.node_rank, line.nproc_per_node) for line in found], [(0, "2"), (1, "1")])
        self.assertEqual([line.nproc_per_node for line in self.submitted(folder, 2)], ["2", "1"])
        with open(os.path.join(folder, "plan.json")) as file:
            ranks = json.load(file)["ranks"]
        self.assertEqual([(rank["node"], rank["gpu"]) for rank in ranks], [(0, 2), (0, 3), (1, 0)])

    def test_gpus_are_those_of_the_plan(self):
        path = self.planned("a100-80g-x8-nvlink", "gpu4,gpu5,gpu6,gpu7", "1f1b", "--global-batch", 8, "--microbatch", 1)
        folder = self.export("torch", path)
        with open(os.path.join(folder, "plan.json")) as file:
            ranks = json.load(file)["ranks"]
        own = [rank["gpu"] for rank in ranks]
        self.assertEqual(sorted(own), [4, 5, 6, 7])
        number = lambda rank, visible, count: place.gpu_number(rank, ranks[rank], own, visible, count)
        self.assertEqual([number(rank, None, 8) for rank in range(4)], own)
        # Those that are visible are counted from zero.
        self.assertEqual([number(rank, "7,6,5,4", 4) for rank in range(4)], [7 - gpu for gpu in own])
        self.assertEqual([number(rank, "0,1,2,3", 4) for rank in range(4)], [gpu - 4 for gpu in own])
        self.assertEqual([number(rank, "GPU-a,GPU-b,GPU-c,GPU-d", 4) for rank in range(4)], [gpu - 4 for gpu in own])
        with self.assertRaisesRegex(Fault, "GPU . of its computer, and PyTorch finds 4: plan for GPUs that are there"):
            number(0, None, 4)
        with self.assertRaisesRegex(Fault, "CUDA_VISIBLE_DEVICES is 0,1: list the plan's GPUs .4, 5, 6, 7."):
            number(0, "0,1", 2)

    def test_cards_stay_on_their_sockets(self):
        path = self.planned("rtx3090-x4-two-sockets", "gpu0..gpu3", "1f1b", "--global-batch", 8, "--microbatch", 1)
        folder = self.export("torch", path)
        with open(os.path.join(folder, "plan.json")) as file:
            ranks = json.load(file)["ranks"]
        for rank in ranks:
            self.assertEqual((rank["device"], rank["socket"], rank["sockets"]), (f"gpu{rank['gpu']}", rank["gpu"] // 2, 2))

    def test_another_computer_is_refused(self):
        planned = {"device": "gpu9", "node": 1}
        before = os.environ.pop("GROUP_RANK", None)
        try:
            place.check_node(9, planned)
            os.environ["GROUP_RANK"] = "1"
            place.check_node(9, planned)
            os.environ["GROUP_RANK"] = "0"
            with self.assertRaisesRegex(Fault, "rank 9 is `gpu9` of computer 1 in the plan, and runs on computer 0"):
                place.check_node(9, planned)
        finally:
            os.environ.pop("GROUP_RANK")
            if before is not None:
                os.environ["GROUP_RANK"] = before

    def test_sockets_have_the_cores_of_their_nodes(self):
        lists = {"node0": "0-1,8-9\n", "node1": "2-3\n", "node10": "6\n", "node2": "4,5", "node11": "\n"}
        for name, text in lists.items():
            os.makedirs(os.path.join(self.root, name))
            with open(os.path.join(self.root, name, "cpulist"), "w") as file:
                file.write(text)
        cores = lambda socket, sockets: place.cores_of_socket(socket, sockets, self.root)
        self.assertEqual([cores(socket, 2) for socket in range(2)], [{0, 1, 8, 9, 2, 3}, {4, 5, 6}])
        self.assertEqual(cores(2, 4), {4, 5})
        self.assertEqual(cores(0, 3), set(), "no socket has a part of a node")
        self.assertEqual(place.cores_of_socket(0, 1, os.path.join(self.root, "none")), set())

    def test_a_process_is_bound_where_that_can_be(self):
        own = os.sched_getaffinity(0)
        try:
            one = {min(own)}
            nodes, place.NODES = place.NODES, self.root
            os.makedirs(os.path.join(self.root, "node0"))
            with open(os.path.join(self.root, "node0", "cpulist"), "w") as file:
                file.write(str(min(own)))
            place.bind({"socket": None, "sockets": 0})
            self.assertEqual(os.sched_getaffinity(0), own)
            place.bind({"socket": 0, "sockets": 1})
            self.assertEqual(os.sched_getaffinity(0), one)
            with open(os.path.join(self.root, "node0", "cpulist"), "w") as file:
                file.write("4000")
            place.bind({"socket": 0, "sockets": 1})
            self.assertEqual(os.sched_getaffinity(0), one)
        finally:
            place.NODES = nodes
            os.sched_setaffinity(0, own)


if __name__ == "__main__":
    unittest.main()
