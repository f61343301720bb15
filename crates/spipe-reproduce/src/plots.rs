//! Pictures of tables: predicted lines through published points, or predicted against published
//! figures.

use crate::reproduction::{Cell, FigurePlace, Picture, Reproduction};
use spipe_timeline::{Axis, Plot, Scale, Series};

/// The pictures of a reproduction; none for a table without any.
pub fn pictures(made: &Reproduction) -> Vec<Picture> {
    let table = made.table.as_str();
    let curves = |column: &str, title: &str, x: &str, y: &str, factor: f64| curves(made, column, (title, x, y), factor);
    let all = match table {
        "zero-bubble" => curves("", "Bubble rate against microbatches", "microbatches", "bubble, %", 100.0),
        "pipeoffload" => curves(
            "",
            "Time to offload and reload an activation over compute time of its layer (k)",
            "hidden size",
            "k",
            1.0,
        ),
        "pipeoffload-peaks" => vec![against(made, "peak", "Peaks of offloading schedules", "activations", false)],
        "pipeoffload-runs" => vec![
            against(made, "utilisation", "Utilisation of A100 GPUs", "share of the peak", false),
            against(made, "activations, GiB", "Activation memory", "GiB", true),
        ],
        "pipeoffload-tensor" => {
            vec![against(made, "times as fast", "Offloading over tensor parallelism", "times as fast", false)]
        }
        "superpipeline" => {
            let title = "Memory of a pass against its units";
            let mut all = curves("memory, GB", title, "units on the device: k + k', naive k", "memory, GB", 1.0);
            all.push(against(made, "time, ms", "Time of a pass", "ms", true));
            all
        }
        "superpipeline-training" => {
            let title = "Memory in training against batch size, by the memory count alone";
            curves("by shapes, GB", title, "sequences or images per batch", "memory, GB", 1.0)
        }
        "spipe-tails" => vec![against(made, "", "Serial optimizer steps", "ms", false)],
        "spipe-article" => vec![needs(made)],
        _ if made.cells.iter().any(|cell| cell.column == ITERATION) => {
            let mut all = vec![against(made, ITERATION, "Time of an iteration", "ms", true)];
            all.extend(gains(made));
            all
        }
        _ => Vec::new(),
    };
    let files = |(index, picture): (usize, Picture)| {
        let name = if index == 0 { table.to_owned() } else { format!("{table}-{}", slug(&picture.name)) };
        Picture { name, ..picture }
    };
    all.into_iter().filter(|picture| !picture.plot.series.is_empty()).enumerate().map(files).collect()
}

const ITERATION: &str = "iteration, ms";

/// A file name of lower-case letters, digits and hyphens.
fn slug(words: &str) -> String {
    let letters =
        words.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' });
    let parts: Vec<String> =
        letters.collect::<String>().split('-').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    parts.join("-")
}

/// The cells of `column`, or of all columns if it is empty.
fn of_column<'a>(made: &'a Reproduction, column: &'a str) -> impl Iterator<Item = &'a Cell> {
    made.cells.iter().filter(move |cell| column.is_empty() || cell.column == column)
}

/// The series called `name`, which is added if it is not there yet.
fn series<'a>(all: &'a mut Vec<Series>, name: &str) -> &'a mut Series {
    let index = all.iter().position(|series| series.name == name).unwrap_or_else(|| {
        all.push(Series { name: name.into(), ..Series::default() });
        all.len() - 1
    });
    &mut all[index]
}

/// One picture for each name in the places of the cells: predictions as lines, published figures as
/// points, both times `factor`.
fn curves(made: &Reproduction, column: &str, (title, x, y): (&str, &str, &str), factor: f64) -> Vec<Picture> {
    let mut pictures: Vec<Picture> = Vec::new();
    for cell in of_column(made, column) {
        let Some(FigurePlace { picture, series: name, x: Some(at) }) = &cell.place else { continue };
        let index = pictures.iter().position(|other| other.name == *picture).unwrap_or_else(|| {
            let title = if picture.is_empty() { title.to_owned() } else { format!("{title}: {picture}") };
            let plot = Plot {
                title,
                notes: vec![made.source.clone()],
                x: Axis { label: x.into(), scale: Scale::Linear },
                y: Axis { label: y.into(), scale: Scale::Linear },
                points_are: Some("published".into()),
                lines_are: Some("predicted".into()),
                ..Plot::default()
            };
            pictures.push(Picture { name: picture.clone(), plot });
            pictures.len() - 1
        });
        let own = series(&mut pictures[index].plot.series, name);
        own.points.extend(cell.published.map(|published| (*at, factor * published)));
        own.line.extend(cell.ours.map(|ours| (*at, factor * ours)));
    }
    for series in pictures.iter_mut().flat_map(|picture| &mut picture.plot.series) {
        series.line.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    pictures
}

/// Published figures on the horizontal axis, ours on the vertical one: the predicted cells, or the
/// fitted ones if none is predicted.
fn against(made: &Reproduction, column: &str, title: &str, unit: &str, logarithmic: bool) -> Picture {
    let compared: Vec<&Cell> = of_column(made, column).filter(|cell| cell.error.is_some()).collect();
    let predicted = compared.iter().filter(|cell| cell.fitted.is_none()).count();
    let mut all = Vec::new();
    for cell in compared.iter().filter(|cell| predicted == 0 || cell.fitted.is_none()) {
        let (Some(published), Some(ours)) = (cell.published, cell.ours) else { continue };
        let name = cell.place.as_ref().map_or_else(|| system_of(&cell.row), |place| place.series.clone());
        series(&mut all, &name).points.push((published, ours));
    }
    let mut picture = diagonal(made, title, unit, (all, logarithmic));
    let fitted = compared.len() - predicted;
    picture.plot.notes.extend(match (predicted, fitted) {
        (0, _) => Some("All of these were fitted.".into()),
        (_, 0) => None,
        _ => Some(format!("Without {fitted} figures that were fitted.")),
    });
    picture
}

fn diagonal(made: &Reproduction, title: &str, unit: &str, (series, logarithmic): (Vec<Series>, bool)) -> Picture {
    let scale = if logarithmic { Scale::Logarithmic } else { Scale::Linear };
    let plot = Plot {
        title: format!("{title}: predicted against published"),
        notes: vec![made.source.clone()],
        x: Axis { label: format!("published, {unit}"), scale },
        y: Axis { label: format!("predicted, {unit}"), scale },
        series,
        diagonal: Some("predicted as published".into()),
        ..Plot::default()
    };
    Picture { name: title.into(), plot }
}

/// The part of a row's name that names a system.
fn system_of(row: &str) -> String {
    let part = row.split(", ").find(|part| part.parse::<spipe_plan::System>().is_ok());
    part.unwrap_or("rows").into()
}

/// The speedup of SPipe over Mobius, by model.
fn gains(made: &Reproduction) -> Option<Picture> {
    let mut all = Vec::new();
    for fast in of_column(made, ITERATION).filter(|cell| cell.row.contains(", spipe, ")) {
        let other = fast.row.replace(", spipe, ", ", mobius, ");
        let Some(slow) = of_column(made, ITERATION).find(|cell| cell.row == other) else { continue };
        let published = slow.published? / fast.published?;
        let ours = slow.ours? / fast.ours?;
        let model = fast.row.split(',').next().unwrap_or_default();
        series(&mut all, model).points.push((published, ours));
    }
    (!all.is_empty()).then(|| diagonal(made, "Gain of SPipe over Mobius", "times as fast", (all, false)))
}

/// The bytes that each memory needs against the bytes that it can hold.
fn needs(made: &Reproduction) -> Picture {
    let mut all = Vec::new();
    for cell in &made.cells {
        let (Some(FigurePlace { series: name, x: Some(usable), .. }), Some(needed)) = (&cell.place, cell.ours) else {
            continue;
        };
        series(&mut all, name).points.push((*usable, needed));
    }
    let plot = Plot {
        title: "What configurations need in each memory against what is there".into(),
        notes: vec![made.source.clone(), "Points above the line do not fit.".into()],
        x: Axis { label: "usable, GiB".into(), scale: Scale::Logarithmic },
        y: Axis { label: "needed, GiB".into(), scale: Scale::Logarithmic },
        series: all,
        diagonal: Some("needed as usable".into()),
        ..Plot::default()
    };
    Picture { name: "needs".into(), plot }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(table: &str, cells: Vec<Cell>) -> Reproduction {
        Reproduction { table: table.into(), ..Reproduction::new("a paper", "ms", cells) }
    }

    #[test]
    fn curves_are_sorted_and_split_by_picture() {
        let cell = |model: &str, x: f64| Cell::difference("row", "1f1b", 0.2, x / 1000.0).at(model, "1f1b", Some(x));
        let pictures =
            pictures(&made("zero-bubble", vec![cell("1.5B", 64.0), cell("1.5B", 32.0), cell("14.6B", 48.0)]));
        let names: Vec<&str> = pictures.iter().map(|picture| picture.name.as_str()).collect();
        assert_eq!(names, ["zero-bubble", "zero-bubble-14-6b"]);
        assert_eq!(pictures[0].plot.series[0].line, [(32.0, 3.2), (64.0, 6.4)]);
        assert_eq!(pictures[0].plot.series[0].points, [(64.0, 20.0), (32.0, 20.0)]);
    }

    #[test]
    fn gains_are_of_pairs() {
        let cell = |system: &str, published: f64, ours: f64| {
            Cell::relative(format!("10B, {system}, 4 GPUs, 8 microbatches"), ITERATION, published, ours)
        };
        let table = made(
            "spipe-figure-9",
            vec![cell("mobius", 30.0, 33.0), cell("spipe", 20.0, 22.0), cell("spipe", 1.0, 1.0)],
        );
        let pictures = pictures(&table);
        assert_eq!(pictures.len(), 2);
        assert_eq!(
            pictures[0].plot.series.iter().map(|series| series.name.as_str()).collect::<Vec<_>>(),
            ["mobius", "spipe"]
        );
        assert_eq!(pictures[1].plot.series[0].points[0], (1.5, 1.5));
    }
}
