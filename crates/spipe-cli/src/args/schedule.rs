//! The arguments of `spipe schedule`.

use clap::Args as Group;
use spipe_base::Seconds;

/// A schedule.
#[derive(Debug, Group)]
pub struct Schedule {
    /// The system, such as 1f1b, interleaved-1f1b, zb-2p, gis, spipe or superpipeline; or custom,
    /// with a file
    pub system: String,
    /// The order of a custom schedule: one line per device, such as 0F0,0B0
    pub file: Option<String>,
    /// Devices
    #[arg(long, default_value_t = 4)]
    pub devices: usize,
    /// Microbatches
    #[arg(long, default_value_t = 8)]
    pub microbatches: usize,
    /// Stages on each device (interleaved-1f1b, gis, gis-h, po-h, po-f)
    #[arg(long)]
    pub chunks: Option<usize>,
    /// Microbatches that pass a stage together (interleaved-1f1b, gis, gis-h)
    #[arg(long)]
    pub group: Option<usize>,
    /// Limit of the activations on a device (zb-1p, zb-2p, zb-v, zb-v-2p)
    #[arg(long)]
    pub memory_limit: Option<f64>,
    /// Stages of each device whose activations are offloaded: half of them (po-h) or all (po-f) if
    /// not given
    #[arg(long)]
    pub offload_chunks: Option<usize>,
    /// Time to offload and reload an activation over the time of its forward and backward; 1 if not
    /// given (po-h, po-f)
    #[arg(long)]
    pub offload_ratio: Option<f64>,
    /// Time of the forward of one stage
    #[arg(long, default_value = "1 ms")]
    pub forward: Seconds,
    /// Times of each stage in place of --forward, --backward-input and --backward-weight: CSV with the
    /// header forward,backward-input,backward-weight and a line like 1 ms,1 ms,0.5 ms per stage, in
    /// model order
    #[arg(long, value_name = "FILE")]
    pub stage_times: Option<String>,
    /// Forward stages of each device: 2 if not given (spipe), 1 (mobius)
    #[arg(long)]
    pub forward_chunks: Option<usize>,
    /// Backward stages of each device: three times the forward ones if not given (spipe), as many
    /// (mobius)
    #[arg(long)]
    pub backward_chunks: Option<usize>,
    /// Time of the backward of one stage with its recompute; backward-input plus backward-weight if
    /// not given (spipe, mobius)
    #[arg(long)]
    pub backward: Option<Seconds>,
    /// Repeated layers; 32 if not given (superpipeline)
    #[arg(long)]
    pub units: Option<usize>,
    /// k, the layers on the device; 2 if not given (superpipeline)
    #[arg(long)]
    pub resident: Option<usize>,
    /// k', the layers exchanged at a time; 1 if not given (superpipeline)
    #[arg(long)]
    pub swap: Option<usize>,
    /// Time to compute one layer (superpipeline)
    #[arg(long)]
    pub compute: Option<Seconds>,
    /// Time to copy one layer to the device (superpipeline)
    #[arg(long)]
    pub load: Option<Seconds>,
    /// Time to copy one layer back; 0 where the host keeps its copy (superpipeline)
    #[arg(long, default_value = "0 ms")]
    pub evict: Seconds,
    /// Time of the gradient of a stage's input
    #[arg(long, default_value = "1 ms")]
    pub backward_input: Seconds,
    /// Time of the gradients of a stage's weights
    #[arg(long, default_value = "1 ms")]
    pub backward_weight: Seconds,
    /// Latency from one device to another
    #[arg(long, default_value = "0 ms")]
    pub latency: Seconds,
    /// Share of an activation that is kept until the backward-weight; schedules with split
    /// backwards only
    #[arg(long, default_value_t = 1.0)]
    pub weight_grad_memory: f64,
    /// Additional warm-up forwards (hybrid)
    #[arg(long, default_value_t = 0)]
    pub head_start: usize,
    /// The picture to write: .svg, .png, .html, .txt or .perfetto.json; or .json for the trace
    #[arg(short, long)]
    pub output: Option<String>,
}
