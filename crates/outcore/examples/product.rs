//! Multiplies two matrices of random numbers on SSD and prints how it went.
//!
//! `cargo run --release --example product -- FOLDER M N K MEMORY_MIB [gemm|syrk]`

use std::path::Path;

use outcore::linalg::{Gemm, Syrk, gemm, syrk};
use outcore::{Array, Buf, DType, Order, Output, Result, Session, Settings, Trace};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, m, n, k, memory, what @ ..] = arguments.as_slice() else {
        eprintln!("usage: product FOLDER M N K MEMORY_MIB [gemm|syrk]");
        return Ok(());
    };
    let folder = Path::new(folder);
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (m, n, k) = (number(m), number(n), number(k));
    let session = Session::new(Settings {
        memory_bytes: Some(number(memory) << 20),
        scratch: Some(folder.to_owned()),
        ..Settings::default()
    })?;
    let a = random(&session, &folder.join(format!("a-{m}-{k}.npy")), m, k)?;
    let out = Output::New(folder.join("c.npy"));
    let job = match what.first().map(String::as_str) {
        Some("syrk") => syrk(
            &session,
            a.into(),
            Syrk {
                out,
                ..Syrk::default()
            },
        )?,
        _ => gemm(
            &session,
            a.into(),
            random(&session, &folder.join(format!("b-{k}-{n}.npy")), k, n)?.into(),
            Gemm {
                out,
                ..Gemm::default()
            },
        )?,
    };
    println!("{}", job.explain()[0]);
    job.run()?;
    let trace = session.last_trace().expect("a job has run");
    print(&trace);
    trace
        .write_chrome(
            std::fs::File::create(folder.join("trace.json")).expect("a folder to write to"),
        )
        .expect("room for the trace");
    Ok(())
}

fn random(session: &Session, path: &Path, rows: u64, cols: u64) -> Result<Array> {
    if let Ok(known) = Array::open(session, path) {
        return Ok(known);
    }
    let array = Array::create(session, path, DType::F32, &[rows, cols], Order::Row)?;
    let mut state = 1u32;
    for start in (0..rows).step_by(1024) {
        let part = array.slice(start..(start + 1024).min(rows), 0..cols)?;
        let mut bytes = Buf::anonymous(part.nbytes() as usize).expect("memory for a panel");
        for value in bytemuck::cast_slice_mut::<u8, f32>(&mut bytes) {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            *value = state as f32 / u32::MAX as f32 - 0.5;
        }
        part.write(bytes.freeze())?.run()?;
    }
    Ok(array)
}

fn print(trace: &Trace) {
    let moved = trace.actual.bytes_read + trace.actual.bytes_written;
    println!(
        "{:.2} s, {:.1} Gflop/s",
        trace.wall_s,
        trace.flops as f64 / trace.wall_s / 1e9
    );
    println!(
        "{:.2} GB moved, {:.3} of the bound, {:.2} GB reused",
        moved as f64 / 1e9,
        moved as f64 / trace.bound_bytes as f64,
        trace.bytes_reused as f64 / 1e9
    );
    println!(
        "device busy {:.2} s, idle {:.2} s; cores busy {:.2} s, idle {:.2} s",
        trace.device_busy_s, trace.device_idle_s, trace.cores_busy_s, trace.cores_idle_s
    );
    println!(
        "peak {:.1} MiB",
        trace.actual.peak_bytes as f64 / (1 << 20) as f64
    );
}
