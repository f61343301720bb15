//! Work and bytes compared with formulas from the literature.

use spipe_base::{Bytes, Flops};
use spipe_model::{Attention, Batch, Block, Layer, LayerKind, Mlp, Norm, Op, Positions, Precision, Recompute};

fn flops(ops: &[Op]) -> f64 {
    ops.iter().map(Op::flops).sum::<Flops>().get()
}

/// The block of GPT-2 and GPT-3, whose feed-forward network is four times as wide.
fn gpt_block(hidden: u64, heads: u64, dropout: bool) -> Block {
    Block {
        norm: Norm::LayerNorm,
        mlp: Mlp::Gelu,
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        dropout,
        ..Block::new((hidden, heads, hidden / heads), 4 * hidden)
    }
}

fn llama_block() -> Block {
    Block {
        kv_heads: 8,
        intermediate: 14_336,
        norm: Norm::RmsNorm,
        mlp: Mlp::Swiglu,
        positions: Positions::Rotary { base: 500_000.0, fraction: 1.0, scaling: None },
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        ..gpt_block(4096, 32, false)
    }
}

fn layer(block: Block) -> Layer {
    Layer {
        name: "block".into(),
        kind: LayerKind::Block(block),
        parameters: block.parameters(),
        inputs: vec![],
        tied_to: None,
        tied_parameters: 0,
        tokens: None,
        sequence_parts: 1,
        trains: true,
        adaptation: None,
        needs_backward: true,
        passes_gradient: true,
    }
}

/// Korthikanti et al. 2022 (arXiv 2205.05198), equations 1, 6 and section 5's full recompute, at
/// its 22B and 530B shapes.
#[test]
fn activation_bytes_are_korthikanti_s() {
    for (h, a, s, b) in [(6144, 64, 2048, 4), (20_480, 128, 2048, 1), (12_288, 96, 2048, 1)] {
        let block = layer(gpt_block(h, a, true));
        let saved = |recompute| {
            block.saved(Batch { microbatch: b, seq_len: s }, Precision::Fp16, recompute, Attention::Materialised)
        };
        assert_eq!(saved(Recompute::None), Bytes::new(s * b * (34 * h + 5 * a * s)));
        assert_eq!(saved(Recompute::Selective), Bytes::new(34 * s * b * h));
        assert_eq!(saved(Recompute::Full), Bytes::new(2 * s * b * h));
    }
}

/// PipeOffload (arXiv 2503.01328, section 3): recomputing norms, GeLU and dropout leaves 20sbh.
/// Fused attention adds its row sums, 4 bytes per token and head.
#[test]
fn fused_selective_recompute_is_pipeoffload_s() {
    let (h, a, s, b) = (4096, 32, 8192, 2);
    let block = layer(gpt_block(h, a, true));
    let batch = Batch { microbatch: b, seq_len: s };
    let saved = block.saved(batch, Precision::Bf16, Recompute::Selective, Attention::Fused);
    assert_eq!(saved, Bytes::new(20 * s * b * h + 4 * s * b * a));
}

/// Zero Bubble (arXiv 2401.10241), Table 1: F = sbh(24h + 4s), B = sbh(24h + 8s), W = 24sbh².
#[test]
fn work_is_zero_bubble_s() {
    for (h, a, s, b) in [(2304, 24, 1024, 6), (5120, 40, 1024, 1)] {
        let work = layer(gpt_block(h, a, false)).work(Batch { microbatch: b, seq_len: s });
        let (sbh, h, s) = ((s * b * h) as f64, h as f64, s as f64);
        assert_eq!(flops(&work.forward).to_bits(), (sbh * (24.0 * h + 4.0 * s)).to_bits());
        assert_eq!(flops(&work.backward_input).to_bits(), (sbh * (24.0 * h + 8.0 * s)).to_bits());
        assert_eq!(flops(&work.backward_weight).to_bits(), (24.0 * sbh * h).to_bits());
    }
}

/// Llama-3-8B's block, term by term: t = 8192 tokens, h = q = 4096, c = 1024, f = 14336, 16 bits,
/// no dropout.
#[test]
fn a_grouped_query_swiglu_block_keeps_what_its_backward_reads() {
    let (t, h, c, f, a) = (8192, 4096, 1024, 14_336, 32);
    let block = layer(llama_block());
    let saved =
        |recompute| block.saved(Batch { microbatch: 1, seq_len: t }, Precision::Bf16, recompute, Attention::Fused);
    let everything = h + h + (h + 2 * c) + h + h + h + 3 * f;
    assert_eq!(saved(Recompute::None), Bytes::new(2 * t * everything + 4 * t * a));
    let selective = h + (h + 2 * c) + h + h + 2 * f;
    assert_eq!(saved(Recompute::Selective), Bytes::new(2 * t * selective + 4 * t * a));
    assert_eq!(saved(Recompute::Full), Bytes::new(2 * t * h));
}

#[test]
fn a_parallel_residual_keeps_one_stream_less() {
    let batch = Batch { microbatch: 1, seq_len: 2048 };
    let saved = |parallel_residual| {
        let block = layer(Block { parallel_residual, ..gpt_block(6144, 64, false) });
        block.saved(batch, Precision::Bf16, Recompute::None, Attention::Fused)
    };
    assert_eq!(saved(false) - saved(true), Bytes::new(2 * 2048 * 6144));
}

#[test]
fn a_head_keeps_32_bit_logits_until_it_needs_room_for_their_gradient() {
    let model = shipped("llama2-7b");
    let head = model.layers().iter().last().unwrap();
    let batch = Batch { microbatch: 2, seq_len: 4096 };
    let workspace = head.workspace(batch, Precision::Bf16, Attention::Fused);
    assert_eq!(workspace, Bytes::new(2 * 4096 * (4 * 32_000 + 2 * 4096)));
    let saved = |recompute| head.saved(batch, Precision::Bf16, recompute, Attention::Fused);
    assert_eq!(saved(Recompute::None), Bytes::new(2 * 4096 * (4 * 32_000 + 4 * 4096)));
    assert_eq!(saved(Recompute::Full), Bytes::new(2 * 4096 * 2 * 4096));
}

/// 2·parameters operations per token in the forward and twice that in the backward, without
/// attention and embedding (Kaplan et al. 2020, arXiv 2001.08361, section 2.1).
#[test]
fn work_is_six_operations_per_parameter_and_token() {
    let model = shipped("llama2-7b");
    let batch = Batch { microbatch: 1, seq_len: 128 };
    let matrices = |ops: &[Op]| -> f64 {
        ops.iter().filter(|op| matches!(op, Op::MatMul { .. })).map(|op| op.flops().get()).sum()
    };
    let total: f64 = model
        .layers()
        .iter()
        .map(|layer| {
            let work = layer.work(batch);
            matrices(&work.forward) + matrices(&work.backward_input) + matrices(&work.backward_weight)
        })
        .sum();
    // Without the embedding and the 65 norms.
    let multiplied = (model.parameters() - 32_000 * 4096 - 65 * 4096) as f64;
    assert_eq!(total.to_bits(), (6.0 * 128.0 * multiplied).to_bits());
}

#[test]
fn experts_share_the_tokens_out() {
    let experts = Some(spipe_model::Experts::new(8, 2));
    let dense = layer(llama_block()).work(Batch { microbatch: 1, seq_len: 4096 });
    let sparse = layer(Block { experts, ..llama_block() }).work(Batch { microbatch: 1, seq_len: 4096 });
    let (t, h, f) = (4096.0, 4096.0, 14_336.0);
    let difference = flops(&sparse.forward) - flops(&dense.forward);
    // One more network per token, and the router.
    assert_eq!(difference.to_bits(), (2.0 * t * 3.0 * h * f + 2.0 * t * h * 8.0_f64).to_bits());
}

/// E·(1 − (1 − k/E)^T), and the mean over all draws of every token, counted out.
#[test]
fn tokens_reach_the_expected_number_of_experts() {
    for (count, per_token, tokens, expected) in [
        (8, 2, 1, 2.0),
        (8, 2, 2, 3.5),
        (8, 2, 4, 5.468_75),
        (128, 8, 1, 8.0),
        (128, 8, 2, 15.5),
        (2, 1, 3, 1.75),
        (4, 4, 1, 4.0),
        (8, 2, 0, 0.0),
        (8, 2, 2048, 8.0),
        (128, 8, 4096, 128.0),
    ] {
        let found = spipe_model::Experts::new(count, per_token).touched(tokens);
        assert!((found - expected).abs() < 1e-12, "{per_token} of {count}, {tokens} tokens: {found} for {expected}");
    }
    for (count, per_token, tokens) in [(3, 1, 4), (3, 2, 2), (4, 2, 3), (5, 3, 2), (6, 1, 3)] {
        let draws: Vec<u32> = (0..1u32 << count).filter(|set| set.count_ones() == per_token).collect();
        let mut unions = vec![0u32];
        for _ in 0..tokens {
            unions = unions.iter().flat_map(|union| draws.iter().map(move |draw| union | draw)).collect();
        }
        let mean = unions.iter().map(|union| f64::from(union.count_ones())).sum::<f64>() / unions.len() as f64;
        let found = spipe_model::Experts::new(count, per_token.into()).touched(tokens);
        assert!((found - mean).abs() < 1e-12, "{per_token} of {count}, {tokens} tokens: {found} for {mean}");
    }
}

#[test]
fn a_window_bounds_the_keys() {
    let batch = Batch { microbatch: 1, seq_len: 8192 };
    let full = layer(llama_block());
    let window = layer(Block { sliding_window: Some(4096), ..llama_block() });
    let attention = |layer: &Layer| {
        let work = layer.work(batch);
        work.forward.iter().find(|op| matches!(op, Op::Attention { .. })).map(|op| op.flops().get())
    };
    assert_eq!(attention(&full).map(f64::to_bits), attention(&window).map(|flops| (2.0 * flops).to_bits()));
    assert_ne!(full.signature(batch), window.signature(batch));
    // Scores outside the window are masked but still stored.
    let saved = |layer: &Layer| layer.saved(batch, Precision::Bf16, Recompute::None, Attention::Materialised);
    assert_eq!(saved(&full), saved(&window));
}

fn shipped(name: &str) -> spipe_model::Model {
    let text = spipe_model::shipped().iter().find(|(shipped, _)| *shipped == name).expect("a shipped model").1;
    spipe_model::Model::from_toml(name, text).unwrap_or_else(|faults| panic!("{faults}"))
}
