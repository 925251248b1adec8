//! A chart of lines on logarithmic scales, as SVG.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

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
pub struct Line {
    /// What the legend calls it.
    pub label: String,
    /// Where it goes.
    pub points: Vec<(f64, f64)>,
}

/// What a chart says besides its lines.
pub struct Labels {
    /// Its file's name.
    pub file: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// What grows to the right.
    pub x: &'static str,
    /// What grows upwards.
    pub y: &'static str,
}

/// Draws a chart, if there are points.
pub fn draw(folder: &Path, labels: &Labels, lines: &[Line]) -> Result<()> {
    let points = || lines.iter().flat_map(|line| &line.points);
    if points().count() == 0 {
        return Ok(());
    }
    let span = |value: fn(&(f64, f64)) -> f64| {
        let values = points().map(value).filter(|value| *value > 0.0);
        let (least, most) = values.fold((f64::INFINITY, 0.0), |(least, most), value| {
            (f64::min(least, value), f64::max(most, value))
        });
        (least * 0.9..most * 1.2).log_scale()
    };
    let path = folder.join(labels.file);
    let area = SVGBackend::new(&path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    // The legend has a column of its own: no line runs under it.
    let (left, right) = area.split_horizontally(590);
    let mut chart = ChartBuilder::on(&left)
        .caption(labels.title, (FONT, 19))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(span(|point| point.0), span(|point| point.1))
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
