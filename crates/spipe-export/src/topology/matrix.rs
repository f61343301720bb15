//! The matrix that `nvidia-smi topo -m` prints.

use spipe_base::{Diagnostic, Faults, Position};

/// How two devices are connected, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// `X`: the same device.
    Same,
    /// `NV4`: this many NVLinks.
    NvLink(u32),
    /// `PIX`: one PCIe switch.
    Pix,
    /// `PXB`: several PCIe switches.
    Pxb,
    /// `PHB`: a PCIe host bridge, usually the CPU.
    Phb,
    /// `NODE`: host bridges of one NUMA node.
    Node,
    /// `SYS`: the interconnect of NUMA nodes.
    Sys,
}

/// A row of the matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name: `GPU0` or `NIC0`.
    pub name: String,
    /// Its relation to each device, in the order of the columns.
    pub relations: Vec<Relation>,
    /// The NUMA node near it, if the matrix says so.
    pub node: Option<u32>,
}

/// Reads the matrix; `file` is its name in messages.
///
/// # Errors
/// Cells that are no relation, and rows that do not fit the header, each with line and column.
pub fn read(file: &str, text: &str) -> Result<Vec<Row>, Faults> {
    let at = |line: usize, column: usize| Position { file: file.into(), line, column };
    let lines: Vec<(usize, String)> = text.lines().enumerate().map(|(index, line)| (index + 1, plain(line))).collect();
    let header = lines.iter().position(|(_, line)| line.split('\t').any(|cell| cell.trim() == "GPU0"));
    let Some(header) = header else {
        let fault = Diagnostic::error("no line has the names of GPUs, such as `GPU0`").at(at(1, 1));
        return Err(fault.hint("give the output of `nvidia-smi topo -m`").into());
    };
    let cells: Vec<&str> = lines[header].1.split('\t').map(str::trim).collect();
    let names: Vec<&str> = cells.iter().copied().filter(|cell| is_device(cell)).collect();
    let numa = cells.iter().position(|cell| *cell == "NUMA Affinity");
    let mut faults = Faults::new();
    let mut rows = Vec::new();
    for (number, line) in lines[header + 1..].iter().take_while(|(_, line)| !line.trim().starts_with("Legend")) {
        let cells: Vec<&str> = line.split('\t').collect();
        let name = cells[0].trim();
        if name.is_empty() {
            continue;
        }
        if !is_device(name) || cells.len() <= names.len() {
            let message = format!("`{name}` has {} cells, the header names {} devices", cells.len() - 1, names.len());
            faults.push(Diagnostic::error(message).at(at(*number, 1)));
            continue;
        }
        let mut relations = Vec::new();
        let mut column = cells[0].chars().count() + 2;
        for cell in &cells[1..=names.len()] {
            match relation(cell.trim()) {
                Some(relation) => relations.push(relation),
                None => faults.push(
                    Diagnostic::error(format!("`{}` is no connection", cell.trim()))
                        .at(at(*number, column))
                        .hint("known are X, NV#, PIX, PXB, PHB, NODE and SYS"),
                ),
            }
            column += cell.chars().count() + 1;
        }
        // Ranges such as `0-1` begin with the nearest node.
        let node = numa.and_then(|place| cells.get(place)?.trim().split(['-', ',']).next()?.parse().ok());
        rows.push(Row { name: name.into(), relations, node });
    }
    for name in names.iter().filter(|name| !rows.iter().any(|row| row.name == **name)) {
        faults.push(Diagnostic::error(format!("the row of `{name}` is missing")).at(at(lines[header].0, 1)));
    }
    faults.or(rows)
}

/// Whether a cell names a device of the matrix.
fn is_device(cell: &str) -> bool {
    ["GPU", "NIC", "mlx"]
        .iter()
        .any(|start| cell.strip_prefix(start).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())))
}

fn relation(cell: &str) -> Option<Relation> {
    Some(match cell {
        "X" => Relation::Same,
        "PIX" => Relation::Pix,
        "PXB" => Relation::Pxb,
        "PHB" => Relation::Phb,
        "NODE" => Relation::Node,
        "SYS" => Relation::Sys,
        other => Relation::NvLink(other.strip_prefix("NV")?.parse().ok()?),
    })
}

/// A line without the escapes with which the header is underlined.
fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // Until the letter that ends the escape.
            let _ = chars.find(char::is_ascii_alphabetic);
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_relations_and_nodes() {
        let text = "\t\u{1b}[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m\nGPU0\t X \tNV4\tPXB\t0-31\t0\t\tN/A\n\
                    GPU1\tNV4\t X \tSYS\t32-63\t1\t\tN/A\nNIC0\tPXB\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n";
        let rows = read("topo.txt", text).unwrap();
        assert_eq!(rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["GPU0", "GPU1", "NIC0"]);
        assert_eq!(rows[0].relations, [Relation::Same, Relation::NvLink(4), Relation::Pxb]);
        assert_eq!((rows[1].node, rows[2].node), (Some(1), None));
    }

    #[test]
    fn faults_have_line_and_column() {
        let said = read("topo.txt", "\tGPU0\tGPU1\nGPU0\t X \tPIZ\nGPU1\tPIX\t X \n").unwrap_err().to_string();
        assert!(said.contains("`PIZ` is no connection\n  --> topo.txt:2:10"), "{said}");
        let said = read("topo.txt", "\tGPU0\tGPU1\nGPU0\t X \tPIX\n").unwrap_err().to_string();
        assert!(said.contains("the row of `GPU1` is missing"), "{said}");
        let said = read("topo.txt", "hello\n").unwrap_err().to_string();
        assert!(said.contains("--> topo.txt:1:1"), "{said}");
    }
}
