"""The tests of interpreted programs on the demo's model, and with every system for every family: `make test-torch-all`."""

import test_program
from streamed import SYSTEMS
from test_program import case, pipeline


class AllPrograms(test_program.Programs):
    """The tests of each push, and the others."""


for system in SYSTEMS:
    for count in (1, 2):
        if (system, count) != ("naive-swap", 2):
            for family in ("demo", "llama", "gpt2"):
                setattr(AllPrograms, f"test_{family}_{system}_in_{count}".replace("-", "_"), case(family, system, count))
for system in ("po-h", "po-f"):
    for count in (2, 4):
        for family in ("llama", "gpt2"):
            setattr(AllPrograms, f"test_{family}_{system}_in_{count}".replace("-", "_"), pipeline(family, system, count))
