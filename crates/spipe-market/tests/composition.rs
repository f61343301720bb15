//! Composed machines: legal ones are ordinary profiles, illegal ones break a rule with a name.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use spipe_base::{Bytes, BytesPerSecond};
use spipe_hardware::Hardware;
use spipe_market::{
    COMPOSITION_RULES, Catalogue, Choice, Cluster, Composed, Condition, Currency, Date, Kind, Ownership, Range, Rates,
    Watts, compose, compose_rented, count_of, price, rent_hour,
};

/// A choice from words such as `2xrtx3090 epyc-7713p 8xddr4-rdimm-32g`.
fn choice(catalogue: &Catalogue, words: &str) -> Choice {
    let parts: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    Choice::from_parts(catalogue, &parts).unwrap()
}

fn machine(words: &str) -> Composed {
    let catalogue = Catalogue::shipped().unwrap();
    compose(&catalogue, &choice(&catalogue, words)).unwrap_or_else(|error| panic!("{words}: {error}"))
}

fn profile(machine: &Composed) -> Hardware {
    Hardware::from_toml("composed.toml", &machine.hardware.to_toml()).unwrap()
}

#[test]
fn a_workstation_is_an_ordinary_profile() {
    let machine = machine("2xrtx3090 epyc-7713p 8xddr4-rdimm-32g nvme4-2tb nvlink3-pair");
    let hardware = profile(&machine);
    assert_eq!(hardware.devices().iter().filter(|device| device.is_gpu()).count(), 2);
    let memory = |name: &str| hardware.memories()[hardware.memory(name).unwrap()].capacity;
    assert_eq!(memory("dram0"), Bytes::gib(256));
    assert_eq!(memory("gpu1"), Bytes::gib(24));
    assert!(hardware.memory("nvme0").is_some());
    let socket = &machine.hardware.socket[0];
    // Eight channels of DDR4-3200 are 204.8 GB/s.
    assert!((socket.dram.bandwidth.0 / BytesPerSecond::gb(204.8) - 0.78).abs() < 1e-9);
    assert!((socket.optimizer_rate.0.get() / 1e9 - 0.43 * 204.8 / 28.0).abs() < 1e-9);
    let route = hardware.route(hardware.memory("gpu0").unwrap(), hardware.memory("gpu1").unwrap()).unwrap();
    assert_eq!(route.links.len(), 1, "the bridge joins the cards");
    // The parts in the file are those that it was composed of, and compose the same machine again.
    let catalogue = Catalogue::shipped().unwrap();
    let again = compose(&catalogue, &Choice::from_parts(&catalogue, &hardware.file().parts).unwrap()).unwrap();
    assert_eq!(again, machine);
    assert!(machine.items.iter().any(|item| item.name == "h12ssl-i"), "{:?}", machine.parts());
}

#[test]
fn modules_decide_the_bandwidth() {
    let rate = |words: &str| machine(words).hardware.socket[0].dram.bandwidth.0.get() / 0.78 / 8e6;
    // Channels × MT/s.
    for (words, wanted) in [
        ("rtx4090 epyc-7713p 8xddr4-rdimm-32g", 8.0 * 3200.0),
        ("rtx4090 epyc-7713p 4xddr4-rdimm-64g", 4.0 * 3200.0),
        ("rtx4090 ryzen-9950x 2xddr5-udimm-48g", 2.0 * 5600.0),
        ("rtx4090 ryzen-9950x 4xddr5-udimm-48g", 2.0 * 3600.0),
        ("rtx4090 epyc-9354p 12xddr5-rdimm-32g", 12.0 * 4800.0),
    ] {
        assert!((rate(words) - wanted).abs() < 1e-6, "{words}: {}", rate(words));
    }
}

#[test]
fn lanes_are_halved_where_the_cpu_has_too_few() {
    for (words, lanes) in [
        ("rtx4090 ryzen-9950x 2xddr5-udimm-32g", 16),
        ("2xrtx4090 ryzen-9950x 2xddr5-udimm-32g", 8),
        ("rtx4090 ryzen-9950x 2xddr5-udimm-32g 3xnvme4-1tb", 8),
        ("2xrtx-a4000 threadripper-7970x 4xddr5-rdimm-32g", 16),
        ("3xrtx-a4000 threadripper-7970x 4xddr5-rdimm-32g nvme4-1tb", 8),
        ("rtx4060ti-16g epyc-9354p 12xddr5-rdimm-16g", 8),
    ] {
        assert_eq!(machine(words).lanes, lanes, "{words}");
    }
    let link = |words: &str| machine(words).hardware.link[0].bandwidth.unwrap().0.get() / 1e9;
    // The older of card and CPU decides: 0.8 × 0.985 GB/s per lane of generation 3.
    assert!((link("rtx5090 epyc-7713p 8xddr4-rdimm-32g") - 0.8 * 0.985 * 2.0 * 16.0).abs() < 1e-9);
    assert!((link("rtx5090 epyc-9354p 12xddr5-rdimm-32g") - 0.8 * 0.985 * 4.0 * 16.0).abs() < 1e-9);
}

#[test]
fn modules_on_boards_have_their_fabric() {
    let nodes = |words: &str| {
        let machine = machine(words);
        profile(&machine);
        let joined = machine.hardware.link.iter().filter(|link| link.name.starts_with("nvlink")).count();
        (machine.hardware.socket[0].name.clone(), machine.choice.board.clone().unwrap(), joined)
    };
    assert_eq!(
        nodes("8xh100-sxm xeon-8480 32xddr5-rdimm-64g"),
        ("cpu{0..1}".into(), "hgx-h100-8".into(), 1),
        "one table for eight links to the switches"
    );
    assert_eq!(nodes("4xa100-80-sxm epyc-7763 16xddr4-rdimm-64g").2, 6, "each pair of four has a link");
    assert_eq!(nodes("gh200 grace").1, "gh200-server");
}

#[test]
fn illegal_machines_break_a_named_rule() {
    let catalogue = Catalogue::shipped().unwrap();
    for (words, rule) in [
        ("2xrtx4090 epyc-7713p 8xddr4-rdimm-32g am5-board", "socket"),
        ("8xrtx-a4000 epyc-7713p 16xddr4-rdimm-32g pcie4-8gpu-server", "socket"),
        ("h100-sxm epyc-9654 24xddr5-rdimm-64g h13ssl-n", "mounting"),
        ("6xh100-sxm xeon-8480 16xddr5-rdimm-64g", "gpu-count"),
        ("5xrtx4090 epyc-7713p 8xddr4-rdimm-32g", "slots"),
        ("3xrtx-a4000 ryzen-9950x 2xddr5-udimm-32g am5-board", "gpu-count"),
        ("rtx4090 ryzen-9950x 2xddr5-udimm-32g 4xnvme4-1tb", "drive-slots"),
        ("rtx4090 ryzen-9950x 2xddr5-rdimm-32g", "module-kind"),
        ("rtx4090 epyc-7713p 8xddr5-rdimm-32g", "module-kind"),
        ("gh200 grace 8xddr5-rdimm-32g", "module-kind"),
        ("rtx4090 epyc-7713p", "module-slots"),
        ("rtx4090 epyc-7713p 9xddr4-rdimm-32g h12ssl-i", "module-slots"),
        ("2xrtx4090 epyc-7713p 8xddr4-rdimm-32g nvlink3-pair", "bridge"),
        ("3xrtx3090 epyc-7713p 8xddr4-rdimm-32g nvlink3-pair", "bridge"),
        ("2xrtx4090 epyc-7713p 8xddr4-rdimm-32g psu-1200", "supply"),
    ] {
        let error = compose(&catalogue, &choice(&catalogue, words)).unwrap_err();
        assert_eq!(error.rule(), rule, "{words}: {error}");
        assert!(COMPOSITION_RULES.iter().any(|(name, _)| *name == rule));
        assert!(error.diagnostic().to_string().contains("\nhint: "), "{words}: {error}");
    }
    let unknown = Choice { platform: "epyc-7713".into(), ..Choice::default() };
    let error = compose(&catalogue, &unknown).unwrap_err();
    assert_eq!(error.rule(), "unknown-part");
    assert!(error.diagnostic().to_string().contains("did you mean `epyc-7713p`"), "{error}");
}

/// The constants of the power model were chosen on these two sets, so this checks the arithmetic.
#[test]
fn power_is_that_of_measured_machines() {
    let watts = |words: &str| machine(words).power.at(1.0, 0.0).get();
    for (words, measured) in [
        // Exxact, Llama-3.1-8B LoRA, 2026-06-04.
        ("1xrtx-pro4500 threadripper-pro-7975wx 8xddr5-rdimm-32g", 289.0),
        ("4xrtx-pro4500 threadripper-pro-7975wx 8xddr5-rdimm-32g", 771.0),
        // Lenovo SR780a, MLPerf Training v5.0: LoRA 70B, BERT, Stable Diffusion, RetinaNet.
        ("8xb200-sxm xeon-8592 32xddr5-rdimm-64g", 9570.0),
        ("8xb200-sxm xeon-8592 32xddr5-rdimm-64g", 9690.0),
        ("8xb200-sxm xeon-8592 32xddr5-rdimm-64g", 10_050.0),
        ("8xb200-sxm xeon-8592 32xddr5-rdimm-64g", 9560.0),
    ] {
        assert!((watts(words) / measured - 1.0).abs() < 0.15, "{words}: {} against {measured}", watts(words));
    }
    assert!(machine("4xrtx5090 epyc-9354p 12xddr5-rdimm-32g").notes.iter().any(|note| note.contains("second circuit")));
}

#[test]
fn prices_are_those_of_the_day() {
    let catalogue = Catalogue::shipped().unwrap();
    let machine = machine("2xrtx3090 epyc-7713p 8xddr4-rdimm-32g");
    let rates = Rates::new(Currency::usd(), &[]);
    let on = |condition, date: &str| price(&catalogue, &machine, (condition, date.parse().unwrap()), &rates).unwrap();
    let (before, after) = (on(Condition::Used, "2025-08-31"), on(Condition::Used, "2026-08-31"));
    assert!(after.range.is_ordered() && after.range.typical > before.range.typical, "{before:?} {after:?}");
    let total: f64 = after.items.iter().map(|(_, range)| range.typical).sum();
    assert!((total - after.range.typical).abs() < 1e-6);
    assert!(after.substituted.contains(&"psu-1200".to_owned()), "supplies are sold new: {:?}", after.substituted);
    let euros = Rates::new("EUR".parse().unwrap(), &[]);
    let error = price(&catalogue, &machine, (Condition::New, Date::from_unix(0)), &euros).unwrap_err();
    assert_eq!(error.to_string(), "the price of `rtx3090` is in USD: there is no rate from USD to EUR");
}

#[test]
fn an_hour_costs_depreciation_and_energy() {
    let own = Ownership {
        currency: Currency::usd(),
        years: 3.0,
        utilisation: 0.5,
        residual: Range { low: 0.1, typical: 0.3, high: 0.5 },
        kilowatt_hour: 0.3,
        pue: 1.2,
    };
    let hour = own.hour(Range { low: 1000.0, typical: 2000.0, high: 3000.0 }, Watts::new(500.0));
    let hours = 3.0 * 8766.0 * 0.5;
    let energy = 0.5 * 1.2 * 0.3;
    assert!((hour.low - (500.0 / hours + energy)).abs() < 1e-12);
    assert!((hour.typical - (1400.0 / hours + energy)).abs() < 1e-12);
    assert!((hour.high - (2700.0 / hours + energy)).abs() < 1e-12);
}

#[test]
fn numbers_of_parts_are_read() {
    for (text, wanted) in [
        ("8xddr4-rdimm-32g", Some((8, "ddr4-rdimm-32g"))),
        ("8 x ddr4-rdimm-32g", Some((8, "ddr4-rdimm-32g"))),
        ("xeon-8480", Some((1, "xeon-8480"))),
        ("0xrtx3090", None),
        ("", None),
    ] {
        assert_eq!(count_of(text), wanted.map(|(count, name)| (count, name.to_owned())), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any choice of shipped parts is a checked machine, or breaks a rule of the list.
    #[test]
    fn any_choice_is_a_machine_or_breaks_a_rule(
        gpu in any::<prop::sample::Index>(), gpus in 0u32..9, nodes in 1u32..5, card in any::<prop::sample::Index>(),
        platform in any::<prop::sample::Index>(),
        dram in any::<prop::sample::Index>(), modules in 1u32..25, drives in 0u32..4, bridge in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let catalogue = Catalogue::shipped().unwrap();
        let choice = Choice {
            gpu: (gpus > 0).then(|| gpu.get(&catalogue.gpus).name.clone()),
            gpus,
            platform: platform.get(&catalogue.platforms).name.clone(),
            dram: Some((modules, dram.get(&catalogue.drams).name.clone())),
            drives: (drives > 0).then(|| (drives, "nvme4-2tb".to_owned())).into_iter().collect(),
            bridge: bridge.map(|index| index.get(&catalogue.bridges).name.clone()),
            cluster: (nodes > 1).then(|| Cluster::new(nodes, card.get(&catalogue.network_cards).name.clone())),
            ..Choice::default()
        };
        match compose(&catalogue, &choice) {
            Ok(machine) => {
                let hardware = Hardware::from_file("composed", machine.hardware.clone());
                prop_assert!(hardware.is_ok(), "{:?}: {}", choice, hardware.unwrap_err());
                prop_assert_eq!(hardware.unwrap().devices().iter().filter(|device| device.is_gpu()).count(), (gpus * nodes) as usize);
            }
            Err(error) => prop_assert!(COMPOSITION_RULES.iter().any(|(name, _)| *name == error.rule()), "{}", error),
        }
    }
}

#[test]
fn every_rented_machine_is_a_profile() {
    let catalogue = Catalogue::shipped().unwrap();
    for rent in &catalogue.rents {
        let machine = compose_rented(&catalogue, rent, 1).unwrap_or_else(|error| panic!("{}: {error}", rent.name));
        let hardware = profile(&machine);
        let gpus = hardware.devices().iter().filter(|device| device.is_gpu()).count();
        assert_eq!((gpus, machine.items.len()), (rent.gpus as usize, 0), "{}", rent.name);
    }
}

/// Equal computers of these parts, with a card.
fn nodes(count: u32, words: &str, card: &str) -> Composed {
    let catalogue = Catalogue::shipped().unwrap();
    let cluster = Some(Cluster::new(count, card.into()));
    let choice = Choice { cluster, ..choice(&catalogue, words) };
    compose(&catalogue, &choice).unwrap_or_else(|error| panic!("{count} of {words}: {error}"))
}

fn typical(machine: &Composed) -> f64 {
    let day = "2026-11-27".parse().unwrap();
    let rates = Rates::new(Currency::usd(), &[]);
    price(&Catalogue::shipped().unwrap(), machine, (Condition::New, day), &rates).unwrap().range.typical
}

const H100: &str = "8xh100-sxm xeon-8480 32xddr5-rdimm-64g";
const RTX: &str = "2xrtx3090 epyc-7713p 8xddr4-rdimm-32g";

#[test]
fn nodes_are_equal_computers_with_a_network() {
    let (one, all) = (machine(H100), nodes(8, H100, "connectx7-400g"));
    assert_eq!((one.nodes, all.nodes), (1, 8));
    let count = |kind| all.items.iter().filter(|item| item.kind == kind).map(|item| item.count).sum::<u32>();
    let kinds = [Kind::Gpu, Kind::Platform, Kind::Board, Kind::NetworkCard, Kind::NetworkSwitch, Kind::Cable];
    assert_eq!(kinds.map(count), [64, 16, 8, 64, 1, 64], "a card for each GPU, and a port of one switch for each card");
    // 64 cards at 1,900, a switch at 30,000 and 64 cables at 1,800.
    assert!((typical(&all) - (8.0 * typical(&one) + 64.0 * 1900.0 + 30_000.0 + 64.0 * 1800.0)).abs() < 1e-3);
    let watts = |machine: &Composed| machine.power.at(0.7, 0.3).get();
    assert!((watts(&all) - (8.0 * watts(&one) + 64.0 * 25.0 + 1400.0)).abs() < 1e-6);
    let network = all.hardware.network.clone().unwrap();
    // 92 % of 50 GB/s; 16 lanes of generation 5 reach 50.4 GB/s.
    assert!((network.rate.get() / 1e9 - 46.0).abs() < 1e-9);
    assert_eq!((all.hardware.nodes, network.cards, network.at.is_empty()), (Some(8), 8, true));
    let hardware = profile(&all);
    assert_eq!(hardware.devices().iter().filter(|device| device.is_gpu()).count(), 64);
    assert!(all.name.starts_with("8-nodes-of-8xh100-sxm_xeon-8480_"), "{}", all.name);
    // The parts in the file compose the same machine again.
    let catalogue = Catalogue::shipped().unwrap();
    assert_eq!(compose(&catalogue, &Choice::from_parts(&catalogue, &all.hardware.parts).unwrap()).unwrap(), all);
}

#[test]
fn cards_are_as_many_as_slots_and_lanes_permit() {
    for (words, card, cards, rate) in [
        // Three of five slots are free, each with sixteen lanes.
        (RTX, "connectx6dx-100g", 2, 0.92 * 12.5),
        ("4xrtx-a4000 epyc-7713p 8xddr4-rdimm-32g", "connectx6dx-100g", 1, 0.92 * 12.5),
        // Eight lanes of generation 4 are left.
        ("rtx4090 ryzen-9950x 2xddr5-udimm-32g", "connectx6-200g", 1, 0.8 * 0.985 * 2.0 * 8.0),
        // The CPU has generation 4.
        ("rtx4090 epyc-7713p 8xddr4-rdimm-32g", "connectx7-400g", 1, 0.8 * 0.985 * 2.0 * 16.0),
    ] {
        let network = nodes(2, words, card).hardware.network.unwrap();
        assert_eq!((network.cards, &*network.at[0]), (cards, "root0"), "{words}");
        assert!((network.rate.get() / 1e9 - rate).abs() < 1e-9, "{words}: {}", network.rate.0);
    }
    // Two computers with two cards of 850 each, a switch at 13,000 and four cables at 200. The supply of 1,200 W becomes
    // one of 1,300 W, which costs 100 more: the cards draw 36 W.
    let more = typical(&nodes(2, RTX, "connectx6dx-100g")) - 2.0 * typical(&machine(RTX));
    assert!((more - (4.0 * 850.0 + 13_000.0 + 4.0 * 200.0 + 2.0 * 100.0)).abs() < 1e-3, "{more}");
    // 80 cards: five leaves with sixteen cards and sixteen ways up each, and three spines of 32 ports.
    let large = nodes(40, RTX, "connectx6dx-100g");
    let count = |kind| large.items.iter().find(|item| item.kind == kind).unwrap().count;
    assert_eq!((count(Kind::NetworkSwitch), count(Kind::Cable)), (5 + 3, 80 + 80));
}

#[test]
fn illegal_networks_break_a_named_rule() {
    let catalogue = Catalogue::shipped().unwrap();
    let said = |words: &str, cluster: Cluster| {
        let choice = Choice { cluster: Some(cluster), ..choice(&catalogue, words) };
        let error = compose(&catalogue, &choice).unwrap_err();
        assert!(error.diagnostic().to_string().contains("\nhint: "), "{error}");
        error.rule()
    };
    let of = |nodes| Cluster::new(nodes, "connectx6dx-100g".into());
    assert_eq!(said(RTX, of(0)), "nodes");
    assert_eq!(said(RTX, of(1)), "nodes");
    assert_eq!(said(RTX, of(5000)), "nodes");
    assert_eq!(said(RTX, Cluster { cards: Some(12), ..of(2) }), "network-slots");
    assert_eq!(said("2xrtx4090 ryzen-9950x 2xddr5-udimm-32g", of(2)), "network-slots");
    assert_eq!(said("rtx4090 ryzen-9950x 2xddr5-udimm-32g nvme4-1tb", of(2)), "network-lanes");
    // Sixteen cards for each of 32 leaves.
    assert_eq!(said(RTX, of(300)), "network-ports");
    assert_eq!(said(RTX, Cluster { switch: Some("qm9700".into()), ..of(2) }), "network-ports");
    assert_eq!(said(RTX, Cluster::new(2, "connectx9".into())), "unknown-part");
    let parts =
        |words: &[&str]| Choice::from_parts(&catalogue, &words.iter().map(|word| (*word).into()).collect::<Vec<_>>());
    let error = parts(&["2 x node", "1 x rtx3090", "1 x epyc-7713p"]).unwrap_err();
    assert_eq!(error.message, "the parts are those of 2 computers without a network card");
}

#[test]
fn rented_nodes_cost_so_many_times_one() {
    let catalogue = Catalogue::shipped().unwrap();
    let rent = |name: &str| catalogue.rents.iter().find(|rent| rent.name == name).unwrap();
    let (joined, alone) = (rent("aws-p5"), rent("vast-h100-sxm-x8"));
    let rates = Rates::new(Currency::usd(), &[]);
    let day = "2026-11-27".parse().unwrap();
    let hour = |nodes| rent_hour((joined, nodes), day, &rates).unwrap().typical;
    assert!((hour(1) - 98.32).abs() < 1e-9 && (hour(4) - 4.0 * 98.32).abs() < 1e-9);
    let machine = compose_rented(&catalogue, joined, 4).unwrap();
    let hardware = profile(&machine);
    assert_eq!(hardware.devices().iter().filter(|device| device.is_gpu()).count(), 32);
    assert_eq!((machine.name.as_str(), machine.nodes), ("4-nodes-of-aws-p5", 4));
    for (offer, nodes) in [(alone, 2), (joined, 0)] {
        assert_eq!(compose_rented(&catalogue, offer, nodes).unwrap_err().rule(), "nodes", "{}", offer.name);
    }
}
