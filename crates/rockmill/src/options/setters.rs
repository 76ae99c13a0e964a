//! Setters of one line.

/// Methods that set one field each: name, parameter, field, and the field's new value if that is not the parameter
/// itself. The doc comment of a setter that has none refers to its field, which must be public.
///
/// ```text
/// setters! {
///     impl Options;
///
///     set_runs(runs: u32) runs;
///     /// At least one.
///     set_threads(threads: i32) threads = threads.max(1);
/// }
/// ```
macro_rules! setters {
    (
        impl $Options:ident;
        $($(#[doc = $doc:literal])* $setter:ident($given:ident: $Given:ty) $field:ident $(= $value:expr)?;)*
    ) => {
        impl $Options {
            $(
                #[doc = $crate::options::setters::setters!(@words $field $($doc)*)]
                pub fn $setter(&mut self, $given: $Given) {
                    self.$field = $crate::options::setters::setters!(@value $given $(= $value)?);
                }
            )*
        }
    };
    (@words $field:ident) => {
        concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")
    };
    (@words $field:ident $($doc:literal)+) => {
        concat!($($doc, "\n"),+)
    };
    (@value $given:ident) => {
        $given
    };
    (@value $given:ident = $value:expr) => {
        $value
    };
}

pub(crate) use setters;
