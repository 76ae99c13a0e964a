//! The file `WAL_OWNER`: what a database notes about a WAL directory outside of its own directory.
//!
//! # Lines
//!
//! 1. A random token. It is the same in the database's directory and in the WAL directory.
//! 2. The other directory.
//!
//! The database's own file may have two more, in this order:
//!
//! 3. *manifest* *log* [*kept*] ([`Began`]): with a fast path, the MANIFEST and log that the last opening for writing
//!    began, and the newest log that it kept.
//! 4. `open` *manifests* *options* ([`Stand`]): the last opening for writing had its WALs in the other directory, and
//!    they may be needed. Or `flushed` *manifests* *options*: it was closed, and none of them is needed.
//! 5. `without` *manifest* [*directory*] ([`GivenUp`]): an opening gives up the WALs in the other directory.
//!
//! The last line of both files is `sum` and the CRC32C of all before it, in eight hexadecimal digits. An opening writes
//! back what it read: without the sum, a token that was misread once would stay wrong for ever. Files of older versions
//! have no such line.
//!
//! # When the fourth line counts
//!
//! It counts while CURRENT names one of its MANIFESTs and the newest OPTIONS file is one of its OPTIONS files. Every
//! opening for writing, RocksDB's too, writes a new OPTIONS file, and begins a MANIFEST (RocksDB with
//! `reuse_manifest_on_open` does not). So a line that counts was written by the last opening.
//!
//! An open database replaces both files from time to time. Before a new one is named, its number is noted next to the
//! old one, durably: whenever the power fails, the line counts. The word becomes `open` before the opening returns, and
//! `flushed` when the close has ended.
//!
//! # What is given up stays so
//!
//! A directory that was given up may come back. The database has not continued from its WALs, and they may have the
//! same numbers as newer ones. So from then on the database has another token ([`Note::next_token`]), and the directory
//! no longer belongs to it. Giving up is atomic: the fifth line, which is durable by then, takes effect as soon as
//! CURRENT names the MANIFEST of the opening that gives up.

use std::path::{Path, PathBuf};

use rockmill_format::checksum::crc32c;
use rockmill_format::filename::{self, FileType};
use rockmill_io::FileSystem;

use crate::error::{Error, Result};
use crate::options::load::latest_options_file;
use crate::sync::Mutex;
use crate::version::current_manifest;

/// In the database's directory and in its WAL directory.
pub(crate) const WAL_OWNER: &str = "WAL_OWNER";

/// Longer than any token, two paths, and two lists of numbers.
const NOTE_BYTES_MAX: u64 = 32 << 10;

/// What the fourth line begins with.
const OPEN: &str = "open";
const FLUSHED: &str = "flushed";
/// What the fifth line begins with.
const WITHOUT: &str = "without";
/// What the last line begins with.
const SUM: &str = "sum ";
/// Digits of the sum.
const SUM_DIGITS: usize = 8;
/// Appended to a token once for each time that WALs were given up.
const LATER: char = '+';
/// In place of a list of numbers that is empty.
const NONE: &str = "-";
/// The most numbers of each kind in the fourth line. There are more than two only after files could not be written. Two
/// such lists are shorter than [`NOTE_BYTES_MAX`].
const NUMBERS_MAX: usize = 200;
/// How often to read a note that another process keeps changing.
const READS_MAX: usize = 100;

/// What a `WAL_OWNER` file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub token: String,
    /// In the database's directory: the WAL directory. In the WAL directory: the database's directory.
    pub other: PathBuf,
    /// The third line.
    pub began: Option<Began>,
    /// The fourth line.
    pub stand: Option<Stand>,
    /// The fifth line. A line that was read is dropped if it is not in force, and also once it has taken effect.
    given_up: Option<GivenUp>,
}

/// An opening that continues without the WALs in the other directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GivenUp {
    /// The number of its MANIFEST.
    manifest: u64,
    /// Where its own WALs are. Empty: in the database's directory.
    other: PathBuf,
}

/// What an opening with a fast path began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Began {
    /// Number of its MANIFEST.
    pub manifest: u64,
    /// Number of its first log.
    pub log: u64,
    /// The newest log with records that it kept. No other log names it until the first write.
    pub kept: Option<u64>,
}

/// The state in which the last opening left a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stand {
    /// MANIFESTs that CURRENT may name.
    manifests: Vec<u64>,
    /// OPTIONS files that may be the newest one. Empty: there was none.
    options: Vec<u64>,
    /// Nothing in the WALs is needed.
    flushed: bool,
}

/// What the fourth line says about the WALs in the other directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// The last opening had its WALs there, and they may be needed.
    Open,
    /// The last opening had its WALs there. It was closed, and none of them is needed.
    Flushed,
    /// Another process has opened the database since.
    Changed,
    /// There is no such line: an older version wrote the note, or the opening that wrote it was interrupted.
    Unknown,
}

impl Began {
    fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ').map(str::parse);
        let (manifest, log) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(Self { manifest, log, kept: numbers.next().transpose().ok()? })
    }

    fn line(&self) -> String {
        let kept = self.kept.map(|kept| format!(" {kept}")).unwrap_or_default();
        format!("{} {}{kept}\n", self.manifest, self.log)
    }
}

impl GivenUp {
    fn parse(line: &str) -> Option<Self> {
        let rest = line.strip_prefix(WITHOUT)?.strip_prefix(' ')?;
        let (manifest, other) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(Self { manifest: manifest.parse().ok()?, other: PathBuf::from(other) })
    }

    fn line(&self) -> String {
        format!("{WITHOUT} {} {}", self.manifest, self.other.display()).trim_end().to_owned() + "\n"
    }
}

impl Stand {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let flushed = match words.next()? {
            OPEN => false,
            FLUSHED => true,
            _ => return None,
        };
        let mut list = || -> Option<Vec<u64>> {
            match words.next()? {
                NONE => Some(Vec::new()),
                numbers => numbers.split(',').map(|n| n.parse().ok()).collect(),
            }
        };
        Some(Self { manifests: list()?, options: list()?, flushed })
    }

    fn line(&self) -> String {
        let list = |numbers: &[u64]| match numbers {
            [] => NONE.to_owned(),
            _ => numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(","),
        };
        let word = if self.flushed { FLUSHED } else { OPEN };
        format!("{word} {} {}\n", list(&self.manifests), list(&self.options))
    }

    /// True if the files of the database in `path` match this. A file that is missing or cannot be read does not count
    /// as a mismatch, since a repair may follow.
    fn counts(&self, fs: &dyn FileSystem, path: &Path) -> bool {
        let newest = latest_options_file(fs, path).ok().flatten();
        current_manifest(fs, path).map_or(true, |number| self.manifests.contains(&number))
            && newest.is_none_or(|(number, _)| self.options.contains(&number))
    }
}

/// The lines of a file without their sum; `Err` if the sum is wrong. Any single wrong byte is detected, or is in the
/// last line only, which then is ignored.
fn without_sum(bytes: &[u8]) -> std::result::Result<&[u8], ()> {
    let Some((lines, last)) = bytes.trim_ascii_end().split_last_chunk::<{ SUM.len() + SUM_DIGITS }>() else {
        return Ok(bytes);
    };
    let sum = last.strip_prefix(SUM.as_bytes()).and_then(|digits| std::str::from_utf8(digits).ok());
    match sum.and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
        Some(sum) if sum == crc32c(lines) => Ok(lines),
        Some(_) => Err(()),
        None => Ok(bytes),
    }
}

/// Adds a number. The oldest one stays: a failed write may have left it in force.
fn add(numbers: &mut Vec<u64>, number: u64) {
    numbers.push(number);
    if numbers.len() > NUMBERS_MAX {
        numbers.remove(1);
    }
}

impl Note {
    /// The note of a directory about which nothing else is known.
    pub fn new(token: String, other: PathBuf) -> Self {
        Self { token, other, began: None, stand: None, given_up: None }
    }

    pub fn read(fs: &dyn FileSystem, dir: &Path) -> Result<Option<Self>> {
        let note = Self::read_lines(fs, dir)?;
        Ok(note.map(|note| {
            let current = note.given_up.as_ref().and_then(|_| current_manifest(fs, dir).ok());
            note.when_current(current)
        }))
    }

    /// For the database in `path`, which this process has locked: applies and removes a fifth line that is in force,
    /// and removes one that is not.
    pub fn settle(fs: &dyn FileSystem, path: &Path) -> Result<()> {
        match Self::read_lines(fs, path)? {
            Some(lines) if lines.given_up.is_some() => {
                lines.when_current(current_manifest(fs, path).ok()).write(fs, path)
            }
            _ => Ok(()),
        }
    }

    /// What the note says if CURRENT names this MANIFEST.
    fn when_current(mut self, current: Option<u64>) -> Self {
        match self.given_up.take() {
            Some(GivenUp { manifest, other }) if current == Some(manifest) => {
                let options = self.stand.take().map_or_else(Vec::new, |stand| stand.options);
                let stand = Stand { manifests: vec![manifest], options, flushed: false };
                let stand = (!other.as_os_str().is_empty()).then_some(stand);
                Self { token: self.next_token(), other, began: None, stand, given_up: None }
            }
            _ => self,
        }
    }

    /// The token after WALs are given up. It is known in advance, so that it can be written first into the directory
    /// that the database continues with.
    pub fn next_token(&self) -> String {
        format!("{}{LATER}", self.token)
    }

    /// True if the database in `path` has given up its WALs in the directory that has the note `theirs`.
    pub fn gave_up(&self, fs: &dyn FileSystem, path: &Path, theirs: &Note) -> bool {
        let later = self.token.strip_prefix(&theirs.token);
        later.is_some_and(|later| !later.is_empty() && later.chars().all(|c| c == LATER))
            && fs.same_file(&theirs.other, path).unwrap_or(theirs.other == path)
    }

    fn read_lines(fs: &dyn FileSystem, dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(WAL_OWNER);
        if fs.file_size(&path).is_ok_and(|bytes| bytes > NOTE_BYTES_MAX) {
            return Err(Error::corruption(format!("{}: more than {NOTE_BYTES_MAX} bytes", path.display())));
        }
        match fs.read_small(&path, NOTE_BYTES_MAX) {
            Ok(bytes) => {
                let bytes = without_sum(&bytes).map_err(|()| {
                    Error::corruption(format!(
                        "{}: its lines are not those that were written: the sum in the last one is another. If \
                         somebody changed it, the last line is to be removed",
                        path.display()
                    ))
                })?;
                let text = String::from_utf8_lossy(bytes).into_owned();
                let mut lines = text.lines().map(str::trim);
                let token = lines.next().unwrap_or_default().to_owned();
                // One that a crash cut short says nothing.
                let other = PathBuf::from(lines.next().unwrap_or_default());
                let (mut began, mut stand, mut given_up) = (None, None, None);
                for line in lines {
                    began = began.or_else(|| Began::parse(line));
                    stand = stand.or_else(|| Stand::parse(line));
                    given_up = given_up.or_else(|| GivenUp::parse(line));
                }
                Ok((!token.is_empty()).then_some(Self { token, other, began, stand, given_up }))
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io(format_args!("cannot read {}", path.display()), &e)),
        }
    }

    pub fn write(&self, fs: &dyn FileSystem, dir: &Path) -> Result<()> {
        self.write_or_tell(fs, dir).map_err(|(e, _)| e)
    }

    /// The same. An error comes with a flag: whether the file may have been replaced nevertheless.
    fn write_or_tell(&self, fs: &dyn FileSystem, dir: &Path) -> std::result::Result<(), (Error, bool)> {
        let path = dir.join(WAL_OWNER);
        let temp = dir.join(format!("{WAL_OWNER}.dbtmp"));
        let mut text = format!("{}\n{}\n", self.token, self.other.display());
        text.extend(self.began.as_ref().map(Began::line));
        text.extend(self.stand.as_ref().map(Stand::line));
        text.extend(self.given_up.as_ref().map(GivenUp::line));
        text += &format!("{SUM}{:0SUM_DIGITS$x}\n", crc32c(text.as_bytes()));
        let failed = |e| Error::io(format_args!("cannot write {}", path.display()), &e);
        fs.write_all(&temp, text.as_bytes()).map_err(|e| (failed(e), false))?;
        fs.rename(&temp, &path).and_then(|()| fs.sync_dir(dir)).map_err(|e| (failed(e), true))
    }

    /// True if `dir` has the same token.
    pub fn is_of(&self, fs: &dyn FileSystem, dir: &Path) -> bool {
        Note::read(fs, dir).ok().flatten().is_some_and(|theirs| theirs.token == self.token)
    }

    /// For a WAL directory: true if the database that it names still exists and is not the one in `path`. As both have
    /// the same token, the one in `path` then is a copy, made file by file.
    pub fn is_elsewhere(&self, fs: &dyn FileSystem, path: &Path) -> bool {
        !fs.same_file(&self.other, path).unwrap_or(self.other == path) && self.is_of(fs, &self.other)
    }

    /// The state in which the last opening left the database in `path`.
    pub fn left(&self, fs: &dyn FileSystem, path: &Path) -> Left {
        match &self.stand {
            None => Left::Unknown,
            Some(stand) if !stand.counts(fs, path) => Left::Changed,
            Some(stand) if stand.flushed => Left::Flushed,
            Some(_) => Left::Open,
        }
    }

    /// The note of the database in `path`, and the state in which its last opening left it. Another process may have it
    /// open and change first the note, then the files that the note is compared with.
    pub fn read_left(fs: &dyn FileSystem, path: &Path) -> Result<Option<(Self, Left)>> {
        let Some(mut own) = Self::read(fs, path)? else { return Ok(None) };
        for _ in 0..READS_MAX {
            let left = own.left(fs, path);
            if left != Left::Changed {
                return Ok(Some((own, left)));
            }
            match Self::read(fs, path)? {
                Some(again) if again != own => own = again,
                _ => break,
            }
        }
        Ok(Some((own, Left::Changed)))
    }

    /// What the last opening began, if it noted that, and logs may be needed, where it `left` the database like this.
    pub fn last_began(&self, left: Left) -> Option<Began> {
        self.began.filter(|_| matches!(left, Left::Open | Left::Unknown))
    }

    /// For the database in `path`, which has no CURRENT yet, and the MANIFEST that CURRENT will name: notes that WALs
    /// in the other directory may be needed.
    pub fn set_open(&mut self, fs: &dyn FileSystem, path: &Path) -> Result<()> {
        let names = fs.list_dir(path).map_err(|e| Error::io(format_args!("cannot list {}", path.display()), &e))?;
        let manifests = names.iter().filter_map(|name| match filename::parse(name) {
            Some(FileType::Manifest(number)) => Some(number),
            _ => None,
        });
        let options = latest_options_file(fs, path)?.into_iter().map(|(number, _)| number).collect();
        self.stand = Some(Stand { manifests: manifests.collect(), options, flushed: false });
        Ok(())
    }
}

/// The note of a database that is open for writing and has its WALs elsewhere. For any other database it is empty, and
/// nothing is written.
#[derive(Debug, Default)]
pub(crate) struct OwnNote(Mutex<Option<Note>>);

impl OwnNote {
    /// Takes the note of the database in `path`. Nothing that it says of the last opening is given up yet.
    pub fn take(&self, fs: &dyn FileSystem, path: &Path) -> Result<()> {
        let Some(mut own) = Note::read(fs, path)? else { return Ok(()) };
        // The next MANIFEST is ours, whoever wrote the present OPTIONS file. The one that CURRENT names counts only if
        // the note counted.
        let options = latest_options_file(fs, path)?.into_iter().map(|(number, _)| number).collect();
        own.stand = match own.left(fs, path) {
            Left::Open | Left::Flushed => own.stand,
            Left::Changed | Left::Unknown => Some(Stand { manifests: Vec::new(), options, flushed: false }),
        };
        *self.0.lock() = Some(own);
        Ok(())
    }

    /// The same, if its fourth line counts: after a repair that does not read the WALs, they are needed exactly if they
    /// were before.
    pub fn take_if_it_counts(&self, fs: &dyn FileSystem, path: &Path) -> Result<()> {
        let counts = |own: &Note| matches!(own.left(fs, path), Left::Open | Left::Flushed);
        *self.0.lock() = Note::read(fs, path)?.filter(counts);
        Ok(())
    }

    /// As soon as CURRENT names MANIFEST `number`, the WALs are in `other` (empty: in the database's directory), and
    /// the earlier ones are given up. This is written by the next call, which is [`Self::manifest_begins`].
    pub fn give_up(&self, number: u64, other: PathBuf) {
        if let Some(own) = self.0.lock().as_mut() {
            own.given_up = Some(GivenUp { manifest: number, other });
        }
    }

    /// CURRENT names that MANIFEST, durably. Does nothing if nothing is given up.
    pub fn given_up(&self, fs: &dyn FileSystem, path: &Path) -> Result<()> {
        let mut note = self.0.lock();
        let Some(own) = note.take_if(|own| own.given_up.is_some()) else { return Ok(()) };
        let current = own.given_up.as_ref().map(|given_up| given_up.manifest);
        let own = own.when_current(current);
        own.write(fs, path)?;
        // A database with its WALs in its own directory notes nothing.
        *note = Some(own).filter(|own| !own.other.as_os_str().is_empty());
        Ok(())
    }

    /// CURRENT is about to name MANIFEST `number`. Whether WALs are needed does not change.
    pub fn manifest_begins(&self, fs: &dyn FileSystem, path: &Path, number: u64) -> Result<()> {
        self.change(fs, path, |stand| add(&mut stand.manifests, number))
    }

    /// CURRENT names MANIFEST `number`, durably. The next call that writes the file includes this.
    pub fn manifest_begun(&self, number: u64) {
        if let Some(stand) = self.0.lock().as_mut().and_then(|own| own.stand.as_mut()) {
            stand.manifests = vec![number];
        }
    }

    /// The logs of an opening with a fast path; `None` without one. They are written together with the note of the
    /// opening's OPTIONS file.
    pub fn logs_begun(&self, began: Option<Began>) {
        if let Some(own) = self.0.lock().as_mut() {
            own.began = began;
        }
    }

    /// OPTIONS file `number` is about to be created. From now on WALs may get records.
    pub fn options_begin(&self, fs: &dyn FileSystem, path: &Path, number: u64) -> Result<()> {
        self.change(fs, path, |stand| {
            add(&mut stand.options, number);
            stand.flushed = false;
        })
    }

    /// That OPTIONS file is there, durably.
    pub fn options_begun(&self, number: u64) {
        if let Some(stand) = self.0.lock().as_mut().and_then(|own| own.stand.as_mut()) {
            stand.options = vec![number];
        }
    }

    /// The database was closed, and nothing in its WALs is needed. Only files that exist count: another program may
    /// reuse the number of a file that could not be written.
    pub fn flushed(&self, fs: &dyn FileSystem, path: &Path) -> Result<()> {
        if self.0.lock().is_none() {
            return Ok(());
        }
        let manifest = current_manifest(fs, path)?;
        let options = latest_options_file(fs, path)?.into_iter().map(|(number, _)| number).collect();
        self.change(fs, path, |stand| *stand = Stand { manifests: vec![manifest], options, flushed: true })
    }

    /// Changes the last line. If that fails, the line stays as it was, unless the file may have been changed.
    fn change(&self, fs: &dyn FileSystem, path: &Path, f: impl FnOnce(&mut Stand)) -> Result<()> {
        let mut note = self.0.lock();
        let Some(own) = note.as_mut() else { return Ok(()) };
        let mut changed = own.clone();
        let Some(stand) = changed.stand.as_mut() else { return Ok(()) };
        f(stand);
        let (done, is_there) = match changed.write_or_tell(fs, path) {
            Ok(()) => (Ok(()), true),
            Err((e, may_be)) => (Err(e), may_be),
        };
        if is_there {
            *own = changed;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use rockmill_io::{MemFileSystem, OpKind};

    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        for flushed in [false, true] {
            for (manifests, options) in [(vec![5], vec![]), (vec![5, 17], vec![7]), (vec![1, 2, 3, 4], vec![8, 9])] {
                let stand = Stand { manifests, options, flushed };
                let line = stand.line();
                assert_eq!(Stand::parse(line.trim()), Some(stand), "{line}");
                assert_eq!(Began::parse(line.trim()), None, "{line}");
            }
        }
        for kept in [None, Some(9)] {
            let began = Began { manifest: 5, log: 12, kept };
            assert_eq!(Began::parse(began.line().trim()), Some(began));
            assert_eq!(Stand::parse(began.line().trim()), None);
        }
        for line in ["", "open", "open 5", "open 5,x 7", "closed 5 7", "flushed , -"] {
            assert_eq!(Stand::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_byte_that_is_read_wrongly_changes_nothing_or_is_an_error() {
        let (fs, dir) = (MemFileSystem::new(), Path::new("/db"));
        fs.create_dir(dir, true).expect("a directory");
        let mut note = Note::new("0123456789abcdef".to_owned(), PathBuf::from("/fast"));
        note.began = Some(Began { manifest: 5, log: 12, kept: Some(9) });
        note.stand = Some(Stand { manifests: vec![5, 17], options: vec![7], flushed: false });
        note.write(&fs, dir).expect("a write");
        let file = dir.join(WAL_OWNER);
        let whole = fs.read_to_vec(&file).expect("a note");
        assert_eq!(Note::read(&fs, dir).expect("a read"), Some(note.clone()));
        let mut refused = 0;
        for (at, bit) in (0..whole.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            fs.write_all(&file, &bytes).expect("a write");
            match Note::read(&fs, dir) {
                Ok(read) => assert_eq!(read, Some(note.clone()), "bit {bit} of byte {at}"),
                Err(e) => {
                    assert!(e.message().contains("/db/WAL_OWNER"), "{e}");
                    refused += 1;
                }
            }
        }
        assert!(refused >= 8 * (whole.len() - SUM.len() - SUM_DIGITS - 1), "{refused}");
        // As older versions wrote it.
        let older = whole.len() - SUM.len() - SUM_DIGITS - 1;
        fs.write_all(&file, &whole[..older]).expect("a write");
        assert_eq!(Note::read(&fs, dir).expect("a read"), Some(note));
    }

    #[test]
    fn the_oldest_number_and_the_newest_stay() {
        let mut numbers = vec![1];
        (2..1000).for_each(|n| add(&mut numbers, n));
        assert_eq!((numbers.len(), numbers[0], numbers[1]), (NUMBERS_MAX, 1, 1001 - NUMBERS_MAX as u64));
        // They fit.
        let longest = vec![u64::MAX; NUMBERS_MAX];
        let line = Stand { manifests: longest.clone(), options: longest, flushed: true }.line();
        assert!(line.len() as u64 + 3 * 4096 < NOTE_BYTES_MAX);
    }

    #[test]
    fn what_is_given_up_counts_with_its_manifest() {
        let stand = Stand { manifests: vec![5], options: vec![7], flushed: false };
        let mut note = Note::new("token".to_owned(), PathBuf::from("/fast"));
        note.stand = Some(stand.clone());
        for (other, options) in [("", None), ("/a directory", Some(vec![7]))] {
            let given_up = GivenUp { manifest: 9, other: PathBuf::from(other) };
            assert_eq!(GivenUp::parse(given_up.line().trim()), Some(given_up.clone()));
            assert_eq!(Stand::parse(given_up.line().trim()), None);
            assert_eq!(Began::parse(given_up.line().trim()), None);
            let with = Note { given_up: Some(given_up), ..note.clone() };
            for current in [None, Some(5), Some(10)] {
                assert_eq!(with.clone().when_current(current), note, "{current:?}");
            }
            let after = with.when_current(Some(9));
            assert_eq!((after.token.as_str(), after.other.as_path()), ("token+", Path::new(other)));
            assert_eq!(after.stand, options.map(|options| Stand { manifests: vec![9], options, flushed: false }));
        }
    }

    /// A database whose CURRENT names MANIFEST 5, with OPTIONS file 7 and a note that says so.
    fn database() -> (MemFileSystem, OwnNote) {
        let (fs, path) = (MemFileSystem::new(), Path::new("/db"));
        fs.create_dir(path, true).expect("a directory");
        fs.write_all(&path.join(filename::options(7)), b"").expect("a write");
        name_manifest(&fs, 5);
        let mut note = Note::new("token".to_owned(), PathBuf::from("/fast"));
        note.stand = Some(Stand { manifests: vec![5], options: vec![7], flushed: false });
        note.write(&fs, path).expect("a write");
        let own = OwnNote::default();
        own.take(&fs, path).expect("a note");
        (fs, own)
    }

    fn name_manifest(fs: &MemFileSystem, number: u64) {
        let (temp, current) = (Path::new("/db/000001.dbtmp"), Path::new("/db/CURRENT"));
        fs.write_all(temp, format!("{}\n", filename::manifest(number)).as_bytes()).expect("a write");
        fs.rename(temp, current).expect("a rename");
    }

    /// The last line before the sum.
    fn last_line(fs: &MemFileSystem) -> String {
        let bytes = fs.read_to_vec(Path::new("/db/WAL_OWNER")).expect("a note");
        let lines = without_sum(&bytes).expect("the right sum").to_vec();
        String::from_utf8(lines).expect("text").lines().last().expect("a line").to_owned()
    }

    #[test]
    fn a_change_counts_where_it_is_or_may_be_in_the_file() {
        let (fs, own) = database();
        let path = Path::new("/db");
        let fail = |at: OpKind| {
            fs.set_fault(Box::new(move |op| (op.kind == at).then(|| std::io::Error::from_raw_os_error(5))));
        };
        fail(OpKind::Create);
        own.manifest_begins(&fs, path, 8).expect_err("not written");
        fail(OpKind::SyncDir);
        own.manifest_begins(&fs, path, 9).expect_err("not durable");
        fs.clear_fault();
        own.options_begin(&fs, path, 10).expect("a note");
        assert_eq!(last_line(&fs), "open 5,9 7,10");
        // Neither was written.
        own.flushed(&fs, path).expect("a note");
        assert_eq!(last_line(&fs), "flushed 5 7");
    }

    #[test]
    fn a_note_counts_while_its_database_begins_manifests() {
        let (fs, own) = database();
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reads = 0;
                while !is_done.load(std::sync::atomic::Ordering::Acquire) {
                    let (_, left) = Note::read_left(&fs, Path::new("/db")).expect("a read").expect("a note");
                    assert_eq!(left, Left::Open, "read {reads}");
                    reads += 1;
                }
            });
            for number in 8..20_000 {
                own.manifest_begins(&fs, Path::new("/db"), number).expect("a note");
                name_manifest(&fs, number);
                own.manifest_begun(number);
            }
            is_done.store(true, std::sync::atomic::Ordering::Release);
            reader.join().expect("the reader");
        });
    }
}
