//! Status codes by their names (NVMe Base 1.4, "Completion Queue Entry: Status Field"; Fabrics 1.1, "Fabrics Command
//! Specific Status Values").

use std::fmt;

/// The status field of a completion without its phase bit: code (bits 7:0), code type (10:8), retry delay (12:11), more
/// (13), do not retry (14).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(u16);

const CODE_BITS: u16 = 0x7ff;
const MORE: u16 = 1 << 13;
const DO_NOT_RETRY: u16 = 1 << 14;

macro_rules! statuses {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $(
                #[doc = concat!($text, ".")]
                pub const $name: Self = Self($code);
            )*

            /// The specification's name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self.0 & CODE_BITS {
                    $($code => $text,)*
                    _ => "a status without a name here",
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x000, "Successful Completion";
    INVALID_OPCODE = 0x001, "Invalid Command Opcode";
    INVALID_FIELD = 0x002, "Invalid Field in Command";
    COMMAND_ID_CONFLICT = 0x003, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0x004, "Data Transfer Error";
    POWER_LOSS = 0x005, "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = 0x006, "Internal Error";
    ABORT_REQUESTED = 0x007, "Command Abort Requested";
    QUEUE_DELETED = 0x008, "Command Aborted due to SQ Deletion";
    FUSED_FAILED = 0x009, "Command Aborted due to Failed Fused Command";
    FUSED_MISSING = 0x00a, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0x00b, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0x00c, "Command Sequence Error";
    INVALID_SGL_SEGMENT = 0x00d, "Invalid SGL Segment Descriptor";
    INVALID_SGL_COUNT = 0x00e, "Invalid Number of SGL Descriptors";
    SGL_LENGTH_INVALID = 0x00f, "Data SGL Length Invalid";
    METADATA_SGL_LENGTH_INVALID = 0x010, "Metadata SGL Length Invalid";
    SGL_TYPE_INVALID = 0x011, "SGL Descriptor Type Invalid";
    SGL_OFFSET_INVALID = 0x016, "SGL Offset Invalid";
    HOST_ID_INCONSISTENT = 0x018, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = 0x019, "Keep Alive Timer Expired";
    KEEP_ALIVE_INVALID = 0x01a, "Keep Alive Timeout Invalid";
    NAMESPACE_WRITE_PROTECTED = 0x020, "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0x021, "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0x022, "Transient Transport Error";
    LBA_OUT_OF_RANGE = 0x080, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0x081, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0x082, "Namespace Not Ready";
    INVALID_QUEUE_ID = 0x101, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 0x102, "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 0x103, "Abort Command Limit Exceeded";
    ASYNC_EVENT_LIMIT_EXCEEDED = 0x105, "Asynchronous Event Request Limit Exceeded";
    INVALID_LOG_PAGE = 0x109, "Invalid Log Page";
    FEATURE_NOT_SAVEABLE = 0x10d, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 0x10e, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10f, "Feature Not Namespace Specific";
    CONNECT_INCOMPATIBLE_FORMAT = 0x180, "Connect Incompatible Format";
    CONNECT_CONTROLLER_BUSY = 0x181, "Connect Controller Busy";
    CONNECT_INVALID_PARAMETERS = 0x182, "Connect Invalid Parameters";
    CONNECT_RESTART_DISCOVERY = 0x183, "Connect Restart Discovery";
    CONNECT_INVALID_HOST = 0x184, "Connect Invalid Host";
    INVALID_QUEUE_TYPE = 0x185, "Invalid Queue Type";
    DISCOVER_RESTART = 0x190, "Discover Restart";
    AUTHENTICATION_REQUIRED = 0x191, "Authentication Required";
    WRITE_FAULT = 0x280, "Write Fault";
    UNRECOVERED_READ_ERROR = 0x281, "Unrecovered Read Error";
    COMPARE_FAILURE = 0x285, "Compare Failure";
    ACCESS_DENIED = 0x286, "Access Denied";
}

impl Status {
    /// The status of a field without its phase bit.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// The field without its phase bit.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Code type and code only, to compare with the constants.
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & CODE_BITS)
    }

    /// The same status, marked as one that a retry would repeat.
    #[must_use]
    pub const fn do_not_retry(self) -> Self {
        Self(self.0 | DO_NOT_RETRY)
    }

    /// True if a retry would fail again.
    #[must_use]
    pub const fn is_final(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// The same status, marked as having an entry in the error log.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// True for a successful completion.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & CODE_BITS == 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.0 & CODE_BITS;
        write!(f, "{} (type {}, code {:#04x})", self.name(), code >> 8, code & 0xff)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}{}", if self.is_final() { ", do not retry" } else { "" })
    }
}
