"""The command, machines and plans of the tests."""

import json
import os

from processes import command

SPIPE = os.environ.get("SPIPE", os.path.join(os.path.dirname(__file__), "../../../../target/release/spipe"))
HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = os.path.join(HERE, "processes.py")


def spipe(*arguments, code=0, limit=300):
    return command(SPIPE, *arguments, code=code, limit=limit)


def machine(folder, accelerators, memory="2 GiB"):
    """A machine of emulated accelerators beside a socket."""
    text = """
format-version = 1
name = "test"
[[socket]]
name = "cpu0"
cores = 1
peak = { f32 = "50 GFLOP/s" }
optimizer-rate = "0.2 Gparam/s"
dram = { name = "dram0", capacity = "16 GiB", bandwidth = "10 GB/s" }
source = "estimate: a test"
"""
    for index in range(accelerators):
        text += f"""
[[gpu]]
name = "gpu{index}"
emulated = true
cores = 1
memory = "{memory}"
memory-bandwidth = "10 GB/s"
peak = {{ f32 = "50 GFLOP/s" }}
source = "estimate: a test"
[[link]]
name = "pcie{index}"
between = ["gpu{index}", "dram0"]
bandwidth = "4 GB/s"
latency = "10 us"
source = "estimate: a test"
"""
    path = os.path.join(folder, f"machine{accelerators}.toml")
    with open(path, "w") as file:
        file.write(text)
    return path


def plan(folder, system, accelerators, *options, model="demo", batch=8, seq_len=32, name=None, precision="fp32", memory="2 GiB", hosts=(),
         search=("--time-limit", "2s")):
    """A plan of a system on all accelerators of a machine, and perhaps sockets."""
    path = os.path.join(folder, f"{name or system}-{accelerators}.json")
    devices = ",".join([*(f"gpu{index}" for index in range(accelerators)), *hosts])
    spipe("plan", "--model", model, "--hardware", machine(folder, accelerators, memory), "--devices", devices, "--system", system,
          "--precision", precision, "--materialised-attention", "--seq-len", seq_len, "--global-batch", batch, "--microbatch", 1,
          *search, "-o", path, *options)
    return path


def losses(texts):
    """The losses that scripts printed, by step."""
    lines = [json.loads(line) for text in texts for line in text.splitlines() if line.startswith('{"event": "step"')]
    return [line["loss"] for line in sorted(lines, key=lambda line: line["step"])]


def rows(folder):
    """The order of an export: the actions of each rank."""
    with open(os.path.join(folder, "schedule.csv")) as file:
        return [line.split(",") for line in file.read().splitlines()]


def stages(folder):
    with open(os.path.join(folder, "plan.json")) as file:
        return json.load(file)["stages"]


def tiny(folder, vocabulary=256):
    """A model file whose steps take milliseconds."""
    path = os.path.join(folder, f"tiny{vocabulary}.toml")
    with open(path, "w") as file:
        file.write(f'format-version = 1\nkind = "transformer"\nname = "tiny"\nvocabulary = {vocabulary}\nseq-len = 64\nhidden = 32\n'
                   "layers = 6\nheads = 4\nintermediate = 48\n")
    return path


def events(texts, kind):
    """The events of a kind that scripts printed."""
    lines = [json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == kind]


def write_tensors(path, tensors):
    from safetensors.torch import save_file

    save_file(tensors, path)


def without_compiler(folder):
    """Changes a folder of DeepSpeed so that it needs no compiler: its operators are built where they are first used."""
    config = os.path.join(folder, "ds_config.json")
    with open(config) as file:
        settings = json.load(file)
    adam = settings["optimizer"]["params"]
    assert adam.pop("bias_correction")
    adam["torch_adam"], settings["zero_force_ds_cpu_optimizer"] = True, False
    with open(config, "w") as file:
        json.dump(settings, file)
    train = os.path.join(folder, "train.py")
    with open(train) as file:
        text = file.read()
    patch = "import deepspeed\nimport deepspeed.ops\ndeepspeed.ops.__compatible_ops__['deepspeed_shm_comm'] = False\n"
    with open(train, "w") as file:
        file.write(text.replace("import deepspeed\n", patch, 1))
