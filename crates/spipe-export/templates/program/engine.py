"""The lanes of a process: each is a thread that runs its actions in order, once what they wait for has ended.

On a GPU a lane of computation or of copies is a stream. Its thread runs ahead of it: an action has been issued when its event is
on the stream, other streams wait for the event, and lanes of the host wait until it has happened.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

import torch

from actions import Performer
from program import Action, Lane, Program, Wait
from worker import Span, Worker
from world import GRANTED, LAST, RING, STOPPING, Stopped, World

STREAMS = ("compute", "h2d", "d2h", "channel")


class Engine:
    """The lanes of a process, from one iteration on."""

    def __init__(self, program: Program, world: World, actions: Performer, first: int) -> None:
        self.program, self.world, self.actions, self.board = program, world, actions, actions.board
        self.first, self.traced = first, -1
        # Gradients of 16 bits are those of a scaled loss. The scale of an iteration follows from the one before.
        self.scale = 1.0
        self.ahead = 0 if program.settings["precision"] == "fp16" else 1
        self.condition = threading.Condition()
        self.ended = {id: first for id in program.actions}
        self.begun = dict(self.ended)
        self.events: dict[tuple[int, int], torch.cuda.Event] = {}
        self.starts: dict[tuple[int, int], torch.cuda.Event] = {}
        self.left: dict[int, int] = {}
        self.fault: BaseException | None = None
        self.workers = [self.worker(lane, receives) for lane in program.lanes for receives in (False, True) if self.is_here(lane, receives)]
        remote = [(wait, id) for id, waits in program.waits.items() for wait in waits]
        self.begins_matter = {wait.action for wait, _ in remote if wait.at_start}
        # Actions whose end another process waits for, and the thread that tells it.
        self.watched = {wait.action for wait, id in remote if program.lane_of(wait.action).owner != program.lane_of(id).rank}
        self.bells = world.bells
        self.news: queue.SimpleQueue[tuple[torch.cuda.Event, int, int]] = queue.SimpleQueue()

    def is_here(self, lane: Lane, receives: bool) -> bool:
        rank = lane.to_rank if receives else lane.rank
        return bool(lane.actions) and rank == self.world.rank

    def worker(self, lane: Lane, receives: bool) -> Worker:
        on_stream = self.world.device.type == "cuda" and lane.role in STREAMS
        return Worker(lane, receives, torch.cuda.Stream(self.world.device) if on_stream else None)

    def start(self) -> None:
        """Starts the lanes, which then wait for their first iteration."""
        threading.excepthook = self.failed
        # A moment on the clocks of the device and of the host.
        self.zero: tuple[torch.cuda.Event, int] | None = None
        if self.world.device.type == "cuda" and self.traced >= 0:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            event.synchronize()
            self.zero = (event, time.perf_counter_ns())
        for worker in self.workers:
            threading.Thread(target=self.run, args=(worker,), daemon=True, name=worker.lane.name).start()
        threading.Thread(target=self.tell, daemon=True, name="news").start()

    def failed(self, what: threading.ExceptHookArgs) -> None:
        """Keeps what a thread has raised for the main one, which ends all lanes of all processes."""
        with self.condition:
            if not isinstance(what.exc_value, Stopped):
                self.fault = self.fault or what.exc_value
            self.condition.notify_all()

    def run(self, worker: Worker) -> None:
        """The thread of a lane."""
        context = torch.cuda.stream(worker.stream) if worker.stream is not None else contextlib.nullcontext()
        iteration = self.first
        with context:
            while self.is_granted(iteration):
                for position, action in enumerate(worker.lane.actions):
                    self.run_action(worker, position, action, iteration)
                with self.condition:
                    self.left[iteration] = self.left.get(iteration, len(self.workers)) - 1
                    self.condition.notify_all()
                iteration += 1

    def is_granted(self, iteration: int) -> bool:
        """Waits until an iteration may begin; false if there is none after the last one."""
        control = self.board.control
        self.until(0, lambda: control[GRANTED] > iteration or control[LAST] <= iteration)
        return control[GRANTED] > iteration

    def run_action(self, worker: Worker, position: int, action: Action, iteration: int) -> None:
        cause = None if worker.receives else self.wait_for(worker, action, iteration)
        event = self.mark(worker) if worker.stream is not None and (iteration == self.traced or action.id in self.begins_matter) else None
        start = time.perf_counter_ns()
        if not worker.receives:
            self.board.sent_at[action.id] = start
            self.begin(action, iteration, event)
        if worker.lane.to_rank is None:
            self.actions.perform(action, iteration)
        else:
            self.cross(worker, iteration * len(worker.lane.actions) + position, action, iteration)
            # It began when its sender did.
            start, event = self.board.sent_at[action.id], None
        end = self.mark(worker) if worker.stream is not None else None
        if iteration == self.traced and worker.receives == (worker.lane.to_rank is not None):
            both = (event, end) if event is not None and end is not None else None
            worker.spans.append(Span(action, start, time.perf_counter_ns(), both, cause))
        if not worker.receives and worker.lane.to_rank is not None:
            self.actions.store.ended(action, iteration)
            return
        self.end(worker, action, iteration, end)

    def mark(self, worker: Worker) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=self.traced >= 0)
        event.record(worker.stream)
        return event

    def begin(self, action: Action, iteration: int, event: torch.cuda.Event | None) -> None:
        if event is not None:
            self.starts[action.id, iteration % RING] = event
        self.board.begun[action.id] = iteration + 1
        if action.id in self.begins_matter:
            self.bells.ring()
        with self.condition:
            self.begun[action.id] = iteration + 1
            self.condition.notify_all()

    def end(self, worker: Worker, action: Action, iteration: int, event: torch.cuda.Event | None) -> None:
        if event is not None:
            self.events[action.id, iteration % RING] = event
        if event is None:
            self.board.ended[action.id] = iteration + 1
            if action.id in self.watched:
                self.bells.ring()
        elif action.id in self.watched:
            self.news.put((event, action.id, iteration + 1))
        self.actions.store.ended(action, iteration)
        with self.condition:
            self.ended[action.id] = iteration + 1
            self.condition.notify_all()

    def tell(self) -> None:
        """Says on the board which actions of streams have ended."""
        while self.board.control[LAST] > min(self.board.over) or not self.news.empty():
            self.world.check()
            with contextlib.suppress(queue.Empty):
                event, action, count = self.news.get(timeout=0.1)
                event.synchronize()
                self.board.ended[action] = count
                self.bells.ring()

    def wait_for(self, worker: Worker, action: Action, iteration: int) -> str | None:
        """Waits for everything that an action needs; the cause of the wait that ended last."""
        last = None
        for wait in self.program.waits[action.id]:
            target = iteration + 1 - wait.distance
            if target <= self.first:
                continue
            lane = self.program.lane_of(wait.action)
            owner = lane.rank if wait.at_start else lane.owner
            if self.wait_here(worker, wait, target) if owner == self.world.rank else self.wait_there(owner, wait, target):
                last = wait.cause
        return last

    def wait_here(self, worker: Worker, wait: Wait, target: int) -> bool:
        reached = self.begun if wait.at_start else self.ended
        waited = reached[wait.action] < target
        if waited:
            with self.condition:
                while reached[wait.action] < target:
                    self.condition.wait(0.1)
                    self.world.check()
        event = (self.starts if wait.at_start else self.events).get((wait.action, (target - 1) % RING))
        if event is not None and worker.stream is not None:
            worker.stream.wait_event(event)
        elif event is not None:
            event.synchronize()
        return waited

    def wait_there(self, rank: int, wait: Wait, target: int) -> bool:
        reached = self.board.begun if wait.at_start else self.board.ended
        if reached[wait.action] >= target:
            return False
        self.until(rank, lambda: reached[wait.action] >= target)
        return True

    def cross(self, worker: Worker, number: int, action: Action, iteration: int) -> None:
        """One end of a copy between processes: two slots in turn, each free when the copy before it has arrived."""
        lane, board = worker.lane, self.board
        slot = self.world.host.slot(lane.index, number)
        if worker.receives:
            self.until(lane.rank, lambda: board.sent[action.id] > iteration)
            self.actions.cross(action, iteration, slot, receives=True)
        else:
            past, place = divmod(number - 2, len(lane.actions))
            if past >= self.first:
                self.until(lane.owner, lambda: board.ended[lane.actions[place].id] > past)
            self.actions.cross(action, iteration, slot, receives=False)
        if worker.stream is not None:
            worker.stream.synchronize()
        if worker.receives:
            board.ended[action.id] = iteration + 1
        else:
            board.sent[action.id] = iteration + 1
        self.bells.ring()

    def until(self, rank: int, is_true: Callable[[], bool]) -> None:
        """Sleeps until a process has written something on the board."""
        while True:
            heard = self.bells.heard(rank)
            if is_true():
                return
            self.world.check()
            self.bells.sleep(rank, heard)

    def advance(self, until: int, on_end: Callable[[int], None]) -> int:
        """Runs iterations up to `until`, or fewer if the training shall stop; the number that are over.

        The first process lets iterations begin, and calls `on_end` with each that is over in all processes.
        """
        control, over, rank = self.board.control, self.board.over, self.world.rank
        while over[rank] < min(until, control[LAST]):
            iteration = over[rank]
            if rank == 0:
                self.grant(iteration, until)
            self.wait_over(iteration)
            if control[LAST] <= iteration:
                break
            over[rank] = iteration + 1
            self.bells.ring()
            if rank == 0:
                self.until_others(iteration + 1)
                on_end(iteration)
        return over[rank]

    def grant(self, iteration: int, until: int) -> None:
        """Lets iterations begin: the given one, and those that it may overlap with."""
        control = self.board.control
        if control[STOPPING]:
            control[LAST] = min(control[LAST], max(control[GRANTED], iteration))
            self.bells.ring()
            return
        last = min(iteration + 1 + self.ahead, until, control[LAST])
        for next in range(control[GRANTED], last):
            self.board.scale[next % RING] = self.scale
            self.board.factor[next % RING] = 1.0
        control[GRANTED] = max(control[GRANTED], last)
        self.bells.ring()

    def wait_over(self, iteration: int) -> None:
        """Waits until all lanes of this process have ended an iteration."""
        looked = time.monotonic()
        with self.condition:
            while self.left.get(iteration, 1) > 0:
                self.condition.wait(0.1)
                self.check()
                if time.monotonic() > looked + 1.0:
                    looked = time.monotonic()
                    self.world.find_lost(self.board)
                if self.board.control[LAST] <= iteration:
                    return
            del self.left[iteration]
        for worker in self.workers:
            if worker.stream is not None:
                event = self.events.get((worker.lane.actions[-1].id, iteration % RING))
                if event is not None:
                    event.synchronize()

    def check(self) -> None:
        """Raises what a lane has raised, or that another process has failed."""
        if self.fault is not None:
            raise self.fault
        self.world.check()

    def until_others(self, count: int) -> None:
        """Waits until an iteration is over in all processes."""
        looked, over = time.monotonic(), self.board.over
        for rank in range(self.world.size):
            heard = self.bells.heard(rank)
            while over[rank] < count:
                self.world.check()
                self.bells.sleep(rank, heard)
                heard = self.bells.heard(rank)
                if time.monotonic() > looked + 1.0:
                    looked = time.monotonic()
                    self.world.find_lost(self.board)
