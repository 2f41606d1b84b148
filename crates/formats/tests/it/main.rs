//! Tests by way of the public interface. One binary, since each is linked with the whole library.

mod common;
mod excerpts;
mod faults;
mod foreign;
mod golden;
mod reference;
mod round_trip;
