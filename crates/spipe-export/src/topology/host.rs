//! The host's NUMA nodes, from `lscpu` and `numactl --hardware`.

use std::collections::BTreeMap;

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNode {
    /// Its physical cores, if known.
    pub cores: Option<u32>,
    /// Its DRAM in MB of 2²⁰ bytes, as `numactl` counts them, if known.
    pub megabytes: Option<u64>,
}

/// The nodes by number; those that nothing says anything about are left out.
pub fn nodes(lscpu: Option<&str>, numactl: Option<&str>) -> BTreeMap<u32, HostNode> {
    let mut nodes: BTreeMap<u32, HostNode> = BTreeMap::new();
    let value = |text: &str, key: &str| -> Option<u32> {
        let line = text.lines().find(|line| line.trim().starts_with(key))?;
        line.split_once(':')?.1.trim().parse().ok()
    };
    if let Some(text) = lscpu {
        let sockets = value(text, "Socket(s):").unwrap_or(1);
        let count = value(text, "NUMA node(s):").unwrap_or(sockets).max(1);
        let cores = value(text, "Core(s) per socket:").map(|cores| (cores * sockets / count).max(1));
        for node in 0..count {
            nodes.entry(node).or_default().cores = cores;
        }
    }
    for line in numactl.into_iter().flat_map(str::lines) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["node", number, "size:", size, "MB"] = words[..]
            && let (Ok(number), Ok(size)) = (number.parse(), size.parse())
        {
            nodes.entry(number).or_default().megabytes = Some(size);
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_and_memory_of_each_node() {
        let lscpu = "CPU(s):               64\nThread(s) per core:   2\nCore(s) per socket:   16\nSocket(s):            2\nNUMA node(s):         2\n";
        let numactl = "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: 128000 MB\nnode 0 free: 9 MB\nnode 1 size: 127000 MB\n";
        let found = nodes(Some(lscpu), Some(numactl));
        assert_eq!(found[&0], HostNode { cores: Some(16), megabytes: Some(128_000) });
        assert_eq!(found[&1].megabytes, Some(127_000));
        assert!(nodes(None, None).is_empty());
    }
}
