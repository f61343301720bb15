//! The modules of a crate, and the paths that their code mentions, parsed from the sources.
//!
//! Modules are found by their declarations, from the crate's root on. Code that is compiled for
//! tests alone is left out, and so are documentation comments.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::{
    Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta, MetaList, MetaNameValue, Token, UseTree,
    punctuated::Punctuated,
    visit::{self, Visit},
};

/// The text of each source file of a crate, by its path.
pub type Files = BTreeMap<String, String>;

/// The segments of a path, without generic arguments.
pub type Path = Vec<String>;

/// The modules of a crate, by their paths from the root, which has the empty path.
pub type Modules = BTreeMap<Path, Module>;

/// A module: a file, or an inline module of one.
#[derive(Debug, Default)]
pub struct Module {
    /// The file that holds the module.
    pub file: String,
    /// Whether the module is compiled for tests alone.
    pub test: bool,
    /// The names of the items that the module defines, other than modules.
    pub items: BTreeSet<String>,
    /// The names that `use` brings into the module.
    pub imports: Vec<Import>,
    /// Every path in the module's code, imports included.
    pub mentions: Vec<Mention>,
}

/// One leaf of a `use` tree.
#[derive(Debug)]
pub struct Import {
    /// The name in the importing module, or none for a glob.
    pub name: Option<String>,
    /// The imported path, or the one before the `*` of a glob.
    pub path: Path,
}

/// A path in the code.
#[derive(Debug)]
pub struct Mention {
    /// The path as it is written.
    pub path: Path,
    /// The line of its first segment.
    pub line: usize,
    /// Whether the path is that of a macro being called.
    pub call: bool,
}

/// Parses the crate whose root module is the file `root`.
pub fn modules(files: &Files, root: &str) -> Modules {
    let mut reader = Reader { files, modules: Modules::new() };
    reader.file(Place { path: Path::new(), file: root.into(), test: false });
    reader.modules
}

/// Follows the declarations of modules from file to file.
struct Reader<'a> {
    files: &'a Files,
    modules: Modules,
}

/// The place of a module.
struct Place {
    /// Its path from the root.
    path: Path,
    /// The file that holds it.
    file: String,
    /// Whether it is compiled for tests alone.
    test: bool,
}

impl Reader<'_> {
    /// Reads a module that is a file of its own, and the modules below it.
    fn file(&mut self, mut place: Place) {
        let syntax = syn::parse_file(&self.files[&place.file]);
        let syntax = syntax.unwrap_or_else(|error| panic!("{}: {error}", place.file));
        let (folder, name) = place.file.rsplit_once('/').unwrap_or_default();
        let is_own = ["lib.rs", "main.rs", "mod.rs"].contains(&name);
        let children = if is_own { folder.to_owned() } else { format!("{folder}/{}", name.trim_end_matches(".rs")) };
        place.test |= is_for_tests(&syntax.attrs);
        self.items(place, &children, &syntax.items);
    }

    /// Reads a module with these items. The files of its submodules are in the folder `children`.
    fn items(&mut self, place: Place, children: &str, items: &[Item]) {
        let Place { path, file, test } = place;
        let mut module = Module { file, test, ..Module::default() };
        for item in items {
            if let Item::Mod(child) = item {
                let path = joined(&path, &child.ident);
                let test = test || is_for_tests(&child.attrs);
                self.child(Place { path, file: module.file.clone(), test }, children, child);
            } else {
                module.items.extend(name(item));
                module.visit_item(item);
            }
        }
        self.modules.insert(path, module);
    }

    /// Reads the module that `child` declares in the file of `place`.
    fn child(&mut self, mut place: Place, siblings: &str, child: &ItemMod) {
        let name = &child.ident;
        if let Some((_, items)) = &child.content {
            return self.items(place, &format!("{siblings}/{name}"), items);
        }
        let folder = place.file.rsplit_once('/').unwrap_or_default().0.to_owned();
        let stated: Vec<String> = paths(&child.attrs).iter().map(|path| format!("{folder}/{path}")).collect();
        let usual = vec![format!("{siblings}/{name}.rs"), format!("{siblings}/{name}/mod.rs")];
        let candidates = if stated.is_empty() { usual } else { stated };
        let files: Vec<String> = candidates.into_iter().filter(|file| self.files.contains_key(file)).collect();
        // The files of tests may lie elsewhere.
        assert!(place.test || !files.is_empty(), "{} declares the module `{name}`, which has no file", place.file);
        let module = std::mem::take(&mut place.path);
        for (index, file) in files.into_iter().enumerate() {
            // One module may have a file for each platform.
            let mut path = module.clone();
            if index > 0 {
                path.pop();
                path.push(format!("{name} ({file})"));
            }
            self.file(Place { path, file, ..place });
        }
    }
}

/// The values of `#[path = "…"]`, also where it is conditional.
fn paths(attributes: &[Attribute]) -> Vec<String> {
    let paths = attributes.iter().flat_map(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg_attr") => parts(list).iter().filter_map(path_of).collect(),
        meta => path_of(meta).into_iter().collect::<Vec<_>>(),
    });
    paths.collect()
}

/// The value of `path = "…"`.
fn path_of(meta: &Meta) -> Option<String> {
    match meta {
        Meta::NameValue(MetaNameValue { path, value: Expr::Lit(ExprLit { lit: Lit::Str(text), .. }), .. }) => {
            path.is_ident("path").then(|| text.value())
        }
        _ => None,
    }
}

/// The arguments of an attribute.
fn parts(list: &MetaList) -> Vec<Meta> {
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    parts.map(|parts| parts.into_iter().collect()).unwrap_or_default()
}

/// The name that an item defines.
fn name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Whether an item with these attributes is compiled for tests alone.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let cfg = attribute.path().is_ident("cfg");
        attribute.path().is_ident("test") || cfg && attribute.parse_args::<Meta>().is_ok_and(|meta| needs_test(&meta))
    })
}

/// Whether a condition of `cfg` holds in tests alone.
fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => parts(list).iter().any(needs_test),
        Meta::List(list) if list.path.is_ident("any") => parts(list).iter().all(needs_test),
        _ => false,
    }
}

impl Module {
    /// Records the leaves of a `use` tree below `prefix`.
    fn import(&mut self, prefix: &[String], tree: &UseTree) {
        let below = |name: &syn::Ident| if name == "self" { prefix.to_vec() } else { joined(prefix, name) };
        let (name, path, line) = match tree {
            UseTree::Path(tree) => {
                return self.import(&joined(prefix, &tree.ident), &tree.tree);
            }
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.import(prefix, tree)),
            UseTree::Name(leaf) => (below(&leaf.ident).last().cloned(), below(&leaf.ident), line(&leaf.ident)),
            UseTree::Rename(leaf) => (Some(leaf.rename.to_string()), below(&leaf.ident), line(&leaf.ident)),
            UseTree::Glob(glob) => (None, prefix.to_vec(), glob.star_token.spans[0].start().line),
        };
        self.mentions.push(Mention { path: path.clone(), line, call: false });
        self.imports.push(Import { name, path });
    }

    /// Records the paths in the tokens of a macro. In `prefix::{…}`, `prefix` precedes the group's
    /// paths.
    fn scan(&mut self, prefix: &[String], tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let punct =
            |at: usize, mark: char| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == mark);
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Group(group) => self.scan(&[], group.stream()),
                TokenTree::Ident(first) => {
                    let mut path = joined(prefix, first);
                    while punct(at, ':') && punct(at + 1, ':') {
                        match tokens.get(at + 2) {
                            Some(TokenTree::Ident(next)) => path.push(next.to_string()),
                            Some(TokenTree::Group(group)) => self.scan(&path, group.stream()),
                            _ => break,
                        }
                        at += 3;
                    }
                    let call = punct(at, '!') && !punct(at + 1, '=');
                    self.mentions.push(Mention { path, line: line(first), call });
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// Records the paths that are strings in the tokens of an attribute, such as serde's `with`.
    fn scan_strings(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.scan_strings(group.stream()),
                TokenTree::Literal(literal) => {
                    let text = syn::parse_str::<syn::LitStr>(&literal.to_string());
                    if let Ok(Ok(path)) = text.map(|text| text.parse::<syn::Path>()) {
                        let line = literal.span().start().line;
                        self.mentions.push(Mention { path: segments(&path), line, call: false });
                    }
                }
                _ => {}
            }
        }
    }
}

fn joined(prefix: &[String], name: &syn::Ident) -> Path {
    [prefix, &[name.to_string()]].concat()
}

fn line(name: &syn::Ident) -> usize {
    name.span().start().line
}

fn segments(path: &syn::Path) -> Path {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

/// Visits nodes of these kinds, except those that are compiled for tests alone.
macro_rules! without_tests {
    ($($visit:ident $node:ident),* $(,)?) => {
        $(fn $visit(&mut self, node: &'ast syn::$node) {
            if !is_for_tests(&node.attrs) {
                visit::$visit(self, node);
            }
        })*
    };
}

impl<'ast> Visit<'ast> for Module {
    without_tests! {
        visit_arm Arm, visit_expr_block ExprBlock, visit_expr_call ExprCall, visit_expr_method_call ExprMethodCall,
        visit_field Field, visit_field_value FieldValue, visit_impl_item_const ImplItemConst,
        visit_impl_item_fn ImplItemFn, visit_item_const ItemConst, visit_item_enum ItemEnum, visit_item_fn ItemFn,
        visit_item_impl ItemImpl, visit_item_macro ItemMacro, visit_item_mod ItemMod, visit_item_static ItemStatic,
        visit_item_struct ItemStruct, visit_item_trait ItemTrait, visit_item_type ItemType, visit_local Local,
        visit_stmt_macro StmtMacro, visit_trait_item_fn TraitItemFn, visit_variant Variant,
    }

    fn visit_item_use(&mut self, node: &'ast syn::ItemUse) {
        if !is_for_tests(&node.attrs) {
            self.import(&[], &node.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let Some(first) = path.segments.first() {
            self.mentions.push(Mention { path: segments(path), line: line(&first.ident), call: false });
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(first) = call.path.segments.first() {
            self.mentions.push(Mention { path: segments(&call.path), line: line(&first.ident), call: true });
        }
        self.scan(&[], call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.scan(&[], list.tokens.clone());
            self.scan_strings(list.tokens.clone());
        }
    }
}
