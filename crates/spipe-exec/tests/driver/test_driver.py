"""What `spipe run` asks of CUDA's driver: driver.c plays one, NVRTC is the real one.

    make driver-check       builds both, and runs this with SPIPE and the Python that has NVRTC
"""

import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../../../..")
SPIPE = os.environ.get("SPIPE", os.path.join(ROOT, "target/cuda/release/spipe"))
# Many: the second one's line may be read while later ones run.
STEPS = 40
# Bytes from which a copy has more than shapes and a few numbers in it.
TENSOR = 4096
SYSTEMS = ["zero-offload", "superpipeline", "mobius", "po-f"]
MODEL = """
format-version = 1
kind = "transformer"
name = "driver-check"
vocabulary = 256
seq-len = 32
hidden = 64
layers = 4
heads = 4
intermediate = 128
"""


def toolkit() -> str:
    """The folder of PyPI's NVRTC and headers."""
    for place in sys.path:
        for library in glob.glob(os.path.join(place, "nvidia/*/lib/libnvrtc.so.*")):
            return os.path.dirname(os.path.dirname(library))
    raise unittest.SkipTest("NVRTC is missing: pip install nvidia-cuda-nvrtc nvidia-cuda-crt nvidia-cuda-runtime")


class Run:
    """A run, its warnings, and the driver's calls before and after the second step."""

    def __init__(self, folder: str, system: str, **environment: str) -> None:
        plan, log = os.path.join(folder, f"{system}.json"), os.path.join(folder, f"{system}.log")
        model = os.path.join(folder, "model.toml")
        with open(model, "w", encoding="utf-8") as file:
            file.write(MODEL)
        words = [SPIPE, "plan", "--model", model, "--hardware", "one-gpu", "--system", system, "--precision", "bf16", "--global-batch", "4",
                 "--microbatch", "1", "--materialised-attention", "--time-limit", "5s", "-o", plan]  # fmt: skip
        subprocess.run(words, check=True, capture_output=True)
        cuda = toolkit()
        self.environment = {
            **os.environ, "LD_LIBRARY_PATH": f"{folder}:{cuda}/lib", "CUDA_PATH": cuda, "XDG_CACHE_HOME": os.environ.get("DRIVER_CACHE", folder), "DRIVER_LOG": log,
            **environment,
        }  # fmt: skip
        words = [SPIPE, "run", plan, "--data", os.path.join(ROOT, "README.md"), "--steps", str(STEPS), "--bind", "gpu0=cuda:0", "--format",
                 "json"]  # fmt: skip
        with open(os.path.join(folder, "said.txt"), "w+", encoding="utf-8") as said:
            mark = 0
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said, text=True, env=self.environment) as process:
                for line in process.stdout:
                    event = json.loads(line)
                    if event["event"] == "step" and event["step"] == 2:
                        mark = os.path.getsize(log)
            code = process.returncode
            said.seek(0)
            self.said = said.read()
        if code:
            raise AssertionError(f"{system}: code {code}: {self.said[-3000:]}")
        with open(log, encoding="utf-8") as file:
            text = file.read()
        calls = lambda part: [(words[0], *map(int, words[1:])) for words in map(str.split, part.splitlines())]
        # A line may be half written where the step's own was read.
        mark = text.rfind("\n", 0, mark) + 1
        self.before, self.after = calls(text[:mark]), calls(text[mark:])
        self.calls = self.before + self.after


def of(kind: str, calls: list) -> list:
    return [call[1:] for call in calls if call[0] == kind]


class TestDriver(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = cls.temporary.name
        library = os.path.join(cls.folder, "libcuda.so")
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", "-o", library,
                        os.path.join(HERE, "driver.c")], check=True)  # fmt: skip

    @classmethod
    def tearDownClass(cls) -> None:
        cls.temporary.cleanup()

    def test_copies(self) -> None:
        for system in SYSTEMS:
            with self.subTest(system):
                run = Run(self.folder, system)
                self.assertTrue(run.before and run.after, "calls before and after the second step")
                pinned, pool = of("pin", run.calls), of("allocate-pinned", run.calls)
                first = next(place for place, call in enumerate(run.calls) if call[0] == "to-device" and call[3] >= TENSOR)
                self.assertEqual(of("pin", run.calls[first:]), [], "all of it before the first copy")
                self.assertEqual(of("allocate-pinned", run.after), [])
                # Activations come back from where the device's engine has put them, the library's own pinned memory.
                where = pool if system == "po-f" else pinned
                inside = lambda start, bytes: any(at <= start and start + bytes <= at + size for at, size in where)
                sent = [call for call in of("to-device", run.after) if call[2] >= TENSOR]
                back = [call for call in of("to-host", run.after) if call[2] >= TENSOR]
                self.assertTrue(sent and back)
                self.assertEqual([call for call in sent if not inside(*call[1:])], [])
                if system != "po-f":
                    # PipeOffload copies in turn, on one lane.
                    self.assertEqual({call[0] for call in sent} & {call[0] for call in back}, set(), "a direction has streams of its own")

    def test_a_driver_that_refuses_to_pin(self) -> None:
        run = Run(self.folder, "zero-offload", DRIVER_REFUSES="1")
        self.assertEqual(of("pin", run.calls), [])
        self.assertEqual(run.said.count("host memory is not pinned"), 1, run.said)


if __name__ == "__main__":
    unittest.main()
