//! Whole numbers in few bits, each found at once: where samples begin, and how long they are. Pure.
//!
//! Sixty-four numbers are a group: a line from its base, and how far each number is above it, in as
//! many bits as the farthest needs. Samples of equal length take no bits at all; a long one widens
//! its own group only. Where all are on one line, that is all there is in memory.
//!
//! ```text
//!   group   base u64 | slope u64 | first of its bits << 8 | their width, u64        number k = base + k * slope + bits k
//! ```

/// Numbers of a group.
pub(crate) const GROUP: usize = 64;

/// A group, as above.
pub(crate) type Group = [u64; 3];

/// Appends the bits of up to [`GROUP`] numbers to a list that has `words` words already elsewhere.
///
/// Numbers that never fall lie above the line of their least step, others above their least.
pub(crate) fn pack(numbers: &[u64], words: u64, bits: &mut Vec<u64>) -> Group {
    let rises = numbers.is_sorted();
    let slope = if rises {
        numbers
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .min()
            .unwrap_or(0)
    } else {
        0
    };
    let base = numbers.iter().copied().min().unwrap_or(0);
    let above = |k: usize| numbers[k] - base - k as u64 * slope;
    let most = (0..numbers.len()).map(above).max().unwrap_or(0);
    let width = 64 - most.leading_zeros();
    let first = bits.len();
    bits.resize(first + (numbers.len() * width as usize).div_ceil(64), 0);
    (0..numbers.len()).for_each(|k| {
        put(
            &mut bits[first..],
            u64::from(width) * k as u64,
            width,
            above(k),
        )
    });
    [
        base,
        slope,
        (64 * (words + first as u64)) << 8 | u64::from(width),
    ]
}

/// Numbers that were packed.
#[derive(Debug)]
pub(crate) enum PackedNumbers {
    /// All of them: base and slope.
    Line(u64, u64),
    Groups(Vec<Group>, Vec<u64>),
}

impl PackedNumbers {
    /// From its halves. `None` where a group has bits that are not there.
    pub(crate) fn new(count: u64, groups: Vec<Group>, bits: Vec<u64>) -> Option<PackedNumbers> {
        let sound = |(number, &[_, _, place]): (usize, &Group)| {
            let numbers = (count - (number * GROUP) as u64).min(GROUP as u64);
            let (first, width) = (place >> 8, place & 0xff);
            width <= 64 && first + numbers * width <= 64 * bits.len() as u64
        };
        if groups.len() as u64 != count.div_ceil(GROUP as u64)
            || !groups.iter().enumerate().all(sound)
        {
            return None;
        }
        let [base, slope, _] = groups.first().copied().unwrap_or_default();
        let is_on_line = |(number, group): (usize, &Group)| {
            let first = (number * GROUP) as u64;
            // One number has any slope.
            let has_slope = group[1] == slope || first + 1 == count;
            group[0] == base.wrapping_add(first.wrapping_mul(slope))
                && has_slope
                && group[2] & 0xff == 0
        };
        let is_line = groups.iter().enumerate().all(is_on_line);
        Some(if is_line {
            PackedNumbers::Line(base, slope)
        } else {
            PackedNumbers::Groups(groups, bits)
        })
    }

    /// A number.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> u64 {
        match self {
            PackedNumbers::Line(base, slope) => base.wrapping_add(index.wrapping_mul(*slope)),
            PackedNumbers::Groups(groups, bits) => {
                of_group(groups, bits, (index / GROUP as u64) as usize)(index % GROUP as u64)
            }
        }
    }

    /// A number, and the one after it.
    #[inline]
    pub(crate) fn two(&self, index: u64) -> (u64, u64) {
        let PackedNumbers::Groups(groups, bits) = self else {
            return (self.get(index), self.get(index + 1));
        };
        let (group, k) = ((index / GROUP as u64) as usize, index % GROUP as u64);
        let number = of_group(groups, bits, group);
        (
            number(k),
            if k + 1 < GROUP as u64 {
                number(k + 1)
            } else {
                of_group(groups, bits, group + 1)(0)
            },
        )
    }

    /// Bytes of memory besides its own.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            PackedNumbers::Line(..) => 0,
            PackedNumbers::Groups(groups, bits) => {
                (size_of_val(&groups[..]) + size_of_val(&bits[..])) as u64
            }
        }
    }
}

fn of_group(groups: &[Group], bits: &[u64], group: usize) -> impl Fn(u64) -> u64 {
    let [base, slope, place] = groups[group];
    let (first, width) = (place >> 8, (place & 0xff) as u32);
    move |k| {
        base.wrapping_add(k.wrapping_mul(slope)).wrapping_add(take(
            bits,
            first + k * u64::from(width),
            width,
        ))
    }
}

/// Writes the low `width` bits of a number at a place that is zero.
fn put(bits: &mut [u64], at: u64, width: u32, number: u64) {
    if width == 0 {
        return;
    }
    let (word, shift) = ((at / 64) as usize, (at % 64) as u32);
    bits[word] |= number << shift;
    if shift + width > 64 {
        bits[word + 1] |= number >> (64 - shift);
    }
}

/// Reads `width` bits.
pub(crate) fn take(bits: &[u64], at: u64, width: u32) -> u64 {
    if width == 0 {
        return 0;
    }
    let (word, shift) = ((at / 64) as usize, (at % 64) as u32);
    let low = bits[word] >> shift;
    let all = if shift + width > 64 {
        low | bits[word + 1] << (64 - shift)
    } else {
        low
    };
    all & (u64::MAX >> (64 - width))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(numbers: &[u64]) -> PackedNumbers {
        let (mut groups, mut bits) = (Vec::new(), Vec::new());
        for group in numbers.chunks(GROUP) {
            let mut more = Vec::new();
            groups.push(pack(group, bits.len() as u64, &mut more));
            bits.extend(more);
        }
        PackedNumbers::new(numbers.len() as u64, groups, bits).unwrap()
    }

    proptest! {
        #[test]
        fn numbers_come_back(numbers in proptest::collection::vec(prop_oneof![0u64..100, 0..1u64 << 40, Just(u64::MAX)], 0..300), sorted: bool) {
            let mut numbers = numbers;
            if sorted {
                numbers.sort_unstable();
            }
            let packed = packed(&numbers);
            for (index, &number) in numbers.iter().enumerate() {
                prop_assert_eq!(packed.get(index as u64), number);
                if let Some(&next) = numbers.get(index + 1) {
                    prop_assert_eq!(packed.two(index as u64), (number, next));
                }
            }
        }
    }

    #[test]
    fn equal_steps_take_no_bits_and_a_long_one_widens_its_group_only() {
        for count in [0, 1, 64, 65, 1000] {
            let starts: Vec<u64> = (0..count).map(|number| 7 + number * 4096).collect();
            let packed = packed(&starts);
            assert!(
                packed.bytes() == 0
                    && starts
                        .iter()
                        .zip(0..)
                        .all(|(&start, number)| packed.get(number) == start)
            );
        }
        let mut starts: Vec<u64> = (0..1000).map(|number| number * 4096).collect();
        starts[500..].iter_mut().for_each(|start| *start += 1 << 30);
        assert_eq!(packed(&starts).bytes(), 16 * 24 + 8 * 31);
    }

    #[test]
    fn groups_of_a_damaged_file_are_refused() {
        assert!(PackedNumbers::new(65, vec![[0; 3]], vec![]).is_none());
        assert!(PackedNumbers::new(64, vec![[0, 0, 1]], vec![]).is_none());
        assert!(PackedNumbers::new(64, vec![[0, 0, 65]], vec![0; 65]).is_none());
        assert!(PackedNumbers::new(64, vec![[0, 0, u64::MAX << 8 | 1]], vec![0]).is_none());
        assert!(PackedNumbers::new(64, vec![[0, 0, 1]], vec![0]).is_some());
    }
}
