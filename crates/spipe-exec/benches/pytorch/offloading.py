"""Offloading systems of `spipe run` beside PyTorch on the same cores, and the optimizer in a run beside the optimizer alone.

    offloading.py target/release/spipe      prints two tables in Markdown (`make bench-offloading`)

A model of 200 million parameters in bf16 is trained on an accelerator that cores emulate. `zero-offload` and `superpipeline` take turns
with `offload.py`, whose strategies keep, or fetch, parameters as they do. The optimizer's rate is that of `zero-offload`'s steps on the
host, 16-bit parameters out, in turns with what `spipe calibrate` measures for the same cores. Each turn is a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# By system, the strategy of `offload.py` beside it.
BESIDE = {"zero-offload": "zero-offload", "superpipeline": "fsdp"}
DEVICES = ["--devices", "emulated:0,cpu:0", "--emulated-memory", "3 GiB"]


class Bench:
    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        self.options, self.folder = options, folder
        # As many threads as the emulated accelerator and the host have cores.
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(os.cpu_count())}

    def call(self, *words: object) -> str:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=self.environment)
        if done.returncode:
            sys.exit(f"`{words[0]} {words[1]}` ended with code {done.returncode}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def spipe(self, *words: object) -> str:
        return self.call(self.options.spipe, *words)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def calibrate(self, seconds: int) -> dict:
        """The figures of the host's cores; the machine's profile is kept."""
        text = self.spipe("calibrate", *DEVICES, "--time-limit", f"{seconds}s", "--format", "json", "-o", self.path("machine.toml"))
        return next(device for device in json.loads(text)["devices"] if device["executor"].startswith("cpu"))

    def plan(self, system: str) -> str:
        path = self.path(f"{system}.plan.json")
        self.spipe("plan", "--model", self.options.model, "--hardware", self.path("machine.toml"), "--system", system, "--precision", "bf16",
                   "--global-batch", 2, "--microbatch", 1, "--materialised-attention", "--time-limit", "5s", "-o", path)  # fmt: skip
        return path

    def train(self, plan: str, steps: int) -> dict:
        """A run's last line, and its trace of the step of median length."""
        trace = self.path("trace.json")
        said = self.spipe("run", plan, "--data", self.options.text, "--steps", steps, "--bind", "gpu0=emulated:0", "--format", "json", "-o", trace)
        with open(trace, encoding="utf-8") as file:
            return {"trace": json.load(file), **json.loads(said.splitlines()[-1])}

    def pytorch(self, strategy: str, plan: str, steps: int) -> dict:
        script = os.path.join(HERE, "offload.py")
        return json.loads(self.call(sys.executable, script, strategy, plan, "--device", "cpu", "--steps", steps, "--text", self.options.text))


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} … {high:.2f})"


def stepped(run: dict, parameters: int) -> float:
    """Parameters per second of the optimizer's actions in an iteration."""
    spans = [span for span in run["trace"]["spans"] if span["kind"] == "optimizer-step"]
    return parameters / (sum(span["end-ns"] - span["start-ns"] for span in spans) / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spipe")
    parser.add_argument("--model", default=os.path.join(HERE, "two-hundred-million.toml"))
    parser.add_argument("--text", default="README.md")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, folder)
        bench.calibrate(20)
        plans = {system: bench.plan(system) for system in BESIDE}
        print(f"{options.rounds} turns of {options.steps} steps. Ratio: PyTorch's time over spipe's, median (quartiles).\n")
        print("| system | spipe | PyTorch | ratio |\n|---|---|---|---|")
        for system, plan in plans.items():
            ours, theirs = [], []
            for _ in range(options.rounds):
                ours.append(bench.train(plan, options.steps)["iteration-ms"])
                theirs.append(bench.pytorch(BESIDE[system], plan, options.steps)["iteration-ms"])
            ratio = quartiles([b / a for a, b in zip(ours, theirs)])
            print(f"| {system}, beside {BESIDE[system]} of offload.py | {statistics.median(ours):.0f} ms | {statistics.median(theirs):.0f} ms "
                  f"| {ratio} |", flush=True)  # fmt: skip
        parameters = json.loads(bench.spipe("model", "show", options.model, "--format", "json"))["parameters"]
        alone, inside = [], []
        for _ in range(options.rounds):
            alone.append(bench.calibrate(10)["optimizer-params-per-second"])
            inside.append(stepped(bench.train(plans["zero-offload"], options.steps), parameters))
        print("\n| AdamW on the host, 16-bit parameters out | alone | in a run | share |\n|---|---|---|---|")
        print(f"| {parameters / 1e6:.0f} M parameters | {statistics.median(alone) / 1e9:.2f} G/s | {statistics.median(inside) / 1e9:.2f} G/s "
              f"| {quartiles([b / a for a, b in zip(alone, inside)])} |")  # fmt: skip


if __name__ == "__main__":
    main()
