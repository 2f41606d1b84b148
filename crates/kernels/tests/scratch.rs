//! Predicted scratch is compared with the allocations of this process.
#![allow(unsafe_code)]

use outcore_kernels::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

static HELD: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

/// The system's allocator with a meter.
struct Counting;

// SAFETY: every call is handed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held =
            HELD.fetch_add(layout.size() as isize, Ordering::Relaxed) + layout.size() as isize;
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller's promises are those of `System::alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn peak(work: impl FnOnce()) -> usize {
    let start = HELD.load(Ordering::Relaxed);
    PEAK.store(start, Ordering::Relaxed);
    work();
    (PEAK.load(Ordering::Relaxed) - start) as usize
}

/// One test: the counters are those of the whole process.
///
/// The buffers that a thread keeps are allocated by a first call and not counted: they are as large
/// as the caches, and the part that is touched is predicted.
#[test]
fn scratch_is_what_was_predicted() {
    products::<f32>();
    products::<f64>();
    for (n, k) in [(50, 50), (300, 7)] {
        let c = faer::Mat::<f64>::from_fn(n, n, |i, j| 1.0 / (1 + i + j) as f64);
        drop(eigh(c.as_ref(), Some(k)).unwrap());
        let peak = peak(|| drop(eigh(c.as_ref(), Some(k)).unwrap()));
        let predicted = eigh_scratch_bytes::<f64>(n, k) - 2 * n * n.min(512) * 8;
        assert!(
            peak <= predicted + 1024,
            "eigh {n} {k}: {peak} bytes, predicted {predicted}"
        );
    }
    for n in [50, 300, 700] {
        let c = faer::Mat::<f64>::from_fn(n, n, |i, j| 1.0 / (1 + i + j) as f64);
        drop(svd(c.as_ref()).unwrap());
        let peak = peak(|| drop(svd(c.as_ref()).unwrap()));
        let predicted = svd_scratch_bytes::<f64>(n) - 2 * n * n.min(512) * 8;
        println!("svd {n}: {peak} bytes, predicted {predicted}");
        assert!(
            peak <= predicted + 1024,
            "svd {n}: {peak} bytes, predicted {predicted}"
        );
    }
    let n = 1500;
    let c = faer::Mat::<f64>::from_fn(n, n, |i, j| 1.0 / (1 + i + j) as f64);
    for (k, block, basis) in [
        (10, 16, None),
        (100, 16, None),
        (100, 8, Some(0)),
        (300, 4, None),
    ] {
        let mut options = TopOptions::default();
        (options.block, options.basis) = (block, basis);
        let peak = peak(|| drop(eigh_top(c.as_ref(), k, &options, &Blas::Builtin).unwrap()));
        let predicted = eigh_top_scratch_bytes::<f64>(n, k, &options);
        println!("eigh_top {k} {block} {basis:?}: {peak} bytes, predicted {predicted}");
        assert!(
            peak <= predicted,
            "eigh_top {k} {block} {basis:?}: {peak} bytes, predicted {predicted}"
        );
    }
}

fn products<T: Real>() {
    let shapes = [
        (1, 3000, 700),
        (3000, 1, 700),
        (2000, 3000, 700),
        (2048, 2048, 512),
        (300, 200, 5000),
        (17, 2100, 900),
        (2100, 64, 513),
    ];
    for (m, n, k) in shapes {
        for transposed in [false, true] {
            let (a, b, mut c) = (
                vec![T::ONE; m * k],
                vec![T::ONE; k * n],
                vec![T::ONE; m * n],
            );
            let layout = |rows, cols| if transposed { (1, rows) } else { (cols, 1) };
            let (sa, sb) = (layout(m, k), layout(k, n));
            let (a, b) = (
                view(&a, m, k, sa.0, sa.1).unwrap(),
                view(&b, k, n, sb.0, sb.1).unwrap(),
            );
            let c = view_mut(&mut c, m, n, n, 1).unwrap();
            // A first call on this thread makes the slab; the second one is measured.
            let mut c = c;
            gemm(c.as_mut(), T::ONE, a, b, T::ONE, &Blas::Builtin).unwrap();
            let peak = peak(|| gemm(c, T::ONE, a, b, T::ONE, &Blas::Builtin).unwrap());
            let predicted = gemm_scratch_bytes::<T>(m, n, k, &Blas::Builtin) - (1 << 20);
            assert!(
                peak <= predicted,
                "{m} {n} {k} {transposed}: {peak} bytes, predicted {predicted} and the slab"
            );
        }
    }
}
