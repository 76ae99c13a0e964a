//! The filter of column families whose values expire (`db/open/ttl.rs`): it removes values that are too old, and asks
//! the user's filter about the others, without their times.
//!
//! It decides by what a job's spec says: when the job began, by the clock of the store, and the time to live. So a job
//! may be done by another machine, which makes the factory from what it says of its settings ([`factory_with`]).

use std::sync::Arc;

use super::{
    CompactionFilter, CompactionFilterContext, CompactionFilterFactory, Decision, SharedFactory, SharedFilter,
    TableFileCreationReason,
};
use crate::sync::atomic::{AtomicU64, Ordering};

/// The factory's name.
pub(crate) const NAME: &str = "TtlCompactionFilterFactory";

/// Bytes of a time at the end of a value.
pub(crate) const STAMP_LEN: usize = 4;

/// A value's own bytes and its time; `None` when it is too short to have one.
pub(crate) fn split(value: &[u8]) -> Option<(&[u8], u32)> {
    value.split_last_chunk::<STAMP_LEN>().map(|(own, time)| (own, u32::from_le_bytes(*time)))
}

/// What the user set.
pub(crate) enum User {
    /// Nothing.
    None,
    /// A filter.
    Filter(SharedFilter),
    /// A factory of filters.
    Factory(SharedFactory),
}

impl User {
    /// Its name, in the text of the options.
    fn text(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Filter(filter) => format!(";filter={:?}", filter.name()),
            Self::Factory(factory) => format!(";factory={:?}", factory.name()),
        }
    }

    /// Its own options.
    fn options(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Filter(filter) => filter.option_text(),
            Self::Factory(factory) => factory.option_text(),
        }
    }
}

struct TtlFactory {
    /// 0: for ever.
    seconds: Arc<AtomicU64>,
    user: User,
}

/// The factory of a column family whose values live for this many seconds (0: for ever); `user`: what it had before.
pub(crate) fn factory(seconds: u64, user: User) -> SharedFactory {
    let seconds = Arc::new(AtomicU64::new(seconds));
    let ttl = TtlFactory { seconds: Arc::clone(&seconds), user };
    SharedFactory { time_to_live: Some(seconds), ..SharedFactory::new(ttl) }
}

/// A factory that says `options` of its settings, where the user's filter or factory is one of these, if it has any.
pub(crate) fn factory_with(
    options: &str,
    filters: &[SharedFilter],
    factories: &[SharedFactory],
) -> Option<SharedFactory> {
    let seconds = options.strip_prefix("seconds=")?;
    let seconds = seconds.get(..seconds.find(';').unwrap_or(seconds.len()))?.parse().ok()?;
    let users = || {
        let filters = filters.iter().cloned().map(User::Filter);
        std::iter::once(User::None).chain(filters).chain(factories.iter().cloned().map(User::Factory))
    };
    users().map(|user| factory(seconds, user)).find(|factory| factory.option_text() == options)
}

impl TtlFactory {
    /// The seconds and the user's options in a text of this factory, as `option_text` writes it.
    fn read<'t>(&self, text: &'t str) -> Option<(u64, &'t str)> {
        let text = text.strip_prefix("seconds=")?;
        let (seconds, rest) = text.split_at(text.find(';').unwrap_or(text.len()));
        let rest = rest.strip_prefix(self.user.text().as_str())?;
        let options = if rest.is_empty() { rest } else { rest.strip_prefix(";options=")? };
        Some((seconds.parse().ok()?, options))
    }
}

impl CompactionFilterFactory for TtlFactory {
    type Filter = TtlFilter;

    fn create(&mut self, mut context: CompactionFilterContext) -> TtlFilter {
        let began = context.now_micros / 1_000_000;
        // All parts of a job use the settings from when the job was made.
        let (seconds, own) = match self.read(&context.options) {
            Some((seconds, own)) => (seconds, own.to_owned()),
            None => (self.seconds.load(Ordering::Acquire), self.user.options()),
        };
        context.options = own;
        let user: Option<Box<dyn CompactionFilter>> = match &mut self.user {
            User::None => None,
            User::Filter(filter) => Some(Box::new(filter.clone())),
            User::Factory(factory) => {
                factory.should_filter_table_file_creation(context.reason).then(|| factory.create(context))
            }
        };
        // One time for the whole job, so that its output depends on nothing else, wherever it is done.
        let oldest = match seconds {
            0 => 0,
            seconds => began.saturating_sub(seconds),
        };
        TtlFilter { oldest, user }
    }

    fn should_filter_table_file_creation(&self, reason: TableFileCreationReason) -> bool {
        let user = matches!(&self.user, User::Factory(f) if f.should_filter_table_file_creation(reason));
        reason == TableFileCreationReason::Compaction || user
    }

    fn name(&self) -> &str {
        NAME
    }

    fn option_text(&self) -> String {
        let (seconds, user, own) = (self.seconds.load(Ordering::Acquire), self.user.text(), self.user.options());
        let own = if own.is_empty() { own } else { format!(";options={own}") };
        format!("seconds={seconds}{user}{own}")
    }
}

struct TtlFilter {
    /// Values from before this time are removed.
    oldest: u64,
    user: Option<Box<dyn CompactionFilter>>,
}

impl TtlFilter {
    /// Lets the user's filter decide on a value without its time.
    fn ask(&mut self, value: &[u8], ask: impl FnOnce(&mut Box<dyn CompactionFilter>, &[u8]) -> Decision) -> Decision {
        let (Some(user), Some((own, time))) = (&mut self.user, split(value)) else { return Decision::Keep };
        match ask(user, own) {
            Decision::Change(mut changed) => {
                changed.extend_from_slice(&time.to_le_bytes());
                Decision::Change(changed)
            }
            other => other,
        }
    }
}

impl CompactionFilter for TtlFilter {
    fn filter(&mut self, level: u32, key: &[u8], value: &[u8]) -> Decision {
        if split(value).is_some_and(|(_, time)| u64::from(time) < self.oldest) {
            return Decision::Remove;
        }
        self.ask(value, |user, own| user.filter(level, key, own))
    }

    fn filter_merge_operand(&mut self, level: u32, key: &[u8], operand: &[u8]) -> Decision {
        self.ask(operand, |user, own| user.filter_merge_operand(level, key, own))
    }

    fn name(&self) -> &str {
        self.user.as_ref().map_or("TtlCompactionFilter", |user| user.name())
    }
}
