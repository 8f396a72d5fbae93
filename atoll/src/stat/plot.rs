//! Use over time as a figure: stacked areas, one panel for all resources and one for each.
//!
//! The paper's figures 4 and 6 show processor time so, figures 5 and 7 bytes (Omni-kernel, section 4).

use std::collections::HashMap;

use atoll_abi::grid::Resource;
use atoll_supervisor::books::{Activity, Kind, Snapshot};
use atoll_supervisor::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::Measure;
use super::interval::{Cores, Interval, between, is_work};

/// Activities that have a colour of their own; what is left is one layer. Processes are part of those that are named.
const SHOWN: usize = 9;
/// Colours that people tell apart, on paper and with colour blindness, too (after Paul Tol's and Tableau's).
const COLOURS: [RGBColor; SHOWN] = [
    RGBColor(68, 119, 170),
    RGBColor(238, 102, 119),
    RGBColor(34, 136, 51),
    RGBColor(204, 187, 68),
    RGBColor(102, 204, 238),
    RGBColor(170, 51, 119),
    RGBColor(238, 153, 51),
    RGBColor(119, 85, 51),
    RGBColor(153, 221, 119),
];
const OTHERS: RGBColor = RGBColor(150, 150, 150);
const OVERHEAD: RGBColor = RGBColor(60, 60, 60);
const STOLEN: RGBColor = RGBColor(190, 120, 120);
const IDLE: RGBColor = RGBColor(235, 235, 235);

/// Sizes, in points of the figure.
const WIDTH: u32 = 1100;
const LEGEND: i32 = 250;
const PANEL: u32 = 250;
const FONT: (&str, i32) = ("sans-serif", 13);
const TITLE: (&str, i32) = ("sans-serif", 16);

/// One layer of the legend: a name and a colour.
type Layer = (String, RGBColor);

/// A panel: its title, the layers' values for each interval, and the top of its axis if that is fixed.
struct Panel {
    title: String,
    values: Vec<Vec<f64>>,
    top: Option<f64>,
}

/// Draws a series as SVG.
pub fn draw(series: &[Snapshot], measure: Measure) -> Result<String> {
    let intervals: Vec<Interval<'_>> =
        series.windows(2).map(|pair| between(Some(&pair[0]), &pair[1], Cores::All)).collect();
    let (Some(first), Some(last)) = (series.first(), series.last()) else {
        return Err(Error::new("there is nothing to draw"));
    };
    if intervals.is_empty() {
        return Err(Error::new("a figure takes two snapshots at least: the cell ended before the second"));
    }
    let edges: Vec<f64> = series.iter().map(|s| s.clock.saturating_sub(first.clock) as f64 / 1e9).collect();
    let layers = Layers::of(&intervals, measure);
    let panels = layers.panels(&intervals, measure);
    if measure == Measure::Counted && last.counts.is_none() {
        return Err(Error::new(format!(
            "{}: it counts nothing; `atoll run --counter cache-misses` starts a cell that does",
            last.cell
        )));
    }
    if panels.is_empty() {
        return Err(Error::new(format!(
            "{}: nothing was used in this time, or its runtime keeps no books",
            last.cell
        )));
    }
    let rows = panels.len().div_ceil(2) as u32;
    let mut text = String::new();
    let drawn = figure(&mut text, (WIDTH, 40 + rows * PANEL), last, measure, &layers.legend, &panels, &edges);
    drawn.map_err(|e| Error::new(format!("drawing: {e}")))?;
    Ok(text)
}

/// Which activity is in which layer.
struct Layers {
    of: HashMap<(u32, u32), usize>,
    legend: Vec<Layer>,
}

/// Whose layer a row is part of: that of the nearest activity above it which the configuration names, or its own.
fn owner<'a>(interval: &Interval<'a>, row: usize) -> &'a Activity {
    let (mut at, mut depth) = (row, interval.rows[row].depth);
    loop {
        if interval.rows[at].activity.kind == Kind::Named {
            return interval.rows[at].activity;
        }
        // Who is above stands before.
        match interval.rows[..at].iter().rposition(|r| r.depth < depth) {
            Some(above) => (at, depth) = (above, interval.rows[above].depth),
            None => return interval.rows[row].activity,
        }
    }
}

fn label(a: &Activity) -> String {
    let name: String = a.name.chars().take(28).collect();
    if matches!(a.kind, Kind::Process | Kind::Thread) { format!("{name} ({})", a.pid) } else { name }
}

fn key(a: &Activity) -> (u32, u32) {
    (a.id, a.generation)
}

impl Layers {
    /// The activities that use most, by their numbers, and one layer for the rest.
    fn of(intervals: &[Interval<'_>], measure: Measure) -> Layers {
        let mut sums: HashMap<(u32, u32), (f64, &Activity)> = HashMap::new();
        for interval in intervals {
            for (n, row) in interval.rows.iter().enumerate() {
                let work = row.uses.used().filter(|(r, _)| is_work(*r));
                let used: f64 = work.map(|(_, u)| measure.of(u).max(0.0)).sum();
                let owner = owner(interval, n);
                sums.entry(key(owner)).or_insert((0.0, owner)).0 += used;
            }
        }
        let mut most: Vec<(f64, &Activity)> = sums.into_values().filter(|(sum, _)| *sum > 0.0).collect();
        most.sort_by(|a, b| b.0.total_cmp(&a.0).then(key(a.1).cmp(&key(b.1))));
        let rest = most.split_off(most.len().min(SHOWN));
        most.sort_by_key(|(_, a)| key(a));
        let mut layers = Layers { of: HashMap::new(), legend: Vec::new() };
        for (n, (_, a)) in most.iter().enumerate() {
            layers.of.insert(key(a), n);
            layers.legend.push((label(a), COLOURS[n]));
        }
        if !rest.is_empty() {
            for (_, a) in &rest {
                layers.of.insert(key(a), layers.legend.len());
            }
            layers.legend.push((format!("{} others", rest.len()), OTHERS));
        }
        if measure == Measure::Time {
            for (name, colour) in [("overhead", OVERHEAD), ("stolen", STOLEN), ("idle", IDLE)] {
                layers.legend.push((name.into(), colour));
            }
        }
        layers
    }

    fn panels(&self, intervals: &[Interval<'_>], measure: Measure) -> Vec<Panel> {
        // Time in percent of the cores', the rest a second.
        let scaled = |interval: &Interval<'_>, value: f64| match measure {
            Measure::Time => value * 100.0 / interval.available.max(1.0),
            Measure::Queued | Measure::Device => value / interval.ns.max(1) as f64,
            _ => value * 1e9 / interval.ns.max(1) as f64,
        };
        let panel = |title: &str, top: Option<f64>, wanted: &dyn Fn(Resource) -> bool| {
            let value = |interval: &Interval<'_>| {
                let mut values = vec![0.0; self.legend.len()];
                for (n, row) in interval.rows.iter().enumerate() {
                    for (resource, u) in row.uses.used().filter(|(r, _)| wanted(*r)) {
                        let special = [Resource::Overhead, Resource::Stolen, Resource::Idle];
                        let layer = match special.iter().position(|r| *r == resource) {
                            Some(n) if measure == Measure::Time => Some(self.legend.len() - 3 + n),
                            Some(_) => None,
                            None => self.of.get(&key(owner(interval, n))).copied(),
                        };
                        if let Some(layer) = layer {
                            values[layer] += scaled(interval, measure.of(u));
                        }
                    }
                }
                // What is sampled may go back a little.
                values.iter_mut().for_each(|v| *v = v.max(0.0));
                values
            };
            Panel { title: title.into(), values: intervals.iter().map(value).collect(), top }
        };
        let sum = |p: &Panel| p.values.iter().flatten().sum::<f64>();
        let each = Resource::ALL.into_iter().filter(|r| is_work(*r));
        let mut panels: Vec<Panel> =
            each.map(|r| panel(r.name(), None, &|other| other == r)).filter(|p| sum(p) > 0.0).collect();
        // Bytes of different resources are often the same bytes.
        if measure == Measure::Time {
            let all = panel("all resources", Some(100.0), &|_| true);
            if sum(&all) > 0.0 {
                panels.insert(0, all);
            }
        }
        panels
    }
}

/// A number with a unit, short enough for an axis.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        0.0 => 0,
        v if v < 0.1 => 3,
        v if v < 1.0 => 2,
        v if v < 10.0 => 1,
        _ => 0,
    };
    let text = format!("{scaled:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

fn figure(
    text: &mut String,
    size: (u32, u32),
    last: &Snapshot,
    measure: Measure,
    legend: &[Layer],
    panels: &[Panel],
    edges: &[f64],
) -> Drawn {
    let root = SVGBackend::with_string(text, size).into_drawing_area();
    root.fill(&WHITE)?;
    let counted = format!("{} a second", last.counts.as_deref().unwrap_or("counted"));
    let unit = match measure {
        Measure::Time if last.cores == 1 => "% of the core's time",
        Measure::Time => "% of the cores' time",
        Measure::Bytes => "bytes a second",
        Measure::Messages => "messages a second",
        Measure::Queued => "messages in queues",
        Measure::Device => "requests at the host or the devices",
        Measure::Counted => &counted,
    };
    let cores = if last.cores == 1 { "1 core".into() } else { format!("{} cores", last.cores) };
    let title = format!("{}, {cores}: {unit}", last.cell);
    let root = root.titled(&title, ("sans-serif", 20))?;
    let (left, right) = root.split_horizontally(WIDTH as i32 - LEGEND);
    let cells = left.split_evenly((panels.len().div_ceil(2), 2));
    for (panel, area) in panels.iter().zip(&cells) {
        draw_panel(area, panel, legend, edges, unit)?;
    }
    for (n, (name, colour)) in legend.iter().enumerate() {
        let y = 20 + n as i32 * 24;
        right.draw(&Rectangle::new([(10, y), (26, y + 16)], colour.filled()))?;
        right.draw(&Rectangle::new([(10, y), (26, y + 16)], BLACK.stroke_width(1)))?;
        right.draw(&Text::new(name.clone(), (34, y + 2), FONT))?;
    }
    root.present()?;
    Ok(())
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    panel: &Panel,
    legend: &[Layer],
    edges: &[f64],
    unit: &str,
) -> Drawn {
    let highest = panel.values.iter().map(|v| v.iter().sum::<f64>()).fold(0.0, f64::max);
    // Books that don't balance reach above, and are seen to.
    let top = panel.top.map_or(highest * 1.08, |top| top.max(highest));
    let end = edges.last().copied().unwrap_or(1.0).max(1e-9);
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, TITLE)
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end, 0.0..top.max(1e-12))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(8)
        .y_labels(6)
        .x_desc("seconds")
        .y_desc(unit)
        .label_style(FONT)
        .axis_desc_style(FONT)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y))
        .draw()?;
    let mut below = vec![0.0; panel.values.len()];
    for (layer, (_, colour)) in legend.iter().enumerate() {
        let above: Vec<f64> = below.iter().zip(&panel.values).map(|(b, v)| b + v[layer]).collect();
        if above != below {
            // Steps: what is known of an interval is its sum.
            let step = |heights: &[f64]| -> Vec<(f64, f64)> {
                let both = heights.iter().enumerate();
                both.flat_map(|(n, h)| [(edges[n], *h), (edges[n + 1], *h)]).collect()
            };
            let mut points = step(&above);
            points.extend(step(&below).into_iter().rev());
            chart.draw_series(std::iter::once(Polygon::new(points, colour.filled())))?;
        }
        below = above;
    }
    Ok(())
}
