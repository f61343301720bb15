"""The lanes of a process, and the times of their actions in the step that is traced."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from program import Action, Lane


@dataclass
class Span:
    """A measured action; on a stream, the events of its start and end."""

    action: Action
    start: int
    end: int
    events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
    waited_for: str | None = None


@dataclass
class Worker:
    """A lane in this process: of a lane between two processes, its sending or its receiving end."""

    lane: Lane
    receives: bool
    stream: torch.cuda.Stream | None
    spans: list[Span] = field(default_factory=list)
