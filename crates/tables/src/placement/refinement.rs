//! What bisection leaves: rows that would do better on a page of another branch. In each round the
//! page that gains most is found for every row (by several threads), and the rows of two pages are
//! bisected anew, pair of pages after pair, those with the most to gain first.
//!
//! Invariant: the cost never grows, and the result does not depend on the threads.

use super::bisection::{GAIN_LEAST, Part, costs_of_next};
use super::lists::{Lists, in_ranges};

const ROUNDS_MOST: usize = 8;
/// Rounds end when one gains less than the first gained divided by this.
const GAIN_SHARE: f64 = 10.0;

/// Pages that each query touches, in order, and how many of its rows are on each.
struct Touched {
    pages: Lists,
    counts: Vec<u32>,
}

impl Touched {
    fn new(edges: &Lists, page_of: &[u32]) -> Touched {
        let mut touched = Touched {
            pages: Lists::new(),
            counts: Vec::new(),
        };
        let mut pages = Vec::new();
        for edge in edges.iter() {
            pages.clear();
            pages.extend(edge.iter().map(|&row| page_of[row as usize]));
            pages.sort_unstable();
            let runs = pages.chunk_by(|a, b| a == b);
            touched.counts.extend(runs.map(|run| run.len() as u32));
            pages.dedup();
            touched.pages.push(pages.iter().copied());
        }
        touched
    }
}

/// Improves the pages of rows in an order: each `rows_a_page` of them are one page.
pub(super) fn refine(edges: &Lists, order: &mut [u32], rows_a_page: usize, threads: usize) {
    let incident = edges.transposed(order.len());
    let mut page_of = vec![0; order.len()];
    for (slot, &row) in order.iter().enumerate() {
        page_of[row as usize] = (slot / rows_a_page) as u32;
    }
    let mut changed = vec![true; order.len().div_ceil(rows_a_page)];
    let mut gained_first = 0.0;
    for round in 0..ROUNDS_MOST {
        let mut pairs = pairs_to_gain(edges, &incident, &page_of, rows_a_page, threads);
        // What two pages gain depends on their rows only, so others were bisected in vain before.
        pairs.retain(|pages| pages.iter().any(|&page| changed[page as usize]));
        changed.fill(false);
        let mut gained = 0.0;
        for pages in pairs {
            let gain = bisect_again(&incident, order, &mut page_of, pages, rows_a_page);
            if gain > 0.0 {
                pages.iter().for_each(|&page| changed[page as usize] = true);
                gained += gain;
            }
        }
        if round == 0 {
            gained_first = gained;
        }
        if gained * GAIN_SHARE <= gained_first {
            break;
        }
    }
}

/// Pairs of pages between which rows would move, those that would gain most first.
fn pairs_to_gain(
    edges: &Lists,
    incident: &Lists,
    page_of: &[u32],
    rows_a_page: usize,
    threads: usize,
) -> Vec<[u32; 2]> {
    let touched = Touched::new(edges, page_of);
    let mut wishes = in_ranges(page_of.len(), threads, |rows| {
        let costs = costs_of_next(1, rows_a_page);
        let mut drawn = vec![0.0; page_of.len().div_ceil(rows_a_page)];
        let wish = |row: usize| {
            let here = page_of[row];
            let (gain, there) = best_page(incident.get(row), &touched, &costs, here, &mut drawn)?;
            Some(([here.min(there), here.max(there)], gain))
        };
        rows.filter_map(wish).collect()
    });
    wishes.sort_by_key(|wish| wish.0);
    let mut pairs: Vec<_> = wishes
        .chunk_by(|a, b| a.0 == b.0)
        .map(|same| (same[0].0, same.iter().map(|wish| wish.1).sum::<f64>()))
        .collect();
    pairs.sort_by(|a, b| b.1.total_cmp(&a.1));
    pairs.into_iter().map(|pair| pair.0).collect()
}

/// The page on which a row of these edges would cost least less than where it is; `drawn` is zero
/// for every page, before and after.
fn best_page(
    incident: &[u32],
    touched: &Touched,
    costs: &[f64],
    here: u32,
    drawn: &mut [f64],
) -> Option<(f64, u32)> {
    let mut pages = Vec::new();
    let mut gain_leaving = 0.0;
    for &edge in incident {
        let range = touched.pages.range(edge as usize);
        for (&page, &count) in touched.pages.items()[range.clone()]
            .iter()
            .zip(&touched.counts[range])
        {
            if page == here {
                gain_leaving += costs[count as usize - 1] - costs[0];
                continue;
            }
            let drawn = &mut drawn[page as usize];
            if *drawn == 0.0 {
                pages.push(page);
            }
            *drawn += costs[0] - costs[count as usize];
        }
    }
    let mut best = (GAIN_LEAST, here);
    for page in pages {
        let gain = gain_leaving + std::mem::take(&mut drawn[page as usize]);
        if gain > best.0 {
            best = (gain, page);
        }
    }
    (best.1 != here).then_some(best)
}

/// Bisects the rows of two pages, from where they are; by how much the cost falls.
fn bisect_again(
    incident: &Lists,
    order: &mut [u32],
    page_of: &mut [u32],
    pages: [u32; 2],
    rows_a_page: usize,
) -> f64 {
    let slots = pages.map(|page| {
        let begin = page as usize * rows_a_page;
        begin..(begin + rows_a_page).min(order.len())
    });
    let rows: Vec<u32> = slots
        .iter()
        .flat_map(|slots| &order[slots.clone()])
        .copied()
        .collect();
    let mut pins: Vec<(u32, u32)> = Vec::new();
    for (number, &row) in rows.iter().enumerate() {
        let edges = incident.get(row as usize);
        pins.extend(edges.iter().map(|&edge| (edge, number as u32)));
    }
    pins.sort_unstable();
    let mut edges = Lists::new();
    for edge in pins.chunk_by(|a, b| a.0 == b.0) {
        edges.push_if_several(edge.iter().map(|pin| pin.1));
    }
    let mut right: Vec<bool> = (0..rows.len()).map(|row| row >= slots[0].len()).collect();
    let gained = Part::new(rows.clone(), edges).improve(&mut right, [1, 1], 1);
    for (side, (slots, page)) in slots.into_iter().zip(pages).enumerate() {
        let of_side = rows
            .iter()
            .zip(&right)
            .filter(|&(_, &right)| usize::from(right) == side);
        for (slot, (&row, _)) in slots.zip(of_side) {
            order[slot] = row;
            page_of[row as usize] = page;
        }
    }
    gained
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_two_groups_that_are_mixed_change_places() {
        let groups = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]];
        let edges: Lists = groups.iter().map(|group| group.to_vec()).collect();
        let mut order = [0, 1, 6, 8, 2, 3, 4, 5, 7, 9, 10, 11];
        refine(&edges, &mut order, 4, 1);
        let mut pages: Vec<Vec<u32>> = order.chunks(4).map(<[u32]>::to_vec).collect();
        pages.iter_mut().for_each(|page| page.sort_unstable());
        pages.sort();
        assert_eq!(pages, groups);
    }
}
