//! The classes of which exported folders build the layers of a model.

use crate::folder::Folder;

/// The classes of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Modules {
    /// The folder's own, short ones.
    #[default]
    Own,
    /// The classes that the user's transformers has for the model's `config.json`, which is beside the scripts.
    Transformers,
}

impl Modules {
    /// The section on the layers in the page of a folder.
    pub const fn page(self) -> &'static str {
        match self {
            Self::Own => "",
            Self::Transformers => include_str!("../templates/transformers/LAYERS.md"),
        }
    }

    /// Adds the scripts of the layers.
    pub(crate) fn add_to(self, folder: &mut Folder) {
        match self {
            Self::Own => {
                folder.add("model.py", include_str!("../templates/common/model.py"));
                folder.add("rotary.py", include_str!("../templates/common/rotary.py"));
            }
            Self::Transformers => {
                folder.add("model.py", include_str!("../templates/transformers/model.py"));
                folder.add("shapes.py", include_str!("../templates/transformers/shapes.py"));
                folder.add("adapters.py", include_str!("../templates/transformers/adapters.py"));
                folder.add("base.py", include_str!("../templates/transformers/base.py"));
                folder.add("convert.py", include_str!("../templates/transformers/convert.py"));
            }
        }
    }
}
