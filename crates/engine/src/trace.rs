//! A timeline of device and cores, and totals against the prediction.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::schedule::Totals;

/// Most spans kept of one run, or of several in one trace, of 56 bytes each, outside the budget; a
/// longer run keeps its first ones and counts the others in the sums.
const SPANS_MAX: usize = 50_000;

/// Most bytes of plan names in a trace of several runs.
const PLAN_NAMES_BYTES: usize = 120;

/// A span of time on one lane.
#[derive(Clone, Debug, Serialize)]
pub struct Span {
    /// `"device"`, or `"core 0"` and so on.
    pub lane: Arc<str>,
    /// `"read"`, `"write"`, or the name of a task, with the object where there is one.
    pub name: Arc<str>,
    /// Seconds from the start of the run.
    pub start_s: f64,
    /// Seconds from the start of the run.
    pub end_s: f64,
    /// Bytes moved, or zero.
    pub bytes: u64,
}

/// Traffic, memory and times of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Trace {
    /// Name of the plan; for several, their names without duplicates.
    pub plan: String,
    /// Number of runs.
    pub runs: u64,
    /// Predictions of the plans: sums, and the maximum for the peak.
    pub predicted: Totals,
    /// Measured traffic and memory.
    pub actual: Totals,
    /// Bytes found in memory in place of a load; `predicted.bytes_read` is the sum of
    /// `actual.bytes_read` and these.
    pub bytes_reused: u64,
    /// Least traffic known for this work and budget, bytes.
    pub bound_bytes: u64,
    /// Arithmetic operations.
    pub flops: u64,
    /// Elapsed seconds.
    pub wall_s: f64,
    /// Seconds with at least one request on a device.
    pub device_busy_s: f64,
    /// Seconds without a request.
    pub device_idle_s: f64,
    /// Seconds of tasks, summed over threads.
    pub cores_busy_s: f64,
    /// Threads times elapsed seconds, minus the busy seconds.
    pub cores_idle_s: f64,
    /// Bytes of each object that moved: name, read, written.
    pub objects: Vec<(String, u64, u64)>,
    /// The timeline.
    pub spans: Vec<Span>,
    /// Number of spans that the timeline left out.
    pub spans_dropped: u64,
}

impl Trace {
    /// Adds a run that began `start_s` seconds after the first one, on `threads` threads. If runs
    /// overlap, the device counts as busy for each of them, but for no longer than all runs
    /// together took.
    pub fn append(&mut self, next: &Trace, start_s: f64, threads: usize) {
        self.runs += next.runs;
        self.name_also(&next.plan);
        self.predicted.append(&next.predicted);
        self.actual.append(&next.actual);
        self.bytes_reused += next.bytes_reused;
        self.bound_bytes += next.bound_bytes;
        self.flops += next.flops;
        self.wall_s = self.wall_s.max(start_s + next.wall_s);
        self.device_busy_s = (self.device_busy_s + next.device_busy_s).min(self.wall_s);
        self.device_idle_s = (self.wall_s - self.device_busy_s).max(0.0);
        self.cores_busy_s += next.cores_busy_s;
        self.cores_idle_s = (self.wall_s * threads as f64 - self.cores_busy_s).max(0.0);
        for (name, read, written) in &next.objects {
            match self.objects.iter_mut().find(|(known, ..)| known == name) {
                Some(object) => (object.1, object.2) = (object.1 + read, object.2 + written),
                None => self.objects.push((name.clone(), *read, *written)),
            }
        }
        let kept = next
            .spans
            .len()
            .min(SPANS_MAX.saturating_sub(self.spans.len()));
        let later = |span: &Span| Span {
            start_s: span.start_s + start_s,
            end_s: span.end_s + start_s,
            ..span.clone()
        };
        self.spans.extend(next.spans[..kept].iter().map(later));
        self.spans_dropped += next.spans_dropped + (next.spans.len() - kept) as u64;
    }

    /// Adds the names of further plans, as long as they fit into a line.
    fn name_also(&mut self, plans: &str) {
        const MORE: &str = ", ...";
        for name in plans.split(", ") {
            let is_known = self.plan.split(", ").any(|known| known == name);
            if self.plan.is_empty() {
                name.clone_into(&mut self.plan);
            } else if !is_known && self.plan.len() + name.len() <= PLAN_NAMES_BYTES {
                self.plan.extend([", ", name]);
            } else if !is_known && !self.plan.ends_with(MORE) {
                self.plan.push_str(MORE);
            }
        }
    }

    /// Writes the timeline in the trace event format of browsers' trace viewers.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_chrome(&self, out: impl Write) -> io::Result<()> {
        let mut lanes: Vec<&str> = self.spans.iter().map(|span| &*span.lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let lane_of = |name: &str| lanes.binary_search(&name).unwrap_or(0);
        let names = lanes.iter().enumerate().map(
            |(index, lane)| serde_json::json!({"ph": "M", "name": "thread_name", "pid": 1, "tid": index, "args": {"name": lane}}),
        );
        let spans = self.spans.iter().map(|span| {
            serde_json::json!({
                "ph": "X", "name": span.name, "pid": 1, "tid": lane_of(&span.lane), "ts": span.start_s * 1e6,
                "dur": (span.end_s - span.start_s) * 1e6, "args": {"bytes": span.bytes},
            })
        });
        let events: Vec<_> = names.chain(spans).collect();
        let summary = Trace {
            spans: Vec::new(),
            ..self.clone()
        };
        serde_json::to_writer(
            out,
            &serde_json::json!({"traceEvents": events, "otherData": summary}),
        )
        .map_err(Into::into)
    }
}

/// Records spans while a run is in progress.
pub(crate) struct Recorder {
    start: Instant,
    spans: Vec<Span>,
    /// Those of the spans, each once.
    names: HashSet<Arc<str>>,
    dropped: u64,
    device_busy: Duration,
    device_since: Option<Instant>,
    device_requests: usize,
    cores_busy: Duration,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        Recorder {
            start: Instant::now(),
            spans: Vec::new(),
            names: HashSet::new(),
            dropped: 0,
            device_busy: Duration::ZERO,
            device_since: None,
            device_requests: 0,
            cores_busy: Duration::ZERO,
        }
    }

    pub(crate) fn device_begins(&mut self, requests: usize) {
        if self.device_requests == 0 && requests > 0 {
            self.device_since = Some(Instant::now());
        }
        self.device_requests += requests;
    }

    pub(crate) fn device_ends(&mut self) {
        self.device_requests -= 1;
        if self.device_requests == 0 {
            self.device_busy += self
                .device_since
                .take()
                .map_or(Duration::ZERO, |since| since.elapsed());
        }
    }

    pub(crate) fn moved(&mut self, name: impl FnOnce() -> String, since: Instant, bytes: u64) {
        self.span("device", name, since, Instant::now(), bytes);
    }

    pub(crate) fn worked(&mut self, core: usize, task: &str, since: Instant, until: Instant) {
        self.cores_busy += until - since;
        let lane = format!("core {core}");
        self.span(&lane, || task.to_owned(), since, until, 0);
    }

    fn span(
        &mut self,
        lane: &str,
        name: impl FnOnce() -> String,
        since: Instant,
        until: Instant,
        bytes: u64,
    ) {
        if self.spans.len() >= SPANS_MAX {
            self.dropped += 1;
            return;
        }
        let (lane, name) = (self.named(lane), self.named(&name()));
        let at = |instant: Instant| instant.saturating_duration_since(self.start).as_secs_f64();
        self.spans.push(Span {
            lane,
            name,
            start_s: at(since),
            end_s: at(until),
            bytes,
        });
    }

    fn named(&mut self, name: &str) -> Arc<str> {
        let known = self.names.get(name).cloned();
        known.unwrap_or_else(|| {
            let name = Arc::from(name);
            self.names.insert(Arc::clone(&name));
            name
        })
    }

    /// Adds times and spans to the counts of the run.
    pub(crate) fn finish(self, threads: usize, counted: Trace) -> Trace {
        let wall_s = self.start.elapsed().as_secs_f64();
        let (device_busy_s, cores_busy_s) = (
            self.device_busy.as_secs_f64(),
            self.cores_busy.as_secs_f64(),
        );
        Trace {
            runs: 1,
            wall_s,
            device_busy_s,
            device_idle_s: (wall_s - device_busy_s).max(0.0),
            cores_busy_s,
            cores_idle_s: (wall_s * threads as f64 - cores_busy_s).max(0.0),
            spans: self.spans,
            spans_dropped: self.dropped,
            ..counted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(plan: &str, bytes: u64, peak_bytes: u64) -> Trace {
        let totals = Totals {
            bytes_read: bytes,
            bytes_written: 1,
            peak_bytes,
        };
        let objects = vec![("x".to_owned(), bytes, 1)];
        let times = (2.0, 1.0);
        let counted = Trace {
            plan: plan.into(),
            runs: 1,
            predicted: totals,
            actual: totals,
            objects,
            ..Trace::default()
        };
        Trace {
            wall_s: times.0,
            device_busy_s: times.1,
            cores_busy_s: times.1,
            ..counted
        }
    }

    #[test]
    fn the_trace_of_several_runs_covers_all_of_them() {
        let mut all = Trace::default();
        for (index, (plan, peak)) in [("first round", 5), ("round", 9), ("round", 7)]
            .into_iter()
            .enumerate()
        {
            all.append(&run(plan, 100, peak), 2.0 * index as f64, 2);
        }
        assert_eq!((all.plan.as_str(), all.runs), ("first round, round", 3));
        assert_eq!(
            (
                all.actual.bytes_read,
                all.actual.bytes_written,
                all.actual.peak_bytes
            ),
            (300, 3, 9)
        );
        assert_eq!(
            (all.wall_s, all.device_busy_s, all.device_idle_s),
            (6.0, 3.0, 3.0)
        );
        assert_eq!((all.cores_busy_s, all.cores_idle_s), (3.0, 9.0));
        assert_eq!(all.objects, [("x".to_owned(), 300, 3)]);
        // A sum of sums names each plan once, up to the length of a line.
        all.append(&all.clone(), 6.0, 2);
        assert_eq!((all.plan.as_str(), all.runs), ("first round, round", 6));
        (0..100).for_each(|number| all.append(&run(&format!("plan {number}"), 0, 0), 0.0, 2));
        assert!(
            all.plan.len() <= PLAN_NAMES_BYTES + 8 && all.plan.ends_with("..."),
            "{}",
            all.plan
        );
    }
}
