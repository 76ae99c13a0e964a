//! The workload of a production metadata store at Nutanix, as used in papers on key-value stores (KVell, DecouKV): 57 %
//! of the operations are updates, 41 % reads, 2 % scans.

use crate::error::Result;
use crate::flags::Flags;
use crate::generate::write_key;
use crate::record::Done;
use crate::store::OpKind;
use crate::workload::{Thread, Work};
use crate::ycsb::Chooser;

pub(crate) struct Nutanix {
    chooser: Chooser,
}

impl Nutanix {
    /// Keys are drawn by `--requestdistribution`; the default is uniform.
    pub fn new(f: &Flags) -> Self {
        let by = if f.requestdistribution.is_empty() { "uniform" } else { &f.requestdistribution };
        Self { chooser: Chooser::new(by, f.num as u64) }
    }
}

impl Work for Nutanix {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::Read, OpKind::Write, OpKind::Scan]
    }

    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        let f = t.flags;
        let kind = t.random.next_u64() % 100;
        write_key(self.chooser.next(&mut t.random, f.num as u64), &mut t.key);
        Ok(Some(match kind {
            0..57 => Done::write(1, t.put(f.value_size)?),
            57..98 => Done::read(t.get()?.unwrap_or(0)),
            _ => {
                let entries = f.minscanlength + t.random.next_u64() % (f.maxscanlength - f.minscanlength + 1);
                let sought = t.session.seek(&t.key, entries)?;
                t.record.scanned += sought.entries;
                Done { kind: OpKind::Scan, ops: 1, wrote: 0, read: sought.bytes }
            }
        }))
    }
}
