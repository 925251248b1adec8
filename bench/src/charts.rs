//! The charts, as SVG.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::report::Name;
use crate::results::Results;

const SIZE: (u32, u32) = (860, 480);
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 10] = [
    RGBColor(214, 39, 40),
    RGBColor(31, 119, 180),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(127, 127, 127),
    RGBColor(140, 86, 75),
    RGBColor(23, 190, 207),
    RGBColor(188, 189, 34),
    RGBColor(227, 119, 194),
];

/// A line of a chart.
struct Line {
    label: String,
    points: Vec<(f64, f64)>,
}

/// What a chart says besides its lines.
struct Labels {
    file: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
}

/// Draws every chart for which there are figures.
pub fn write(folder: &Path, names: &[Name], results: &Results) -> Result<()> {
    waiters(folder, names, results)?;
    contended(folder, names, results)
}

fn waiters(folder: &Path, names: &[Name], results: &Results) -> Result<()> {
    let lines = by_number(names, results, "hand-off-", "hand-off p50 µs");
    let labels = Labels {
        file: "hand-off-waiters.svg",
        title: "Hand-off against the number of waiters",
        x: "waiters (log)",
        y: "µs to the next holder, median (log)",
    };
    draw(folder, &labels, &lines, |area, (x, y)| {
        plot(area, &labels, &lines, x.log_scale(), y.log_scale())
    })
}

fn contended(folder: &Path, names: &[Name], results: &Results) -> Result<()> {
    let lines = by_number(names, results, "contended-", "sections/s");
    let labels = Labels {
        file: "contended-sections.svg",
        title: "One lock, fought over",
        x: "clients (log)",
        y: "sections a second (log)",
    };
    draw(folder, &labels, &lines, |area, (x, y)| {
        plot(area, &labels, &lines, x.log_scale(), y.log_scale())
    })
}

/// The figures of all scenarios whose names are a prefix and a number.
fn by_number(names: &[Name], results: &Results, prefix: &str, metric: &str) -> Vec<Line> {
    each_name(names, |name| {
        let series = results
            .series
            .iter()
            .filter(|series| series.contender == name && series.metric == metric);
        let points = series.filter_map(|series| {
            let number: f64 = series.scenario.strip_prefix(prefix)?.parse().ok()?;
            Some((number, series.median()))
        });
        Some(points.collect())
    })
}

fn each_name(names: &[Name], points: impl Fn(&str) -> Option<Vec<(f64, f64)>>) -> Vec<Line> {
    let lines = names.iter().filter_map(|name| {
        Some(Line {
            label: name.title.replace(['`', '*'], ""),
            points: points(name.name)?,
        })
    });
    lines.filter(|line| !line.points.is_empty()).collect()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Span = std::ops::Range<f64>;

/// Opens the file and works out how far the points reach.
fn draw(
    folder: &Path,
    labels: &Labels,
    lines: &[Line],
    plot: impl FnOnce(&Area, (Span, Span)) -> Result<()>,
) -> Result<()> {
    let points = || lines.iter().flat_map(|line| &line.points);
    if points().count() == 0 {
        return Ok(());
    }
    let span = |value: fn(&(f64, f64)) -> f64| {
        let values = points().map(value).filter(|value| *value > 0.0);
        let (least, most) = values.fold((f64::INFINITY, 0.0), |(least, most), value| {
            (f64::min(least, value), f64::max(most, value))
        });
        least * 0.9..most * 1.2
    };
    let path = folder.join(labels.file);
    let area = SVGBackend::new(&path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    plot(&area, (span(|point| point.0), span(|point| point.1)))?;
    area.present()?;
    Ok(())
}

fn plot<X, Y>(area: &Area, labels: &Labels, lines: &[Line], x: X, y: Y) -> Result<()>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    // The legend has a column of its own: no line runs under it.
    let (left, right) = area.split_horizontally(590);
    let mut chart = ChartBuilder::on(&left)
        .caption(labels.title, (FONT, 19))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(labels.x)
        .y_desc(labels.y)
        .x_label_formatter(&|value| plain(*value))
        .y_label_formatter(&|value| plain(*value))
        .label_style((FONT, 13))
        .draw()
        .map_err(drawing)?;
    for (n, line) in lines.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let points = || line.points.iter().copied();
        chart
            .draw_series(LineSeries::new(points(), colour.stroke_width(2)))
            .map_err(drawing)?;
        let dots = points().map(|point| Circle::new(point, 3, colour.filled()));
        chart.draw_series(dots).map_err(drawing)?;
        let height = 60 + 24 * i32::try_from(n)?;
        right.draw(&Rectangle::new(
            [(0, height), (16, height + 4)],
            colour.filled(),
        ))?;
        let text = (FONT, 13).into_font().color(&BLACK);
        right.draw(&Text::new(line.label.clone(), (22, height - 5), text))?;
    }
    Ok(())
}

fn plain(value: f64) -> String {
    if value >= 1.0 || value == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// Errors of a drawing borrow from it; only their text gets out.
fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}
