"""Tokens from a folder of `datasets` and from a function: the sequences that each step has, and training with them."""

import os
import sys
import tempfile
import unittest

from processes import apart, script
from spipe import TEXT, losses, plan, spipe, tiny

COMMON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../templates/common")
# Yields the tokens of a safetensors file, first as tokens, then as inputs and targets.
FUNCTION = """
from safetensors.torch import load_file

def batches(sequences, seq_len, seed):
    for step, tokens in enumerate(load_file("tokens.safetensors")["tokens"].long()):
        assert tokens.shape == (sequences, seq_len + 1) and seed == 1
        yield tokens if step % 2 == 0 else (tokens[:, :-1], tokens[:, 1:])

def wrong(sequences, seq_len, seed):
    yield [[1, 2, 3]]

def nothing(sequences, seq_len, seed):
    return iter(())
"""


def packed(root):
    """Rows of different lengths are one stream, of which each pass has every sequence once."""
    import torch
    from datasets import Dataset as Rows
    from datasets import DatasetDict

    from sources import IGNORED, Dataset, Shape

    stream = [number * 7 % 101 for number in range(100)]
    cuts = [0, 3, 3, 40, 41, 77, 100]
    data = Rows.from_dict({"input_ids": [stream[first:end] for first, end in zip(cuts, cuts[1:])], "text": ["x"] * 6})
    DatasetDict({"train": data, "test": data}).save_to_disk(os.path.join(root, "packed"))
    path = os.path.join(root, "packed")
    windows = [stream[first : first + 9] for first in range(0, 96, 8)]
    assert len(windows) == 12
    in_order = Dataset(path, Shape(5, 8, 1, True))
    assert in_order.steps() == 3
    tokens, targets = in_order.rows(1, range(5))
    assert tokens.tolist() == windows[5:10] and targets.tolist() == [window[1:] for window in windows[5:10]]
    tokens, targets = in_order.rows(2, [1, 2])
    assert targets[0].tolist() == windows[11][1:] and bool((targets[1] == IGNORED).all())
    drawn = Dataset(path, Shape(4, 8, 1, False))
    first = [row for step in range(3) for row in drawn.rows(step, range(4))[0].tolist()]
    second = [row for step in range(3, 6) for row in drawn.rows(step, range(4))[0].tolist()]
    assert sorted(first) == sorted(second) == sorted(windows) and first != second != windows
    assert torch.equal(Dataset(path, Shape(4, 8, 1, False)).rows(4, [3])[0], drawn.rows(4, [3])[0])
    assert drawn.warnings(4, 101) and not drawn.warnings(3, 101) and not drawn.is_masked
    # A selection keeps its own order.
    data.select([5, 0]).save_to_disk(os.path.join(root, "selected"))
    tokens, _ = Dataset(os.path.join(root, "selected"), Shape(1, 20, 1, True)).rows(0, [0])
    assert tokens[0].tolist() == stream[77:98]


def labelled(root):
    """With labels a row is a sequence: cut or padded, and only its labels count."""
    from datasets import Dataset as Rows

    from sources import Dataset, Shape

    rows = {"input_ids": [[1, 2, 3, 4], list(range(10, 20))], "labels": [[-100, -100, 3, 4], list(range(10, 20))],
            "attention_mask": [[1, 1, 1, 0], [1] * 10]}  # fmt: skip
    Rows.from_dict(rows).save_to_disk(os.path.join(root, "labelled"))
    source = Dataset(os.path.join(root, "labelled"), Shape(2, 5, 1, True))
    tokens, targets = source.rows(0, range(2))
    assert tokens.tolist() == [[1, 2, 3, 4, 0, 0], [10, 11, 12, 13, 14, 15]], tokens
    assert targets.tolist() == [[-100, 3, -100, -100, -100], [11, 12, 13, 14, 15]], targets
    assert source.is_masked and source.steps() == 1


def refused(root):
    """Folders and functions that cannot be read say what is missing."""
    from datasets import Dataset as Rows
    from datasets import DatasetDict

    from sources import Dataset, Function, Shape
    from storage import Fault

    def says(words, kind, path):
        try:
            kind(path, Shape(2, 5, 1, False)).rows(0, [0])
        except Fault as fault:
            assert words in str(fault), (words, fault)
        else:
            raise AssertionError(words)

    texts = Rows.from_dict({"text": ["a"]})
    texts.save_to_disk(os.path.join(root, "texts"))
    says("has no column `input_ids`, but text", Dataset, os.path.join(root, "texts"))
    DatasetDict({"test": texts}).save_to_disk(os.path.join(root, "split"))
    says("has the splits test", Dataset, os.path.join(root, "split"))
    Rows.from_dict({"input_ids": [[1, 2]]}).save_to_disk(os.path.join(root, "short"))
    says("has no sequence of 5 tokens", Dataset, os.path.join(root, "short"))
    os.mkdir(os.path.join(root, "empty"))
    says("is no folder that `datasets` has saved", Dataset, os.path.join(root, "empty"))
    with open(os.path.join(root, "mine.py"), "w") as file:
        file.write(FUNCTION)
    os.chdir(root)
    says("yields (1, 3) for step 0, the plan has (2, 6), or (2, 5) and (2, 5)", Function, "mine:wrong")
    says("`mine:nothing` yields nothing", Function, "mine:nothing")
    says("cannot import `mine:absent`", Function, "mine:absent")
    says("cannot import `absent:batches`", Function, "absent:batches")
    sys.modules["datasets"] = None
    says("`pip install datasets`", Dataset, os.path.join(root, "short"))


class Sources(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def holds(self, check):
        def run():
            sys.path.insert(0, COMMON)
            check(self.root)

        code, text = apart(self.root, run)
        self.assertEqual(code, 0, text)

    def test_rows_are_packed(self):
        self.holds(packed)

    def test_labels_count_alone(self):
        self.holds(labelled)

    def test_what_cannot_be_read_is_refused(self):
        self.holds(refused)

    def test_a_function_trains_as_its_tokens_do(self):
        path = plan(self.root, "1f1b", 2, model=tiny(self.root), batch=4)
        folder = os.path.join(self.root, "export")
        spipe("export", "torch", path, "-o", folder, "--data", TEXT, "--steps", "3")
        with open(os.path.join(folder, "mine.py"), "w") as file:
            file.write(FUNCTION)
        found = []
        for data in ("tokens.safetensors", "mine:batches"):
            codes, texts = script(folder, 2, ["--steps", "5", "--data", data])
            self.assertEqual(codes, [0, 0], texts)
            found.append(losses(texts))
        self.assertEqual(found[0], found[1])


if __name__ == "__main__":
    unittest.main()
