"""program.json: the buffers of a plan, the actions of every lane in order, and what each action waits for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from storage import Fault

FORMAT_VERSION = 1
# An action's kind, and the buffers that it reads and writes, say what it moves.
KINDS = {
    "forward", "recompute", "backward", "backward-input", "backward-weight", "copy-activation", "copy-gradient", "copy-checkpoint",
    "weights-in", "gradients-out",
    "offload", "reload", "write-back", "state-in", "state-out", "accumulate", "norm", "optimizer-step", "check", "rollback", "barrier",
}  # fmt: skip
CONTENTS = {
    "parameters", "updated", "gradients", "optimizer-state", "norm", "shared", "shared-gradients", "activation", "gradient", "saved",
    "recomputed", "reloaded", "checkpoint", "undo-log", "workspace",
}  # fmt: skip
GRAPHS = ("saved", "recomputed", "reloaded")
PASSES = {"forward": "F", "recompute": "R", "backward": "B", "backward-input": "I", "backward-weight": "W"}


@dataclass(frozen=True)
class Buffer:
    """A piece of data in a memory. Those with an offset have a fixed place in it."""

    id: int
    content: str
    layers: range
    memory: int
    bytes: int
    offset: int | None
    resident: bool
    # The buffer that it is in the next iteration.
    into: int | None


@dataclass(frozen=True)
class Guard:
    """The check on whose outcome an action depends, and that outcome."""

    check: int
    outcome: str


@dataclass(frozen=True)
class Action:
    """An operation on a lane. It reads and writes versions of buffers."""

    id: int
    kind: str
    lane: int
    stage: int | None
    microbatch: int | None
    layers: range | None
    reads: tuple[tuple[Buffer, int], ...]
    writes: tuple[tuple[Buffer, int], ...]
    guard: Guard | None
    subject: dict[str, Any]

    @property
    def label(self) -> str:
        """Its name in traces: `0F2` for passes, `weights-in s1 layers 2..9` for others."""
        if self.kind in PASSES:
            return f"{self.stage}{PASSES[self.kind]}{self.microbatch}"
        letters = {"stage": "s", "microbatch": "m", "layers": "layers "}
        return " ".join([self.kind, *(f"{letters[key]}{value}" for key, value in self.subject.items())])

    @property
    def buffers(self) -> set[int]:
        return {buffer.id for buffer, _ in (*self.reads, *self.writes)}

    def read(self, *contents: str) -> list[Buffer]:
        return [buffer for buffer, _ in self.reads if buffer.content in contents]

    def written(self, *contents: str) -> list[Buffer]:
        return [buffer for buffer, _ in self.writes if buffer.content in contents]


@dataclass(frozen=True)
class Wait:
    """An action that must have ended, or begun, in this iteration or in the one before."""

    action: int
    distance: int
    at_start: bool
    cause: str


@dataclass(frozen=True)
class Lane:
    """An in-order queue of one process. What it copies to another process, that process receives."""

    index: int
    name: str
    role: str
    rank: int
    to_rank: int | None
    actions: tuple[Action, ...]

    @property
    def owner(self) -> int:
        """The process in which its actions end."""
        return self.rank if self.to_rank is None else self.to_rank


@dataclass(frozen=True)
class Stage:
    """Consecutive layers that one process computes in one piece; the first of them are computed again in the backward."""

    index: int
    rank: int
    layers: range
    recomputed: int


def layers(text: str | None) -> range:
    """The layers of a text such as 2..9."""
    if text is None:
        return range(0)
    first, last = text.split("..")
    return range(int(first), int(last) + 1)


class Program:
    """The actions of one iteration, and the settings of the plan beside them."""

    def __init__(self, path: str) -> None:
        try:
            with open(path) as file:
                self.settings: dict[str, Any] = json.load(file)
        except (OSError, ValueError) as error:
            raise Fault(f"cannot read `{path}`: {error}") from None
        version = self.settings.get("format-version")
        if version != FORMAT_VERSION:
            raise Fault(f"`{path}` has format version {version}, these scripts read {FORMAT_VERSION}: export the plan again")
        refuse("kind of action", KINDS, (action["kind"] for lane in self.settings["lanes"] for action in lane["actions"]))
        refuse("content of a buffer", CONTENTS, (buffer["content"] for buffer in self.settings["buffers"]))
        self.model: dict[str, Any] = self.settings["model"]
        self.microbatches: int = self.settings["batch"]["microbatches"]
        self.without_backward: int = self.settings["without-backward"]
        self.frozen = frozenset(self.settings["frozen"])
        self.ranks: list[dict[str, Any]] = self.settings["ranks"]
        self.memories: list[dict[str, Any]] = self.settings["memories"]
        self.buffers = [
            Buffer(index, it["content"], layers(it.get("layers")), it["memory"], it["bytes"], it.get("offset"), it.get("resident", False), it.get("into"))
            for index, it in enumerate(self.settings["buffers"])
        ]
        # Buffers that leave an iteration and arrive in the next one: the two change places.
        self.partners = {buffer.id: self.buffers[buffer.into] for buffer in self.buffers if buffer.into is not None}
        self.partners |= {buffer.into: buffer for buffer in self.buffers if buffer.into is not None}
        self.arriving = {buffer.into for buffer in self.buffers if buffer.into is not None}
        self.stages = [
            Stage(index, it["rank"], layers(it["layers"]), it["recomputed"]) for index, it in enumerate(self.settings["stages"])
        ]
        self.lanes = [self.lane(index, it) for index, it in enumerate(self.settings["lanes"])]
        self.actions = {action.id: action for lane in self.lanes for action in lane.actions}
        self.waits: dict[int, list[Wait]] = {id: [] for id in self.actions}
        for edge in self.settings["edges"]:
            wait = Wait(edge["from"], edge["distance"], edge.get("at-start", False), edge["cause"])
            self.waits[edge["to"]].append(wait)

    def lane(self, index: int, it: dict[str, Any]) -> Lane:
        actions = tuple(self.action(index, action) for action in it["actions"])
        return Lane(index, it["name"], it["role"], it["rank"], it.get("to-rank"), actions)

    def action(self, lane: int, it: dict[str, Any]) -> Action:
        subject = it["subject"]
        named = layers(subject["layers"]) if "layers" in subject else None
        reads, writes = (tuple((self.buffers[id], version) for id, version in it.get(key, [])) for key in ("reads", "writes"))
        guard = Guard(*it["guard"]) if "guard" in it else None
        return Action(it["id"], it["kind"], lane, subject.get("stage"), subject.get("microbatch"), named, reads, writes, guard, subject)

    def lane_of(self, action: int) -> Lane:
        return self.lanes[self.actions[action].lane]

    def checked(self) -> set[int]:
        """The actions that know the outcome of the check of their iteration: it ends before they start."""
        checks = {id for id, action in self.actions.items() if action.kind == "check"}
        after = {id for id, waits in self.waits.items() if any(wait.action in checks and wait.distance == 0 for wait in waits)}
        return after | {id for id, action in self.actions.items() if action.guard is not None}


def refuse(what: str, known: set[str], found: Iterable[str]) -> None:
    """Refuses words that this version does not know: a program is run whole or not at all."""
    unknown = sorted(set(found) - known)
    if unknown:
        raise Fault(f"program.json has the {what} `{unknown[0]}`, which these scripts do not know: export the plan again")
