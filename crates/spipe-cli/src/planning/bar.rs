//! The bar of a search on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use spipe_base::{SimTime, readable::percent};
use spipe_search::{Progress, gap};
use std::{io::IsTerminal, time::Duration};

/// The interval at which the bar shows the time, in ms.
const TICK: u64 = 100;

/// A bar with the limit, the best plan, the bound and the gap of a search.
#[derive(Clone)]
pub struct Bar {
    bar: ProgressBar,
    limit: Option<Duration>,
}

impl Bar {
    /// Starts a bar if stderr is a terminal. `limit` is the time limit of the search, if it has one.
    pub fn start(limit: Option<Duration>) -> Self {
        let shown = std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{spinner} planning for {elapsed}{msg}");
        let bar = ProgressBar::with_draw_target(None, target)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        if shown {
            bar.enable_steady_tick(Duration::from_millis(TICK));
        }
        Self { bar, limit }
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Bar {
    fn improved(&self, best: Option<SimTime>, bound: SimTime) {
        let limit = self.limit.map_or_else(String::new, |limit| format!(" of {} s", limit.as_secs_f64()));
        let best = match best {
            None => ", no plan yet".to_owned(),
            Some(best) if bound == SimTime::ZERO => format!(", best {best:.3}"),
            Some(best) => {
                let bound = bound.min(best);
                format!(", best {best:.3}, bound {bound:.3}, gap {}", percent(gap(best, bound)))
            }
        };
        self.bar.set_message(limit + &best);
    }
}
