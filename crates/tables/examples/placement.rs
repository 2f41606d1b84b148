//! Pages that queries touch, by placement: `placement LOG ROWS_A_PAGE SPLIT PARTS [THREADS]`.
//!
//! The log is text: a query a line, row numbers separated by blanks. One of PARTS parts of it is
//! held out, and placements learned on the rest are counted there. What is held out: `queries`,
//! drawn at random; `end`, the last ones; `rows`, some rows of each query, drawn at random. The
//! last lines are learned on what is held out: what could be reached if it were known.
//!
//! Batches are of 16 and of 64 queries one after another and begin at every fourth part of one.

use std::error::Error;
use std::num::NonZero;
use std::time::Instant;

use outcore_tables::placement::{Placement, Queries};

/// Pages of replicas for each page of rows.
const RATIOS: [f64; 3] = [0.1, 0.8, 4.0];
const BATCHES: [usize; 2] = [16, 64];

type Log = Vec<Vec<u64>>;

/// True of one number in `of`, by the finalizer of splitmix64.
fn drawn(number: u64, of: u64) -> bool {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).is_multiple_of(of)
}

/// What to learn from, and what to count.
fn split(log: Log, how: &str, parts: u64) -> Result<(Log, Log), String> {
    let end = log.len() - log.len() / parts as usize;
    let (mut learn, mut count) = (Log::new(), Log::new());
    for (number, query) in log.into_iter().enumerate() {
        let held_out = match how {
            "queries" => drawn(number as u64, parts),
            "end" => number >= end,
            "rows" => {
                let of_pair = |row: &u64| drawn(((number as u64) << 32) ^ row, parts);
                let (counted, learned) = query.into_iter().partition(of_pair);
                learn.push(learned);
                count.push(counted);
                continue;
            }
            other => return Err(format!("queries, end or rows are held out, not {other}")),
        };
        (if held_out { &mut count } else { &mut learn }).push(query);
    }
    Ok((learn, count))
}

/// What placements are counted on, beside their given order.
struct Counted {
    learn: Queries,
    count: Queries,
    batches: [Queries; 2],
    given: Placement,
}

impl Counted {
    fn print(&self, name: &str, seconds: f64, placement: &Placement) {
        let touched = placement.pages_touched(&self.count);
        let (a_query, a_look_up) = (touched.a_query(), touched.a_look_up());
        print!("{name:24} {seconds:8.2} {a_query:10.3} {a_look_up:10.4}");
        for queries in [&self.count].into_iter().chain(&self.batches) {
            let [given, pages] =
                [&self.given, placement].map(|placement| placement.pages_touched(queries).pages);
            print!(" {:10.2}", given as f64 / pages as f64);
        }
        let learned = placement.pages_touched(&self.learn).a_query();
        println!(" {learned:14.3}");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, rows_a_page, how, parts, threads @ ..] = arguments.as_slice() else {
        return Err("placement LOG ROWS_A_PAGE queries|end|rows PARTS [THREADS]".into());
    };
    let rows_a_page = rows_a_page.parse()?;
    let parts: NonZero<u64> = parts.parse()?;
    let threads = threads.first().map_or(Ok(1), |threads| threads.parse())?;
    let mut log = Log::new();
    for line in std::fs::read_to_string(path)?.lines() {
        let rows: Result<_, _> = line.split_ascii_whitespace().map(str::parse).collect();
        log.push(rows?);
    }
    let row_count = log
        .iter()
        .flatten()
        .max()
        .map_or(0, |&row| row.saturating_add(1));
    let (learn, count) = split(log, how, parts.get())?;
    let count = Queries::new(row_count, count)?;
    let counted = Counted {
        learn: Queries::new(row_count, learn)?,
        batches: BATCHES.map(|size| count.windows(size, size / 4)),
        given: Placement::in_order(count.row_count(), rows_a_page)?,
        count,
    };

    println!("{path}: {row_count} rows, {rows_a_page} a page; {how}, one part of {parts} held out");
    for (name, part) in [("learned", &counted.learn), ("counted", &counted.count)] {
        println!(
            "{name} on {} queries of {} look-ups",
            part.len(),
            part.look_ups()
        );
    }
    println!(
        "                                      pages of those counted   times fewer, by batches   pages of learned"
    );
    println!(
        "placement                 seconds    a query  a look-up          1         {}         {}        a query",
        BATCHES[0], BATCHES[1]
    );
    counted.print("given order", 0.0, &counted.given);
    for (name, log) in [("", &counted.learn), ("known: ", &counted.count)] {
        let begin = Instant::now();
        let placement = Placement::by_frequency(log, rows_a_page)?;
        let seconds = begin.elapsed().as_secs_f64();
        counted.print(&format!("{name}by frequency"), seconds, &placement);
        let begin = Instant::now();
        let placement = Placement::by_co_appearance(log, rows_a_page, threads)?;
        let seconds = begin.elapsed().as_secs_f64();
        counted.print(&format!("{name}by co-appearance"), seconds, &placement);
        for ratio in RATIOS {
            let begin = Instant::now();
            let placement = placement.clone().with_replicas(log, ratio, threads)?;
            let seconds = begin.elapsed().as_secs_f64();
            counted.print(&format!("{name}+ replicas {ratio}"), seconds, &placement);
        }
    }
    Ok(())
}
