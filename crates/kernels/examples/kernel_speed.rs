//! Speed of the kernels on this machine, one thread, best of five: GFLOP/s of products, GB/s of
//! memory-bound work.
//!
//! `cargo run --release -p outcore-kernels --example kernel_speed [-- [--eigen] [path of a
//! BLAS]...]`
//!
//! Bounds: products are bound by the multiply-adds of a core; narrow products and element-wise work
//! by the memory bandwidth of a core, which the first element-wise lines (sum, fill) show.

use outcore_kernels::*;
use std::hint::black_box;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut libraries = vec![Blas::Builtin];
    let mut eigen = false;
    for argument in std::env::args().skip(1) {
        if argument == "--eigen" {
            eigen = true;
        } else {
            libraries.push(Blas::load(&argument)?);
        }
    }
    for blas in &libraries {
        println!("{:<10} {}", blas.name(), blas.version());
    }
    products(&libraries);
    of_bytes();
    narrow(&libraries);
    element_wise::<f32>();
    element_wise::<f64>();
    if eigen {
        eigenproblems();
    }
    Ok(())
}

/// Seconds of the best of five runs.
fn best(mut work: impl FnMut()) -> f64 {
    let mut seconds = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        work();
        seconds = seconds.min(start.elapsed().as_secs_f64());
    }
    seconds
}

fn numbers<T: Real>(len: usize) -> Vec<T> {
    (0..len)
        .map(|i| T::of((i * 7919 % 1009) as f64 / 1009.0 - 0.5))
        .collect()
}

fn products(libraries: &[Blas]) {
    println!(
        "\nrow-major products, GFLOP/s\n{:<26}{}",
        "",
        names(libraries)
    );
    for (n, ld) in [
        (512, 512),
        (1024, 1024),
        (2048, 2048),
        (2048, 8192),
        (4096, 4096),
    ] {
        let cells = libraries
            .iter()
            .map(|blas| format!("{:>11.1}", product::<f32>(n, ld, blas)));
        println!(
            "{:<26}{}",
            format!("gemm f32 {n}^3 ld {ld}"),
            cells.collect::<String>()
        );
        let cells = libraries
            .iter()
            .map(|blas| format!("{:>11.1}", product::<f64>(n, ld, blas)));
        println!(
            "{:<26}{}",
            format!("gemm f64 {n}^3 ld {ld}"),
            cells.collect::<String>()
        );
    }
    for n in [1024, 4096] {
        let cells = libraries
            .iter()
            .map(|blas| format!("{:>11.1}", symmetric(n, 2048, blas)));
        println!(
            "{:<26}{}",
            format!("syrk f32 {n}^2 k 2048"),
            cells.collect::<String>()
        );
    }
}

fn names(libraries: &[Blas]) -> String {
    libraries
        .iter()
        .map(|blas| format!("{:>11}", blas.name()))
        .collect()
}

fn product<T: Real>(n: usize, ld: usize, blas: &Blas) -> f64 {
    let (a, b, mut c) = (
        numbers::<T>(n * ld),
        numbers::<T>(n * ld),
        numbers::<T>(n * ld),
    );
    let (a, b) = (
        view(&a, n, n, ld, 1).unwrap(),
        view(&b, n, n, ld, 1).unwrap(),
    );
    let seconds = best(|| {
        let c = view_mut(&mut c, n, n, ld, 1).unwrap();
        gemm(c, T::ONE, a, b, T::ONE, blas).unwrap();
    });
    gemm_flops(n, n, n) as f64 / seconds / 1e9
}

/// Counted with the flops of the triangle: the number is half that of gemm if it takes as long as
/// the full product.
fn symmetric(n: usize, k: usize, blas: &Blas) -> f64 {
    let (a, mut c) = (numbers::<f32>(n * k), numbers::<f32>(n * n));
    let a = view(&a, k, n, n, 1).unwrap().transpose();
    let seconds = best(|| syrk(view_mut(&mut c, n, n, n, 1).unwrap(), 1.0, a, 1.0, blas).unwrap());
    syrk_flops(n, k) as f64 / seconds / 1e9
}

/// Products of 8-bit integers beside those of f32, of rows as the pass over a matrix has them.
fn of_bytes() {
    println!("\nX^T X of u8, and of the same numbers in f32, billions of operations a second");
    for (n, d) in [(20_000, 192), (8192, 1024), (2048, 4096)] {
        let x: Vec<u8> = (0..n * d).map(|i| (i * 7919 % 1009) as u8).collect();
        let mut scratch = vec![0; byte_gram_scratch_bytes(n, d, d)];
        let (mut gram, mut sums) = (vec![0; d * d], vec![0; d]);
        let seconds = best(|| {
            let (gram, x) = (
                view_mut(&mut gram, d, d, d, 1).unwrap(),
                view(&x, n, d, d, 1).unwrap(),
            );
            byte_gram(gram, &mut sums, x, Byte::Unsigned, &mut scratch).unwrap();
        });
        println!(
            "{:<26}{:>11.1}{:>11.1}",
            format!("{n} x {d}"),
            syrk_flops(d, n) as f64 / seconds / 1e9,
            symmetric(d, n, &Blas::Builtin)
        );
    }
}

fn narrow(libraries: &[Blas]) {
    let n = 8192;
    println!(
        "\nnarrow products with {n} x {n} f32, GB/s of the matrix\n{:<26}{}",
        "",
        names(libraries)
    );
    let a = numbers::<f32>(n * n);
    let a = view(&a, n, n, n, 1).unwrap();
    for columns in [1, 2, 4, 8, 16, 32, 64] {
        for (shape, a) in [("A B", a), ("A^T B", a.transpose())] {
            let cells = libraries.iter().map(|blas| {
                let (b, mut c) = (numbers::<f32>(n * columns), numbers::<f32>(n * columns));
                let b = view(&b, n, columns, columns, 1).unwrap();
                let seconds = best(|| {
                    gemm(
                        view_mut(&mut c, n, columns, columns, 1).unwrap(),
                        1.0,
                        a,
                        b,
                        0.0,
                        blas,
                    )
                    .unwrap();
                });
                format!("{:>11.1}", (n * n * 4) as f64 / seconds / 1e9)
            });
            println!(
                "{:<26}{}",
                format!("{shape} {columns} columns"),
                cells.collect::<String>()
            );
        }
    }
}

fn element_wise<T: Real>() {
    let (rows, cols) = (8192, 4096);
    let (x, mut y) = (numbers::<T>(rows * cols), numbers::<T>(rows * cols));
    let mut wide = vec![0f64; rows * cols];
    let x = view(&x, rows, cols, cols, 1).unwrap();
    let size = size_of::<T>();
    let report = |name: &str, bytes: usize, work: &mut dyn FnMut()| {
        println!(
            "{name:<26}{:>11.1}",
            (rows * cols * bytes) as f64 / best(work) / 1e9
        );
    };
    println!("\n{:?} {rows} x {cols}, GB/s read and written", T::DTYPE);
    let mut out = vec![0f64; rows.max(cols)];
    report("sum", size, &mut || _ = black_box(sum(x)));
    report("fill", size, &mut || {
        fill(view_mut(&mut y, rows, cols, cols, 1).unwrap(), T::ONE)
    });
    report("max", size, &mut || _ = black_box(max(x)));
    report("dot", size, &mut || _ = black_box(dot(x, x)));
    report("first_non_finite", size, &mut || {
        _ = black_box(first_non_finite(x))
    });
    report("row norms", size, &mut || {
        row_norms(&mut out[..rows], x, Norm::L2).unwrap()
    });
    report("column norms", size, &mut || {
        column_norms(&mut out[..cols], x, Norm::L2).unwrap()
    });
    report("column sums", size, &mut || {
        column_sums(&mut out[..cols], x).unwrap()
    });
    report("column sums, by columns", size, &mut || {
        column_sums(&mut out[..rows], x.transpose()).unwrap();
    });
    let mut statistics = ColumnStatistics::new(cols);
    report("statistics", size, &mut || statistics.update(x).unwrap());
    let mut statistics = ColumnStatistics::new(rows);
    report("statistics, by columns", size, &mut || {
        statistics.update(x.transpose()).unwrap()
    });
    report("scale", 2 * size, &mut || {
        scale(
            view_mut(&mut y, rows, cols, cols, 1).unwrap(),
            T::of(1.0001),
        )
    });
    report("axpby", 3 * size, &mut || {
        axpby(
            view_mut(&mut y, rows, cols, cols, 1).unwrap(),
            T::of(0.5),
            x,
            T::of(0.5),
        )
        .unwrap();
    });
    let shift = vec![0.25; cols];
    report("center_into", 2 * size, &mut || {
        center_into(view_mut(&mut y, rows, cols, cols, 1).unwrap(), x, &shift).unwrap();
    });
    report("add_into_f64", 16 + size, &mut || {
        add_into_f64(view_mut(&mut wide, rows, cols, cols, 1).unwrap(), x).unwrap();
    });
    report("convert_into f64", 8 + size, &mut || {
        convert_into(view_mut(&mut wide, rows, cols, cols, 1).unwrap(), x).unwrap();
    });
    report("copy_into", 2 * size, &mut || {
        copy_into(view_mut(&mut y, rows, cols, cols, 1).unwrap(), x).unwrap()
    });
    report("transpose_into", 2 * size, &mut || {
        transpose_into(view_mut(&mut y, cols, rows, rows, 1).unwrap(), x).unwrap();
    });
}

fn eigenproblems() {
    println!("\nsymmetric eigenproblems f64, seconds");
    for n in [512, 1024, 2048, 4096] {
        // Covariance-like: eigenvalues falling as 1 / (1 + i), in a random basis.
        let x = numbers::<f64>(n * n)
            .iter()
            .enumerate()
            .map(|(i, x)| x + ((i * i) as f64).sin())
            .collect::<Vec<_>>();
        let q = orthonormalize(view(&x, n, n, n, 1).unwrap()).unwrap();
        let scaled = faer::Mat::from_fn(n, n, |i, j| q[(i, j)] / (1.0 + j as f64));
        let mut c = faer::Mat::<f64>::zeros(n, n);
        gemm(
            c.as_mut(),
            1.0,
            scaled.as_ref(),
            q.transpose(),
            0.0,
            &Blas::Builtin,
        )
        .unwrap();
        let start = Instant::now();
        let top = eigh_top(c.as_ref(), 50, &TopOptions::default(), &Blas::Builtin).unwrap();
        let top_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let all = eigh(c.as_ref(), Some(50)).unwrap();
        let all_seconds = start.elapsed().as_secs_f64();
        let error = (0..50)
            .map(|j| (top.values[j] - all.values[j]).abs())
            .fold(0.0, f64::max);
        println!(
            "n {n:<6} eigh {all_seconds:>8.2}   eigh_top 50 {top_seconds:>8.2}   largest difference {error:.1e}"
        );
    }
}
