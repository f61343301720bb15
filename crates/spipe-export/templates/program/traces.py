"""The measured times of one step: a file per process, which `spipe trace import` reads. Labels are those of the program."""

from __future__ import annotations

import json
import os
from typing import Any

from engine import Engine
from worker import Span, Worker


def write_trace(engine: Engine, durations: list[float], folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    program, world = engine.program, engine.world
    workers = [worker for worker in engine.workers if worker.spans]
    lanes = [{"name": worker.lane.name, "device": worker.lane.name.split(".")[0], "role": worker.lane.role} for worker in workers]
    document = {
        "traceEvents": [event(engine, worker, span) for worker in workers for span in worker.spans],
        "spipe": {
            "rank": world.rank,
            "device": program.ranks[world.rank]["device"],
            "plan": program.settings["fingerprint"],
            "name": program.settings["name"],
            "iterations-ms": durations,
            "traced": engine.traced - engine.first,
            "lanes": lanes,
        },
    }
    path = os.path.join(folder, f"rank{world.rank}.json")
    with open(f"{path}.tmp", "w") as file:
        json.dump(document, file)
    os.replace(f"{path}.tmp", path)


def event(engine: Engine, worker: Worker, span: Span) -> dict[str, Any]:
    """A span as a complete event of a Chrome trace, in microseconds."""
    start, end = span.start / 1e3, span.end / 1e3
    if span.events is not None and engine.zero is not None:
        zero, at = engine.zero
        start, end = (at / 1e3 + 1e3 * zero.elapsed_time(event) for event in span.events)
    arguments: dict[str, Any] = {"action": span.action.id, "kind": span.action.kind, "subject": span.action.subject}
    if span.waited_for is not None:
        arguments["waited-for"] = span.waited_for
    if worker.lane.role in ("h2d", "d2h", "channel", "nvme-in", "nvme-out"):
        arguments["bytes"] = sum(buffer.bytes for buffer, _ in span.action.writes)
    return {"ph": "X", "cat": "spipe", "name": span.action.label, "pid": engine.world.rank, "tid": worker.lane.name,
            "ts": start, "dur": end - start, "args": arguments}  # fmt: skip
