#!/usr/bin/env python3
"""Order of machines: measured trainings, our predictions, and naive rules.

Reads the measured runs of crates/spipe-reproduce/data/runs and the predictions of
reports/reproductions (made by `spipe reproduce runs`), and prints the tables of
reports/whatif/ranking.md. Run it at the root: python3 reports/whatif/report.py > reports/whatif/ranking.md
"""

import json
import math
import re
import tomllib
from itertools import combinations

# Best measured dense bf16 or fp16 product (TFLOP/s) and memory bandwidth (GB/s). Products: mag-/gpu_benchmark
# @93322b7; bandwidths: hardware-profiles/catalogue. The V100 16GB is taken as the 32GB.
RULES = {
    "RTX 3090": (78.0, 936, 71.2),
    "RTX 4090": (178.8, 1008, 165.2),
    "RTX A6000": (131.2, 768, 154.8),
    "V100 16GB": (94.0, 900, 125.0),
    "A100 SXM4 40GB": (267.9, 1555, 312.0),
    "A100 PCIe 80GB": (256.4, 1935, 312.0),
    "A100 SXM4 80GB": (267.9, 2039, 312.0),
    "H100 PCIe": (499.5, 2000, 756.0),
    "H100 SXM5": (821.2, 3350, 989.0),
}
SHIPPED = re.compile(r"^\| (A\d\d [^|]+) \| \w+ \| ([\d.]+) \| ([\d.]+) \|", re.M)


def tau(left, right):
    """Kendall's tau-b of two lists."""
    concordant = discordant = ties_left = ties_right = 0
    for i, j in combinations(range(len(left)), 2):
        one, other = left[i] - left[j], right[i] - right[j]
        if one == 0:
            ties_left += 1
        if other == 0:
            ties_right += 1
        if one * other > 0:
            concordant += 1
        elif one * other < 0:
            discordant += 1
    pairs = len(left) * (len(left) - 1) / 2
    return (concordant - discordant) / math.sqrt((pairs - ties_left) * (pairs - ties_right))


def errors(measured, predicted):
    """Mean and largest absolute error after one common factor (the geometric mean of the ratios)."""
    factor = math.exp(sum(math.log(m / p) for m, p in zip(measured, predicted)) / len(measured))
    all_of = [abs(factor * p / m - 1) for m, p in zip(measured, predicted)]
    return sum(all_of) / len(all_of), max(all_of)


def beyond(rows, key, fitted):
    """Mean and largest error on GPUs other than `fitted`, with the factor of the runs on it."""
    ratios = [row["measured"] / row[key] for row in rows if row["gpu"] == fitted]
    factor = math.exp(sum(map(math.log, ratios)) / len(ratios))
    all_of = [abs(factor * row[key] / row["measured"] - 1) for row in rows if row["gpu"] != fitted]
    return sum(all_of) / len(all_of), max(all_of)


def read():
    with open("crates/spipe-reproduce/data/runs/bert-large.toml", "rb") as file:
        runs = {run["name"]: run for run in tomllib.load(file)["run"]}
    with open("reports/reproductions/runs.json", encoding="utf-8") as file:
        groups = json.load(file)
    group = next(one for one in groups if any(run["name"].startswith("A01") for run in one["runs"]))
    with open("reports/reproductions/runs.md", encoding="utf-8") as file:
        shipped = {name: (float(measured), float(ms)) for name, measured, ms in SHIPPED.findall(file.read())}
    rows = []
    for run in group["runs"]:
        gpu, count = re.fullmatch(r"A\d\d (.+) × (\d+)", run["name"]).groups()
        measured = runs[run["name"]]["measured"]["tokens-per-second"]
        product, bandwidth, peak = RULES[gpu]
        count = int(count)
        rows.append(
            {
                "name": run["name"],
                "gpu": gpu,
                "count": count,
                "measured": measured,
                "shipped": measured * shipped[run["name"]][0] / shipped[run["name"]][1],
                "fitted": measured * run["measured-ms"] / run["predicted-ms"],
                "naive": count * math.sqrt(product * bandwidth),
                "peak": count * peak,
            }
        )
    return rows


NAMES = {
    "shipped": "spipe, without any fit",
    "fitted": "spipe, one constant fitted on two runs of a 3090",
    "naive": "√(measured product × bandwidth) × GPUs",
    "peak": "peak of the data sheet × GPUs",
}


def table(title, rows):
    print(f"| {title} | τ | mean error | largest | mean on other GPUs | largest |\n|---|---:|---:|---:|---:|---:|")
    measured = [row["measured"] for row in rows]
    for key, name in NAMES.items():
        predicted = [row[key] for row in rows]
        (mean, largest), (other, most) = errors(measured, predicted), beyond(rows, key, "RTX 3090")
        print(
            f"| {name} | {tau(measured, predicted):.2f} | {100 * mean:.1f} % | {100 * largest:.1f} % "
            f"| {100 * other:.1f} % | {100 * most:.1f} % |"
        )
    print()


GAINS = {"H100": "H100 SXM5", "A100": "A100 SXM4 80GB"}
MPT = re.compile(r"^\| B\d\d (mpt-\S+) ([AH]100) \| \w+ \| ([\d.]+) \| ([\d.]+) \| [^|]+ \| ([\d.]+) \|", re.M)


def mpt():
    """Models trained on eight A100 and on eight H100: tokens/s measured, predicted without a fit, and fitted."""
    with open("crates/spipe-reproduce/data/runs/mpt-fsdp.toml", "rb") as file:
        runs = {tuple(run["name"].split()[1:]): run for run in tomllib.load(file)["run"]}
    with open("reports/reproductions/runs.md", encoding="utf-8") as file:
        lines = {(model, gpu): list(map(float, ms)) for model, gpu, *ms in MPT.findall(file.read())}
    rates = {}
    for key, (measured, shipped, fitted) in lines.items():
        rate = runs[key]["measured"]["tokens-per-second"]
        rates[key] = (rate, rate * measured / shipped, rate * measured / fitted)
    return rates


def gains():
    rates = mpt()
    models = [model for model, gpu in rates if gpu == "H100"]
    (product, bandwidth, peak), (product_a, bandwidth_a, peak_a) = (RULES[GAINS[gpu]] for gpu in ("H100", "A100"))
    naive = math.sqrt(product * bandwidth / (product_a * bandwidth_a))
    print("\n## A100 and H100 on MPT\n")
    print("The rate of eight H100 SXM5 ÷ the rate of eight A100 SXM4 80GB, FSDP, sequences of 2,048.\n")
    print("| model | measured | predicted without a fit | fitted | √(measured product × bandwidth) | peak of the data sheet |")
    print("|---|---:|---:|---:|---:|---:|")
    found = []
    for model in models:
        gain = [h / a for h, a in zip(rates[model, "H100"], rates[model, "A100"])]
        print(f"| {model} | {gain[0]:.2f} | {gain[1]:.2f} | {gain[2]:.2f} | {naive:.2f} | {peak / peak_a:.2f} |")
        found.append([gain[1] / gain[0], gain[2] / gain[0], naive / gain[0], peak / peak_a / gain[0]])
    means = [sum(abs(error - 1) for error in column) / len(column) for column in zip(*found)]
    print("| mean error | | " + " | ".join(f"{100 * mean:.0f} %" for mean in means) + " |")


def main():
    rows = read()
    single = {}
    for row in rows:
        if row["count"] == 1:
            single[row["gpu"]] = row  # The last one is the newest.
    print("# The order of machines, against measured trainings\n")
    print("Made by `python3 reports/whatif/report.py` from `spipe reproduce runs`; sources are in")
    print("[../reproductions/runs.md](../reproductions/runs.md). BERT-large, fp16, sequences of 384. τ is Kendall's; errors are")
    print("of tokens/s after one common factor for all machines. The last two columns take the factor from the 3090 alone, so that")
    print("all other GPUs are predicted.\n")
    table(f"{len(single)} GPUs, one each", list(single.values()))
    table(f"all {len(rows)} machines, 1 to 8 GPUs", rows)
    print("## Scaling\n")
    print("The rate of n GPUs ÷ the rate of one GPU, with microbatches of the same size.\n")
    print("| GPU | GPUs | measured | predicted without a fit | by the number of GPUs |\n|---|---:|---:|---:|---:|")
    for row in rows:
        if row["count"] > 1:
            one = base(rows, row)
            print(
                f"| {row['gpu']} | {row['count']} | {row['measured'] / one['measured']:.2f} "
                f"| {row['shipped'] / one['shipped']:.2f} | {row['count']}.00 |"
            )


    gains()


def base(rows, row):
    """The last run on one such GPU before a run: they are in order of batches."""
    before = [one for one in rows[: rows.index(row)] if one["gpu"] == row["gpu"] and one["count"] == 1]
    return before[-1]


if __name__ == "__main__":
    main()
