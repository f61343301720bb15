//! The parts of the model that torchtitan makes stages of, and the order of their passes.

use crate::torch::Exported;
use spipe_base::{DeviceId, Diagnostic, LayerId, StageId};
use spipe_plan::{OrderKind, Placement};
use spipe_schedule::{Order, Token};

/// A schedule of PyTorch, and whether a file has its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Schedule {
    /// Its name, which also says where stages are.
    pub name: &'static str,
    /// Whether `schedule.csv` has the order.
    pub csv: bool,
}

/// Consecutive layers, each on one device.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The layers of each part.
    pub layers: Vec<Vec<LayerId>>,
    devices: Vec<DeviceId>,
    /// The passes of the parts on each device, the devices in the order of their first parts.
    pub order: Order,
    /// The devices in this order.
    pub rows: Vec<DeviceId>,
}

impl Parts {
    /// The parts of a placement, and their schedule. Stages that follow each other on one device are one part, where
    /// PyTorch would not put them there as several.
    ///
    /// # Errors
    /// Stages that go neither round the devices nor there and back, or stages of one device that run apart.
    pub fn of(placement: &Placement, exported: &Exported) -> Result<(Self, Schedule), Diagnostic> {
        let mut rows: Vec<_> = exported.rows.iter().zip(exported.order.devices()).collect();
        rows.sort_by_key(|(_, tokens)| tokens.iter().map(|token| token.stage).min());
        let stages = Self {
            layers: placement.stages.iter().map(|stage| stage.layers.iter().collect()).collect(),
            devices: placement.stages.iter().map(|stage| stage.lead()).collect(),
            order: Order::new(rows.iter().map(|(_, tokens)| (*tokens).clone()).collect()),
            rows: rows.iter().map(|(device, _)| **device).collect(),
        };
        if let Some(schedule) = stages.schedule(placement.order) {
            return Ok((stages, schedule));
        }
        let joined = stages.joined()?;
        let message = "its stages go neither round the devices nor there and back in a V";
        let fault = Diagnostic::error(message).hint("nearest: `option system 1f1b`, `interleaved-1f1b` or `zb-v`");
        let schedule = joined.schedule(placement.order).ok_or(fault)?;
        Ok((joined, schedule))
    }

    /// The schedule that puts parts where they are, round the devices or in a V of two per device.
    fn schedule(&self, order: OrderKind) -> Option<Schedule> {
        let (parts, rows) = (self.devices.len(), self.rows.len());
        let row = |part: usize| self.rows.iter().position(|device| *device == self.devices[part]);
        let loops = (0..parts).all(|part| row(part) == Some(part % rows)) && parts.is_multiple_of(rows);
        let turns = parts == 2 * rows && (0..parts).all(|part| row(part) == Some(part.min(parts - 1 - part)));
        let (name, csv) = match order {
            OrderKind::OneForwardOneBackward { head_start: 0 } if loops && parts == rows => ("1F1B", false),
            OrderKind::Gpipe if loops && parts == rows => ("GPipe", false),
            _ if loops && parts == rows => ("PipelineScheduleSingle", true),
            _ if loops => ("PipelineScheduleMulti", true),
            _ if turns => ("ZBVZeroBubble", true),
            _ => return None,
        };
        Some(Schedule { name, csv })
    }

    /// Neighbours of one device as one part, if their passes follow each other, too.
    fn joined(&self) -> Result<Self, Diagnostic> {
        let mut part_of: Vec<usize> = vec![0];
        for pair in self.devices.windows(2) {
            part_of.push(part_of[part_of.len() - 1] + usize::from(pair[0] != pair[1]));
        }
        let mut layers = vec![Vec::new(); part_of[part_of.len() - 1] + 1];
        for (stage, own) in self.layers.iter().enumerate() {
            layers[part_of[stage]].extend(own);
        }
        let joined = |tokens: &Vec<Token>| {
            let part = |token: &Token| Token { stage: StageId::from(part_of[token.stage.index()]), ..*token };
            let mut tokens: Vec<Token> = tokens.iter().map(part).collect();
            tokens.dedup();
            tokens
        };
        let order = Order::new(self.order.devices().iter().map(joined).collect());
        if order.validate().is_err() {
            let fault = Diagnostic::error("stages that follow each other on one device run apart");
            return Err(fault.hint("nearest: one stage per device, by `option layout`"));
        }
        let mut devices = self.devices.clone();
        devices.dedup();
        Ok(Self { layers, devices, order, rows: self.rows.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(devices: &[usize], order: &str) -> Parts {
        let devices: Vec<DeviceId> = devices.iter().map(|device| DeviceId::from(*device)).collect();
        let mut rows = devices.clone();
        rows.sort_unstable();
        rows.dedup();
        let layers = (0..devices.len()).map(|layer| vec![LayerId::from(layer)]).collect();
        Parts { layers, devices, order: order.parse().unwrap(), rows }
    }

    #[test]
    fn neighbours_on_one_device_are_one_part() {
        let split = parts(&[0, 0, 1], "0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n2F0,2B0,2F1,2B1\n");
        let kind = OrderKind::OneForwardOneBackward { head_start: 0 };
        assert_eq!(split.schedule(kind), None);
        let joined = split.joined().unwrap();
        assert_eq!(joined.order.to_string(), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
        assert_eq!(joined.layers, [vec![LayerId::from(0), LayerId::from(1)], vec![LayerId::from(2)]]);
        assert_eq!(joined.schedule(kind), Some(Schedule { name: "1F1B", csv: false }));
        let apart = parts(&[0, 0, 1], "0F0,0F1,1F0,1F1,1B0,0B0,1B1,0B1\n2F0,2B0,2F1,2B1\n");
        assert!(apart.joined().is_err(), "the first stage runs twice before the second one");
    }

    #[test]
    fn a_v_stays_one() {
        let vee = parts(&[0, 1, 1, 0], "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n");
        assert_eq!(vee.schedule(OrderKind::Gpipe), Some(Schedule { name: "ZBVZeroBubble", csv: true }));
    }
}
