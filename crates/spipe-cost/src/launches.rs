//! The host's time to launch the kernels of a layer. A device never runs ahead of its host.

use crate::roofline::Roofline;
use spipe_base::Seconds;
use spipe_model::{Layer, LayerKind, LayerWork, Op};

/// Returns the host's times of forward, backward-input and backward-weight of a layer whose own work is
/// `work` and whose adapters and conversions add `more`; zero where the runtime states no launches. They
/// are at least the launch floor of the device times the operations'
/// kernels, so that neither count is taken twice.
pub(crate) fn launches(
    layer: &Layer,
    (work, more): (&LayerWork, &LayerWork),
    roofline: &Roofline<'_>,
) -> [[Seconds; 3]; 2] {
    if !roofline.launches() {
        return [[Seconds::ZERO; 3]; 2];
    }
    let kernels = |ops: &[Op]| ops.iter().map(|op| f64::from(op.kernels(roofline.attention))).sum::<f64>();
    let parts = [&work.forward, &work.backward_input, &work.backward_weight].map(|ops| kernels(ops));
    let table = roofline.runtime.kernels();
    let stated = table.and_then(|table| match &layer.kind {
        LayerKind::Block(block) if block.experts.is_none() => table.block,
        LayerKind::Embedding(_) | LayerKind::PatchEmbedding(_) => table.embedding,
        LayerKind::Head(_) => table.head,
        _ => None,
    });
    let per_operation = table.and_then(|table| table.per_operation).unwrap_or(1.0);
    let backward = parts[1] + parts[2];
    let counts = match stated {
        // The whole backward is split as its operations are.
        Some(stated) if backward > 0.0 => {
            [stated.forward, stated.backward * parts[1] / backward, stated.backward * parts[2] / backward]
        }
        Some(stated) => [stated.forward, 0.0, 0.0],
        None => parts.map(|kernels| kernels * per_operation),
    };
    let host =
        |(count, kernels): (f64, f64)| (roofline.runtime.launch() * count).max(roofline.device.launch_floor * kernels);
    let own = [host((counts[0], parts[0])), host((counts[1], parts[1])), host((counts[2], parts[2]))];
    let more = [&more.forward, &more.backward_input, &more.backward_weight].map(|ops| kernels(ops));
    [own, more.map(|kernels| host((kernels * per_operation, kernels)))]
}
