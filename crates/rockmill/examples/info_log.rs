//! The info log: the file LOG in the database's directory, or a user's function that receives its lines.

use std::sync::{Arc, Mutex};

use rockmill::{Db, Error, InfoLogger, LogLevel, Options};

fn main() -> Result<(), Error> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_log_level(LogLevel::Info);
    options.set_keep_log_file_num(3);
    let db = Db::open(&options, &dir)?;
    db.put("k", "v")?;
    db.flush()?;
    drop(db);
    let log = std::fs::read_to_string(dir.join("LOG")).map_err(|e| Error::io("LOG", &e))?;
    let flush = log.lines().find(|l| l.contains("flush_finished")).expect("each flush is told of");
    println!("{flush}");

    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&lines);
    options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Info, move |_, line| {
        kept.lock().expect("no panic holds it").push(line.to_owned());
    }));
    drop(Db::open(&options, &dir)?);
    let lines = lines.lock().expect("no panic holds it");
    println!("{} lines went to the function", lines.len());
    assert!(lines.iter().any(|l| l.contains("Shutdown complete")));
    Ok(())
}
