//! The top-level modules of each crate use each other in one direction. If modules form a cycle, none of them can be
//! read, tested or moved without the others.
//!
//! The graph is parsed from the source: every `crate::module` and every chain of `super::` that reaches the top of the
//! crate, outside of comments and tests. Items of the crate's root count as a separate module.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The root of a crate as a node of its graph.
const ROOT: &str = "(root)";

/// The remaining cycles, each with all of its modules. The list only ever gets shorter: if you untie a module, remove
/// it here.
const KNOWN: &[(&str, &[&str])] = &[];

type Graph = BTreeMap<String, BTreeSet<String>>;

/// The source without comments and without code for tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| line.split(" // ").next().unwrap()).collect::<Vec<_>>().join("\n")
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The first names after the beginning of a path: one, or all of a group in braces.
fn names(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else {
        return vec![rest.chars().take_while(|c| is_word(*c)).collect()];
    };
    let (mut depth, mut names, mut name, mut done) = (0, Vec::new(), String::new(), false);
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                names.push(std::mem::take(&mut name));
                done = false;
            }
            c if depth == 0 && !done && is_word(c) => name.push(c),
            c if depth == 0 && c == ':' => done = true,
            _ => {}
        }
    }
    names.push(name);
    names.retain(|name| !name.is_empty());
    names
}

/// The top-level modules that a file at this depth uses.
fn uses(code: &str, depth: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        if !code[..at].ends_with(|c| is_word(c) || c == ':') {
            found.extend(names(&code[at + "crate::".len()..]));
        }
    }
    for (at, _) in code.match_indices("super::") {
        if code[..at].ends_with(|c| is_word(c) || c == ':') {
            continue;
        }
        let (mut rest, mut up) = (&code[at..], 0);
        while let Some(more) = rest.strip_prefix("super::") {
            (rest, up) = (more, up + 1);
        }
        if up == depth {
            found.extend(names(rest));
        }
    }
    found
}

/// All files of a module with their depth below the crate's root.
fn files(source: &Path, module: &str) -> Vec<(PathBuf, usize)> {
    let mut found = Vec::new();
    let single = source.join(format!("{module}.rs"));
    if single.exists() {
        found.push((single, 1));
    }
    let mut below = vec![(source.join(module), 1)];
    while let Some((directory, depth)) = below.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().map(Result::unwrap) {
            let path = entry.path();
            let name = entry.file_name().into_string().unwrap();
            match name.strip_suffix(".rs") {
                _ if path.is_dir() && name != "tests" => below.push((path, depth + 1)),
                Some("mod") => found.push((path, depth)),
                Some(file) if file != "tests" && !file.ends_with("_tests") => found.push((path, depth + 1)),
                _ => {}
            }
        }
    }
    found
}

fn graph(source: &Path, root: &str) -> Graph {
    let root = code(root);
    let declared = root.lines().filter_map(|line| {
        let line = line.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
    });
    let modules: BTreeSet<String> = declared.collect();
    // Names that the root re-exports belong to the module that defines them.
    let mut passed_on: BTreeMap<String, String> = BTreeMap::new();
    for statement in root.split(';') {
        let Some((_, path)) = statement.split_once("use ") else { continue };
        let path = path.trim_start_matches("crate::").trim_start_matches("self::");
        let module: String = path.chars().take_while(|c| is_word(*c)).collect();
        if let Some(rest) = path.strip_prefix(module.as_str()).and_then(|rest| rest.strip_prefix("::"))
            && modules.contains(&module)
        {
            for name in names(rest) {
                let shown = rest.split_once(" as ").map_or(name.as_str(), |(_, other)| other.trim());
                passed_on.insert(shown.to_owned(), module.clone());
            }
        }
    }
    let mut graph = Graph::new();
    let below_root = modules.iter().filter(|module| {
        let path = format!("{module}::");
        root.match_indices(&path).any(|(at, _)| !root[..at].ends_with(is_word))
    });
    graph.insert(ROOT.to_owned(), below_root.cloned().collect());
    for module in &modules {
        let mut edges = BTreeSet::new();
        for (file, depth) in files(source, module) {
            for name in uses(&code(&fs::read_to_string(&file).unwrap()), depth) {
                let used = if modules.contains(&name) {
                    name
                } else {
                    passed_on.get(&name).cloned().unwrap_or_else(|| ROOT.to_owned())
                };
                if used != *module {
                    edges.insert(used);
                }
            }
        }
        graph.insert(module.clone(), edges);
    }
    graph
}

fn reachable(graph: &Graph, from: &str) -> BTreeSet<String> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(module) = next.pop() {
        for used in graph.get(&module).into_iter().flatten() {
            if seen.insert(used.clone()) {
                next.push(used.clone());
            }
        }
    }
    seen
}

/// Each set of modules that all depend on each other.
fn cycles(graph: &Graph) -> BTreeSet<BTreeSet<String>> {
    let reach: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|module| (module, reachable(graph, module))).collect();
    let in_a_cycle = graph.keys().filter(|module| reach[module].contains(*module));
    in_a_cycle
        .map(|module| {
            let with =
                reach[module].iter().filter(|other| reach.get(other).is_some_and(|r| r.contains(module)));
            with.cloned().collect()
        })
        .collect()
}

#[test]
fn modules_of_a_crate_use_each_other_in_one_direction() {
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates");
    let (mut found, mut seen) = (BTreeSet::new(), 0);
    for entry in fs::read_dir(crates).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let source = entry.path().join("src");
        for root in ["lib.rs", "main.rs"] {
            let Ok(text) = fs::read_to_string(source.join(root)) else { continue };
            seen += 1;
            let graph = graph(&source, &text);
            found.extend(cycles(&graph).into_iter().map(|cycle| {
                let edges = graph.iter().filter(|(module, _)| cycle.contains(*module));
                let edges: Vec<String> = edges
                    .map(|(module, uses)| {
                        let uses: Vec<&str> =
                            uses.iter().filter(|used| cycle.contains(*used)).map(String::as_str).collect();
                        format!("    {module} -> {}", uses.join(", "))
                    })
                    .collect();
                (name.clone(), cycle, edges.join("\n"))
            }));
        }
    }
    assert!(seen > 10, "only {seen} crates were found below {crates}");
    let known: BTreeSet<(String, BTreeSet<String>)> = KNOWN
        .iter()
        .map(|(name, modules)| ((*name).to_owned(), modules.iter().map(|one| (*one).to_owned()).collect()))
        .collect();
    let is_known = |name: &String, cycle: &BTreeSet<String>| {
        known.iter().any(|(of, modules)| of == name && cycle.is_subset(modules))
    };
    let mut problems = Vec::new();
    for (name, cycle, edges) in &found {
        if !is_known(name, cycle) {
            problems.push(format!(
                "{name} has a new cycle of modules, or one more module in a known one:\n{edges}\n\
                 Move what they share into a module below both, or pass what is needed instead of who has it."
            ));
        }
    }
    for (name, modules) in &known {
        let left: BTreeSet<&String> =
            found.iter().filter(|(of, ..)| of == name).flat_map(|(_, cycle, _)| cycle).collect();
        let untied: Vec<&String> = modules.iter().filter(|module| !left.contains(module)).collect();
        if !untied.is_empty() {
            problems
                .push(format!("{name}: {untied:?} are in no cycle any more; take them off the list KNOWN"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

#[test]
fn paths_and_cycles_are_found_in_every_spelling() {
    let code = code(
        "use crate::alpha::{One, two};\nuse crate::{beta, gamma::Delta as Other};\n// crate::comment\n\
         fn f() { super::epsilon::g(); super::super::zeta(); mycrate::no(); }\n\
         #[cfg(test)]\nmod tests { use crate::only_tests; }",
    );
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(uses(&code, 1), set(&["alpha", "beta", "gamma", "epsilon"]));
    assert_eq!(uses(&code, 2), set(&["alpha", "beta", "gamma", "zeta"]));
    let edges = [("a", &["b"][..]), ("b", &["c"]), ("c", &["a", "d"]), ("d", &[]), ("e", &["d"])];
    let graph: Graph = edges.iter().map(|(name, uses)| ((*name).to_owned(), set(uses))).collect();
    assert_eq!(cycles(&graph), BTreeSet::from([set(&["a", "b", "c"])]));
}
