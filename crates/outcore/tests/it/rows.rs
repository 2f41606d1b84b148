//! Rows by their numbers, and elements of every type, against the same in memory.

#[allow(dead_code, reason = "the kernel alone is used here")]
#[path = "../../examples/own_kernel.rs"]
mod own_kernel;

use outcore::{Array, Buf, DType, Error, Order, Output, Session, Settings};
use proptest::prelude::*;

struct Place {
    session: Session,
    folder: tempfile::TempDir,
}

fn place(memory_bytes: u64) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let session = Session::new(Settings {
        memory_bytes: Some(memory_bytes),
        threads: 2,
        scratch: Some(folder.path().join("scratch")),
        ..Settings::default()
    })
    .unwrap();
    Place { session, folder }
}

impl Place {
    /// A matrix whose bytes tell where they are.
    fn matrix(&self, name: &str, dtype: DType, shape: &[u64], order: Order) -> (Array, Vec<u8>) {
        let path = self.folder.path().join(name);
        let array = Array::create(&self.session, path, dtype, shape, order).unwrap();
        let mut seed = 1u32;
        let values: Vec<u8> = (0..array.nbytes())
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 24) as u8
            })
            .collect();
        let mut buf = Buf::anonymous(values.len().max(1)).unwrap();
        buf[..values.len()].copy_from_slice(&values);
        array.write(buf.freeze()).unwrap().run().unwrap();
        (array, values)
    }
}

fn bytes(array: &Array) -> Vec<u8> {
    array.read().unwrap().run().unwrap()[..array.nbytes() as usize].to_vec()
}

fn expected(values: &[u8], row_bytes: usize, rows: &[u64]) -> Vec<u8> {
    let row = |row: &u64| &values[*row as usize * row_bytes..][..row_bytes];
    rows.iter().flat_map(row).copied().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Ascending, in no order, again and again; of vectors, matrices either way, and more dimensions.
    #[test]
    fn rows_taken_are_those_of_the_matrix(
        picks in proptest::collection::vec(0u64..3000, 0..2000),
        kind in 0usize..23, cols in 1u64..40, by_columns: bool, sorted: bool, dimensions in 1usize..4,
    ) {
        let place = place(4 << 20);
        let dtype = DType::ALL[kind];
        let shape = match dimensions {
            1 => vec![3000],
            2 => vec![3000, cols],
            _ => vec![3000, 2, cols],
        };
        let order = if by_columns && dimensions == 2 { Order::Column } else { Order::Row };
        let (array, values) = place.matrix("x.npy", dtype, &shape, order);
        let mut rows = picks;
        if sorted {
            rows.sort_unstable();
        }
        let row_bytes = values.len() / 3000;
        let taken = array.take(&rows, Output::Scratch).unwrap().run().unwrap();
        prop_assert_eq!(&taken.shape()[1..], &shape[1..]);
        prop_assert_eq!(bytes(&taken), expected(&values, row_bytes, &rows));
        let named = Output::New(place.folder.path().join("taken.npy"));
        let taken = array.take(&rows, named).unwrap().run().unwrap();
        prop_assert_eq!(bytes(&taken), expected(&values, row_bytes, &rows));
        if order == Order::Row {
            let mut into = vec![0; rows.len() * row_bytes];
            array.gather_rows(&rows, 0..array.cols(), &mut into, || true).unwrap();
            prop_assert_eq!(into, expected(&values, row_bytes, &rows));
        }
    }
}

/// Short rows in no order go by way of scratch: the plan says so, and bytes move four times.
#[test]
fn many_short_rows_in_no_order_go_by_way_of_scratch() {
    let place = place(8 << 20);
    let (array, values) = place.matrix("x.npy", DType::F32, &[200_000, 25], Order::Row);
    let mut rows: Vec<u64> = (0..200_000).collect();
    let mut seed = 7u64;
    for last in (1..rows.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        rows.swap(last, (seed >> 33) as usize % (last + 1));
    }
    let job = array.take(&rows, Output::Scratch).unwrap();
    let moved: u64 = job
        .explain()
        .iter()
        .map(|plan| plan.predicted.bytes_read + plan.predicted.bytes_written)
        .sum();
    assert_eq!(job.explain().len(), 2, "two passes");
    assert!(
        moved < 5 * array.nbytes(),
        "{moved} bytes for {}",
        array.nbytes()
    );
    let taken = job.run().unwrap();
    assert_eq!(bytes(&taken), expected(&values, 100, &rows));
}

/// Ascending rows are read once, in one pass.
#[test]
fn ascending_rows_are_read_once() {
    let place = place(8 << 20);
    let (array, values) = place.matrix("x.npy", DType::F32, &[100_000, 25], Order::Row);
    let rows: Vec<u64> = (0..100_000).filter(|row| row % 3 > 0).collect();
    let job = array.take(&rows, Output::Scratch).unwrap();
    assert_eq!(job.explain().len(), 1);
    let read = job.explain()[0].predicted.bytes_read;
    assert!(
        read < array.nbytes() * 11 / 10,
        "{read} bytes of {}",
        array.nbytes()
    );
    assert_eq!(bytes(&job.run().unwrap()), expected(&values, 100, &rows));
}

#[test]
fn rows_that_are_not_there_are_named() {
    let place = place(4 << 20);
    let (array, _) = place.matrix("x.npy", DType::U8, &[10, 3], Order::Row);
    let error = array.take(&[3, 10], Output::Scratch).err().unwrap();
    assert!(matches!(error, Error::Shape { .. }));
    assert!(
        error
            .to_string()
            .contains("x.npy has 10 rows, and none with the number 10")
    );
    let mut short = [0; 5];
    assert!(
        array
            .gather_rows(&[1, 2], 0..3, &mut short, || true)
            .is_err()
    );
}

/// An array of more dimensions is seen as rows without a copy, and only so.
#[test]
fn dimensions_behind_the_first_are_seen_as_a_row() {
    let place = place(4 << 20);
    let (array, values) = place.matrix("x.npy", DType::U8, &[6, 4, 5], Order::Row);
    assert_eq!(array.shape(), [6, 4, 5]);
    let again = Array::open(&place.session, place.folder.path().join("x.npy")).unwrap();
    assert_eq!(again.shape(), [6, 4, 5]);
    let rows = again.reshaped(&[6, 20]).unwrap();
    assert_eq!((rows.shape(), rows.cols()), (vec![6, 20], 20));
    assert_eq!(bytes(&rows), values);
    let some = again.slice(2..4, 0..20).unwrap();
    assert_eq!(some.shape(), [2, 4, 5]);
    assert_eq!(bytes(&some), values[40..80]);
    assert_eq!(again.slice(0..6, 3..7).unwrap().shape(), [6, 4]);
    assert_eq!(again.t().shape(), [20, 6]);
    for wrong in [vec![6, 21], vec![12, 10], vec![], vec![120]] {
        assert!(again.reshaped(&wrong).is_err(), "{wrong:?}");
    }
}

/// What a header cannot say by NumPy's means is in a comment, which NumPy skips.
#[test]
fn a_type_that_numpy_has_not_is_found_again() {
    let place = place(4 << 20);
    for dtype in DType::ALL {
        let name = format!("{dtype}.npy");
        let (_, values) = place.matrix(&name, dtype, &[7, 3], Order::Row);
        let path = place.folder.path().join(&name);
        let head = std::fs::read(&path).unwrap();
        let array = Array::open(&place.session, &path).unwrap();
        assert_eq!(array.dtype(), dtype);
        assert_eq!(bytes(&array), values);
        let void = dtype.descr().contains('V');
        let text = String::from_utf8_lossy(&head[10..4096]).into_owned();
        assert_eq!(text.contains(&format!("# {dtype}")), void, "{text}");
    }
    let path = place.folder.path().join("bfloat16.npy");
    let mut file = std::fs::read(&path).unwrap();
    let comment = file.iter().position(|byte| *byte == b'#').unwrap();
    file[comment..comment + 10].fill(b' ');
    std::fs::write(&path, file).unwrap();
    let error = Array::open(&place.session, &path)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("void (dtype '|V2')"), "{error}");
}

/// Strips of short rows are written as whole spans.
#[test]
fn a_strip_of_columns_is_written_by_few_transfers() {
    let place = place(8 << 20);
    let (array, mut values) = place.matrix("x.npy", DType::F32, &[20_000, 100], Order::Row);
    let strip = array.slice(0..20_000, 10..34).unwrap();
    let new: Vec<u8> = (0..strip.nbytes()).map(|byte| (byte % 251) as u8).collect();
    let mut buf = Buf::anonymous(new.len()).unwrap();
    buf.copy_from_slice(&new);
    let job = strip.write(buf.freeze()).unwrap();
    let plan = &job.explain()[0];
    let moved = plan.predicted.bytes_read + plan.predicted.bytes_written;
    assert!(moved < 3 * array.nbytes(), "{moved} bytes");
    job.run().unwrap();
    for (row, part) in new.chunks(96).enumerate() {
        values[row * 400 + 40..][..96].copy_from_slice(part);
    }
    assert_eq!(bytes(&array), values);
}

/// A kernel that the library does not know, on parts of a session's arrays, within a small budget.
#[test]
fn a_kernel_of_ones_own_works_on_arrays() {
    let place = place(1 << 20);
    for (rows, cols) in [(20_000, 33), (1, 1), (0, 5), (3, 40_000)] {
        let path = place.folder.path().join("x.npy");
        let x = Array::create(&place.session, path, DType::F32, &[rows, cols], Order::Row).unwrap();
        let values: Vec<f32> = (0..rows * cols).map(|n| (n % 1000) as f32).collect();
        x.copy_from_slice(&values).unwrap();
        let squares = own_kernel::squares(&place.session, &x, Output::Scratch)
            .unwrap()
            .run()
            .unwrap();
        let expected: Vec<f32> = values.iter().map(|x| x * x).collect();
        assert_eq!(squares.to_vec::<f32>().unwrap(), expected);
    }
}

/// Of views in either order, in a budget that has room for none of them.
#[test]
fn elements_are_rounded_to_16_bits() {
    let place = place(1 << 20);
    let special = [
        f32::NAN,
        f32::INFINITY,
        -1e30,
        65_520.0,
        1e-8,
        -0.0,
        1.0 + 2f32.powi(-11),
        1.0 + 2f32.powi(-8),
    ];
    let values: Vec<f32> = (0..600 * 500)
        .map(|n| special.get(n).copied().unwrap_or(n as f32 / 7.0 - 9e3))
        .collect();
    let x = Array::temporary(&place.session, DType::F32, &[600, 500], Order::Row).unwrap();
    x.copy_from_slice(&values).unwrap();
    let across = |at: usize| values[at % 600 * 500 + at / 600];
    for order in [Order::Row, Order::Column] {
        let convert = |view: &Array, dtype| {
            view.convert(Output::Scratch, dtype, order)
                .unwrap()
                .run()
                .unwrap()
        };
        for (dtype, bits) in [
            (
                DType::F16,
                (|x| half::f16::from_f32(x).to_bits()) as fn(f32) -> u16,
            ),
            (DType::BF16, |x| half::bf16::from_f32(x).to_bits()),
        ] {
            let short = convert(&x.t(), dtype);
            assert_eq!((short.dtype(), short.shape()), (dtype, vec![500, 600]));
            let expected: Vec<u8> = (0..values.len())
                .flat_map(|at| bits(across(at)).to_le_bytes())
                .collect();
            assert_eq!(bytes(&short), expected);
            // What is read again is as it was rounded.
            assert_eq!(
                bytes(&convert(&convert(&short, DType::F64), dtype)),
                expected
            );
        }
    }
    // On the way to float16, an f64 is rounded once: past the middle of two numbers, to the upper one.
    let past = Array::temporary(&place.session, DType::F64, &[2], Order::Row).unwrap();
    past.copy_from_slice(&[1.0 + 2f64.powi(-11) + 2f64.powi(-40), 1.0 + 2f64.powi(-11)])
        .unwrap();
    let short = past
        .convert(Output::Scratch, DType::F16, Order::Row)
        .unwrap()
        .run()
        .unwrap();
    assert_eq!(bytes(&short), [0x01, 0x3c, 0x00, 0x3c]);
    let error = x
        .convert(Output::Scratch, DType::I8, Order::Row)
        .err()
        .unwrap();
    assert!(
        matches!(&error, Error::DType { what } if what.contains("float16 or bfloat16, not to int8")),
        "{error}"
    );
}

#[test]
fn values_of_another_type_or_number_are_refused() {
    let place = place(1 << 20);
    let path = place.folder.path().join("x.npy");
    let x = Array::create(&place.session, path, DType::I16, &[2, 3], Order::Row).unwrap();
    x.copy_from_slice(&[1i16, 2, 3, 4, 5, 6]).unwrap();
    assert_eq!(x.to_vec::<i16>().unwrap(), [1, 2, 3, 4, 5, 6]);
    assert!(matches!(x.to_vec::<u16>(), Err(Error::DType { .. })));
    assert!(matches!(
        x.copy_from_slice(&[1i16]),
        Err(Error::Shape { .. })
    ));
    assert!(matches!(
        x.copy_from_slice(&[1f32; 6]),
        Err(Error::DType { .. })
    ));
    let mut plan = outcore::engine::Plan::new("part");
    assert!(x.region(&mut plan, 1..3, 0..3).is_err());
}
