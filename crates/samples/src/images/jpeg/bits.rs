//! Entropy-coded data of a JPEG file: reads every code and counts what it stands for.

use super::huffman::{self, CODE_BITS_MOST, END_OF_BLOCK, LOOK, LOOK_AT_TWO, Table};
use super::{Band, Poll, Wrong};

/// What entropy-coded data cannot be, or that the caller has cancelled the walk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bad {
    GivenUp,
    Code,
    Beyond,
    Run,
    Cut,
    Rest,
}

impl Bad {
    pub(super) fn told(self, scan: usize, at: usize) -> Wrong {
        let what = match self {
            Bad::GivenUp => return Wrong::GivenUp,
            Bad::Code => "a code that its table does not have",
            Bad::Beyond => "a coefficient outside its block",
            Bad::Run => "a run of blocks beyond its end",
            Bad::Cut => {
                let what = format!("scan {scan} ends before its last block, at byte {at}");
                return Wrong::Damaged(what);
            }
            Bad::Rest => "bytes behind its last block, or one of its codes is wrong",
        };
        Wrong::Damaged(format!("scan {scan} has {what}, before byte {at}"))
    }
}

/// Bits of entropy-coded data up to a marker; behind that, zeros without end.
pub(super) struct Bits<'a, 'w> {
    poll: Poll<'w>,
    bytes: &'a [u8],
    /// Of the next byte.
    pub(super) at: usize,
    /// The next bits, from the highest on.
    next: u64,
    /// How many these are.
    count: u32,
    /// How many of these are zeros of our own.
    made_up: u32,
}

impl<'a, 'w> Bits<'a, 'w> {
    pub(super) fn new(bytes: &'a [u8], at: usize, poll: Poll<'w>) -> Bits<'a, 'w> {
        Bits {
            poll,
            bytes,
            at,
            next: 0,
            count: 0,
            made_up: 0,
        }
    }

    /// Has at least 32 bits: a code and what follows it.
    #[inline(always)]
    fn refill(&mut self) {
        if self.count >= 2 * CODE_BITS_MOST {
            return;
        }
        if let Some(eight) = self
            .bytes
            .get(self.at..)
            .and_then(|rest| rest.first_chunk())
        {
            let eight = u64::from_be_bytes(*eight);
            if !has_ff(eight) {
                self.next |= eight >> self.count;
                self.at += (63 - self.count as usize) / 8;
                self.count |= 56;
                return;
            }
        }
        self.refill_by_bytes();
    }

    fn refill_by_bytes(&mut self) {
        while self.count <= 56 {
            let byte = match self.bytes.get(self.at..) {
                Some(&[0xFF, 0, ..]) => {
                    self.at += 2;
                    0xFF
                }
                // Some pad with more of them, which decoders pass over.
                Some(&[0xFF, 0xFF, ref rest @ ..])
                    if rest.iter().find(|&&byte| byte != 0xFF) == Some(&0) =>
                {
                    self.at += 1;
                    continue;
                }
                None | Some(&[0xFF, ..] | &[]) => {
                    self.made_up += 8;
                    0
                }
                Some(&[byte, ..]) => {
                    self.at += 1;
                    byte
                }
            };
            self.next |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    #[inline(always)]
    fn skip(&mut self, bits: u32) {
        self.next <<= bits;
        self.count -= bits;
    }

    /// Any number of bits.
    fn skip_many(&mut self, mut bits: u32) {
        while bits > 0 {
            self.refill();
            let some = bits.min(2 * CODE_BITS_MOST);
            self.skip(some);
            bits -= some;
        }
    }

    /// The next bits, of which there may be none.
    fn take(&mut self, bits: u32) -> u32 {
        let taken = (self.next >> 32) as u32;
        self.skip(bits);
        taken.checked_shr(32 - bits).unwrap_or(0)
    }

    /// Goes behind a code and its bits; returns how many coefficients they take.
    #[inline(always)]
    fn step(&mut self, table: &Table) -> Result<u32, Bad> {
        self.refill();
        let mut step = table.steps[(self.next >> (64 - LOOK)) as usize];
        if step == 0 {
            let (length, symbol) = table.long((self.next >> 48) as u32).ok_or(Bad::Code)?;
            step = huffman::step(symbol, table.is_ac, length);
        }
        self.skip(u32::from(step & 255));
        Ok(u32::from(step >> 8))
    }

    /// Goes behind one or two codes of a block, and their bits; returns the coefficient that it is
    /// at then.
    #[inline(always)]
    fn steps(&mut self, table: &Table, coefficient: u32) -> Result<u32, Bad> {
        self.refill();
        let two = table.twos[(self.next >> (64 - LOOK_AT_TWO)) as usize];
        // What ends its block has no other step behind it.
        if two == 0 || coefficient + (two >> 16) > 63 {
            return Ok(coefficient + self.step(table)?);
        }
        self.skip(two & 255);
        Ok(coefficient + (two >> 8 & 255))
    }

    /// Goes behind a code; returns its symbol. The bits that follow it are there.
    #[inline(always)]
    fn symbol(&mut self, table: &Table) -> Result<(u32, u32), Bad> {
        self.refill();
        let (length, symbol) = match table.short[(self.next >> (64 - LOOK)) as usize] {
            (0, _) => table.long((self.next >> 48) as u32).ok_or(Bad::Code)?,
            (length, symbol) => (u32::from(length), symbol),
        };
        self.skip(length);
        Ok((u32::from(symbol >> 4), u32::from(symbol & 15)))
    }

    /// Whether all bits so far were there, and more are wanted.
    #[inline(always)]
    fn check(&mut self) -> Result<(), Bad> {
        if self.made_up > self.count {
            Err(Bad::Cut)
        } else if !self.poll.go_on(self.at) {
            Err(Bad::GivenUp)
        } else {
            Ok(())
        }
    }

    /// At the end of an interval, where only bits that fill a byte may be left.
    pub(super) fn end(&mut self) -> Result<(), Bad> {
        self.check()?;
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let is_data = rest.first().is_some_and(|&byte| byte != 0xFF)
            || rest.iter().find(|&&byte| byte != 0xFF) == Some(&0);
        if self.count - self.made_up >= 8 || is_data {
            Err(Bad::Rest)
        } else {
            Ok(())
        }
    }

    /// Units of a sequential file, whose blocks have these tables.
    pub(super) fn sequential<const IS_LONG: bool>(
        &mut self,
        units: u64,
        dc: &[&Table],
        ac: &[&Table],
    ) -> Result<(), Bad> {
        for _ in 0..units {
            for (dc, ac) in dc.iter().zip(ac) {
                self.step(dc)?;
                let mut coefficient = 1;
                while coefficient < 64 {
                    coefficient = if IS_LONG {
                        self.steps(ac, coefficient)?
                    } else {
                        coefficient + self.step(ac)?
                    };
                }
                if coefficient > 64 && coefficient < END_OF_BLOCK {
                    return Err(Bad::Beyond);
                }
                self.check()?;
            }
        }
        Ok(())
    }

    pub(super) fn dc_first(&mut self, units: u64, tables: &[&Table]) -> Result<(), Bad> {
        for _ in 0..units {
            for table in tables {
                self.step(table)?;
            }
            self.check()?;
        }
        Ok(())
    }

    /// One more bit of every DC coefficient.
    pub(super) fn dc_next(&mut self, units: u64, blocks: usize) -> Result<(), Bad> {
        for _ in 0..units {
            self.skip_many(blocks as u32);
            self.check()?;
        }
        Ok(())
    }

    pub(super) fn ac_first(
        &mut self,
        table: &Table,
        band: Band,
        seen: &mut [u64],
    ) -> Result<(), Bad> {
        let mut block = 0;
        while block < seen.len() {
            let mut coefficient = band.start;
            while coefficient <= band.end {
                match self.symbol(table)? {
                    (15, 0) => coefficient += 16,
                    (bits, 0) => {
                        let run = (1 << bits | self.take(bits)) as usize;
                        if run > seen.len() - block {
                            return Err(Bad::Run);
                        }
                        block += run - 1;
                        break;
                    }
                    (run, bits) => {
                        coefficient += run;
                        if coefficient > band.end {
                            return Err(Bad::Beyond);
                        }
                        self.skip(bits);
                        seen[block] |= 1 << coefficient;
                        coefficient += 1;
                    }
                }
            }
            if coefficient > band.end + 1 {
                return Err(Bad::Beyond);
            }
            block += 1;
            self.check()?;
        }
        Ok(())
    }

    /// One more bit of every AC coefficient: each that is not zero has a bit, and some that were
    /// zero come to be one or minus one.
    pub(super) fn ac_next(
        &mut self,
        table: &Table,
        band: Band,
        seen: &mut [u64],
    ) -> Result<(), Bad> {
        let (blocks, mut run) = (seen.len(), 0);
        for (block, seen) in seen.iter_mut().enumerate() {
            let mut coefficient = band.start;
            while run == 0 && coefficient <= band.end {
                let (zeros, bits) = match self.symbol(table)? {
                    (bits @ 0..=14, 0) => {
                        run = (1 << bits | self.take(bits)) as usize;
                        if run > blocks - block {
                            return Err(Bad::Run);
                        }
                        break;
                    }
                    (zeros, bits @ 0..=1) => (zeros, bits),
                    _ => return Err(Bad::Code),
                };
                // The zero after `zeros` others.
                let zero = nth_zero(*seen, coefficient, zeros)
                    .filter(|&zero| zero <= band.end)
                    .ok_or(Bad::Beyond)?;
                self.skip_many(bits + (*seen & between(coefficient, zero)).count_ones());
                *seen |= u64::from(bits) << zero;
                coefficient = zero + 1;
            }
            if run > 0 {
                self.skip_many((*seen & between(coefficient, band.end + 1)).count_ones());
                run -= 1;
            }
            self.check()?;
        }
        Ok(())
    }
}

const ONES: u64 = u64::MAX / 0xFF;

/// Whether one of eight bytes has all bits set.
#[inline(always)]
fn has_ff(eight: u64) -> bool {
    (!eight).wrapping_sub(ONES) & eight & (ONES << 7) != 0
}

/// The n-th bit, from 0, of those from `start` on that are not set.
fn nth_zero(mask: u64, start: u32, n: u32) -> Option<u32> {
    let mut zeros = !mask & between(start, 64);
    for _ in 0..n {
        zeros &= zeros.wrapping_sub(1);
    }
    (zeros != 0).then(|| zeros.trailing_zeros())
}

/// Bits from one up to another.
fn between(start: u32, end: u32) -> u64 {
    let below = |bit: u32| if bit >= 64 { u64::MAX } else { (1 << bit) - 1 };
    below(end) & !below(start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bits_of_a_mask(mask: u64, start in 0..64u32, n in 0..16u32) {
            let zeros: Vec<u32> = (start..64).filter(|bit| mask >> bit & 1 == 0).collect();
            prop_assert_eq!(nth_zero(mask, start, n), zeros.get(n as usize).copied());
            prop_assert_eq!((mask & between(start, 64)).count_ones() as usize, (64 - start) as usize - zeros.len());
            prop_assert_eq!(has_ff(mask), mask.to_be_bytes().contains(&0xFF));
        }
    }
}
