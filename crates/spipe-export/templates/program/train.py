"""Trains the model of program.json in the order of its lanes. README.md has the commands."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from typing import NoReturn

import torch
import torch.distributed as dist

import parameters
import rates
from actions import Actions
from checkpoint import Checkpoints
from drives import Drives
from engine import Engine
from evaluate import Evaluation
from loop import HERE, arguments, say
from memory import Layout, Memory, Piece
from program import Buffer, Program
from steps import LEFT_OUT
from storage import Fault, Numbers
from tokens import Tokens, warn
from traces import write_trace
from world import GRANTED, LAST, RING, Stopped, World

# Steps without an overflow after which the loss scale doubles, and the first scale: those of PyTorch's GradScaler.
PATIENCE, FIRST_SCALE = 2000, 2.0**16


def more(parser: argparse.ArgumentParser) -> None:
    """The options of this engine."""
    rates.add_options(parser)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--loss-scale", type=float, default=FIRST_SCALE, help="the first scale of the loss in fp16")
    parser.add_argument("--save-weights", help="folder for the weights at the end, as safetensors")
    parser.add_argument("--trace", help="folder for the times of all actions of one step, a file per rank")
    parser.add_argument("--trace-step", type=int, default=None, help="the step to trace; the last one by default")
    parser.add_argument("--drive", action="append", default=[], metavar="NAME=FOLDER",
                        help="the folder of the file that stands for a drive of the plan, such as nvme0=/mnt/nvme")
    parser.add_argument("--cpu", action="store_true", help="use CPU cores for every rank")


class Training:
    """The processes' memory and lanes, the training's state, and its files."""

    def __init__(self, program: Program, options: argparse.Namespace) -> None:
        self.program, self.options = program, options
        layout = Layout(program)
        layout.check()
        self.world = World(program, options.cpu)
        self.memory = Memory(program, layout, self.world.host, self.world.rank, self.world.device)
        tokens = Tokens(options.data, program.settings["batch"], program.model["vocabulary"], options.seed)
        self.drives = Drives(program, layout, self.memory, options.drive, self.world.rank)
        self.actions = Actions(program, self.world, self.memory, tokens, self.drives, self.rate, options.weight_decay)
        self.scale, self.good = (options.loss_scale if program.settings["precision"] == "fp16" else 1.0), 0
        # That of the iteration before the first, whose gradients delayed steps may have.
        self.last_scale = self.scale
        self.durations: list[float] = []
        self.first = 0
        self.checkpoints = None
        if options.checkpoint_dir:
            self.checkpoints = Checkpoints(options.checkpoint_dir, self.world.rank, self.world.size, program.settings["fingerprint"],
                                           options.keep_checkpoints, self.world.barrier)  # fmt: skip
        self.evaluation = None
        if options.eval_data:
            held_out = Tokens(options.eval_data, program.settings["batch"], program.model["vocabulary"], options.seed, in_order=True)
            self.evaluation = Evaluation(program, self.world, self.memory, self.drives, held_out)
        if options.resume:
            self.resume()
        else:
            if self.checkpoints is not None:
                self.checkpoints.refuse_used()
            self.fill()
        for text in tokens.warnings(options.steps) if self.world.rank == 0 else ():
            warn(text)
        self.world.barrier()

    def rate(self, step: int) -> float:
        return rates.rate(self.options, step)

    def own(self) -> list[Buffer]:
        """The buffers that are held throughout and that this process fills, saves and reads: its device's, and its share of the host's."""
        held = [buffer for buffer in self.program.buffers if buffer.resident and buffer.offset is not None and (self.memory.sees(buffer) or self.drives.has(buffer))]
        rank_of = {buffer.id: self.program.memories[buffer.memory]["rank"] for buffer in held}
        return [it for it in held if (it.id % self.world.size if rank_of[it.id] is None else rank_of[it.id]) == self.world.rank]

    @torch.no_grad()
    def fill(self) -> None:
        """Reads, or draws, the first parameters, and their copies in the optimizer's state."""
        source = parameters.source(self.options.weights, self.options.seed)
        for buffer in self.own():
            if not self.drives.has(buffer):
                self.fill_one(buffer, self.memory.flat(buffer), source)
                continue
            numbers = torch.empty(buffer.bytes, dtype=torch.uint8).view(self.memory.layout.dtype(buffer))
            self.fill_one(buffer, numbers, source)
            self.drives.whole(buffer).write(0, numbers)

    def fill_one(self, buffer: Buffer, numbers: torch.Tensor, source: parameters.Source) -> None:
        """The first numbers of a buffer."""
        layout = self.memory.layout
        if buffer.content == "optimizer-state":
            master, mean, square = self.memory.state_of(buffer, numbers)
            mean.zero_()
            square.zero_()
            if master is None:
                return
            pieces = [(part, master[layout.first(buffer, part[0]) :]) for part in layout.parts(buffer)]
        elif buffer.content == "shared":
            numbers.copy_(source.read(layout.whole_name(0, layout.table.name), layout.table.shape, 0, len(numbers)))
            return
        else:
            pieces = [(part, piece.of(numbers.view(torch.uint8))) for part, piece in layout.pieces(buffer).items()]
        for (layer, added), own in pieces:
            for tensor in (tensor for tensor in layout.tensors[layer] if tensor.added == added):
                own[tensor.place].copy_(source.read(layout.whole_name(layer, tensor.name), tensor.shape, 0, tensor.count))

    def tensors(self, step: int) -> dict[str, Numbers]:
        """This process's part of a checkpoint."""
        held: dict[str, Numbers] = {}
        for buffer in self.own():
            held[self.name_of(buffer)] = self.drives.whole(buffer) if self.drives.has(buffer) else self.memory.flat(buffer)
        late = [self.program.buffers[arrives] for arrives in sorted(self.program.arriving) if self.world.rank == 0]
        return held | {f"late.{buffer.id}": self.memory.flat(self.memory.at(buffer, step)) for buffer in late}

    def name_of(self, buffer: Buffer) -> str:
        memory = self.program.memories[buffer.memory]["name"]
        return f"{buffer.content}.{buffer.layers[0]}-{buffer.layers[-1]}.{memory}"

    def save(self, step: int) -> None:
        if self.checkpoints is not None:
            # Other processes may still step what this one saves.
            self.world.barrier()
            numbers = {f"steps.{state}": float(count) for state, count in self.actions.steps.counts.items()}
            self.checkpoints.save(step, self.tensors(step), {**numbers, "scale": self.scale, "good": float(self.good),
                                                              "last-scale": self.world.board.scale[(step - 1) % RING]})  # fmt: skip

    def resume(self) -> None:
        assert self.checkpoints is not None
        self.first, numbers = self.checkpoints.load(self.tensors(0))
        if self.first % 2 and self.world.rank == 0:
            for buffer in (self.program.buffers[arrives] for arrives in self.program.arriving):
                self.memory.flat(self.memory.at(buffer, self.first)).copy_(self.memory.flat(buffer))
        self.actions.steps.counts = {state: int(numbers[f"steps.{state}"]) for state in self.actions.steps.counts}
        self.scale, self.good, self.last_scale = numbers["scale"], int(numbers["good"]), numbers["last-scale"]

    def learn_scale(self, iteration: int) -> None:
        """Halves the loss scale after an overflow, and doubles it after many steps without one."""
        if self.program.settings["precision"] != "fp16":
            return
        if self.world.board.factor[iteration % RING] == LEFT_OUT:
            self.scale, self.good = self.scale / 2.0, 0
        else:
            self.good += 1
            if self.good % PATIENCE == 0:
                self.scale *= 2.0

    def run(self) -> None:
        """All steps, with checkpoints between them."""
        options, board = self.options, self.world.board
        self.engine = Engine(self.program, self.world, self.actions, self.first)
        if options.trace is not None:
            self.engine.traced = options.steps - 1 if options.trace_step is None else options.trace_step
        board.over[self.world.rank] = self.first
        if self.world.rank == 0:
            board.control[LAST], board.control[GRANTED] = options.steps, self.first
            board.scale[(self.first - 1) % RING] = self.last_scale
        if self.world.device.type == "cuda":
            # The first parameters were written on another stream than those of the lanes.
            torch.cuda.synchronize()
        self.world.barrier()
        self.engine.scale = self.scale
        self.engine.start()
        step, self.ended, self.undone = self.first, time.perf_counter(), 0
        while step < board.control[LAST]:
            every = [options.checkpoint_every, *([options.eval_every] if self.evaluation is not None else [])]
            until = min(options.steps, *((step // count + 1) * count for count in every))
            step = self.engine.advance(until, self.say)
            is_last = step < until or step == options.steps
            if self.evaluation is not None and step == until and (is_last or step % options.eval_every == 0):
                self.evaluate(self.evaluation, step)
            if is_last or step % options.checkpoint_every == 0:
                self.save(step)
            self.ended = time.perf_counter()

    def evaluate(self, evaluation: Evaluation, step: int) -> None:
        losses, count = evaluation.run(self.options.eval_steps)
        if self.world.rank == 0:
            say(event="eval", step=step, loss=losses / max(count, 1), tokens=count)

    def say(self, iteration: int) -> None:
        """Prints the line of a step."""
        board, batch = self.world.board, self.program.settings["batch"]
        now, undone = time.perf_counter(), sum(board.undone)
        took = 1e3 * (now - self.ended)
        self.durations.append(took)
        rate = batch["sequences"] * batch["seq-len"] / took * 1e3
        more = {"steps_undone": undone - self.undone} if undone > self.undone else {}
        if board.factor[iteration % RING] == LEFT_OUT:
            more["left_out"] = True
        say(event="step", step=iteration, loss=board.loss[iteration % RING], duration_ms=took, tokens_per_second=rate, **more)
        self.ended, self.undone = now, undone
        self.learn_scale(iteration)
        self.engine.scale = self.scale


def save_weights(training: Training, folder: str) -> None:
    """One file per process, and the index of all; of adapters one file of PEFT. Trained layers are written from their 32-bit copies."""
    program, memory, layout, rank = training.program, training.memory, training.memory.layout, training.world.rank
    # Other processes may still step what this one saves.
    training.world.barrier()
    homes: dict[tuple[int, bool], Buffer] = {}
    for buffer in program.buffers:
        is_copy = buffer.content == "optimizer-state" and layout.has_master(buffer)
        if buffer.resident and (is_copy or buffer.content == "parameters"):
            homes.update({part: buffer for part in layout.parts(buffer) if (part not in homes or is_copy) and part[1] == layout.adapts})
    tensors: dict[str, Numbers] = {}
    for (layer, added), buffer in homes.items():
        home = program.memories[buffer.memory]["rank"]
        if (layer % training.world.size if home is None else home) != rank:
            continue
        is_copy = buffer.content == "optimizer-state"
        piece = Piece(4 * layout.first(buffer, layer), layout.count(layer, added), torch.float32) if is_copy else layout.pieces(buffer)[layer, added]
        for tensor in (tensor for tensor in layout.tensors[layer] if tensor.added == added):
            name = layout.whole_name(layer, tensor.name)
            if training.drives.has(buffer):
                start = piece.start + tensor.first * piece.dtype.itemsize
                tensors[name] = training.drives.part(buffer, start, tensor.shape, piece.dtype, torch.float32)
            else:
                tensors[name] = piece.of(memory.bytes(buffer))[tensor.place].view(tensor.shape).float()
    if layout.adapts:
        parameters.save_adapters(folder, rank, tensors, program.model["adapters"], training.world.barrier)
    else:
        parameters.save(folder, rank, training.world.size, tensors, training.world.barrier)


def main() -> None:
    options = arguments(__doc__, more)
    training = Training(Program(os.path.join(HERE, "program.json")), options)
    training.run()
    if options.save_weights:
        save_weights(training, options.save_weights)
    if options.trace:
        write_trace(training.engine, training.durations, options.trace)
    if training.world.device.type == "cuda":
        say(event="end", rank=training.world.rank, peak_bytes=torch.cuda.max_memory_allocated())
    training.world.barrier()
    dist.destroy_process_group()


def words_of(fault: BaseException) -> str:
    """The message of a fault: a sentence, or where in the scripts it arose."""
    if isinstance(fault, Fault):
        return f"error: {fault}"
    return "interrupted" if isinstance(fault, KeyboardInterrupt) else "".join(traceback.format_exception(fault))


def speaks(fault: BaseException) -> bool:
    """Ends all processes; whether this one says why: the first that failed does, and of faults that all have the first process."""
    world = World.current
    if world is None:
        return int(os.environ.get("RANK", "0")) == 0
    return not isinstance(fault, Stopped) and world.abort()


def leave(fault: BaseException) -> NoReturn:
    """Ends this process after a fault. Its lanes may still wait, and have nothing left to write."""
    if speaks(fault):
        print(words_of(fault), file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(130 if isinstance(fault, KeyboardInterrupt) else 1)


if __name__ == "__main__":
    try:
        main()
    finally:
        raised = sys.exc_info()[1]
        if raised is not None and not isinstance(raised, SystemExit):
            leave(raised)
