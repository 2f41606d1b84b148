//! Which driver carries requests: chosen by the program, by the environment, or by what the system
//! allows.

use crate::driver::{Driver, Options};
use crate::error::DeviceError;
use crate::threads::Threads;
use std::ffi::OsString;
use std::io;

/// Which driver to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// io_uring where it works, else threads. The environment variable `OUTCORE_DRIVER` (`io_uring`
    /// or `threads`) overrides this choice.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// A pool of threads that block in `pread` and `pwrite`.
    Threads,
}

/// Makes a driver with the default bounds.
pub fn driver(choice: Choice) -> Result<Box<dyn Driver>, DeviceError> {
    driver_with(choice, Options::default())
}

/// Makes a driver.
pub fn driver_with(choice: Choice, options: Options) -> Result<Box<dyn Driver>, DeviceError> {
    match resolve(choice, std::env::var_os(DRIVER_VARIABLE))? {
        Choice::Threads => {
            let reason = "threads were asked for".to_owned();
            Ok(Box::new(Threads::new(options, reason)))
        }
        Choice::Uring => uring(options).map_err(|source| DeviceError::drive("io_uring", source)),
        Choice::Auto => match uring(options) {
            Ok(driver) => Ok(driver),
            Err(error) => {
                let reason = format!("io_uring is not usable: {error}");
                log::info!("{reason}; using threads");
                Ok(Box::new(Threads::new(options, reason)))
            }
        },
    }
}

/// Chooses the driver where the program leaves the choice open.
const DRIVER_VARIABLE: &str = "OUTCORE_DRIVER";

fn resolve(choice: Choice, variable: Option<OsString>) -> Result<Choice, DeviceError> {
    let name = match (choice, variable) {
        (Choice::Auto, Some(name)) => name,
        _ => return Ok(choice),
    };
    match name.to_str() {
        Some("" | "auto") => Ok(Choice::Auto),
        Some("io_uring") => Ok(Choice::Uring),
        Some("threads") => Ok(Choice::Threads),
        _ => {
            let message =
                format!("{DRIVER_VARIABLE} must be auto, io_uring or threads, not {name:?}");
            Err(DeviceError::drive(
                "driver",
                io::Error::new(io::ErrorKind::InvalidInput, message),
            ))
        }
    }
}

#[cfg(target_os = "linux")]
fn uring(options: Options) -> io::Result<Box<dyn Driver>> {
    Ok(Box::new(crate::uring::Uring::new(options)?))
}

#[cfg(not(target_os = "linux"))]
fn uring(_: Options) -> io::Result<Box<dyn Driver>> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "io_uring exists on Linux only",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_decides_only_where_the_program_does_not() {
        let resolved = |choice, name: &str| resolve(choice, Some(name.into())).unwrap();
        assert_eq!(resolved(Choice::Auto, "threads"), Choice::Threads);
        assert_eq!(resolved(Choice::Auto, "io_uring"), Choice::Uring);
        assert_eq!(resolved(Choice::Auto, ""), Choice::Auto);
        assert_eq!(resolved(Choice::Uring, "threads"), Choice::Uring);
        assert_eq!(resolve(Choice::Auto, None).unwrap(), Choice::Auto);
        let error = resolve(Choice::Auto, Some("uring".into())).unwrap_err();
        assert!(error.to_string().contains("OUTCORE_DRIVER"), "{error}");
    }

    #[test]
    fn the_thread_driver_says_why_it_is_there() {
        let info = driver(Choice::Threads).unwrap().info();
        assert_eq!((info.name, info.registered_bytes), ("threads", 0));
        assert!(info.fallback.is_some());
    }
}
