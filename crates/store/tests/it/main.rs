//! Tests by way of the public interface. One binary, since each is linked with the whole library.

mod common;
mod concurrent;
mod conformance;
mod faults;
mod folder;
mod formatted;
mod formatted_crashes;
mod killed;
mod new_folder;
mod scratch;
mod version_groups;
mod versions;
