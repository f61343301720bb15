//! Megatron's layouts as text: what is read, what is refused and where, and one text for each layout.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use spipe_model::{Model, shipped};
use spipe_plan::{Layout, LayoutPart};

fn read(text: &str) -> Layout {
    Layout::read("layout", text).unwrap()
}

fn model(name: &str) -> Model {
    let text = shipped().iter().find(|(known, _)| *known == name).unwrap().1;
    Model::from_toml(name, text).unwrap()
}

/// The letters of each stage.
fn letters(layout: &Layout) -> Vec<String> {
    layout.stages().map(|stage| stage.into_iter().map(LayoutPart::letter).collect()).collect()
}

#[test]
fn published_layouts_are_read() {
    // DeepSeek-V3 on 16 ranks with 2 chunks, from the documentation of the option.
    let layout = read("Et*3|(tt|)*29,m|L");
    assert_eq!((layout.len(), layout.count(LayoutPart::Block), layout.count(LayoutPart::Prediction)), (32, 61, 1));
    assert_eq!(letters(&layout)[..2], ["Ettt", "tt"]);
    assert_eq!(letters(&layout)[29..], ["tt", "m", "L"]);
    for (text, stages) in [
        ("EtL", &["EtL"][..]),
        ("Et,(t|t|t)*2,tL", &["Ett", "t", "tt", "t", "ttL"]),
        ("E|(|t)*2,L", &["E", "", "t", "tL"]),
        ("Et||L", &["Et", "", "L"]),
        ("|Et|L|", &["", "Et", "L", ""]),
        ("Et|*3,L", &["Et", "", "", "L"]),
        ("E(t*2|)*2L", &["Ett", "tt", "L"]),
        ("E((t|)*2t)*2L", &["Et", "t", "tt", "t", "tL"]),
        ("Et*0t*0L", &["EL"]),
        ("E,t,*,2,|,L", &["Ett", "L"]),
    ] {
        assert_eq!(letters(&read(text)), stages, "{text}");
    }
}

#[test]
fn bad_text_is_refused_at_its_place() {
    for (text, column, words) in [
        ("Et*3|xL", 6, "`x` is no part of a layout"),
        ("Ett|tl", 6, "`l` is no part of a layout"),
        ("Et |tL", 3, "` ` is no part of a layout"),
        ("*3EtL", 1, "`*` follows no letter, bar or group"),
        ("Et*|L", 3, "`*` has no number"),
        ("Et*2*3|L", 5, "`*` follows no letter, bar or group"),
        ("E(tt|L", 2, "the group is not closed"),
        ("Ett|)*2L", 5, "`)` closes no group"),
        ("E()*2tL", 2, "the group is empty"),
        ("E(tt|)L", 2, "the group has no number behind it"),
        ("E(tt|)", 2, "the group has no number behind it"),
        ("", 1, "the layout is empty"),
        (",,", 3, "the layout is empty"),
        ("Et*99999999999999999999L", 3, "the layout has more than 65536 letters and bars"),
        ("E((t*999)*999)*999L", 10, "the layout has more than 65536 letters and bars"),
    ] {
        let fault = Layout::read("layout", text).unwrap_err();
        let position = fault.position.unwrap();
        assert_eq!((position.line, position.column, fault.message.as_str()), (1, column, words), "{text}");
    }
    // An item of nothing has no size, however often it is repeated.
    assert_eq!(letters(&read("E(t*0)*99999999999tL")), ["EtL"]);
}

#[test]
fn layouts_that_do_not_suit_the_model_are_refused_at_their_place() {
    let gpt2 = model("gpt2");
    let ranges: Vec<String> =
        read("Et*3||t*9|L").layers(&gpt2, 2).unwrap().iter().map(|range| range.in_words()).collect();
    assert_eq!(ranges, ["layers 0..3", "no layers", "layers 4..12", "layer 13"]);
    for (text, devices, column, words) in [
        ("Et*6|t*7L", 2, 6, "the layout has 13 `t`, but `gpt2` has 12 blocks"),
        ("Et*6|t*5L", 2, 6, "the layout has 11 `t`, but `gpt2` has 12 blocks"),
        ("t*6|t*6L", 2, 1, "the first letter of a layout is `E`, found `t`"),
        ("Et*6|t*6", 2, 6, "the last letter of a layout is `L`, found `t`"),
        ("Et*6|Et*6L", 2, 6, "`E` is there more than once"),
        ("Et*6L|t*6L", 2, 5, "`L` is there more than once"),
        ("Et*6|t*6mL", 2, 9, "`m` is a module that predicts further tokens, and `gpt2` has none"),
        ("Et*6|t*6L", 3, 10, "the layout has 2 stages, which 3 devices do not share evenly"),
        ("|Et*6|t*6|L", 2, 1, "stage 0 is empty and comes before `E`: it has nothing to pass on"),
    ] {
        let faults = read(text).layers(&gpt2, devices).unwrap_err();
        let faults: Vec<_> =
            faults.iter().map(|fault| (fault.position.as_ref().unwrap().column, fault.message.as_str())).collect();
        assert_eq!(faults, [(column, words)], "{text}");
    }
    let many = read("t*3|m|Lt").layers(&gpt2, 2).unwrap_err();
    assert_eq!(many.iter().count(), 5, "{many}");
    let towers = shipped().iter().map(|(name, _)| model(name)).find(|model| {
        matches!(model.architecture(), spipe_model::Architecture::TwoTowers(_) | spipe_model::Architecture::Unet(_))
    });
    if let Some(model) = towers {
        let refused = read("EtL").layers(&model, 1).unwrap_err().to_string();
        assert!(refused.contains("is no chain of an embedding, blocks and a head"), "{refused}");
    }
}

#[test]
fn further_tokens_are_predicted_in_one_stage_at_the_end() {
    let text = shipped().iter().find(|(name, _)| *name == "gpt2").unwrap().1;
    let more = text.replacen("layers = 12", "layers = 12\nmtp-layers = 2", 1);
    assert_ne!(text, more);
    let model = Model::from_toml("more.toml", &more).unwrap();
    for (text, words) in [
        ("Et*12|mmL", None),
        ("Et*12|L", None),
        ("Et*12||mm|L", None),
        ("Et*12|mL", Some("the layout has 1 `m`, but")),
        ("Et*12|mmmL", Some("the layout has 3 `m`, but")),
        ("Et*11mm|tL", Some("a block comes behind `m`")),
        ("Et*12m|mL", Some("`m` is in more than one stage")),
        ("Et*12mm|||L", Some("`m` is in stage 0, which is not the last one of its device")),
    ] {
        let found = read(text).layers(&model, 2);
        let found = found.map(|_| String::new()).unwrap_or_else(|faults| faults.to_string());
        match words {
            None => assert_eq!(found, "", "{text}"),
            Some(words) => assert!(found.contains(words), "{text}: {found}"),
        }
    }
}

/// A text, and the letters and bars that it stands for.
fn texts() -> impl Strategy<Value = (String, String)> {
    let letter = proptest::sample::select(vec!["E", "t", "t", "t", "m", "L", "|", "|"])
        .prop_map(|letter| (letter.to_owned(), letter.to_owned()));
    letter.prop_recursive(3, 24, 5, |inner| {
        let items = proptest::collection::vec((inner, 0_usize..4, any::<bool>()), 1..5);
        (items, any::<bool>()).prop_map(|(items, commas)| {
            let (mut text, mut whole) = (String::new(), String::new());
            for ((item, means), times, repeats) in items {
                let one = item.chars().filter(|letter| *letter != ',').count() == 1;
                if one && !repeats {
                    text += &item;
                    whole += &means;
                } else {
                    text += &if one { format!("{item}*{times}") } else { format!("({item})*{times}") };
                    whole += &means.repeat(times);
                }
                text += if commas { "," } else { "" };
            }
            (text, whole)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn texts_stand_for_what_is_written_out((text, whole) in texts()) {
        prop_assume!(!whole.is_empty());
        let layout = read(&text);
        prop_assert_eq!(letters(&layout), whole.split('|').map(str::to_owned).collect::<Vec<_>>());
        // The printed text is the same for every text of a layout.
        let printed = layout.to_string();
        prop_assert_eq!(&read(&printed), &layout, "{}", printed);
        prop_assert_eq!(read(&whole).to_string(), printed);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[EtmLx|(),*0-9]{0,24}") {
        if let Err(fault) = Layout::read("layout", &text) {
            prop_assert!((1..=text.len() + 1).contains(&fault.position.unwrap().column));
        }
    }
}
