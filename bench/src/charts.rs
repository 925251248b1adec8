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
    latency(folder, names, results)?;
    waiters(folder, names, results)?;
    contended(folder, names, results)?;
    server_cpu(folder, names, results)
}

/// How many hand-offs to one waiter took so long at most.
fn latency(folder: &Path, names: &[Name], results: &Results) -> Result<()> {
    let lines: Vec<Line> = each_name(names, |name| {
        let latencies = results
            .latencies
            .iter()
            .find(|of| of.scenario == "hand-off-1" && of.contender == name)?;
        let histogram = &latencies.histogram;
        let points = histogram.iter_quantiles(20).map(|step| {
            (
                step.value_iterated_to() as f64 / 1000.0,
                step.quantile() * 100.0,
            )
        });
        Some(points.collect())
    });
    let labels = Labels {
        file: "hand-off-latency.svg",
        title: "Hand-off to one waiter: how many took at most so long",
        x: "µs from the release to the next holder (log)",
        y: "% of hand-offs",
    };
    draw(folder, &labels, &lines, |area, (x, _)| {
        plot(area, &labels, &lines, x.log_scale(), 0.0..100.0, false)
    })
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
        plot(area, &labels, &lines, x.log_scale(), y.log_scale(), true)
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
        plot(area, &labels, &lines, x.log_scale(), y.log_scale(), true)
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

fn plot<X, Y>(
    area: &Area,
    labels: &Labels,
    lines: &[Line],
    x: X,
    y: Y,
    with_dots: bool,
) -> Result<()>
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
        if with_dots {
            let dots = points().map(|point| Circle::new(point, 3, colour.filled()));
            chart.draw_series(dots).map_err(drawing)?;
        }
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

/// Server time of an uncontended pair, as bars.
fn server_cpu(folder: &Path, names: &[Name], results: &Results) -> Result<()> {
    let bars: Vec<(String, f64)> = names
        .iter()
        .filter_map(|name| {
            let series = results.find("pipelined-cpu", name.name, "server CPU µs/pair")?;
            Some((name.title.replace(['`', '*'], ""), series.median()))
        })
        .collect();
    let Some(most) = bars.iter().map(|bar| bar.1).max_by(f64::total_cmp) else {
        return Ok(());
    };
    const LEFT: i32 = 310;
    const ROW: i32 = 34;
    const TOP: i32 = 56;
    let height = TOP + ROW * i32::try_from(bars.len())? + 16;
    let path = folder.join("server-cpu.svg");
    let area = SVGBackend::new(&path, (SIZE.0, height.unsigned_abs())).into_drawing_area();
    area.fill(&WHITE)?;
    let title = "Server CPU of an uncontended acquire and release, µs";
    area.draw(&Text::new(title, (16, 16), (FONT, 19)))?;
    let longest = f64::from(SIZE.0) - f64::from(LEFT) - 80.0;
    for (n, (label, value)) in bars.iter().enumerate() {
        let y = TOP + ROW * i32::try_from(n)?;
        let end = LEFT + (value / most * longest) as i32;
        let colour = COLOURS[usize::from(n != 0)];
        area.draw(&Text::new(label.clone(), (16, y + 6), (FONT, 14)))?;
        area.draw(&Rectangle::new([(LEFT, y), (end, y + 22)], colour.filled()))?;
        let value = format!("{value:.2}");
        area.draw(&Text::new(value, (end + 6, y + 6), (FONT, 14)))?;
    }
    area.present()?;
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
