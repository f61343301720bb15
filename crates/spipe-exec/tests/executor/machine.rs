//! Small models, machines and plans.

use spipe_base::{DeviceId, LayerRange};
use spipe_cost::{Mode, Workload};
use spipe_exec::{Backend, Binding, Data, Options, Tokens};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model, Precision};
use spipe_plan::{Knob, Placement, Plan, Stage, System};
use spipe_schedule::{Program, lower};

/// Three small blocks in the manner of Llama, with grouped queries.
pub const LLAMA: &str = r#"
format-version = 1
kind = "transformer"
name = "small"
vocabulary = 256
seq-len = 16
hidden = 32
layers = 3
heads = 4
kv-heads = 2
intermediate = 48
"#;

/// Two small blocks in the manner of GPT-2.
pub const GPT: &str = r#"
format-version = 1
kind = "transformer"
name = "small-gpt"
vocabulary = 256
seq-len = 16
hidden = 32
layers = 2
heads = 4
intermediate = 64
norm = "layer-norm"
mlp = "gelu"
positions = "learned"
places = 16
qkv-bias = true
output-bias = true
mlp-bias = true
"#;

/// Two small blocks over patches of images.
pub const VIT: &str = r#"
format-version = 1
kind = "vit"
name = "small-vit"
image = 8
patch = 4
hidden = 32
layers = 2
heads = 4
intermediate = 64
classes = 4
"#;

/// Two levels with attention in the lower one; 13 layers, whose skip connections cross every cut
/// between 2 and 10.
pub const UNET: &str = r#"
format-version = 1
kind = "unet"
name = "small-unet"
latent = 7
channels = 2
widths = [8, 16]
blocks-per-level = 1
depths = [0, 1]
heads = [2, 4]
text-width = 6
text-tokens = 3
norm-groups = 4
"#;

/// Two emulated accelerators and a socket. `memory` is that of each accelerator.
pub fn machine(memory: &str, link: &str) -> String {
    machine_with(2, memory, link)
}

/// A number of emulated accelerators, a socket, and a drive.
pub fn machine_with(gpus: u32, memory: &str, link: &str) -> String {
    let gpu = |index: u32| {
        format!(
            "[[gpu]]\nname = \"gpu{index}\"\nemulated = true\ncores = 1\nmemory = \"{memory}\"\n\
             memory-bandwidth = \"10 GB/s\"\nsource = \"estimate: a test\"\n\
             peak = {{ f32 = \"50 GFLOP/s\", bf16 = \"50 GFLOP/s\", f16 = \"50 GFLOP/s\" }}\n\
             [[link]]\nname = \"pcie{index}\"\nbetween = [\"gpu{index}\", \"root0\"]\nbandwidth = \"{link}\"\n\
             latency = \"10 us\"\n"
        )
    };
    format!(
        "format-version = 1\nname = \"test\"\n\
         [[socket]]\nname = \"cpu0\"\ncores = 1\npeak = {{ f32 = \"50 GFLOP/s\" }}\noptimizer-rate = \"0.2 Gparam/s\"\n\
         dram = {{ name = \"dram0\", capacity = \"4 GiB\", bandwidth = \"10 GB/s\" }}\nsource = \"estimate: a test\"\n\
         {}[[link]]\nname = \"root\"\nbetween = [\"root0\", \"dram0\"]\nbandwidth = \"20 GB/s\"\n\
         [[nvme]]\nname = \"nvme0\"\ncapacity = \"1 GB\"\nread = \"2 GB/s\"\nwrite = \"1 GB/s\"\n\
         source = \"estimate: a test\"\n[[link]]\nname = \"m2\"\nbetween = [\"nvme0\", \"root0\"]\nbandwidth = \"4 GB/s\"\n",
        (0..gpus).map(gpu).collect::<String>()
    )
}

/// The parameters of a test.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    pub model: &'a str,
    pub system: System,
    pub head_start: u64,
    pub microbatches: u64,
    /// Device, layers, recomputed layers.
    pub stages: &'a [(&'a str, &'a str, usize)],
    pub memory: &'a str,
    pub link: &'a str,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self {
            model: LLAMA,
            system: System::OneForwardOneBackward,
            head_start: 0,
            microbatches: 4,
            stages: &[("gpu0", "0..2", 0), ("cpu0", "3..4", 0)],
            memory: "256 MiB",
            link: "4 GB/s",
        }
    }
}

impl Case<'_> {
    /// The checked plan and its program.
    pub fn build(&self) -> (Plan, Program) {
        let model = Model::from_toml("model.toml", self.model).unwrap_or_else(|faults| panic!("{faults}"));
        let hardware = Hardware::from_toml("machine.toml", &machine(self.memory, self.link))
            .unwrap_or_else(|faults| panic!("{faults}"));
        let device = |name: &str| -> DeviceId { hardware.device(name).expect("the machine has it") };
        let stages = self.stages.iter().map(|(name, layers, recomputed)| {
            Stage::new(device(name), layers.parse::<LayerRange>().expect("a range")).with_recomputed(*recomputed)
        });
        let knobs = &[(Knob::HeadStart, self.head_start)];
        let placement = Placement::new(self.system, stages).with_options(knobs);
        let workload = Workload {
            mode: Mode::Train,
            seq_len: 16,
            microbatch: 2,
            microbatches: self.microbatches,
            precision: Precision::Fp32,
            attention: Attention::Materialised,
            ..Workload::PLAIN
        };
        let plan = Plan::new(model, hardware, workload, placement).unwrap_or_else(|faults| panic!("{faults}"));
        let program = lower(&plan.context(), plan.placement()).unwrap_or_else(|faults| panic!("{faults}"));
        (plan, program)
    }

    /// Every device on one thread of `backend`.
    pub fn options(&self, backend: Backend, steps: u32) -> Options {
        let bind = |(index, (name, ..)): (usize, &(&str, &str, usize))| -> Binding {
            let kind = if name.starts_with("gpu") { "emulated" } else { "cpu" };
            format!("{name}={kind}:{index}:{backend}@0").parse().expect("a binding")
        };
        Options {
            steps,
            seed: 7,
            keep_gradients: true,
            ..Options::new(self.stages.iter().enumerate().map(bind).collect())
        }
    }
}

/// Training data for the model of `plan`: images, or a text with some structure.
pub fn data(plan: &Plan) -> Data {
    Data::synthetic(plan.context().model).unwrap_or_else(text)
}

/// A text with some structure.
pub fn text() -> Data {
    let text = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs. ".repeat(20);
    Tokens::bytes(text.as_bytes(), 16).expect("long enough").into()
}
