"""Iterations of exported plans, predicted on profiles measured under PyTorch, and measured: reports/export-error.md.

`export_error.py REPORT` takes about half an hour on two processor cores, and fails if a usable row of LIMITED is off by more than 15 %. What
is measured is kept beside the report until all of it is (`--keep FILE`), so that `--rounds 1` does a part at a time. Its figures are those of
an idle machine; the Makefile says how to go before other processes.
"""

import argparse
import json
import os
import platform
import re
import statistics
import sys
import tempfile

import torch
from processes import script
from spipe import TEXT, losses, spipe

LIMIT = 0.15
# Equal runs that differ by more are those of a machine that others use.
USABLE = 0.07
STEPS, IGNORED = 12, 2
SEQ_LEN, BATCH = 128, 8
# By system, the accelerators, each a process of one thread. Streamed systems leave a core to copies and optimizer steps.
PIPELINES = {"1f1b": 2, "gpipe": 2, "interleaved-1f1b": 2}
INTERPRETED = {"superpipeline": 1, "spipe": 1, "mobius": 1, "po-h": 2}
LIMITED = {"1f1b", *INTERPRETED}
# Memory of an accelerator that holds a stage of a pipeline, and that holds some layers alone.
MEMORY = {"pipelines": "1 GiB", "interpreted": "160 MiB"}


def calibrate(root, count, memory):
    """A profile, and the share of the time of the cores that others had while it was measured."""
    path = os.path.join(root, f"machine{count}-{memory.split()[0]}.toml")
    if not os.path.exists(path):
        devices = ",".join([*(f"emulated:{index}" for index in range(count)), "cpu:0"])
        spipe("calibrate", "--runtime", "pytorch", "--python", sys.executable, "--devices", devices, "--model", "demo", "--seq-len", SEQ_LEN,
              "--emulated-memory", memory, "--time-limit", "20s", "-o", path, limit=600)
    with open(path, encoding="utf-8") as file:
        found = re.search(r"^description = .*?(\d+(?:\.\d+)?) %", file.read(), re.MULTILINE)
    return path, float(found[1]) / 100 if found else 0.0


def case(root, system, count, memory):
    """A run of a system: predicted and measured milliseconds, the spread of steps, and the share of others."""
    machine, others = calibrate(root, count, memory)
    name = os.path.join(root, system)
    devices = ",".join([*(f"gpu{index}" for index in range(count)), *(["cpu0"] if system in INTERPRETED and system != "po-h" else [])])
    spipe("plan", "--model", "demo", "--hardware", machine, "--devices", devices, "--system", system, "--precision", "fp32",
          "--seq-len", SEQ_LEN, "--global-batch", BATCH, "--microbatch", 1, "--materialised-attention", "--time-limit", "3s", "-o", f"{name}.json")
    predicted = json.loads(spipe("simulate", f"{name}.json", "--format", "json"))["iteration-ms"]
    spipe("export", "torch", f"{name}.json", "-o", name, "--data", TEXT, "--steps", STEPS)
    assert os.path.exists(os.path.join(name, "program.json")) == (system in INTERPRETED), system
    codes, texts = script(name, count, ["--steps", str(STEPS), "--cpu"])
    assert codes == [0] * count, texts
    assert len(losses(texts)) == STEPS
    lines = [json.loads(line) for text in texts for line in text.splitlines() if line.startswith('{"event": "step"')]
    times = sorted(line["duration-ms"] for line in lines if line["step"] >= IGNORED)
    spread = (times[len(times) * 9 // 10] - times[len(times) // 10]) / 2 / statistics.median(times)
    print(f"{system}: predicted {predicted:.1f} ms, measured {statistics.median(times):.1f} ms", flush=True)
    return {"predicted": predicted, "measured": statistics.median(times), "spread": spread, "others": others}


def differ(found):
    """Half the distance of the fastest and the slowest of equal runs, over their median."""
    measured = [run["measured"] for run in found]
    return (max(measured) - min(measured)) / 2 / statistics.median(measured)


def rounds(kept, systems, count, save):
    """Rounds over all systems, each on profiles of its own. Systems whose runs differ by too much get two more rounds at most."""
    done = 0
    for number in range(count + 2):
        wanted = [system for system in systems if number < count or differ(kept[system]) > USABLE]
        if not wanted:
            break
        with tempfile.TemporaryDirectory() as root:
            for system in wanted:
                kind = "interpreted" if system in INTERPRETED else "pipelines"
                processes = {**PIPELINES, **INTERPRETED}[system]
                found = kept.setdefault(system, [])
                found.append(case(root, system, processes, MEMORY["pipelines" if system == "po-h" else kind]))
                if number >= count:
                    # The run that is farthest from the others goes.
                    middle = statistics.median(run["measured"] for run in found)
                    found.remove(max(found, key=lambda run: abs(run["measured"] - middle)))
                save()
        done += 1
    return done


def table(kept, systems):
    text = "| system | processes | rounds | predicted | measured | spread of steps | runs differ | time of others | error | errors of the rounds |\n"
    text += "|---|---|---|---|---|---|---|---|---|---|\n"
    for system in (system for system in systems if kept.get(system)):
        found = kept[system]
        predicted, measured = (statistics.median(run[key] for run in found) for key in ("predicted", "measured"))
        each = [run["predicted"] / run["measured"] - 1 for run in found]
        shown = f"{statistics.median(each):+.1%}" if differ(found) <= USABLE else f"unusable ({statistics.median(each):+.1%})"
        text += f"| {system} | {systems[system]} | {len(found)} | {predicted:.1f} ms | {measured:.1f} ms | {max(run['spread'] for run in found):.1%} | "
        text += f"{differ(found):.1%} | {max(run['others'] for run in found):.0%} | {shown} | {', '.join(f'{error:+.1%}' for error in each)} |\n"
    return text


def report(kept):
    text = "# Error of predictions for exported plans\n\n"
    text += f"`make export-error`: the demo's model, {BATCH} microbatches of {SEQ_LEN} tokens, in processes of one thread, PyTorch {torch.__version__} on\n"
    text += f"{os.cpu_count()} {platform.machine()} cores, gloo on loopback. Each round measures profiles by `spipe calibrate --runtime pytorch` and then runs\n"
    text += f"all systems. Predicted and measured are medians of the rounds, each of {STEPS - IGNORED} steps; the error is the median of theirs. The spread is\n"
    text += "half the distance of the 10th and the 90th percentile of the steps, the largest of the rounds. A row whose equal runs differ by more than\n"
    text += f"{USABLE:.0%} (half the distance of the fastest and the slowest) is unusable. Others had at most that share of the cores during calibration.\n\n"
    text += "## PyTorch's pipelines\n\n" + table(kept, PIPELINES)
    text += "\n## Interpreted programs\n\n" + table(kept, INTERPRETED)
    return text


def off(kept):
    """The usable rows of LIMITED that are off by too much."""
    found = {}
    for system in LIMITED & {system for system in kept if kept[system]}:
        error = statistics.median(run["predicted"] / run["measured"] - 1 for run in kept[system])
        if differ(kept[system]) <= USABLE and abs(error) > LIMIT:
            found[system] = error
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", default=",".join({**PIPELINES, **INTERPRETED}), help="the systems of these rounds")
    parser.add_argument("--keep", help="file with the rounds of earlier runs, to which those of this one are added")
    options = parser.parse_args()
    kept = {}
    if options.keep and os.path.exists(options.keep):
        with open(options.keep, encoding="utf-8") as file:
            kept = json.load(file)

    def save():
        if options.keep:
            with open(options.keep, "w", encoding="utf-8") as file:
                json.dump(kept, file, indent=1)
        with open(options.report, "w", encoding="utf-8") as file:
            file.write(report(kept))

    rounds(kept, options.systems.split(","), options.rounds, save)
    save()
    print(report(kept))
    wrong = off(kept)
    if wrong:
        sys.exit("error: off by more than " + f"{LIMIT:.0%}: " + ", ".join(f"{system} by {error:+.1%}" for system, error in sorted(wrong.items())))


if __name__ == "__main__":
    main()
