//! The worker's process: `nfs-worker URL THREADS ENGINE`, which gets jobs at its standard input.
//!
//! A job is three texts (directory of the inputs, of the outputs, spec), each behind its length in eight bytes. The
//! answer is three, too: why it failed, or nothing; four numbers of what it took; the result.

use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rockmill::MergeEngine;
use rockmill::internals::{JobRegistry, RemoteUsage, WorkerDevice, WorkerJob, WorkerMachine};
use rockmill_io::SystemClock;
use rockmill_io::sync::Mutex;

use super::device::{Export, NfsDevice};
use super::libnfs::Library;
use crate::error::{Error, Result};

/// The longest text: more than a spec or a result may have.
const TEXT_BYTES_MAX: u64 = 1 << 30;

fn send(to: &mut impl Write, text: &[u8]) -> io::Result<()> {
    to.write_all(&(text.len() as u64).to_le_bytes())?;
    to.write_all(text)
}

fn receive(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > TEXT_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a text is too long"));
    }
    let mut text = Vec::new();
    from.take(length).read_to_end(&mut text)?;
    if text.len() as u64 == length { Ok(text) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn receive_text(from: &mut impl Read) -> io::Result<String> {
    String::from_utf8(receive(from)?).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// How a worker is started.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The program that has `bench nfs-worker`.
    pub program: &'a Path,
    /// `nfs://SERVER/EXPORT?nfsport=PORT&mountport=PORT`.
    pub url: &'a str,
    /// Threads of a job.
    pub threads: u16,
    /// How jobs are merged.
    pub engine: MergeEngine,
}

/// A worker's process. Dropping it ends it.
pub struct NfsWorker {
    child: Mutex<(Child, ChildStdin, BufReader<ChildStdout>)>,
    id: u32,
}

impl fmt::Debug for NfsWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NfsWorker").field("id", &self.id).finish_non_exhaustive()
    }
}

impl NfsWorker {
    /// Starts it.
    ///
    /// # Errors
    /// libnfs is missing, or the program.
    pub fn start(start: Start<'_>) -> Result<Arc<Self>> {
        Library::load().map_err(|e| Error::Usage(format!("--nfs: {e}")))?;
        let mut command = Command::new(start.program);
        command.args(["bench", "nfs-worker", start.url, &start.threads.to_string(), start.engine.name()]);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let cannot = format_args!("cannot start {}", start.program.display()).to_string();
        let mut child = spawned.map_err(|e| Error::io(&cannot, &e))?;
        let id = child.id();
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => {
                Ok(Arc::new(Self { child: Mutex::new((child, input, BufReader::new(output))), id }))
            }
            _ => Err(Error::Run(cannot)),
        }
    }

    /// Its number among the machine's processes.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Does a job with inputs and outputs in these directories of the export.
    ///
    /// # Errors
    /// Why it was not done.
    pub fn run(&self, inputs: &str, outputs: &str, spec: &[u8]) -> io::Result<(Vec<u8>, RemoteUsage)> {
        let mut child = self.child.lock();
        let (_, input, output) = &mut *child;
        for text in [inputs.as_bytes(), outputs.as_bytes(), spec] {
            send(input, text)?;
        }
        input.flush()?;
        let (why, took, result) = (receive_text(output)?, receive(output)?, receive(output)?);
        if !why.is_empty() {
            return Err(io::Error::other(why));
        }
        let mut numbers = took.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut next = || numbers.next().unwrap_or_default();
        let usage = RemoteUsage { cpu_micros: next(), round_trips: next(), sent_bytes: next(), received_bytes: next() };
        Ok((result, usage))
    }
}

impl Drop for NfsWorker {
    fn drop(&mut self) {
        let (child, ..) = &mut *self.child.lock();
        // It has no state that an orderly end would save. An error means that it has already ended.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The process itself: does jobs until standard input ends.
///
/// # Errors
/// A command line that is none of its, no libnfs, or a broken pipe.
pub(crate) fn serve(args: impl Iterator<Item = String>) -> Result<()> {
    let usage = || Error::Usage("nfs-worker URL THREADS ENGINE is what bench offload --nfs starts".to_owned());
    let [url, threads, engine] = <[String; 3]>::try_from(args.collect::<Vec<_>>()).map_err(|_| usage())?;
    let engine = MergeEngine::ALL.into_iter().find(|known| known.name() == engine).ok_or_else(usage)?;
    let threads = threads.parse().map_err(|_| usage())?;
    let library = Library::load().map_err(Error::Run)?;
    let machine = WorkerMachine::new(JobRegistry::default(), threads, Arc::new(SystemClock::default()));
    let machine = machine.with_engine(engine)?;
    let failed = |e: io::Error| Error::io("the bench that started this", &e);
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    loop {
        let inputs = match receive_text(&mut input) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            inputs => inputs.map_err(failed)?,
        };
        let (outputs, spec) = (receive_text(&mut input).map_err(failed)?, receive(&mut input).map_err(failed)?);
        let export = Export { url: url.clone(), inputs, outputs };
        let (why, took, result) = match job(&library, &machine, &export, &spec) {
            Ok((result, took)) => (String::new(), took, result),
            Err(e) => (e.to_string(), [0; 4], Vec::new()),
        };
        let took: Vec<u8> = took.into_iter().flat_map(u64::to_le_bytes).collect();
        for text in [why.as_bytes(), &took, &result] {
            send(&mut output, text).map_err(failed)?;
        }
        output.flush().map_err(failed)?;
    }
}

/// Does one job. All that it wrote is durable then.
fn job(
    library: &Arc<Library>,
    machine: &WorkerMachine,
    export: &Export,
    spec: &[u8],
) -> io::Result<(Vec<u8>, [u64; 4])> {
    let spec = machine.accept(spec).map_err(io::Error::other)?;
    let device = Arc::new(NfsDevice::connect(library, export, &spec)?);
    let result = machine.run(&spec, Arc::clone(&device) as Arc<dyn WorkerDevice>, &Arc::new(WorkerJob::default()));
    device.finish()?;
    let cpu_micros = result.outcome.as_ref().map_or(0, |made| made.stats.cpu_micros);
    let c = device.counters();
    let [calls, written, read] = [&c.calls, &c.written, &c.read].map(|count| count.load(Ordering::Relaxed));
    Ok((result.encode().map_err(io::Error::other)?, [cpu_micros, calls, written, read]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_as_they_were_sent() {
        let mut pipe = Vec::new();
        for text in ["one", "", "three"] {
            send(&mut pipe, text.as_bytes()).unwrap();
        }
        let mut from = pipe.as_slice();
        assert_eq!([receive_text(&mut from).unwrap(), receive_text(&mut from).unwrap()], ["one", ""]);
        receive(&mut &from[..from.len() - 1]).expect_err("cut off");
        assert_eq!(receive(&mut from).unwrap(), b"three");
        assert_eq!(receive(&mut from).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        receive(&mut [0xff; 8].as_slice()).expect_err("too long");
    }

    #[test]
    fn other_command_lines_are_refused() {
        for line in ["", "nfs://a/b 1", "nfs://a/b x auto", "nfs://a/b 1 fast"] {
            serve(line.split_whitespace().map(str::to_owned)).expect_err(line);
        }
    }
}
