//! What a worker counts, for Prometheus, and where it is asked for it.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use rockmill_io::Clock;

use crate::worker::Shared;

/// How often it is looked whether somebody asks.
const POLL: Duration = Duration::from_millis(50);
/// How long one who asks may take, to ask and to take the answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a request, at most.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// The counters of a worker as metrics ([`Worker::metrics`](crate::Worker::metrics)): a collector for a registry of
/// `prometheus-client`, or a text.
#[derive(Debug, Clone)]
pub struct WorkerMetrics {
    shared: Arc<Shared>,
}

impl WorkerMetrics {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The text that Prometheus reads (OpenMetrics 1.0).
    #[must_use]
    pub fn text(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut page = String::new();
        // invariant: nothing fails that writes into memory; half a page would be worse than none.
        if text::encode(&mut page, &registry).is_err() {
            page.clear();
        }
        page
    }
}

impl Collector for WorkerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (c, (name, jobs_max, drains)) = (self.shared.counters(), self.shared.state());
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("name", name)];
        let mut info =
            encoder.encode_descriptor("rockmill_worker_info", "Which worker this is", None, MetricType::Gauge)?;
        info.encode_family(&labels.as_slice())?.encode_gauge(&1u64)?;
        let gauges = [
            ("jobs_running", "Jobs that run now, and those that room is set aside for", c.running),
            ("jobs_max", "Jobs that it does at a time", jobs_max as u64),
            ("draining", "1 once it begins no more jobs", u64::from(drains)),
        ];
        for (name, help, value) in gauges {
            let name = format!("rockmill_worker_{name}");
            encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        let (parts, (program_calls, program_operations)) = (self.shared.engine_parts(), self.shared.program_calls());
        let counters = [
            ("jobs_done", "Jobs whose tables were written", c.done),
            ("jobs_failed", "Jobs that were begun and ended otherwise", c.failed),
            ("jobs_refused", "Jobs that were refused, and connections that did not come to a job", c.refused),
            ("jobs_pulled", "Jobs of a pool that it pulled, and that their stores let it have", c.pulled),
            ("connections", "Connections of stores on which both sides came to know each other", c.connections),
            ("input_bytes", "Bytes of the inputs of jobs that were done", c.input_bytes),
            ("output_bytes", "Bytes of the tables that they wrote", c.output_bytes),
            ("job_micros", "Wall time of jobs that were done, in microseconds", c.job_micros),
            ("merge_cpu_micros", "CPU time of their merges, in microseconds", c.cpu_micros),
            ("round_trips", "Times that jobs waited for an answer of their devices", c.round_trips),
            ("sent_bytes", "Bytes sent to devices of jobs", c.sent_bytes),
            ("received_bytes", "Bytes received from devices of jobs", c.received_bytes),
            ("reconnects", "Times that a job's device was connected to again", c.reconnects),
            ("parts_pread", "Parts of jobs that were merged by plain calls", parts.pread),
            ("parts_uring", "Parts of jobs that were merged through a ring of io_uring", parts.uring),
            ("parts_kernel", "Parts of jobs that the kernel merged", parts.kernel),
            ("parts_handed_over", "Parts that the kernel could not merge, or not to their end", parts.handed_over),
            ("ring_enters", "System calls that entered rings of io_uring", self.shared.ring_enters()),
            ("program_calls", "Calls of the merge program in rings that read and write", program_calls),
            ("program_operations", "Reads, writes and syncs that these calls submitted", program_operations),
        ];
        for (name, help, value) in counters {
            let name = format!("rockmill_worker_{name}");
            let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }
}

/// Answers `GET /metrics`, one who asks after another. It has neither secrets nor TLS: its address is for the machine
/// itself, or for a network of those who may know how much a worker does. It stops when it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Begins to answer at a listener.
    ///
    /// # Errors
    /// The listener's, or there is no thread.
    pub fn start(listener: TcpListener, metrics: WorkerMetrics, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let stops = Arc::<AtomicBool>::default();
        let stop = Arc::clone(&stops);
        let serve = move || {
            while !stop.load(Ordering::Acquire) {
                match listener.accept() {
                    // Whoever asks in vain sees that itself.
                    Ok((stream, _)) => drop(answer(stream, &metrics, &*clock)),
                    Err(_) => clock.sleep(POLL),
                }
            }
        };
        let thread = thread::Builder::new().name("worker-metrics".into()).spawn(serve)?;
        Ok(Self { address, stops, thread: Some(thread) })
    }

    /// Where it answers.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic in it ended the answers, and nothing else.
            let _ = thread.join();
        }
    }
}

/// The first line of a request, if its head comes in time and is not too long.
fn request(stream: &mut TcpStream, clock: &dyn Clock) -> io::Result<String> {
    let (mut head, since) = (Vec::new(), clock.monotonic_nanos());
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let waited = Duration::from_nanos(clock.monotonic_nanos().saturating_sub(since));
        if head.len() > REQUEST_BYTES_MAX || waited > ASK_TIMEOUT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&buffer[..n]),
        }
    }
    let line = head.split(|&b| b == b'\r').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

fn answer(mut stream: TcpStream, metrics: &WorkerMetrics, clock: &dyn Clock) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(ASK_TIMEOUT))?;
    stream.set_write_timeout(Some(ASK_TIMEOUT))?;
    let line = request(&mut stream, clock)?;
    let mut words = line.split(' ');
    let (status, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => ("200 OK", metrics.text()),
        (Some("GET"), _) => ("404 Not Found", "there is /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "there is GET /metrics\n".to_owned()),
    };
    let kind = match status {
        "200 OK" => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        _ => "text/plain",
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
    stream.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes())
}
