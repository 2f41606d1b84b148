//! The formats against other programs: golden files of NumPy and of ours, and NumPy itself where it
//! is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use outcore::format::{DType, HEAD_BYTES, Order, npy, parse_npy};

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    std::fs::read(path).unwrap()
}

#[test]
fn files_that_numpy_wrote_are_understood() {
    for (name, dtype, shape, order, offset) in [
        (
            "numpy_f32_3x4_row.npy",
            DType::F32,
            &[3, 4][..],
            Order::Row,
            128,
        ),
        (
            "numpy_f64_3x4_column.npy",
            DType::F64,
            &[3, 4],
            Order::Column,
            128,
        ),
        ("numpy_f64_5.npy", DType::F64, &[5], Order::Row, 128),
        ("numpy_int64.npy", DType::I64, &[3], Order::Row, 128),
        ("numpy_cube.npy", DType::F64, &[2, 2, 2], Order::Row, 128),
        (
            "numpy_f32_2x3_version_2.npy",
            DType::F32,
            &[2, 3],
            Order::Row,
            128,
        ),
        (
            "numpy_f32_2x3_version_3.npy",
            DType::F32,
            &[2, 3],
            Order::Row,
            128,
        ),
    ] {
        let file = golden(name);
        let dense = parse_npy(name, &file, file.len() as u64).unwrap();
        assert_eq!((dense.dtype, dense.order), (dtype, order), "{name}");
        assert_eq!(
            (dense.shape.as_slice(), dense.data_offset),
            (shape, offset),
            "{name}"
        );
        assert_eq!(dense.file_bytes(), file.len() as u64, "{name}");
    }
    for (name, part) in [
        ("numpy_big_endian.npy", "big-endian dtype '>f8'"),
        ("numpy_records.npy", "records"),
        ("numpy_objects.npy", "Python objects"),
        ("numpy_scalar.npy", "0 dimensions"),
    ] {
        let file = golden(name);
        let error = parse_npy(name, &file, file.len() as u64).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn the_header_we_write_does_not_change() {
    let (_, header) = npy("x", DType::F32, &[3, 4], Order::Row).unwrap();
    assert!(header == golden("outcore_f32_3x4_row.npy")[..HEAD_BYTES]);
    let (_, header) = npy("x", DType::F64, &[5], Order::Row).unwrap();
    assert!(header == golden("outcore_f64_5.npy")[..HEAD_BYTES]);
}

/// A Python that has NumPy: the project's own environment, else the system's.
fn numpy() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    [own, PathBuf::from("python3")].into_iter().find(|python| {
        Command::new(python)
            .args(["-c", "import numpy"])
            .output()
            .is_ok_and(|output| output.status.success())
    })
}

#[test]
fn numpy_reads_what_we_write() {
    let Some(python) = numpy() else {
        eprintln!("no Python with NumPy here: the golden files stand in for it");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for (dtype, shape, order) in [
        (DType::F32, &[3, 4][..], Order::Row),
        (DType::F64, &[3, 4], Order::Column),
        (DType::F64, &[5], Order::Row),
        (DType::F32, &[0, 4], Order::Row),
    ] {
        let (dense, mut file) = npy("x", dtype, shape, order).unwrap();
        for element in 0..dense.rows * dense.cols {
            match dtype {
                DType::F32 => file.extend_from_slice(&(element as f32).to_le_bytes()),
                _ => file.extend_from_slice(&(element as f64).to_le_bytes()),
            }
        }
        let path = dir.path().join("x.npy");
        std::fs::write(&path, &file).unwrap();
        let code = "import numpy, sys\n\
            x = numpy.load(sys.argv[1], mmap_mode='r')\n\
            order = 'F' if x.flags.f_contiguous and not x.flags.c_contiguous else 'C'\n\
            in_order = (x.ravel(order='K') == numpy.arange(x.size)).all()\n\
            print(x.dtype, list(x.shape), order, x.offset, in_order)";
        let output = Command::new(&python)
            .args(["-c", code])
            .arg(&path)
            .output()
            .unwrap();
        let order = if order == Order::Column { 'F' } else { 'C' };
        let expected = format!("{dtype} {shape:?} {order} 4096 True\n");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            expected,
            "{errors}"
        );
    }
}
