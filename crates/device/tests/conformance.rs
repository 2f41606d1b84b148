//! One suite for every driver and every device.
//!
//! Each module below runs all of `suite/` on one pair. A pair that this system does not offer (no
//! io_uring in a container, no tmpfs) is skipped and says so.

mod suite;

use suite::devices::{disk, faulty, memory, memory_in_blocks, nervous, tmpfs};

macro_rules! conformance {
    ($($driver:ident: $choice:ident => $($device:ident),+;)+) => {
        $(mod $driver {
            $(mod $device {
                conformance!(@tests $choice, $device:
                    reads_what_was_written,
                    unaligned_requests_work_or_are_refused,
                    reads_past_the_end_are_zeroed,
                    writes_past_the_end_keep_what_is_before_it,
                    requests_beyond_the_end_are_refused,
                    empty_requests_succeed,
                    each_of_many_requests_completes_exactly_once,
                    large_requests_are_carried_out_whole,
                    flush_and_discard,
                    offload_is_refused_where_there_is_none,
                    errors_name_device_operation_and_place,
                    a_wake_ends_a_wait_now_or_later,
                    waiting_ends_in_time,
                    a_driver_moves_between_threads,
                    dropping_the_driver_drains_it,
                    registered_memory_works_the_same,
                    random_operations_agree_with_a_model
                );
            })+
        })+
    };
    (@tests $choice:ident, $device:ident: $($test:ident),+) => {
        $(#[test]
        fn $test() {
            if let Some(mut subject) = crate::suite::Subject::new(outcore_device::Choice::$choice, crate::$device) {
                crate::suite::checks::$test(&mut subject);
            }
        })+
    };
}

conformance! {
    io_uring: Uring => disk, tmpfs, memory, memory_in_blocks, faulty, nervous;
    threads: Threads => disk, tmpfs, memory, memory_in_blocks, faulty, nervous;
}

/// The whole suite again as a user without privileges who may lock 8 MiB, the default of many
/// systems.
#[cfg(target_os = "linux")]
#[test]
fn all_of_it_holds_for_an_unprivileged_user_with_8_mib_of_lockable_memory() {
    suite::unprivileged::run_again();
}
