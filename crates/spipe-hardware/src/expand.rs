//! Tables that stand for several equal things, written out: `gpu{0..3}` is `gpu0`, `gpu1`, `gpu2`, `gpu3`, and `root{0..6/2}` is
//! `root0`, `root2`, `root4`, `root6`.

use crate::{GpuFile, HardwareFile, LinkFile, NodeFile, NvmeFile, SocketFile, report::Report};

/// More than any machine has of one thing; keeps a slip of the finger from filling the memory.
const MOST: usize = 4096;

/// A thing with the path of the table it comes from, such as `gpu.0`.
pub(crate) struct Placed<T> {
    pub path: String,
    pub item: T,
}

/// All the things of a machine, each with its own name.
pub(crate) struct Parts {
    pub sockets: Vec<Placed<SocketFile>>,
    pub gpus: Vec<Placed<GpuFile>>,
    pub nvmes: Vec<Placed<NvmeFile>>,
    pub nodes: Vec<Placed<NodeFile>>,
    pub links: Vec<Placed<LinkFile>>,
}

impl Parts {
    pub fn new(file: &HardwareFile, report: &mut Report<'_>) -> Self {
        let node = |node: &mut NodeFile, change: &mut Change<'_>| change(&mut node.name);
        let mut nodes = expand("root-complex", &file.root_complex, node, report);
        nodes.extend(expand("switch", &file.switch, node, report));
        nodes.extend(expand("nic", &file.nic, node, report));
        Self {
            sockets: expand(
                "socket",
                &file.socket,
                |socket, change| {
                    change(&mut socket.name);
                    change(&mut socket.dram.name);
                },
                report,
            ),
            gpus: expand("gpu", &file.gpu, |gpu, change| change(&mut gpu.name), report),
            nvmes: expand("nvme", &file.nvme, |nvme, change| change(&mut nvme.name), report),
            nodes,
            links: expand(
                "link",
                &file.link,
                |link, change| {
                    change(&mut link.name);
                    link.between.iter_mut().for_each(change);
                },
                report,
            ),
        }
    }
}

type Change<'a> = dyn FnMut(&mut String) + 'a;

fn expand<T: Clone>(
    key: &str,
    items: &[T],
    names: impl Fn(&mut T, &mut Change<'_>),
    report: &mut Report<'_>,
) -> Vec<Placed<T>> {
    let mut placed = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{key}.{index}");
        let mut item = item.clone();
        let mut ranges: Vec<Ranged> = Vec::new();
        names(&mut item, &mut |name| match Ranged::parse(name) {
            Ok(range) => ranges.extend(range),
            Err(message) => report.error(&path, message),
        });
        let count = ranges.iter().map(Ranged::len).min().unwrap_or(1);
        if let Some(longer) = ranges.iter().find(|range| range.len() != count) {
            report.error(
                &path,
                format!("`{}` counts {}, another range of this table {count}", longer.text, longer.len()),
            );
        }
        for at in 0..count {
            let mut copy = item.clone();
            names(&mut copy, &mut |name| {
                if let Ok(Some(range)) = Ranged::parse(name) {
                    *name = range.name(at);
                }
            });
            placed.push(Placed { path: path.clone(), item: copy });
        }
    }
    placed
}

/// A name with a range in it.
#[derive(Debug, PartialEq)]
struct Ranged {
    text: String,
    before: String,
    after: String,
    first: usize,
    last: usize,
    step: usize,
}

impl Ranged {
    fn parse(text: &str) -> Result<Option<Self>, String> {
        if !text.contains(['{', '}']) {
            return Ok(None);
        }
        let parts = || {
            let (before, rest) = text.split_once('{')?;
            let (range, after) = rest.split_once('}')?;
            let (range, step) = range.split_once('/').unwrap_or((range, "1"));
            let (first, last) = range.split_once("..")?;
            let number = |digits: &str| digits.parse::<usize>().ok();
            let [first, last, step] = [number(first)?, number(last)?, number(step)?];
            let ranged = Self { text: text.into(), before: before.into(), after: after.into(), first, last, step };
            let sound = first <= last && step > 0 && ranged.len() <= MOST && !after.contains(['{', '}']);
            sound.then_some(ranged)
        };
        parts().map(Some).ok_or_else(|| {
            format!("`{text}` has no sound range (write one like `gpu{{0..3}}`, or `gpu{{0..6/2}}` for every second)")
        })
    }

    fn len(&self) -> usize {
        (self.last - self.first) / self.step.max(1) + 1
    }

    fn name(&self, at: usize) -> String {
        format!("{}{}{}", self.before, self.first + at * self.step, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_include_both_ends_and_step() {
        let all = |text: &str| {
            let range = Ranged::parse(text).unwrap().unwrap();
            (0..range.len()).map(|at| range.name(at)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(all("gpu{0..3}"), "gpu0 gpu1 gpu2 gpu3");
        assert_eq!(all("n{1..9/4}-nic"), "n1-nic n5-nic n9-nic");
        assert_eq!(Ranged::parse("gpu0"), Ok(None));
        for bad in ["gpu{3..0}", "gpu{0..3", "gpu{}", "gpu{0..4/0}", "gpu{a..b}", "gpu{0..9999999}", "a{0..1}{0..1}"] {
            assert!(Ranged::parse(bad).is_err(), "{bad}");
        }
    }
}
