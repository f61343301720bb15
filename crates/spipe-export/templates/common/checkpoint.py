"""Checkpoints of several processes: a folder per step, a file per process, and a manifest that makes them one.

    DIR/step-000120/rank-00000.safetensors      tensors and numbers of process 0
    DIR/step-000120/rank-00001.safetensors
    DIR/step-000120/manifest.json               plan, number of processes, step; size and CRC-32 of each file

A file is written under another name, synchronised with the drive, and renamed. The manifest follows when the files of all processes are
there: a folder without one is no checkpoint, and a process that is killed at any time leaves the last whole checkpoint.
"""

import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import storage
from storage import Fault, Numbers

FORMAT = 1
MANIFEST = "manifest.json"
# Seconds that a shared file system may take to show the file of another node.
PATIENCE = 30.0
STEP = re.compile(r"step-(\d+)")


class Found(NamedTuple):
    """A whole checkpoint: its folder, and its manifest."""

    folder: str
    manifest: dict[str, Any]


class Checkpoints:
    """The checkpoints of one training, seen from one of its processes.

    `barrier` returns when all processes have called it. All processes must see the same folder.
    """

    def __init__(self, folder: str, rank: int, size: int, fingerprint: str, keep: int, barrier: Callable[[], None]) -> None:
        self.folder, self.rank, self.size, self.fingerprint = folder, rank, size, fingerprint
        self.keep, self.barrier = max(keep, 1), barrier
        # The step of the newest checkpoint that this run has read or written.
        self.step: int | None = None
        check_shared(folder, rank, barrier)

    def exists(self) -> bool:
        """Whether there is a whole checkpoint in the folder."""
        return next(self.whole(), None) is not None

    def refuse_used(self) -> None:
        """Refuses a folder with checkpoints, for a run that begins at its first step."""
        found = next(self.whole(), None)
        if found is not None:
            raise Fault(f"`{self.folder}` holds checkpoints of another run: go on from `{found.folder}` with --resume, or name another folder")

    def whole(self) -> Iterator[Found]:
        """The whole checkpoints, the newest first."""
        for _, folder in sorted(steps(self.folder), reverse=True):
            path = os.path.join(folder, MANIFEST)
            if os.path.exists(path):
                yield Found(folder, read_json(path))

    def save(self, step: int, tensors: Mapping[str, Numbers], numbers: dict[str, float]) -> None:
        """Writes a checkpoint after `step` steps. `numbers` are this process's own. A step that is saved already is left as it is."""
        if self.step == step:
            return
        folder = os.path.join(self.folder, f"step-{step:06}")
        try:
            self.write(folder, step, tensors, numbers)
        except OSError as error:
            raise Fault(f"cannot write the checkpoint `{folder}`: {error.strerror}; the ones before are whole") from None
        self.step = step
        if self.rank == 0:
            self.prune(step)

    def write(self, folder: str, step: int, tensors: Mapping[str, Numbers], numbers: dict[str, float]) -> None:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, file_name(self.rank))
        described = {"step": str(step), "numbers": json.dumps(numbers)}
        written = storage.write(f"{path}.tmp", tensors, described)
        os.replace(f"{path}.tmp", path)
        # The first process reads from here what the manifest says of this file.
        write_text(f"{path}.json", json.dumps({"bytes": written.bytes, "header-crc32": written.header_crc32, "crc32": written.crc32}))
        self.barrier()
        if self.rank == 0:
            files = {}
            for rank in range(self.size):
                part = os.path.join(folder, f"{file_name(rank)}.json")
                if not appears(part):
                    raise Fault(f"rank 0 does not see `{part}`, which rank {rank} wrote: all nodes must share the folder")
                files[file_name(rank)] = read_json(part)
            manifest = {"format-version": FORMAT, "plan": self.fingerprint, "ranks": self.size, "step": step, "files": files}
            write_text(os.path.join(folder, MANIFEST), json.dumps(manifest, indent=1) + "\n")
        self.barrier()
        os.remove(f"{path}.json")

    def prune(self, step: int) -> None:
        """Removes all but the newest checkpoints, and folders that were left without a manifest."""
        kept = {found.folder for found in list(self.whole())[: self.keep]}
        for found, folder in steps(self.folder):
            if folder not in kept and found != step:
                # Without its manifest a folder is no checkpoint, however little of it is removed.
                if os.path.exists(os.path.join(folder, MANIFEST)):
                    os.remove(os.path.join(folder, MANIFEST))
                shutil.rmtree(folder, ignore_errors=True)

    def newest(self) -> Found:
        """The newest whole checkpoint."""
        found = next(self.whole(), None)
        if found is None:
            raise Fault(f"`{self.folder}` has no checkpoint to go on from: leave --resume out to start at the first step")
        if found.manifest.get("format-version") != FORMAT:
            raise Fault(f"the checkpoint `{found.folder}` has format {found.manifest.get('format-version')}, this script reads {FORMAT}")
        return found

    def load(self, tensors: Mapping[str, Numbers]) -> tuple[int, dict[str, float]]:
        """Copies the newest checkpoint into `tensors`, one piece after the other; its step, and the numbers of this process."""
        found = self.newest()
        manifest = found.manifest
        if manifest["plan"] != self.fingerprint:
            raise Fault(f"the checkpoint `{found.folder}` is of plan {manifest['plan']}, this one is {self.fingerprint}")
        if manifest["ranks"] != self.size:
            raise Fault(f"the checkpoint `{found.folder}` is of {manifest['ranks']} processes, {self.size} were started")
        path = os.path.join(found.folder, file_name(self.rank))
        numbers = read(path, manifest["files"][file_name(self.rank)], tensors)
        self.step = int(manifest["step"])
        self.barrier()
        return self.step, numbers


def check_shared(folder: str, rank: int, barrier: Callable[[], None]) -> None:
    """Finds folders that differ between nodes: all processes must see a file that the first one writes."""
    token = os.path.join(folder, ".shared")
    try:
        os.makedirs(folder, exist_ok=True)
        os.remove(token)
    except FileNotFoundError:
        # There is none, or another process of this node was faster.
        pass
    except OSError as error:
        raise Fault(f"cannot write checkpoints to `{folder}`: {error.strerror}") from None
    barrier()
    if rank == 0:
        write_text(token, "the folder of the first process\n")
    barrier()
    if not appears(token):
        raise Fault(f"rank {rank} does not see in `{folder}` the file that rank 0 wrote: all nodes must share the folder")


def verify(path: str, expected: dict[str, int]) -> None:
    """Refuses a file that is not the one of the manifest."""
    checksum, size = 0, 0
    try:
        with open(path, "rb") as file:
            while piece := file.read(storage.PIECE):
                checksum, size = zlib.crc32(piece, checksum), size + len(piece)
    except OSError as error:
        raise Fault(f"cannot read `{path}`: {error.strerror}") from None
    if (size, checksum) != (expected["bytes"], expected["crc32"]):
        raise damaged(path)


def damaged(path: str) -> Fault:
    return Fault(f"`{path}` is damaged: its size or checksum is not that of the manifest; remove its folder to go on from the one before")


def read(path: str, expected: dict[str, int], tensors: Mapping[str, Numbers]) -> dict[str, float]:
    """Copies the tensors of a file in the order in which they lie in it; the numbers beside them."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size != expected["bytes"]:
                raise damaged(path)
            head = file.read(8)
            head += file.read(min(int.from_bytes(head, "little"), expected["bytes"]))
            checksum = zlib.crc32(head)
            if checksum != expected["header-crc32"]:
                raise damaged(path)
            header = json.loads(head[8:])
            described = header.pop("__metadata__")
            check_names(path, header, tensors)
            for name in header:
                checksum = storage.fill_from(file, tensors[name], checksum)
    except OSError as error:
        raise Fault(f"cannot read `{path}`: {error.strerror}") from None
    if checksum != expected["crc32"]:
        raise damaged(path)
    return {name: float(number) for name, number in json.loads(described["numbers"]).items()}


def check_names(path: str, header: dict[str, Any], tensors: Mapping[str, Numbers]) -> None:
    """Refuses a file with other tensors than these."""
    if header.keys() != tensors.keys():
        name = min(header.keys() ^ tensors.keys())
        raise Fault(f"`{path}` {'has' if name in header else 'has no'} `{name}`, this plan has {'none' if name in header else 'one'}")
    for name, entry in header.items():
        found, wanted = (entry["dtype"], entry["shape"]), (storage.type_name(tensors[name].dtype), list(tensors[name].shape))
        if found != wanted:
            raise Fault(f"`{name}` in `{path}` is {found[0]} {found[1]}, the plan's model has {wanted[0]} {wanted[1]}")


def file_name(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


def steps(folder: str) -> list[tuple[int, str]]:
    """The folders of checkpoints, whole or not, with their steps."""
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        match = STEP.fullmatch(name)
        if match:
            found.append((int(match[1]), os.path.join(folder, name)))
    return found


def appears(path: str) -> bool:
    """Whether a file is there, or comes within the time that a shared file system may take."""
    end = time.monotonic() + PATIENCE
    while True:
        # Opening the folder makes a network file system look again.
        os.listdir(os.path.dirname(path) or ".")
        if os.path.exists(path):
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.2)


def read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise Fault(f"cannot read `{path}`: {error}") from None
    if not isinstance(found, dict):
        raise Fault(f"`{path}` is no manifest")
    return found


def write_text(path: str, text: str) -> None:
    """Writes a small file, whole or not at all."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(text)
        storage.synchronise(file)
    os.replace(f"{path}.tmp", path)
    synchronise_folder(os.path.dirname(path))


def synchronise_folder(path: str) -> None:
    handle = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
