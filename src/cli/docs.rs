//! Owns: `completions`, `man`, `version`: made from the parser, so that they cannot differ from it.
//! May call: clap; the lock file.
//! Never: describe what the parser does not take.

use super::Cli;
use super::exit::Exit;
use clap::CommandFactory as _;
use std::io::{self, Write as _};

fn print(text: &[u8]) -> Exit {
    // Whoever read our output has enough of it.
    let _ = io::stdout().lock().write_all(text);
    Exit::Done
}

pub(super) fn completions(shell: clap_complete::Shell) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut script);
    print(&script)
}

/// The program's page, then one section a command.
pub(super) fn man() -> Exit {
    let mut page = Vec::new();
    let mut command = Cli::command();
    command.build();
    // Writing to memory does not fail.
    let _ = clap_mangen::Man::new(command.clone()).render(&mut page);
    for sub in command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
    {
        let man = clap_mangen::Man::new(sub.clone());
        let _ = writeln!(page, ".SH \"holdfast {}\"", sub.get_name().to_uppercase());
        let _ = man.render_description_section(&mut page);
        let _ = man.render_options_section(&mut page);
    }
    print(&page)
}

pub(super) fn version(json: bool, sbom: bool) -> Exit {
    let version = env!("CARGO_PKG_VERSION");
    if sbom {
        print(format!("{:#}\n", bill_of_materials()).as_bytes())
    } else if json {
        print(format!("{{\"name\":\"holdfast\",\"version\":\"{version}\"}}\n").as_bytes())
    } else {
        print(format!("holdfast {version}\n").as_bytes())
    }
}

/// CycloneDX 1.5 from the lock file that this program was built with; what only its tests use is in it too.
fn bill_of_materials() -> serde_json::Value {
    let lock: toml::Table = toml::from_str(include_str!("../../Cargo.lock")).unwrap_or_default();
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let component = |package: &toml::Value| {
        let text = |key: &str| package.get(key)?.as_str().map(str::to_owned);
        let (name, version) = (text("name")?, text("version")?);
        // Our own package has no checksum.
        let hash = text("checksum")?;
        Some(serde_json::json!({
            "type": "library",
            "name": name,
            "version": version,
            "purl": format!("pkg:cargo/{name}@{version}"),
            "hashes": [{ "alg": "SHA-256", "content": hash }],
        }))
    };
    let components: Vec<_> = packages
        .into_iter()
        .flatten()
        .filter_map(component)
        .collect();
    serde_json::json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application", "name": "holdfast", "version": env!("CARGO_PKG_VERSION"),
        } },
        "components": components,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_bill_of_materials_names_what_the_lock_file_names() {
        let bill = super::bill_of_materials();
        let components = bill["components"].as_array().unwrap();
        let sled = components.iter().find(|c| c["name"] == "sled").unwrap();
        assert_eq!(sled["version"], "0.34.7");
        assert_eq!(sled["hashes"][0]["content"].as_str().unwrap().len(), 64);
        assert!(components.len() > 50);
    }
}
