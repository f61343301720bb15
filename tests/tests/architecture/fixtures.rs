//! The readers of sources on sources of a few lines.

use super::{
    graph::{Component, Graph, folders, references},
    purity::impurities,
    source::{self, Files, Modules},
};

/// The modules of the crate with these files, whose first is the root.
fn read(files: &[(&str, &str)]) -> Modules {
    let all: Files = files.iter().map(|(name, text)| (format!("src/{name}"), (*text).into())).collect();
    source::modules(&all, &format!("src/{}", files[0].0))
}

/// The graph of its top-level modules.
fn graph(files: &[(&str, &str)]) -> Graph {
    let modules = read(files);
    Graph::of(&modules, &references(&modules), &[])
}

/// The cycles of every folder, as text.
fn cycles(files: &[(&str, &str)]) -> String {
    let modules = read(files);
    let references = references(&modules);
    let of_folder = |folder: &source::Path| {
        let components = Graph::of(&modules, &references, folder).components();
        components.iter().map(|component| format!("{}\n{component}", folder.join("/"))).collect::<String>()
    };
    folders(&modules).iter().map(of_folder).collect()
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
fn cycles_of_modules_below_others_are_found_in_their_folder() {
    let root = ("lib.rs", "mod a; mod b;");
    let a = ("a/mod.rs", "mod one; mod two;\nmod three;\npub use two::Two;");
    let one = ("a/one.rs", "\nuse super::Two;\npub struct One(Two);");
    let two = ("a/two.rs", "use crate::b::B;\npub struct Two(B);");
    let three = ("a/three/mod.rs", "mod deep;\npub struct Three;");
    let deep = ("a/three/deep.rs", "use crate::a::one::One;\nfn f(_: One, _: super::Three) {}");
    let b = ("b.rs", "pub struct B;");
    assert_eq!(
        cycles(&[root, a, one, two, three, deep, b]),
        "",
        "a module may mention its parent and its own children"
    );
    let two = ("a/two.rs", "\n\nuse super::three;\npub struct Two(three::Three);");
    let expected = "a\n  3 modules import each other: one, three, two\n    \
                    one -> two (src/a/one.rs:2)\n    two -> three (src/a/two.rs:3)\n    three -> one (src/a/three/deep.rs:1)\n";
    assert_eq!(cycles(&[root, a, one, two, three, deep, b]), expected);
    let [deep, deeper] = [
        ("a/three/deep.rs", "use super::deeper::D;\npub struct C;"),
        ("a/three/deeper.rs", "use super::*;\npub struct D(deep::C);"),
    ];
    let three = ("a/three/mod.rs", "mod deep; mod deeper;\npub struct Three;");
    let found = cycles(&[root, a, one, two, three, deep, deeper, b]);
    assert!(found.starts_with("a/three\n  2 modules import each other: deep, deeper\n"), "{found}");
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
