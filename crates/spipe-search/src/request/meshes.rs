//! The meshes of a machine's GPUs, by degrees of parallelism.
//!
//! Teams are neighbours in the machine's order. The teams of one stage follow each other, those of the next stage come
//! after them (Megatron-LM's order, Narayanan et al. 2021, arXiv 2104.04473, section 3.4): tensor parallelism, which
//! communicates most, is between the nearest devices, and pipelines, which communicate least, between the farthest. The
//! members of a team that divide sequences are between the two, and replicas that follow each other divide experts.

use super::{
    drives::DriveFor,
    runtimes::{OWN, has_foreign_gpus},
    spelling::Spelling,
};
use crate::error::SearchError;
use spipe_base::{
    DeviceId, Diagnostic,
    readable::{listed, nearest, ranges},
};
use spipe_cost::{CostError, CostTable, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Mesh, Sharding, System, Team, Update, check_mesh};
use std::{cmp::Reverse, collections::BTreeSet};

/// The degrees of parallelism that are asked for; those that are not given are searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Degrees {
    /// The devices that share each layer.
    pub tensor: Option<u64>,
    /// The teams of a replica.
    pub pipeline: Option<u64>,
    /// The replicas.
    pub data: Option<u64>,
    /// The members of a team that divide sequences, each with those that share its matrices.
    pub context: Option<u64>,
    /// The devices with the same layers that divide experts.
    pub expert: Option<u64>,
    /// Whether the members of a team divide activations by tokens, too. Where the tensor degree is searched, they do.
    pub sequence: bool,
    /// The state that is divided among the replicas.
    pub sharding: Option<Sharding>,
}

/// The meshes of a search.
#[derive(Clone, Debug)]
pub struct Meshes {
    /// The meshes to try.
    pub all: Vec<Mesh>,
    /// The systems that run on some of them.
    pub systems: Vec<System>,
    /// Whether plans use all teams.
    pub all_teams: bool,
}

impl Meshes {
    /// The devices as they are, without teams and replicas.
    pub fn single(systems: Vec<System>) -> Self {
        Self { all: vec![Mesh::default()], systems, all_teams: false }
    }

    /// Checks that a request that names drives has a mesh on which plans use them.
    ///
    /// # Errors
    /// All meshes have several replicas, or teams of several devices.
    pub fn check_drives(&self, drives: DriveFor, spelling: Spelling) -> Result<(), SearchError> {
        if drives.is_none() || self.all.iter().any(Mesh::is_single) {
            return Ok(());
        }
        let message = "drives are not planned with several replicas or teams of several devices";
        let own = spelling.value("system", System::ZeroInfinity.name());
        Err(SearchError::request(message, format!("leave the degrees out: {own} divides the batch and uses drives")))
    }

    /// The meshes of a search without degrees: the devices as they are and, if all GPUs are equal and a framework trains
    /// on them, the meshes that use the most of them. Teams are within a computer. Replicas divide the optimizer: they
    /// exchange the same bytes as without, and hold less.
    pub fn open((model, hardware): (&Model, &Hardware), workloads: &[Workload], systems: Vec<System>) -> Self {
        let mut meshes = Self::single(systems);
        let gpus: Vec<DeviceId> = hardware.gpus().collect();
        let row = Mesh { replicas: replicas(&gpus, [1, 1, gpus.len() as u64]), ..Mesh::default() };
        let trains = workloads.iter().any(|workload| workload.mode == Mode::Train);
        if gpus.len() < 2 || !trains || !has_foreign_gpus(hardware) || check_mesh(hardware, &row).is_err() {
            return meshes;
        }
        let computer = |device: DeviceId| hardware.devices()[device].node;
        let is_near = |team: &Team| team.windows(2).all(|pair| computer(pair[0]) == computer(pair[1]));
        // This program's executor has no teams.
        let tensor = (hardware.runtime().name() == OWN).then_some(1);
        let degrees = Degrees { tensor, sharding: Some(Sharding::Optimizer), ..Degrees::default() };
        let all = degrees.holding((model, hardware), workloads, &gpus);
        meshes
            .all
            .extend(all.into_iter().filter(|mesh| !mesh.is_single() && mesh.replicas.iter().flatten().all(is_near)));
        meshes.all_teams = true;
        meshes
    }
}

impl Degrees {
    /// Whether nothing is asked for.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The meshes and systems of these degrees for a search: with sharded parameters the systems that gather them, otherwise
    /// those that run on teams.
    ///
    /// # Errors
    /// The same as for [`Degrees::meshes`], and degrees that do not go together.
    pub fn chosen(
        &self,
        (model, hardware): (&Model, &Hardware),
        workloads: &[Workload],
        (systems, spelling): (&[System], Spelling),
    ) -> Result<Meshes, SearchError> {
        let of = |shards: bool| systems.iter().copied().filter(move |system| system.shards_parameters() == shards);
        if self.is_none() {
            return Ok(Meshes::single(systems.to_vec()));
        }
        if let Some(Sharding::Parameters { .. }) = self.sharding {
            if let Some((name, _)) =
                self.named().into_iter().find(|(_, degree)| degree.is_some_and(|degree| degree > 1))
            {
                let message = format!("sharded parameters are not planned with {}", spelling.setting(name));
                let hint = format!(
                    "leave it out; `option pin shards=N` sets the GPUs of {}",
                    spelling.value("system", "fsdp")
                );
                return Err(SearchError::request(message, hint));
            }
            return Self::with(vec![Mesh::default()], of(true).collect(), (systems, false, spelling));
        }
        let all = self.meshes((model, hardware), workloads, spelling)?;
        let runs = |system: &System| all.iter().any(|mesh| suits(*system, mesh));
        let on_teams = systems.iter().copied().filter(runs).collect();
        Self::with(all, on_teams, (systems, self.pipeline.is_some(), spelling))
    }

    fn with(
        all: Vec<Mesh>,
        systems: Vec<System>,
        (allowed, all_teams, spelling): (&[System], bool, Spelling),
    ) -> Result<Meshes, SearchError> {
        if systems.is_empty() {
            let hint = format!("use {}, or other degrees", spelling.value("system", "auto"));
            let message = match allowed {
                [one] => format!("`{one}` does not run on meshes of these degrees"),
                _ => "none of the allowed systems runs on meshes of these degrees".to_owned(),
            };
            return Err(SearchError::request(message, hint));
        }
        Ok(Meshes { all, systems, all_teams })
    }

    /// The meshes of these degrees on the GPUs of a machine, whose replicas divide the microbatches of some workload. Of
    /// degrees that are searched, those that use most GPUs.
    ///
    /// # Errors
    /// There is none, with the degree that does not divide and the nearest ones that do.
    pub fn meshes(
        &self,
        (model, hardware): (&Model, &Hardware),
        workloads: &[Workload],
        spelling: Spelling,
    ) -> Result<Vec<Mesh>, SearchError> {
        let gpus: Vec<DeviceId> = hardware.gpus().collect();
        if gpus.is_empty() {
            return Err(self.without_gpus(hardware, spelling));
        }
        self.check(gpus.len() as u64, (model, hardware), workloads, spelling)?;
        let fault = |shape| check_mesh(hardware, &self.mesh(&gpus, shape)).err();
        let unlike = |fault: Diagnostic| SearchError::Infeasible(with_like_gpus(fault, (hardware, &gpus), spelling));
        if let (Some(tensor), Some(pipeline), Some(data)) = (self.tensor, self.pipeline, self.data)
            && let Some(fault) = fault([tensor, pipeline, data])
        {
            return Err(unlike(fault));
        }
        let all = self.holding((model, hardware), workloads, &gpus);
        if all.is_empty() {
            let shapes = self.shapes(gpus.len() as u64, model.layers().len() as u64);
            if let Some(fault) = shapes.into_iter().rev().find_map(fault) {
                return Err(unlike(fault));
            }
            let message =
                format!("no mesh of these degrees divides `{}` and its batch on `{}`", model.name(), hardware.name());
            return Err(SearchError::request(message, "leave degrees out, so that they are searched"));
        }
        Ok(all)
    }

    /// The refusal of degrees on a machine without GPUs.
    fn without_gpus(&self, hardware: &Hardware, spelling: Spelling) -> SearchError {
        let names: Vec<&str> = hardware.devices().iter().map(|device| device.name.as_str()).collect();
        let sockets =
            format!("{} {}", listed(&names), if names.len() == 1 { "is a CPU socket" } else { "are CPU sockets" });
        let asked = self.named().into_iter().filter(|(_, degree)| degree.is_some_and(|degree| degree > 1));
        let asked: Vec<&str> = asked.map(|(name, _)| name).collect();
        match asked.iter().find(|name| ["tensor-parallel", "context-parallel"].contains(name)) {
            Some(name) => SearchError::request(
                format!("{sockets}, and a team of sockets has one member"),
                format!("leave {} out; sockets take stages of a pipeline", spelling.setting(name)),
            ),
            None => SearchError::request(
                format!("{sockets}, and replicas are made of GPUs"),
                format!(
                    "leave the degrees out: {} gives each socket a stage",
                    spelling.value("system", System::CpuOnly.name())
                ),
            ),
        }
    }

    /// The meshes of these degrees. Where no degree of contexts is given, and no device of any mesh holds a layer with the
    /// activations of a microbatch, sequences are divided among as few devices as it takes.
    fn holding(&self, (model, hardware): (&Model, &Hardware), workloads: &[Workload], gpus: &[DeviceId]) -> Vec<Mesh> {
        let with = |context| Self { context, ..*self }.dividing((model, hardware), workloads, gpus);
        // Teams of many devices hold most.
        let holds = |all: &Vec<Mesh>| all.iter().rev().any(|mesh| holds_layers((model, hardware), workloads, mesh));
        let all = with(self.context);
        if self.context.is_some() || all.is_empty() || holds(&all) {
            return all;
        }
        let contexts = (1..u64::BITS).map(|power| 1 << power).take_while(|context| *context <= gpus.len() as u64);
        contexts.map(|context| with(Some(context))).find(holds).unwrap_or(all)
    }

    /// The meshes of these degrees that divide the model and the microbatches of some workload, and have like devices at
    /// like places: of all those, the ones that use the most GPUs.
    fn dividing(&self, (model, hardware): (&Model, &Hardware), workloads: &[Workload], gpus: &[DeviceId]) -> Vec<Mesh> {
        let context = self.context.unwrap_or(1);
        let divides = |data: u64| {
            let sequences = Mesh { context, ..Mesh::default() };
            let even = |of: &Workload| of.microbatches.is_multiple_of(data) && sequences.check_sequences(of).is_ok();
            workloads.iter().any(even)
        };
        let mut shapes = self.shapes(gpus.len() as u64 / context, model.layers().len() as u64);
        let divided: BTreeSet<u64> = (1..=gpus.len() as u64).filter(|tensor| model.shard(*tensor).is_ok()).collect();
        shapes.retain(|[tensor, _, data]| divided.contains(tensor) && divides(*data));
        let used = |shape: &[u64; 3]| shape.iter().product::<u64>();
        shapes.sort_by_key(|shape| Reverse(used(shape)));
        for alike in shapes.chunk_by(|one, next| used(one) == used(next)) {
            let meshes = alike.iter().map(|shape| self.mesh(gpus, *shape));
            let meshes = meshes.filter(|mesh| mesh.check_experts(model).is_ok() && check_mesh(hardware, mesh).is_ok());
            let sharded = |mesh: Mesh| {
                let shardings = self.shardings(mesh.holders()).into_iter();
                shardings.map(move |sharding| Mesh { sharding, ..mesh.clone() })
            };
            let all: Vec<Mesh> = meshes.flat_map(sharded).collect();
            if !all.is_empty() {
                return all;
            }
        }
        Vec::new()
    }

    /// The mesh of a shape. Sequences and experts are not divided unless these degrees say so: both add exchanges, and each
    /// degree would double the meshes of a search.
    fn mesh(&self, gpus: &[DeviceId], [tensor, pipeline, data]: [u64; 3]) -> Mesh {
        let (context, expert) = (self.context.unwrap_or(1), self.expert.unwrap_or(1));
        let sequence = tensor > 1 && (self.sequence || self.tensor.is_none());
        let replicas = replicas(gpus, [tensor * context, pipeline, data]);
        Mesh { replicas, sequence, context, expert, ..Mesh::default() }
    }

    /// The degrees under the names of their settings.
    const fn named(&self) -> [(&'static str, Option<u64>); 5] {
        [
            ("tensor-parallel", self.tensor),
            ("pipeline-parallel", self.pipeline),
            ("data-parallel", self.data),
            ("context-parallel", self.context),
            ("expert-parallel", self.expert),
        ]
    }

    /// The degrees (tensor, pipeline, data) that are asked for, on `gpus` GPUs at most and with a layer for each stage.
    fn shapes(&self, gpus: u64, layers: u64) -> Vec<[u64; 3]> {
        let degrees = |given: Option<u64>, most: u64| match given {
            Some(given) => given..=given,
            None => 1..=most.max(1),
        };
        let mut all = Vec::new();
        for tensor in degrees(self.tensor, gpus) {
            for pipeline in degrees(self.pipeline, (gpus / tensor).min(layers)) {
                let left = gpus / tensor.saturating_mul(pipeline).max(1);
                all.extend(degrees(self.data, left).map(|data| [tensor, pipeline, data]));
            }
        }
        all.retain(|shape| shape.iter().product::<u64>() <= gpus);
        all
    }

    /// The shardings to try among `holders` of the same layers: the one asked for, or each of none and the optimizer.
    fn shardings(&self, holders: u64) -> Vec<Sharding> {
        match self.sharding {
            _ if holders == 1 => vec![Sharding::None],
            Some(given) => vec![given],
            None => vec![Sharding::None, Sharding::Optimizer],
        }
    }

    fn check(
        &self,
        gpus: u64,
        (model, hardware): (&Model, &Hardware),
        workloads: &[Workload],
        spelling: Spelling,
    ) -> Result<(), SearchError> {
        let named = self.named();
        if let Some((name, _)) = named.iter().find(|(_, degree)| *degree == Some(0)) {
            return Err(SearchError::request(format!("{} is zero", spelling.setting(name)), "use at least 1"));
        }
        // The devices that divide experts are among the replicas.
        let given = &named[..4];
        let wanted = given.iter().filter_map(|(_, degree)| *degree).fold(1u64, u64::saturating_mul);
        if wanted > gpus {
            let factors: Vec<String> = given.iter().filter_map(|(_, degree)| degree.map(|it| it.to_string())).collect();
            let product = if factors.len() > 1 { format!("{} = ", factors.join(" × ")) } else { String::new() };
            let message = format!("{product}{wanted} GPUs are asked for, but `{}` has {gpus}", hardware.name());
            let computers: BTreeSet<_> = hardware.gpus().map(|gpu| hardware.devices()[gpu].node).collect();
            let more = wanted.div_ceil(gpus / computers.len() as u64);
            let hint = format!(
                "use degrees whose product is {gpus} at most, or {more} such computers ({})",
                spelling.value("nodes", more)
            );
            return Err(SearchError::request(message, hint));
        }
        if let Some(tensor) = self.tensor
            && let Err(layer) = model.shard(tensor)
        {
            let layer = &model.layers()[layer].name;
            let message = format!("layer `{layer}` of `{}` cannot be divided among {tensor} GPUs", model.name());
            let near = nearest(tensor, gpus, |other| model.shard(other).is_ok());
            return Err(SearchError::request(
                message,
                format!("{} of {near} divides its heads and widths", spelling.setting("tensor-parallel")),
            ));
        }
        let layers = model.layers().len() as u64;
        if let Some(pipeline) = self.pipeline.filter(|pipeline| *pipeline > layers) {
            let message = format!("{pipeline} stages are asked for, but `{}` has {layers} layers", model.name());
            return Err(SearchError::request(message, format!("use {layers} at most")));
        }
        let divides = |data: u64| workloads.iter().any(|workload| workload.microbatches.is_multiple_of(data));
        if let Some(data) = self.data.filter(|data| !divides(*data)) {
            let microbatches = workloads.iter().map(|workload| workload.microbatches).max().unwrap_or(0);
            let message = format!("{microbatches} microbatches cannot be divided evenly among {data} replicas");
            let near = nearest(data, gpus, divides);
            return Err(SearchError::request(message, format!("{near} replicas can; or use another batch")));
        }
        self.check_context(gpus, (model, workloads), spelling)?;
        self.check_expert(gpus, model, spelling)
    }

    /// Checks that the tokens of sequences can be divided.
    fn check_context(
        &self,
        gpus: u64,
        (model, workloads): (&Model, &[Workload]),
        spelling: Spelling,
    ) -> Result<(), SearchError> {
        let Some(context) = self.context.filter(|context| *context > 1) else { return Ok(()) };
        if let Err(layer) = model.with_sequences_divided(context) {
            let layer = &model.layers()[layer].name;
            let message = format!("the tokens of layer `{layer}` of `{}` cannot be divided among GPUs", model.name());
            let hint =
                format!("leave {} out: it divides the sequences of decoders", spelling.setting("context-parallel"));
            return Err(SearchError::request(message, hint));
        }
        let divides = |context: u64, workload: &Workload| Mesh { context, ..Mesh::default() }.check_sequences(workload);
        let near = || nearest(context, gpus, |other| workloads.iter().any(|workload| divides(other, workload).is_ok()));
        let faults: Option<Vec<_>> = workloads.iter().map(|workload| divides(context, workload).err()).collect();
        match faults.and_then(|faults| faults.into_iter().next()) {
            None => Ok(()),
            Some(fault @ CostError::NoTraining) => Err(SearchError::request(
                fault.to_string(),
                format!("leave {} out", spelling.setting("context-parallel")),
            )),
            Some(fault) => {
                let hint = format!("{} of {} divides them", spelling.setting("context-parallel"), near());
                Err(SearchError::request(fault.to_string(), hint))
            }
        }
    }

    /// Checks that experts can be divided.
    fn check_expert(&self, gpus: u64, model: &Model, spelling: Spelling) -> Result<(), SearchError> {
        let Some(expert) = self.expert.filter(|expert| *expert > 1) else { return Ok(()) };
        let setting = spelling.setting("expert-parallel");
        if model.experts() == 0 {
            let message = CostError::NoExperts { model: model.name().into(), expert }.to_string();
            return Err(SearchError::request(message, format!("leave {setting} out")));
        }
        let holders = self.data.map(|data| data * self.context.unwrap_or(1));
        let grouped = |expert: u64| holders.is_none_or(|holders| holders.is_multiple_of(expert));
        let divides = |expert: u64| model.with_experts_divided(expert).is_ok() && grouped(expert);
        let near = || format!("{setting} of {} divides them", nearest(expert, gpus, divides));
        match (model.with_experts_divided(expert), holders) {
            (Err(layer), _) => {
                let layer = model.layers()[layer].name.clone();
                Err(SearchError::request(CostError::Experts { layer, expert }.to_string(), near()))
            }
            (Ok(_), Some(holders)) if !grouped(expert) => {
                Err(SearchError::request(CostError::ExpertGroups { holders, expert }.to_string(), near()))
            }
            _ => Ok(()),
        }
    }
}

/// The fault of a mesh; where GPUs are unlike, with those that are like the first one.
fn with_like_gpus(fault: Diagnostic, (hardware, gpus): (&Hardware, &[DeviceId]), spelling: Spelling) -> Diagnostic {
    let Some((first, others)) = gpus.split_first() else { return fault };
    let pair = |other: DeviceId| Mesh { replicas: replicas(&[*first, other], [1, 1, 2]), ..Mesh::default() };
    let like = others.iter().filter(|other| check_mesh(hardware, &pair(**other)).is_ok());
    let like: Vec<DeviceId> = std::iter::once(first).chain(like).copied().collect();
    if like.len() == gpus.len() {
        return fault;
    }
    let names = ranges(like.iter().map(|gpu| hardware.devices()[*gpu].name.as_str())).join(",");
    Diagnostic::error(fault.message)
        .hint(format!("teams are of like GPUs: {} has some", spelling.value("devices", names)))
}

/// Whether a device of a mesh holds each layer by itself, with the activations of a microbatch of some workload; its
/// optimizer may be elsewhere.
fn holds_layers((model, hardware): (&Model, &Hardware), workloads: &[Workload], mesh: &Mesh) -> bool {
    let Some(lead) = mesh.leads().next() else { return false };
    let usable = hardware.memories()[hardware.devices()[lead].memory].usable();
    let smallest =
        workloads.iter().filter(|of| of.microbatches.is_multiple_of(mesh.data())).min_by_key(|of| of.microbatch);
    let table = smallest.and_then(|workload| CostTable::on(model, hardware, workload, mesh).ok());
    let fits = |table: CostTable| {
        let need = |layer| {
            let memory = table.memory(layer, lead);
            memory.parameters + memory.gradients + memory.saved + memory.workspace
        };
        table.layers().all(|layer| need(layer) <= usable)
    };
    table.is_some_and(fits)
}

/// The teams of each replica.
fn replicas(gpus: &[DeviceId], [tensor, pipeline, data]: [u64; 3]) -> Vec<Vec<Team>> {
    let teams: Vec<Team> = gpus.chunks_exact(tensor as usize).map(<[DeviceId]>::to_vec).collect();
    let of_replica =
        |replica: u64| (0..pipeline).map(|stage| teams[(stage * data + replica) as usize].clone()).collect();
    (0..data).map(of_replica).collect()
}

/// Whether a system runs on the teams of a mesh.
pub fn suits(system: System, mesh: &Mesh) -> bool {
    // Each replica of a system that streams has a copy of everything.
    let whole = mesh.sharding == Sharding::None && mesh.context == 1 && mesh.expert == 1;
    let streams = !system.preset().order.is_pipeline() && !whole;
    let hosted = system.steps_on_host() && mesh.sharding == Sharding::None;
    let delayed = system.preset().update == Update::Delayed;
    let on_replicas = mesh.holders() == 1 || !(streams || hosted || delayed);
    mesh.is_single() || (on_replicas && !system.shards_parameters() && system != System::CpuOnly)
}
