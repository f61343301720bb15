//! One measurement per input line, so that another program can alternate with it: `paired
//! MODEL.toml TEXT THREADS`, then on standard input `triad COUNT`, `adamw f32|bf16 COUNT` or
//! `train`. Each is answered with seconds, several for several steps.

use rayon::prelude::*;
use spipe_cost::{Mode, Workload};
use spipe_exec::{AdamW, Binding, Data, Exchange, Extent, HalfMut, Numbers, Options, TensorState, Tokens, reference};
use spipe_hardware::{DramFile, Hardware, HardwareFile, Peak, SocketFile};
use spipe_model::{Attention, Model, Precision};
use spipe_plan::{Placement, Plan, Stage, System};
use std::{
    collections::BTreeMap,
    error::Error,
    io::{BufRead, Write},
    time::{Duration, Instant},
};

/// Steps of one answer to `train`; the first is a warm-up and is left out.
const STEPS: u32 = 4;
/// Time of repetitions before a measured one, until threads are awake and caches are filled.
const WARM: Duration = Duration::from_millis(50);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, threads] = &arguments[..] else {
        return Err("give a model file, a text and a number of threads".into());
    };
    let threads: usize = threads.parse()?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let training = Training::new(model, text, threads)?;
    let mut arrays = BTreeMap::new();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let times = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["train"] => training.steps()?,
            [what @ ("triad" | "adamw"), ref rest @ ..] => {
                let count: usize = rest.last().ok_or("how many?")?.parse()?;
                let arrays = arrays.entry(count).or_insert_with(|| Arrays::new(count));
                vec![pool.install(|| {
                    warm(|| if what == "triad" { arrays.triad() } else { arrays.adamw(rest[0] == "bf16") })
                })]
            }
            _ => return Err(format!("`{line}` is not known").into()),
        };
        let times: Vec<String> = times.iter().map(|time| format!("{:.9}", time.as_secs_f64())).collect();
        writeln!(out, "{}", times.join(" "))?;
        out.flush()?;
    }
    Ok(())
}

/// The duration of one step after repetitions of a warm-up, whose length is that of the other
/// program's.
fn warm(mut step: impl FnMut() -> Duration) -> Duration {
    let start = Instant::now();
    while start.elapsed() < WARM {
        step();
    }
    step()
}

/// The arrays of an optimizer step.
struct Arrays {
    parameters: Vec<f32>,
    gradients: Vec<f32>,
    narrow: [Vec<burn::tensor::bf16>; 2],
    state: TensorState,
    sum: Vec<f32>,
}

impl Arrays {
    fn new(count: usize) -> Self {
        let narrow = || vec![burn::tensor::bf16::from_f32(0.01); count];
        Self {
            parameters: vec![0.5; count],
            gradients: vec![0.01; count],
            narrow: [narrow(), narrow()],
            state: AdamW::default().state(&Extent::vector(count)),
            sum: vec![0.0; count],
        }
    }

    /// a ← b + s c (STREAM): 12 bytes per number.
    fn triad(&mut self) -> Duration {
        let chunk = self.sum.len().div_ceil(rayon::current_num_threads());
        let start = Instant::now();
        let chunks = self.sum.par_chunks_mut(chunk).zip(self.parameters.par_chunks(chunk));
        chunks.zip(self.gradients.par_chunks(chunk)).for_each(|((sum, first), second)| {
            for ((sum, first), second) in sum.iter_mut().zip(first).zip(second) {
                *sum = first + 3.0 * second;
            }
        });
        start.elapsed()
    }

    fn adamw(&mut self, narrow: bool) -> Duration {
        let [gradients, weights] = &mut self.narrow;
        let exchange = if narrow {
            Exchange { weights: Some(HalfMut::Bf16(weights)), ..Exchange::of(Numbers::Bf16(gradients)) }
        } else {
            Exchange::of(Numbers::F32(&self.gradients))
        };
        let start = Instant::now();
        AdamW::default().step_with(&mut self.parameters, exchange, &mut self.state);
        start.elapsed()
    }
}

/// Plain training on one device.
struct Training {
    plan: Plan,
    program: spipe_schedule::Program,
    data: Data,
    cores: String,
}

impl Training {
    fn new(model: &str, text: &str, threads: usize) -> Result<Self, Box<dyn Error>> {
        let model = Model::from_toml(model, &std::fs::read_to_string(model)?)?;
        let data = Tokens::bytes(&std::fs::read(text)?, model.seq_len())?.into();
        let workload = Workload {
            mode: Mode::Train,
            seq_len: model.seq_len(),
            microbatch: 1,
            microbatches: 8,
            precision: Precision::Fp32,
            attention: Attention::Materialised,
            ..Workload::PLAIN
        };
        let layers = format!("0..{}", model.layers().len() - 1).parse()?;
        let hardware = Hardware::from_file("one socket", machine()?)?;
        let device = hardware.device("cpu0").ok_or("no socket")?;
        let placement = Placement::new(System::Gpipe, [Stage::new(device, layers)]);
        let plan = Plan::new(model, hardware, workload, placement)?;
        let program = spipe_schedule::lower(&plan.context(), plan.placement())?;

        Ok(Self { plan, program, data, cores: format!("0..{}", threads.max(1) - 1) })
    }

    fn steps(&self) -> Result<Vec<Duration>, Box<dyn Error>> {
        let binding: Binding = format!("cpu0=cpu:0@{}", self.cores).parse()?;
        let options = Options { steps: STEPS, ..Options::new(vec![binding]) };
        let mut times = reference(&self.plan, &self.program, &self.data, &options)?.durations;
        times.remove(0);
        Ok(times)
    }
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
