//! Topics of a corpus by singular vectors: the passes of the algorithm over words and over documents.
//!
//! A corpus X is n documents x d words, in CSR; what looks at all documents of a word takes the same
//! in CSC. Documents are scaled to one length: a_ij = `scales[i]` x_ij. The steps are:
//!
//! 1. A threshold for each word, of its rounded a_ij in all documents ([`thresholds`]); what reaches
//!    it is kept, with the root of the threshold as its value, in a matrix B ([`kept`],
//!    [`thresholded`]).
//! 2. Singular vectors of B, clusters of its rows along them, then of the rows themselves: `spectra`
//!    and `kmeans`.
//! 3. Words that are frequent in one cluster alone, its catchwords ([`catchwords`]).
//! 4. For each topic the documents with most of its catchwords ([`sum_digits`] finds how much that
//!    is), whose sum is the topic ([`topic_sums`]).
//!
//! [`weights`] says which topics documents have, and [`co_occurrences`] counts what coherence is made
//! of. What a pass holds are some bytes a document, a word or an entry of the longest line, and k x d
//! numbers of the topics themselves. Every pass has the same bits for any number of threads; sums of
//! documents, the only ones that are not of whole numbers, depend on the budget in their last bits.
//!
//! Source: Bansal, Bhattacharyya and Kannan, "A provable SVD-based algorithm for learning topics in
//! dominant admixture corpus" (NIPS 2014), and the code of ISLE, which adapts it.

mod documents;
mod inference;
mod words;

use outcore_core::{Error, Result};
use outcore_matrix::{Compressed, Sparse};

pub use documents::{
    Catchwords, Chosen, KeptWords, co_occurrences, kept, sum_digits, thresholded, topic_sums,
};
pub use inference::weights;
pub use words::{Ranks, catchwords, thresholds};

/// The topic of a word, or the cluster of a document, that has none.
pub const NONE: u32 = u32::MAX;

/// Checks a corpus, its format, and what is known of each of its documents and words.
fn check(
    x: &Sparse,
    format: Compressed,
    documents: Option<usize>,
    words: Option<usize>,
) -> Result<()> {
    if x.format() != format {
        let (name, wanted) = (x.name(), format.name());
        return Err(Error::value(format!(
            "{name} is not in {wanted}, which this pass takes"
        )));
    }
    let [n, d] = x.shape();
    let given = |len: Option<usize>, needed: u64| len.is_none_or(|len| len as u64 == needed);
    if !given(documents, n) || !given(words, d) {
        let (name, what) = (x.name(), "there are numbers for others");
        return Err(Error::shape(format!(
            "{name} has {n} documents of {d} words, {what}"
        )));
    }
    Ok(())
}
