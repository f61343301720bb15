//! The readers of sources on sources of a few lines.

use super::{
    graph::{Component, Graph},
    purity::impurities,
    source::{self, Files},
};

/// The graph of the crate with these files, whose first is the root.
fn graph(files: &[(&str, &str)]) -> Graph {
    let all: Files = files.iter().map(|(name, text)| (format!("src/{name}"), (*text).into())).collect();
    Graph::of(&source::modules(&all, &format!("src/{}", files[0].0)))
}

/// The arrows of a graph as text, in alphabetical order.
fn arrows(files: &[(&str, &str)]) -> String {
    let graph = graph(files);
    let arrows =
        graph.0.iter().flat_map(|(from, all)| all.iter().map(move |(to, (_, line))| format!("{from}->{to}:{line}")));
    arrows.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_cycle_is_printed_with_a_line_for_each_arrow() {
    let root = ("lib.rs", "mod a; mod b; mod c; mod d;");
    let a = ("a.rs", "\nuse crate::b::B;\nuse crate::d::D;\npub struct A(B, D);");
    let b = ("b.rs", "pub struct B;\nfn f() { crate::c::g::<u8>() }");
    let c = ("c/mod.rs", "mod e;\npub fn g<T>() {}");
    let e = ("c/e.rs", "\n\ntype E = super::super::a::A;");
    let components = graph(&[root, a, b, c, e, ("d.rs", "pub struct D;")]).components();
    let text: String = components.iter().map(Component::to_string).collect();
    let expected = "  3 modules import each other: a, b, c\n    \
                    a -> b (src/a.rs:2)\n    b -> c (src/b.rs:2)\n    c -> a (src/c/e.rs:3)\n";
    assert_eq!(text, expected);
}

#[test]
fn arrows_that_only_diverge_and_meet_form_no_cycle() {
    let root = ("main.rs", "mod a; mod b; mod c; mod d;");
    let a = ("a.rs", "use crate::{b, c};");
    let files = [
        root,
        a,
        ("b.rs", "use crate::d;"),
        ("c.rs", "use crate::d; use self::e::F; mod e { pub struct F; }"),
        ("d.rs", ""),
    ];
    assert_eq!(arrows(&files), "a->b:1 a->c:1 b->d:1 c->d:1");
    assert_eq!(graph(&files).components(), Vec::new());
}

#[test]
fn a_name_that_the_root_exports_is_of_the_module_that_defines_it() {
    let root = ("lib.rs", "mod a; mod b; pub use a::Thing as Other; use b::*; pub struct Own;");
    let a = ("a.rs", "pub struct Thing;\nuse crate::Own;\nuse super::Function;");
    let b = ("b.rs", "mod deep;\npub use deep::inner::Function;\nuse std::fmt::Debug;\nfn f(other: &crate::Other) {}");
    let deep = ("b/deep.rs", "pub mod inner { pub struct Function; }");
    let files = [root, a, b, deep];
    assert_eq!(arrows(&files), "a->b:3 b->a:4");
    assert_eq!(graph(&files).components().len(), 1);
    let root = ("lib.rs", "mod a; mod b; pub use b::Thing;");
    let files = [root, ("a.rs", "pub struct Thing;\nuse crate::Thing as T;"), ("b.rs", "pub use crate::a::Thing;")];
    assert_eq!(arrows(&files), "b->a:1", "the module that passes a name on does not define it");
}

#[test]
fn a_glob_of_the_root_brings_in_what_is_mentioned() {
    let root = ("lib.rs", "mod a; mod b; mod c; pub use c::C;");
    let a = ("a.rs", "use super::*;\nfn f() { b::f() }\nfn g(_: C, _: D) {}\npub struct D;");
    assert_eq!(arrows(&[root, a, ("b.rs", "pub fn f() {}"), ("c.rs", "pub struct C;")]), "a->b:2 a->c:3");
}

#[test]
fn groups_and_aliases_and_chains_of_super_are_resolved() {
    let root = (
        "lib.rs",
        "mod a { mod b { mod c { use super::super::super::{x::{self, X}, y::Y as Z}; } } } mod x; mod y; mod z;",
    );
    let x = ("x.rs", "use crate::{y::{Y}, z};\npub struct X;");
    let files = [root, x, ("y.rs", "pub struct Y;"), ("z.rs", "use {super::y};")];
    assert_eq!(arrows(&files), "a->x:1 a->y:1 x->y:1 x->z:1 z->y:1");
}

#[test]
fn paths_in_macros_and_attributes_count() {
    let root = ("lib.rs", "mod a; mod b; mod c; mod d;");
    let a = ("a.rs", "macro_rules! m { () => { $crate::b::f() } }\nfn f() { println!(\"{}\", [crate::c::g()].len()) }");
    let b = ("b.rs", "#[derive(Serialize)]\nstruct B {\n    #[serde(with = \"crate::d::text\")]\n    field: u8,\n}");
    assert_eq!(
        arrows(&[root, a, b, ("c.rs", ""), ("d.rs", "/// See [`crate::a`].\nfn f() {}")]),
        "a->b:1 a->c:2 b->d:3"
    );
}

#[test]
fn every_file_of_a_module_with_one_for_each_platform_counts() {
    let root = ("lib.rs", "mod a; mod b; mod c;");
    let a =
        ("a.rs", "#[cfg_attr(unix, path = \"a/unix.rs\")]\n#[cfg_attr(not(unix), path = \"a/other.rs\")]\nmod system;");
    let [unix, other] = [("a/unix.rs", "use super::super::b;"), ("a/other.rs", "\nuse crate::c;")];
    assert_eq!(arrows(&[root, a, unix, other, ("b.rs", ""), ("c.rs", "")]), "a->b:1 a->c:2");
}

#[test]
fn code_for_tests_alone_is_left_out() {
    let root = ("lib.rs", "mod a; mod b; #[cfg(test)] mod common; #[cfg(test)] #[path = \"../tests/far.rs\"] mod far;");
    let a = (
        "a.rs",
        "#[cfg(test)]\nmod tests;\n#[cfg(all(test, unix))]\nuse crate::b::B;\n#[test]\nfn f() { crate::b::f() }\n\
         #[cfg(not(test))]\nmod c { type B = crate::b::B; }",
    );
    let files = [root, a, ("a/tests.rs", "use crate::b::f;"), ("b.rs", ""), ("common.rs", "use crate::a;")];
    assert_eq!(arrows(&files), "a->b:8");
}

/// The impure paths in a file, in order.
fn impure(text: &str) -> Vec<&'static str> {
    let files: Files = [("src/lib.rs".to_owned(), text.to_owned())].into();
    let modules = source::modules(&files, "src/lib.rs");
    modules.values().flat_map(impurities).map(|(what, _)| what).collect()
}

#[test]
fn impure_paths_are_found_however_they_are_imported() {
    assert_eq!(impure("use std::{collections::BTreeMap, fs, env as e};"), ["std::fs", "std::env"]);
    assert_eq!(impure("fn f() { let _ = std::fs::read(\"a\"); }"), ["std::fs"]);
    assert_eq!(impure("use std::time;\nfn f() { let _ = time::Instant::now(); }"), ["std::time::Instant"]);
    assert_eq!(impure("use std::io::{self as io};\nfn f() { io::stdin(); }"), ["std::io::stdin"]);
    assert_eq!(impure("use std::io::*;\nfn f() { stdout(); }"), ["std::io::stdout"]);
    assert_eq!(impure("fn f() { assert!(std::env::args().len() > 1); dbg!(1); }"), ["std::env", "dbg"]);
    assert_eq!(impure("use std::{io, time::Duration};\nfn f(e: io::Error) { format!(\"println\"); }"), [""; 0]);
}
