//! Tokens per second of a model on one device: `single_device MODEL.toml TEXT SEQUENCES [CORES]`.

use spipe_cost::{Mode, Workload};
use spipe_exec::{Binding, Options, Tokens, run};
use spipe_hardware::{DramFile, Hardware, HardwareFile, Peak, SocketFile};
use spipe_model::{Attention, Model, Precision};
use spipe_plan::{Placement, Plan, Stage, System};
use std::{error::Error, io::Write, ops::ControlFlow};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, sequences, cores @ ..] = &arguments[..] else {
        return Err("give a model file, a text and the sequences of a microbatch".into());
    };
    let model = Model::from_toml(model, &std::fs::read_to_string(model)?)?;
    let data = Tokens::bytes(&std::fs::read(text)?, model.seq_len())?.into();
    let cores = cores.first().map_or("0", String::as_str);
    let workload = Workload {
        mode: Mode::Train,
        seq_len: model.seq_len(),
        microbatch: sequences.parse()?,
        microbatches: 4,
        precision: Precision::Fp32,
        attention: Attention::Materialised,
        ..Workload::PLAIN
    };
    let last = model.layers().len() - 1;
    let layers = format!("0..{last}").parse()?;
    let hardware = Hardware::from_file("one socket", machine()?)?;
    let device = hardware.device("cpu0").ok_or("no socket")?;
    let stages = [Stage::new(device, layers)];
    let placement = Placement::new(System::Gpipe, stages);
    let plan = Plan::new(model, hardware, workload, placement)?;
    let program = spipe_schedule::lower(&plan.context(), plan.placement())?;
    let mut out = std::io::stdout().lock();
    let binding: Binding = format!("cpu0=cpu:0@{cores}").parse()?;
    let options = Options { steps: 5, ..Options::new(vec![binding]) };
    let report = run(&plan, &program, &data, &options, &mut |_| ControlFlow::Continue(()))?;
    let seconds = report.trace.iteration.to_seconds().get();
    let rate = workload.tokens() as f64 / seconds;
    writeln!(out, "on cores {cores}: {rate:.0} tokens/s, losses {:?}", report.losses)?;
    writeln!(out, "  lane overhead: {:.3} %", 100.0 * report.lane_overhead)?;
    for kind in spipe_trace::Metrics::of(&report.trace).kinds {
        writeln!(out, "  {}: {}", kind.0, kind.1)?;
    }
    Ok(())
}

/// A socket of unlimited capacity; its rates are not used.
fn machine() -> Result<HardwareFile, Box<dyn Error>> {
    let dram = DramFile::new("dram0", "1 TiB".parse()?, "10 GB/s".parse()?);
    let mut socket = SocketFile::new("cpu0", 1, "0.1 Gparam/s".parse()?, dram);
    socket.peak = Peak::from([(spipe_base::DataType::F32, spipe_base::Text("50 GFLOP/s".parse()?))]);
    socket.source = Some("estimate: not used".into());
    let mut file = HardwareFile::new("one-socket");
    file.socket.push(socket);
    Ok(file)
}
