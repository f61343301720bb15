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
import torch.nn.functional as F
from torch import nn

VOCABULARY, SEQ_LEN, HIDDEN, LAYERS, HEADS, INTERMEDIATE = 256, 128, 384, 8, 6, 1024  # models/demo.toml
MICROBATCHES = 8
EPSILON, ROTARY_BASE = 1e-5, 10_000
STEPS = 3


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


def rotate(heads, cosines, sines):
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.RMSNorm(HIDDEN, EPSILON)
        self.query, self.key, self.value, self.output = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.mlp_norm = nn.RMSNorm(HIDDEN, EPSILON)
        self.gate, self.up = (nn.Linear(HIDDEN, INTERMEDIATE, bias=False) for _ in range(2))
        self.down = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, x, cosines, sines):
        inner = self.attention_norm(x)
        heads = lambda y: y.view(y.shape[0], SEQ_LEN, HEADS, HIDDEN // HEADS).transpose(1, 2)
        query = rotate(heads(self.query(inner)), cosines, sines)
        key = rotate(heads(self.key(inner)), cosines, sines)
        mixed = F.scaled_dot_product_attention(query, key, heads(self.value(inner)), is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(x.shape))
        inner = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(inner)) * self.up(inner))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, EPSILON)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        for matrix in self.parameters():
            if matrix.dim() == 2:
                nn.init.normal_(matrix, std=0.02)
        width = HIDDEN // HEADS
        angles = torch.outer(
            torch.arange(SEQ_LEN, dtype=torch.float64),
            ROTARY_BASE ** (-2.0 * (torch.arange(width) % (width // 2)) / width),
        )
        self.cosines, self.sines = angles.cos().float(), angles.sin().float()

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cosines, self.sines)
        return self.head(self.norm(x))


class Training:
    def __init__(self, text):
        self.text = torch.tensor(list(text), dtype=torch.long)
        self.model = Llama()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.random = torch.Generator().manual_seed(0)

    def step(self):
        start = time.perf_counter()
        for _ in range(MICROBATCHES):
            at = int(torch.randint(len(self.text) - SEQ_LEN - 1, (), generator=self.random))
            piece = self.text[at : at + SEQ_LEN + 1]
            logits = self.model(piece[None, :-1])
            (F.cross_entropy(logits[0], piece[1:]) / MICROBATCHES).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start


class AdamW:
    def __init__(self, count, dtype):
        self.parameter = torch.full((count,), 0.5, dtype=dtype, requires_grad=True)
        self.parameter.grad = torch.full((count,), 0.01, dtype=dtype)
        self.optimizer = torch.optim.AdamW([self.parameter], fused=True)

    def step(self):
        start = time.perf_counter()
        self.optimizer.step()
        return time.perf_counter() - start


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
        with open(options.text, "rb") as file:
            training = Training(file.read())
        backends = ("flex", "ndarray")
        times = {name: [] for name in (*backends, "torch")}
        training.step()
        for _ in range(options.rounds):
            for backend in backends:
                times[backend] += peer.ask(f"train {backend}")
            times["torch"] += [training.step() for _ in range(STEPS)]
        unit = lambda seconds: f"{MICROBATCHES * SEQ_LEN / seconds:.0f} tokens/s"
        for backend in backends:
            row(f"training the demo's model, {backend}", times[backend], times["torch"], unit)


if __name__ == "__main__":
    main()
