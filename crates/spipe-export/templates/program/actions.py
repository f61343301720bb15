"""The kinds of actions that a process runs, and where each is."""

from __future__ import annotations

from collections.abc import Callable

import torch

from compute import Compute
from copies import Copies
from drives import Drives
from memory import Memory
from program import Action, Program
from steps import Steps
from store import Store
from tokens import Tokens
from world import RING, Board, World


class Performer:
    """The actions of a process: copies, and other kinds."""

    def __init__(self, program: Program, world: World, memory: Memory, drives: Drives, board: Board) -> None:
        self.board, self.store, self.drives = board, Store(program, world.rank), drives
        # Lanes whose copies begin or end on a drive.
        self.of_drives = {lane.index for lane in program.lanes if lane.role.startswith("nvme")}
        self.copies = Copies(program, world, memory, self.store)
        self.kinds: dict[str, Callable[[Action, int], None]] = {
            "weights-in": self.copies.move,
            "gradients-out": self.copies.move,
            "write-back": self.copies.write_back,
            "offload": self.copies.offload,
            "reload": self.copies.reload,
            "accumulate": self.copies.accumulate,
            "barrier": lambda _action, _iteration: None,
        }

    def perform(self, action: Action, iteration: int) -> None:
        """Runs an action within one process, unless its guard forbids it."""
        if action.guard is not None and (self.board.factor[iteration % RING] == 1.0) != (action.guard.outcome == "pass"):
            return
        (self.drives.copy if action.lane in self.of_drives else self.kinds[action.kind])(action, iteration)

    def cross(self, action: Action, iteration: int, slot: torch.Tensor, receives: bool) -> None:
        """Runs one end of a copy between two processes."""
        (self.copies.receive if receives else self.copies.send)(action, iteration, slot)


class Actions(Performer):
    """The actions of one process in training."""

    def __init__(self, program: Program, world: World, memory: Memory, tokens: Tokens, drives: Drives, rate: Callable[[int], float],
                 weight_decay: float) -> None:  # fmt: skip
        super().__init__(program, world, memory, drives, world.board)
        self.compute = Compute(program, world, memory, self.store, tokens)
        self.steps = Steps(program, world, memory, rate, weight_decay)
        self.kinds |= {
            "forward": self.compute.forward,
            "recompute": self.compute.recompute,
            "backward": self.compute.backward,
            "backward-input": self.compute.backward_input,
            "backward-weight": self.compute.backward_weight,
            "norm": self.steps.norm,
            "optimizer-step": self.steps.step,
            "check": self.steps.check,
            "rollback": self.steps.rollback,
        }
