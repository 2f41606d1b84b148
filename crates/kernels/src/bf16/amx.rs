//! Products on AMX, of which one instruction adds sixteen rows of pairs to a tile of 16 x 16 sums.
//!
//! A block is two tiles of each operand, and four of sums, in registers for the whole depth. A
//! process asks the system for the registers, which are 8 KiB a thread, before it uses them.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::{BLOCK, LANES, Line};

/// Bits of EDX of leaf 7 of CPUID: products of bf16, and tiles.
const AMX_BF16: u32 = 1 << 22;
const AMX_TILE: u32 = 1 << 24;
/// Linux: the system call `arch_prctl`, its request for more state, and that of tiles.
const SYS_ARCH_PRCTL: isize = 158;
const ARCH_REQ_XCOMP_PERM: isize = 0x1023;
const XFEATURE_XTILEDATA: isize = 18;

/// Whether this process can run [`multiply`].
pub(super) fn serves() -> bool {
    static SERVES: OnceLock<bool> = OnceLock::new();
    *SERVES.get_or_init(|| has_tiles() && may_use_tiles())
}

fn has_tiles() -> bool {
    __cpuid(0).eax >= 7 && {
        let edx = __cpuid_count(7, 0).edx;
        edx & AMX_BF16 != 0 && edx & AMX_TILE != 0
    }
}

/// Asks the system, which refuses where it does not keep tiles apart for each thread.
#[cfg(target_os = "linux")]
fn may_use_tiles() -> bool {
    let outcome: isize;
    // SAFETY: a system call with two numbers, which changes what threads of this process may use.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => outcome,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    outcome == 0
}

#[cfg(not(target_os = "linux"))]
fn may_use_tiles() -> bool {
    false
}

/// The shape of the tiles: all of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Shape {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static SHAPE: Shape = Shape {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// The tiles of this thread, until it is dropped.
pub(super) struct Tiles(PhantomData<*const ()>);

impl Tiles {
    /// # Panics
    /// Another CPU.
    pub(super) fn configure() -> Tiles {
        assert!(serves());
        // SAFETY: the process may use tiles, and they can have this shape.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const SHAPE, options(nostack, readonly)) };
        Tiles(PhantomData)
    }

    /// The products of a block of each operand.
    ///
    /// # Panics
    /// Too little room, operands that are no blocks of equal depth.
    pub(super) fn multiply(&self, c: &mut [f32], stride: usize, a: &[Line], b: &[Line]) {
        assert!(a.len() == b.len() && a.len().is_multiple_of(BLOCK) && !a.is_empty());
        assert!(stride >= BLOCK && c.len() >= (BLOCK - 1) * stride + BLOCK);
        let row_lines = a.len() / BLOCK;
        let half = BLOCK / 2;
        // SAFETY: tiles of this thread have their shape. In each of `row_lines` steps, 16 rows of 64
        // bytes are read from two halves of each operand, which have that many lines (asserted): of
        // the left one `row_lines` lines apart, of the right one next to each other. 16 rows of 64
        // bytes are written to four quarters of a block of c (asserted).
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{upper} + {row_bytes}*1]",
                "tileloadd tmm6, [{first} + {line}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{second} + {line}*1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{lower} + {row_bytes}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {upper}, 64",
                "add {lower}, 64",
                "add {first}, 1024",
                "add {second}, 1024",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{c} + {stride}*1], tmm0",
                "tilestored [{c} + {stride}*1 + 64], tmm1",
                "tilestored [{c_lower} + {stride}*1], tmm2",
                "tilestored [{c_lower} + {stride}*1 + 64], tmm3",
                upper = inout(reg) a.as_ptr() => _,
                lower = inout(reg) a.as_ptr().add(half * row_lines) => _,
                row_bytes = in(reg) row_lines * size_of::<Line>(),
                first = inout(reg) b.as_ptr() => _,
                second = inout(reg) b.as_ptr().add(LANES * row_lines) => _,
                line = in(reg) size_of::<Line>(),
                steps = inout(reg) row_lines => _,
                c = in(reg) c.as_mut_ptr(),
                c_lower = in(reg) c.as_mut_ptr().add(half * stride),
                stride = in(reg) stride * size_of::<f32>(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the tiles of this thread, which hold nothing that is needed.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
