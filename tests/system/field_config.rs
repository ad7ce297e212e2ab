//! Owns: configuration files as editors and habits leave them.
//! May call: the harness and its common questions.
//! Never: accept that a refused file changed anything.

use super::harness::Rig;

fn utf16le(text: &str) -> Vec<u8> {
    let mut bytes = vec![0xFF, 0xFE];
    bytes.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
    bytes
}

// covers: F135
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_in_another_encoding_is_named_and_leaves_the_running_one_alone() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    let file = rig.path().join("press-1.toml");
    let good = rig.machine_toml.clone();
    let changed = good.replace("max = 3000", "max = 1000");
    // "速度", as a name, in the code pages of Japanese and Chinese systems.
    let in_pages = |name: &[u8]| {
        let (before, after) = changed.split_once("owner").unwrap();
        [before.as_bytes(), b"# ", name, b"\nowner", after.as_bytes()].concat()
    };
    let bad = [
        (utf16le(&changed), "UTF-16"),
        (in_pages(&[0x91, 0xAC, 0x93, 0x78]), "UTF-8"),
        (in_pages(&[0xCB, 0xD9, 0xB6, 0xC8]), "UTF-8"),
        ([changed.as_bytes(), b"\0"].concat(), "press-1.toml:"),
    ];
    for (n, (bytes, named)) in bad.into_iter().enumerate() {
        std::fs::write(&file, &bytes).unwrap();
        let (status, answer) = rig.post("/v1/reload", serde_json::json!({})).await;
        assert_eq!(status, 409, "{answer}");
        let detail = answer["detail"].as_str().unwrap();
        assert!(
            detail.contains(named) && detail.contains("press-1.toml"),
            "{detail}"
        );
        let check = rig.command(&["check"]).output().unwrap();
        assert_eq!(check.status.code(), Some(78));
        let says = String::from_utf8_lossy(&check.stderr).into_owned();
        assert!(says.contains(named), "{says}");
        // The running limit is still the old one.
        let id = format!("E{n}");
        let (_, done) = rig.submit_wait(&rig.set_speed(&id, 2_000)).await;
        assert_eq!(done["state"], "completed", "{done}");
    }
    // A byte-order mark, carriage returns and tabs are what some editors write, and mean the same.
    let windows = changed
        .replace('\n', "\r\n")
        .replace("name = \"set_speed\"", "\tname = \"set_speed\"");
    std::fs::write(&file, ["\u{FEFF}", &windows].concat()).unwrap();
    let (status, answer) = rig.post("/v1/reload", serde_json::json!({})).await;
    assert_eq!(status, 200, "{answer}");
    rig.until_link("up").await;
    let (_, refused) = rig.submit(&rig.set_speed("E-last", 2_000)).await;
    assert_eq!(refused["code"], "invalid_argument", "{refused}");
}

// covers: F137
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_are_exact_and_unknown_or_double_keys_are_refused() {
    let mut rig = Rig::new().await;
    let good = rig.machine_toml.clone();
    for (found, instead) in [
        ("unit = 1\n", "unit = \"2\"\n"),
        ("unit = 1\n", "unit = on\n"),
        ("unit = 1\n", "unit = 1e5\n"),
        ("unit = 1\n", "unit = 1\nunits = 2\n"),
        ("unit = 1\n", "unit = 1\nunit = 1\n"),
        ("queueable = true", "queueable = \"no\""),
        ("queueable = true", "queueable = off"),
        ("equals = true", "equals = 1"),
        ("name = \"speed\"", "name = null"),
        ("name = \"speed\"", "name = ~"),
    ] {
        rig.machine_toml = good.replacen(found, instead, 1);
        assert_ne!(rig.machine_toml, good);
        rig.spawn();
        let ended = rig.until_dead().await;
        assert_eq!(ended.code(), Some(78), "{instead}: {}", rig.log());
        assert!(!rig.journal_dir().exists(), "{instead}: nothing was opened");
    }
    // A country, an exponent and a switch are words like others.
    rig.machine_toml = good
        .replace("name = \"speed\"", "name = \"NO\"")
        .replace("name = \"set_length\"", "name = \"off\"")
        .replace("name = \"door closed\"", "name = \"1e5\"");
    rig.start_up().await;
    let tag = rig.until_tag("NO", |tag| tag["quality"] == "good").await;
    assert_eq!(tag["name"], "NO");
    let request = rig.request("Y1", "off", serde_json::json!({ "length": 4 }));
    let (_, done) = rig.submit_wait(&request).await;
    assert_eq!(done["state"], "completed", "{done}");
}
