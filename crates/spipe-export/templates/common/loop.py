"""The training loop: steps, evaluations and checkpoints, the same for every engine."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from checkpoint import Checkpoints
from storage import Fault
from tokens import Tokens, warn

HERE = os.path.dirname(os.path.abspath(__file__))


class Trainer(Protocol):
    """An engine with a model, of which one step at a time is asked."""

    rank: int
    size: int

    def step(self, index: int, tokens: Tokens) -> float | None:
        """Trains one step; the loss on the process that prints it."""

    def evaluate(self, index: int, tokens: Tokens) -> tuple[float, int]:
        """The sum of the losses of a step's targets and their number, forward only; zeros where they are not known."""


class Stateful(Protocol):
    """An engine whose state is tensors and numbers of each process."""

    rank: int
    size: int

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of this process's checkpoint."""

    def numbers(self) -> dict[str, float]:
        """The numbers of a checkpoint."""

    def restore(self, numbers: dict[str, float]) -> None:
        """Goes on from a checkpoint that was copied into the tensors."""


class Saver(Protocol):
    """The checkpoints of an engine."""

    def save(self, step: int) -> None:
        """Writes a checkpoint after this many steps."""

    def load(self) -> int:
        """Reads the newest checkpoint; its step."""

    def refuse_used(self) -> None:
        """Refuses a folder with checkpoints, for a run that begins at its first step."""


class TensorSaver:
    """The checkpoints of an engine whose state is tensors."""

    def __init__(self, engine: Stateful, fingerprint: str, options: argparse.Namespace) -> None:
        self.engine = engine
        folder, keep = options.checkpoint_dir, options.keep_checkpoints
        self.checkpoints = Checkpoints(folder, engine.rank, engine.size, fingerprint, keep, meet)

    def save(self, step: int) -> None:
        self.checkpoints.save(step, self.engine.tensors(), self.engine.numbers())

    def load(self) -> int:
        step, numbers = self.checkpoints.load(self.engine.tensors())
        self.engine.restore(numbers)
        return step

    def refuse_used(self) -> None:
        self.checkpoints.refuse_used()


def arguments(description: str | None, more: Callable[[argparse.ArgumentParser], None]) -> argparse.Namespace:
    """The options of every engine, and `more`."""
    tokens, weights = (os.path.join(HERE, name) for name in ("tokens.safetensors", "weights"))
    has_tokens = os.path.exists(tokens)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", default=tokens if has_tokens else None, required=not has_tokens,
                        help="a text, read byte by byte, a safetensors file with the tokens of each step, a folder of `datasets`, or "
                        "module:function")
    parser.add_argument("--weights", default=weights if os.path.exists(weights) else None,
                        help="folder or file of safetensors in transformers' layout; random weights without")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eval-data", help="held-out tokens, as --data has them")
    parser.add_argument("--eval-every", type=int, default=100, metavar="N", help="evaluate after every N steps")
    parser.add_argument("--eval-steps", type=int, default=16, metavar="N", help="batches of an evaluation, at most")
    parser.add_argument("--checkpoint-dir", help="folder for checkpoints, which all nodes share")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="N")
    parser.add_argument("--keep-checkpoints", type=int, default=2, metavar="N", help="older checkpoints are removed")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    more(parser)
    options = parser.parse_args()
    for name in ("steps", "eval_every", "eval_steps", "checkpoint_every", "keep_checkpoints"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is at least 1")
    if options.resume and not options.checkpoint_dir:
        parser.error("--resume wants --checkpoint-dir")
    return options


def read_settings() -> dict[str, Any]:
    with open(os.path.join(HERE, "plan.json"), encoding="utf-8") as file:
        settings: dict[str, Any] = json.load(file)
    return settings


def say(**line: object) -> None:
    """An event, on a line of its own."""
    print(json.dumps({name.replace("_", "-"): value for name, value in line.items()}), flush=True)


class Termination:
    """Whether a process was asked to end. All processes agree on it at the end of a step."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self.ask)

    def ask(self, _signal: int, _frame: object) -> None:
        self.asked = True

    def agreed(self) -> bool:
        """Whether any process was asked; returns when all processes are here."""
        return total(float(self.asked)) > 0.0


def meet() -> None:
    """Returns when all processes are here."""
    dist.barrier()


def total(number: float) -> float:
    """The sum of a number over all processes."""
    summed = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(summed)
    return summed.item()


class Loop:
    """A training from its first step, or a checkpoint, to its last step, or to the signal to end."""

    def __init__(self, trainer: Trainer, settings: dict[str, Any], options: argparse.Namespace, saver: Saver | None) -> None:
        self.trainer, self.options, self.batch, self.saver = trainer, options, settings["batch"], saver
        vocabulary = settings["model"]["vocabulary"]
        self.tokens = Tokens(options.data, self.batch, vocabulary, options.seed)
        self.held_out = Tokens(options.eval_data, self.batch, vocabulary, options.seed, in_order=True) if options.eval_data else None
        self.termination = Termination()
        self.index = 0
        # Milliseconds of each step.
        self.times: list[float] = []

    def start(self) -> None:
        """Goes on from a checkpoint, or says why not."""
        if self.saver is not None and self.options.resume:
            self.index = self.saver.load()
        elif self.saver is not None:
            self.saver.refuse_used()
        if self.trainer.rank == 0:
            for text in self.tokens.warnings(self.options.steps):
                warn(text)

    def run(self, around: Callable[[int, Callable[[], float | None]], float | None] | None = None) -> None:
        """All steps; `around` runs each."""
        self.start()
        ended = False
        while self.index < self.options.steps and not ended:
            index = self.index
            meet()
            begin = time.perf_counter()
            loss = around(index, partial(self.step, index)) if around else self.step(index)
            self.times.append(1e3 * (time.perf_counter() - begin))
            if loss is not None:
                rate = self.batch["sequences"] * self.batch["seq-len"] / self.times[-1] * 1e3
                say(event="step", step=index, loss=loss, duration_ms=self.times[-1], tokens_per_second=rate)
            self.index += 1
            ended = self.termination.agreed()
            self.after_step(ended)
        if ended and self.trainer.rank == 0:
            say(event="stopped", step=self.index, checkpoint=self.saver is not None)

    def step(self, index: int) -> float | None:
        """One step of all processes."""
        loss = self.trainer.step(index, self.tokens)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        meet()
        return loss

    def after_step(self, ended: bool) -> None:
        last = ended or self.index == self.options.steps
        if self.held_out is not None and not ended and (last or self.index % self.options.eval_every == 0):
            self.evaluate(self.held_out)
        if self.saver is not None and (last or self.index % self.options.checkpoint_every == 0):
            self.saver.save(self.index)

    def evaluate(self, held_out: Tokens) -> None:
        losses, counted = 0.0, 0
        for index in range(min(held_out.steps(), self.options.eval_steps)):
            loss, number = self.trainer.evaluate(index, held_out)
            losses, counted = losses + loss, counted + number
        losses, counted = total(losses), int(total(counted))
        if self.trainer.rank == 0:
            say(event="eval", step=self.index, loss=losses / max(counted, 1), tokens=counted)


def end(main: Callable[[], None]) -> None:
    """Runs a script; a fault of its input is one line, of one process."""
    try:
        main()
    except Fault as fault:
        # A fault that all processes find is the first one's to say: its end is that of the others.
        time.sleep(2.0 if int(os.environ.get("RANK", "0")) else 0.0)
        sys.exit(f"error: {fault}")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
