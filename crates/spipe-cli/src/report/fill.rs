//! The picture of what fills the memories of a plan.

use crate::{Failure, output::Target};
use spipe_plan::Plan;
use spipe_timeline::{DrawError, Fill, FilledMemory, fill_png, fill_svg};

/// The order of the parts in a bar; others follow.
const ORDER: [&str; 6] = ["weights", "gradients", "optimizer-state", "activations", "cache", "buffers"];

/// A picture to write, whose path has been tried.
pub struct Plot {
    target: Target,
    png: bool,
}

impl Plot {
    /// Opens the file of a picture: `.svg` or `.png`.
    pub fn open(path: &str) -> Result<Self, Failure> {
        let png = path.ends_with(".png");
        if !png && !path.ends_with(".svg") {
            let message = format!("`{path}` does not name a kind of picture");
            return Err(Failure::argument(message, "let it end in .svg or .png"));
        }
        Ok(Self { target: Target::open(path)?, png })
    }

    /// Draws a plan.
    pub fn write(self, plan: &Plan) -> Result<(), Failure> {
        let fill = fill(plan);
        let failed = |error: DrawError| Failure::Bug(format!("the picture cannot be drawn: {error}"));
        let bytes = if self.png { fill_png(&fill) } else { fill_svg(&fill).map(String::into_bytes) };
        self.target.write(&bytes.map_err(failed)?)
    }
}

fn fill(plan: &Plan) -> Fill {
    let context = plan.context();
    let memories = plan.memory_parts().into_iter().map(|(memory, parts)| {
        let this = &context.hardware.memories()[memory];
        let place = |part: &str| ORDER.iter().position(|known| *known == part).unwrap_or(ORDER.len());
        let mut parts: Vec<_> = parts.into_iter().collect();
        parts.sort_by_key(|(part, _)| place(part));
        let parts = parts.into_iter().map(|(part, bytes)| (part.replace('-', " "), bytes)).collect();
        FilledMemory { name: this.name.clone(), capacity: this.usable(), parts }
    });
    Fill {
        title: format!("{} on {}: what fills the memories", context.model.name(), context.hardware.name()),
        notes: vec![format!(
            "system {}, at the peak of each memory of an iteration; capacities are those that can be used",
            plan.placement().system
        )],
        memories: memories.collect(),
    }
}
