//! Heads of attention, out of the rows of tokens and back.
//!
//! ```text
//! sequences · tokens × heads · width ──split──► sequences × heads × tokens × width
//!                                    ◄──joined──
//! ```

use super::{addresses, blank, each, element, matrix, own, vector_size, view};
use crate::nn::Matrix;
use burn::tensor::Tensor;
use burn_cubecl::{
    cubecl::{
        self,
        ir::ElemType,
        prelude::*,
        std::tensor::layout::linear::{LinearView, LinearViewMut},
    },
    tensor::CubeTensor,
};

/// The shape of heads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    pub sequences: usize,
    /// Heads of queries.
    pub count: usize,
    /// Number of them that share a head of the rows.
    pub share: usize,
    /// Rows of a sequence.
    pub tokens: usize,
    /// Channels of a head.
    pub width: usize,
    /// The factor of all numbers.
    pub scale: f64,
}

/// The parts of [`Heads`] that a kernel gets; the width in vectors.
#[derive(CubeType, CubeLaunch)]
struct Layout {
    count: usize,
    share: usize,
    tokens: usize,
    width: usize,
    scale: f32,
}

#[cube(launch, address_type = "dynamic")]
fn split_rows<F: Float, N: Size>(
    rows: LinearView<'_, Vector<F, N>>,
    mut heads: LinearViewMut<'_, Vector<F, N>>,
    layout: Layout,
    #[define(F)] _width: ElemType,
) {
    if !heads.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let channel = ABSOLUTE_POS % layout.width;
    let token = ABSOLUTE_POS / layout.width % layout.tokens;
    let head = ABSOLUTE_POS / (layout.width * layout.tokens) % layout.count;
    let sequence = ABSOLUTE_POS / (layout.width * layout.tokens * layout.count);
    let row = (sequence * layout.tokens + token) * (layout.count / layout.share) + head / layout.share;
    let found = Vector::<f32, N>::cast_from(rows.read(row * layout.width + channel));
    heads.write(ABSOLUTE_POS, Vector::cast_from(found * Vector::new(layout.scale)));
}

#[cube(launch, address_type = "dynamic")]
fn join_heads<F: Float, N: Size>(
    heads: LinearView<'_, Vector<F, N>>,
    mut rows: LinearViewMut<'_, Vector<F, N>>,
    layout: Layout,
    #[define(F)] _width: ElemType,
) {
    if !rows.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let shared = layout.count / layout.share;
    let channel = ABSOLUTE_POS % layout.width;
    let head = ABSOLUTE_POS / layout.width % shared;
    let token = ABSOLUTE_POS / (layout.width * shared) % layout.tokens;
    let sequence = ABSOLUTE_POS / (layout.width * shared * layout.tokens);
    let mut sum = Vector::<f32, N>::new(0.0);
    for index in 0..layout.share {
        let row = (sequence * layout.count + head * layout.share + index) * layout.tokens + token;
        sum += Vector::cast_from(heads.read(row * layout.width + channel));
    }
    rows.write(ABSOLUTE_POS, Vector::cast_from(sum * Vector::new(layout.scale)));
}

impl Heads {
    /// The number of neighbours that a unit takes at once, and the layout by them.
    fn launch(self, of: &CubeTensor) -> (usize, LayoutLaunch) {
        let Self { count, share, tokens, width, scale, .. } = self;
        let mut size = vector_size(of);
        while width % size > 0 {
            size /= 2;
        }
        (size, LayoutLaunch::new(count, share, tokens, width / size, scale as f32))
    }
}

/// The heads of rows, each as often as it is shared; none on cores.
pub(crate) fn split(heads: Heads, rows: &Matrix) -> Option<Tensor<4>> {
    let rows = own(rows)?;
    let Heads { sequences, count, tokens, width, .. } = heads;
    let found = blank(&rows, [sequences, count, tokens, width], rows.dtype);
    let (client, (size, layout)) = (&rows.client, heads.launch(&rows));
    let (grid, dim) = each(client, found.meta.num_elements() / size);
    let (addresses, width) = (addresses([&rows, &found]), element(rows.dtype));
    split_rows::launch(client, grid, dim, addresses, size, view(&rows), view(&found), layout, width);
    Some(matrix(found))
}

/// The rows of heads, those that share one added up; none on cores.
pub(crate) fn joined(heads: Heads, of: &Tensor<4>) -> Option<Matrix> {
    let of = own(of)?;
    let Heads { sequences, count, share, tokens, width, .. } = heads;
    let found = blank(&of, [sequences * tokens, count / share * width], of.dtype);
    let (client, (size, layout)) = (&of.client, heads.launch(&of));
    let (grid, dim) = each(client, found.meta.num_elements() / size);
    let (addresses, width) = (addresses([&of, &found]), element(of.dtype));
    join_heads::launch(client, grid, dim, addresses, size, view(&of), view(&found), layout, width);
    Some(matrix(found))
}
