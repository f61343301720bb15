//! Matrices in their storage type, which may be narrower than the compute type.
//!
//! ```text
//!              ┌─ the device's library knows the type ───────► Own: its tensor ──────────────────┐
//! Matrix ─► of ┤                                                                              on ├─► Matrix
//!              ├─ it does not: 16 bits on CPU cores ─► Narrow: the numbers in host memory ─► f32 ─┤
//!              └─ it is quantised ─► Quantised: codes and constants in host memory ─► f32 ────────┘
//! ```
//!
//! In host memory, what is quantised is a tensor of bytes.

use crate::{
    device::{
        arena::Arena,
        cores,
        transfer::{self, reshaped, to_device, to_host},
        with_numbers,
    },
    host::{count_copied, count_moved},
    nn::{Matrix, Tensors, cast, layers::Unit},
    optimizer::{HalfMut, Numbers, NumbersMut, convert, narrowed},
    quantised::Format,
    task_error::TaskError,
};
use burn::tensor::{DType, Device, FloatDType, Shape, TensorData, bf16, f16};
use spipe_base::Bytes;
use spipe_cost::{Base, BaseFormat, Mode, Workload};
use std::{collections::BTreeMap, sync::Arc};

/// A matrix in the memory of a device. Clones share its numbers.
#[derive(Clone, Debug)]
pub(crate) enum Stored {
    /// A tensor of the device's library.
    Own(Matrix),
    /// 16-bit numbers in host memory, if the device's library does not compute in their type.
    Narrow(Arc<TensorData>),
    /// Codes and constants of a matrix of this shape, which are converted where they are used.
    Quantised(Format, [usize; 2], Arc<TensorData>),
}

/// The stored tensors of consecutive layers, layer by layer.
pub(crate) type StoredTensors = Vec<Vec<Stored>>;

/// Keys and values of one layer.
pub(crate) type StoredPair = [Stored; 2];

/// Keys and values of each layer, by microbatch.
pub(crate) type Cache = BTreeMap<usize, Vec<StoredPair>>;

impl Stored {
    /// `matrix` in the storage type `dtype`, rounded to nearest, ties to even.
    pub fn of(matrix: Matrix, dtype: FloatDType) -> Self {
        if computes_in(&matrix.device(), dtype.into()) {
            return Self::Own(cast(matrix, dtype));
        }
        let narrowed = with_numbers(&matrix, |wide| narrow(wide, matrix.dims(), dtype.into())).flatten();
        let wide = || TensorData::new(transfer::numbers(&matrix), matrix.dims());
        // Copies of it in host memory share its bytes.
        let (bytes, shape, dtype) = narrowed.unwrap_or_else(|| to_dtype(wide(), dtype.into())).into_parts();
        Self::Narrow(Arc::new(TensorData::from_bytes(bytes.shared(), shape, dtype)))
    }

    /// `data` in the memory of `device`, whose library may take over the memory of `data`.
    pub fn from_data(data: TensorData, device: &Device) -> Self {
        match computes_in(device, data.dtype()) {
            true => Self::Own(to_device(data, device)),
            false => Self::Narrow(Arc::new(data)),
        }
    }

    /// `data` as a matrix of `shape` and type `dtype` that has been copied to the memory of `device`, which is that
    /// of `arena` if its library does not compute in the type.
    pub fn landed(
        data: &TensorData,
        (shape, dtype): ([usize; 2], DType),
        (device, arena): (&Device, &Arc<Arena>),
    ) -> Result<Self, TaskError> {
        transfer::count_source(data);
        if !computes_in(device, dtype) {
            return Ok(Self::Narrow(Arc::new(moved(data, (shape, dtype), arena)?)));
        }
        count_moved(data.as_bytes().len());
        let here = match numbers(data) {
            Ok(numbers) if *device == cores() => TensorData::new(numbers.widened(), shape),
            _ if data.dtype() == dtype => reshaped(data.clone(), shape),
            _ => converted(data, (shape, dtype), arena)?,
        };
        Ok(Self::Own(to_device(here, device)))
    }

    /// The tensor on `device` in type `dtype`.
    ///
    /// # Errors
    /// A failure of the device that holds it.
    pub fn on(self, device: &Device, dtype: FloatDType) -> Result<Matrix, TaskError> {
        Ok(cast(self.own(device)?, dtype))
    }

    /// The tensor on `device`: in its storage type if the device's library computes in that,
    /// otherwise in f32. It is the stored tensor itself unless two devices with different libraries
    /// share a memory.
    ///
    /// # Errors
    /// A failure of the device that holds it.
    pub fn own(self, device: &Device) -> Result<Matrix, TaskError> {
        Ok(match self {
            Self::Own(matrix) if matrix.device() == *device => matrix,
            Self::Own(matrix) => to_device(to_host(&matrix)?, device),
            Self::Narrow(data) => to_device(widened(&data)?, device),
            Self::Quantised(format, shape, data) => to_device(dequantised(format, shape, &data)?, device),
        })
    }

    /// The numbers in host memory; bytes that are there already are shared.
    ///
    /// # Errors
    /// A failure of the device that holds it.
    pub fn to_host(&self) -> Result<TensorData, TaskError> {
        match self {
            Self::Own(matrix) => to_host(matrix),
            Self::Narrow(data) | Self::Quantised(_, _, data) => Ok(TensorData::clone(data)),
        }
    }

    /// The type of its numbers, or of its bytes.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Own(matrix) => matrix.dtype(),
            Self::Narrow(data) | Self::Quantised(_, _, data) => data.dtype(),
        }
    }

    /// Bytes of its numbers.
    pub fn bytes(&self) -> Bytes {
        match self {
            Self::Own(matrix) => matrix_bytes(matrix),
            Self::Narrow(data) | Self::Quantised(_, _, data) => Bytes::new(data.as_bytes().len() as u64),
        }
    }
}

/// Whether the library of `device` computes in type `dtype`.
fn computes_in(device: &Device, dtype: DType) -> bool {
    dtype == DType::F32 || device.supports_dtype(dtype)
}

/// Bytes of a matrix.
pub(crate) fn matrix_bytes(matrix: &Matrix) -> Bytes {
    let [rows, columns] = matrix.dims();
    Bytes::new((matrix.dtype().size() * rows * columns) as u64)
}

/// Tensors in the storage type `dtype`.
pub(crate) fn store_all(tensors: Tensors, dtype: FloatDType) -> StoredTensors {
    let store = |tensor| Stored::of(tensor, dtype);
    tensors.into_iter().map(|layer| layer.into_iter().map(store).collect()).collect()
}

/// Tensors on `device`, each as [`Stored::own`] returns it.
///
/// # Errors
/// A failure of the device that holds them.
pub(crate) fn all_own(tensors: StoredTensors, device: &Device) -> Result<Tensors, TaskError> {
    let own = |tensor: Stored| tensor.own(device);
    tensors.into_iter().map(|layer| layer.into_iter().map(own).collect()).collect()
}

/// Tensors on `device` in type `dtype`.
///
/// # Errors
/// A failure of the device that holds them.
pub(crate) fn all_on(tensors: StoredTensors, device: &Device, dtype: FloatDType) -> Result<Tensors, TaskError> {
    let on = |tensor: Stored| tensor.on(device, dtype);
    tensors.into_iter().map(|layer| layer.into_iter().map(on).collect()).collect()
}

/// Tensors that have been copied to host memory, each in a type of its own.
///
/// # Errors
/// A failure of the device that holds them.
pub(crate) fn all_moved(all: &[(&Stored, DType)], arena: &Arc<Arena>) -> Result<Vec<TensorData>, TaskError> {
    let onto =
        |matrix: &Matrix, dtype| with_numbers(matrix, |wide| from_wide(wide, (matrix.dims(), dtype), arena)).flatten();
    let mut found = Vec::new();
    let mut elsewhere = Vec::new();
    for (stored, dtype) in all {
        found.push(match stored {
            Stored::Own(matrix) => onto(matrix, *dtype),
            Stored::Narrow(data) | Stored::Quantised(_, _, data) => {
                Some(moved(data, (data.shape().clone(), *dtype), arena)?)
            }
        });
        if let (Some(None), Stored::Own(matrix)) = (found.last(), stored) {
            elsewhere.push(matrix);
        }
    }
    // One request for all tensors of a GPU; they stay in the pinned memory to which its engine copies them.
    let read = if elsewhere.is_empty() { Vec::new() } else { transfer::all_to_host(elsewhere)? };
    let mut read = read.into_iter();
    let arrive = |(found, (_, dtype)): (Option<TensorData>, &(&Stored, DType))| match found {
        Some(data) => Ok(data),
        None => {
            let data = read.next().ok_or("the device has left out a copy")?;
            count_moved(data.as_bytes().len());
            if data.dtype() == *dtype { Ok(data) } else { converted(&data, (data.shape().clone(), *dtype), arena) }
        }
    };
    found.into_iter().zip(all).map(arrive).collect()
}

/// Tensors in host memory, as [`transfer::all_to_host`] copies them; bytes that are there already are shared.
///
/// # Errors
/// A failure of the device that holds them.
pub(crate) fn all_to_host<'a>(all: impl Iterator<Item = &'a Stored> + Clone) -> Result<Vec<TensorData>, TaskError> {
    let own = all.clone().filter_map(|stored| if let Stored::Own(matrix) = stored { Some(matrix) } else { None });
    let mut read = transfer::all_to_host(own)?.into_iter();
    let numbers = |stored: &Stored| match stored {
        Stored::Own(_) => read.next(),
        Stored::Narrow(data) | Stored::Quantised(_, _, data) => Some(TensorData::clone(data)),
    };
    all.map(numbers).collect::<Option<_>>().ok_or_else(|| "the device has left out a copy".into())
}

fn dequantised(format: Format, shape: [usize; 2], data: &TensorData) -> Result<TensorData, TaskError> {
    let numbers = format.decode(data.as_bytes(), shape);
    numbers.map(|numbers| TensorData::new(numbers, shape)).ok_or_else(|| "a quantised matrix has another size".into())
}

fn widened(data: &TensorData) -> Result<TensorData, TaskError> {
    Ok(TensorData::new(numbers(data)?.widened(), data.shape().clone()))
}

/// The same numbers in type `dtype`.
pub(crate) fn to_dtype(data: TensorData, dtype: DType) -> TensorData {
    let shape = data.shape().clone();
    match (numbers(&data), dtype) {
        _ if data.dtype() == dtype => data,
        (Ok(Numbers::F32(wide)), DType::BF16) => TensorData::new(narrowed::<bf16>(wide), shape),
        (Ok(Numbers::F32(wide)), DType::F16) => TensorData::new(narrowed::<f16>(wide), shape),
        (Ok(narrow), DType::F32) => TensorData::new(narrow.widened(), shape),
        _ => data.convert_dtype(dtype),
    }
}

/// f32 numbers in 16 bits; none for other types.
fn narrow(wide: &[f32], shape: [usize; 2], dtype: DType) -> Option<TensorData> {
    match dtype {
        DType::BF16 => Some(TensorData::new(narrowed::<bf16>(wide), shape)),
        DType::F16 => Some(TensorData::new(narrowed::<f16>(wide), shape)),
        _ => None,
    }
}

/// f32 numbers that a core has moved to `arena` in the place of a copy engine; none for a type of bytes.
fn from_wide(wide: &[f32], (shape, dtype): ([usize; 2], DType), arena: &Arc<Arena>) -> Option<TensorData> {
    let mut to = arena.tensor(shape, dtype);
    convert(Numbers::F32(wide), numbers_mut(&mut to)?);
    count_moved(size_of_val(wide));
    Some(to)
}

/// A copy of `data` in the memory of `arena`, in another shape and type: the work of a copy engine.
///
/// # Errors
/// A type that is none of numbers.
pub(crate) fn moved(
    data: &TensorData,
    (shape, dtype): (impl Into<Shape>, DType),
    arena: &Arc<Arena>,
) -> Result<TensorData, TaskError> {
    if data.dtype() == dtype {
        return Ok(transfer::moved(data, shape, arena));
    }
    count_moved(data.as_bytes().len());
    turned(data, (shape, dtype), arena)
}

/// The same, as the work of a core beside a copy engine.
fn converted(data: &TensorData, kind: (impl Into<Shape>, DType), arena: &Arc<Arena>) -> Result<TensorData, TaskError> {
    count_copied(data.as_bytes().len());
    turned(data, kind, arena)
}

fn turned(
    data: &TensorData,
    (shape, dtype): (impl Into<Shape>, DType),
    arena: &Arc<Arena>,
) -> Result<TensorData, TaskError> {
    let mut to = arena.tensor(shape, dtype);
    convert(numbers(data)?, numbers_mut(&mut to).ok_or("numbers become something that is none")?);
    Ok(to)
}

/// The numbers of a tensor in host memory, to be changed; none if it has bytes.
pub(crate) fn numbers_mut(data: &mut TensorData) -> Option<NumbersMut<'_>> {
    match data.dtype() {
        DType::F32 => data.as_mut_slice().ok().map(NumbersMut::F32),
        DType::BF16 => data.as_mut_slice().ok().map(NumbersMut::Bf16),
        DType::F16 => data.as_mut_slice().ok().map(NumbersMut::F16),
        _ => None,
    }
}

/// The numbers of a tensor of 16 bits in host memory, to be changed; none if it is of another type.
pub(crate) fn halves_mut(data: &mut TensorData) -> Option<HalfMut<'_>> {
    match data.dtype() {
        DType::BF16 => data.as_mut_slice().ok().map(HalfMut::Bf16),
        DType::F16 => data.as_mut_slice().ok().map(HalfMut::F16),
        _ => None,
    }
}

/// The numbers of a tensor in host memory, in their own type.
pub(crate) fn numbers(data: &TensorData) -> Result<Numbers<'_>, TaskError> {
    match data.dtype() {
        DType::BF16 => data.as_slice().map(Numbers::Bf16),
        DType::F16 => data.as_slice().map(Numbers::F16),
        _ => data.as_slice().map(Numbers::F32),
    }
    .map_err(TaskError::device)
}

/// The storage of a frozen tensor under a base with a format of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// Numbers.
    Numbers(DType),
    /// Codes and constants.
    Quantised(Format),
}

impl Storage {
    /// The type of its data in host memory.
    pub const fn dtype(self) -> DType {
        match self {
            Self::Numbers(dtype) => dtype,
            Self::Quantised(_) => DType::U8,
        }
    }

    /// Bytes of a tensor.
    pub const fn bytes(self, shape: [usize; 2]) -> usize {
        match self {
            Self::Numbers(dtype) => dtype.size() * shape[0] * shape[1],
            Self::Quantised(format) => format.bytes(shape),
        }
    }

    /// `numbers` as they are stored.
    pub fn store(self, numbers: Vec<f32>, shape: [usize; 2]) -> TensorData {
        match self {
            Self::Numbers(dtype) => to_dtype(TensorData::new(numbers, shape), dtype),
            Self::Quantised(format) => {
                let bytes = format.encode(&numbers, shape);
                let count = bytes.len();
                TensorData::from_bytes_vec(bytes, [1, count], DType::U8)
            }
        }
    }

    /// The numbers that are left of `numbers` in storage.
    ///
    /// # Errors
    /// Bytes that are no tensor of this shape.
    pub fn rounded(self, numbers: Vec<f32>, shape: [usize; 2]) -> Result<TensorData, TaskError> {
        let stored = self.store(numbers, shape);
        match self {
            Self::Numbers(_) => widened(&stored),
            Self::Quantised(format) => dequantised(format, shape, &stored),
        }
    }
}

/// The storage of frozen tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrozenStorage {
    base: Option<Base>,
    /// The type of what a base does not quantise: norms, embeddings, heads.
    rest: DType,
    /// Whether anything is trained.
    trains: bool,
}

impl FrozenStorage {
    /// That of a workload whose 16-bit type is `half`.
    pub const fn new(workload: &Workload, half: DType) -> Self {
        let trains = matches!(workload.mode, Mode::Train);
        Self { base: workload.formats.base, rest: half, trains }
    }

    /// Whether matrices are quantised.
    pub fn quantises(&self) -> bool {
        self.base.is_some_and(|base| base.is_quantised())
    }

    /// The storage of a tensor of `unit`; none if it is trained, or stored as trained tensors are.
    pub fn of(&self, unit: &Unit, index: usize) -> Option<Storage> {
        let base = self.base.as_ref()?;
        if self.trains && index < unit.trained() {
            return None;
        }
        Some(match Format::of(base) {
            Some(format) if unit.is_block_matrix(index) => Storage::Quantised(format),
            None if base.format == BaseFormat::Bf16 && unit.is_block_matrix(index) => Storage::Numbers(DType::BF16),
            _ => Storage::Numbers(self.rest),
        })
    }
}
