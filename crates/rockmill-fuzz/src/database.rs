//! Whole databases with damaged files: opened, read, written to, compacted, repaired.

use std::collections::BTreeMap;
use std::sync::Arc;

use rockmill::{Db, Error, IteratorMode, Options, OptionsLoader, Range, ReadOptions, properties};
use rockmill_io::{FileSystem, MemFileSystem};

use crate::copies;
use crate::fixtures::{self, DIR, Fixture, Open};
use crate::mend;
use crate::mutate::{self, Dice};

/// A damaged database.
#[derive(Debug)]
pub struct Case {
    /// The database, and the damage to its files.
    pub what: String,
    /// The files after the damage.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Whether a secondary instance follows it.
    secondary: bool,
    /// Whether it is copied: checkpoint, backup, export.
    copied: bool,
    /// Whether it is opened with a time to live.
    with_ttl: bool,
    /// Whether all data read must have been written: the checksums were not corrected after the damage.
    pub checked: bool,
    fixture: &'static Fixture,
}

impl Case {
    /// The damage that these bytes encode.
    pub fn new(data: &[u8]) -> Self {
        let mut dice = Dice::new(data);
        let all = fixtures::all();
        // The databases made here have more variety, those of other versions have other formats.
        let made = dice.once_in(2);
        let within = if made { &all[..all.len().min(fixtures::MADE)] } else { all };
        let fixture = &within[dice.among(0..within.len())];
        let mut files = fixture.files.clone();
        let names: Vec<String> = files.keys().cloned().collect();
        let mended = !dice.once_in(3);
        let mut what = format!("{}:", fixture.name);
        let count = if dice.once_in(4) { dice.among(2..4) } else { 1 };
        for _ in 0..count {
            let name = &names[dice.among(0..names.len())];
            let other = fixture.files.get(&names[dice.among(0..names.len())]).map_or(&[][..], Vec::as_slice);
            if dice.once_in(24) {
                files.remove(name);
                what += &format!(" {name} removed");
                continue;
            }
            let Some(bytes) = files.get_mut(name) else { continue };
            mutate::mutate(&mut dice, bytes, other);
            if mended {
                mend::file(name, bytes);
            }
            what += &format!(" {name} {}", if mended { "damaged and mended" } else { "damaged" });
        }
        let (secondary, copied) = (dice.once_in(4), dice.once_in(3));
        let with_ttl = fixture.is_with_ttl() != dice.once_in(16);
        Self { what, files, secondary, copied, with_ttl, checked: !mended && !with_ttl, fixture }
    }

    /// Runs all operations on the damaged database. Panics if a promise is broken.
    pub fn run(&self) {
        let fs = fixtures::file_system(&self.files);
        let options = fixtures::options(&fs);
        let loaded = OptionsLoader::new().file_system(Arc::clone(&fs) as Arc<dyn FileSystem>).load_latest(DIR);
        let _ = loaded.map_err(|e| self.judge(&e));
        let names = match Db::list_cf(&options, DIR) {
            Ok(names) => names,
            Err(e) => {
                self.judge(&e);
                vec!["default".to_owned(), "other".to_owned()]
            }
        };
        match self.fixture.open(&fs, &names, if self.with_ttl { Open::WithTtlToRead } else { Open::ToRead }) {
            Ok(db) => self.read(&db),
            Err(e) => self.judge(&e),
        }
        if self.secondary {
            match self.fixture.open(&fs, &names, Open::AsSecondary) {
                Ok(db) => {
                    let _ = db.try_catch_up_with_primary().map_err(|e| self.judge(&e));
                    self.read(&db);
                }
                Err(e) => self.judge(&e),
            }
        }
        match self.fixture.open(&fs, &names, if self.with_ttl { Open::WithTtl } else { Open::ToWrite }) {
            Ok(db) => {
                if self.copied {
                    copies::of_database(&db, &fs, self.fixture);
                }
                self.write(&db, &names);
            }
            Err(e) => self.judge(&e),
        }
        self.repair(&options, &fs);
    }

    fn judge(&self, e: &Error) {
        judge(e, DIR);
    }

    fn read(&self, db: &Db) {
        read_everything(db, DIR);
        let Some(written) = self.fixture.written.as_ref().filter(|_| self.checked) else { return };
        for name in db.cf_names() {
            let cf = db.cf_handle(&name).expect("a name of its own");
            for entry in db.iterator_cf(&cf, IteratorMode::Start).map_while(Result::ok) {
                let (key, value) = entry;
                for part in value.split(|&b| b == b',') {
                    assert!(
                        written.contains(&(name.clone(), key.to_vec(), part.to_vec())) || key.starts_with(b"new"),
                        "{}: nobody wrote {} = {}",
                        self.what,
                        key.escape_ascii(),
                        value.escape_ascii()
                    );
                }
            }
        }
    }

    fn write(&self, db: &Db, names: &[String]) {
        self.read(db);
        self.ask(db);
        for name in names {
            let Some(cf) = db.cf_handle(name) else { continue };
            let put = db.put_cf(&cf, b"new", b"new");
            let _ = put.as_ref().map_err(|e| self.judge(e));
            let _ = db.flush_cf(&cf).map_err(|e| self.judge(&e));
            let _ = db.compact_range_cf(&cf, None::<&[u8]>, None::<&[u8]>).map_err(|e| self.judge(&e));
            // Such a value may have expired.
            if put.is_ok() && !self.with_ttl {
                let _ = db.get_cf(&cf, b"new").map(|got| assert_eq!(got.as_deref(), Some(&b"new"[..])));
            }
        }
        let _ = db.wait_for_background_work().map_err(|e| self.judge(&e));
        self.read(db);
    }

    /// Reads what describes a database: its properties, files, sizes and updates.
    fn ask(&self, db: &Db) {
        for name in db.cf_names() {
            let cf = db.cf_handle(&name).expect("a name of its own");
            for property in properties::ALL {
                let _ = db.property_value_cf(&cf, property).map_err(|e| self.judge(&e));
            }
            let _ = db.get_column_family_metadata_cf(&cf);
            let _ = db.get_approximate_sizes_cf(&cf, &[Range::new(b"", b"key0100"), Range::new(b"key0100", b"z")]);
        }
        let _ = db.live_files().map_err(|e| self.judge(&e));
        match db.get_updates_since(0) {
            Ok(updates) => {
                // If updates start late or are missing, the sequence number is reported.
                let _ = updates.map_while(Result::ok).map(|(_, batch)| batch.len()).sum::<usize>();
            }
            Err(e) => self.judge(&e),
        }
    }

    fn repair(&self, options: &Options, fs: &Arc<MemFileSystem>) {
        match Db::repair(options, DIR) {
            Err(e) => self.judge(&e),
            Ok(_) => {
                let names = Db::list_cf(options, DIR).expect("a repaired database has a MANIFEST");
                match Db::open_cf_for_read_only(options, DIR, names, false) {
                    Ok(db) => read_everything(&db, DIR),
                    Err(e) => self.judge(&e),
                }
            }
        }
        assert!(fs.list_dir(std::path::Path::new(DIR)).is_ok());
    }
}

/// Fails unless an error is useful for a user: it names a place, and no panic caused it.
pub fn judge(e: &Error, place: &str) {
    let text = e.to_string();
    assert!(!text.contains("panic"), "a panic came out as an error: {text}");
    assert!(text.contains(place), "an error without a place ({place}): {text}");
}

/// Reads everything in every way; errors must name a place.
pub fn read_everything(db: &Db, place: &str) {
    for name in db.cf_names() {
        let cf = db.cf_handle(&name).expect("a name of its own");
        let mut keys: Vec<Vec<u8>> = vec![b"key0001".to_vec(), b"key0150".to_vec(), Vec::new(), vec![0xff; 20]];
        let mut options = ReadOptions::default();
        options.set_total_order_seek(true);
        let mut it = db.raw_iterator_cf_opt(&cf, options);
        it.seek_to_first();
        let mut forward = 0u64;
        while it.valid() {
            forward += 1;
            assert!(forward < 1 << 22, "a scan does not end");
            if forward.is_multiple_of(16) && keys.len() < 24 {
                keys.extend(it.key().map(<[u8]>::to_vec));
            }
            it.next();
        }
        let _ = it.status().map_err(|e| judge(&e, place));
        it.seek_to_last();
        let mut backward = 0u64;
        while it.valid() {
            backward += 1;
            assert!(backward < 1 << 22, "a scan backward does not end");
            it.prev();
        }
        let _ = it.status().map_err(|e| judge(&e, place));
        for key in &keys {
            it.seek(key);
            let _ = it.status().map_err(|e| judge(&e, place));
            it.seek_for_prev(key);
            let _ = it.status().map_err(|e| judge(&e, place));
            let _ = db.get_cf(&cf, key).map_err(|e| judge(&e, place));
        }
        for result in db.multi_get_cf(keys.iter().map(|k| (&cf, k))) {
            let _ = result.map_err(|e| judge(&e, place));
        }
    }
}

/// The function of a fuzz target for [`Case`].
pub fn mutated(data: &[u8]) {
    Case::new(data).run();
}
