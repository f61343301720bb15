//! What the network runs on: devices, memories, NUMA nodes, links, routes.
