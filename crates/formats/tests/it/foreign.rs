//! Arbitrary bytes never panic, and nor do good files with some bytes changed.

use outcore_formats::read_as_everything;
use proptest::prelude::*;

fn lines_of(line: &'static str) -> impl Strategy<Value = String> {
    proptest::collection::vec(line, 0..20).prop_map(|lines| lines.join("\n"))
}

fn changed(files: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), any::<u8>());
    (
        prop::sample::select(files),
        proptest::collection::vec(change, 1..8),
        any::<prop::sample::Index>(),
    )
        .prop_map(|(name, changes, length)| {
            let mut bytes = super::common::bytes(name);
            for (position, byte) in changes {
                let position = position.index(bytes.len());
                bytes[position] = byte;
            }
            // Half of them are cut too.
            let length = length.index(2 * bytes.len());
            bytes.truncate(length);
            bytes
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        read_as_everything(&bytes);
    }

    #[test]
    fn text_that_is_nearly_right_never_panics(
        rows in lines_of("[-+0-9., ]{0,5}( ?qid:[0-9]{1,20})?( [0-9]{0,20}:?[-+0-9.einf]{0,5}){0,5} ?#?"),
        entries in lines_of("[0-9]{0,2} ?[0-9-]{0,3} [0-9.]{0,4}\r?"),
        words in lines_of("\\PC{0,20}"),
        header in "(%%MatrixMarket matrix (coordinate|array) (real|integer|pattern) (general|symmetric|skew-symmetric)\n%\n)?[0-9]{1,2}[ \n][0-9]{1,2}[ \n][0-9]{1,2}\n",
    ) {
        for text in [&rows, &entries, &words, &(header.clone() + &rows), &(header.clone() + &entries)] {
            read_as_everything(text.as_bytes());
        }
    }

    #[test]
    fn archives_with_changed_bytes_never_panic(
        bytes in changed(&["golden/csr.npz", "golden/csr_stored_f32.npz", "golden/csc.npz", "golden/coo.npz", "golden/empty.npz"]),
    ) {
        read_as_everything(&bytes);
    }

    #[test]
    fn tables_with_changed_bytes_never_panic(
        bytes in changed(&["golden/entries.parquet", "golden/snappy_f32.parquet", "golden/ones.parquet", "golden/zstd_other_order.parquet", "golden/null.parquet"]),
    ) {
        read_as_everything(&bytes);
    }
}
