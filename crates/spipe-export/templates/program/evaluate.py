"""Evaluation on held-out tokens between two iterations: the forwards of the program, and what brings them their parameters.

The actions of the iteration that the forwards need are kept, in the order of their lanes; they wait for each other as in the
whole program. Nothing that stays from one iteration to the next is written.
"""

from __future__ import annotations

import copy
import dataclasses
import threading

import torch

from actions import Performer
from compute import Compute
from drives import Drives
from engine import Engine
from memory import Memory
from program import Action, Program, Wait
from storage import Fault
from tokens import Tokens, loss_sum
from world import GRANTED, LAST, RING, World

# Kinds of actions that change nothing but what they write.
KEPT = {"forward", "weights-in", "copy-activation", "copy-checkpoint"}


def forward_only(program: Program) -> Program:
    """The program with the actions alone that its forwards need."""
    writers = {(buffer.id, version): action.id for action in program.actions.values() for buffer, version in action.writes}
    needed: set[int] = set()
    left = [action.id for action in program.actions.values() if action.kind == "forward"]
    while left:
        action = program.actions[left.pop()]
        if action.id in needed:
            continue
        needed.add(action.id)
        left.extend(writers[read.id, version] for read, version in action.reads if (read.id, version) in writers)
    for action in (program.actions[id] for id in needed):
        writes = [buffer for buffer, _ in action.writes if buffer.resident or buffer.id in program.partners]
        if action.kind not in KEPT or action.guard is not None or writes:
            raise Fault(f"this plan's forwards need `{action.label}`, with which they cannot run alone: write the weights with --save-weights, "
                        "and evaluate those")
    kept = copy.copy(program)
    kept.lanes = [dataclasses.replace(lane, actions=tuple(action for action in lane.actions if action.id in needed)) for lane in program.lanes]
    kept.actions = {id: action for id, action in program.actions.items() if id in needed}
    kept.waits = waits(program, needed)
    return kept


def waits(program: Program, needed: set[int]) -> dict[int, list[Wait]]:
    """The waits of the needed actions: on each lane the last needed action before them, also through those that are left out."""
    before: dict[int, list[tuple[int, str]]] = {id: [] for id in program.actions}
    after: dict[int, list[int]] = {id: [] for id in program.actions}
    pairs = [(first.id, second.id, "order") for lane in program.lanes for first, second in zip(lane.actions, lane.actions[1:])]
    pairs += [(wait.action, id, wait.cause) for id, found in program.waits.items() for wait in found if wait.distance == 0 and not wait.at_start]
    for first, second, cause in pairs:
        before[second].append((first, cause))
        after[first].append(second)
    place = {action.id: position for lane in program.lanes for position, action in enumerate(lane.actions)}
    # By action and lane, the last needed action that ends before it begins.
    reached: dict[int, dict[int, int]] = {}
    missing = {id: len(found) for id, found in before.items()}
    ready = [id for id, count in missing.items() if count == 0]
    found: dict[int, list[Wait]] = {}
    while ready:
        id = ready.pop()
        last: dict[int, int] = {}
        causes: dict[int, str] = {}
        for first, cause in before[id]:
            known = {**reached[first], program.actions[first].lane: first} if first in needed else reached[first]
            for lane, action in known.items():
                if lane not in last or place[last[lane]] < place[action]:
                    last[lane], causes[lane] = action, cause
        reached[id] = last
        if id in needed:
            own = program.actions[id].lane
            found[id] = [Wait(action, 0, False, causes[lane]) for lane, action in sorted(last.items()) if lane != own]
        for second in after[id]:
            missing[second] -= 1
            if missing[second] == 0:
                ready.append(second)
    return found


class Forwards(Compute):
    """Forwards that keep nothing for a backward, and the sum of their losses."""

    def forward(self, action: Action, iteration: int) -> None:
        stage, x = self.begin(action, iteration)
        assert action.microbatch is not None
        outputs = {buffer.layers[0]: torch.empty(0) for buffer in action.written("activation", "checkpoint")}
        x = stage.run(stage.layers, x, outputs)
        for buffer in action.written("activation", "checkpoint"):
            self.store.put(buffer, iteration, outputs[buffer.layers[0]])
        if stage.layers[-1] == self.program.model["layers"] + 1:
            self.add_loss(iteration, action.microbatch, loss_sum(x, self.batch(iteration).targets[action.microbatch]))

    def say_loss(self, iteration: int, total: float) -> None:
        self.board.loss[iteration % RING], self.board.norm[iteration % RING] = total, float(self.batch(iteration).count)


class Evaluation(Performer):
    """Evaluations of one process. Their iterations have numbers of their own."""

    def __init__(self, program: Program, world: World, memory: Memory, drives: Drives, tokens: Tokens) -> None:
        self.program, self.world, self.tokens = forward_only(program), world, tokens
        super().__init__(self.program, world, memory, drives, world.evaluation)
        self.compute = Forwards(self.program, world, memory, self.store, tokens)
        self.compute.board = world.evaluation
        self.kinds["forward"] = self.compute.forward
        self.done = 0

    def run(self, batches: int) -> tuple[float, int]:
        """The sum of the losses of the first batches and the number of their targets, in the first process."""
        count, first, board = min(batches, self.tokens.steps()), self.done, self.world.evaluation
        self.compute.batches.clear()
        self.compute.first = first
        sums = [0.0, 0.0]

        def add(iteration: int) -> None:
            sums[0], sums[1] = sums[0] + board.loss[iteration % RING], sums[1] + board.norm[iteration % RING]

        board.over[self.world.rank] = first
        if self.world.rank == 0:
            board.control[LAST], board.control[GRANTED] = first + count, first
        self.world.barrier()
        engine, hook = Engine(self.program, self.world, self, first), threading.excepthook
        engine.ahead = 0
        engine.start()
        engine.advance(first + count, add)
        self.done = first + count
        self.world.barrier()
        threading.excepthook = hook
        return sums[0], round(sums[1])
