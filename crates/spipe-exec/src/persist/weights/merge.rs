//! The sum of a base and its adapter, as weights.
//!
//! ```text
//! W ← W + scale · B · A        in f32, stored in the type of W; Conv1D stores inputs × outputs: Wᵀ
//! ```
//!
//! Names of tensors alone say which matrices are adapted, so that bases need no model file.

use super::{
    FILE, INDEX, WeightsError,
    adapters::{ENDS, PREFIX, read_config},
    by,
    file_names::TENSORS,
    files_of,
    save::in_place,
};
use crate::persist::tensor_file::{Raw, TensorFile, narrowed_to, widened, write_raw};
use spipe_model::Lora;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

/// Writes the weights at `base`, a file or a folder, with the adapter in the folder `adapter` added, to
/// the folder `to`. Types, names and files stay those of the base.
///
/// # Errors
/// Files that cannot be read or written, and an adapter of another model.
pub fn merge_adapter(base: &Path, adapter: &Path, to: &Path) -> Result<(), WeightsError> {
    let (lora, turned) = read_config(adapter)?;
    let path = adapter.join(TENSORS);
    let tensors = TensorFile::open(&path).map_err(|error| WeightsError::file("read", &path, &error))?;
    let mut files = Vec::new();
    for path in files_of(base)? {
        let file = TensorFile::open(&path).map_err(|error| WeightsError::file("read", &path, &error))?;
        files.push((path, file));
    }
    let added = matched(&files, &tensors, &lora)
        .map_err(|differences| WeightsError::adapter(adapter, &base.display().to_string(), differences))?;
    fs::create_dir_all(to).map_err(|error| WeightsError::file("write", to, &error))?;
    for (path, file) in &files {
        let name = path.file_name().filter(|_| base.is_dir()).map_or_else(|| FILE.into(), ToOwned::to_owned);
        let target = to.join(name);
        if fs::canonicalize(&target).is_ok_and(|there| fs::canonicalize(path).is_ok_and(|here| here == there)) {
            let taken = io::Error::new(io::ErrorKind::AlreadyExists, "it is the base");
            return Err(WeightsError::file("write", &target, &taken));
        }
        let names = file.names();
        let infos: Vec<Raw> = names.iter().filter_map(|name| file.info(name)).collect();
        let merged =
            &mut |index: usize| merge(file, &tensors, (&infos[index], added.get(&names[index])), (&lora, turned));
        in_place(&target, &mut |out| write_raw(out, &infos, merged))
            .map_err(|error| WeightsError::file("write", &target, &error))?;
    }
    let index = base.join(INDEX);
    if index.is_file() {
        let target = to.join(INDEX);
        let copied = fs::read(&index).and_then(|text| in_place(&target, &mut |out| out.write_all(&text)));
        copied.map_err(|error| WeightsError::file("write", &target, &error))?;
    }
    Ok(())
}

/// The change that an adapter makes to a tensor.
enum Change {
    /// Adds the product of these two, A and B.
    Adds([String; 2]),
    /// Takes its place.
    Replaces(String),
}

/// The changes of the bases' tensors, by name; or why the adapter is another's.
fn matched(
    files: &[(std::path::PathBuf, TensorFile)],
    adapter: &TensorFile,
    lora: &Lora,
) -> Result<BTreeMap<String, Change>, Vec<String>> {
    let mut shapes: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (_, file) in files {
        shapes.extend(file.names().into_iter().filter_map(|name| Some((name.clone(), file.shape(&name)?.to_vec()))));
    }
    let (mut changes, mut differences) = (BTreeMap::new(), Vec::new());
    if lora.dora {
        differences.push("it has magnitudes (DoRA), which are not merged".into());
    }
    let names: BTreeSet<String> = adapter.names().into_iter().collect();
    for name in &names {
        let module = name.strip_prefix(PREFIX).unwrap_or(name);
        if module.strip_suffix(ENDS[1]).is_some_and(|module| names.contains(&format!("{PREFIX}{module}{}", ENDS[0]))) {
            continue;
        }
        let (tensor, second) = match module.strip_suffix(ENDS[0]) {
            Some(module) => (format!("{module}.weight"), Some(format!("{PREFIX}{module}{}", ENDS[1]))),
            None => (module.to_owned(), None),
        };
        let Some((tensor, shape)) = find(&shapes, &tensor) else {
            differences.push(format!("the base has no `{tensor}`"));
            continue;
        };
        let of = |name: &str| adapter.shape(name).unwrap_or_default().to_vec();
        let fits = match &second {
            Some(second) => match (&of(name)[..], &of(second)[..]) {
                ([rank, inputs], [outputs, inner]) => {
                    if rank > inputs.min(outputs) {
                        differences.push(format!("rank {rank} is above a side of `{tensor}`, which is {}", by(shape)));
                    }
                    let is = |rows: &usize, columns: &usize| shape[..] == [*rows, *columns];
                    rank == inner && (is(outputs, inputs) || is(inputs, outputs))
                }
                _ => false,
            },
            None => of(name) == *shape,
        };
        if !fits {
            let found = [Some(name), second.as_ref()].into_iter().flatten().map(|name| by(&of(name)));
            let found = found.collect::<Vec<_>>().join(" and ");
            differences.push(format!("its part of `{tensor}` is {found}, the base's is {}", by(shape)));
        }
        let change =
            second.map_or_else(|| Change::Replaces(name.clone()), |second| Change::Adds([name.clone(), second]));
        changes.insert(tensor, change);
    }
    if differences.is_empty() { Ok(changes) } else { Err(differences) }
}

/// A tensor of the base. Some files, such as those of the first GPT-2, leave out the first word.
fn find<'a>(shapes: &'a BTreeMap<String, Vec<usize>>, name: &str) -> Option<(String, &'a Vec<usize>)> {
    let short = name.split_once('.').map_or(name, |(_, rest)| rest);
    [name, short].into_iter().find_map(|name| Some((name.to_owned(), shapes.get(name)?)))
}

/// The bytes of a tensor with its change.
fn merge(
    base: &TensorFile,
    adapter: &TensorFile,
    (info, change): (&Raw, Option<&Change>),
    (lora, turned): (&Lora, bool),
) -> io::Result<Vec<u8>> {
    let bytes = base.bytes(&info.name)?;
    let numbers = match change {
        None => return Ok(bytes),
        Some(Change::Replaces(name)) => adapter.read(name)?,
        Some(Change::Adds([first, second])) => {
            let mut numbers = widened(&bytes, info)?;
            let (a, b) = (adapter.read(first)?, adapter.read(second)?);
            let rank = adapter.shape(first).and_then(<[usize]>::first).copied().unwrap_or(1).max(1);
            let (inputs, outputs) = (a.len() / rank, b.len() / rank);
            let turned = if inputs == outputs { turned } else { info.shape[0] == inputs };
            let scale = lora.scale() as f32;
            for output in 0..outputs {
                for input in 0..inputs {
                    let product: f32 =
                        (0..rank).map(|inner| b[output * rank + inner] * a[inner * inputs + input]).sum();
                    let place = if turned { input * outputs + output } else { output * inputs + input };
                    numbers[place] += scale * product;
                }
            }
            numbers
        }
    };
    if numbers.iter().any(|number| !number.is_finite()) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("`{}` would not be finite", info.name)));
    }
    narrowed_to(&numbers, info)
}
