//! The start times of an order's passes, from stage times and latencies alone.

use super::{Order, Pass, StageTimes, Token};
use spipe_base::{SimTime, StageId};
use std::collections::BTreeMap;

/// The start time of each pass, and the device of each stage.
#[derive(Clone, Debug)]
pub(super) struct Timing<'a> {
    /// By stage.
    pub times: &'a [StageTimes],
    starts: Starts,
    device_of: BTreeMap<StageId, usize>,
    last: usize,
}

/// Start times by stage, pass and microbatch.
#[derive(Clone, Debug)]
struct Starts {
    microbatches: usize,
    at: Vec<Option<SimTime>>,
}

impl Starts {
    /// Unknown starts of all passes of an order.
    fn of(order: &Order) -> Self {
        let tokens = || order.devices().iter().flatten();
        let microbatches = tokens().map(|token| token.microbatch.index() + 1).max().unwrap_or_default();
        let stages = tokens().map(|token| token.stage.index() + 1).max().unwrap_or_default();
        Self { microbatches, at: vec![None; stages * PASSES * microbatches] }
    }

    fn place(&self, token: Token) -> Option<usize> {
        let here = token.microbatch.index() < self.microbatches;
        here.then(|| {
            (token.stage.index() * PASSES + token.pass as usize) * self.microbatches + token.microbatch.index()
        })
    }

    fn get(&self, token: Token) -> Option<SimTime> {
        self.at.get(self.place(token)?).copied().flatten()
    }

    fn insert(&mut self, token: Token, start: SimTime) {
        if let Some(known) = self.place(token).and_then(|place| self.at.get_mut(place)) {
            *known = Some(start);
        }
    }
}

/// The kinds of passes.
const PASSES: usize = 4;

impl<'a> Timing<'a> {
    /// The earliest start times of a valid order.
    pub fn of(order: &Order, times: &'a [StageTimes]) -> Self {
        let devices = order.devices();
        let with_device = |(device, tokens): (usize, &Vec<Token>)| -> Vec<(StageId, usize)> {
            tokens.iter().map(|token| (token.stage, device)).collect()
        };
        let device_of = devices.iter().enumerate().flat_map(with_device).collect();
        let mut this = Self { times, starts: Starts::of(order), device_of, last: order.stages().saturating_sub(1) };
        let mut next = vec![0; devices.len()];
        let mut free = vec![SimTime::ZERO; devices.len()];
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for (device, tokens) in devices.iter().enumerate() {
                while let Some(token) = tokens.get(next[device]) {
                    let Some(arrival) = this.arrival(*token) else { break };
                    let start = arrival.max(free[device]);
                    this.starts.insert(*token, start);
                    free[device] = start + this.duration(*token);
                    next[device] += 1;
                    moved = true;
                }
            }
        }
        this
    }

    pub fn start(&self, token: Token) -> SimTime {
        self.starts.get(token).unwrap_or_default()
    }

    pub fn end(&self, token: Token) -> SimTime {
        self.start(token) + self.duration(token)
    }

    fn duration(&self, token: Token) -> SimTime {
        self.times.get(token.stage.index()).map_or(SimTime::ZERO, |times| times.of(token.pass))
    }

    /// The longest time of a device from its first start to its last end, and the last end of all
    /// devices.
    pub fn cost(&self, order: &Order) -> (SimTime, SimTime) {
        let reach = |tokens: &Vec<Token>| {
            let start = tokens.first().map_or(SimTime::ZERO, |token| self.start(*token));
            let end = tokens.last().map_or(SimTime::ZERO, |token| self.end(*token));
            (end - start, end)
        };
        let reaches = || order.devices().iter().map(reach);
        let longest = reaches().map(|(reach, _)| reach).max().unwrap_or_default();
        (longest, reaches().map(|(_, end)| end).max().unwrap_or_default())
    }

    /// The pass whose result `token` reads; `None` for the first forward.
    fn source(&self, token: Token) -> Option<Token> {
        let stage = token.stage.index();
        match token.pass {
            Pass::Forward => Some(Token { stage: stage.checked_sub(1)?.into(), ..token }),
            Pass::BackwardWeight => Some(Token { pass: Pass::BackwardInput, ..token }),
            _ if stage == self.last => Some(Token { pass: Pass::Forward, ..token }),
            _ => Some(Token { stage: (stage + 1).into(), ..token }),
        }
    }

    /// The arrival of the input of `token`; `None` while it is unknown.
    fn arrival(&self, token: Token) -> Option<SimTime> {
        let Some(source) = self.source(token) else { return Some(SimTime::ZERO) };
        self.starts.get(source).map(|start| start + self.duration(source) + self.latency(source, token))
    }

    fn latency(&self, from: Token, to: Token) -> SimTime {
        let same = self.device_of.get(&from.stage) == self.device_of.get(&to.stage);
        let boundary = from.stage.min(to.stage).index();
        if same { SimTime::ZERO } else { self.times.get(boundary).map_or(SimTime::ZERO, |times| times.latency) }
    }

    /// The same times with forwards delayed. Each forward starts `ahead` forward times before the
    /// latest start that delays no backward, or at its present start if that is later.
    pub fn with_late_forwards(&self, order: &Order, ahead: u64) -> Self {
        let mut late = self.clone();
        let next: BTreeMap<Token, Token> =
            order.devices().iter().flat_map(|tokens| tokens.windows(2).map(|pair| (pair[0], pair[1]))).collect();
        let tokens = || order.devices().iter().flatten().copied();
        let forwards = tokens().filter(|token| token.pass == Pass::Forward);
        let mut forwards: Vec<(SimTime, Token)> = forwards.map(|token| (self.start(token), token)).collect();
        forwards.sort_unstable();
        for (start, token) in forwards.into_iter().rev() {
            let consumer = if token.stage.index() == self.last {
                Token { pass: Pass::BackwardInput, ..token }
            } else {
                Token { stage: (token.stage.index() + 1).into(), ..token }
            };
            let by_consumer = late.starts.get(consumer).map(|start| start - self.latency(token, consumer));
            let by_next = next.get(&token).and_then(|next| late.starts.get(*next));
            let deadline = by_consumer.into_iter().chain(by_next).min();
            late.starts.insert(token, deadline.map_or(start, |deadline| deadline - self.duration(token)));
        }
        for token in tokens() {
            let slack = self.duration(Token { pass: Pass::Forward, ..token }) * ahead;
            let start = self.start(token).max(late.start(token).saturating_sub(slack));
            late.starts.insert(token, start);
        }
        late
    }
}
