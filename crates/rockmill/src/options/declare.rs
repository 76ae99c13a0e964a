//! The macro that declares options, each in one place: name, type, default, document, setter and text form.
//!
//! A line is `name: Type = default, kind;` or `name: Type = default, kind, setter;`. The setter, where one is given,
//! becomes a method of [`Options`](super::Options) with the option's document. The type implements
//! [`Value`](super::value::Value) unless the kind brings its own text; a struct of options
//! (`compression_opts={level=3;...}`) gets it from [`nested!`](super::value::nested). The kind says what the option is
//! to `set_options` or `set_db_options`, to option strings and to OPTIONS files:
//!
//! | kind | `set_options` | OPTIONS file |
//! |---|---|---|
//! | `mutable` | changes it | written and read under its name |
//! | `fixed` | refuses it: only an open sets it | written and read under its name |
//! | `own` | changes it | not written: RocksDB does not know the option |
//! | `own_fixed` | refuses it: only an open sets it | not written: RocksDB does not know the option |
//! | `paths(text, read)` | refuses it | the same; `read(&mut field, text)` says if it fits |
//! | `object(text)` | refuses it | written as what `text(&field)` returns; another one in a file is reported |
//! | `object(text, make)` | refuses it | read: `make(text)` gives the object, `None` if it is not built in |
//! | `mutable_object(text, make)` | changes it | the same |
//! | `named("name", text, read)` | changes it | has another name; `read(&mut field, text, notes)` says if it fits |
//! | `part` | refuses it | neither written nor read by itself |
//! | `hidden` | refuses it | not written: it has no text, and `Debug` does not show it |
//!
//! Fields that are not options are declared under `beside`: users do not see them, and no text names them. There are
//! two uses. One is what a load found in an OPTIONS file in addition to options: users change and copy the loaded
//! options and open with them, so the options must carry it. The other is what a setter keeps in addition to its
//! option; such a field may depend on a Cargo feature, since it is not part of any text. `Debug` shows the options that
//! are not at their defaults, as text.
//!
//! A `mutable` option of the database is read through `DbInner::live()`, never through `DbInner::opts`, which stays as
//! it was at open. An option that RocksDB 7.8 does not know is listed in `known.rs` with the version that brought it:
//! it is written only where its value is not RocksDB's default.

use super::known::Notes;

/// What an option is to `set_options` and to OPTIONS files; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutable,
    Fixed,
    Own,
    OwnFixed,
    Paths,
    Object,
    MutableObject,
    Part,
    Hidden,
}

impl Kind {
    /// True if an open database takes a change.
    pub fn is_mutable(self) -> bool {
        matches!(self, Self::Mutable | Self::MutableObject | Self::Own)
    }

    /// True if RocksDB's text has it.
    pub fn is_in_files(self) -> bool {
        matches!(self, Self::Mutable | Self::Fixed | Self::Object | Self::MutableObject)
    }

    /// True if RocksDB has no text for it.
    pub fn is_own(self) -> bool {
        matches!(self, Self::Own | Self::OwnFixed | Self::Paths)
    }

    /// True if it has a text.
    pub fn has_text(self) -> bool {
        !matches!(self, Self::Part | Self::Hidden)
    }
}

/// An option of the struct `O`, as text.
pub(crate) struct TextOption<O> {
    /// RocksDB's name.
    pub name: &'static str,
    pub kind: Kind,
    /// The lines of its document.
    pub doc: &'static [&'static str],
    /// Reads a value into the field; false if the text is not a value of its type. Reports about RocksDB's options that
    /// are nested in the value go to the notes.
    pub read: fn(&mut O, &str, &mut Notes) -> bool,
    /// The field as text; `None` if it has none.
    pub write: fn(&O) -> Option<String>,
}

/// Calls `describe`. This is a function so that the closure's argument needs no type.
pub(super) fn describe<T>(value: &T, describe: impl Fn(&T) -> String) -> String {
    describe(value)
}

/// Reads with the function of the declaration. This is a function for the same reason.
pub(super) fn read_with<T>(
    value: &mut T,
    text: &str,
    notes: &mut Notes,
    read: impl Fn(&mut T, &str, &mut Notes) -> bool,
) -> bool {
    read(value, text, notes)
}

/// Takes the object that `text` names, if it is built in.
pub(super) fn make_with<T>(
    value: &mut T,
    text: &str,
    describe: impl Fn(&T) -> String,
    make: impl Fn(&str) -> Option<T>,
) -> bool {
    describe(value) == text || make(text).map(|object| *value = object).is_some()
}

/// See the module.
macro_rules! declare_options {
    (
        $(#[$attr:meta])*
        pub struct $Name:ident;
        setters of $Owner:ident at $part:ident;
        beside {
            $($(#[doc = $beside_doc:literal])* $(#[cfg($($only:tt)*)])? $beside:ident: $Beside:ty,)*
        }
        $(
            $(#[doc = $doc:literal])*
            $(#[allow($allow:ident)])*
            $field:ident: $type:ty = $default:expr, $kind:ident $(($($arg:expr),+))? $(, $setter:ident)?;
        )*
    ) => {
        $(#[$attr])*
        #[derive(Clone)]
        #[non_exhaustive]
        pub struct $Name {
            $(
                $(#[doc = $doc])*
                $(#[allow($allow)])*
                pub $field: $type,
            )*
            $(
                $(#[doc = $beside_doc])*
                $(#[cfg($($only)*)])?
                pub(crate) $beside: $Beside,
            )*
        }

        impl Default for $Name {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    $(
                        $(#[cfg($($only)*)])?
                        $beside: Default::default(),
                    )*
                }
            }
        }

        impl std::fmt::Debug for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let base = Self::default();
                let mut out = f.debug_struct(stringify!($Name));
                for option in Self::TEXT {
                    let value = (option.write)(self).filter(|value| (option.write)(&base).as_ref() != Some(value));
                    if let Some(value) = value {
                        out.field(option.name, &format_args!("{value}"));
                    }
                }
                $(declare_options!(@debug out, base, self.$field, $kind);)*
                out.finish_non_exhaustive()
            }
        }

        impl $Name {
            /// Every option as text, in the order of declaration.
            pub(crate) const TEXT: &'static [$crate::options::declare::TextOption<Self>] = &[
                $(declare_options!(@text $field, [$($doc),*], $kind $(($($arg),+))?)),*
            ];
        }

        impl $Owner {
            $(declare_options!(@setter $part $field: $type, [$($setter)?], $($doc),*);)*
        }
    };

    (@setter $part:ident $field:ident: $type:ty, [], $($doc:literal),*) => {};
    (@setter $part:ident $field:ident: $type:ty, [$setter:ident], $($doc:literal),*) => {
        $(#[doc = $doc])*
        pub fn $setter(&mut self, value: $type) {
            self.$part.$field = value;
        }
    };

    (@debug $out:ident, $base:ident, $self:ident.$field:ident, part) => {
        if format!("{:?}", $self.$field) != format!("{:?}", $base.$field) {
            $out.field(stringify!($field), &$self.$field);
        }
    };
    (@debug $out:ident, $base:ident, $self:ident.$field:ident, $kind:ident) => {};

    (@text $field:ident, $doc:tt, object($describe:expr)) => {
        $crate::options::declare::TextOption {
            name: stringify!($field),
            kind: $crate::options::declare::Kind::Object,
            doc: &$doc,
            read: |o, text, _| $crate::options::declare::describe(&o.$field, $describe) == text,
            write: |o| Some($crate::options::declare::describe(&o.$field, $describe)),
        }
    };
    (@text $field:ident, $doc:tt, object($describe:expr, $make:expr)) => {
        declare_options!(@made $field, $doc, Object, $describe, $make)
    };
    (@text $field:ident, $doc:tt, mutable_object($describe:expr, $make:expr)) => {
        declare_options!(@made $field, $doc, MutableObject, $describe, $make)
    };
    (@made $field:ident, $doc:tt, $Kind:ident, $describe:expr, $make:expr) => {
        $crate::options::declare::TextOption {
            name: stringify!($field),
            kind: $crate::options::declare::Kind::$Kind,
            doc: &$doc,
            read: |o, text, _| $crate::options::declare::make_with(&mut o.$field, text, $describe, $make),
            write: |o| Some($crate::options::declare::describe(&o.$field, $describe)),
        }
    };
    (@text $field:ident, $doc:tt, named($name:expr, $describe:expr, $read:expr)) => {
        $crate::options::declare::TextOption {
            name: $name,
            kind: $crate::options::declare::Kind::Mutable,
            doc: &$doc,
            read: |o, text, notes| $crate::options::declare::read_with(&mut o.$field, text, notes, $read),
            write: |o| Some($crate::options::declare::describe(&o.$field, $describe)),
        }
    };
    (@text $field:ident, $doc:tt, paths($describe:expr, $read:expr)) => {
        $crate::options::declare::TextOption {
            name: stringify!($field),
            kind: $crate::options::declare::Kind::Paths,
            doc: &$doc,
            read: |o, text, _| $read(&mut o.$field, text),
            write: |o| Some($crate::options::declare::describe(&o.$field, $describe)),
        }
    };
    (@text $field:ident, $doc:tt, part) => { declare_options!(@silent $field, $doc, Part) };
    (@text $field:ident, $doc:tt, hidden) => { declare_options!(@silent $field, $doc, Hidden) };
    (@text $field:ident, $doc:tt, $kind:ident) => {
        $crate::options::declare::TextOption {
            name: stringify!($field),
            kind: declare_options!(@kind $kind),
            doc: &$doc,
            read: |o, text, notes| $crate::options::value::Value::update(&mut o.$field, text, notes),
            write: |o| Some($crate::options::value::Value::write(&o.$field)),
        }
    };

    (@silent $field:ident, $doc:tt, $Kind:ident) => {
        $crate::options::declare::TextOption {
            name: stringify!($field),
            kind: $crate::options::declare::Kind::$Kind,
            doc: &$doc,
            read: |_, _, _| false,
            write: |_| None,
        }
    };

    (@kind mutable) => { $crate::options::declare::Kind::Mutable };
    (@kind fixed) => { $crate::options::declare::Kind::Fixed };
    (@kind own) => { $crate::options::declare::Kind::Own };
    (@kind own_fixed) => { $crate::options::declare::Kind::OwnFixed };
}
pub(super) use declare_options;
