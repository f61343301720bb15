//! What `spipe schedule` takes.

use clap::Args as Group;
use spipe_base::Seconds;

/// A schedule by itself.
#[derive(Debug, Group)]
pub struct Schedule {
    /// Such as 1f1b, interleaved-1f1b, zb-2p, gis, spipe or superpipeline; or custom, with a file
    pub system: String,
    /// The order of a custom schedule: one line per device, such as 0F0,0B0
    pub file: Option<String>,
    /// Devices
    #[arg(long, default_value_t = 4)]
    pub devices: usize,
    /// Microbatches
    #[arg(long, default_value_t = 8)]
    pub microbatches: usize,
    /// Chunks of the model on each device; each is a stage (interleaved-1f1b, gis, gis-h, po-h, po-f)
    #[arg(long)]
    pub chunks: Option<usize>,
    /// Microbatches that pass a chunk together (gis, gis-h)
    #[arg(long)]
    pub group: Option<usize>,
    /// The most activations that a device may hold (zb-1p, zb-2p, zb-v, zb-v-2p)
    #[arg(long)]
    pub memory_limit: Option<f64>,
    /// Chunks of each device whose activations are offloaded: by default half of them (po-h) or all (po-f)
    #[arg(long)]
    pub offload_chunks: Option<usize>,
    /// Time of an activation's way to the host and back over the time of its forward and backward; 1 if not given
    /// (po-h, po-f)
    #[arg(long)]
    pub offload_ratio: Option<f64>,
    /// Forward of one stage
    #[arg(long, default_value = "1 ms")]
    pub forward: Seconds,
    /// Forward stages of each device: 2 if not given (spipe), 1 (mobius)
    #[arg(long)]
    pub forward_chunks: Option<usize>,
    /// Backward stages of each device: three times as many if not given (spipe), the same (mobius)
    #[arg(long)]
    pub backward_chunks: Option<usize>,
    /// Backward of one stage with its recompute (spipe, mobius)
    #[arg(long)]
    pub backward: Option<Seconds>,
    /// Repeated layers (superpipeline)
    #[arg(long)]
    pub units: Option<usize>,
    /// k, the units on the device (superpipeline)
    #[arg(long)]
    pub resident: Option<usize>,
    /// k', the units exchanged at a time (superpipeline)
    #[arg(long)]
    pub swap: Option<usize>,
    /// Arithmetic of one unit (superpipeline)
    #[arg(long)]
    pub compute: Option<Seconds>,
    /// Its way to the device (superpipeline)
    #[arg(long)]
    pub load: Option<Seconds>,
    /// Its way back; 0 where the host keeps what it has (superpipeline)
    #[arg(long, default_value = "0 ms")]
    pub evict: Seconds,
    /// Gradient of its input
    #[arg(long, default_value = "1 ms")]
    pub backward_input: Seconds,
    /// Gradients of its weights
    #[arg(long, default_value = "1 ms")]
    pub backward_weight: Seconds,
    /// From one device to another
    #[arg(long, default_value = "0 ms")]
    pub latency: Seconds,
    /// Share of an activation that is kept until the backward-weight
    #[arg(long, default_value_t = 1.0)]
    pub weight_grad_memory: f64,
    /// More warm-up forwards (hybrid)
    #[arg(long, default_value_t = 0)]
    pub head_start: usize,
    /// Also draw it: .svg, .png, .html, .txt or .perfetto.json, or .json for the trace
    #[arg(short, long)]
    pub output: Option<String>,
}
