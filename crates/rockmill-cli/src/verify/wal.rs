//! Each WAL that recovery would read.

use rockmill::internals::LogSource;
use rockmill_format::batch;
use rockmill_format::filename;
use rockmill_format::log::{DamageKind, LogEvent, LogReader};

use super::{Context, Report};
use crate::error::{CliError, Result};

/// Reads the WALs with these numbers, oldest first.
pub fn check(context: &Context<'_>, numbers: &[u64], report: &mut Report) -> Result<()> {
    // Sequence number that should come next.
    let mut next: Option<u64> = None;
    // A WAL that ended inside a record: the next one must continue where it stopped.
    let mut cut: Option<String> = None;
    for &number in numbers {
        let name = filename::wal(number);
        let Some(path) = context.wal_dir.as_ref().map(|dir| dir.join(&name)) else { continue };
        let source = match context.fs.open_sequential(&path) {
            Ok(file) => LogSource::new(file),
            // A writer has deleted it: its data is now in tables.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => {
                report.problem(&name, format!("cannot be opened: {e}"));
                continue;
            }
        };
        report.wals += 1;
        let unreadable = |e| CliError::io(format_args!("cannot read {}", path.display()), &e);
        let mut reader = LogReader::new(source, number);
        let mut record = Vec::new();
        // Where the last record ends.
        let mut at = 0;
        loop {
            let mut event = reader.next_record(&mut record).map_err(unreadable)?;
            if matches!(event, LogEvent::Damage { .. }) {
                // A writer may have been writing this record when it was read.
                let source = LogSource::open(&**context.fs, &path, at).map_err(unreadable)?;
                let mut again = LogReader::resume(source, number, at, reader.is_recycled());
                let second = again.next_record(&mut record).map_err(unreadable)?;
                if matches!(second, LogEvent::Record { .. } | LogEvent::End { .. }) {
                    (reader, event) = (again, second);
                }
            }
            match event {
                LogEvent::Record { offset } => {
                    report.wal_records += 1;
                    at = reader.offset();
                    let (first, end) = match decode(&record) {
                        Ok(range) => range,
                        Err(e) => {
                            report.problem(&name, format!("record at offset {offset}: {e}"));
                            continue;
                        }
                    };
                    if let (Some(earlier), Some(next)) = (cut.take(), next)
                        && first != next
                    {
                        report.problem(
                            &earlier,
                            format!("ends inside a record, and {name} goes on at sequence number {first}, not {next}"),
                        );
                    }
                    if let Some(next) = next
                        && first < next
                    {
                        report.problem(
                            &name,
                            format!("record at offset {offset} has sequence number {first}, {next} was reached before"),
                        );
                    }
                    next = Some(end.max(next.unwrap_or(0)));
                    report.last_sequence = report.last_sequence.max(end.saturating_sub(1));
                }
                LogEvent::Damage { kind: DamageKind::CutTail, .. } => cut = Some(name.clone()),
                LogEvent::Damage {
                    kind: DamageKind::OldRecord { .. } | DamageKind::BadFragment { recycled: true },
                    ..
                } => {
                    // A reused file: the earlier WAL's remains begin here.
                    cut = Some(name.clone());
                    break;
                }
                LogEvent::Damage { error, dropped, .. } => {
                    report.problem(&name, format!("{error}; {dropped} bytes cannot be read"));
                }
                LogEvent::End { .. } => break,
            }
        }
        if cut.as_ref() == Some(&name) && !reader.is_recycled() {
            report.warning(&name, "ends inside a record that was never acknowledged as written: a crash leaves this");
        }
    }
    Ok(())
}

/// Decodes a whole batch; returns its first sequence number and the one after its last.
fn decode(record: &[u8]) -> std::result::Result<(u64, u64), rockmill_format::FormatError> {
    let (first, batch) = batch::decode(record)?;
    let mut end = first;
    for r in batch {
        end += u64::from(r?.counts());
    }
    Ok((first, end))
}
