//! The text form of histories: one step per line, words separated by spaces, `#` before a remark.
//!
//! ```text
//! create 1 merging
//! write sync put:0:17=5/40 merge:1:3=7/2 delete:0:3 range:0:3..20    # value 5/40: seed 5, 40 bytes
//! together by sync put:0:17=5/40 by no-wal no-slowdown delete:0:3
//! walk 0 @2 lower=3 upper=900 seek=5 next=3 prev
//! compact 0 from=3 bottom=force
//! reopen next
//! ```
//!
//! `@2` is the snapshot 2.

use std::fmt;
use std::str::FromStr;

use super::{Bottom, Bounds, External, History, How, Key, Move, Reopen, Step, Update, View, Writer};
use crate::kinds::{KEYS, Kind, Slot, Value};

/// Why a text is no history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The line, counted from 1; 0 if there is only one.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 { write!(f, "line {}: {}", self.line, self.what) } else { f.write_str(&self.what) }
    }
}

impl std::error::Error for ParseError {}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(slot, key, v) => write!(f, "put:{slot}:{key}={}/{}", v.seed, v.len),
            Self::Merge(slot, key, v) => write!(f, "merge:{slot}:{key}={}/{}", v.seed, v.len),
            Self::Delete(slot, key) => write!(f, "delete:{slot}:{key}"),
            Self::SingleDelete(slot, key) => write!(f, "single:{slot}:{key}"),
            Self::DeleteRange(slot, from, to) => write!(f, "range:{slot}:{from}..{to}"),
            Self::LogData(seed) => write!(f, "log:{seed}"),
        }
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("first"),
            Self::Last => f.write_str("last"),
            Self::Seek(key) => write!(f, "seek={key}"),
            Self::SeekForPrev(key) => write!(f, "seek-for-prev={key}"),
            Self::Next(n) => write!(f, "next={n}"),
            Self::Prev(n) => write!(f, "prev={n}"),
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot.map_or(Ok(()), |id| write!(f, " @{id}"))
    }
}

/// Words, each after a space.
struct Words<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Words<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|word| write!(f, " {word}"))
    }
}

/// Tables made outside, each after a space.
struct Files<'a>(&'a [External]);

impl fmt::Display for Files<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in self.0 {
            write!(f, " file:{}", file.slot)?;
            file.range.map_or(Ok(()), |(from, to)| write!(f, " range:{}:{from}..{to}", file.slot))?;
            write!(f, "{}", Words(&file.updates))?;
        }
        Ok(())
    }
}

/// A word that is there or not.
fn flag(there: bool, word: &'static str) -> &'static str {
    if there { word } else { "" }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = self.lower {
            write!(f, " lower={key}")?;
        }
        if let Some(key) = self.upper {
            write!(f, " upper={key}")?;
        }
        if let Some((key, len)) = self.prefix {
            write!(f, " prefix={key}/{len}")?;
        }
        f.write_str(flag(self.auto_prefix, " auto"))?;
        if self.readahead > 0 {
            write!(f, " readahead={}", self.readahead)?;
        }
        Ok(())
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(flag(self.sync, " sync"))?;
        f.write_str(flag(self.disable_wal, " no-wal"))?;
        f.write_str(flag(self.no_slowdown, " no-slowdown"))?;
        f.write_str(flag(self.low_pri, " low-pri"))?;
        f.write_str(flag(self.alone, " alone"))
    }
}

impl Bottom {
    const ALL: [(&str, Self); 4] = [
        ("filtered", Self::Filtered),
        ("skip", Self::Skip),
        ("force", Self::Force),
        ("force-optimized", Self::ForceOptimized),
    ];
}

impl Reopen {
    const ALL: [(&str, Self); 6] = [
        ("same", Self::Same),
        ("next", Self::Next),
        ("stored", Self::Stored),
        ("repaired", Self::Repaired),
        ("read-only", Self::ReadOnly),
        ("swapped", Self::Swapped),
    ];
}

fn name_in<T: PartialEq>(all: &[(&'static str, T)], value: &T) -> &'static str {
    all.iter().find(|(_, v)| v == value).map_or("", |(name, _)| name)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(how, updates) => write!(f, "write{how}{}", Words(updates)),
            Self::Together(writers) => {
                write!(f, "together")?;
                writers.iter().try_for_each(|writer| write!(f, " by{}{}", writer.how, Words(&writer.updates)))
            }
            Self::Get(slot, key, view) => write!(f, "get {slot} {key}{view}"),
            Self::MultiGet(view, keys) => {
                write!(f, "multi-get{view}")?;
                keys.iter().try_for_each(|(slot, key)| write!(f, " {slot}:{key}"))
            }
            Self::Walk(slot, view, bounds, moves) => write!(f, "walk {slot}{view}{bounds}{}", Words(moves)),
            Self::Prefix(slot, key) => write!(f, "prefix {slot} {key}"),
            Self::Check(view) => write!(f, "check{view}"),
            Self::Snapshot(id) => write!(f, "snapshot {id}"),
            Self::Release(id) => write!(f, "release {id}"),
            Self::Iterator(id, slot, bounds) => write!(f, "iterator {id} {slot}{bounds}"),
            Self::Move(id, moves) => write!(f, "move {id}{}", Words(moves)),
            Self::Close(id) => write!(f, "close {id}"),
            Self::Flush(slots, wait) => write!(f, "flush{}{}", Words(slots), flag(!wait, " no-wait")),
            Self::Compact(slot, from, to, bottom, exclusive) => {
                write!(f, "compact {slot}")?;
                from.map_or(Ok(()), |key| write!(f, " from={key}"))?;
                to.map_or(Ok(()), |key| write!(f, " to={key}"))?;
                if *bottom != Bottom::default() {
                    write!(f, " bottom={}", name_in(&Bottom::ALL, bottom))?;
                }
                f.write_str(flag(*exclusive, " exclusive"))
            }
            Self::Refit(slot) => write!(f, "refit {slot}"),
            Self::Wait => f.write_str("wait"),
            Self::SetOptions(slot, name, value) => write!(f, "set {slot} {name} {value}"),
            Self::SetDbOptions(name, value) => write!(f, "set-db {name} {value}"),
            Self::Ingest(moved, files) => {
                write!(f, "ingest{}{}", flag(*moved, " move"), Files(files))
            }
            Self::Behind(files) => write!(f, "behind{}", Files(files)),
            Self::SamePrefix(slot, view, bounds, moves) => {
                write!(f, "same-prefix {slot}{view}{bounds}{}", Words(moves))
            }
            Self::Wrong(n) => write!(f, "wrong {n}"),
            Self::Age => f.write_str("age"),
            Self::Copy(from, to, moved) => write!(f, "copy {from} {to}{}", flag(*moved, " move")),
            Self::Checkpoint(flush) => write!(f, "checkpoint{}", flag(*flush, " flush")),
            Self::Backup(flush) => write!(f, "backup{}", flag(*flush, " flush")),
            Self::Secondary => f.write_str("secondary"),
            Self::Create(slot, kind) => write!(f, "create {slot} {kind}"),
            Self::Drop(slot) => write!(f, "drop {slot}"),
            Self::FlushWal(sync) => write!(f, "flush-wal{}", flag(*sync, " sync")),
            Self::Mark => f.write_str("mark"),
            Self::Updates => f.write_str("updates"),
            Self::DeleteFiles(slot, from, to) => write!(f, "delete-files {slot} {from}..{to}"),
            Self::KeepFiles(on) => write!(f, "keep-files{}", flag(*on, " on")),
            Self::Inspect(slot) => write!(f, "inspect {slot}"),
            Self::Reopen(how) => write!(f, "reopen {}", name_in(&Reopen::ALL, how)),
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

type Parsed<T> = Result<T, String>;

/// The remaining words of a line.
struct Reader<'a> {
    words: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

fn number<T: FromStr>(word: &str) -> Parsed<T> {
    word.parse().map_err(|_| format!("{word:?} is no number that fits here"))
}

fn key(word: &str) -> Parsed<Key> {
    let key = number(word)?;
    if key < KEYS { Ok(key) } else { Err(format!("there is no key {key}: they go up to {}", KEYS - 1)) }
}

fn range(word: &str) -> Parsed<(Key, Key)> {
    let (from, to) = word.split_once("..").ok_or_else(|| format!("{word:?} is not FROM..TO"))?;
    Ok((key(from)?, key(to)?))
}

fn named<T: Copy>(all: &[(&'static str, T)], word: &str) -> Parsed<T> {
    all.iter().find(|(name, _)| *name == word).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        format!("{word:?} is none of {}", names.join(", "))
    })
}

impl<'a> Reader<'a> {
    fn word(&mut self) -> Parsed<&'a str> {
        self.words.next().ok_or_else(|| "a word is missing at the end".to_owned())
    }

    fn number<T: FromStr>(&mut self) -> Parsed<T> {
        number(self.word()?)
    }

    fn key(&mut self) -> Parsed<Key> {
        key(self.word()?)
    }

    fn flag(&mut self, word: &str) -> bool {
        self.words.next_if(|w| *w == word).is_some()
    }

    fn how(&mut self) -> How {
        How {
            sync: self.flag("sync"),
            disable_wal: self.flag("no-wal"),
            no_slowdown: self.flag("no-slowdown"),
            low_pri: self.flag("low-pri"),
            alone: self.flag("alone"),
        }
    }

    /// What follows `name=`, if that is next.
    fn named(&mut self, name: &str) -> Option<&'a str> {
        let rest = |w: &'a str| w.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
        let value = self.words.peek().and_then(|w| rest(w));
        if value.is_some() {
            self.words.next();
        }
        value
    }

    fn view(&mut self) -> Parsed<View> {
        let id = self.words.peek().and_then(|w| w.strip_prefix('@'));
        let snapshot = id.map(number).transpose()?;
        if snapshot.is_some() {
            self.words.next();
        }
        Ok(View { snapshot })
    }

    fn bounds(&mut self) -> Parsed<Bounds> {
        let mut bounds = Bounds {
            lower: self.named("lower").map(key).transpose()?,
            upper: self.named("upper").map(key).transpose()?,
            ..Bounds::default()
        };
        if let Some(word) = self.named("prefix") {
            let (of, len) = word.split_once('/').ok_or_else(|| format!("{word:?} is not KEY/LENGTH"))?;
            bounds.prefix = Some((key(of)?, number(len)?));
        }
        bounds.auto_prefix = self.flag("auto");
        bounds.readahead = self.named("readahead").map_or(Ok(0), number)?;
        Ok(bounds)
    }

    fn rest<T>(&mut self, each: impl Fn(&'a str) -> Parsed<T>) -> Parsed<Vec<T>> {
        self.words.by_ref().map(each).collect()
    }

    fn files(&mut self) -> Parsed<Vec<External>> {
        let mut files: Vec<External> = Vec::new();
        for word in self.words.by_ref() {
            if let Some(slot) = word.strip_prefix("file:") {
                files.push(External { slot: number(slot)?, range: None, updates: Vec::new() });
                continue;
            }
            let file = files.last_mut().ok_or_else(|| format!("{word:?} comes before any file:"))?;
            match update(word)? {
                Update::DeleteRange(slot, from, to) if slot == file.slot && file.updates.is_empty() => {
                    file.range = Some((from, to));
                }
                u @ (Update::Put(slot, ..) | Update::Merge(slot, ..) | Update::Delete(slot, _))
                    if slot == file.slot =>
                {
                    file.updates.push(u);
                }
                _ => return Err(format!("{word:?} cannot stand there in a file of column family {}", file.slot)),
            }
        }
        Ok(files)
    }
}

fn slot_and_key(word: &str) -> Parsed<(Slot, Key)> {
    let (slot, k) = word.split_once(':').ok_or_else(|| format!("{word:?} is not FAMILY:KEY"))?;
    Ok((number(slot)?, key(k)?))
}

fn update(word: &str) -> Parsed<Update> {
    let (what, rest) = word.split_once(':').ok_or_else(|| format!("{word:?} is no update"))?;
    let with_value = || {
        let (at, value) = rest.split_once('=').ok_or_else(|| format!("{word:?} has no value"))?;
        let (seed, len) = value.split_once('/').ok_or_else(|| format!("{value:?} is not SEED/LENGTH"))?;
        let (slot, key) = slot_and_key(at)?;
        Ok::<_, String>((slot, key, Value { seed: number(seed)?, len: number(len)? }))
    };
    Ok(match what {
        "put" => with_value().map(|(slot, key, value)| Update::Put(slot, key, value))?,
        "merge" => with_value().map(|(slot, key, value)| Update::Merge(slot, key, value))?,
        "delete" => slot_and_key(rest).map(|(slot, key)| Update::Delete(slot, key))?,
        "single" => slot_and_key(rest).map(|(slot, key)| Update::SingleDelete(slot, key))?,
        "range" => {
            let (slot, keys) = rest.split_once(':').ok_or_else(|| format!("{word:?} is not range:FAMILY:FROM..TO"))?;
            let (from, to) = range(keys)?;
            Update::DeleteRange(number(slot)?, from, to)
        }
        "log" => Update::LogData(number(rest)?),
        _ => return Err(format!("there is no update {what:?}")),
    })
}

fn moved(word: &str) -> Parsed<Move> {
    let (what, value) = word.split_once('=').unwrap_or((word, "1"));
    Ok(match what {
        "first" => Move::First,
        "last" => Move::Last,
        "seek" => Move::Seek(key(value)?),
        "seek-for-prev" => Move::SeekForPrev(key(value)?),
        "next" => Move::Next(number(value)?),
        "prev" => Move::Prev(number(value)?),
        _ => return Err(format!("there is no move {word:?}")),
    })
}

fn step(r: &mut Reader<'_>) -> Parsed<Step> {
    let verb = r.word()?;
    Ok(match verb {
        "write" => Step::Write(r.how(), r.rest(update)?),
        "together" => {
            let mut writers: Vec<Writer> = Vec::new();
            while let Some(word) = r.words.next() {
                match writers.last_mut() {
                    _ if word == "by" => writers.push(Writer { how: r.how(), updates: Vec::new() }),
                    Some(writer) => writer.updates.push(update(word)?),
                    None => return Err(format!("{word:?} comes before any by")),
                }
            }
            Step::Together(writers)
        }
        "get" => Step::Get(r.number()?, r.key()?, r.view()?),
        "multi-get" => Step::MultiGet(r.view()?, r.rest(slot_and_key)?),
        "walk" => Step::Walk(r.number()?, r.view()?, r.bounds()?, r.rest(moved)?),
        "prefix" => Step::Prefix(r.number()?, r.key()?),
        "check" => Step::Check(r.view()?),
        "snapshot" => Step::Snapshot(r.number()?),
        "release" => Step::Release(r.number()?),
        "iterator" => Step::Iterator(r.number()?, r.number()?, r.bounds()?),
        "move" => Step::Move(r.number()?, r.rest(moved)?),
        "close" => Step::Close(r.number()?),
        "flush" => {
            let mut slots = Vec::new();
            while let Some(slot) = r.words.peek().and_then(|w| w.parse().ok()) {
                slots.push(slot);
                r.words.next();
            }
            Step::Flush(slots, !r.flag("no-wait"))
        }
        "compact" => {
            let slot = r.number()?;
            let (from, to) = (r.named("from").map(key).transpose()?, r.named("to").map(key).transpose()?);
            let bottom = r.named("bottom").map_or(Ok(Bottom::default()), |word| named(&Bottom::ALL, word))?;
            Step::Compact(slot, from, to, bottom, r.flag("exclusive"))
        }
        "refit" => Step::Refit(r.number()?),
        "wait" => Step::Wait,
        "set" => Step::SetOptions(r.number()?, r.word()?.to_owned(), r.word()?.to_owned()),
        "set-db" => Step::SetDbOptions(r.word()?.to_owned(), r.word()?.to_owned()),
        "ingest" => Step::Ingest(r.flag("move"), r.files()?),
        "copy" => Step::Copy(r.number()?, r.number()?, r.flag("move")),
        "checkpoint" => Step::Checkpoint(r.flag("flush")),
        "backup" => Step::Backup(r.flag("flush")),
        "secondary" => Step::Secondary,
        "create" => {
            let slot = r.number()?;
            let word = r.word()?;
            Step::Create(slot, Kind::named(word).ok_or_else(|| format!("there is no kind {word:?}"))?)
        }
        "drop" => Step::Drop(r.number()?),
        "flush-wal" => Step::FlushWal(r.flag("sync")),
        "mark" => Step::Mark,
        "updates" => Step::Updates,
        "delete-files" => {
            let slot = r.number()?;
            let (from, to) = range(r.word()?)?;
            Step::DeleteFiles(slot, from, to)
        }
        "keep-files" => Step::KeepFiles(r.flag("on")),
        "inspect" => Step::Inspect(r.number()?),
        "behind" => Step::Behind(r.files()?),
        "same-prefix" => Step::SamePrefix(r.number()?, r.view()?, r.bounds()?, r.rest(moved)?),
        "wrong" => Step::Wrong(r.number()?),
        "age" => Step::Age,
        "reopen" => Step::Reopen(named(&Reopen::ALL, r.word()?)?),
        _ => return Err(format!("there is no step {verb:?}")),
    })
}

impl FromStr for Step {
    type Err = ParseError;

    fn from_str(line: &str) -> Result<Self, ParseError> {
        let mut reader = Reader { words: line.split_whitespace().peekable() };
        let done = step(&mut reader).and_then(|step| match reader.words.next() {
            None => Ok(step),
            Some(word) => Err(format!("{word:?} is one word too many")),
        });
        done.map_err(|what| ParseError { line: 0, what: format!("{what} in {line:?}") })
    }
}

impl FromStr for History {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.split('#').next().unwrap_or("").trim()));
        let steps = lines
            .filter(|(_, line)| !line.is_empty())
            .map(|(n, line)| line.parse().map_err(|e: ParseError| ParseError { line: n, what: e.what }));
        Ok(Self { steps: steps.collect::<Result<_, _>>()? })
    }
}
