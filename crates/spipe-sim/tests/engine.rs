//! The engine on small programs: shared links, memory, guards, edges across iterations,
//! determinism.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use spipe_base::{
    ActionKind, Bytes, BytesPerSecond, IdleCause, LaneId, LaneRole, LayerId, LayerRange, MicrobatchId, Payload,
    SimTime, StageId, Subject,
};
use spipe_schedule::{
    Access, Anchor, Content, Edge, Flow, Guard, Lifetime, NewAction, Outcome, Program, ProgramBuilder, Shape, Share,
};
use spipe_sim::{Iterations, Options, Simulation, simulate};
use spipe_trace::Status;

fn builder() -> ProgramBuilder {
    ProgramBuilder::new(Shape {
        name: "test".into(),
        layers: 0,
        microbatches: 0,
        training: false,
        without_backward: 0,
        feeds_back: false,
        tokens: None,
        notes: Vec::new(),
    })
}

fn act(lane: LaneId, work: u64) -> NewAction {
    NewAction {
        lane,
        kind: ActionKind::Barrier,
        subject: Subject::default(),
        reads: Vec::new(),
        writes: Vec::new(),
        work: SimTime::ns(work),
        flows: Vec::new(),
        guard: None,
    }
}

fn once(program: &Program) -> Simulation {
    simulate(program, &Options { iterations: Iterations::One, ..Options::default() })
}

/// Ends of the spans in milliseconds, by lane.
fn ends(simulation: &Simulation) -> Vec<f64> {
    simulation.trace.spans.iter().map(|span| (span.end.to_ms() * 1000.0).round() / 1000.0).collect()
}

/// Copies over shared channels: `(start ms, bytes in MB, route)` on channels of the given GB/s,
/// each on its own lane.
fn copies(channels: &[f64], flows: &[(u64, u64, &[usize])]) -> Program {
    let mut builder = builder();
    let memory = builder.memory("memory", None);
    let device = builder.device("gpu0", memory, false);
    let links: Vec<_> = channels.iter().map(|rate| builder.channel("link", BytesPerSecond::gb(*rate))).collect();
    let start = builder.lane(device, "start", LaneRole::Channel);
    let start = builder.action(act(start, 0));
    for (index, (at, megabytes, route)) in flows.iter().enumerate() {
        let lane = builder.lane(device, &format!("copy{index}"), LaneRole::Channel);
        let flow = Flow {
            route: route.iter().map(|channel| links[*channel]).collect(),
            latency: SimTime::ZERO,
            bytes: Bytes::new(megabytes * 1_000_000),
            rate_cap: None,
            share: Share::default(),
        };
        let kind = ActionKind::Copy(Payload::Activation);
        let copy = builder.action(NewAction { kind, flows: vec![flow], ..act(lane, 0) });
        let (anchor, lag, cause) = (Anchor::EndToStart, SimTime::ms(*at), IdleCause::Order);
        builder.edge(Edge { from: start, to: copy, anchor, distance: 0, lag, cause });
    }
    builder.build().unwrap()
}

#[test]
fn two_copies_share_a_root_complex_evenly() {
    // 25 GB/s each, 25 GB/s together: 25 MB take 2 ms instead of 1.
    let program = copies(&[25.0, 25.0, 25.0], &[(0, 25, &[0, 2]), (0, 25, &[1, 2])]);
    assert_eq!(ends(&once(&program)), [0.0, 2.0, 2.0]);
}

#[test]
fn a_later_flow_takes_half_from_its_start() {
    // The first has moved 10 MB after 1 ms; then both get 5 GB/s; the second has 10 MB left when
    // the first ends.
    let program = copies(&[10.0], &[(0, 20, &[0]), (1, 20, &[0])]);
    assert_eq!(ends(&once(&program)), [0.0, 3.0, 4.0]);
}

#[test]
fn max_min_gives_the_unconstrained_flow_the_rest() {
    // Bertsekas and Gallager's example: A uses both links, B the first, C the second, which is
    // twice as wide. A and B get 5 each; C gets 20 − 5 = 15. Then B and A end together and C goes
    // on alone at 20.
    let program = copies(&[10.0, 20.0], &[(0, 5, &[0, 1]), (0, 5, &[0]), (0, 35, &[1])]);
    assert_eq!(ends(&once(&program)), [0.0, 1.0, 1.0, 2.0]);
}

#[test]
fn a_copy_within_one_memory_passes_its_channels_twice() {
    let program = copies(&[10.0], &[(0, 10, &[0, 0])]);
    assert_eq!(ends(&once(&program)), [0.0, 2.0]);
    let copy = program.actions().ids().last().unwrap();
    assert_eq!(program.alone(copy), SimTime::ms(2));
}

fn memory_program(capacity: u64, sizes: [u64; 2]) -> Program {
    let mut builder = builder();
    let memory = builder.memory("gpu0", Some(Bytes::new(capacity)));
    let device = builder.device("gpu0", memory, false);
    let content = |number: u32| {
        Content::Saved(LayerRange::new(LayerId::new(0), LayerId::new(0)).unwrap(), MicrobatchId::new(number))
    };
    for (index, bytes) in sizes.into_iter().enumerate() {
        let buffer = builder.buffer(content(index as u32), memory, Bytes::new(bytes), Lifetime::Transient);
        let lane = builder.lane(device, &format!("lane{index}"), LaneRole::Compute);
        builder.action(NewAction { writes: vec![Access::new(buffer, 1)], ..act(lane, 10) });
        builder.action(NewAction { reads: vec![Access::new(buffer, 1)], ..act(lane, 5) });
    }
    builder.build().unwrap()
}

#[test]
fn an_action_waits_for_memory_and_says_so() {
    let simulation = once(&memory_program(10, [6, 6]));
    assert_eq!(simulation.trace.iteration, SimTime::ns(30));
    let second = &simulation.trace.spans[2];
    assert_eq!((second.start, second.waited_for), (SimTime::ns(15), Some(IdleCause::Memory)));
    assert_eq!(simulation.trace.memories[0].peak, Bytes::new(6), "releases come before acquisitions at one instant");
}

#[test]
fn out_of_memory_names_the_holder_and_the_amount() {
    let simulation = once(&memory_program(10, [6, 11]));
    let Status::OutOfMemory(shortage) = simulation.trace.status else { panic!("it does not fit") };
    assert_eq!((shortage.memory.as_str(), shortage.needed, shortage.free), ("gpu0", Bytes::new(11), Bytes::new(10)));
}

#[test]
fn guarded_actions_follow_the_outcome() {
    let mut builder = builder();
    let memory = builder.memory("gpu0", None);
    let device = builder.device("gpu0", memory, false);
    let lane = builder.lane(device, "compute", LaneRole::Compute);
    let check = builder.action(NewAction { kind: ActionKind::Check, ..act(lane, 3) });
    let guard = Some(Guard { check, outcome: Outcome::Fail });
    builder.action(NewAction { kind: ActionKind::Rollback, guard, ..act(lane, 100) });
    builder.action(act(lane, 5));
    let program = builder.build().unwrap();
    assert_eq!(once(&program).trace.iteration, SimTime::ns(8));
    let options = Options { iterations: Iterations::One, outcomes: [(check, Outcome::Fail)].into_iter().collect() };
    assert_eq!(simulate(&program, &options).trace.iteration, SimTime::ns(108));
}

#[test]
fn iterations_repeat_with_the_period_of_the_slowest_cycle() {
    // Two lanes of 10 and 7 ns wait for each other across iterations: the period is 17 ns, and 10
    // ns without the edge.
    for (joined, period) in [(true, 17), (false, 10)] {
        let mut builder = builder();
        let memory = builder.memory("gpu0", None);
        let device = builder.device("gpu0", memory, false);
        let lanes = ["a", "b"].map(|word| builder.lane(device, word, LaneRole::Compute));
        let first = builder.action(act(lanes[0], 10));
        let second = builder.action(act(lanes[1], 7));
        let edge = |from, to, distance| Edge {
            from,
            to,
            anchor: Anchor::EndToStart,
            distance,
            lag: SimTime::ZERO,
            cause: IdleCause::Optimizer,
        };
        builder.edge(edge(first, second, 0));
        if joined {
            builder.edge(edge(second, first, 1));
        }
        let simulation = simulate(&builder.build().unwrap(), &Options::default());
        assert!(simulation.steady);
        assert_eq!(simulation.trace.iteration, SimTime::ns(period));
    }
}

#[test]
fn cycles_are_faults() {
    let mut builder = builder();
    let memory = builder.memory("gpu0", None);
    let device = builder.device("gpu0", memory, false);
    let lane = builder.lane(device, "compute", LaneRole::Compute);
    let first = builder.action(act(lane, 1));
    let second = builder.action(act(lane, 1));
    let (anchor, lag, cause) = (Anchor::EndToStart, SimTime::ZERO, IdleCause::Order);
    builder.edge(Edge { from: second, to: first, anchor, distance: 0, lag, cause });
    let faults = builder.build().unwrap_err().to_string();
    assert!(faults.starts_with("error: actions wait for each other in a cycle: "), "{faults}");
    assert_eq!(faults.matches("barrier").count(), 2, "{faults}");
}

#[test]
fn versions_that_nothing_writes_cannot_be_read() {
    let mut builder = builder();
    let memory = builder.memory("gpu0", None);
    let device = builder.device("gpu0", memory, false);
    let lane = builder.lane(device, "compute", LaneRole::Compute);
    let content = Content::Workspace(StageId::new(0), MicrobatchId::new(0));
    let buffer = builder.buffer(content, memory, Bytes::new(1), Lifetime::Transient);
    builder.action(NewAction { reads: vec![Access::new(buffer, 1)], ..act(lane, 1) });
    let faults = builder.build().unwrap_err().to_string();
    assert!(
        faults.contains("`gpu0.compute` position 0, barrier : reads version 1 of workspace of s0, m0 in `gpu0`"),
        "{faults}"
    );
}

proptest! {
    /// The bytes that leave a link never exceed its bandwidth, and no copy ends before it could
    /// alone.
    #[test]
    fn sharing_is_conservative(
        rates in prop::collection::vec(1u32..50, 3),
        flows in prop::collection::vec((0u64..5, 1u64..60, prop::sample::subsequence(vec![0usize, 1, 2], 1..=3)), 1..8),
    ) {
        let rates: Vec<f64> = rates.into_iter().map(f64::from).collect();
        let flows: Vec<(u64, u64, &[usize])> = flows.iter().map(|(at, size, route)| (*at, *size, route.as_slice())).collect();
        let program = copies(&rates, &flows);
        let simulation = once(&program);
        let ends = ends(&simulation);
        for (index, (at, size, route)) in flows.iter().enumerate() {
            let slowest = route.iter().map(|channel| rates[*channel]).fold(f64::INFINITY, f64::min);
            prop_assert!(ends[index + 1] + 0.002 >= *at as f64 + *size as f64 / slowest);
        }
        for (channel, rate) in rates.iter().enumerate() {
            let on = |flow: &&(u64, u64, &[usize])| flow.2.contains(&channel);
            let total: u64 = flows.iter().filter(on).map(|flow| flow.1).sum();
            let first = flows.iter().filter(on).map(|flow| flow.0).min().unwrap_or(0) as f64;
            let last = flows.iter().zip(&ends[1..]).filter(|(flow, _)| on(flow)).map(|(_, end)| *end).fold(first, f64::max);
            prop_assert!(total as f64 <= rate * (last - first) + 0.002 * rate);
        }
        prop_assert_eq!(once(&program).trace, simulation.trace);
    }
}

/// An iteration of 3 ms of other work and an optimizer step of 5 ms, whose parameters the next
/// iteration reads first.
#[test]
fn waits_are_those_of_the_critical_cycle() {
    let mut builder = builder();
    let memory = builder.memory("memory", None);
    let device = builder.device("gpu0", memory, false);
    let lane = |builder: &mut ProgramBuilder, word: &str| builder.lane(device, word, LaneRole::Channel);
    let (first, second, third) = (lane(&mut builder, "a"), lane(&mut builder, "b"), lane(&mut builder, "c"));
    let layers = LayerRange::new(LayerId::new(0), LayerId::new(0)).unwrap();
    let parameters = builder.buffer(Content::Parameters(layers), memory, Bytes::new(1), Lifetime::Resident);
    let content = Content::Gradients(layers);
    let gradients = builder.buffer(content, memory, Bytes::new(1), Lifetime::Transient);
    let step = |stage: u32, action: NewAction| NewAction {
        kind: ActionKind::OptimizerStep,
        subject: Subject::stage(StageId::new(stage)),
        ..action
    };
    builder.action(NewAction {
        reads: vec![Access::new(parameters, 0)],
        writes: vec![Access::new(gradients, 1)],
        ..act(first, 3_000_000)
    });
    builder.action(NewAction {
        reads: vec![Access::new(gradients, 1), Access::new(parameters, 0)],
        writes: vec![Access::new(parameters, 1)],
        ..step(2, act(second, 5_000_000))
    });
    // Not on the cycle.
    builder.action(NewAction { reads: vec![Access::new(gradients, 1)], ..step(1, act(third, 4_000_000)) });
    let program = builder.build().unwrap();
    assert_eq!(simulate(&program, &Options::default()).trace.iteration, SimTime::ms(8));
    let waits: Vec<(StageId, SimTime)> = spipe_sim::waits(&program).into_iter().collect();
    assert_eq!(waits, [(StageId::new(2), SimTime::ms(5))]);
}

/// Two lanes take turns because memory has room for one of them: the holder is on the critical
/// cycle of the other.
#[test]
fn the_critical_cycle_passes_through_memory() {
    let mut builder = builder();
    let memory = builder.memory("memory", Some(Bytes::new(10)));
    let device = builder.device("gpu0", memory, false);
    let (first, second) = (builder.lane(device, "a", LaneRole::Channel), builder.lane(device, "b", LaneRole::Channel));
    let content = Content::Workspace(StageId::new(0), MicrobatchId::new(0));
    let buffer = builder.buffer(content, memory, Bytes::new(8), Lifetime::Transient);
    builder.action(NewAction { writes: vec![Access::new(buffer, 1)], ..act(first, 1_000_000) });
    builder.action(NewAction {
        kind: ActionKind::Copy(Payload::Offload),
        subject: Subject::stage(StageId::new(1)),
        reads: vec![Access::new(buffer, 1)],
        ..act(second, 5_000_000)
    });
    let program = builder.build().unwrap();
    assert_eq!(simulate(&program, &Options::default()).trace.iteration, SimTime::ms(6));
    let waits: Vec<(StageId, SimTime)> = spipe_sim::waits(&program).into_iter().collect();
    assert_eq!(waits, [(StageId::new(1), SimTime::ms(5))]);
}
