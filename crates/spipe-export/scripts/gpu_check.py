"""Checks exported plans on a GPU: step times, copies, optimizer and memory, beside their predictions and a plain loop.

    gpu_check.py                    on cuda:0, the model zero-bubble-1.5b under a cap of 12 GiB, 8 x 1024 tokens, bf16
    gpu_check.py --cpu --model tiny.toml --cap "8 MiB" --sequence 32 --precision fp32      the same steps on cores

Needs a built `spipe` (SPIPE names it) and this Python's PyTorch: no toolchain, no network. What is known is printed, and written to
OUT/torch.md, after each step. Exit code 6: something wanted was not reached; 1: a step failed.
"""

import argparse
import json
import os
import runpy
import statistics
import sys
import time
from collections.abc import Iterator

import torch
from yardstick import IGNORED, STEPS, TYPES, Yardstick, chain

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../spipe-cli/scripts"))
from steps import Commands, Failed, gigabytes

# Wanted on a GPU: bytes per second of copies, and the largest relative error of a prediction.
COPIES, ERROR = 25e9, 0.15
SYSTEMS = ("superpipeline", "zero-offload", "spipe")
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Check:
    """The steps, and the report as far as it goes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.commands = options, Commands(options.limit)
        self.spipe = os.environ.get("SPIPE", "target/release/spipe")
        self.lines: list[str] = []
        self.unmet: list[str] = []
        self.is_broken = False
        os.makedirs(options.out, exist_ok=True)

    def say(self, text: str = "") -> None:
        print(text, flush=True)
        self.lines.append(text)
        with open(os.path.join(self.options.out, "torch.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(self.lines) + "\n")

    def path(self, name: str) -> str:
        return os.path.join(os.path.abspath(self.options.out), "torch", name)

    def own(self, what: str, *words: object) -> str:
        """Runs this script's own part in another process, under the cap."""
        return self.commands.run(sys.executable, "-B", os.path.abspath(__file__), "--part", what, "--cap", self.options.cap, *(["--cpu"] if self.options.cpu else []), *words)

    def calibrate(self) -> None:
        options = self.options
        device = "emulated:0" if options.cpu else "cuda:0"
        start = time.monotonic()
        self.commands.run(self.spipe, "calibrate", "--runtime", "pytorch", "--python", sys.executable, "--devices", f"{device},cpu:0", "--model", options.model,
                     "--seq-len", options.sequence, "--emulated-memory", options.cap, "--time-limit", f"{options.calibration}s",
                     "-o", self.path("machine.toml"), "--runtime-output", self.path("runtime.toml"))  # fmt: skip
        self.say(f"The profile was measured by `spipe calibrate --runtime pytorch` in {time.monotonic() - start:.0f} s.\n")
        self.say("| system | engine | predicted | measured | error | copies in | copies out | optimizer, Gparam/s | peak of the device |")
        self.say("|---|---|---|---|---|---|---|---|---|")

    def plan(self, system: str, folder: str) -> None:
        options = self.options
        memory = ["--materialised-attention"] if options.cpu else []
        self.commands.run(self.spipe, "plan", "--model", options.model, "--hardware", self.path("machine.toml"), "--runtime", self.path("runtime.toml"),
                     "--seq-len", options.sequence, "--global-batch", options.batch, "--microbatch", 1, "--precision", options.precision,
                     "--system", system, "--time-limit", "5s", "-o", f"{folder}.json", *memory)  # fmt: skip
        self.commands.run(self.spipe, "export", "torch", f"{folder}.json", "-o", folder)

    def system(self, system: str) -> float:
        """Plans, predicts, exports and runs a system; its row, and milliseconds of a step."""
        folder = self.path(system)
        self.plan(system, folder)
        predicted = json.loads(self.commands.run(self.spipe, "simulate", f"{folder}.json", "--format", "json"))["iteration-ms"]
        trace = os.path.join(folder, "trace")
        text = self.own("train", folder, "--data", os.path.abspath(self.options.data), "--steps", STEPS, "--trace", trace)
        events = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        # The last step is traced, and a profiler takes time.
        times = [event["duration-ms"] for event in events if event["event"] == "step" and IGNORED <= event["step"] < STEPS - 1]
        peak = next((event["peak-bytes"] for event in events if event["event"] == "end"), None)
        measured, error = statistics.median(times), predicted / statistics.median(times) - 1
        self.commands.run(self.spipe, "trace", "import", trace, "--plan", f"{folder}.json", "-o", f"{folder}.measured.json")
        rates = Rates(f"{folder}.measured.json", folder)
        inwards, outwards, steps = rates.copies("h2d"), rates.copies("d2h"), rates.optimizer()
        engine = "program" if os.path.exists(os.path.join(folder, "program.json")) else "PyTorch's pipeline"
        self.say(f"| {system} | {engine} | {predicted:.1f} ms | {measured:.1f} ms | {error:+.1%} | {gigabytes(inwards)} | {gigabytes(outwards)} | "
                 f"{steps / 1e9 if steps else 0:.2f} | {f'{peak / 2**20:.0f} MiB' if peak else '-'} |")  # fmt: skip
        self.want(abs(error) <= ERROR, f"{system}: its prediction is off by {abs(error):.1%}, wanted are {ERROR:.0%}")
        for way, rate in (("to the GPU", inwards), ("from the GPU", outwards)):
            self.want(rate is None or rate >= COPIES, f"{system}: copies {way} at {gigabytes(rate)}, wanted are {gigabytes(COPIES)}")
        return measured

    def want(self, is_met: bool, text: str) -> None:
        """On cores nothing is wanted of rates."""
        if not is_met and not self.options.cpu:
            self.unmet.append(text)

    def yardstick(self, measured: dict[str, float]) -> None:
        folder = self.path("superpipeline")
        found = json.loads(self.own("yardstick", folder, "--data", os.path.abspath(self.options.data)).splitlines()[-1])
        plain = found["iteration-ms"]
        self.say(f"A plain loop (ZeRO-Offload by hand: {self.options.precision} weights on the device, pinned gradients, AdamW on the cores in fp32, "
                 f"copies on a stream): {plain:.1f} ms, peak {found['peak-bytes'] / 2**20:.0f} MiB on the device, copies in {gigabytes(found['in'])}, out "
                 f"{gigabytes(found['out'])}, optimizer {found['params-per-second'] / 1e9:.2f} Gparam/s.")  # fmt: skip
        for system, took in measured.items():
            self.want(took <= plain, f"{system}: {took / plain:.2f} times the step of the plain loop")

    def attempt(self, what: str, run) -> object:
        try:
            return run()
        except Failed as failed:
            self.is_broken = True
            self.say(f"FAILED: {what}: {failed}")
            return None

    def run(self) -> int:
        options = self.options
        os.makedirs(os.path.dirname(self.path("x")), exist_ok=True)
        name = "cores" if options.cpu else torch.cuda.get_device_name(0)
        self.say(f"# Exports under PyTorch: {'cpu' if options.cpu else 'cuda:0'}\n\n{name}, {os.cpu_count()} cores, PyTorch {torch.__version__}, "
                 f"{time.strftime('%Y-%m-%d', time.gmtime())}; `{os.path.basename(options.model)}`, {options.batch} x {options.sequence} tokens, "
                 f"{options.precision}, cap {options.cap}. Medians of {STEPS - 1 - IGNORED} steps; rates are those of a traced step.\n")  # fmt: skip
        if self.attempt("calibration", lambda: self.calibrate() or True) is None:
            return 1
        measured = {}
        for system in SYSTEMS:
            took = self.attempt(system, lambda system=system: self.system(system))
            if took is not None:
                measured[system] = took
        self.say()
        self.attempt("the plain loop", lambda: self.yardstick(measured))
        for text in self.unmet:
            self.say(f"NOT REACHED: {text}")
        self.say(f"{'Something failed.' if self.is_broken else 'All steps ran.'}")
        return 1 if self.is_broken else 6 if self.unmet else 0


class Rates:
    """The rates of a traced step."""

    def __init__(self, path: str, folder: str) -> None:
        with open(path, encoding="utf-8") as file:
            self.trace = json.load(file)
        self.counts = counts(folder)

    def spans(self, role: str) -> Iterator[dict]:
        return (span for span in self.trace["spans"] if self.trace["lanes"][span["lane"]]["role"] == role)

    def copies(self, role: str) -> float | None:
        """Bytes per second of the copies of lanes; none if none had bytes."""
        found = [(span["bytes"], span["end-ns"] - span["start-ns"]) for span in self.spans(role) if span.get("bytes")]
        return sum(bytes for bytes, _ in found) / max(sum(took for _, took in found), 1) * 1e9 if found else None

    def optimizer(self) -> float | None:
        """Parameters per second of the steps on the host, or of all where those of the host are not told apart."""
        steps = [span for span in self.spans("optimizer") if span["kind"] == "optimizer-step"]
        steps = steps or [span for span in self.trace["spans"] if span["kind"] == "optimizer-step"]
        parameters = 0
        for span in steps:
            first, _, last = str(span["subject"].get("layers", "")).partition("..")
            parameters += sum(self.counts[int(first) : int(last) + 1]) if last else 0
        took = sum(span["end-ns"] - span["start-ns"] for span in steps)
        return (parameters or sum(self.counts)) / took * 1e9 if took else None


def counts(folder: str) -> list[int]:
    """The parameters of each layer, a shared table once."""
    layers, _ = chain(folder, "meta")
    seen: set[int] = set()
    return [sum(it.numel() for it in layer.parameters() if not (id(it) in seen or seen.add(id(it)))) for layer in layers]


def limit_memory(cap: str, is_gpu: bool) -> None:
    """Lets PyTorch allocate no more than the cap on the device."""
    if is_gpu:
        number, unit = cap.split()
        torch.cuda.set_per_process_memory_fraction(min(1.0, float(number) * UNITS[unit] / torch.cuda.get_device_properties(0).total_memory))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="on cores, where nothing is wanted of rates")
    parser.add_argument("--model", default="zero-bubble-1.5b")
    parser.add_argument("--cap", default="12 GiB")
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precision", choices=sorted(TYPES), default="bf16")
    parser.add_argument("--data", default="README.md")
    parser.add_argument("--out", default="reports/gpu/cuda-0")
    parser.add_argument("--calibration", type=int, default=20, help="seconds for the measurements of the profile")
    parser.add_argument("--limit", type=int, default=235, help="seconds for everything")
    parser.add_argument("--part", choices=["train", "yardstick"], help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    is_gpu = not options.cpu
    if is_gpu and not torch.cuda.is_available():
        sys.exit("error: this Python's PyTorch finds no GPU; --cpu runs the steps on cores")
    if options.part is None:
        if rest:
            parser.error(f"{rest[0]} is not known")
        sys.exit(Check(options).run())
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    limit_memory(options.cap, is_gpu)
    if options.part == "yardstick":
        Yardstick(rest[0], options.data, is_gpu)
        return
    # The exported script runs as it is, in this process.
    sys.argv = ["train.py", *rest[1:], "--data", options.data, *(["--cpu"] if options.cpu else [])]
    sys.path[0] = rest[0]
    os.chdir(rest[0])
    runpy.run_path(os.path.join(rest[0], "train.py"), run_name="__main__")


if __name__ == "__main__":
    main()
