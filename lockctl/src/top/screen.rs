//! The terminal's whole screen: totals, the longest wait over time, the table
//! of `lockctl ls`, and how to break what is stuck.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, RenderDirection, Row, Sparkline, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use rustix::process::Signal;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::sampling::Sample;
use crate::failure::Failure;
use crate::ls::{HEADER, STUCK, rows};
use crate::signals::stop_self;
use crate::view::{LockView, grace, seconds};

/// More samples than any terminal has columns.
const HISTORY: usize = 1000;
const GRAPH_ROWS: u16 = 5;
const PAGE: u16 = 10;
/// How many stuck locks have their commands shown.
const STUCK_ROWS: usize = 5;

/// What is shown. The terminal is as before when it is dropped.
pub struct Screen {
    terminal: DefaultTerminal,
    events: UnboundedReceiver<io::Result<Event>>,
    picture: Picture,
}

struct Picture {
    address: String,
    interval: Duration,
    /// The last one that was taken, and why a later one was not.
    sample: Option<Sample>,
    failure: Option<String>,
    /// The longest wait of each sample in milliseconds, the newest first.
    waits_ms: VecDeque<u64>,
    scrolled: TableState,
}

impl Screen {
    /// Takes the terminal.
    pub fn open(address: &str, interval: Duration) -> io::Result<Self> {
        let (sender, events) = unbounded_channel();
        // To wait for a key keeps a thread busy. It ends with the process.
        std::thread::Builder::new()
            .name("keyboard".into())
            .spawn(move || {
                let mut is_there = true;
                while is_there {
                    let event = event::read();
                    is_there = event.is_ok();
                    is_there &= sender.send(event).is_ok();
                }
            })?;
        Ok(Self {
            terminal: ratatui::try_init()?,
            events,
            picture: Picture {
                address: address.into(),
                interval,
                sample: None,
                failure: None,
                waits_ms: VecDeque::new(),
                scrolled: TableState::default(),
            },
        })
    }

    /// Shows this from now on, or that it was not to be had.
    pub fn add(&mut self, sample: Result<Sample, Failure>) {
        self.picture.add(sample);
    }

    /// Shows it as it is now.
    pub fn draw(&mut self) -> io::Result<()> {
        self.terminal.draw(|frame| self.picture.draw(frame))?;
        Ok(())
    }

    /// Waits for a key, or until the terminal has another size. Breaks off when
    /// somebody has seen enough.
    pub async fn key(&mut self) -> io::Result<ControlFlow<()>> {
        match self.events.recv().await {
            Some(Ok(Event::Key(key))) if key.is_press() => Ok(self.picture.press(key)),
            Some(Ok(_)) => Ok(ControlFlow::Continue(())),
            Some(Err(error)) => Err(error),
            // The terminal is gone.
            None => Ok(ControlFlow::Break(())),
        }
    }

    /// Stops this process with the terminal as it was before, and goes on when
    /// somebody continues it.
    pub fn suspend(&mut self) -> io::Result<()> {
        ratatui::try_restore()?;
        stop_self(Signal::TSTP);
        self.terminal = ratatui::try_init()?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nobody is there to be told if the terminal is gone.
        let _ = ratatui::try_restore();
    }
}

impl Picture {
    fn add(&mut self, sample: Result<Sample, Failure>) {
        match sample {
            Ok(sample) => {
                self.waits_ms.push_front(sample.longest_wait_ms);
                self.waits_ms.truncate(HISTORY);
                self.sample = Some(sample);
                self.failure = None;
            }
            Err(failure) => self.failure = Some(failure.to_string()),
        }
    }

    fn press(&mut self, key: KeyEvent) -> ControlFlow<()> {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return ControlFlow::Break(()),
            KeyCode::Char('c') if is_control => return ControlFlow::Break(()),
            KeyCode::Down | KeyCode::Char('j') => self.scrolled.scroll_down_by(1),
            KeyCode::Up | KeyCode::Char('k') => self.scrolled.scroll_up_by(1),
            KeyCode::PageDown => self.scrolled.scroll_down_by(PAGE),
            KeyCode::PageUp => self.scrolled.scroll_up_by(PAGE),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn locks(&self) -> &[LockView] {
        self.sample.as_ref().map_or(&[], |sample| &sample.locks)
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let stuck: Vec<_> = self
            .locks()
            .iter()
            .filter_map(|lock| lock.safe_break.clone())
            .collect();
        let stuck_rows = match stuck.len().min(STUCK_ROWS) {
            0 => 0,
            rows => rows as u16 + 2,
        };
        let [totals, graph, table, footer] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(GRAPH_ROWS + 1),
            Constraint::Min(3),
            Constraint::Length(stuck_rows),
        ])
        .areas(frame.area());
        frame.render_widget(self.totals(), totals);
        self.draw_graph(frame, graph);
        self.draw_table(frame, table);
        draw_stuck(frame, footer, &stuck);
    }

    fn totals(&self) -> Text<'static> {
        let locks = self.locks().len();
        let (waiting, longest_ms, grants, releases) = match &self.sample {
            Some(sample) => (
                sample.waiting,
                sample.longest_wait_ms,
                sample.grants_per_second,
                sample.releases_per_second,
            ),
            None => (0, 0, None, None),
        };
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".into(), |rate| format!("{rate:.1}"));
        let totals = format!(
            "{locks} contended, {waiting} waiting, longest {}; {} grants/s, {} releases/s",
            seconds(longest_ms),
            rate(grants),
            rate(releases),
        );
        let totals = match grace(self.locks()) {
            Some(grace) => format!("{totals}. {grace}"),
            None => totals,
        };
        let status = match &self.failure {
            Some(failure) => Line::from(failure.clone()).red(),
            None => Line::from(totals),
        };
        let title = format!("lockctl top   {}   q quits", self.address);
        Text::from(vec![Line::from(title).bold(), status])
    }

    fn draw_graph(&self, frame: &mut Frame<'_>, area: Rect) {
        let shown = self.waits_ms.iter().take(area.width.into());
        let most_ms = shown.clone().max().copied().unwrap_or_default();
        let over = (self.interval * u32::from(area.width)).as_secs();
        let title = format!(
            "Longest wait, up to {}, over the last {}",
            seconds(most_ms),
            humantime::format_duration(Duration::from_secs(over))
        );
        let graph = Sparkline::default()
            .block(Block::new().title(title.dim()))
            .direction(RenderDirection::RightToLeft)
            .data(shown);
        frame.render_widget(graph, area);
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let rows: Vec<_> = self.locks().iter().flat_map(rows).collect();
        let widths = std::array::from_fn::<_, { HEADER.len() }, _>(|column| {
            if column + 1 == HEADER.len() {
                // Who blocks is shortened first.
                return Constraint::Fill(1);
            }
            let cells = rows.iter().map(|row| row[column].chars().count());
            let width = cells
                .chain([HEADER[column].len()])
                .max()
                .unwrap_or_default();
            Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX))
        });
        let table = Table::new(rows.into_iter().map(Row::new), widths)
            .column_spacing(2)
            .header(Row::new(HEADER).style(Style::new().bold()));
        frame.render_stateful_widget(table, area, &mut self.scrolled);
    }
}

fn draw_stuck(frame: &mut Frame<'_>, area: Rect, stuck: &[String]) {
    if stuck.is_empty() {
        return;
    }
    let mut lines = vec![Line::from(STUCK).bold()];
    let commands = stuck.iter().take(STUCK_ROWS);
    lines.extend(commands.map(|command| Line::from(format!("  {command}"))));
    frame.render_widget(Text::from(lines), area);
}
