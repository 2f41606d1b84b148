//! Placeholder.
use crate::{Driver, Options};
use std::io;
pub(crate) struct Uring;
impl Uring {
    pub(crate) fn new(_: Options) -> io::Result<crate::threads::Threads> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
const _: Option<&dyn Driver> = None;
