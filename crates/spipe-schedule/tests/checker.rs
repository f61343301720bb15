//! The checker of programs: every fault is reported with its position.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{ActionKind, Bytes, LaneRole, LayerId, LayerRange, MicrobatchId, SimTime, StageId, Subject};
use spipe_schedule::{
    Access, Content, Lifetime, NewAction, Order, ProgramBuilder, Shape, Stage, StageTimes, bare,
    one_forward_one_backward,
};

fn range(first: u32, last: u32) -> LayerRange {
    LayerRange::new(LayerId::new(first), LayerId::new(last)).unwrap()
}

/// One device with one stage of two layers; one action per letter of `passes` on microbatch 0.
fn program(passes: &str, training: bool) -> ProgramBuilder {
    let mut builder = ProgramBuilder::new(Shape {
        name: "test".into(),
        layers: 2,
        microbatches: 1,
        training,
        without_backward: 0,
        feeds_back: false,
        tokens: None,
        notes: Vec::new(),
    });
    let memory = builder.memory("gpu0", None);
    let device = builder.device("gpu0", memory, false);
    builder.stage(Stage { device, layers: range(0, 1), recomputed: None });
    let lane = builder.lane(device, "compute", LaneRole::Compute);
    for pass in passes.chars() {
        let kind = match pass {
            'F' => ActionKind::Forward,
            'B' => ActionKind::Backward,
            'I' => ActionKind::BackwardInput,
            _ => ActionKind::BackwardWeight,
        };
        builder.action(NewAction {
            lane,
            kind,
            subject: Subject::work(StageId::new(0), MicrobatchId::new(0)),
            reads: Vec::new(),
            writes: Vec::new(),
            work: SimTime::ns(1),
            flows: Vec::new(),
            guard: None,
        });
    }
    builder
}

fn faults(builder: ProgramBuilder) -> Vec<String> {
    builder.build().unwrap_err().iter().map(|fault| fault.message.clone()).collect()
}

#[test]
fn arithmetic_must_be_complete() {
    assert!(program("FB", true).build().is_ok());
    assert!(program("FIW", true).build().is_ok());
    assert!(program("F", false).build().is_ok());
    assert_eq!(
        faults(program("F", true)),
        [
            "layer l0, microbatch m0: has 0 backwards, 0 backward-inputs and 0 backward-weights",
            "layer l1, microbatch m0: has 0 backwards, 0 backward-inputs and 0 backward-weights"
        ]
    );
    assert_eq!(faults(program("FFB", true))[0], "layer l0, microbatch m0: has 2 forwards");
    assert_eq!(
        faults(program("FB", false))[0],
        "layer l0, microbatch m0: has 1 backwards, 0 backward-inputs and 0 backward-weights"
    );
    assert_eq!(
        faults(program("FIBW", true))[0],
        "layer l0, microbatch m0: has 1 backwards, 1 backward-inputs and 1 backward-weights"
    );
}

#[test]
fn carried_buffers_must_match() {
    let mut builder = program("FB", true);
    let memory = spipe_base::MemoryId::new(0);
    let content = Content::Parameters(range(0, 1));
    let arrives = builder.buffer(content, memory, Bytes::new(8), Lifetime::Arrives);
    builder.buffer(content, memory, Bytes::new(9), Lifetime::Leaves { into: arrives });
    assert_eq!(
        faults(builder),
        [
            "parameters of layers 0..1 leaves into b0, which is no arriving buffer of the same memory and size",
            "parameters of layers 0..1 arrives at the start of an iteration, but nothing leaves into it"
        ]
    );
}

#[test]
fn versions_are_written_once_and_in_order() {
    let mut builder = program("FB", true);
    let memory = spipe_base::MemoryId::new(0);
    let content = Content::Gradients(range(0, 1));
    let buffer = builder.buffer(content, memory, Bytes::new(8), Lifetime::Resident);
    let lane = builder.lane(spipe_base::DeviceId::new(0), "compute", LaneRole::Compute);
    for version in [2, 2, 0] {
        builder.action(NewAction {
            lane,
            kind: ActionKind::Accumulate,
            subject: Subject::default(),
            reads: Vec::new(),
            writes: vec![Access::new(buffer, version)],
            work: SimTime::ZERO,
            flows: Vec::new(),
            guard: None,
        });
    }
    assert_eq!(
        faults(builder),
        ["a4 writes version 0 of b0, which exists from the start", "version 2 of b0 is written twice"]
    );
}

#[test]
fn orders_become_programs_or_faults() {
    let times = StageTimes {
        forward: SimTime::ns(1),
        backward_input: SimTime::ns(1),
        backward_weight: SimTime::ns(1),
        latency: SimTime::ZERO,
        weight_gradient_memory: 500,
    };
    let program = bare("1f1b", &one_forward_one_backward(3, 4, &[]), &times).unwrap();
    assert_eq!(program.actions().len(), 24);
    // Three forwards and three backwards cross a boundary per microbatch and direction, and each
    // backward needs its forward.
    assert_eq!(program.precedences().len(), 2 * 2 * 4 + 3 * 4);
    let late: Order = "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n".parse().unwrap();
    let said = bare("late", &late, &times).unwrap_err().to_string();
    assert!(said.starts_with("error: deadlock: `0B0` needs `1B0`, which comes after `1F1`"), "{said}");
}
