"""Measures devices under PyTorch and prints their rates as JSON, for `spipe calibrate --runtime pytorch`.

`calibrate.py REQUEST` starts one process for each accelerator, as torchrun does, which measure at the same time; then the
socket measures alone. Layers are those of model.py beside this file, which exported plans run. Exit code 7: no PyTorch.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time

try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    from model import layer
except ImportError as error:
    print(f"error: `{sys.executable}` has no PyTorch ({error})", file=sys.stderr)
    sys.exit(7)

# Sides of square products, of matrices that a row is multiplied with, and numbers in each operand of a sum.
SIDES = [32, 64, 128, 256, 512, 1024, 2048]
WEIGHTS = [128, 256, 512, 1024, 2048]
ELEMENTS = [1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22]
# Smallest dimensions of a GPU's products, the others being LARGE; lengths of attention with heads of 64 and 128.
ROWS, LARGE = [64, 128, 256, 512, 1024, 2048, 4096], 4096
LENGTHS, HEADS = [256, 1024, 4096], [64, 128]
# Numbers of all matrices together, bytes of a copy, and parameters of a step: more than caches hold.
ALL_WEIGHTS, COPIED, STEPPED = 12 << 20, 64 << 20, 4 << 20
# Bytes of messages from process to process.
MESSAGES = [1 << 10, 64 << 10, 1 << 20, 16 << 20]
# Shares of the time for everything but layers.
SHARES = 7
OLDEST = (2, 8)


def leave(text, code):
    print(f"error: {text}", file=sys.stderr, flush=True)
    sys.exit(code)


class Clock:
    """Repeats work for a share of the time; `sync` waits for the device."""

    def __init__(self, seconds, sync, meet):
        self.seconds, self.sync, self.meet, self.spread = seconds, sync, meet, 0.0

    def sample(self, work, share=1.0, count=1, most=None):
        """The mean of the middle durations of `work`, or of each that it returns; processes begin together.

        Means add up to that of a step; a tenth at each end is left out.
        """
        for _ in range(2):
            work()
            self.sync()
        self.meet()
        times, end = [], time.perf_counter() + self.seconds * share
        while len(times) < (most or 3) or (most is None and time.perf_counter() < end):
            start = time.perf_counter()
            found = work()
            if not isinstance(found, tuple):
                self.sync()
                found = ((time.perf_counter() - start) / count,)
            times.append(found)
        columns = [sorted(column) for column in zip(*times)]
        for column in columns:
            ends = [column[round((len(column) - 1) * at)] for at in (0.1, 0.9)]
            self.spread = max(self.spread, (ends[1] - ends[0]) / 2 / max(statistics.median(column), 1e-9))
        cut = len(times) // 10
        means = [max(statistics.fmean(column[cut : len(column) - cut]), 1e-9) for column in columns]
        return means if len(means) > 1 else means[0]


class Bench:
    """The measurements of one device."""

    def __init__(self, device, request, seconds, meet):
        self.device, self.request, self.on_gpu = device, request, device.type == "cuda"
        shares = SHARES + sum(kind["share"] for kind in request["layers"])
        self.clock = Clock(seconds / shares, torch.cuda.synchronize if self.on_gpu else lambda: None, meet)
        types = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
        self.types = types if self.on_gpu else {"f32": torch.float32}

    def filled(self, *shape, dtype=torch.float32):
        return torch.rand(shape, device=self.device, dtype=torch.float32).sub_(0.5).to(dtype)

    def product(self, shape, dtype, share):
        m, n, k = shape
        a, b = self.filled(m, k, dtype=dtype), self.filled(k, n, dtype=dtype)
        return 2.0 * m * n * k / self.clock.sample(lambda: a @ b, share)

    def matmul(self, dtype):
        share = 1.0 / len(SIDES) / len(self.types)
        return [[2.0 * side**3, self.product((side,) * 3, dtype, share)] for side in SIDES]

    def elementwise(self):
        points = []
        for count in ELEMENTS:
            a, b = self.filled(count), self.filled(count)
            points.append([12 * count, 12 * count / self.clock.sample(lambda: a + b, 1.0 / len(ELEMENTS))])
        return points

    def matvec(self):
        points = []
        for side in WEIGHTS:
            row = self.filled(1, side)
            weights = [self.filled(side, side) for _ in range(ALL_WEIGHTS // side**2)]
            took = self.clock.sample(lambda: [row @ weight for weight in weights], 1.0 / len(WEIGHTS), len(weights))
            points.append([4 * side**2, 4 * side**2 / took])
        return points

    def attention(self):
        """Forward rates of causal attention, counting the causal half alone."""
        points = []
        for width in HEADS:
            for length in LENGTHS:
                query = self.filled(max(1, 16384 // length), 32, length, width, dtype=torch.bfloat16)
                run = lambda: F.scaled_dot_product_attention(query, query, query, is_causal=True)  # noqa: B023, E731
                took = self.clock.sample(run, 0.5 / len(LENGTHS))
                points.append([length, width, 2.0 * query.shape[0] * 32 * length**2 * width / took])
        return points

    def copies(self):
        """Rates of copies to the GPU and from it, of pinned and of pageable memory."""
        here, found = torch.empty(COPIED, dtype=torch.uint8, device=self.device), {}
        for name, host in (("pinned", torch.empty(COPIED, dtype=torch.uint8, pin_memory=True)), ("pageable", torch.empty(COPIED, dtype=torch.uint8))):
            times = [self.clock.sample(lambda: here.copy_(host), 0.25), self.clock.sample(lambda: host.copy_(here), 0.25)]  # noqa: B023
            found[f"{name}-bytes-per-second"] = [COPIED / took for took in times]
        return found

    def busy_copy(self):
        """Latency and rate of copies between buffers, by one thread of each process while another computes.

        So do exported plans that stream their parameters on cores.
        """
        stop, a, b = threading.Event(), self.filled(512, 512), self.filled(512, 512)
        # Threads that share cores take turns: their times spread by design.
        spread = self.clock.spread

        def compute():
            while not stop.is_set():
                a @ b

        worker = threading.Thread(target=compute)
        worker.start()
        try:
            times = []
            for length in (1 << 12, COPIED // 2):
                here, there = (torch.ones(length, dtype=torch.uint8) for _ in range(2))
                times.append(self.clock.sample(lambda: there.copy_(here), 0.5))  # noqa: B023
        finally:
            stop.set()
            worker.join()
            self.clock.spread = spread
        return {"latency-s": times[0], "bytes-per-second": COPIED // 2 / max(times[1] - times[0], 1e-9)}

    def optimizer(self):
        parameters = [self.filled(STEPPED // 4).requires_grad_() for _ in range(4)]
        for parameter in parameters:
            parameter.grad = self.filled(STEPPED // 4)
        return STEPPED / self.clock.sample(torch.optim.AdamW(parameters, fused=True).step)

    def launches(self):
        """The time of a tiny operation on the device, and the host's time to launch one."""
        one, count = self.filled(1), 200
        if not self.on_gpu:
            took = self.clock.sample(lambda: [one + one for _ in range(count)], 0.2, count)
            return took, took
        busy = self.filled(4096, 4096)

        def queued():
            # Tiny kernels wait behind a long one, so that the device has them all when it begins.
            self.clock.sync()
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            for _ in range(4):
                busy @ busy
            marks[0].record()
            start = time.perf_counter()
            for _ in range(count):
                one + one
            host = (time.perf_counter() - start) / count
            marks[1].record()
            self.clock.sync()
            return marks[0].elapsed_time(marks[1]) / 1e3 / count, host

        return self.clock.sample(queued, 0.5)

    def iteration(self):
        """Time of a step without layers: the processes meet, and the loss is read."""
        one = self.filled(1)

        def run():
            start = time.perf_counter()
            self.clock.meet()
            one.sum().item()
            self.clock.meet()
            return (time.perf_counter() - start,)

        # All processes meet equally often.
        return self.clock.sample(run, most=50)

    def layer(self, kind, dtype):
        """Forward, backward and split backward of one layer, in a chain of copies larger than caches."""
        model, batch = self.request["model"], self.request["batch"]
        chain = torch.nn.Sequential(*(layer(model, kind["index"]) for _ in range(kind["copies"]))).to(self.device, dtype)
        with torch.no_grad():
            for parameter in chain.parameters():
                parameter.fill_(1.0) if parameter.dim() == 1 else parameter.normal_(0.0, 0.02)
        shape = (batch["microbatch"], batch["seq-len"])
        targets = torch.randint(model["vocabulary"], shape, device=self.device)
        reads, ends = kind["index"] == 0, kind["index"] == model["layers"] + 1
        given = targets if reads else self.filled(*shape, model["hidden"], dtype=dtype)
        gradient = None if ends else self.filled(*shape, model["hidden"], dtype=dtype)

        def forward():
            x = given if reads else given.detach().requires_grad_()
            y = chain(x)
            return x, F.cross_entropy(y.flatten(0, 1).float(), targets.flatten()) if ends else y

        def timed(work):
            self.clock.sync()
            start = time.perf_counter()
            result = work()
            self.clock.sync()
            return result, time.perf_counter() - start

        def passes():
            (_, y), ahead = timed(forward)
            _, back = timed(lambda: torch.autograd.backward(y, gradient))
            if reads:
                return ahead, back, 0.0, 0.0
            x, y = forward()
            seed = torch.ones_like(y) if gradient is None else gradient
            (_, groups), first = timed(lambda: stage_backward_input([y], [seed], [x], chain.parameters()))
            return ahead, back, first, timed(lambda: stage_backward_weight(chain.parameters(), groups))[1]

        ahead, back, first, rest = (took / kind["copies"] for took in self.clock.sample(passes, kind["share"] / len(self.types)))
        split, first = max(first + rest - back, 0.0) if not reads else 0.0, 0.0 if reads else min(first, back)
        return {"forward-s": ahead, "backward-input-s": first, "backward-weight-s": back - first, "backward-split-s": split}

    def layers(self):
        found = []
        for kind in self.request["layers"]:
            for name, dtype in self.types.items():
                self.clock.spread, before = 0.0, self.clock.spread
                found.append({"layer": kind["signature"], "data-type": name, **self.layer(kind, dtype), "spread": self.clock.spread})
                self.clock.spread = max(before, self.clock.spread)
        return found

    def measure(self):
        memory = torch.cuda.mem_get_info(self.device)[1] if self.on_gpu else None
        found = {"threads": torch.get_num_threads(), "memory-bytes": memory, "layers": self.layers()}
        found["matmul"] = {name: self.matmul(dtype) for name, dtype in self.types.items()}
        found["elementwise"], found["matvec"] = self.elementwise(), self.matvec()
        block = [torch.empty(COPIED if self.on_gpu else COPIED // 2, dtype=torch.uint8, device=self.device) for _ in range(2)]
        found["memory-bytes-per-second"] = 2 * block[0].numel() / self.clock.sample(lambda: block[1].copy_(block[0]))
        small = self.filled(1 << 20)
        found["copy-bytes-per-second"] = (4 << 20) / self.clock.sample(small.clone, 0.2)
        if not self.on_gpu:
            found["busy-copy"] = self.busy_copy()
        if self.on_gpu:
            found["rows"] = [[row, self.product((row, LARGE, LARGE), torch.bfloat16, 0.3)] for row in ROWS]
            found["attention"], found["copies"] = self.attention(), self.copies()
        found["optimizer-params-per-second"] = self.optimizer()
        found["launch-floor-s"], found["launch-s"] = self.launches()
        found["iteration-s"] = self.iteration()
        found["spread"] = self.clock.spread
        return found


def ping_pong(device, rank, size, clock):
    """Latency and rate of messages between each process and the next, one way, as pipelines send them."""
    found = []
    for first in range(size - 1):
        dist.barrier()
        if rank not in (first, first + 1):
            continue
        other, times = first + 1 if rank == first else first, []
        for length in MESSAGES:
            block = torch.empty(length, dtype=torch.uint8, device=device)

            def message(kind):
                for work in dist.batch_isend_irecv([dist.P2POp(kind, block, other)]):  # noqa: B023
                    work.wait()

            def there_and_back():
                order = (dist.isend, dist.irecv) if rank == first else (dist.irecv, dist.isend)  # noqa: B023
                start = time.perf_counter()
                for kind in order:
                    message(kind)
                clock.sync()
                return (time.perf_counter() - start) / 2

            # Both know how often, so that neither waits for a message that is not sent.
            times.append(statistics.median([there_and_back() for _ in range(30)][5:]))
        latency = times[0]
        rates = [length / max(took - latency, 1e-9) for length, took in zip(MESSAGES[1:], times[1:])]
        found.append({"ranks": [first, first + 1], "latency-s": latency, "bytes-per-second": statistics.median(rates)})
    dist.barrier()
    return found


def seconds(request):
    """The time for the accelerators, and as much for the socket."""
    return request["seconds"] / (2 if len(request["devices"]) > 1 else 1)


def accelerator(request, rank):
    """One process for one accelerator among the others; its results go into a file."""
    names = [device for device in request["devices"] if not device.startswith("cpu")]
    device = torch.device(names[rank]) if names[rank].startswith("cuda") else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        # As many threads as torchrun gives a process.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    all_gpus = all(name.startswith("cuda") for name in names)
    store = dist.FileStore(os.path.join(request["folder"], "store"), len(names))
    dist.init_process_group("cpu:gloo,cuda:nccl" if all_gpus else "gloo", store=store, rank=rank, world_size=len(names))
    bench = Bench(device, request, seconds(request), dist.barrier)
    found = {"device": names[rank], **bench.measure()}
    found["messages"] = ping_pong(device if all_gpus else torch.device("cpu"), rank, len(names), bench.clock)
    with open(os.path.join(request["folder"], f"rank{rank}.json"), "w") as file:
        json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()


def together(request, path):
    """The accelerators, each measured in a process of its own."""
    count = sum(not device.startswith("cpu") for device in request["devices"])
    processes = [subprocess.Popen([sys.executable, "-B", __file__, path, str(rank)], stdout=sys.stderr) for rank in range(count)]
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            break
        time.sleep(0.05)
    failed = next((process.returncode for process in processes if process.returncode), 0)
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    if failed:
        sys.exit(failed if failed > 0 else 1)
    found = []
    for rank in range(count):
        with open(os.path.join(request["folder"], f"rank{rank}.json")) as file:
            found.append(json.load(file))
    return found


def main():
    with open(sys.argv[1]) as file:
        request = json.load(file)
    # The default action of the signal ends a process even while it waits for another.
    signal.alarm(request["limit-s"])
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        leave(f"PyTorch {torch.__version__} is too old: exported plans need {OLDEST[0]}.{OLDEST[1]} or newer", 7)
    wanted = {device for device in request["devices"] if device.startswith("cuda")}
    missing = wanted - {f"cuda:{index}" for index in range(torch.cuda.device_count())}
    if missing:
        leave(f"PyTorch finds no device {', '.join(sorted(missing))}; it has {torch.cuda.device_count()} GPUs", 7)
    if len(sys.argv) > 2:
        accelerator(request, int(sys.argv[2]))
        return
    start = time.monotonic()
    devices = together(request, sys.argv[1])
    bench = Bench(torch.device("cpu"), request, seconds(request), lambda: None)
    devices.append({"device": next(device for device in request["devices"] if device.startswith("cpu")), **bench.measure(), "messages": []})
    print(json.dumps({"format-version": 1, "torch": torch.__version__, "took-s": time.monotonic() - start, "devices": devices}))


if __name__ == "__main__":
    main()
