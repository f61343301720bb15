//! Plots of figures.
#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use proptest::prelude::*;
use quick_xml::{Reader, events::Event};
use spipe_timeline::{Axis, Plot, Scale, Series, plot_png, plot_svg};

fn series(name: &str, shift: f64) -> Series {
    let points: Vec<(f64, f64)> = [24.0, 32.0, 64.0, 128.0].map(|x| (x, shift + 800.0 / x)).to_vec();
    Series { name: name.into(), line: points.clone(), points }
}

fn plot(scale: Scale) -> Plot {
    Plot {
        title: "Bubble rate against microbatches <8 devices>".into(),
        notes: vec!["rates & times of a paper".into()],
        x: Axis { label: "microbatches".into(), scale },
        y: Axis { label: "bubble, %".into(), scale: Scale::Linear },
        series: vec![series("1F1B", 1.0), series("a schedule whose long name takes more than one line", 7.0)],
        points_are: Some("published".into()),
        lines_are: Some("predicted".into()),
        diagonal: None,
    }
}

/// The texts of an SVG, each with its place and size.
fn texts(svg: &str) -> Vec<(String, f64, f64, f64)> {
    let mut reader = Reader::from_str(svg);
    let (mut texts, mut place) = (Vec::new(), None);
    loop {
        match reader.read_event().unwrap() {
            Event::Start(tag) => {
                let number = |name: &str| {
                    let value = tag.try_get_attribute(name).unwrap()?.unescape_value().unwrap().into_owned();
                    value.parse::<f64>().ok()
                };
                place = Some((number("x"), number("y"), number("font-size")));
            }
            Event::Text(text) => {
                let text = text.decode().unwrap().trim().to_owned();
                if let (Some((Some(x), Some(y), Some(size))), false) = (place, text.is_empty()) {
                    texts.push((text, x, y, size));
                }
            }
            Event::Eof => return texts,
            _ => {}
        }
    }
}

#[test]
fn words_of_a_plot_are_all_there() {
    let svg = plot_svg(&plot(Scale::Linear)).unwrap();
    let all: Vec<String> = texts(&svg).into_iter().map(|text| text.0).collect();
    for word in ["microbatches", "bubble, %", "1F1B", "published", "predicted", "0", "20", "100"] {
        assert!(all.iter().any(|text| text == word), "{word} is not among {all:?}");
    }
    assert!(svg.contains("&lt;8 devices&gt;") && svg.contains("rates &amp; times"));
}

#[test]
fn lines_of_the_legend_do_not_overlap() {
    let texts = texts(&plot_svg(&plot(Scale::Linear)).unwrap());
    let x = texts.iter().find(|text| text.0 == "1F1B").unwrap().1;
    let mut legend: Vec<f64> = texts.iter().filter(|text| (text.1 - x).abs() < 1.0).map(|text| text.2).collect();
    legend.sort_by(f64::total_cmp);
    assert!(legend.len() >= 5);
    let size = texts.iter().find(|text| text.0 == "1F1B").unwrap().3;
    assert!(legend.windows(2).all(|pair| pair[1] - pair[0] > size), "{legend:?} of size {size}");
}

#[test]
fn pixels_have_the_size_of_the_drawing() {
    let file = plot_png(&plot(Scale::Logarithmic)).unwrap();
    let reader = png::Decoder::new(file.as_slice()).read_info().unwrap();
    let svg = plot_svg(&plot(Scale::Logarithmic)).unwrap();
    let width: f64 = svg.split('"').nth(1).unwrap().parse().unwrap();
    assert_eq!(reader.info().width, (2.0 * width).round() as u32);
}

#[test]
fn both_axes_of_a_diagonal_are_one() {
    let points = vec![(3.0, 4.0), (90.0, 80.0)];
    let series = vec![Series { name: "rows".into(), points, ..Series::default() }];
    let plot = Plot { series, diagonal: Some("equal".into()), ..Plot::default() };
    let all: Vec<String> = texts(&plot_svg(&plot).unwrap()).into_iter().map(|text| text.0).collect();
    assert_eq!(all.iter().filter(|text| *text == "80").count(), 2);
}

#[test]
fn figures_without_a_place_are_refused() {
    let mut wrong = plot(Scale::Logarithmic);
    wrong.series[0].points.push((0.0, 1.0));
    assert!(plot_svg(&wrong).unwrap_err().to_string().contains("`microbatches`"));
}

proptest! {
    #[test]
    fn any_figures_are_drawn(points in prop::collection::vec((-1e6..1e6_f64, -1e-3..1e3_f64), 0..20)) {
        let series = vec![Series { name: "any".into(), line: points.clone(), points }];
        let plot = Plot { series, ..Plot::default() };
        prop_assert!(plot_svg(&plot).unwrap().ends_with("</svg>\n"));
    }
}
