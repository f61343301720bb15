"""The tests of pipelines, with every system in 2 processes: `make test-torch-all`."""

import test_parity
from test_parity import SYSTEMS, case


class AllParity(test_parity.Parity):
    """The tests of each push, and the others."""


for system in SYSTEMS:
    setattr(AllParity, f"test_{system}_in_2".replace("-", "_"), case(system, 2))
