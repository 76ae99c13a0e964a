//! The macro that declares options, each in one place: name, type, default, document, setter and text form.
//!
//! A line is `name: Type = default, kind;` or `name: Type = default, kind, setter;`. The setter, where one is given,
//! becomes a method of [`Options`](super::Options) with the option's document. The kind says what the option is to
//! `set_options` and to OPTIONS files:
//!
//! | kind | `set_options` | OPTIONS file |
//! |---|---|---|
//! | `mutable` | changes it | written and read under its name |
//! | `fixed` | refuses it: only an open sets it | written and read under its name |
//! | `own` | changes it | not written: RocksDB does not know the option |
//! | `own_fixed` | refuses it | not written |
//! | `object(text)` | refuses it | written as what the function `text` returns, and compared when read |
//! | `part` | refuses it | written and read by hand, since RocksDB has it in another form |
//! | `hidden` | refuses it | not written: it has no text, and `Debug` does not show it |

/// What an option is to `set_options` and to OPTIONS files; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutable,
    Fixed,
    Own,
    OwnFixed,
    Object,
    Part,
    Hidden,
}

/// An option of the options `O` as text.
pub(crate) struct TextOption<O> {
    /// RocksDB's name, which is the field's.
    pub name: &'static str,
    pub kind: Kind,
    /// Reads a value into the field; false if the text is no value of its type.
    pub read: fn(&mut O, &str) -> bool,
    /// The field as text; `None` if it has none.
    pub write: fn(&O) -> Option<String>,
}

/// Calls `describe`: a function, so that a closure's argument needs no type.
pub(super) fn describe<T>(value: &T, describe: impl Fn(&T) -> String) -> String {
    describe(value)
}

/// See the module.
macro_rules! declare_options {
    (
        $(#[$attr:meta])*
        pub struct $Name:ident;
        setters of $Owner:ident at $part:ident;
        $(
            $(#[$doc:meta])*
            $field:ident: $type:ty = $default:expr, $kind:ident $(($describe:expr))? $(, $setter:ident)?;
        )*
    ) => {
        $(#[$attr])*
        #[derive(Clone)]
        pub struct $Name {
            $(
                $(#[$doc])*
                pub $field: $type,
            )*
        }

        impl Default for $Name {
            fn default() -> Self {
                Self { $($field: $default),* }
            }
        }

        impl std::fmt::Debug for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($Name))
                    $(.field(stringify!($field), declare_options!(@debug self.$field, $kind $(($describe))?)))*
                    .finish()
            }
        }

        impl $Name {
            /// Every option as text, in the order of declaration.
            pub(crate) const TEXT: &'static [$crate::options::declare::TextOption<Self>] = &[
                $(declare_options!(@text $field, $kind $(($describe))?)),*
            ];
        }

        impl $Owner {
            $(declare_options!(@setter $part $field: $type, [$($setter)?], $(#[$doc])*);)*
        }
    };

    (@setter $part:ident $field:ident: $type:ty, [], $(#[$doc:meta])*) => {};
    (@setter $part:ident $field:ident: $type:ty, [$setter:ident], $(#[$doc:meta])*) => {
        $(#[$doc])*
        pub fn $setter(&mut self, value: $type) {
            self.$part.$field = value;
        }
    };

    (@debug $self:ident.$field:ident, object($describe:expr)) => {
        &$crate::options::declare::describe(&$self.$field, $describe)
    };
    (@debug $self:ident.$field:ident, hidden) => { &format_args!("..") };
    (@debug $self:ident.$field:ident, $kind:ident) => { &$self.$field };

    (@text $field:ident, object($describe:expr)) => {
        $crate::options::declare::TextOption {
            name: stringify!($field),
            kind: $crate::options::declare::Kind::Object,
            read: |o, text| $crate::options::declare::describe(&o.$field, $describe) == text,
            write: |o| Some($crate::options::declare::describe(&o.$field, $describe)),
        }
    };
    (@text $field:ident, part) => { declare_options!(@silent $field, Part) };
    (@text $field:ident, hidden) => { declare_options!(@silent $field, Hidden) };
    (@text $field:ident, $kind:ident) => {
        $crate::options::declare::TextOption {
            name: stringify!($field),
            kind: declare_options!(@kind $kind),
            read: |o, text| $crate::options::value::read_into(&mut o.$field, text),
            write: |o| Some($crate::options::value::Value::write(&o.$field)),
        }
    };

    (@silent $field:ident, $Kind:ident) => {
        $crate::options::declare::TextOption {
            name: stringify!($field),
            kind: $crate::options::declare::Kind::$Kind,
            read: |_, _| false,
            write: |_| None,
        }
    };

    (@kind mutable) => { $crate::options::declare::Kind::Mutable };
    (@kind fixed) => { $crate::options::declare::Kind::Fixed };
    (@kind own) => { $crate::options::declare::Kind::Own };
    (@kind own_fixed) => { $crate::options::declare::Kind::OwnFixed };
}
pub(super) use declare_options;
