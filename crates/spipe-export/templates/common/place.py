"""The device of each process, and the part of its computer where it runs."""

import glob
import os
from typing import Any

import torch
import torch.distributed as dist

from storage import Fault

NODES = "/sys/devices/system/node"


def place(settings: dict[str, Any], only_cpu: bool, any_size: bool = False) -> torch.device:
    """The device of this process; the process is bound to the socket of the plan.

    With `any_size`, other numbers of processes than the plan's may run, on the GPUs in the order of the processes.
    """
    ranks = settings["ranks"]
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size != len(ranks) and not any_size:
        raise Fault(f"the plan has {len(ranks)} ranks, {size} processes were started: see README.md")
    planned = ranks[rank] if size == len(ranks) else None
    is_gpu = (planned or ranks[0])["kind"] == "gpu" and not only_cpu
    if is_gpu and not torch.cuda.is_available():
        name = planned["device"] if planned else "a GPU"
        raise Fault(f"rank {rank} is `{name}` in the plan, but PyTorch finds no GPU; --cpu uses cores")
    if planned is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if is_gpu else torch.device("cpu")
    else:
        check_node(rank, planned)
        device = torch.device("cpu")
        if is_gpu:
            own = [other["gpu"] for other in ranks if other["node"] == planned["node"] and other["kind"] == "gpu"]
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            device = torch.device("cuda", gpu_number(rank, planned, own, visible, torch.cuda.device_count()))
        if is_gpu or planned["kind"] == "cpu":
            bind(planned)
            torch.set_num_threads(max(min(planned["threads"], len(os.sched_getaffinity(0))), 1))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def check_node(rank: int, planned: dict[str, Any]) -> None:
    """Refuses a process on another computer than the plan's. torchrun numbers the computers."""
    group = os.environ.get("GROUP_RANK")
    if group is not None and int(group) != planned["node"]:
        raise Fault(f"rank {rank} is `{planned['device']}` of computer {planned['node']} in the plan, and runs on computer {group}: "
                    "start the processes as README.md says")


def gpu_number(rank: int, planned: dict[str, Any], own: list[int], visible: str | None, count: int) -> int:
    """The number by which PyTorch knows the plan's GPU of this rank; `own` are the plan's GPUs of its computer.

    With CUDA_VISIBLE_DEVICES, as batch systems set it, the plan's GPUs are found in it by number. Where they are not all in it, and it has
    as many GPUs as the plan, they are taken in order.
    """
    number: int = planned["gpu"]
    if visible is not None:
        listed = [name.strip() for name in visible.split(",")]
        if all(str(gpu) in listed for gpu in own):
            return listed.index(str(number))
        if count == len(own):
            return sorted(own).index(number)
        raise Fault(f"rank {rank} is `{planned['device']}` in the plan, GPU {number} of its computer, and CUDA_VISIBLE_DEVICES is {visible}: "
                    f"list the plan's GPUs ({', '.join(map(str, sorted(own)))}), or as many others")
    if number >= count:
        raise Fault(f"rank {rank} is `{planned['device']}` in the plan, GPU {number} of its computer, and PyTorch finds {count}: "
                    "plan for GPUs that are there, or name as many others in CUDA_VISIBLE_DEVICES")
    return number


def bind(planned: dict[str, Any]) -> None:
    """Runs this process on the cores of the plan's socket; memory that it touches first is then that socket's.

    Nothing happens where the computer has no such node, or its cores are not this process's.
    """
    if planned["socket"] is None:
        return
    own = os.sched_getaffinity(0)
    wanted = cores_of_socket(planned["socket"], planned["sockets"], NODES) & own
    if wanted:
        os.sched_setaffinity(0, wanted)


def cores_of_socket(socket: int, sockets: int, nodes: str) -> set[int]:
    """The cores of a socket: those of its NUMA nodes, of which each socket has the same number, in order."""
    lists = sorted(glob.glob(os.path.join(nodes, "node[0-9]*", "cpulist")), key=lambda path: int(path.split(os.sep)[-2][4:]))
    found = []
    for path in lists:
        try:
            with open(path, encoding="ascii") as file:
                found.append(numbers(file.read()))
        except (OSError, ValueError):
            return set()
    # Nodes without cores are memory alone.
    found = [cores for cores in found if cores]
    if not sockets or len(found) % sockets:
        return set()
    each = len(found) // sockets
    return set().union(*found[socket * each : (socket + 1) * each])


def numbers(text: str) -> set[int]:
    """The numbers of a list such as 0-3,8-11."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def join(backend: str) -> None:
    """Joins the other processes; a process without a launcher is alone."""
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
