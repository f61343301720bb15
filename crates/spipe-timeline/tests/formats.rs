//! All formats of all kinds of traces.
#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod any_trace;
mod sample;

use any_trace::any_trace;
use proptest::prelude::*;
use quick_xml::{Reader, events::Event};
use sample::Pipeline;
use serde_json::Value;
use spipe_base::{Fold, LaneId, LaneRole, SimTime};
use spipe_timeline::{Picture, html, perfetto, png, svg, text};
use spipe_trace::{Lane, Origin, Trace};
use std::collections::{BTreeMap, BTreeSet};

const NOTE: &str = "emulated accelerator: CPU cores with a memory cap and a paced link, not a GPU";

fn pipeline(origin: Origin) -> Trace {
    sample::trace(Pipeline { gpus: 2, microbatches: 4, origin })
}

fn single(trace: &Trace) -> Picture<'_> {
    Picture { trace, second: None, title: None }
}

/// Reads the SVG to its end and returns the texts in it.
fn xml_texts(svg: &str) -> Vec<String> {
    let mut reader = Reader::from_str(svg);
    let (mut texts, mut depth) = (Vec::new(), 0);
    loop {
        match reader.read_event().unwrap() {
            Event::Start(tag) => {
                tag.attributes().for_each(|attribute| assert!(attribute.unwrap().unescape_value().is_ok()));
                depth += 1;
            }
            Event::End(_) => depth -= 1,
            Event::Text(text) => texts.push(text.decode().unwrap().trim().to_owned()),
            Event::GeneralRef(reference) => {
                assert!(["lt", "gt", "amp", "quot", "apos"].contains(&&*reference.decode().unwrap()))
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0);
    assert!(!svg.contains(|c: char| c.is_control() && c != '\n'), "XML has no control characters");
    texts
}

struct Pixels {
    width: u32,
    height: u32,
    dark: usize,
}

fn pixels(file: &[u8]) -> Pixels {
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut buffer = vec![0; reader.output_buffer_size()];
    let info = reader.next_frame(&mut buffer).unwrap();
    Pixels { width: info.width, height: info.height, dark: buffer.iter().filter(|part| **part < 200).count() }
}

/// Checks the properties on which Perfetto relies, and returns the events.
fn events(json: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(json).unwrap();
    let events = file["traceEvents"].as_array().unwrap().clone();
    let mut flows: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for event in &events {
        let phase = event["ph"].as_str().unwrap();
        assert!(event["pid"].is_u64() && event["tid"].is_u64() && event["name"].is_string(), "{event}");
        assert!(phase == "M" || event["ts"].as_f64().unwrap() >= 0.0, "{event}");
        match phase {
            "s" => flows.entry(event["id"].as_u64().unwrap()).or_default().0 += 1,
            "f" => {
                assert_eq!(event["bp"], "e");
                flows.entry(event["id"].as_u64().unwrap()).or_default().1 += 1;
            }
            "X" => assert!(event["dur"].as_f64().unwrap() >= 0.0),
            _ => {}
        }
    }
    assert!(flows.values().all(|ends| *ends == (1, 1)), "every flow starts once and ends once");
    events
}

/// The JSON that the page's script reads.
fn page_data(page: &str) -> Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(data).unwrap()
}

fn check_text_formats(picture: &Picture) {
    xml_texts(&svg(picture).unwrap());
    events(&perfetto(picture));
    let page = html(picture);
    assert_eq!(page.matches("<script").count(), 2, "names must not open scripts");
    let data = page_data(&page);
    for track in data["tracks"].as_array().unwrap() {
        let spans = track["start"].as_array().unwrap().len();
        for column in ["row", "kind", "end", "stage", "microbatch", "layers", "bytes", "wait"] {
            assert_eq!(track[column].as_array().unwrap().len(), spans, "{column}");
        }
    }
    for width in [0, 80, 200] {
        assert!(!text(picture, width).contains(|c: char| c.is_control() && c != '\n'));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_trace_draws(trace in any_trace(), second in proptest::option::of(any_trace())) {
        let json = spipe_trace::to_json(&trace);
        prop_assert!(spipe_trace::from_json(&json).is_ok());
        check_text_formats(&Picture { trace: &trace, second: second.as_ref(), title: None });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_trace_draws_in_pixels(trace in any_trace(), second in proptest::option::of(any_trace())) {
        let picture = Picture { trace: &trace, second: second.as_ref(), title: Some("a title") };
        prop_assert!(pixels(&png(&picture).unwrap()).dark > 0);
    }
}

#[test]
fn same_input_same_bytes() {
    let (predicted, measured) = (pipeline(Origin::Predicted), pipeline(Origin::Measured));
    let picture = Picture { trace: &predicted, second: Some(&measured), title: None };
    assert_eq!(svg(&picture).unwrap(), svg(&picture).unwrap());
    assert_eq!(png(&picture).unwrap(), png(&picture).unwrap());
    assert_eq!(html(&picture), html(&picture));
    assert_eq!(perfetto(&picture), perfetto(&picture));
    assert_eq!(text(&picture, 100), text(&picture, 100));
}

#[test]
fn notes_stand_in_every_picture() {
    let measured = pipeline(Origin::Measured);
    let picture = single(&measured);
    for drawn in [svg(&picture).unwrap(), html(&picture), perfetto(&picture), text(&picture, 100)] {
        assert!(drawn.contains(NOTE), "{drawn}");
    }
    let processes = events(&perfetto(&picture));
    let labels = processes.iter().filter(|event| event["name"] == "process_labels");
    assert!(labels.map(|event| event["args"]["labels"].as_str().unwrap()).all(|label| label.contains(NOTE)));
}

#[test]
fn svg_says_what_it_shows() {
    let trace = pipeline(Origin::Predicted);
    let texts = xml_texts(&svg(&single(&trace)).unwrap());
    let has = |text: &str| texts.iter().any(|found| found == text);
    for text in
        ["gpu0", "compute", "h2d", "2F0", "1B3", "time in ms", "iteration ends", "gradient", "forward (F)", "capacity"]
    {
        assert!(has(text), "{text} is missing in {texts:?}");
    }
    assert!(texts.iter().any(|text| text.starts_with("predicted · iteration ")));
}

#[test]
fn a_want_of_memory_is_said_everywhere() {
    let trace = sample::out_of_memory(pipeline(Origin::Measured));
    let picture = single(&trace);
    for drawn in [svg(&picture).unwrap(), html(&picture), perfetto(&picture), text(&picture, 100)] {
        assert!(drawn.contains("out of memory on gpu0"));
    }
    let red = svg(&picture).unwrap();
    assert!(red.lines().any(|line| line.starts_with("<text") && line.contains("#C00020")));
}

#[test]
fn two_traces_share_lanes_and_tell_their_difference() {
    let (predicted, measured) = (pipeline(Origin::Predicted), pipeline(Origin::Measured));
    let turned = Picture { trace: &measured, second: Some(&predicted), title: Some("both") };
    let data = page_data(&html(&turned));
    let labels: Vec<&Value> = data["tracks"].as_array().unwrap().iter().map(|track| &track["label"]).collect();
    assert_eq!(labels, ["predicted", "measured"], "the prediction stands above, whichever came first");
    assert!(
        data["rows"].as_array().unwrap().iter().all(|row| row["lanes"].as_array().unwrap().iter().all(Value::is_u64))
    );
    let expected = spipe_trace::compare(&predicted, &measured).iteration.error().unwrap() * 100.0;
    let line = text(&turned, 100).lines().find(|line| line.starts_with("iteration error")).unwrap().to_owned();
    assert!(line.contains(&format!("{:.1} %", expected.abs())), "{line}");
    let names: BTreeSet<String> = events(&perfetto(&turned))
        .iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(names.contains("predicted gpu0") && names.contains("measured gpu0"), "{names:?}");
}

#[test]
fn perfetto_has_every_span_bubble_sample_and_arrow() {
    let trace = pipeline(Origin::Predicted);
    let events = events(&perfetto(&single(&trace)));
    let count = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
    assert_eq!(count("X"), trace.spans.len() + trace.idle.len());
    assert_eq!(count("C"), trace.memories.iter().map(|memory| memory.samples.len()).sum::<usize>());
    assert_eq!(count("s"), trace.arrows.len());
    let first = events.iter().find(|event| event["name"] == "PP:2F0").unwrap();
    let span = trace.spans.iter().find(|span| span.label() == "2F0").unwrap();
    assert_eq!((first["ts"].as_f64().unwrap() * 1e3).round() as u64, span.start.as_ns());
    assert_eq!((&first["cat"], &first["args"]["kind"]), (&Value::from("user_annotation"), &Value::from("forward")));
    assert_eq!(first["args"]["microbatch"], 0);
    let copies = trace
        .arrows
        .iter()
        .filter(|arrow| [arrow.from, arrow.to].iter().any(|index| trace.spans[*index as usize].kind.is_transfer()));
    let flows = |phase: &str| events.iter().filter(|event| event["ph"] == phase && event["cat"] == "copy").count();
    let copies = copies.count();
    assert_eq!((flows("s"), flows("f")), (copies, copies));
}

#[test]
fn png_is_as_large_as_the_svg_says() {
    let trace = pipeline(Origin::Predicted);
    let file = png(&single(&trace)).unwrap();
    assert_eq!(file[..8], *b"\x89PNG\r\n\x1a\n");
    let pixels = pixels(&file);
    let svg = svg(&single(&trace)).unwrap();
    assert!(
        svg.starts_with(&format!("<svg width=\"{}\" height=\"{}\"", pixels.width / 2, pixels.height / 2)),
        "{}",
        &svg[..80]
    );
    assert!(pixels.dark > 100_000, "{} dark parts", pixels.dark);
}

#[test]
fn thousands_of_lanes_still_draw() {
    let mut trace = pipeline(Origin::Predicted);
    let span = trace.spans[0].clone();
    trace.arrows.clear();
    trace.lanes = (0..5000)
        .map(|lane| Lane { name: format!("gpu{lane}.compute"), device: format!("gpu{lane}"), role: LaneRole::Compute })
        .collect();
    trace.spans = (0..5000).map(|lane| spipe_trace::Span { lane: LaneId::new(lane), ..span.clone() }).collect();
    trace.idle.clear();
    check_text_formats(&single(&trace));
    assert!(svg(&single(&trace)).unwrap().contains("4000 lanes do not fit here"));
    assert!(pixels(&png(&single(&trace)).unwrap()).height < 20_000);
}

#[test]
fn an_empty_trace_draws() {
    let mut trace = pipeline(Origin::Predicted);
    trace.lanes.clear();
    trace.spans.clear();
    trace.arrows.clear();
    trace.idle.clear();
    trace.memories.clear();
    trace.iteration = SimTime::ZERO;
    check_text_formats(&single(&trace));
    assert!(pixels(&png(&single(&trace)).unwrap()).dark > 0);
}

#[test]
fn text_is_readable_without_colour() {
    let trace = sample::trace(Pipeline { gpus: 1, microbatches: 3, origin: Origin::Predicted });
    insta::assert_snapshot!(text(&single(&trace), 90), @r"
    1F1B, gpt-small, 1 GPUs and a CPU socket
    predicted · iteration 155.0 ms · 19,819 tokens/s · bubbles 43.0 % of compute time

    time in ms      0                    50                   100                  150
                    +--------------------+--------------------+--------------------+-  busy
    gpu0.compute   |F0fF1...............I0iW0F2f.........I1iW1.............I2W2w.....| 34.5 %
    gpu0.h2d       |                                                               >-|  2.6 %
    gpu0.d2h       |  ,  ,                     ,                               >--   |  4.3 %

    cpu0.compute   |...F0fffR0B0bbbbbbbbF1fffR1B1bbbbbbbbF2fffR2rB2bbbbbbbb..........| 79.5 %
    cpu0.optimizer |                                                      Ooo    Ooo |  6.5 %

    memory gpu0    |44666666666666666666666666666666666666666664444444444444444433333|
    memory dram0   |11111111111111111111111111111111111111111111111111111111111111111|

    F forward   R recompute   B backward   I backward-input   W backward-weight   > transfer
      , short transfers   O optimizer   . idle   0 to 9, # tenths of a memory
    idle: gradient 88.60 ms (66.5 %), drain 37.80 ms (28.4 %), warm-up 6.900 ms (5.2 %)
    peak of gpu0: 14.7 GiB of 24.0 GiB (parameters and gradients 9.0 GiB, saved activations
      5.7 GiB)
    peak of dram0: 43.8 GiB of 256.0 GiB (parameters and gradients 41.0 GiB, saved activations
      2.8 GiB)
    ");
}

/// A device that stands for a team and its replicas is drawn once, under a label that says so, and so is its memory.
#[test]
fn devices_that_stand_for_others_say_so() {
    let mut trace = pipeline(Origin::Predicted);
    let label = "gpu0..gpu1 × 8";
    trace.folds = vec![Fold { name: "gpu0".into(), team: "gpu0..gpu1".into(), teams: 8 }];
    let texts = xml_texts(&svg(&single(&trace)).unwrap());
    assert_eq!(texts.iter().filter(|text| *text == label).count(), 2, "a lane's device and a memory: {texts:?}");
    let drawn = text(&single(&trace), 120);
    assert!(drawn.contains("gpu0..gpu1.compute × 8") && drawn.contains("memory gpu0..gpu1 × 8"), "{drawn}");
    assert!(html(&single(&trace)).contains(label) && perfetto(&single(&trace)).contains(label));
}
