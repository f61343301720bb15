//! Small random machines and models.

use proptest::prelude::*;
use spipe_base::LayerRange;
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Precision};
use spipe_plan::Context;
use std::fmt::Write;

/// A model on a machine under a workload.
#[derive(Debug)]
pub struct Instance {
    pub model: Model,
    pub hardware: Hardware,
    pub cost: CostTable,
}

impl Instance {
    pub fn new(model: &str, hardware: &str, workload: &Workload) -> Self {
        let model = Model::from_toml("model.toml", model).unwrap_or_else(|faults| panic!("{faults}\n{model}"));
        let hardware =
            Hardware::from_toml("hardware.toml", hardware).unwrap_or_else(|faults| panic!("{faults}\n{hardware}"));
        let cost = CostTable::new(&model, &hardware, workload).unwrap();
        Self { model, hardware, cost }
    }

    pub fn context(&self) -> Context<'_> {
        Context { model: &self.model, hardware: &self.hardware, cost: &self.cost }
    }
}

pub fn workload(microbatches: u64, mode: Mode) -> Workload {
    Workload { mode, seq_len: 128, microbatch: 1, microbatches, precision: Precision::Bf16, ..Workload::PLAIN }
}

/// Clips the gradients of one model in three.
macro_rules! perhaps_clipped {
    ($layers:expr, $workload:expr) => {{
        let (workload, first) = ($workload, $layers.first());
        let clips = workload.mode == Mode::Train && first.is_some_and(|first| first.times[0] % 3 == 0);
        Workload { clip_norm: clips.then(|| 1.0.try_into().unwrap()), ..workload }
    }};
}

/// Measured figures of a run of equal layers, in 0.1 ms and MiB.
#[derive(Clone, Debug)]
pub struct LayerText {
    pub count: usize,
    pub times: [u32; 3],
    pub slowdown: u32,
    pub parameters: u64,
    pub boundary: u64,
    pub saved: u64,
    pub workspace: u64,
}

pub fn model_text(layers: &[LayerText]) -> String {
    let mut text =
        "format-version = 1\nkind = \"profiled\"\nname = \"random\"\nmicrobatch = 1\nseq-len = 128\n".to_string();
    for (index, layer) in layers.iter().enumerate() {
        let LayerText { count, times, slowdown, parameters, boundary, saved, workspace } = layer;
        let time = |factor: u32| {
            let [forward, input, weight] = times.map(|time| format!("{:.1} ms", f64::from(time * factor) / 10.0));
            format!("{{ forward = \"{forward}\", backward-input = \"{input}\", backward-weight = \"{weight}\" }}")
        };
        write!(
            text,
            "[[layer]]\nname = \"part{index}\"\ncount = {count}\nparameters = {parameters}\n\
             boundary-activation = \"{boundary} MiB\"\nsaved-activation = \"{} MiB\"\nworkspace = \"{workspace} MiB\"\n\
             time = {{ gpu = {}, cpu = {} }}\n",
            saved + boundary,
            time(1),
            time(*slowdown)
        )
        .unwrap();
    }
    text
}

/// A machine of GPUs below one root, each with its memory in MiB and the rate of its link in GB/s,
/// and of sockets, each with its DRAM in MiB.
#[derive(Clone, Debug)]
pub struct MachineText {
    pub gpus: Vec<(u64, u32)>,
    pub root: u32,
    pub sockets: Vec<u64>,
}

pub fn machine_text(machine: &MachineText) -> String {
    let mut text = "format-version = 1\nname = \"random\"\n".to_string();
    for (index, dram) in machine.sockets.iter().enumerate() {
        write!(
            text,
            "[[socket]]\nname = \"cpu{index}\"\ncores = 16\npeak = {{ f32 = \"1.5 TFLOP/s\" }}\n\
             optimizer-rate = \"2 Gparam/s\"\n\
             dram = {{ name = \"dram{index}\", capacity = \"{dram} MiB\", bandwidth = \"80 GB/s\" }}\nsource = \"test\"\n"
        )
        .unwrap();
    }
    for (index, (memory, _)) in machine.gpus.iter().enumerate() {
        write!(
            text,
            "[[gpu]]\nname = \"gpu{index}\"\nmemory = \"{memory} MiB\"\nmemory-bandwidth = \"1000 GB/s\"\n\
             peak = {{ bf16 = \"165 TFLOP/s\", f32 = \"82 TFLOP/s\" }}\nlaunch-floor = \"6 us\"\nsource = \"test\"\n"
        )
        .unwrap();
    }
    let mut link = |name: String, a: String, b: String, rate: u32| {
        write!(
            text,
            "[[link]]\nname = \"{name}\"\nbetween = [\"{a}\", \"{b}\"]\nup = \"{rate} GB/s\"\ndown = \"{rate} GB/s\"\n\
             latency = \"8 us\"\n"
        )
        .unwrap();
    };
    for (index, (_, rate)) in machine.gpus.iter().enumerate() {
        link(format!("pcie{index}"), format!("gpu{index}"), "root0".into(), *rate);
    }
    for index in 0..machine.sockets.len() {
        link(format!("root0-dram{index}"), "root0".into(), format!("dram{index}"), machine.root);
    }
    text
}

prop_compose! {
    pub fn layer(most: usize)(
        count in 1..=most, times in [1u32..30, 1u32..30, 0u32..30], slowdown in 2u32..12,
        parameters in 0u64..6, boundary in 1u64..12, saved in 0u64..80, workspace in prop_oneof![3 => Just(0), 1 => 1u64..40],
    ) -> LayerText {
        LayerText { count, times, slowdown, parameters: parameters * 1_000_000, boundary, saved, workspace }
    }
}

prop_compose! {
    pub fn machine()(
        gpus in prop::collection::vec((100u64..700, 2u32..30), 1..=2), equal in any::<bool>(),
        root in 2u32..30, dram in 300u64..3000,
    ) -> MachineText {
        let gpus = if equal { vec![gpus[0]; gpus.len()] } else { gpus };
        MachineText { gpus, root, sockets: vec![dram] }
    }
}

prop_compose! {
    /// At most `most` layers on three devices; few layers mostly on a GPU and a socket.
    pub fn instance_of(most: usize)(
        layers in prop::collection::vec(layer(3), 1..=4), machine in machine(), microbatches in 1u64..6,
        infer in prop::bool::weighted(0.1), pair in prop::bool::weighted(0.2),
    ) -> Instance {
        let mut machine = machine;
        if most <= 3 && !pair {
            machine.gpus.truncate(1);
        }
        let mut left = most;
        let mut kept = Vec::new();
        for layer in layers {
            let count = layer.count.min(left);
            left -= count;
            if count > 0 {
                kept.push(LayerText { count, ..layer });
            }
        }
        let mode = if infer { Mode::Infer } else { Mode::Train };
        Instance::new(&model_text(&kept), &machine_text(&machine), &perhaps_clipped!(&kept, workload(microbatches, mode)))
    }
}

prop_compose! {
    /// At most eleven layers in at most four runs, with parameters worth streaming, on a GPU beside
    /// a socket.
    pub fn one_gpu_instance()(
        layers in prop::collection::vec(layer(6), 1..=4), machine in machine(), microbatches in 1u64..9,
        memory in 60u64..500, dram in 1000u64..9000, factor in 1u64..5,
    ) -> Instance {
        let mut left = 11;
        let few = |layer: LayerText| {
            let count = layer.count.min(left);
            left -= count;
            (count > 0).then_some(LayerText { count, parameters: layer.parameters * factor, ..layer })
        };
        let layers: Vec<LayerText> = layers.into_iter().map_while(few).collect();
        let machine = MachineText { gpus: vec![(memory, machine.gpus[0].1)], sockets: vec![dram], ..machine };
        let workload = perhaps_clipped!(&layers, workload(microbatches, Mode::Train));
        Instance::new(&model_text(&layers), &machine_text(&machine), &workload)
    }
}

prop_compose! {
    /// At most eleven layers whose state does not always fit on two or three GPUs, beside a socket
    /// that may update them, with more microbatches than are in flight.
    pub fn crowded_instance()(
        layers in prop::collection::vec(layer(4), 1..=4), machine in machine(), gpus in 2usize..4, microbatches in 4u64..13,
        memory in 100u64..700, factor in 1u64..8,
    ) -> Instance {
        let mut left = 11;
        let few = |layer: LayerText| {
            let count = layer.count.min(left);
            left -= count;
            (count > 0).then_some(LayerText { count, parameters: layer.parameters * factor, ..layer })
        };
        let layers: Vec<LayerText> = layers.into_iter().map_while(few).collect();
        let machine = MachineText { gpus: vec![(memory, machine.gpus[0].1); gpus], sockets: vec![9000], ..machine };
        let workload = perhaps_clipped!(&layers, workload(microbatches, Mode::Train));
        Instance::new(&model_text(&layers), &machine_text(&machine), &workload)
    }
}

prop_compose! {
    /// At most `most` layers of large parameters on a GPU near the first of two or three sockets,
    /// whose DRAM is not always enough. A second GPU is near the second socket.
    pub fn several_socket_instance_of(most: usize, gpus: usize)(
        layers in prop::collection::vec(layer(2), 1..=most), machine in machine(), microbatches in 1u64..4,
        drams in prop::collection::vec(100u64..900, 2..=3), rate in 2u32..40, factor in 1u64..8,
    ) -> Instance {
        let machine = MachineText { gpus: vec![machine.gpus[0]; gpus], sockets: vec![drams[0]], ..machine };
        let first = |left: &mut usize, layer: LayerText| {
            let count = layer.count.min(*left);
            *left -= count;
            (count > 0).then_some(LayerText { count, parameters: layer.parameters * factor, ..layer })
        };
        let kept: Vec<LayerText> = layers.into_iter().scan(most, first).collect();
        let far = |(socket, dram): (usize, &u64)| format!(
            "[[socket]]\nname = \"cpu{socket}\"\ncores = 16\npeak = {{ f32 = \"1.5 TFLOP/s\" }}\n\
             optimizer-rate = \"2 Gparam/s\"\nsource = \"test\"\n\
             dram = {{ name = \"dram{socket}\", capacity = \"{dram} MiB\", bandwidth = \"80 GB/s\" }}\n\
             [[link]]\nname = \"interconnect{socket}\"\nbetween = [\"dram0\", \"dram{socket}\"]\n\
             bandwidth = \"{rate} GB/s\"\nlatency = \"1 us\"\n"
        );
        let far: String = drams.iter().enumerate().skip(1).map(far).collect();
        let root = machine.root;
        let root1 = format!(
            "[[link]]\nname = \"root1-dram1\"\nbetween = [\"root1\", \"dram1\"]\nup = \"{root} GB/s\"\ndown = \"{root} GB/s\"\n\
             latency = \"8 us\"\n"
        );
        let far = if gpus > 1 { far + &root1 } else { far };
        let near = machine_text(&machine).replace("[\"gpu1\", \"root0\"]", "[\"gpu1\", \"root1\"]");
        let workload = perhaps_clipped!(&kept, workload(microbatches, Mode::Train));
        Instance::new(&model_text(&kept), &(near + &far), &workload)
    }
}

prop_compose! {
    /// Instances with frozen layers: some of the first ones, and perhaps some behind them.
    pub fn frozen(on: impl Strategy<Value = Instance>)(
        instance in on, front in 1usize..4, gap in 1usize..3, behind in 0usize..3,
    ) -> Instance {
        let layers = instance.model.layers().len();
        let range = |first: usize, count: usize| {
            let end = (first + count).min(layers);
            LayerRange::new(first.into(), end.checked_sub(1)?.into())
        };
        let front = front.min(layers.saturating_sub(1));
        let ranges: Vec<LayerRange> = [range(0, front), range(front + gap, behind)].into_iter().flatten().collect();
        let model = instance.model.with_frozen(&ranges).unwrap();
        let cost = CostTable::new(&model, &instance.hardware, instance.cost.workload()).unwrap();
        Instance { model, cost, ..instance }
    }
}

prop_compose! {
    /// [`instance_of`] with frozen layers.
    pub fn frozen_instance_of(most: usize)(instance in frozen(instance_of(most))) -> Instance {
        instance
    }
}

prop_compose! {
    /// A transformer of at most `most` blocks whose head uses the table of its embedding, on one
    /// GPU or two beside a socket.
    pub fn tied_instance_of(most: usize)(
        blocks in 1..=most, hidden in 2u64..9, vocabulary in 1u64..60, seq_len in 3u32..6, machine in machine(),
        microbatches in 1u64..6, dram in 500u64..6000, one in any::<bool>(),
    ) -> Instance {
        let (hidden, vocabulary, seq_len) = (hidden * 64, vocabulary * 1000, 1u64 << (seq_len + 6));
        let model = format!(
            "format-version = 1\nkind = \"transformer\"\nname = \"tied\"\nvocabulary = {vocabulary}\nseq-len = {seq_len}\n\
             hidden = {hidden}\nlayers = {blocks}\nheads = 2\nintermediate = {}\ntied = true\n",
            4 * hidden
        );
        let mut machine = MachineText { sockets: vec![dram], ..machine };
        machine.gpus.truncate(if one { 1 } else { 2 });
        let workload = Workload { seq_len, ..workload(microbatches, Mode::Train) };
        Instance::new(&model, &machine_text(&machine), &workload)
    }
}
