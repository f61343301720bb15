"""Actions that compute: passes of a stage on one microbatch."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import torch

from memory import Memory
from passes import Graph, Later, Stage
from program import GRAPHS, Action, Program
from storage import Fault
from store import Store
from tokens import Tokens, count, loss_sum
from world import RING, World


@dataclass(frozen=True)
class Batch:
    """Inputs and targets of each microbatch of an iteration, and the targets that count."""

    inputs: tuple[torch.Tensor, ...]
    targets: tuple[torch.Tensor, ...]
    count: int


class Compute:
    """The passes of one process."""

    def __init__(self, program: Program, world: World, memory: Memory, store: Store, tokens: Tokens) -> None:
        self.program, self.world, self.tokens = program, world, tokens
        self.board, self.store = world.board, store
        self.stages = {stage.index: Stage(program, stage.index, memory) for stage in program.stages if stage.rank == world.rank}
        self.batches: dict[int, Batch] = {}
        self.batch_lock = threading.Lock()
        offloads = [action for action in program.actions.values() if action.kind == "offload"]
        self.leaving = {buffer.id for action in offloads for buffer in action.read("saved")}
        # By stage and microbatch, what backward-inputs have left.
        self.later: dict[tuple[int, int], list[Later]] = {}
        self.losses: torch.Tensor | None = None
        # The iteration with the first of the tokens.
        self.first = 0

    def batch(self, iteration: int) -> Batch:
        """The microbatches of an iteration on the device."""
        with self.batch_lock:
            if iteration not in self.batches:
                sequences = self.program.settings["batch"]["sequences"]
                inputs, targets = self.tokens.rows(iteration - self.first, range(sequences))
                parts = [part.to(self.world.device, non_blocking=True).chunk(self.program.microbatches) for part in (inputs, targets)]
                self.batches = {past: batch for past, batch in self.batches.items() if past >= iteration - 2}
                self.batches[iteration] = Batch(parts[0], parts[1], count(targets))
            return self.batches[iteration]

    def begin(self, action: Action, iteration: int) -> tuple[Stage, torch.Tensor]:
        """The stage of a pass, with its parameters, and its input."""
        assert action.stage is not None and action.microbatch is not None
        stage, parameters = self.stages[action.stage], action.read("parameters")
        # A stage's own parameters come first; shared ones are read in place or from a copy.
        shared = next(iter(action.read("shared") + parameters[1:]), None)
        stage.bind(parameters[0], shared)
        if stage.layers[0] == 0:
            return stage, self.batch(iteration).inputs[action.microbatch]
        behind = [buffer for buffer in action.read("activation", "checkpoint") if buffer.layers[0] == stage.layers[0] - 1]
        return stage, self.store.tensor(behind[0], iteration).to(stage.bases[0].dtype)

    def with_loss(self, stage: Stage, graph: Graph, action: Action, iteration: int) -> Graph:
        """The graph up to the loss, if it ends with the last layer."""
        if stage.layers[-1] != self.program.model["layers"] + 1:
            return graph
        assert action.microbatch is not None
        with torch.enable_grad():
            graph.output = loss_sum(graph.output, self.batch(iteration).targets[action.microbatch])
        return graph

    def forward(self, action: Action, iteration: int) -> None:
        stage, x = self.begin(action, iteration)
        assert action.stage is not None and action.microbatch is not None
        outputs = {buffer.layers[0]: torch.empty(0) for buffer in action.written("activation", "checkpoint")}
        graphs = action.written(*GRAPHS)
        first, end = stage.layers[0], stage.layers[-1] + 1
        start = max(first + self.program.stages[action.stage].recomputed, stage.first_tracked) if graphs else end
        x = stage.run(range(first, min(start, end)), x, outputs)
        if start < end:
            with stage.outliving(not action.read("parameters")[0].resident, graphs[-1].id in self.leaving):
                graph = self.with_loss(stage, stage.track(range(start, end), x, outputs), action, iteration)
            self.store.put(graphs[-1], iteration, graph)
            loss = graph.output
        elif end == self.program.model["layers"] + 2:
            loss = loss_sum(x, self.batch(iteration).targets[action.microbatch])
        for buffer in action.written("activation", "checkpoint"):
            self.store.put(buffer, iteration, outputs[buffer.layers[0]])
        if end == self.program.model["layers"] + 2:
            self.add_loss(iteration, action.microbatch, loss.detach())

    def add_loss(self, iteration: int, microbatch: int, loss: torch.Tensor) -> None:
        """Adds a microbatch's part of the loss; the last one makes the mean known."""
        self.losses = loss.double() if self.losses is None else self.losses + loss.double()
        if microbatch == self.program.microbatches - 1:
            total, self.losses = self.losses.item(), None
            self.say_loss(iteration, total)

    def say_loss(self, iteration: int, total: float) -> None:
        """Makes the mean of an iteration's losses known."""
        mean = total / max(self.batch(iteration).count, 1)
        if not math.isfinite(mean):
            raise Fault(f"the loss of step {iteration} is not finite: lower the learning rate, or clip the gradients")
        self.board.loss[iteration % RING] = mean

    def recompute(self, action: Action, iteration: int) -> None:
        stage, x = self.begin(action, iteration)
        (into,) = action.written("recomputed")
        layers = range(stage.first_tracked, into.layers[-1] + 1)
        if not layers:
            return
        x = stage.run(range(stage.layers[0], layers[0]), x, {})
        self.store.put(into, iteration, self.with_end(stage, layers, x, action, iteration))

    def with_end(self, stage: Stage, layers: range, x: torch.Tensor, action: Action, iteration: int) -> Graph:
        graph = stage.track(layers, x, {})
        return self.with_loss(stage, graph, action, iteration) if layers[-1] == stage.layers[-1] else graph

    def graphs(self, stage: Stage, x: torch.Tensor, action: Action, iteration: int) -> list[Graph]:
        """The graphs of a stage's layers, with those at the front that no forward and no recompute has kept."""
        graphs = [graph for buffer in action.read(*GRAPHS) if (graph := self.store.graph(buffer, iteration)) is not None]
        graphs.sort(key=lambda graph: graph.first)
        known = graphs[0].first if graphs else stage.layers[-1] + 1
        if stage.first_tracked < known:
            x = stage.run(range(stage.layers[0], stage.first_tracked), x, {})
            graphs.insert(0, self.with_end(stage, range(stage.first_tracked, known), x, action, iteration))
        return graphs

    def seed(self, action: Action, iteration: int) -> torch.Tensor:
        """The gradient of a stage's output, or that of the loss: of its part in the mean over all tokens."""
        incoming = action.read("gradient")
        if incoming:
            return self.store.tensor(incoming[0], iteration)
        # A number that a kernel writes: a copy would wait for the device.
        return torch.full((), self.board.scale[iteration % RING] / max(self.batch(iteration).count, 1), device=self.world.device)

    def attach(self, stage: Stage, action: Action) -> None:
        (gradients, begins) = next((buffer, version == 1) for buffer, version in action.writes if buffer.content == "gradients")
        stage.attach(gradients, next(iter(action.written("shared-gradients")), None), begins)

    def pass_on(self, action: Action, iteration: int, gradient: torch.Tensor | None) -> None:
        for buffer in action.written("gradient"):
            assert gradient is not None
            self.store.put(buffer, iteration, gradient)

    def backward(self, action: Action, iteration: int) -> None:
        stage, x = self.begin(action, iteration)
        graphs = self.graphs(stage, x, action, iteration)
        self.attach(stage, action)
        self.pass_on(action, iteration, stage.backward(graphs, self.seed(action, iteration)))

    def backward_input(self, action: Action, iteration: int) -> None:
        stage, x = self.begin(action, iteration)
        assert action.stage is not None and action.microbatch is not None
        gradient, later = stage.backward_input(self.graphs(stage, x, action, iteration), self.seed(action, iteration))
        self.later[action.stage, action.microbatch] = later
        self.pass_on(action, iteration, gradient)

    def backward_weight(self, action: Action, iteration: int) -> None:
        assert action.stage is not None and action.microbatch is not None
        stage = self.stages[action.stage]
        self.attach(stage, action)
        stage.backward_weight(self.later.pop((action.stage, action.microbatch)))
