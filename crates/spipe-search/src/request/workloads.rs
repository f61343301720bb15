//! The workloads of the sizes of microbatches.

use crate::Failure;
use spipe_cost::{MOST_TOKENS, Workload};

/// The workloads that split `global_batch` sequences into equal microbatches: of the given size, or
/// for `auto` of every size that divides the batch.
pub fn workloads(template: Workload, global_batch: u64, microbatch: &str) -> Result<Vec<Workload>, Failure> {
    if global_batch == 0 {
        return Err(Failure::argument("the global batch is zero", "use at least one sequence"));
    }
    if template.seq_len == 0 {
        return Err(Failure::argument("the sequence length is zero", "use at least one token"));
    }
    let split = |size: u64| Workload { microbatch: size, microbatches: global_batch / size, ..template };
    if microbatch == "auto" {
        let sizes = (1..=global_batch.min(MOST_TOKENS)).filter(|size| global_batch.is_multiple_of(*size));
        let possible: Vec<Workload> = sizes.map(split).filter(|workload| workload.check().is_ok()).collect();
        return if possible.is_empty() { Err(too_large(&split(1))) } else { Ok(possible) };
    }
    let size: u64 = microbatch.parse().map_err(|_| {
        Failure::argument(format!("`{microbatch}` is not a microbatch size"), "give a number of sequences, or auto")
    })?;
    if size == 0 {
        return Err(Failure::argument("the microbatch is zero", "use at least one sequence"));
    }
    if !global_batch.is_multiple_of(size) {
        return Err(Failure::argument(
            format!("the global batch {global_batch} is not a multiple of the microbatch {size}"),
            format!("use a microbatch that divides {global_batch}"),
        ));
    }
    let workload = split(size);
    if workload.check().is_err() {
        return Err(too_large(&workload));
    }
    Ok(vec![workload])
}

/// The refusal of a workload that is too large to be counted.
fn too_large(workload: &Workload) -> Failure {
    let message = workload.check().err().map_or_else(String::new, |error| error.to_string());
    Failure::argument(
        message,
        "plan for a smaller batch or shorter sequences; several iterations take as long as one after the other",
    )
}
