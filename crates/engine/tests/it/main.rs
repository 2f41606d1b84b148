//! Tests by way of the public interface. One binary, since each is linked with the whole library.

mod decoded;
mod gather;
mod given;
mod inline;
mod locks;
mod parts;
mod poll;
mod run;
mod scatter;
mod stream;
