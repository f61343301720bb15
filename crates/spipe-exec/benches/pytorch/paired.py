"""Takes turns with the example `paired`: the same work in PyTorch and in spipe, in one run, on as many threads.

Run it with `make bench-pytorch`, which says what it needs. Prints medians, quartiles and ratios as a table in Markdown. A ratio
is taken turn by turn, so that it holds when the speed of the machine drifts.
"""

import argparse
import statistics
import subprocess
import sys
import time

import torch
import transformer

MICROBATCHES = 8
STEPS = 3
WARM = 0.05  # seconds


class Peer:
    """The example, which measures whenever it is told to."""

    def __init__(self, binary, model, text, threads):
        self.process = subprocess.Popen(
            [binary, model, text, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"the example ended at `{line}`")
        return [float(number) for number in answer.split()]


class Training:
    def __init__(self, model, text):
        self.tokens = model["seq-len"]
        self.data = transformer.Text(text, self.tokens)
        self.model = transformer.Transformer(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)

    def step(self):
        start = time.perf_counter()
        for _ in range(MICROBATCHES):
            inputs, targets = self.data.batch(1)
            (transformer.loss(self.model(inputs), targets) / MICROBATCHES).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start


class AdamW:
    def __init__(self, count, dtype):
        self.parameter = torch.full((count,), 0.5, dtype=dtype, requires_grad=True)
        self.parameter.grad = torch.full((count,), 0.01, dtype=dtype)
        self.optimizer = torch.optim.AdamW([self.parameter], fused=True)

    def step(self):
        # Until PyTorch's threads are awake, each on a core of its own; the example repeats its turns as long.
        warm = time.perf_counter() + WARM
        while time.perf_counter() < warm:
            self.optimizer.step()
        start = time.perf_counter()
        self.optimizer.step()
        seconds = time.perf_counter() - start
        # They look for more work for some milliseconds before they sleep, and would take those from the next turn.
        time.sleep(WARM)
        return seconds


def quartiles(values):
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def row(what, ours, theirs, unit, ours_only=None):
    (our, *_), (their, *_) = quartiles(ours), quartiles(theirs)
    ratio, low, high = quartiles([b / a for a, b in zip(ours, theirs)])
    share = f"{100 * ours_only:.0f} %" if ours_only else "–"
    print(f"| {what} | {unit(our)} | {unit(their)} | {ratio:.2f} ({low:.2f} … {high:.2f}) | {share} |", flush=True)


def optimizers(peer, rounds, count):
    torch_step = AdamW(count, torch.float32)
    times = {"spipe": [], "torch": [], "triad": [], "narrow": []}
    for turn in range(rounds + 2):
        found = {
            "spipe": peer.ask(f"adamw f32 {count}")[0],
            "torch": torch_step.step(),
            "triad": peer.ask(f"triad {count}")[0],
            "narrow": peer.ask(f"adamw bf16 {count}")[0],
        }
        if turn >= 2:
            for name, seconds in found.items():
                times[name].append(seconds)
    # 4 numbers in and 3 out; with gradients and weights of 16 bits 3 and a half in, 3 and a half out.
    share = lambda name, size: statistics.median(size * t / (12 * s) for s, t in zip(times[name], times["triad"]))
    unit = lambda seconds: f"{count / seconds / 1e9:.2f} G/s"
    title = f"AdamW, {count / 2**20:.0f} Mi parameters"
    row(f"{title}, f32", times["spipe"], times["torch"], unit, share("spipe", 28))
    row(f"{title}, bf16 gradients in and weights out, beside PyTorch's f32", times["narrow"], times["torch"], unit, share("narrow", 28))
    print(f"\nTriad: {12 * count / statistics.median(times['triad']) / 1e9:.1f} GB/s of 12 bytes per number.\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--model", default="models/demo.toml")
    parser.add_argument("--text", default="README.md")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=["adamw", "train"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    peer = Peer(options.binary, options.model, options.text, options.threads)
    print(f"PyTorch {torch.__version__}, {options.threads} threads, {options.rounds} turns. "
          "Ratio: PyTorch's time over spipe's, median (quartiles); above 1, spipe is faster.\n")
    print("| what | spipe | PyTorch | ratio | of the triad's bandwidth |\n|---|---|---|---|---|")
    if options.only != "train":
        for count in (1 << 20, 1 << 24):
            optimizers(peer, 2 * options.rounds, count)
    if options.only != "adamw":
        with open(options.model, encoding="utf-8") as model, open(options.text, "rb") as text:
            training = Training(transformer.read(model.read()), text.read())
        times = {"spipe": [], "torch": []}
        training.step()
        for _ in range(options.rounds):
            times["spipe"] += peer.ask("train")
            times["torch"] += [training.step() for _ in range(STEPS)]
        unit = lambda seconds: f"{MICROBATCHES * training.tokens / seconds:.0f} tokens/s"
        row("training the model", times["spipe"], times["torch"], unit)


if __name__ == "__main__":
    main()
