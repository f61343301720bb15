"""Optimizer steps, the check of all gradients, and the undo of steps that ran before it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from adamw import AdamW, Part, squares
from memory import Memory
from program import Action, Buffer, Lane, Program
from storage import Fault
from world import RING, World

# A factor in the place of gradients that are left out, since some are not finite.
LEFT_OUT = -1.0


class Steps:
    """The optimizer steps of one process."""

    def __init__(self, program: Program, world: World, memory: Memory, rate: Callable[[int], float], weight_decay: float) -> None:
        self.program, self.world, self.memory, self.rate = program, world, memory, rate
        self.board, self.checked = world.board, program.checked()
        self.optimizers = {lane.index: AdamW(self.home_of(lane), weight_decay) for lane in program.lanes if lane.rank == world.rank and self.steps_on(lane)}
        checks = [action for action in program.actions.values() if action.kind == "check"]
        # States whose steps run before the check, which adds up the squares of their gradients.
        self.speculative = {buffer.id for check in checks for buffer in check.read("optimizer-state")}
        # By state, the steps that it has had.
        self.counts = {buffer.id: 0 for buffer in program.buffers if buffer.content == "optimizer-state"}

    @staticmethod
    def steps_on(lane: Lane) -> bool:
        return any(action.kind == "optimizer-step" for action in lane.actions)

    def home_of(self, lane: Lane) -> torch.device:
        """Where the steps of a lane run: on the device with its passes, or on the host."""
        return self.world.device if lane.role == "compute" else torch.device("cpu")

    def norm(self, action: Action, iteration: int) -> None:
        (gradients,), (to,) = action.read("gradients"), action.written("norm")
        self.board.squares[to.id] = squares(self.memory.flat(self.memory.at(gradients, iteration))) / self.scale_of(action, iteration) ** 2

    def check(self, action: Action, iteration: int) -> None:
        """Decides about all gradients: their factor, or that they are left out."""
        scale, clip = self.board.scale[iteration % RING], self.program.settings["clip-norm"]
        norm = math.sqrt(sum(self.board.squares[buffer.id] for buffer in action.read("norm", "optimizer-state")))
        if not math.isfinite(norm) and scale <= 1.0:
            raise Fault("the gradients are not finite: lower the learning rate, or clip the gradients")
        clipped = min(clip / (norm + 1e-6), 1.0) if clip is not None else 1.0
        self.board.norm[iteration % RING] = norm
        self.board.factor[iteration % RING] = clipped if math.isfinite(norm) else LEFT_OUT

    def parts(self, action: Action, state: Buffer, iteration: int) -> list[Part]:
        """The numbers of a step, layer by layer."""
        layout = self.memory.layout
        master, mean, square = self.memory.state(state)
        gradients = next((self.memory.at(buffer, iteration) for buffer in action.read("gradients")), None)
        found = []
        for buffer in action.read("parameters", "updated"):
            for layer in buffer.layers:
                if layer not in layout.held(state):
                    continue
                stored, first = self.memory.learnt(buffer, layer), layout.first(state, layer)
                summed = self.memory.learnt(gradients, layer) if gradients is not None else stored
                for run in layout.trained(layer):
                    place, own = slice(first + run.start, first + run.stop), stored[run]
                    found.append(Part(own, master[place] if master is not None else own, summed[run], mean[place], square[place]))
        return found

    @torch.no_grad()
    def step(self, action: Action, iteration: int) -> None:
        (state,) = action.read("optimizer-state")
        parts = self.parts(action, state, iteration)
        for log in action.written("undo-log"):
            self.copy_log(log, state, parts, back=False)
        factor = self.board.factor[iteration % RING] if action.id in self.checked else 1.0
        if action.id not in self.checked and state.id in self.speculative:
            self.board.squares[state.id] = sum(squares(part.gradients) for part in parts) / self.scale_of(action, iteration) ** 2
            factor = 1.0 if math.isfinite(self.board.squares[state.id]) else LEFT_OUT
        if factor == LEFT_OUT or (iteration == 0 and self.is_late(action)):
            # Of delayed steps the first has no gradients.
            return
        self.counts[state.id] += 1
        for part in parts:
            scale = self.scale_of(action, iteration)
            self.optimizers[action.lane].step(part, self.counts[state.id], self.rate(iteration), factor / scale)

    def is_late(self, action: Action) -> bool:
        """Whether an action has the gradients of the iteration before."""
        return any(buffer.id in self.program.arriving for buffer in action.read("gradients"))

    def scale_of(self, action: Action, iteration: int) -> float:
        """The loss scale that an action's gradients carry."""
        return self.board.scale[(iteration - self.is_late(action)) % RING]

    def copy_log(self, log: Buffer, state: Buffer, parts: list[Part], back: bool) -> None:
        """Copies parameters and moments to a log, or back."""
        first = 0
        for part in parts:
            for numbers in (part.master, part.mean, part.square):
                kept = self.memory.flat(log)[first : first + len(numbers)]
                (numbers if back else kept).copy_(kept if back else numbers)
                first += len(numbers)
            if back and part.stored.data_ptr() != part.master.data_ptr():
                part.stored.copy_(part.master)

    @torch.no_grad()
    def rollback(self, action: Action, iteration: int) -> None:
        (state,), (log,) = action.read("optimizer-state"), action.read("undo-log")
        self.copy_log(log, state, self.parts(action, state, iteration), back=True)
        if math.isfinite(self.board.squares[state.id]):
            self.counts[state.id] -= 1
        self.board.undone[self.world.rank] += 1
