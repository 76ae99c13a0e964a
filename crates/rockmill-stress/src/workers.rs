//! A worker in this process, which does compactions of this process's databases over loopback: all that lies between
//! a store and a worker, but for the wire.

use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rockmill::SharedCompactionFilterFactory;
use rockmill::internals::JobRegistry;
use rockmill_io::SystemClock;
use rockmill_offload::{Worker, WorkerConfig, WorkerCounters, Workers, WorkersConfig};

use crate::kinds::{Expire, FoldedComparator};

/// Jobs at a time, of all databases; with more, some are done by their stores.
const JOBS_MAX: usize = 8;

struct Started {
    worker: Worker,
    workers: Arc<Workers>,
}

fn started() -> &'static Started {
    static STARTED: OnceLock<Started> = OnceLock::new();
    STARTED.get_or_init(|| {
        let registry = JobRegistry {
            comparators: vec![Arc::new(FoldedComparator)],
            filter_factories: vec![SharedCompactionFilterFactory::new(Expire)],
            ..JobRegistry::default()
        };
        let start = || {
            let config = WorkerConfig { jobs_max: JOBS_MAX, registry: registry.clone(), ..WorkerConfig::default() };
            let worker = Worker::start(TcpListener::bind("127.0.0.1:0")?, config, Arc::new(SystemClock::default()))?;
            let config = WorkersConfig {
                input_bytes_min: 0,
                jobs_max: JOBS_MAX,
                // What fails, as tests make it fail, is not held against it.
                pause: Duration::ZERO,
                registry: registry.clone(),
                ..WorkersConfig::new(vec![worker.address()])
            };
            Ok::<_, std::io::Error>(Started {
                workers: Workers::new(config, Arc::new(SystemClock::default()))?,
                worker,
            })
        };
        // invariant: a machine has a loopback interface, and a port of it left.
        start().expect("a worker on 127.0.0.1")
    })
}

/// The stores' side of the worker, which is started now if it was not before. It lives as long as the process.
pub fn workers() -> Arc<Workers> {
    Arc::clone(&started().workers)
}

/// What the worker did so far.
pub fn counters() -> WorkerCounters {
    started().worker.counters()
}
