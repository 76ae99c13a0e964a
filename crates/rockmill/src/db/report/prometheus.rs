//! A database's metrics in a registry of the crate `prometheus-client`.

use std::fmt;
use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::db::Db;
use crate::db::report::metrics::{MetricKind, MetricSample, MetricValue};

/// Gives a registry of `prometheus-client` the metrics of a database, [`Db::metrics`], whenever they are asked for:
///
/// ```
/// use std::sync::Arc;
///
/// use prometheus_client::encoding::text;
/// use prometheus_client::registry::Registry;
/// use rockmill::{Db, PrometheusCollector};
///
/// # let scratch = tempfile::tempdir().expect("a temporary directory");
/// # let path = scratch.path().join("db");
/// let db = Arc::new(Db::open_default(&path)?);
/// let mut registry = Registry::default();
/// registry.register_collector(Box::new(PrometheusCollector::new(&db)));
///
/// let mut page = String::new();
/// text::encode(&mut page, &registry).expect("it is written into memory");
/// assert!(page.contains("rockmill_keys_written_total 0"));
/// # Ok::<(), rockmill::Error>(())
/// ```
///
/// The collector does not keep the database open: without it there are no metrics. Databases that share a registry
/// need a label each: `registry.sub_registry_with_label`.
///
/// Needs the Cargo feature `prometheus`.
pub struct PrometheusCollector {
    db: Weak<Db>,
}

impl PrometheusCollector {
    /// For this database.
    pub fn new(db: &Arc<Db>) -> Self {
        Self { db: Arc::downgrade(db) }
    }
}

impl fmt::Debug for PrometheusCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrometheusCollector")
    }
}

impl Collector for PrometheusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(db) = self.db.upgrade() else { return Ok(()) };
        for metric in db.metrics() {
            let kind = match metric.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Histogram => MetricType::Histogram,
            };
            let mut of_metric = encoder.encode_descriptor(&metric.name, &metric.help, None, kind)?;
            for sample in &metric.samples {
                let labels = sample.labels.as_slice();
                if labels.is_empty() {
                    value(&mut of_metric, metric.kind, sample)?;
                } else {
                    value(&mut of_metric.encode_family(&labels)?, metric.kind, sample)?;
                }
            }
        }
        Ok(())
    }
}

fn value(encoder: &mut MetricEncoder<'_>, kind: MetricKind, sample: &MetricSample) -> fmt::Result {
    match (&sample.value, kind) {
        (MetricValue::Integer(n), MetricKind::Counter) => encoder.encode_counter::<NoLabelSet, _, u64>(n, None),
        (MetricValue::Integer(n), _) => encoder.encode_gauge(n),
        (MetricValue::Number(n), _) => encoder.encode_gauge(n),
        (MetricValue::Histogram { buckets, sum }, _) => {
            // Our counts are up to a limit, theirs are between two limits, and their last one is everything beyond.
            let mut before = 0;
            let mut theirs: Vec<(f64, u64)> = Vec::with_capacity(buckets.len() + 1);
            for &(limit, up_to) in buckets {
                theirs.push((limit as f64, up_to - before));
                before = up_to;
            }
            theirs.push((f64::INFINITY, 0));
            encoder.encode_histogram::<NoLabelSet>(*sum as f64, before, &theirs, None)
        }
    }
}
