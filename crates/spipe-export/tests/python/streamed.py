"""Small models, machines and references for the tests of interpreted programs."""

import json
import os

from processes import apart, script
from spipe import machine, spipe

SEQ_LEN, BATCH, STEPS, RATE = 32, 4, 8, 1e-3
SYSTEMS = ["superpipeline", "naive-swap", "mobius", "spipe"]
LLAMA = """format-version = 1
kind = "transformer"
name = "small-llama"
source = "a test"
vocabulary = 256
seq-len = 32
hidden = 64
layers = 6
heads = 4
kv-heads = 2
intermediate = 160
norm = "rms-norm"
norm-epsilon = 1e-5
mlp = "swiglu"
positions = "rotary"
rotary-base = 10_000
"""
GPT2 = {"model_type": "gpt2", "vocab_size": 256, "n_layer": 5, "n_embd": 64, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
# Memory of an emulated accelerator that holds some layers of a model, but not all.
MEMORY = {"llama": "4 MiB", "gpt2": "2 MiB", "demo": "200 MiB"}
DRIVE = """[[nvme]]
name = "nvme0"
capacity = "1 GB"
read = "2 GB/s"
write = "1 GB/s"
source = "estimate: a test"
[[link]]
name = "m2"
between = ["nvme0", "dram0"]
bandwidth = "4 GB/s"
source = "estimate: a test"
"""
# Memory of one that holds a stage of a pipeline.
ROOMY = "8 MiB"
# A text that stays as it is, so that norms and losses do.
TEXT = " ".join(str(number * number) for number in range(4000))


def model(folder, family):
    """A model of a family: untied Llama, tied GPT-2, or a shipped one."""
    path = os.path.join(folder, f"{family}.toml")
    if family == "llama":
        with open(path, "w") as file:
            file.write(LLAMA)
    elif family == "gpt2":
        config = os.path.join(folder, "config.json")
        with open(config, "w") as file:
            json.dump(GPT2, file)
        if not os.path.exists(path):
            spipe("model", "import", config, "-o", path)
    else:
        return family
    return path


def planned(folder, family, system, count, *options, precision="fp32", name="plan", memory=None, drive=False):
    """A plan on some emulated accelerators beside a socket, and perhaps a drive."""
    path = os.path.join(folder, f"{name}-{family}-{system}-{count}.json")
    file = machine(folder, count, memory or MEMORY[family])
    with open(file) as opened:
        text = opened.read().replace('peak = { f32 = "50 GFLOP/s" }', 'peak = { f32 = "50 GFLOP/s", f16 = "50 GFLOP/s", bf16 = "50 GFLOP/s" }')
    with open(file, "w") as opened:
        opened.write(text + (DRIVE if drive else ""))
    devices = ",".join([*(f"gpu{index}" for index in range(count)), "cpu0"])
    spipe("plan", "--model", model(folder, family), "--hardware", file, "--devices", devices, "--system", system, "--precision", precision,
          "--materialised-attention", "--seq-len", SEQ_LEN, "--global-batch", BATCH, "--microbatch", 1, "--effort", "low", "-o", path, *options)
    return path


def exported(plan, *options):
    """The folder of a plan, with weights and the tokens of all steps."""
    folder = f"{plan.removesuffix('.json')}-folder"
    text = os.path.join(os.path.dirname(plan), "text.txt")
    with open(text, "w") as file:
        file.write(TEXT)
    spipe("export", "torch", plan, "-o", folder, "--data", text, "--steps", STEPS, "--initial-weights", *options)
    return folder


def program(folder):
    with open(os.path.join(folder, "program.json")) as file:
        return json.load(file)


def lines(texts, event="step"):
    """The lines that scripts printed of an event."""
    found = [json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


def trained(folder, *options, steps=STEPS):
    """Trains an exported folder, a process per rank; the lines of all steps."""
    world = len(program(folder)["ranks"])
    codes, texts = script(folder, world, ["--steps", str(steps), "--learning-rate", str(RATE), "--cpu", *options])
    assert codes == [0] * world, (codes, texts)
    return lines(texts)


def plain(folder, out, clip=None, scale=1.0, late=False):
    """Plain single-process training of an export's model: PyTorch's AdamW on 32-bit copies, one microbatch after the other.

    With `late`, each step uses the gradients of the iteration before; the first iteration has none.
    """
    import sys

    import torch
    import torch.nn.functional as F

    sys.path.insert(0, folder)
    import parameters
    from stage import Stage, tie
    from tokens import Tokens

    settings = program(folder)
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[settings["precision"]]
    cpu = torch.device("cpu")
    all_layers = {"first-layer": 0, "last-layer": settings["model"]["layers"] + 1, "recomputed": 0, "offloads": False, "frozen": []}
    masters, stage = (Stage(settings["model"], all_layers, cpu, kind, (cpu, kind)) for kind in (torch.float32, dtype))
    for one in (masters, stage):
        tie([one])
        parameters.fill([one], os.path.join(folder, "weights"), 1)
    tokens = Tokens(os.path.join(folder, "tokens.safetensors"), settings["batch"], settings["model"]["vocabulary"], 1)
    adam = torch.optim.AdamW(masters.parameters(), lr=RATE)
    count, found, before = settings["batch"]["microbatches"], [], None
    for step in range(STEPS):
        total = 0.0
        for x, y in zip(*(part.chunk(count) for part in tokens.rows(step, range(BATCH)))):
            loss = F.cross_entropy(stage(x).flatten(0, 1).float(), y.flatten())
            (loss * (scale / count)).backward()
            total += loss.item() / count
        norm = sum(parameter.grad.double().square().sum().item() for parameter in stage.parameters()) ** 0.5 / scale
        is_finite = norm == norm and norm != float("inf")
        if is_finite:
            factor = 1.0 if clip is None else min(clip / (norm + 1e-6), 1.0)
            gradients = [parameter.grad.float() * (factor / scale) for parameter in stage.parameters()]
            for master, gradient in zip(masters.parameters(), before or [] if late else gradients):
                master.grad = gradient
            before = gradients
            adam.step()
            with torch.no_grad():
                for master, parameter in zip(masters.parameters(), stage.parameters()):
                    parameter.copy_(master)
        else:
            scale /= 2.0
        stage.zero_grad()
        found.append({"loss": total, "norm": norm, "left-out": not is_finite})
    with open(out, "w") as file:
        json.dump(found, file)


def reference(folder, **options):
    """The lines of plain training."""
    out = os.path.join(folder, "plain.json")
    code, text = apart(folder, lambda: plain(folder, out, **options))
    assert code == 0, text
    with open(out) as file:
        return json.load(file)


def ours(plan, folder):
    """The losses of `spipe run` on an export's weights and tokens."""
    text = spipe("run", plan, "--data", os.path.join(folder, "tokens.safetensors"), "--weights", os.path.join(folder, "weights"),
                 "--steps", STEPS, "--learning-rate", RATE, "--format", "json")
    return [line["loss"] for line in lines([text])]
