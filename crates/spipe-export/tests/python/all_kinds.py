"""Adapters on further bases and in further systems: `make test-torch-all`."""

import test_training_kinds


class AllKinds(test_training_kinds.Kinds):
    """The tests of each push, on other bases, and another system."""

    BASES = ("fp4:single", "int8")

    def test_adapters_of_separate_backward_stages(self):
        self.save_model()
        found, folder = self.adapters("spipe", memory="1 MiB", hosts=["cpu0"])
        self.near(found, self.peft(folder), "spipe")
