//! Lists of numbers, one after another, as the rows of a sparse matrix are (CSR); and work on
//! ranges of numbers by several threads, whose results come in order.

use std::ops::Range;

/// List `i` is `items[offsets[i]..offsets[i + 1]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lists {
    offsets: Vec<u64>,
    items: Vec<u32>,
}

impl Lists {
    pub(super) fn new() -> Lists {
        Lists {
            offsets: vec![0],
            items: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, list: impl IntoIterator<Item = u32>) {
        self.items.extend(list);
        self.offsets.push(self.items.len() as u64);
    }

    /// Adds a list, unless it has fewer than two items: a row alone is on one page wherever it is.
    pub(super) fn push_if_several(&mut self, list: impl IntoIterator<Item = u32>) {
        let begin = self.items.len();
        self.items.extend(list);
        if self.items.len() - begin < 2 {
            self.items.truncate(begin);
        } else {
            self.offsets.push(self.items.len() as u64);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Items of all lists.
    pub(super) fn item_count(&self) -> usize {
        self.items.len()
    }

    pub(super) fn items(&self) -> &[u32] {
        &self.items
    }

    /// Where the items of a list are among all items.
    pub(super) fn range(&self, list: usize) -> Range<usize> {
        self.offsets[list] as usize..self.offsets[list + 1] as usize
    }

    pub(super) fn get(&self, list: usize) -> &[u32] {
        &self.items[self.range(list)]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u32]> {
        (0..self.len()).map(|list| self.get(list))
    }

    /// For each of `count` items the lists that have it, in order.
    pub(super) fn transposed(&self, count: usize) -> Lists {
        let mut offsets = vec![0u64; count + 1];
        for &item in &self.items {
            offsets[item as usize + 1] += 1;
        }
        for item in 0..count {
            offsets[item + 1] += offsets[item];
        }
        let mut next = offsets.clone();
        let mut items = vec![0; self.items.len()];
        for (number, list) in self.iter().enumerate() {
            for &item in list {
                let place = &mut next[item as usize];
                items[*place as usize] = number as u32;
                *place += 1;
            }
        }
        Lists { offsets, items }
    }
}

impl FromIterator<Vec<u32>> for Lists {
    fn from_iter<I: IntoIterator<Item = Vec<u32>>>(lists: I) -> Lists {
        let mut all = Lists::new();
        lists.into_iter().for_each(|list| all.push(list));
        all
    }
}

/// `work` on the numbers below `count`, cut into as many ranges as there are threads; its results
/// in order.
pub(super) fn in_ranges<T: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(Range<usize>) -> Vec<T> + Sync,
) -> Vec<T> {
    /// Fewer numbers than this are not worth a thread.
    const RANGE_LEAST: usize = 1024;
    let threads = threads.min(count / RANGE_LEAST);
    if threads < 2 {
        return work(0..count);
    }
    let range = |thread: usize| count * thread / threads..count * (thread + 1) / threads;
    std::thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = (1..threads)
            .map(|thread| scope.spawn(move || work(range(thread))))
            .collect();
        let mut results = work(range(0));
        for other in others {
            results.extend(
                other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            );
        }
        results
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposed_twice_is_the_same() {
        let lists: Lists = [vec![0, 2], vec![], vec![1, 2, 4]].into_iter().collect();
        let transposed = lists.transposed(5);
        assert_eq!(transposed.get(2), [0, 2]);
        assert!(transposed.get(3).is_empty());
        assert_eq!(transposed.transposed(3), lists);
    }

    #[test]
    fn ranges_come_in_order() {
        for count in [0, 1, 1024, 5000] {
            for threads in 1..5 {
                let numbers = in_ranges(count, threads, |range| range.collect::<Vec<_>>());
                assert!(numbers.into_iter().eq(0..count), "{count}, {threads}");
            }
        }
    }
}
