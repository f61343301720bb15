"""The learning rate of each step, as in transformers' schedules."""

import argparse
import math


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warmup-steps", type=int, default=0)
    parser.add_argument("--decay", choices=["constant", "linear", "cosine"], default="constant")


def rate(options: argparse.Namespace, step: int) -> float:
    """The learning rate of a step."""
    return float(options.learning_rate * factor(options, step))


def factor(options: argparse.Namespace, step: int) -> float:
    if step < options.warmup_steps:
        return float(step / options.warmup_steps)
    done = (step - options.warmup_steps) / max(options.steps - options.warmup_steps, 1)
    if options.decay == "linear":
        return float(max(1.0 - done, 0.0))
    return 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0))) if options.decay == "cosine" else 1.0
