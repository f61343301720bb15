//! The search for a plan over the sizes of microbatches, under each runtime.
//!
//! ```text
//! Request ─► search ─► attempt ─► a planner, with the Evaluator ─► Found
//!              └─ nothing fits ─► remedies
//! cases     sizes and runtimes, with their results  refusal    the planner's errors in words
//! drives    state and activations on drives         watched    the evaluator with a record
//! by_layer  checkpointing layer by layer            readable   equally good plans that read more easily
//! fits      whether anything fits                 on_mesh    teams as virtual devices
//! promise   a guess that orders meshes
//! ```

mod attempt;
mod by_layer;
mod cases;
mod drives;
pub mod fits;
pub mod found;
pub mod on_mesh;
mod promise;
mod readable;
mod refusal;
pub mod remedies;
mod watched;

use crate::{error::SearchError, request::Request};
use attempt::Unsuccessful;
use found::Found;

/// The plan with the fastest simulated iteration over all sizes of microbatches. Where no plan fits the memories, and the
/// machine has drives, optimizer state may be on them.
///
/// # Errors
/// No plan exists, or none was found in time; if the request asks for it, with remedies.
pub fn search(request: &Request) -> Result<Found, SearchError> {
    attempt::attempt(request).map_err(|why| match why {
        Unsuccessful::Failed(error) => error,
        Unsuccessful::Refused(refused) if refused.settled => remedies::settled(request, &refused.error),
        Unsuccessful::Refused(refused) => remedies::refusal(request, &refused.error, refused.left),
    })
}
