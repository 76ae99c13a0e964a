//! Writes the initial inputs of the corpora: `cargo run -p rockmill-fuzz --example seeds -- DIR [TARGET...]`.

use std::path::PathBuf;

use rockmill_fuzz::{TARGETS, seeds};

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().unwrap_or_else(|| "fuzz/corpus".into()));
    let only: Vec<String> = args.collect();
    for (name, _) in TARGETS.iter().filter(|(name, _)| only.is_empty() || only.iter().any(|o| o == name)) {
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir)?;
        for input in seeds::of(name) {
            std::fs::write(dir.join(format!("{:016x}", rockmill_format::hash::hash64(&input))), &input)?;
        }
        println!("{name}: {}", std::fs::read_dir(&dir)?.count());
    }
    Ok(())
}
