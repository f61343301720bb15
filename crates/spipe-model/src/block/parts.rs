//! The matrices and norms of a transformer block. Parameters, work and bounds are sums over them.

use crate::{Block, Latent, QkNorm};

/// A matrix of a block, with its bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// Its name: `query-key-value`, `output`, `router`, `gate`, `up`, `down`, ….
    pub name: &'static str,
    /// Width of its input.
    pub inputs: u64,
    /// Width of its output.
    pub outputs: u64,
    /// Whether it has a bias.
    pub bias: bool,
    /// The number of such matrices: the experts of a device.
    pub copies: u64,
    /// The number of these that each token uses.
    pub used: u64,
}

impl Linear {
    const fn new(name: &'static str, inputs: u64, outputs: u64, bias: bool) -> Self {
        Self { name, inputs, outputs, bias, copies: 1, used: 1 }
    }

    /// Returns the parameters of one of the copies.
    const fn each(&self) -> u64 {
        self.inputs * self.outputs + if self.bias { self.outputs } else { 0 }
    }

    /// Returns the parameters of all copies.
    pub const fn parameters(&self) -> u64 {
        self.copies * self.each()
    }
}

impl Block {
    /// Returns the matrices between the residual stream and the attention, in the order of
    /// computation. Queries, keys and values are one matrix, except in latent attention.
    pub fn attention_inputs(&self) -> Vec<Linear> {
        let Some(Latent { query_rank, kv_rank, rotary, value_dim }) = self.latent else {
            return vec![Linear::new("query-key-value", self.hidden, self.qkv_width(), self.qkv_bias)];
        };
        let mut linears = match query_rank {
            Some(rank) => vec![
                Linear::new("query-down", self.hidden, rank, self.qkv_bias),
                Linear::new("query-up", rank, self.query_width(), false),
            ],
            None => vec![Linear::new("query", self.hidden, self.query_width(), false)],
        };
        let expanded = self.heads * (self.head_dim.saturating_sub(rotary) + value_dim);
        linears.push(Linear::new("key-value-down", self.hidden, kv_rank + rotary, self.qkv_bias));
        linears.push(Linear::new("key-value-up", kv_rank, expanded, false));
        linears
    }

    /// Returns the matrix after the attention.
    pub const fn attention_output(&self) -> Linear {
        Linear::new("output", self.attended_width(), self.hidden, self.output_bias)
    }

    /// Returns the widths of the norms inside the attention: of the weights of both query and key
    /// norms, or of the latent vectors.
    pub fn attention_norms(&self) -> Vec<u64> {
        let mut widths = match self.qk_norm {
            QkNorm::None => Vec::new(),
            QkNorm::Head => vec![self.head_dim; 2],
            QkNorm::EachHead | QkNorm::All => vec![self.query_width(), self.kv_width()],
        };
        if let Some(latent) = self.latent {
            widths.extend(latent.query_rank);
            widths.push(latent.kv_rank);
        }
        widths
    }

    /// Returns the matrices of one feed-forward network of this inner width.
    pub fn network(&self, intermediate: u64) -> Vec<Linear> {
        let names = if self.mlp.inputs() == 2 { &["gate", "up"][..] } else { &["up"] };
        let inputs = names.iter().map(|name| Linear::new(name, self.hidden, intermediate, self.mlp_bias));
        inputs.chain([Linear::new("down", intermediate, self.hidden, self.mlp_bias)]).collect()
    }

    /// Returns all matrices: those of the attention, the router, the shared network with its gate,
    /// and the feed-forward network or the experts.
    pub fn linears(&self) -> Vec<Linear> {
        let mut linears = self.attention_inputs();
        linears.push(self.attention_output());
        linears.extend(self.feed_forward_linears());
        linears
    }

    fn feed_forward_linears(&self) -> Vec<Linear> {
        let Some(experts) = self.experts else { return self.network(self.intermediate) };
        let mut linears = vec![Linear::new("router", self.hidden, experts.count, experts.router_bias)];
        if experts.shared > 0 {
            linears.extend(self.network(experts.shared));
            linears.extend(experts.shared_gate.then(|| Linear::new("shared-gate", self.hidden, 1, false)));
        }
        let each = self.network(self.intermediate).into_iter();
        linears.extend(each.map(|linear| Linear { copies: experts.held(), used: experts.per_token, ..linear }));
        linears
    }

    /// Returns the exact number of parameters, with all experts.
    pub fn parameters(&self) -> u64 {
        self.attention_parameters() + self.mlp_parameters() + self.other_parameters()
    }

    /// Returns the number of parameters that each token uses: those of all experts less those of the
    /// experts that it does not pass through.
    pub fn active_parameters(&self) -> u64 {
        let idle: u64 =
            self.linears().iter().map(|linear| linear.copies.saturating_sub(linear.used) * linear.each()).sum();
        self.parameters() - idle
    }

    /// Returns the parameters of all experts of a device, without the router and the network that all tokens share.
    pub fn expert_parameters(&self) -> u64 {
        let network = self.network(self.intermediate);
        self.experts.map_or(0, |experts| experts.held() * network.iter().map(Linear::parameters).sum::<u64>())
    }

    /// Returns the parameters of the attention, with the norms inside it but without the block's.
    pub fn attention_parameters(&self) -> u64 {
        let linears = self.attention_inputs().into_iter().chain([self.attention_output()]);
        let norms = self.attention_norms().into_iter().map(|width| self.norm.parameters(width));
        let sinks = if self.sinks { self.heads } else { 0 };
        linears.map(|linear| linear.parameters()).chain(norms).sum::<u64>() + sinks
    }

    /// Returns the parameters of the feed-forward network, with all experts and their router but
    /// without norms.
    pub fn mlp_parameters(&self) -> u64 {
        self.feed_forward_linears().iter().map(Linear::parameters).sum()
    }

    /// Returns the parameters of the norms on the residual stream, of the scales of branches and of their modulation.
    fn other_parameters(&self) -> u64 {
        let scales = if self.layer_scale { 2 * self.hidden } else { 0 };
        let modulation = self.modulation.map_or(0, |modulation| modulation.parameters(self.hidden));
        self.norms.count() * self.norm.parameters(self.hidden) + scales + modulation
    }
}
