//! Every parser on the same bytes. Good seeds: `tests/golden` and `tests/data`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| outcore_formats::read_as_everything(bytes));
