//! The devices that a plan leaves without work, and why.

use crate::{Plan, System};
use spipe_base::DeviceId;

/// Devices without work for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    /// The devices, in the machine's order.
    pub devices: Vec<DeviceId>,
    /// The reason, in a clause such as "a stage on them was not faster".
    pub why: String,
}

impl Plan {
    /// The devices without work: GPUs, then sockets.
    pub fn idle(&self) -> Vec<Idle> {
        let hardware = self.context().hardware;
        let (gpus, sockets): (Vec<DeviceId>, Vec<DeviceId>) =
            self.idle_devices().into_iter().partition(|device| hardware.devices()[*device].is_gpu());
        let all = [(gpus, self.without_gpus()), (sockets, self.without_sockets())];
        all.into_iter().filter(|(devices, _)| !devices.is_empty()).map(|(devices, why)| Idle { devices, why }).collect()
    }

    fn without_gpus(&self) -> String {
        let (context, placement) = (self.context(), self.placement());
        let mesh = context.mesh();
        if placement.shards_parameters() {
            format!("{} replicas share the batch", placement.mesh.data())
        } else if !mesh.is_single() {
            let (tensor, stages, data) = (mesh.tensor(), mesh.leads().count(), mesh.data());
            let [times, name] = match mesh.context {
                1 => [String::new(), String::new()],
                context => [format!(" × {context}"), ", context".to_owned()],
            };
            format!("the mesh is {tensor} × {stages} × {data}{times} (tensor, pipeline, data{name})")
        } else if matches!(placement.system, System::GpuOnly | System::Checkpointing | System::CpuOnly) {
            format!("`{}` has no use for them", placement.system)
        } else {
            "no faster plan with a stage on them was found".into()
        }
    }

    fn without_sockets(&self) -> String {
        match self.placement().system {
            System::Hybrid | System::Mixed | System::CpuOnly => "no faster plan with a stage on them was found".into(),
            system => format!("`{system}` computes on GPUs, and here it also steps there"),
        }
    }
}
