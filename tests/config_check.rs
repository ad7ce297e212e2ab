//! Owns: what `holdfast check` refuses, and what it says: file, line, column, what to do.
//! May call: the crate's config.
//! Never: need a device.

use holdfast::config::{GatewayConfig, Problem, load};
use std::path::Path;

fn example(name: &str) -> Result<GatewayConfig, Vec<Problem>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(name);
    load(&path, Path::new("/nonexistent"))
}

fn text(problems: &[Problem]) -> String {
    problems.iter().map(|p| format!("{p}\n")).collect()
}

// covers: CFG-01
#[test]
fn the_examples_load_and_say_what_they_mean() {
    let full = example("holdfast.toml").unwrap_or_else(|p| panic!("{}", text(&p)));
    assert_eq!(full.gateway, "gw-line3");
    assert_eq!(full.machines[0].commands.len(), 4);
    let minimal = example("minimal.toml").unwrap_or_else(|p| panic!("{}", text(&p)));
    assert_eq!(minimal.machines[0].owner, "gw-1");
}
