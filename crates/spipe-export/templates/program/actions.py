"""What each kind of action does: it takes values from the store or from their places, computes or copies, and puts values back."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import torch

from adamw import AdamW, Part, squares
from memory import Memory
from passes import Graph, Stage, loss_of
from program import GRAPHS, Action, Buffer, Lane, Program
from storage import Fault
from tokens import Tokens
from world import RING, World

# Of a factor in the place of gradients that are left out, since some are not finite.
LEFT_OUT = -1.0


class Store:
    """Values that the framework allocates, each until its last user in this process has ended."""

    def __init__(self, program: Program, rank: int) -> None:
        self.lock = threading.Lock()
        self.users: dict[int, int] = {}
        for lane in program.lanes:
            # Both ends of a lane between processes end each of its actions.
            for _ in range((lane.rank == rank) + (lane.to_rank == rank)):
                for action in lane.actions:
                    for buffer in action.buffers:
                        self.users[buffer] = self.users.get(buffer, 0) + 1
        self.values: dict[tuple[int, int], torch.Tensor | Graph] = {}
        self.used: dict[tuple[int, int], int] = {}

    def put(self, buffer: Buffer, iteration: int, value: torch.Tensor | Graph) -> None:
        self.values[buffer.id, iteration] = value

    def tensor(self, buffer: Buffer, iteration: int) -> torch.Tensor:
        value = self.values[buffer.id, iteration]
        assert isinstance(value, torch.Tensor)
        if value.is_cuda:
            value.record_stream(torch.cuda.current_stream())
        return value

    def graph(self, buffer: Buffer, iteration: int) -> Graph | None:
        value = self.values.get((buffer.id, iteration))
        return value if isinstance(value, Graph) else None

    def ended(self, action: Action, iteration: int) -> None:
        """Drops the values whose last user this action was in this process."""
        with self.lock:
            for buffer in action.buffers:
                key = (buffer, iteration)
                self.used[key] = self.used.get(key, 0) + 1
                if self.used[key] == self.users[buffer]:
                    del self.used[key]
                    self.values.pop(key, None)


class Actions:
    """The actions of one process."""

    def __init__(self, program: Program, world: World, memory: Memory, tokens: Tokens, rate: Callable[[int], float], weight_decay: float) -> None:
        self.program, self.world, self.memory, self.tokens, self.rate = program, world, memory, tokens, rate
        self.board, self.store, self.checked = world.board, Store(program, world.rank), program.checked()
        self.stages = {stage.index: Stage(program, stage.index, memory) for stage in program.stages if stage.rank == world.rank}
        self.optimizers = {lane.index: AdamW(self.home_of(lane), weight_decay) for lane in program.lanes if lane.rank == world.rank and self.steps_on(lane)}
        checks = [action for action in program.actions.values() if action.kind == "check"]
        # States whose steps run before the check, which adds up the squares of their gradients.
        self.speculative = {buffer.id for check in checks for buffer in check.read("optimizer-state")}
        # By state, the steps that it has had.
        self.counts = {buffer.id: 0 for buffer in program.buffers if buffer.content == "optimizer-state"}
        self.batches: dict[int, tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = {}
        self.batch_lock = threading.Lock()
        self.kinds: dict[str, Callable[[Action, int], None]] = {
            "forward": self.forward, "recompute": self.recompute, "backward": self.backward, "weights-in": self.move,
            "gradients-out": self.move, "write-back": self.write_back, "accumulate": self.accumulate, "norm": self.norm,
            "optimizer-step": self.step, "check": self.check, "rollback": self.rollback, "barrier": lambda _action, _iteration: None,
        }  # fmt: skip

    @staticmethod
    def steps_on(lane: Lane) -> bool:
        return any(action.kind == "optimizer-step" for action in lane.actions)

    def home_of(self, lane: Lane) -> torch.device:
        """Where the steps of a lane run: on the device with its passes, or on the host."""
        return self.world.device if lane.role == "compute" else torch.device("cpu")

    def perform(self, action: Action, iteration: int) -> None:
        """Runs an action within one process."""
        if action.guard is not None and (self.board.factor[iteration % RING] == 1.0) != (action.guard.outcome == "pass"):
            return
        self.kinds[action.kind](action, iteration)

    # Passes.

    def batch(self, iteration: int, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of a microbatch on the device."""
        with self.batch_lock:
            if iteration not in self.batches:
                inputs, targets = (part.to(self.world.device, non_blocking=True) for part in self.tokens.step(iteration))
                self.batches = {past: batch for past, batch in self.batches.items() if past >= iteration - 2}
                self.batches[iteration] = (inputs.chunk(self.program.microbatches), targets.chunk(self.program.microbatches))
            inputs, targets = self.batches[iteration]
        return inputs[microbatch], targets[microbatch]

    def begin(self, action: Action, iteration: int) -> tuple[Stage, torch.Tensor]:
        """The stage of a pass, with its parameters, and its input."""
        assert action.stage is not None and action.microbatch is not None
        stage, parameters = self.stages[action.stage], action.read("parameters")
        # A stage's own parameters come first; shared ones are read in place or from a copy.
        shared = next(iter(action.read("shared") + parameters[1:]), None)
        stage.bind(parameters[0], shared)
        if stage.layers[0] == 0:
            return stage, self.batch(iteration, action.microbatch)[0]
        behind = [buffer for buffer in action.read("activation", "checkpoint") if buffer.layers[0] == stage.layers[0] - 1]
        return stage, self.store.tensor(behind[0], iteration).to(stage.bases[0].dtype)

    def with_loss(self, stage: Stage, graph: Graph, action: Action, iteration: int) -> Graph:
        """The graph up to the loss, if it ends with the last layer."""
        if stage.layers[-1] != self.program.model["layers"] + 1:
            return graph
        assert action.microbatch is not None
        with torch.enable_grad():
            graph.output = loss_of(graph.output, self.batch(iteration, action.microbatch)[1])
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
            with stage.outliving(not action.read("parameters")[0].resident):
                graph = self.with_loss(stage, stage.track(range(start, end), x, outputs), action, iteration)
            self.store.put(graphs[-1], iteration, graph)
            loss = graph.output
        elif end == self.program.model["layers"] + 2:
            loss = loss_of(x, self.batch(iteration, action.microbatch)[1])
        for buffer in action.written("activation", "checkpoint"):
            self.store.put(buffer, iteration, outputs[buffer.layers[0]])
        if end == self.program.model["layers"] + 2:
            self.add_loss(iteration, action.microbatch, loss.detach())

    def add_loss(self, iteration: int, microbatch: int, loss: torch.Tensor) -> None:
        """Adds a microbatch's part of the loss; the last one makes the sum known."""
        self.losses = loss.double() if microbatch == 0 else self.losses + loss.double()
        if microbatch == self.program.microbatches - 1:
            self.board.loss[iteration % RING] = self.losses.item() / self.program.microbatches

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

    def backward(self, action: Action, iteration: int) -> None:
        stage, x = self.begin(action, iteration)
        graphs = [graph for buffer in action.read(*GRAPHS) if (graph := self.store.graph(buffer, iteration)) is not None]
        graphs.sort(key=lambda graph: graph.first)
        known = graphs[0].first if graphs else stage.layers[-1] + 1
        if stage.first_tracked < known:
            # Layers at the front whose graph no forward and no recompute has kept.
            x = stage.run(range(stage.layers[0], stage.first_tracked), x, {})
            graphs.insert(0, self.with_end(stage, range(stage.first_tracked, known), x, action, iteration))
        (gradients, begins) = next((buffer, version == 1) for buffer, version in action.writes if buffer.content == "gradients")
        stage.attach(gradients, next(iter(action.written("shared-gradients")), None), begins)
        incoming = action.read("gradient")
        if incoming:
            seed = self.store.tensor(incoming[0], iteration)
        else:
            seed = torch.tensor(self.board.scale[iteration % RING] / self.program.microbatches, device=self.world.device)
        gradient = stage.backward(graphs, seed)
        for buffer in action.written("gradient"):
            assert gradient is not None
            self.store.put(buffer, iteration, gradient)

    # Copies within a process.

    def pairs(self, action: Action) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The places from which, and to which, parameters or gradients are copied."""
        shared = action.written("shared", "shared-gradients")
        if shared:
            source = next(buffer for buffer, _ in action.reads if buffer.id != shared[0].id)
            return [(self.memory.table(source), self.memory.table(shared[0]))]
        written = action.written("parameters", "gradients")
        found = []
        for source in action.read("parameters", "gradients"):
            for target in written:
                layers = [layer for layer in self.memory.layout.held(source) if layer in target.layers]
                if layers and source.id != target.id:
                    count = sum(self.memory.layout.count(layer) for layer in layers)
                    first, place = self.memory.layout.first(source, layers[0]), self.memory.layout.first(target, layers[0])
                    found.append((self.memory.flat(source)[first : first + count], self.memory.flat(target)[place : place + count]))
        return found

    @torch.no_grad()
    def move(self, action: Action, _iteration: int) -> None:
        adds = any(buffer in action.read("gradients", "shared-gradients") for buffer, _ in action.writes)
        for source, target in self.pairs(action):
            if adds:
                target.add_(source.to(target.device))
            else:
                target.copy_(source, non_blocking=True)

    @torch.no_grad()
    def write_back(self, action: Action, _iteration: int) -> None:
        """Copies parameters to the host although it has them unchanged: the bytes go nowhere that is read."""
        for buffer in action.read("parameters"):
            numbers = self.memory.flat(buffer)
            self.memory.host.scratch(numbers.nbytes).view(numbers.dtype).copy_(numbers, non_blocking=True)

    @torch.no_grad()
    def accumulate(self, action: Action, _iteration: int) -> None:
        (source,), (target,) = action.read("shared-gradients"), action.written("gradients")
        self.memory.table(target).add_(self.memory.table(source))

    # Copies between processes, through slots of the host memory.

    @torch.no_grad()
    def send(self, action: Action, iteration: int, slot: torch.Tensor) -> None:
        (source, _), (target, _) = action.reads[0], action.writes[0]
        value = self.memory.table(source) if source.offset is not None else self.store.tensor(source, iteration).reshape(-1)
        dtype = self.memory.layout.dtype(target) if target.offset is not None else self.memory.layout.half
        slot[: len(value) * dtype.itemsize].view(dtype).copy_(value, non_blocking=True)

    @torch.no_grad()
    def receive(self, action: Action, iteration: int, slot: torch.Tensor) -> None:
        (target, _) = action.writes[0]
        if target.offset is not None:
            place = self.memory.table(target)
            place.copy_(slot[: place.nbytes].view(place.dtype), non_blocking=True)
            return
        batch, dtype = self.program.settings["batch"], self.memory.layout.half
        shape = (batch["microbatch"], batch["seq-len"], self.program.model["hidden"])
        value = torch.empty(shape, dtype=dtype, device=self.world.device)
        value.view(-1).copy_(slot[: value.nbytes].view(dtype), non_blocking=True)
        self.store.put(target, iteration, value)

    # Optimizer steps.

    def norm(self, action: Action, iteration: int) -> None:
        (gradients,), (to,) = action.read("gradients"), action.written("norm")
        self.board.squares[to.id] = squares(self.memory.flat(gradients))

    def check(self, action: Action, iteration: int) -> None:
        """Decides about all gradients: their factor, or that they are left out."""
        scale, clip = self.board.scale[iteration % RING], self.program.settings["clip-norm"]
        total = sum(self.board.squares[buffer.id] for buffer in action.read("norm", "optimizer-state"))
        norm = math.sqrt(total) / scale
        if not math.isfinite(norm) and scale <= 1.0:
            raise Fault("the gradients are not finite: lower the learning rate, or clip the gradients")
        clipped = min(clip / (norm + 1e-6), 1.0) if clip is not None else 1.0
        self.board.norm[iteration % RING] = norm
        self.board.factor[iteration % RING] = clipped if math.isfinite(norm) else LEFT_OUT

    def parts(self, action: Action, state: Buffer) -> list[Part]:
        """The numbers of a step, layer by layer."""
        layout = self.memory.layout
        master, mean, square = self.memory.state(state)
        gradients = next(iter(action.read("gradients")), None)
        found = []
        for buffer in action.read("parameters"):
            for layer in buffer.layers:
                if layer not in layout.held(state):
                    continue
                stored, first = self.memory.layer(buffer, layer), layout.first(state, layer)
                place = slice(first, first + len(stored))
                summed = self.memory.layer(gradients, layer) if gradients is not None else stored
                found.append(Part(stored, master[place] if master is not None else stored, summed, mean[place], square[place]))
        return found

    @torch.no_grad()
    def step(self, action: Action, iteration: int) -> None:
        (state,) = action.read("optimizer-state")
        parts = self.parts(action, state)
        for log in action.written("undo-log"):
            self.copy_log(log, state, parts, back=False)
        factor = self.board.factor[iteration % RING] if action.id in self.checked else 1.0
        if action.id not in self.checked and state.id in self.speculative:
            self.board.squares[state.id] = sum(squares(part.gradients) for part in parts)
            factor = 1.0 if math.isfinite(self.board.squares[state.id]) else LEFT_OUT
        if factor == LEFT_OUT:
            return
        self.counts[state.id] += 1
        for part in parts:
            scale = self.board.scale[iteration % RING]
            self.optimizers[action.lane].step(part, self.counts[state.id], self.rate(iteration), factor / scale)

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
        self.copy_log(log, state, self.parts(action, state), back=True)
        if math.isfinite(self.board.squares[state.id]):
            self.counts[state.id] -= 1
        self.board.undone[self.world.rank] += 1
