"""The processes of a plan: one for each device that computes, the memory that all of them share, and the board on which each
says how far it is."""

from __future__ import annotations

import mmap
import os
import signal
import time
from types import FrameType

import torch
import torch.distributed as dist

from bell import Bells
from memory import Host
from place import NODES, cores_of_socket, join, place
from program import Program
from storage import Fault

OLDEST = (2, 8)
# Iterations whose numbers are on the board at the same time: no process is as far ahead of another one.
RING = 4
# Seconds after which the next process would say a fault that all have found.
TURN = 0.1
# Words of the board that are not of an action.
ABORTED, STOPPING, GRANTED, LAST = range(4)


class Stopped(Exception):
    """Another process, or another lane, has failed: this one has nothing to say about it."""


class Board:
    """Numbers in shared memory. Each is written by one process only, and read by all."""

    def __init__(self, program: Program, size: int, shared: mmap.mmap, start: int) -> None:
        words, count = memoryview(shared)[start:].cast("q"), max(program.actions, default=0) + 1
        self.control, words = words[:8], words[8:]
        self.processes, words = words[:size], words[size:]
        # By process, the iterations that are over, and the optimizer steps that were undone.
        self.over, words = words[:size], words[size:]
        self.undone, words = words[:size], words[size:]
        # By action, the iterations in which it has begun, has put its data into a slot (and when it began that), and has ended.
        self.begun, words = words[:count], words[count:]
        self.sent, words = words[:count], words[count:]
        self.sent_at, words = words[:count], words[count:]
        self.ended, words = words[:count], words[count:]
        numbers = words.cast("B").cast("d")
        self.loss, self.scale, self.norm, self.factor = (numbers[RING * index : RING * (index + 1)] for index in range(4))
        # By buffer, a norm's sum of squares, or that of the gradients of a state's last step.
        self.squares = numbers[4 * RING : 4 * RING + len(program.buffers)]

    @staticmethod
    def bytes(program: Program, size: int) -> int:
        return 8 * (8 + 3 * size + 4 * (max(program.actions, default=0) + 1) + 4 * RING + len(program.buffers))


class World:
    """This process among the others, its device, and the host memory."""

    # The world of this process, once it shares the board: who fails says so there.
    current: World | None = None

    def __init__(self, program: Program, only_cpu: bool) -> None:
        version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
        if version < OLDEST:
            raise Fault(f"PyTorch {torch.__version__} is too old: these scripts want {OLDEST[0]}.{OLDEST[1]}")
        self.program, self.rank, self.size = program, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if self.size != len(program.ranks):
            raise Fault(f"the plan has {len(program.ranks)} ranks, {self.size} processes were started: see README.md")
        if int(os.environ.get("LOCAL_WORLD_SIZE", str(self.size))) != self.size:
            raise Fault("the processes of this plan share the memory of one machine: start all of them on one node")
        join("gloo")
        self.share()
        World.current = self
        self.device = place(program.settings, only_cpu)
        self.touch()
        self.barrier()
        if self.device.type == "cuda":
            self.host.pin()
        signal.signal(signal.SIGTERM, self.stop)

    def share(self) -> None:
        """Maps one memory into all processes. It has no name, and ends with the last of them."""
        host = Host(self.program)
        boards = [host.reserve(Board.bytes(self.program, self.size)) for _ in range(2)]
        bells = host.reserve(Bells.bytes(self.size))
        place = torch.zeros(2, dtype=torch.int64)
        if self.rank == 0:
            self.file = os.memfd_create("spipe")
            os.ftruncate(self.file, host.bytes)
            place[0], place[1] = os.getpid(), self.file
        dist.broadcast(place, 0)
        if self.rank > 0:
            self.file = os.open(f"/proc/{int(place[0])}/fd/{int(place[1])}", os.O_RDWR)
        shared = host.map(self.file)
        self.host, self.bells = host, Bells(shared, bells, self.size, self.rank)
        # That of training, on which failures are, and that of evaluations.
        self.board, self.evaluation = (Board(self.program, self.size, shared, start) for start in boards)
        self.board.processes[self.rank] = os.getpid()

    def touch(self) -> None:
        """Gives pages to the host memory: each part by a process on its socket, or by the first one."""
        near = [rank["socket"] for rank in self.program.ranks]
        for index, start in self.host.starts.items():
            memory = self.program.memories[index]
            socket = memory["socket"]
            if memory["bytes"] and self.rank == (near.index(socket) if socket in near else 0):
                here = os.sched_getaffinity(0)
                there = cores_of_socket(socket, self.program.ranks[self.rank]["sockets"], NODES) if socket is not None else set()
                os.sched_setaffinity(0, there & here or here)
                self.host.touch(start, memory["bytes"])
                os.sched_setaffinity(0, here)

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        """Lets all processes end after the iterations that have begun, with a checkpoint."""
        self.board.control[STOPPING] = 1

    def abort(self) -> bool:
        """Ends all processes; whether this one is the first to want it."""
        # A fault that all processes find is the first one's to say.
        time.sleep(TURN * self.rank)
        first = self.board.control[ABORTED] == 0
        self.board.control[ABORTED] = 1
        return first

    def check(self) -> None:
        """Raises `Stopped` if another process or lane has failed."""
        if self.board.control[ABORTED]:
            raise Stopped

    def find_lost(self, board: Board) -> None:
        """Raises a fault if another process has ended without a word."""
        for rank, process in enumerate(self.board.processes):
            if process and not is_alive(process) and board.over[rank] < board.control[LAST]:
                raise Fault(f"rank {rank} was killed: the newest checkpoint is whole")

    def barrier(self) -> None:
        dist.barrier()


def is_alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
