//! What the top README and this crate's own show of Rust is what compiles here, and what a
//! manifest is to say fits this version.

use redis_lock_client::{Error, LockClient};

async fn ship(_token: u64) {}

#[expect(dead_code, reason = "it compiles, which is the test")]
async fn on_the_front_page() -> Result<(), Error> {
    let client = LockClient::connect("redis://127.0.0.1").await?;
    let lock = client.lock("orders:42");
    lock.run(|hold| async move { ship(hold.token()).await })
        .await?;
    Ok(())
}

/// The block of code in this language.
fn block(document: &str, language: &str) -> String {
    let path = format!("{}/{document}", env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(path).unwrap();
    let (_, rest) = document.split_once(&format!("```{language}\n")).unwrap();
    rest.split("```").next().unwrap().into()
}

#[test]
fn the_rust_on_the_front_page_compiles() {
    let dense = |text: &str| text.split_whitespace().collect::<String>();
    let here = dense(include_str!("documented.rs"));
    let shown = block("../README.md", "rust");
    let code = shown.lines().map(|line| line.split(" //").next().unwrap());
    let code = dense(&code.collect::<String>());
    assert!(!code.is_empty() && here.contains(&code), "{code}");
}

#[test]
fn a_manifest_names_this_version() {
    let shown = block("README.md", "toml");
    let version = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0;
    let line = format!("\nredis-lock-client = \"{version}\"");
    assert!(shown.contains(&line), "{shown}");
}
