//! Parses metrics in Prometheus's text format: the contents of a status file.

use std::collections::HashMap;

use serde_json::Value;

/// Labels of a sample, in their order.
pub type Labels = Vec<(String, String)>;

/// All samples of a text, and the jobs in its comments.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    samples: HashMap<String, Vec<(Labels, f64)>>,
    /// Jobs that run, each as an object.
    pub jobs: Vec<Value>,
}

impl Metrics {
    /// Parses a text. The error names an invalid line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut all = Self::default();
        let mut typed: HashMap<&str, &str> = HashMap::new();
        for (i, line) in text.lines().enumerate() {
            let bad = |what: &str| format!("line {}: {what}: {line}", i + 1);
            if let Some(job) = line.strip_prefix("# job ") {
                all.jobs.push(serde_json::from_str(job).map_err(|e| bad(&e.to_string()))?);
            } else if let Some(of_type) = line.strip_prefix("# TYPE ") {
                let (name, kind) = of_type.split_once(' ').ok_or_else(|| bad("no type"))?;
                if !matches!(kind, "counter" | "gauge" | "histogram" | "summary" | "untyped") {
                    return Err(bad("unknown type"));
                }
                if typed.insert(name, kind).is_some() {
                    return Err(bad("a second type of this metric"));
                }
            } else if !line.starts_with('#') && !line.is_empty() {
                let (name, labels, value) = sample(line).ok_or_else(|| bad("no sample"))?;
                let family = |end: &str| name.strip_suffix(end).is_some_and(|f| typed.get(f) == Some(&"histogram"));
                if !typed.contains_key(name) && !["_bucket", "_sum", "_count"].into_iter().any(family) {
                    return Err(bad("no type before this sample"));
                }
                let of_name = all.samples.entry(name.to_owned()).or_default();
                if of_name.iter().any(|(l, _)| *l == labels) {
                    return Err(bad("a second sample of this name with these labels"));
                }
                of_name.push((labels, value));
            }
        }
        Ok(all)
    }

    /// The value of a metric without labels.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.samples.get(name)?.iter().find(|(labels, _)| labels.is_empty()).map(|(_, value)| *value)
    }

    /// Samples of a metric with their labels.
    pub fn all(&self, name: &str) -> &[(Labels, f64)] {
        self.samples.get(name).map_or(&[], Vec::as_slice)
    }

    /// The sum of a metric's samples.
    pub fn sum(&self, name: &str) -> f64 {
        self.all(name).iter().map(|(_, value)| value).sum()
    }

    /// The value of the sample with these labels, regardless of further labels.
    pub fn of(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |of: &Labels, (k, v): &(&str, &str)| label(of, k) == Some(v);
        self.all(name).iter().find(|(of, _)| labels.iter().all(|l| has(of, l))).map(|(_, value)| *value)
    }

    /// Buckets of a histogram: upper bounds with cumulative counts.
    pub fn buckets(&self, name: &str) -> Vec<(f64, f64)> {
        let bound = |labels: &Labels| label(labels, "le").map(|le| le.parse().unwrap_or(f64::INFINITY));
        let all = self.all(&format!("{name}_bucket"));
        let mut buckets: Vec<(f64, f64)> = all.iter().filter_map(|(l, n)| Some((bound(l)?, *n))).collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets
    }
}

/// The value of a label.
pub fn label<'a>(labels: &'a Labels, name: &str) -> Option<&'a str> {
    labels.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || "_:".contains(c))
        && chars.all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
}

/// `name{label="value",...} number`
fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (key, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            if !is_name(key) {
                return None;
            }
            labels.push((key.to_owned(), value));
            rest = after.strip_prefix(',').unwrap_or(after);
        }
    }
    let value = rest.strip_prefix(' ')?.parse().ok()?;
    is_name(name).then_some((name, labels, value))
}

/// A label's value, up to the quote that ends it, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                c @ ('\\' | '"') => value.push(c),
                _ => return None,
            },
            c => value.push(c),
        }
    }
    None
}

/// The value below which the fraction `share` of the values added between `before` and `now` lies, interpolated
/// linearly within a bucket. `None` if there are none.
pub fn percentile(before: &[(f64, f64)], now: &[(f64, f64)], share: f64) -> Option<f64> {
    let earlier = |limit: f64| {
        // Histograms grow by buckets: a bucket missing in an earlier text had its total count then.
        before.iter().find(|(l, _)| *l >= limit).or(before.last()).map_or(0.0, |(_, n)| *n)
    };
    let added: Vec<(f64, f64)> = now.iter().map(|&(limit, n)| (limit, n - earlier(limit))).collect();
    let all = added.last().map(|(_, n)| *n).filter(|n| *n > 0.0)?;
    let (mut left, mut up_to) = (0.0, 0.0);
    for &(limit, n) in &added {
        if n >= all * share && n > up_to {
            if limit.is_infinite() {
                return Some(left);
            }
            return Some(left + (limit - left) * (all * share - up_to) / (n - up_to));
        }
        (left, up_to) = (limit, n);
    }
    Some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP a_total How many
# TYPE a_total counter
a_total 12
# TYPE b gauge
b{cf=\"default\",level=\"0\"} 1.5
b{cf=\"a \\\"b\\\\\\n\",level=\"1\"} 2
# TYPE h histogram
h_bucket{le=\"1\"} 2
h_bucket{le=\"4\"} 10
h_bucket{le=\"+Inf\"} 10
h_sum 21
h_count 10
# job {\"job\": 7, \"cf_name\": \"default\"}
# EOF
";

    #[test]
    fn a_text_is_taken_apart() {
        let m = Metrics::parse(TEXT).expect("sound");
        assert_eq!(m.get("a_total"), Some(12.0));
        assert_eq!(m.of("b", &[("level", "0")]), Some(1.5));
        assert_eq!(m.of("b", &[("cf", "a \"b\\\n")]), Some(2.0));
        assert_eq!((m.sum("b"), m.get("b"), m.get("c")), (3.5, None, None));
        assert_eq!(m.buckets("h"), [(1.0, 2.0), (4.0, 10.0), (f64::INFINITY, 10.0)]);
        assert_eq!(m.jobs[0]["job"], 7);
    }

    #[test]
    fn what_is_no_text_of_metrics_is_refused() {
        for (bad, why) in [
            ("a 1\n", "no type before"),
            ("# TYPE a gauge\na\n", "no sample"),
            ("# TYPE a gauge\na x\n", "no sample"),
            ("# TYPE a gauge\na{b=\"1} 1\n", "no sample"),
            ("# TYPE a gauge\na{b=\"\\x\"} 1\n", "no sample"),
            ("# TYPE a gauge\n1a 1\n", "no sample"),
            ("# TYPE a gauge\na 1\na 2\n", "a second sample"),
            ("# TYPE a gauge\n# TYPE a gauge\n", "a second type"),
            ("# TYPE a lots\n", "unknown type"),
            ("# job {\n", "line 1"),
        ] {
            let e = Metrics::parse(bad).expect_err(bad);
            assert!(e.contains(why), "{bad:?}: {e}");
        }
    }

    /// The library's text has this format.
    #[test]
    fn the_text_of_a_database_is_taken_apart() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut options = rockmill::Options::default();
        options.create_if_missing(true);
        options.enable_statistics();
        let db = rockmill::Db::open(&options, dir.path().join("a \"b\"\\c")).expect("opens");
        db.put("k", "v").expect("written");
        db.get("k").expect("read");
        let m = Metrics::parse(&db.prometheus_text()).expect("sound");
        assert_eq!(m.get("rockmill_keys_written_total"), Some(1.0));
        assert_eq!(m.get("rocksdb_db_get_micros_count"), Some(1.0));
        assert!(label(&m.all("rockmill_info")[0].0, "path").is_some_and(|p| p.ends_with("a \"b\"\\c")));
        assert!(percentile(&[], &m.buckets("rocksdb_db_get_micros"), 0.5).is_some());
    }

    #[test]
    fn percentiles_are_of_what_was_added() {
        let before = [(1.0, 2.0), (2.0, 2.0)];
        let now = [(1.0, 2.0), (2.0, 2.0), (4.0, 12.0), (f64::INFINITY, 12.0)];
        assert_eq!(percentile(&before, &now, 0.5), Some(3.0));
        assert!(percentile(&[], &now, 0.1).is_some_and(|p| (p - 0.6).abs() < 1e-9));
        assert_eq!(percentile(&now, &now, 0.5), None);
        assert_eq!(percentile(&[], &[], 0.5), None);
        assert_eq!(percentile(&before, &now, 1.0), Some(4.0));
    }
}
