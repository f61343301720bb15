//! Expansion of tables that stand for several equal items: `gpu{0..3}` is `gpu0`, `gpu1`, `gpu2`,
//! `gpu3`, and `root{0..6/2}` is `root0`, `root2`, `root4`, `root6`.

use crate::{CopyFile, GpuFile, HardwareFile, LinkFile, NodeFile, NvmeFile, SocketFile, report::Report};

/// The longest range: more items than any machine has, so that a typing error cannot fill the
/// memory.
pub(crate) const MOST: usize = 4096;

/// An item with the path of its table, such as `gpu.0`.
pub(crate) struct Placed<T> {
    pub path: String,
    pub item: T,
}

/// All items of a machine, each with its own name.
#[derive(Default)]
pub(crate) struct Parts {
    pub sockets: Vec<Placed<SocketFile>>,
    pub gpus: Vec<Placed<GpuFile>>,
    pub nvmes: Vec<Placed<NvmeFile>>,
    /// Root complexes and switches.
    pub nodes: Vec<Placed<NodeFile>>,
    pub network_cards: Vec<Placed<NodeFile>>,
    pub links: Vec<Placed<LinkFile>>,
    /// Rates of copies, with every name written out.
    pub copies: Vec<Placed<CopyFile>>,
}

impl Parts {
    /// The items of one computer.
    pub fn of_one(file: &HardwareFile, report: &mut Report<'_>) -> Self {
        let node = |node: &mut NodeFile, change: &mut Change<'_>| change(&mut node.name);
        let mut nodes = expand("root-complex", &file.root_complex, node, report);
        nodes.extend(expand("switch", &file.switch, node, report));
        let network_cards = expand("nic", &file.nic, node, report);
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
            gpus: counted_on(expand("gpu", &file.gpu, |gpu, change| change(&mut gpu.name), report)),
            nvmes: expand("nvme", &file.nvme, |nvme, change| change(&mut nvme.name), report),
            nodes,
            network_cards,
            copies: copies(&file.copy, report),
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

/// GPUs whose numbers count on within each table.
fn counted_on(mut gpus: Vec<Placed<GpuFile>>) -> Vec<Placed<GpuFile>> {
    for at in 1..gpus.len() {
        if gpus[at].path == gpus[at - 1].path
            && let Some(before) = gpus[at - 1].item.index
        {
            gpus[at].item.index = Some(before.saturating_add(1));
        }
    }
    gpus
}

/// The tables of copies: the ranges of a table's names need not be equally long.
fn copies(tables: &[CopyFile], report: &mut Report<'_>) -> Vec<Placed<CopyFile>> {
    let mut written_out = |(index, table): (usize, &CopyFile)| {
        let path = format!("copy.{index}");
        let mut names = Vec::new();
        for (place, name) in table.among.iter().enumerate() {
            match Ranged::parse(name) {
                Ok(Some(range)) => names.extend((0..range.len()).map(|at| range.name(at))),
                Ok(None) => names.push(name.clone()),
                Err(message) => report.error(&format!("{path}.among.{place}"), message),
            }
        }
        Placed { path, item: CopyFile { among: names, ..table.clone() } }
    };
    tables.iter().enumerate().map(&mut written_out).collect()
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
            Err(message) => {
                report.error(&path, message);
                name.clear();
            }
        });
        let count = ranges.iter().map(Ranged::len).min().unwrap_or(1);
        if let Some(longer) = ranges.iter().find(|range| range.len() != count) {
            report.error(
                &path,
                format!("`{}` has {} elements, but another range of this table has {count}", longer.text, longer.len()),
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

/// A name with ranges of equal length.
#[derive(Debug, PartialEq)]
struct Ranged {
    text: String,
    /// Each range with the text before it.
    pieces: Vec<(String, Range)>,
    after: String,
}

/// Every `step`th number from `first` to at most `last`.
#[derive(Debug, PartialEq)]
struct Range {
    first: usize,
    last: usize,
    step: usize,
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let (range, step) = text.split_once('/').unwrap_or((text, "1"));
        let (first, last) = range.split_once("..")?;
        let range = Self { first: first.parse().ok()?, last: last.parse().ok()?, step: step.parse().ok()? };
        (range.first <= range.last && range.step > 0 && range.len() <= MOST).then_some(range)
    }

    fn len(&self) -> usize {
        ((self.last - self.first) / self.step).saturating_add(1)
    }
}

impl Ranged {
    fn parse(text: &str) -> Result<Option<Self>, String> {
        let parts = || {
            let (mut pieces, mut rest) = (Vec::new(), text);
            while let Some((before, tail)) = rest.split_once('{') {
                let (range, tail) = tail.split_once('}')?;
                pieces.push((before.to_string(), Range::parse(range)?));
                rest = tail;
            }
            let even = pieces.iter().all(|(_, range)| range.len() == pieces[0].1.len());
            (even && !rest.contains('}')).then(|| Self { text: text.into(), pieces, after: rest.into() })
        };
        let ranged = parts().ok_or_else(|| {
            format!("`{text}` has an invalid range (write one like `gpu{{0..3}}`, or `gpu{{0..6/2}}` for every second)")
        })?;
        Ok((!ranged.pieces.is_empty()).then_some(ranged))
    }

    fn len(&self) -> usize {
        self.pieces.first().map_or(1, |(_, range)| range.len())
    }

    fn name(&self, at: usize) -> String {
        let numbered = |(before, range): &(String, Range)| format!("{before}{}", range.first + at * range.step);
        self.pieces.iter().map(numbered).chain([self.after.clone()]).collect()
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
        assert_eq!(all("nvlink{0..4/4}-{1..5/4}"), "nvlink0-1 nvlink4-5");
        assert_eq!(Ranged::parse("gpu0"), Ok(None));
        for bad in [
            "gpu{3..0}",
            "gpu{0..3",
            "gpu{}",
            "gpu{0..4/0}",
            "gpu{a..b}",
            "gpu{0..9999999}",
            "a{0..1}b{0..2}",
            "a{0..18446744073709551615}",
        ] {
            assert!(Ranged::parse(bad).is_err(), "{bad}");
        }
    }
}
