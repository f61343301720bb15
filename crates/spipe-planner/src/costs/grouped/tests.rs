//! Grouped cost sums against those of the same layers one by one.

use crate::{
    common::{
        Instance, LayerText, MachineText, frozen_instance_of, instance_of, machine_text, model_text, tied_instance_of,
        workload,
    },
    costs::{CostSums, HostOffload, StageSlot, StageTimes},
    problem::{Options, pins::Pins},
    runner::for_all,
};
use proptest::prelude::*;
use spipe_cost::Mode;

/// Whether the times are equal up to rounding.
fn close(one: &StageTimes, other: &StageTimes) -> bool {
    let parts = |times: &StageTimes| {
        let StageTimes { forward, recompute, backward, optimizer, out, step, back } = *times;
        [forward, recompute, backward, optimizer, out, step, back]
    };
    parts(one).iter().zip(parts(other)).all(|(one, other)| (one - other).abs() <= 1e-9 * one.abs().max(1.0))
}

/// Compares times and memory of stages of whole groups on each device.
fn compare(fine: &CostSums<'_>, coarse: &CostSums<'_>) -> Result<(), TestCaseError> {
    let borders = &coarse.borders;
    let stages = (0..coarse.layers).flat_map(|from| (from + 1..=coarse.layers).map(move |to| (from, to)));
    for (from, to) in stages {
        let layers = (borders[from], borders[to]);
        for (device, (one, other)) in fine.devices.iter().zip(&coarse.devices).enumerate() {
            prop_assert_eq!(one.able(layers.0, layers.1), other.able(from, to));
            prop_assert_eq!(one.returns(layers.1), other.returns(to));
            for (recomputed, host_offload) in (0..=to - from).flat_map(|recomputed| {
                fine.host_offloads(device).iter().map(move |host_offload| (recomputed, *host_offload))
            }) {
                let again = borders[from + recomputed] - borders[from];
                let (first, last) = (from == 0, to == coarse.layers);
                let seat = StageSlot { device, in_flight: 3, first, last, host_offload: Some(host_offload) };
                let (times, same) = (
                    one.stage_times(layers, again, host_offload),
                    other.stage_times((from, to), recomputed, host_offload),
                );
                prop_assert!(close(&times, &same), "{times:?} but {same:?}");
                prop_assert_eq!(one.need(seat, layers, again), other.need(seat, (from, to), recomputed));
                prop_assert_eq!(
                    one.need_of_host(seat, host_offload, layers, again),
                    other.need_of_host(seat, host_offload, (from, to), recomputed)
                );
            }
            for next in (0..fine.devices.len()).filter(|_| !(from == 0 && to == coarse.layers)) {
                prop_assert_eq!(fine.transfers((device, next), layers.1), coarse.transfers((device, next), to));
            }
        }
    }
    Ok(())
}

fn run(cases: u32, on: impl Strategy<Value = Instance>) {
    for_all(cases, &(on, 1usize..=5), |(instance, most)| {
        let options = Options::default();
        let fine = CostSums::new(instance.context(), &options);
        let coarse = fine.coarse(&options.pins, most);
        prop_assert!(coarse.layers <= most + 2, "{} groups", coarse.layers);
        prop_assert_eq!(coarse.runs.iter().map(|(_, count)| count).sum::<usize>(), coarse.layers);
        prop_assert_eq!(coarse.borders[coarse.frozen], fine.frozen);
        compare(&fine, &coarse)
    });
}

#[test]
fn groups_have_the_times_and_the_memory_of_their_layers() {
    run(200, instance_of(10));
    run(100, frozen_instance_of(10));
    run(100, tied_instance_of(10));
}

#[test]
fn groups_of_as_many_equal_layers_are_equal() {
    let layer = |count: usize| LayerText {
        count,
        times: [10, 10, 10 + count as u32],
        slowdown: 9,
        parameters: 1_000_000,
        boundary: 8,
        saved: 60,
        workspace: 3,
    };
    let machine = MachineText { gpus: vec![(1000, 20)], root: 20, sockets: vec![3000] };
    let instance =
        Instance::new(&model_text(&[layer(7), layer(8)]), &machine_text(&machine), &workload(2, Mode::Train));
    let coarse = CostSums::new(instance.context(), &Options::default()).coarse(&Pins::default(), 5);
    assert_eq!(coarse.borders, [0, 3, 6, 9, 12, 15]);
    // The third group has layers of both kinds.
    assert_eq!(coarse.runs, [(0, 2), (2, 1), (3, 2)]);
    let recompute = coarse.devices[0].stage_times((3, 5), 1, HostOffload::NONE).recompute;
    assert!((recompute - 3.0).abs() < 1e-9, "{recompute} ms for three layers of 1 ms");
}
