"""Checks a device with the built `spipe` alone: rates, systems under a cap of its memory, PyTorch beside them, parity.

    device_check.py cuda:0          a GPU, with a model of 1.5 billion parameters under a cap of 12 GiB
    device_check.py emulated:0      the same steps on cores; --short with a model of 0.2 million parameters
    device_check.py wgpu:0          any device of Vulkan, be it a program

Needs no toolchain and no network. Each step takes 120 s at most, and all of them what --limit says; results are in OUT/steps/, the report
in OUT/report.md. A step that is done is not repeated with the same binary and options: the check goes on where it was stopped. SPIPE names
the binary, PYTHON a Python with PyTorch. Exit code 6: something wanted was not reached; 1: a step failed.
"""

import argparse
import functools
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time

from steps import Commands, Failed, LeftOut, Steps, gigabytes, last_words

HERE = os.path.dirname(os.path.abspath(__file__))
PYTORCH = os.path.join(HERE, "../../spipe-exec/benches/pytorch/offload.py")
SMALL = os.path.join(HERE, "gpu-check-model.toml")
# Wanted on a GPU: bytes per second of copies, parameters per second of the optimizer, relative error of a prediction.
COPIES, OPTIMIZER, ERROR = 25e9, 5e9, 0.15
# Seconds for the end of a run after its last step.
END = 3.0
# By kind of device: the narrow type, and the largest relative difference of losses from those of cores. Tensor cores round f32 products to
# the 11 bits of TF32; bf16 has 8 bits of each number, and losses are means of many.
KINDS = {
    "cuda": {"narrow": "bf16", "tolerances": {"fp32": 0.01, "bf16": 0.05}, "model": "zero-bubble-1.5b", "cap": "12 GiB", "sequence": 1024},
    "wgpu": {"narrow": "fp16", "tolerances": {"fp32": 1e-4, "fp16": 0.05}, "model": SMALL, "cap": "12 MiB", "sequence": 64},
    "emulated": {"narrow": "bf16", "tolerances": {"fp32": 1e-4, "bf16": 0.05}, "model": "demo", "cap": "400 MiB", "sequence": 128},
}


class Check:
    """The steps of the check of one device."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.kind = options, KINDS[options.device.split(":")[0]]
        short = {"model": SMALL, "cap": "12 MiB", "sequence": 64} if options.short else {}
        chosen = {**self.kind, **short}
        self.model, self.cap = options.model or chosen["model"], options.cap or chosen["cap"]
        self.sequence = options.sequence or chosen["sequence"]
        self.small = "demo" if options.device.startswith("cuda") else self.model
        self.spipe = os.environ.get("SPIPE", "target/release/spipe")
        self.python = os.environ.get("PYTHON", sys.executable)
        self.work = os.path.join(options.work, options.device.replace(":", "-"))
        self.out = options.out or os.path.join("reports/gpu", options.device.replace(":", "-"))
        os.makedirs(self.work, exist_ok=True)
        inputs = {
            "binary": digest(self.spipe), "device": options.device, "model": os.path.basename(self.model), "cap": self.cap,
            "sequence": self.sequence, "steps": options.steps,
        }  # fmt: skip
        title = (f"# {options.device}\n\n`make gpu-check DEVICE={options.device}`{self.known()}, {platform.machine()}, {os.cpu_count()} cores; "
                 f"`{os.path.basename(self.model)}`, 8 x {self.sequence} tokens, cap {self.cap}.")  # fmt: skip
        self.steps = Steps(self.out, title, inputs, options.limit)

    def known(self) -> str:
        """The device's own name, where somebody can be asked."""
        device = self.options.device
        if device.startswith("cuda") and shutil.which("nvidia-smi"):
            words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", device.split(":")[1]]
            found = subprocess.run(words, capture_output=True, text=True)
            return f" ({found.stdout.strip()})" if found.returncode == 0 else ""
        return ""

    def path(self, name: str) -> str:
        return os.path.join(self.work, name)

    def run(self) -> int:
        narrow = self.kind["narrow"]
        system = lambda name, precision: functools.partial(self.system, name, precision)
        pytorch = lambda strategy: functools.partial(self.pytorch, strategy)
        # The most valuable first, each with its limit in seconds.
        plan = [
            ("rates", 120, self.rates),
            ("zero-offload", 90, system("zero-offload", narrow)),
            ("superpipeline", 90, system("superpipeline", narrow)),
            ("pytorch", 60, pytorch("zero-offload")),
            ("parity", 90, self.parity),
            ("counts", 5, self.counts),
            ("auto", 90, system("auto", narrow)),
            ("superpipeline-fp32", 120, system("superpipeline", "fp32")),
            ("pytorch-fsdp", 90, pytorch("fsdp")),
        ]
        if self.options.short:
            plan = [step for step in plan if step[0] not in ("auto", "superpipeline-fp32", "pytorch-fsdp")]
        chosen = set(self.options.only or [name for name, _, _ in plan]) - set(self.options.skip)
        for name, limit, work in plan:
            if name in chosen:
                self.steps.step(name, limit, work)
        unmet = self.unmet()
        for text in unmet:
            print(f"NOT REACHED: {text}")
        return self.steps.code(unmet)

    def unmet(self) -> list[str]:
        """What is wanted of a GPU and was not reached; of programs that play one, nothing is wanted."""
        if not self.options.device.startswith("cuda"):
            return []
        rates, found = self.steps.results("rates"), []
        for way, rate in zip(("to the GPU", "from the GPU"), rates.get("copies", [])):
            if rate < COPIES:
                found.append(f"copies {way} at {rate / 1e9:.1f} GB/s, wanted are {COPIES / 1e9:.0f}")
        for name in self.steps.names:
            results = self.steps.results(name)
            if abs(results.get("error", 0.0)) > ERROR:
                found.append(f"{name}: its prediction is off by {results['error']:+.1%}, wanted are {ERROR:.0%}")
            if results.get("params-per-second", OPTIMIZER) < OPTIMIZER:
                found.append(f"{name}: the optimizer at {results['params-per-second'] / 1e9:.2f} Gparam/s, wanted are {OPTIMIZER / 1e9:.0f}")
            if results.get("end-seconds", 0.0) > END:
                found.append(f"{name}: {results['end-seconds']:.1f} s after the last step, wanted are {END:.0f}")
        return found

    def calibrate(self, commands: Commands, name: str, seconds: int, *layers: object) -> dict:
        """Measures the machine; the figures of the device."""
        text = commands.run(self.spipe, "calibrate", "--devices", f"{self.options.device},cpu:0", "--emulated-memory", self.cap, "--time-limit",
                            f"{seconds}s", "--format", "json", "-o", self.path(f"{name}.toml"), *layers)  # fmt: skip
        return json.loads(text)

    def rates(self, commands: Commands) -> tuple[list[str], dict]:
        measured = self.calibrate(commands, "machine", self.options.calibration, "--model", self.model, "--seq-len", self.sequence)
        lines = ["| device | best product | memory | optimizer | a launch | a round trip | copies in, pinned | out | in, of a run | out |",
                 "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
        for device in measured["devices"]:
            link = device.get("link") or {}
            rates = [*link.get("pinned-bytes-per-second", [None] * 2), *link.get("run-bytes-per-second", [None] * 2)]
            products = ", ".join(f"{rate / 1e12:.2f} TFLOP/s in {width}" for width, rate in device["products-flops-per-second"].items())
            lines.append(f"| {device['executor']} | {products} | {device['memory-bandwidth-bytes-per-second'] / 1e9:.1f} GB/s "
                         f"| {device['optimizer-params-per-second'] / 1e9:.2f} Gparam/s | {device['launch-floor-us']:.1f} µs "
                         f"| {device['round-trip-us']:.1f} µs | {' | '.join(map(gigabytes, rates))} |")  # fmt: skip
        link = measured["devices"][0].get("link") or {}
        return lines, {"devices": measured["devices"], "copies": link.get("run-bytes-per-second", [])}

    def machine(self, commands: Commands) -> str:
        """The measured profile; one without layers, if that step has failed."""
        for name in ("machine", "machine-without-layers"):
            if os.path.exists(self.path(f"{name}.toml")):
                return self.path(f"{name}.toml")
        self.calibrate(commands, "machine-without-layers", 8)
        return self.path("machine-without-layers.toml")

    def plan(self, commands: Commands, name: str, system: str, precision: str, model: str, sequence: int) -> str:
        path = self.path(f"{name}.plan.json")
        commands.run(self.spipe, "plan", "--model", model, "--hardware", self.machine(commands), "--seq-len", sequence, "--global-batch", 8,
                     "--microbatch", 1, "--precision", precision, "--materialised-attention", "--system", system, "--time-limit", "5s",
                     "-o", path)  # fmt: skip
        return path

    def train(self, commands: Commands, plan: str, steps: int, executor: str = "") -> dict:
        """Runs a plan; its steps with page faults, its end, and seconds from the last step to the end of the process."""
        words = [self.spipe, "run", plan, "--data", self.options.data, "--steps", str(steps), "--format", "json",
                 "-o", plan.replace(".plan.json", ".measured.json")]  # fmt: skip
        if executor:
            words += ["--bind", f"gpu0={executor}"]
        allowed = commands.time()
        with open(plan.replace(".plan.json", ".run.txt"), "w+", encoding="utf-8") as said:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said, text=True)
            watch = threading.Timer(allowed, process.kill)
            watch.start()
            events, last, faults = [], time.monotonic(), 0
            for line in process.stdout:
                event = json.loads(line)
                if event["event"] == "step":
                    last, now = time.monotonic(), minor_faults(process.pid)
                    event["page-faults"], faults = now - faults, now
                events.append(event)
            code = process.wait()
            late = not watch.is_alive()
            watch.cancel()
            said.seek(0)
            if code:
                raise Failed(f"stopped after {allowed:.0f} s" if late else f"code {code}: {last_words(said.read())}")
        found = [event for event in events if event["event"] == "step"]
        return {"steps": found, "end": events[-1], "end-seconds": round(time.monotonic() - last, 2)}

    def system(self, system: str, precision: str, commands: Commands) -> tuple[list[str], dict]:
        name = f"{system}-{precision}"
        plan = self.plan(commands, name, system, precision, self.model, self.sequence)
        predicted = plan.replace(".plan.json", ".predicted.json")
        commands.run(self.spipe, "simulate", plan, "-o", predicted)
        trained = self.train(commands, plan, self.options.steps, self.options.device)
        measured = plan.replace(".plan.json", ".measured.json")
        compared = json.loads(commands.run(self.spipe, "compare", predicted, measured, "--format", "json"))
        rows = [("iteration", {"predicted-ms": compared["predicted-ms"], "measured-ms": compared["measured-ms"]}), *compared["by-lane"].items()]
        rows += [(f"all {kind}", row) for kind, row in compared["by-kind"].items()]
        lines = [f"{system} in {precision}, step of median length of {self.options.steps}.\n", "| | predicted | measured | error |", "|---|---|---|---|"]
        for label, row in rows:
            off = f"{row['predicted-ms'] / row['measured-ms'] - 1:+.1%}" if row["measured-ms"] else "–"
            lines.append(f"| {label} | {row['predicted-ms']:.1f} ms | {row['measured-ms']:.1f} ms | {off} |")
        memories = trained["end"]["memories"]
        held = "; ".join(f"{it['name']} {mebibytes(it['held-bytes'])} of {mebibytes(it['planned-bytes'])} planned" for it in memories)
        lines.append(f"\nHeld: {held}. From the last step to the end of the process: {trained['end-seconds']:.1f} s.")
        results = {
            "predicted-ms": compared["predicted-ms"], "measured-ms": compared["measured-ms"], "error": compared["iteration-error"],
            "lanes": compared["by-lane"], "kinds": compared["by-kind"], "memories": memories, "end-seconds": trained["end-seconds"],
            "page-faults": [step["page-faults"] for step in trained["steps"]], "launches": [step.get("launches") for step in trained["steps"]],
            "tokens-per-second": [step["tokens-per-second"] for step in trained["steps"]],
        }  # fmt: skip
        rate = self.optimizer_rate(plan, compared)
        return lines, {**results, **({"params-per-second": rate} if rate else {})}

    def optimizer_rate(self, plan: str, compared: dict) -> float | None:
        """Parameters per second of the steps on the host."""
        lane = next((row for lane, row in compared["by-lane"].items() if lane.endswith(".optimizer")), None)
        text = Commands(30).run(self.spipe, "model", "show", self.model, "--format", "json")
        parameters = json.loads(text).get("parameters")
        return parameters / lane["measured-ms"] * 1e3 if lane and lane["measured-ms"] and parameters else None

    def pytorch(self, strategy: str, commands: Commands) -> tuple[list[str], dict]:
        device = self.options.device if self.options.device.startswith("cuda") else "cpu"
        commands.time()
        probe = "import sys, torch; torch.zeros(1, device=sys.argv[1]); print(torch.__version__)"
        try:
            known = commands.run(self.python, "-c", probe, device).strip()
        except Failed:
            raise LeftOut(f"No PyTorch here that knows {device}: the comparison was left out.") from None
        system, narrow = ("zero-offload" if strategy == "zero-offload" else "superpipeline"), self.kind["narrow"]
        plan = self.path(f"{system}-{narrow}.plan.json")
        if not os.path.exists(plan):
            plan = self.plan(commands, f"{system}-{narrow}", system, narrow, self.model, self.sequence)
        cap = ["--cap", self.cap] if device != "cpu" else []
        text = commands.run(self.python, PYTORCH, strategy, plan, "--device", device, *cap, "--steps", 3, "--text", self.options.data)
        found = json.loads(text.splitlines()[-1])
        ours = next((row["measured-ms"] for row in [self.steps.results(system)] if row), None)
        ratio = f", {ours / found['iteration-ms']:.2f} times as long under spipe" if ours else ""
        return [f"PyTorch {known} on {device}, {strategy} by hand or FSDP2 with fused attention, AdamW on the cores in f32: "
                f"{found['iteration-ms']:.1f} ms, {found['tokens-per-second']:.0f} tokens/s, peak {mebibytes(found['peak-bytes'])}{ratio}."], found  # fmt: skip

    def parity(self, commands: Commands) -> tuple[list[str], dict]:
        """Losses of `gpu-only` beside those of cores in fp32."""
        steps = max(self.options.steps, 3) if self.options.short else 20
        sequence = min(self.sequence, 128)
        plan = self.plan(commands, "parity-cpu", "cpu-only", "fp32", self.small, sequence)
        wanted = [step["loss"] for step in self.train(commands, plan, steps)["steps"]]
        lines, results = [], {}
        for precision, tolerance in self.kind["tolerances"].items():
            plan = self.plan(commands, f"parity-{precision}", "gpu-only", precision, self.small, sequence)
            trained = self.train(commands, plan, steps, self.options.device)
            found = [step["loss"] for step in trained["steps"]]
            off = max(abs(one - other) / other for one, other in zip(found, wanted, strict=True))
            lines.append(f"Largest relative difference of {steps} losses of `{os.path.basename(self.small)}` between {self.options.device} in "
                         f"{precision} and the CPU in fp32: {off:.6f} (tolerance {tolerance}).")  # fmt: skip
            results[precision] = {"difference": off, "launches": [step.get("launches") for step in trained["steps"]]}
            if off > tolerance:
                raise Failed(f"losses in {precision} differ by {off:.6f}, more than {tolerance}")
        return lines, results

    def counts(self, _: Commands) -> tuple[list[str], dict]:
        """Launches and page faults of the systems that have run."""
        lines, results = ["| system | launches of a step | minor page faults of a step |", "|---|---|---|"], {}
        for name in ("zero-offload", "superpipeline"):
            found = self.steps.results(name)
            if found:
                # The first steps compile, tune, and take memory.
                launches, faults = ([it for it in found[key][2:] if it is not None] for key in ("launches", "page-faults"))
                results[name] = {"launches": max(launches, default=None), "page-faults": statistics.median(faults) if faults else None}
                cells = ["–" if it is None else f"{it:.0f}" for it in results[name].values()]
                lines.append(f"| {name} | {' | '.join(cells)} |")
        return lines, results


def minor_faults(process: int) -> int:
    """Minor page faults of a process so far; 0 where the system does not say."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return int(file.read().rpartition(")")[2].split()[7])
    except (OSError, IndexError, ValueError):
        return 0


def digest(path: str) -> str:
    """The beginning of a file's hash."""
    found = shutil.which(path)
    if found is None:
        sys.exit(f"error: there is no `{path}`\nhint: run `make build`, or name the binary by SPIPE")
    with open(found, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def mebibytes(number: float) -> str:
    return f"{number / 2**20:.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", default="cuda:0")
    parser.add_argument("--short", action="store_true", help="a small model and the first steps alone")
    parser.add_argument("--model", help="of the systems")
    parser.add_argument("--cap", help="memory that may be held on the device")
    parser.add_argument("--sequence", type=int, help="tokens of a sequence")
    parser.add_argument("--steps", type=int, default=3, help="training steps of each system")
    parser.add_argument("--data", default="README.md")
    parser.add_argument("--out", help="where the report goes (default: reports/gpu/DEVICE)")
    parser.add_argument("--work", default="target/gpu-check", help="where plans and traces go")
    parser.add_argument("--calibration", type=int, default=30, help="seconds for the measurements of the profile")
    parser.add_argument("--limit", type=int, default=530, help="seconds for everything")
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP")
    parser.add_argument("--skip", nargs="+", default=[], metavar="STEP")
    options = parser.parse_args()
    if options.device.split(":")[0] not in KINDS:
        parser.error(f"`{options.device}` is no device: name cuda:0, wgpu:0 or emulated:0")
    # Loaders of Vulkan complain where there is none.
    os.environ.setdefault("XDG_RUNTIME_DIR", os.environ.get("TMPDIR", "/tmp"))
    sys.exit(Check(options).run())


if __name__ == "__main__":
    main()
