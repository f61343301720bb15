"""Exported execution traces, read back by Chakra's own reader."""

import glob
import os
import tempfile
import unittest

from spipe import machine, plan, spipe


def read(path):
    """The metadata and the nodes of a file, read by mlc-chakra."""
    from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node
    from chakra.src.third_party.utils.protolib import decodeMessage, openFileRd

    with openFileRd(path) as stream:
        metadata, nodes = GlobalMetadata(), []
        assert decodeMessage(stream, metadata)
        while True:
            node = Node()
            if not decodeMessage(stream, node):
                return metadata, nodes
            nodes.append(node)


def attributes(node):
    return {attribute.name: getattr(attribute, attribute.WhichOneof("value")) for attribute in node.attr}


class Chakra(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def exported(self, system, *options, path=None):
        """The nodes of each device, after checks that hold for any plan."""
        path = path or plan(self.root, system, 2, *options)
        folder = os.path.join(self.root, f"{system}-chakra")
        spipe("export", "chakra", path, "-o", folder)
        files = sorted(glob.glob(os.path.join(folder, "*.et")))
        found, messages = [], {}
        for npu, file in enumerate(files):
            self.assertEqual(os.path.basename(file), f"trace.{npu}.et")
            metadata, nodes = read(file)
            self.assertTrue(metadata.version)
            before = set()
            for node in nodes:
                # In this order nodes can run.
                self.assertLessEqual(set(node.ctrl_deps) | set(node.data_deps), before, node.name)
                before.add(node.id)
                facts = attributes(node)
                self.assertIs(facts["is_cpu_op"], False)
                if node.type in (5, 6):
                    own = facts["comm_src"] if node.type == 5 else facts["comm_dst"]
                    self.assertEqual(own, npu)
                    messages.setdefault(facts["comm_tag"], {})[node.type] = (facts["comm_src"], facts["comm_dst"], facts["comm_size"])
            self.assertEqual(len(before), len(nodes))
            found.append(nodes)
        for tag, ends in messages.items():
            self.assertEqual(ends.get(5), ends.get(6), f"message {tag}")
        return found

    def test_a_pipeline_computes_and_sends(self):
        found = self.exported("1f1b")
        self.assertEqual(len(found), 2)
        orders = [[node.name for node in nodes if node.type == 4 and node.name[1:2] in "FB" and node.name[:1].isdigit()] for nodes in found]
        self.assertEqual(orders[0][:4], ["0F0", "0F1", "0B0", "0F2"])
        self.assertEqual(orders[1][:4], ["1F0", "1B0", "1F1", "1B1"])
        for nodes in found:
            sends = [attributes(node) for node in nodes if node.type == 5]
            # Eight microbatches of 32 tokens with 384 numbers of 4 bytes.
            self.assertEqual([facts["comm_size"] for facts in sends], [32 * 384 * 4] * 8)
            for node in nodes:
                if node.type == 4 and node.name in orders[0] + orders[1]:
                    self.assertGreater(attributes(node)["num_ops"], 0)
                    self.assertGreater(node.duration_micros, 0)

    def test_sharded_parameters_are_collectives(self):
        found = self.exported("fsdp")
        kinds = {attributes(node)["comm_type"] for nodes in found for node in nodes if node.type == 7}
        self.assertEqual(kinds, {2, 7})

    def test_streamed_parameters_are_loads(self):
        path = os.path.join(self.root, "streamed.json")
        spipe("plan", "--model", "demo", "--hardware", machine(self.root, 2, "90 MiB"), "--devices", "gpu0,gpu1,cpu0", "--system", "mobius",
              "--precision", "fp32", "--seq-len", 32, "--global-batch", 8, "--microbatch", 1, "--time-limit", "3s", "-o", path)
        found = self.exported("mobius", path=path)
        loads = [attributes(node)["tensor_size"] for nodes in found for node in nodes if node.type == 2]
        self.assertTrue(loads and all(size > 0 for size in loads))
        # Gradients go to the socket that updates the parameters.
        self.assertTrue(any("gradients" in node.name for node in found[0] if node.type == 5))
