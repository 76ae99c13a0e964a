//! Both sides against the Linux kernel's: its initiator with our target, and our initiator with its target (nvmet).
//!
//! They need root and a kernel that has loaded `nvme-tcp` and `nvmet-tcp`, as the guest of `scripts/test-nvme` has.
//! Elsewhere they are skipped with a message; `ROCKMILL_REQUIRE=nvme-kernel` makes that a failure.

mod authentication;
#[path = "../../../rockmill-offload/src/tests/between.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod between;
#[path = "../common/mod.rs"]
mod common;
mod kernel;
mod kernel_host;
mod kernel_target;
#[cfg(feature = "tls")]
mod tls;
