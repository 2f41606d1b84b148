//! Every design under a real launcher: the test starts itself again as four ranks. Without `mpirun` it says so.

use std::process::Command;

use outcore_core::ranks::{Ranks, all_gather, barrier};
use outcore_core::ring::{RingRanks, RingShape, see_all};
use outcore_ranks::{Design, MpiRanks, finalize};

const DESIGN: &str = "OUTCORE_TEST_DESIGN";
const RANKS: usize = 4;

#[test]
fn every_design_brings_every_block_to_every_rank() {
    if let Ok(design) = std::env::var(DESIGN) {
        return be_a_rank(&design);
    }
    if Command::new("mpirun").arg("--version").output().is_err() {
        eprintln!("skipped: there is no mpirun");
        return;
    }
    let own = std::env::current_exe().expect("it runs");
    for (name, _) in Design::ALL {
        let ran = Command::new("mpirun")
            .args(["-n", &RANKS.to_string(), "--oversubscribe"])
            // Test programs do not export their end, see `shmem`.
            .args(["setarch", "-R"])
            .arg(&own)
            .args(["--exact", "every_design_brings_every_block_to_every_rank"])
            .env(DESIGN, name)
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("OMPI_MCA_memory", "^patcher")
            .output()
            .expect("it was found");
        let status = ran.status;
        let said = [ran.stdout, ran.stderr]
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .concat();
        if said.contains("no OpenSHMEM library was found") {
            eprintln!("skipped: {name}, since there is no OpenSHMEM");
            continue;
        }
        assert!(status.success(), "{name}: {said}");
    }
}

fn be_a_rank(design: &str) {
    let design = Design::named(design).expect("it is one");
    let ranks = match MpiRanks::world(design, 8 << 20) {
        Ok(ranks) => ranks,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(ranks.size(), RANKS);
    for blocks in [1, 3] {
        let shape = RingShape {
            ranks: RANKS,
            rounds: RANKS as u64 * blocks,
            slots: ranks.slots(),
            slot_bytes: 1 << 20,
        };
        let (mut own, mut seen) = (0, Vec::new());
        let ring = ranks.ring(shape).expect("there is room");
        see_all(
            &*ring,
            &mut |slot| {
                let words: &mut [u64] = bytemuck::cast_slice_mut(slot);
                let number = ranks.rank() as u64 * 100 + own;
                words[1..].fill(number);
                own += 1;
            },
            &mut |block| {
                let words: &[u64] = bytemuck::cast_slice(block);
                assert!(words[1..].iter().all(|word| *word == words[1]));
                seen.push(words[1]);
            },
        )
        .expect("nothing fails");
        seen.sort_unstable();
        let all = (0..RANKS as u64).flat_map(|rank| (0..blocks).map(move |own| rank * 100 + own));
        assert!(all.eq(seen), "{design:?}");
    }
    let all = all_gather(&ranks, &[ranks.rank() as u8; 3]).expect("all are there");
    assert_eq!(all.concat().len(), 3 * RANKS);
    barrier(&ranks).expect("all are there");
    finalize().expect("it began");
}
