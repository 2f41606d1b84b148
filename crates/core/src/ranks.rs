//! The processes of one job, each with a part of the rows, and what they do together.
//!
//! [`Ranks`] is all that is known of a launcher: messages of bytes between two ranks. Everything
//! else is made of them here: along a binomial tree, whose shape follows from the number of ranks
//! alone, so that states are merged in one order and every rank has the bits of rank 0.
//!
//! ```text
//! rank    0   1   2   3   4      up: 1 to 0, 3 to 2; then 2 to 0; then 4 to 0
//!         |<--|   |<--|   |      down: the same, backwards
//!         |<------|       |
//!         |<--------------|
//! ```
//!
//! A rank that fails must not leave the others waiting: whatever may fail is *agreed* on before the
//! next message, see [`agree`]. A [`Team`] remembers that it was.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use outcore_device::Locked;

use crate::error::{Error, Result};

/// The processes of one job, each with a part of the rows.
///
/// ```
/// use outcore_core::ranks::{Ranks, ThreadRanks, all_gather};
///
/// let greet = |ranks: ThreadRanks| {
///     let hello = [b'a' + ranks.rank() as u8];
///     all_gather(&ranks, &hello).unwrap().concat()
/// };
/// let threads: Vec<_> = ThreadRanks::new(3).into_iter().map(|ranks| std::thread::spawn(move || greet(ranks))).collect();
/// for thread in threads {
///     assert_eq!(thread.join().unwrap(), b"abc");
/// }
/// ```
pub trait Ranks: Send + Sync {
    /// Which of them this process is, from 0.
    fn rank(&self) -> usize;

    /// How many there are.
    fn size(&self) -> usize;

    /// Blocks until the bytes may be changed.
    ///
    /// # Errors
    /// Where the connection fails, or there is no such rank.
    fn send(&self, to: usize, bytes: &[u8]) -> Result<()>;

    /// Blocks until all bytes are there; messages of a pair of ranks arrive in order.
    ///
    /// # Errors
    /// As [`send`](Ranks::send).
    fn receive(&self, from: usize, bytes: &mut [u8]) -> Result<()>;
}

impl std::fmt::Debug for dyn Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

/// Threads of one process as ranks, for tests and for looking at.
///
/// ```
/// use outcore_core::ranks::{Ranks, ThreadRanks};
///
/// let ranks = ThreadRanks::new(2);
/// ranks[0].send(1, b"hello")?;
/// let mut bytes = [0; 5];
/// ranks[1].receive(0, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct ThreadRanks {
    rank: usize,
    to: Vec<Mutex<Sender<Vec<u8>>>>,
    from: Vec<Mutex<Receiver<Vec<u8>>>>,
}

impl ThreadRanks {
    /// One for each of `size` threads.
    #[allow(clippy::new_ret_no_self, reason = "there is no one rank alone")]
    pub fn new(size: usize) -> Vec<ThreadRanks> {
        let mut senders: Vec<Vec<_>> = (0..size).map(|_| Vec::new()).collect();
        let receivers = (0..size).map(|_| {
            let from = senders.iter_mut().map(|senders| {
                let (sender, receiver) = channel();
                senders.push(Mutex::new(sender));
                Mutex::new(receiver)
            });
            from.collect::<Vec<_>>()
        });
        let receivers: Vec<_> = receivers.collect();
        let ends = senders.into_iter().zip(receivers).enumerate();
        ends.map(|(rank, (to, from))| ThreadRanks { rank, to, from })
            .collect()
    }
}

impl Ranks for ThreadRanks {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.to.len()
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        let sender = self.to.get(to).ok_or_else(|| unknown(to, self.size()))?;
        let sent = sender.locked().send(bytes.to_vec());
        sent.map_err(|_| gone(to))
    }

    fn receive(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        let size = self.size();
        let receiver = self.from.get(from).ok_or_else(|| unknown(from, size))?;
        let sent = receiver.locked().recv().map_err(|_| gone(from))?;
        if sent.len() != bytes.len() {
            return Err(Error::Failed {
                what: format!(
                    "rank {from} sent {} bytes where {} were expected",
                    sent.len(),
                    bytes.len()
                ),
            });
        }
        bytes.copy_from_slice(&sent);
        Ok(())
    }
}

fn unknown(rank: usize, size: usize) -> Error {
    Error::value(format!("there is no rank {rank} among {size}"))
}

fn gone(rank: usize) -> Error {
    Error::Failed {
        what: format!("rank {rank} has gone"),
    }
}

/// Has `merge` take in what each subtree of ranks has come to, in order, then `give` it on.
fn up(
    ranks: &dyn Ranks,
    mut merge: impl FnMut(usize) -> Result<()>,
    give: impl FnOnce(usize) -> Result<()>,
) -> Result<()> {
    let (rank, size) = (ranks.rank(), ranks.size());
    let mut span = 1;
    while span < size {
        if rank & span != 0 {
            return give(rank - span);
        }
        if rank + span < size {
            merge(rank + span)?;
        }
        span *= 2;
    }
    Ok(())
}

/// The rank that this one gets what rank 0 has from, and those that it gives it to.
fn down(ranks: &dyn Ranks) -> (Option<usize>, impl Iterator<Item = usize> + use<>) {
    let (rank, size) = (ranks.rank(), ranks.size());
    let span = match rank {
        0 => size.next_power_of_two(),
        _ => rank & rank.wrapping_neg(),
    };
    let spans = std::iter::successors(Some(span / 2), |span| Some(span / 2));
    let to = spans
        .take_while(|&span| span > 0)
        .map(move |span| rank + span);
    (
        (rank > 0).then(|| rank - span),
        to.filter(move |&to| to < size),
    )
}

fn send_bytes(ranks: &dyn Ranks, to: usize, bytes: &[u8]) -> Result<()> {
    ranks.send(to, &(bytes.len() as u64).to_le_bytes())?;
    match bytes.is_empty() {
        true => Ok(()),
        false => ranks.send(to, bytes),
    }
}

fn receive_bytes(ranks: &dyn Ranks, from: usize) -> Result<Vec<u8>> {
    let mut len = [0; 8];
    ranks.receive(from, &mut len)?;
    let mut bytes = vec![0; u64::from_le_bytes(len) as usize];
    if !bytes.is_empty() {
        ranks.receive(from, &mut bytes)?;
    }
    Ok(bytes)
}

/// Every rank's bytes become those of rank 0, however many they are.
///
/// ```
/// use outcore_core::ranks::{ThreadRanks, broadcast};
///
/// let ranks = ThreadRanks::new(2);
/// let (mut first, mut second) = (b"seed".to_vec(), Vec::new());
/// broadcast(&ranks[0], &mut first)?;
/// broadcast(&ranks[1], &mut second)?;
/// assert_eq!(second, b"seed");
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// Where the connection fails.
pub fn broadcast(ranks: &dyn Ranks, bytes: &mut Vec<u8>) -> Result<()> {
    let (from, mut to) = down(ranks);
    if let Some(from) = from {
        *bytes = receive_bytes(ranks, from)?;
    }
    to.try_for_each(|to| send_bytes(ranks, to, bytes))
}

/// The bytes of all ranks, in their order, on each. Those of one rank may be more than another's.
///
/// # Errors
/// Where the connection fails.
pub fn all_gather(ranks: &dyn Ranks, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    // A subtree is ranks that follow each other, so that appending keeps their order.
    let mut all = framed(bytes);
    let collected = std::cell::RefCell::new(&mut all);
    up(
        ranks,
        |from| {
            collected.borrow_mut().extend(receive_bytes(ranks, from)?);
            Ok(())
        },
        |to| send_bytes(ranks, to, &collected.borrow()),
    )?;
    broadcast(ranks, &mut all)?;
    let mut rest = all.as_slice();
    (0..ranks.size()).map(|_| unframed(&mut rest)).collect()
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    let len = (bytes.len() as u64).to_le_bytes();
    len.iter().chain(bytes).copied().collect()
}

fn unframed(rest: &mut &[u8]) -> Result<Vec<u8>> {
    let take = |rest: &mut &[u8], len: usize| {
        let (taken, after) = rest.split_at_checked(len)?;
        *rest = after;
        Some(taken.to_vec())
    };
    let len = take(rest, 8).map(|len| u64::from_le_bytes(len.try_into().expect("8 were taken")));
    len.and_then(|len| take(rest, len as usize))
        .ok_or_else(|| Error::Failed {
            what: "what ranks sent each other is no list of messages".into(),
        })
}

/// Merges the states of all ranks, all of one length, in the order of the tree; each rank then has
/// the bits of rank 0. Holds another state meanwhile.
///
/// ```
/// use outcore_core::ranks::{ThreadRanks, all_reduce};
///
/// let add = |into: &mut [f64], other: &[f64]| into.iter_mut().zip(other).for_each(|(a, b)| *a += b);
/// let threads: Vec<_> = ThreadRanks::new(3).into_iter().zip([1.0, 2.0, 4.0]).map(|(ranks, part)| {
///     std::thread::spawn(move || {
///         let mut sum = [part];
///         all_reduce(&ranks, &mut sum, add).unwrap();
///         sum
///     })
/// }).collect();
/// assert!(threads.into_iter().all(|thread| thread.join().unwrap() == [7.0]));
/// ```
///
/// # Errors
/// Where the connection fails.
pub fn all_reduce<E: Pod>(
    ranks: &dyn Ranks,
    state: &mut [E],
    mut merge: impl FnMut(&mut [E], &[E]),
) -> Result<()> {
    if state.is_empty() || ranks.size() == 1 {
        return Ok(());
    }
    let mut other = vec![E::zeroed(); state.len()];
    let shared = std::cell::RefCell::new(&mut *state);
    up(
        ranks,
        |from| {
            ranks.receive(from, bytemuck::cast_slice_mut(&mut other))?;
            merge(&mut shared.borrow_mut(), &other);
            Ok(())
        },
        |to| ranks.send(to, bytemuck::cast_slice(&shared.borrow())),
    )?;
    let (from, mut to) = down(ranks);
    if let Some(from) = from {
        ranks.receive(from, bytemuck::cast_slice_mut(state))?;
    }
    to.try_for_each(|to| ranks.send(to, bytemuck::cast_slice(state)))
}

/// Returns when all ranks have called it.
///
/// ```
/// use outcore_core::ranks::{ThreadRanks, barrier};
///
/// let ranks = ThreadRanks::new(2);
/// std::thread::scope(|scope| {
///     scope.spawn(|| barrier(&ranks[0]).unwrap());
///     barrier(&ranks[1]).unwrap();
/// });
/// ```
///
/// # Errors
/// Where the connection fails.
pub fn barrier(ranks: &dyn Ranks) -> Result<()> {
    all_reduce(ranks, &mut [0u8], |_, _| {})
}

/// The result of this rank if all of them have one. Where some failed, each rank that did has its
/// own error, and the others that of the first that did, as [`Error::Rank`].
///
/// ```
/// use outcore_core::Error;
/// use outcore_core::ranks::{Ranks, ThreadRanks, agree};
///
/// let threads: Vec<_> = ThreadRanks::new(3).into_iter().map(|ranks| std::thread::spawn(move || {
///     let read = match ranks.rank() {
///         1 => Err(Error::value("x.npy is empty")),
///         _ => Ok(()),
///     };
///     agree(&ranks, read).unwrap_err().to_string()
/// })).collect();
/// assert!(threads.into_iter().all(|thread| thread.join().unwrap() == "rank 1: x.npy is empty"));
/// ```
///
/// # Errors
/// See above; where the connection fails.
pub fn agree<T>(ranks: &dyn Ranks, result: Result<T>) -> Result<T> {
    let name = |error: Error| match error {
        named @ (Error::Cancelled | Error::Rank { .. }) => named,
        _ if ranks.size() == 1 => error,
        source => Error::Rank {
            rank: ranks.rank(),
            source: Box::new(source),
        },
    };
    // Nothing where all is well, else the rank and what it says.
    let mut failed = match &result {
        Ok(_) => Vec::new(),
        Err(error) => failure(ranks.rank(), &error.to_string()),
    };
    let first = std::cell::RefCell::new(&mut failed);
    let told = up(
        ranks,
        |from| {
            let other = receive_bytes(ranks, from)?;
            let mut first = first.borrow_mut();
            if first.is_empty() {
                **first = other;
            }
            Ok(())
        },
        |to| send_bytes(ranks, to, &first.borrow()),
    );
    let told = told.and_then(|()| broadcast(ranks, &mut failed));
    let result = result.map_err(name)?;
    told?;
    match failed.split_at_checked(8) {
        None => Ok(result),
        Some((rank, what)) => Err(Error::Rank {
            rank: u64::from_le_bytes(rank.try_into().expect("8 were split off")) as usize,
            source: Box::new(Error::Failed {
                what: String::from_utf8_lossy(what).into_owned(),
            }),
        }),
    }
}

fn failure(rank: usize, what: &str) -> Vec<u8> {
    let rank = (rank as u64).to_le_bytes();
    rank.iter().chain(what.as_bytes()).copied().collect()
}

/// Bytes of a sum over ranks that are under way at once.
pub const SUM_BYTES: usize = 1 << 20;

/// The ranks of one computation, up to its end: once one of them has failed, and all know it, none
/// sends or waits any more.
///
/// ```
/// use std::sync::Arc;
/// use outcore_core::Error;
/// use outcore_core::ranks::{Team, ThreadRanks};
///
/// let alone = Team::new(Arc::new(ThreadRanks::new(1).remove(0)));
/// let rows = alone.drive(|| alone.all_gather(Ok(vec![4, 2])))?;
/// assert_eq!((alone.rank(), alone.size(), rows), (0, 1, vec![vec![4, 2]]));
/// assert_eq!(alone.sum(Ok(vec![1.0, 2.0]))?, [1.0, 2.0]);
///
/// let busy = alone.busy();
/// assert!(alone.is_busy() && !alone.has_failed());
/// drop(busy);
/// assert!(alone.alike::<()>(Err(Error::value("no rows"))).is_err());
/// assert!(alone.has_failed() && alone.broadcast(Ok(vec![1])).is_err());
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Team {
    ranks: Arc<dyn Ranks>,
    state: Arc<State>,
}

/// Something is on its way that tells the ranks of a team how it ends.
#[derive(Debug)]
pub struct Busy(Arc<State>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug, Default)]
struct State {
    /// The first error that was agreed on.
    failed: Mutex<Option<String>>,
    busy: AtomicUsize,
}

impl Team {
    /// Nothing is sent yet. Every rank makes one.
    pub fn new(ranks: Arc<dyn Ranks>) -> Team {
        Team {
            ranks,
            state: Arc::default(),
        }
    }

    /// Which of them this process is.
    pub fn rank(&self) -> usize {
        self.ranks.rank()
    }

    /// How many they are.
    pub fn size(&self) -> usize {
        self.ranks.size()
    }

    /// Whether something is on its way that tells the others how it ends.
    pub fn is_busy(&self) -> bool {
        self.state.busy.load(Ordering::Acquire) > 0
    }

    /// Until it is dropped, the team is busy.
    pub fn busy(&self) -> Busy {
        self.state.busy.fetch_add(1, Ordering::AcqRel);
        Busy(Arc::clone(&self.state))
    }

    /// Whether an error has been agreed on.
    pub fn has_failed(&self) -> bool {
        self.state.failed.locked().is_some()
    }

    /// Carries out the rank's part, and agrees on how it ended: no rank has a result unless all do.
    ///
    /// # Errors
    /// Those of the work, see [`agree`](Team::agree).
    pub fn drive<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _busy = self.busy();
        let done = work();
        // What is made of a failure that is known has nothing to wait for.
        match self.has_failed() {
            true => done,
            false => self.agree(done),
        }
    }

    /// As [`agree`]; an error that was agreed on before is not told again.
    ///
    /// # Errors
    /// See [`agree`].
    pub fn agree<T>(&self, result: Result<T>) -> Result<T> {
        if let Some(what) = &*self.state.failed.locked() {
            let again = || Error::Failed { what: what.clone() };
            return result.and_then(|_| Err(again()));
        }
        self.noted(agree(&*self.ranks, result))
    }

    /// As [`all_gather`], of what every rank has made without an error.
    ///
    /// # Errors
    /// See [`agree`].
    pub fn all_gather(&self, bytes: Result<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let bytes = self.agree(bytes)?;
        self.noted(all_gather(&*self.ranks, &bytes))
    }

    /// As [`broadcast`], of what every rank has made without an error.
    ///
    /// # Errors
    /// See [`agree`].
    pub fn broadcast(&self, bytes: Result<Vec<u8>>) -> Result<Vec<u8>> {
        let mut bytes = self.agree(bytes)?;
        self.noted(broadcast(&*self.ranks, &mut bytes))?;
        Ok(bytes)
    }

    /// As [`all_reduce`], of what every rank has made without an error.
    ///
    /// # Errors
    /// See [`agree`].
    pub fn all_reduce<E: Pod>(
        &self,
        state: Result<Vec<E>>,
        merge: impl FnMut(&mut [E], &[E]),
    ) -> Result<Vec<E>> {
        let mut state = self.agree(state)?;
        self.noted(all_reduce(&*self.ranks, &mut state, merge))?;
        Ok(state)
    }

    /// The sums of what the ranks have, element by element; holds [`SUM_BYTES`] besides.
    ///
    /// # Errors
    /// See [`agree`].
    pub fn sum(&self, state: Result<Vec<f64>>) -> Result<Vec<f64>> {
        let mut state = self.agree(state)?;
        let add = |into: &mut [f64], other: &[f64]| {
            into.iter_mut()
                .zip(other)
                .for_each(|(sum, other)| *sum += other);
        };
        let mut parts = state.chunks_mut(SUM_BYTES / 8);
        let summed = parts.try_for_each(|part| all_reduce(&*self.ranks, part, add));
        self.noted(summed).map(|()| state)
    }

    /// What every rank finds alike, of what all of them know: after an error none tells another.
    ///
    /// # Errors
    /// The same one.
    pub fn alike<T>(&self, result: Result<T>) -> Result<T> {
        self.noted(result)
    }

    /// After an error no rank waits for another.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            let mut failed = self.state.failed.locked();
            failed.get_or_insert_with(|| error.to_string());
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of `size` ranks makes.
    fn on_ranks<T: Send + 'static>(
        size: usize,
        work: impl Fn(&ThreadRanks) -> T + Send + Sync + 'static,
    ) -> Vec<T> {
        let work = Arc::new(work);
        let start = |ranks: ThreadRanks| {
            let work = Arc::clone(&work);
            std::thread::spawn(move || work(&ranks))
        };
        let threads: Vec<_> = ThreadRanks::new(size).into_iter().map(start).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.collect()
    }

    #[test]
    fn states_are_merged_in_one_order_on_every_rank() {
        for size in 1..=9 {
            // Numbers whose sum depends on its order.
            let part = |rank: usize| [0.1 * rank as f64, 1e16 / (1 + rank) as f64, 1.0];
            let all = on_ranks(size, move |ranks| {
                let mut state = part(ranks.rank());
                all_reduce(ranks, &mut state, |into, other| {
                    into.iter_mut().zip(other).for_each(|(a, b)| *a += b);
                })
                .unwrap();
                barrier(ranks).unwrap();
                state.map(f64::to_bits)
            });
            assert!(all.iter().all(|state| *state == all[0]), "{size} ranks");
            let sum: f64 = (0..size).map(|rank| part(rank)[1]).sum();
            assert!((f64::from_bits(all[0][1]) - sum).abs() <= 1e-15 * sum * size as f64);
        }
    }

    #[test]
    fn bytes_of_ranks_come_in_their_order_however_many() {
        for size in 1..=9 {
            let all = on_ranks(size, |ranks| {
                let mut first = vec![ranks.rank() as u8 + 7; 3];
                broadcast(ranks, &mut first).unwrap();
                assert_eq!(first, [7, 7, 7]);
                all_gather(ranks, &vec![ranks.rank() as u8; ranks.rank() * 3 % 4]).unwrap()
            });
            let expected: Vec<Vec<u8>> = (0..size).map(|r| vec![r as u8; r * 3 % 4]).collect();
            assert!(all.iter().all(|all| *all == expected), "{size} ranks");
        }
    }

    #[test]
    fn all_ranks_know_of_one_that_fails_and_none_waits() {
        for (size, failing) in [(2, 1), (3, 0), (5, 3), (5, 4)] {
            let errors = on_ranks(size, move |ranks| {
                let made = match ranks.rank() == failing {
                    true => Err(Error::value("the disk is full")),
                    false => Ok(1),
                };
                agree(ranks, made).unwrap_err().to_string()
            });
            let expected = format!("rank {failing}: the disk is full");
            assert!(errors.iter().all(|error| *error == expected), "{errors:?}");
        }
    }

    #[test]
    fn a_team_that_has_failed_sends_no_more() {
        let teams = ThreadRanks::new(2)
            .into_iter()
            .map(|ranks| Team::new(Arc::new(ranks)));
        let work = |team: Team| {
            std::thread::spawn(move || {
                team.drive(|| {
                    let made = match team.rank() {
                        0 => Err(Error::value("no rows")),
                        _ => Ok(vec![1]),
                    };
                    team.all_gather(made)
                })
                .and_then(|_| team.all_gather(Ok(vec![2])))
                .unwrap_err()
                .to_string()
            })
        };
        let threads: Vec<_> = teams.map(work).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), "rank 0: no rows");
        }
    }

    #[test]
    fn a_rank_that_has_gone_is_an_error() {
        let mut ranks = ThreadRanks::new(2);
        drop(ranks.pop());
        let error = barrier(&ranks[0]).unwrap_err();
        assert_eq!(error.to_string(), "rank 1 has gone");
        assert!(ranks[0].send(2, &[1]).is_err());
    }
}
