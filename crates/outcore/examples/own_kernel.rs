//! A kernel of your own on the arrays of a session: y = x^2, panel by panel, within the budget.
//!
//! Each task declares the part of x that it reads and the part of y that it writes; order, prefetch,
//! eviction, write-back and the memory limit follow from that.
//!
//! `cargo run --release -p outcore --example own_kernel -- X.npy Y.npy`

use outcore::engine::{Plan, Task};
use outcore::{Array, DType, Job, Order, Output, Result, Session, Settings};

/// The plan of the squares of an array of f32.
pub(crate) fn squares(session: &Session, x: &Array, out: Output) -> Result<Job<Array>> {
    let mut plan = Plan::new("squares");
    let target = out.target(session, DType::F32, &x.shape(), Order::Row, &mut plan)?;
    for rows in x.panels(4 * x.cols()) {
        let from = x.region(&mut plan, rows.clone(), 0..x.cols())?;
        let into = target.region(&mut plan, rows, 0..x.cols())?;
        let task = Task::new("square").read(from.region).write(into.region);
        plan.task(task.run(move |cx| {
            let [read, written] = cx.blocks else {
                unreachable!("two were declared")
            };
            let (x, mut y) = (from.of::<f32>(read)?, into.of_mut::<f32>(written)?);
            for row in 0..x.nrows() {
                for column in 0..x.ncols() {
                    y[(row, column)] = x[(row, column)] * x[(row, column)];
                }
            }
            Ok(())
        }));
    }
    plan.bound(x.nbytes() + target.array.nbytes());
    target.job(session, vec![plan])
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [x, y] = arguments.as_slice() else {
        eprintln!("usage: own_kernel X.npy Y.npy");
        return Ok(());
    };
    let session = Session::new(Settings::default())?;
    let job = squares(&session, &Array::open(&session, x)?, Output::New(y.into()))?;
    println!("{}", job.explain()[0]);
    job.run()?;
    Ok(())
}
