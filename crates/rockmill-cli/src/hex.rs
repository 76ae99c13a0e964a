//! Flags that say what is hexadecimal.

use clap::Args;

/// Whether keys and values are text or hexadecimal, where they are given and where they are printed.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct HexArgs {
    /// Keys and values are hexadecimal, in what is given and in what is printed
    #[arg(long)]
    hex: bool,
    /// Only keys are (`ldb`'s flag)
    #[arg(long, hide = true)]
    key_hex: bool,
    /// Only values are (`ldb`'s flag)
    #[arg(long, hide = true)]
    value_hex: bool,
}

impl HexArgs {
    /// True if keys are hexadecimal.
    pub fn keys(self) -> bool {
        self.hex || self.key_hex
    }

    /// True if values are hexadecimal.
    pub fn values(self) -> bool {
        self.hex || self.value_hex
    }
}
