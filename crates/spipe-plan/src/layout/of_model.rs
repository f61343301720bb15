//! Layouts of a model: the layers that the letters stand for, and the layout of a placement.

use super::{Layout, LayoutPart, Placed, position};
use crate::{Context, Placement, System};
use spipe_base::{Diagnostic, Faults, LayerRange};
use spipe_model::{Architecture, LayerKind, Model};

/// The layers of a model as letters: those before the blocks are one `E`, those behind them one `L`.
#[derive(Clone, Copy)]
struct Chain {
    before: usize,
    blocks: usize,
    behind: usize,
    predictions: usize,
}

impl Chain {
    /// The chain of `model`; `None` if its blocks are not consecutive, as those of two towers, or it
    /// has none. In a measured model, whose layers have no kind, all but the first and the last are
    /// blocks.
    fn of(model: &Model) -> Option<Self> {
        let layers = model.layers().as_slice();
        let measured = matches!(model.architecture(), Architecture::Profiled(_));
        let is_block = |index: usize| match &layers[index].kind {
            LayerKind::Block(_) => true,
            LayerKind::Profiled(_) => measured && index > 0 && index + 1 < layers.len(),
            _ => false,
        };
        let before = (0..layers.len()).take_while(|index| !is_block(*index)).count();
        let blocks = (before..layers.len()).take_while(|index| is_block(*index)).count();
        let behind = layers.len() - before - blocks;
        let ends = (before + blocks..layers.len()).all(|index| !is_block(index));
        let predictions = match model.architecture() {
            Architecture::Transformer(transformer) => transformer.mtp_layers as usize,
            _ => 0,
        };
        (before > 0 && blocks > 0 && behind > 0 && ends).then_some(Self { before, blocks, behind, predictions })
    }

    /// The layers that a letter stands for.
    const fn layers(self, part: LayoutPart) -> usize {
        match part {
            LayoutPart::Embedding => self.before,
            LayoutPart::Block => 1,
            LayoutPart::Prediction => 0,
            LayoutPart::Head => self.behind,
        }
    }
}

impl Layout {
    /// The layers of each stage on `devices` devices. Modules that predict further tokens have none.
    ///
    /// # Errors
    /// Every difference between the layout and the model, with its position.
    pub fn layers(&self, model: &Model, devices: usize) -> Result<Vec<LayerRange>, Faults> {
        let name = model.name();
        let Some(chain) = Chain::of(model) else {
            let fault = Diagnostic::error(format!("`{name}` is no chain of an embedding, blocks and a head"));
            return Err(fault.hint("leave `option layout` out: a layout has no letters for its layers").into());
        };
        let mut faults = Faults::new();
        let mut refuse = |column, fault: Diagnostic| faults.push(fault.at(position(&self.file, column)));
        self.ends(&mut refuse);
        self.blocks((name, chain), &mut refuse);
        self.predictions((name, chain), devices, &mut refuse);
        if devices == 0 || !self.len().is_multiple_of(devices) {
            let fault = format!("the layout has {} stages, which {devices} devices do not share evenly", self.len());
            let hint = "stage i is on device i mod P of P: write a multiple of P stages, or name other devices in `option devices`";
            refuse(self.end, Diagnostic::error(fault).hint(hint));
        }
        faults.or(())?;
        self.ranges(chain)
    }

    /// The letters at the ends: one `E` comes first, one `L` last.
    fn ends(&self, refuse: &mut dyn FnMut(usize, Diagnostic)) {
        let letters: Vec<Placed> = self.letters().collect();
        for (part, end, place) in
            [(LayoutPart::Embedding, letters.first(), "first"), (LayoutPart::Head, letters.last(), "last")]
        {
            let letter = part.letter();
            let mut all = letters.iter().filter(|placed| placed.part == part);
            let (one, more) =
                if place == "first" { (all.next(), all.next()) } else { (all.next_back(), all.next_back()) };
            if let (Some(_), Some(more)) = (one, more) {
                refuse(more.column, Diagnostic::error(format!("`{letter}` is there more than once")).hint("keep one"));
            } else if end.is_none_or(|end| end.part != part) {
                let found = end.map_or_else(|| "nothing".into(), |end| format!("`{}`", end.part.letter()));
                let fault = format!("the {place} letter of a layout is `{letter}`, found {found}");
                let column = end.map_or(self.end, |end| end.column);
                refuse(column, Diagnostic::error(fault).hint("E is the embedding, L final norm and head"));
            }
        }
    }

    /// The number of blocks.
    fn blocks(&self, (name, chain): (&str, Chain), refuse: &mut dyn FnMut(usize, Diagnostic)) {
        let blocks: Vec<Placed> = self.letters().filter(|placed| placed.part == LayoutPart::Block).collect();
        if blocks.len() != chain.blocks {
            let surplus = blocks.get(chain.blocks).or(blocks.last());
            let column = surplus.map_or(self.end, |placed| placed.column);
            let fault = format!("the layout has {} `t`, but `{name}` has {} blocks", blocks.len(), chain.blocks);
            let hint = format!("write `t` {} times in all", chain.blocks);
            refuse(column, Diagnostic::error(fault).hint(hint));
        }
    }

    /// The modules that predict further tokens: all of them in one stage, the last one of its device,
    /// and behind all blocks.
    fn predictions(&self, (name, chain): (&str, Chain), devices: usize, refuse: &mut dyn FnMut(usize, Diagnostic)) {
        let modules: Vec<Placed> = self.letters().filter(|placed| placed.part == LayoutPart::Prediction).collect();
        let Some(first) = modules.first() else { return };
        if chain.predictions == 0 {
            let fault = format!("`m` is a module that predicts further tokens, and `{name}` has none");
            refuse(first.column, Diagnostic::error(fault).hint("leave `m` out"));
            return;
        }
        if modules.len() != chain.predictions {
            let surplus = modules.get(chain.predictions).unwrap_or(first);
            let (here, there) = (modules.len(), chain.predictions);
            let fault =
                format!("the layout has {here} `m`, but `{name}` has {there} modules that predict further tokens");
            refuse(surplus.column, Diagnostic::error(fault).hint("write all of them, or none"));
        }
        let behind = self.letters().skip_while(|placed| placed.part != LayoutPart::Prediction);
        if let Some(block) = behind.into_iter().find(|placed| placed.part == LayoutPart::Block) {
            refuse(block.column, Diagnostic::error("a block comes behind `m`").hint("write `m` behind the last `t`"));
        }
        let holds = |stage: &Vec<Placed>| stage.iter().any(|placed| placed.part == LayoutPart::Prediction);
        let mut holding = self.stages.iter().enumerate().filter(|(_, stage)| holds(stage)).map(|(index, _)| index);
        if let (Some(stage), None) = (holding.next(), holding.next()) {
            if stage + devices < self.len() {
                let fault = format!("`m` is in stage {stage}, which is not the last one of its device");
                refuse(first.column, Diagnostic::error(fault).hint("write it into one of the last stages"));
            }
        } else {
            refuse(first.column, Diagnostic::error("`m` is in more than one stage").hint("write all `m` into one"));
        }
    }

    /// The layers of each stage, which the letters are known to cover.
    fn ranges(&self, chain: Chain) -> Result<Vec<LayerRange>, Faults> {
        let mut next = 0;
        let range = |(index, stage): (usize, Vec<LayoutPart>)| {
            let first = next;
            next += stage.iter().map(|part| chain.layers(*part)).sum::<usize>();
            let Some(last) = next.checked_sub(1) else {
                let fault = format!("stage {index} is empty and comes before `E`: it has nothing to pass on");
                let fault = Diagnostic::error(fault).at(position(&self.file, 1));
                return Err(Faults::from(fault.hint("write `E` into the first stage")));
            };
            let range = LayerRange::new(first.into(), last.into());
            Ok(range.unwrap_or_else(|| LayerRange::empty_behind(last.into())))
        };
        self.stages().enumerate().map(range).collect()
    }

    /// The layout of a placement of 1F1B or interleaved 1F1B on GPUs alone; `None` for others, and for
    /// models that layouts cannot describe. Adjacent stages of a device are one.
    pub fn of(context: &Context<'_>, placement: &Placement) -> Option<Self> {
        let system = placement.system;
        let known = match system {
            System::OneForwardOneBackward | System::Interleaved => true,
            // Presets of 1F1B whose name says something else.
            System::Checkpointing | System::GpuOnly => placement.devices().len() > 1,
            _ => false,
        };
        if !known || placement.stages.iter().any(|stage| context.is_cpu(stage.lead())) {
            return None;
        }
        let chain = Chain::of(context.model)?;
        let head = chain.before + chain.blocks;
        let letter = |layer: usize| match layer {
            0 => Some(LayoutPart::Embedding),
            first if first == head => Some(LayoutPart::Head),
            block if (chain.before..head).contains(&block) => Some(LayoutPart::Block),
            _ => None,
        };
        let stages = placement.stages.as_slice();
        // The letters of ends stand for all of their layers, which one stage has to have.
        let whole = |first: usize, last: usize| {
            let holds = |layer: usize| stages.iter().position(|stage| stage.layers.contains(layer.into()));
            holds(first) == holds(last)
        };
        if !whole(0, chain.before - 1) || !whole(head, head + chain.behind - 1) {
            return None;
        }
        let joined = system != System::Interleaved;
        let runs = stages.chunk_by(|one, next| joined && one.team == next.team);
        let parts = |run: &[crate::Stage]| {
            let layers = run.iter().flat_map(|stage| stage.layers.iter());
            layers.filter_map(|layer| letter(layer.index())).collect()
        };
        Some(Self::of_parts(runs.map(parts).collect()))
    }
}
