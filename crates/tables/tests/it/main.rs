//! Tests by way of the public interface. One binary, since each is linked with the whole library.

mod common;
mod look_up;
mod training;
