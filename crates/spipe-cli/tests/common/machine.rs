//! A small machine of one socket and emulated accelerators.

use std::fmt::Write as _;

pub struct Machine<'a> {
    /// The arithmetic rate of the socket's core.
    pub peak: &'a str,
    pub accelerators: usize,
    /// Of each accelerator.
    pub memory: &'a str,
    /// Bandwidth between each accelerator and the DRAM.
    pub link: &'a str,
}

impl Default for Machine<'_> {
    fn default() -> Self {
        Self { peak: "50 GFLOP/s", accelerators: 0, memory: "256 MiB", link: "4 GB/s" }
    }
}

impl Machine<'_> {
    /// As a hardware profile says it.
    pub fn text(&self) -> String {
        let Self { peak, accelerators, memory, link } = self;
        let mut text = format!(
            r#"
format-version = 1
name = "test"
[[socket]]
name = "cpu0"
cores = 1
peak = {{ f32 = "{peak}" }}
optimizer-rate = "0.2 Gparam/s"
dram = {{ name = "dram0", capacity = "4 GiB", bandwidth = "10 GB/s" }}
source = "estimate: a test"
"#
        );
        for index in 0..*accelerators {
            write!(
                text,
                r#"
[[gpu]]
name = "gpu{index}"
emulated = true
cores = 1
memory = "{memory}"
memory-bandwidth = "10 GB/s"
peak = {{ f32 = "50 GFLOP/s" }}
source = "estimate: a test"
[[link]]
name = "pcie{index}"
between = ["gpu{index}", "dram0"]
bandwidth = "{link}"
latency = "10 us"
"#
            )
            .unwrap();
        }
        text
    }
}
