"""The axes of the plan's mesh, pipeline x replica x tensor, and the place of this process on each.

Without a mesh the pipeline is the only axis: a process per row of schedule.csv.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

NAMES = ("pipeline", "replica", "tensor")


class Axes:
    """The place of this process: its row, its replica, and its number in the team that shares the layers of the row."""

    def __init__(self, mesh: dict[str, Any] | None, device_type: str) -> None:
        self.rank = dist.get_rank()
        self.device_mesh: DeviceMesh | None = None
        self.ranks: list[list[list[int]]] = mesh["ranks"] if mesh else [[[rank]] for rank in range(dist.get_world_size())]
        self.replicas, self.members = len(self.ranks[0]), len(self.ranks[0][0])
        places = ((row, replica, member) for row, teams in enumerate(self.ranks) for replica, team in enumerate(teams) for member, rank in enumerate(team)
                  if rank == self.rank)
        self.row, self.replica, self.member = next(places)
        self.divides_tokens = bool(mesh and mesh["sequence"] and self.members > 1)
        self.divides_optimizer = bool(mesh and mesh["divides-optimizer"] and self.replicas > 1)
        if mesh:
            self.device_mesh = DeviceMesh(device_type, torch.tensor(self.ranks), mesh_dim_names=NAMES)
        # The processes that share the layers of this one, if there are several.
        self.team = self.device_mesh["tensor"] if self.device_mesh is not None and self.members > 1 else None

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for those of its row: the first member of the first replica's team."""
        return self.replica == 0 and self.member == 0

    @property
    def pipeline(self) -> dist.ProcessGroup | None:
        """The processes with this one's replica and member, in the order of the rows; without a mesh all."""
        return self.device_mesh.get_group("pipeline") if self.device_mesh is not None else None

    @property
    def peers(self) -> dist.ProcessGroup | None:
        """The processes with this one's row and member, in the order of the replicas."""
        return self.device_mesh.get_group("replica") if self.device_mesh is not None else None

    def of_row(self, row: int) -> int:
        """The process of another row with this one's replica and member."""
        return self.ranks[row][self.replica][self.member]

    def across(self, rows: Iterable[int]) -> list[list[int]]:
        """The processes of these rows, for each replica and member in order."""
        rows = list(rows)
        return [[self.ranks[row][replica][member] for row in rows] for replica in range(self.replicas) for member in range(self.members)]

    def total(self, number: float) -> float:
        """The sum of a number over the replicas, which all processes of a row ask for."""
        if self.replicas == 1:
            return number
        summed = torch.tensor(number, dtype=torch.float64, device=self.device_mesh.device_type if self.device_mesh is not None else "cpu")
        dist.all_reduce(summed, group=self.peers)
        return summed.item()
