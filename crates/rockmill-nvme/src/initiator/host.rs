//! A host's requests to a controller as calls: connect, configure, inspect, read and write.
//!
//! A connection begins with the calls in the order of NVMe over Fabrics 1.1, "Controller Initialization": Connect of
//! the admin queue, CAP, CC.EN, CSTS.RDY, Identify Controller, Number of Queues, then Connect of each I/O queue.

use std::collections::VecDeque;
use std::time::Duration;
use std::{fmt, io};

use super::queue::{Command, Completion, End, Queue, QueueConfig, SubmitError};
use crate::auth::{AuthError, HostAuth, HostExchange, MESSAGE_BYTES_MAX};
use crate::command::{self, ALL_NAMESPACES, BLOCKS_MAX, SQE_BYTES, cns, feature, log_page};
use crate::fabrics::{
    AUTHENTICATION_REQUIRED, Capabilities, Configuration, Connect, ConnectData, DYNAMIC_CONTROLLER,
    SECURE_CHANNEL_REQUIRED, STATUS_FATAL, STATUS_READY, STATUS_SHUT_DOWN, authentication_receive, authentication_send,
    property, property_get, property_set,
};
use crate::identify::{
    ControllerKind, Descriptor, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, NAMESPACE_LIST_MAX,
    decode_descriptors, decode_namespace_list,
};
use crate::logs::{
    DISCOVERY_ENTRIES_MAX, DISCOVERY_ENTRY_BYTES, DiscoveryEntry, DiscoveryHead, ERROR_ENTRY_BYTES, ErrorEntry,
    SMART_BYTES, SmartLog,
};
use crate::status::Status;

/// Largest transfer of one command, unless the controller has a smaller limit.
const TRANSFER_MAX: u32 = 1 << 20;
/// How often the status is queried while a controller becomes ready or shuts down, for each 500 ms of its time limit.
const LOOKS_PER_UNIT: u32 = 500;
/// The unit of that limit.
const STATUS_UNIT: Duration = Duration::from_millis(500);

/// What moves the bytes of a queue.
pub trait Link {
    /// The queue.
    fn queue(&mut self) -> &mut Queue;

    /// Sends the queue's output, and waits until something is received.
    ///
    /// # Errors
    /// The connection is lost, or nothing was received for too long.
    fn exchange(&mut self) -> io::Result<()>;

    /// Time since any fixed moment; always zero without a clock.
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    /// Waits about a millisecond.
    fn pause(&mut self) {}
}

/// Why a call failed.
#[derive(Debug)]
pub enum HostError {
    /// The command ended with this status.
    Status {
        /// What was asked.
        what: &'static str,
        /// The status.
        status: Status,
        /// The command's result; for a Connect it tells which parameter was refused.
        result: u64,
    },
    /// The connection ended.
    Ended(End),
    /// The connection is lost.
    Io(io::Error),
    /// The command was not taken.
    Submit(SubmitError),
    /// The controller's answer is invalid or cannot be used.
    Answer(&'static str),
    /// Authentication failed.
    Authentication(AuthError),
    /// The caller's buffer is not a whole number of blocks, or is too long for one command.
    Buffer {
        /// Its length.
        bytes: usize,
        /// The size of a block.
        block_bytes: u32,
    },
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { what, status, result } => write!(f, "{what}: {status}, result {result:#x}"),
            Self::Ended(end) => write!(f, "{end}"),
            Self::Io(e) => write!(f, "the connection is lost: {e}"),
            Self::Submit(e) => write!(f, "{e}"),
            Self::Authentication(e) => write!(f, "authentication: {e}"),
            Self::Answer(what) => write!(f, "the controller's answer cannot be used: {what}"),
            Self::Buffer { bytes, block_bytes } => {
                write!(
                    f,
                    "a buffer of {bytes} bytes is no whole number of blocks of {block_bytes} bytes, or too long for \
                     one command"
                )
            }
        }
    }
}

impl std::error::Error for HostError {}

impl HostError {
    /// The status of the command that failed, without its flags.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(status.code()),
            _ => None,
        }
    }

    /// True if the connection was lost: by the network, by an end that the peer gave no reason for, or by silence.
    /// Connecting anew may help. Nonsense and damage on the wire are no loss.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        use io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkDown,
            NetworkUnreachable, NotConnected, TimedOut, UnexpectedEof, WriteZero,
        };
        let Self::Io(e) = self else { return false };
        matches!(
            e.kind(),
            BrokenPipe
                | ConnectionAborted
                | ConnectionRefused
                | ConnectionReset
                | HostUnreachable
                | NetworkDown
                | NetworkUnreachable
                | NotConnected
                | TimedOut
                | UnexpectedEof
                | WriteZero
        )
    }
}

/// The host's identity, the subsystem that it connects to, and its queue settings.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The name of the subsystem or of the discovery service.
    pub subsystem: String,
    /// The host's name.
    pub host: String,
    /// The host's identifier.
    pub host_id: [u8; 16],
    /// Keep Alive Timeout; 0 for none.
    pub keep_alive_ms: u32,
    /// How the host authenticates; `None` for controllers that do not ask for it. If set, the host refuses a controller
    /// without authentication.
    pub auth: Option<HostAuth>,
    /// Its queues. `in_capsule_max` is for the admin queue; I/O queues use the controller's maximum.
    pub queue: QueueConfig,
}

/// What the host knows about a controller: enough to connect I/O queues.
#[derive(Clone, Debug)]
pub struct Controller {
    /// What it says of itself.
    pub identity: IdentifyController,
    /// Its capabilities.
    pub capabilities: Capabilities,
    config: HostConfig,
}

impl Controller {
    /// The settings for the connection of an I/O queue.
    #[must_use]
    pub fn queue_config(&self) -> QueueConfig {
        let capsule = self.identity.command_capsule.saturating_mul(16).saturating_sub(SQE_BYTES as u32);
        let mut config = self.config.queue;
        // The controller's maximum: Linux's target sends no R2T for a write that would have fitted, and such a write
        // waits until its time limit (`nvmet_tcp_queue_response`).
        config.in_capsule_max = capsule.min(TRANSFER_MAX);
        config.entries = config.entries.min(self.capabilities.queue_entries_max.saturating_add(1));
        if self.identity.commands_max > 0 {
            config.entries = config.entries.min(self.identity.commands_max);
        }
        config
    }

    /// Data of one command, at most.
    #[must_use]
    pub fn transfer_max(&self) -> u32 {
        match self.identity.transfer_shift {
            0 => TRANSFER_MAX,
            shift => 4096u32.checked_shl(shift.into()).filter(|&n| n > 0).map_or(TRANSFER_MAX, |n| n.min(TRANSFER_MAX)),
        }
    }
}

/// The properties of a namespace that reads and writes need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its id.
    pub id: u32,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks that there are.
    pub blocks: u64,
    /// Writes fail.
    pub read_only: bool,
}

/// An event that the controller told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminEvent {
    /// Its type: 2 is a notice.
    pub kind: u8,
    /// What happened. For notices, 0 means a changed namespace, F0h a changed discovery log.
    pub information: u8,
    /// The log page to read about it.
    pub page: u8,
}

fn submit<L: Link>(link: &mut L, command: Command) -> Result<u16, HostError> {
    let queue = link.queue();
    queue.submit(command).map_err(|e| match queue.end() {
        Some(end) => HostError::Ended(end.clone()),
        None => HostError::Submit(e),
    })
}

fn wait<L: Link>(link: &mut L, id: u16) -> Result<Completion, HostError> {
    loop {
        if let Some(completion) = link.queue().take(id) {
            return Ok(completion);
        }
        exchange(link)?;
    }
}

fn exchange<L: Link>(link: &mut L) -> Result<(), HostError> {
    if let Some(end) = link.queue().end() {
        return Err(HostError::Ended(end.clone()));
    }
    let moved = link.exchange();
    match (link.queue().end(), moved) {
        // The reason is more useful than the error of the lost connection.
        (Some(end), Err(_)) => Err(HostError::Ended(end.clone())),
        (_, moved) => moved.map_err(HostError::Io),
    }
}

fn success(what: &'static str, done: Completion) -> Result<Completion, HostError> {
    if done.status.is_success() {
        return Ok(done);
    }
    Err(HostError::Status { what, status: done.status, result: done.result })
}

fn call<L: Link>(link: &mut L, what: &'static str, command: Command) -> Result<Completion, HostError> {
    let id = submit(link, command)?;
    success(what, wait(link, id)?)
}

/// Waits until a link is initialized, then connects a queue over it.
fn connect<L: Link>(link: &mut L, config: &HostConfig, queue: u16, controller: u16) -> Result<u16, HostError> {
    while !link.queue().is_ready() {
        exchange(link)?;
    }
    let of_queue = *link.queue().config();
    let command = Connect {
        format: 0,
        queue,
        size: of_queue.entries.max(2) - 1,
        no_flow_control: of_queue.no_flow_control,
        keep_alive_ms: if queue == 0 { config.keep_alive_ms } else { 0 },
    };
    let data = ConnectData {
        host_id: config.host_id,
        controller,
        subsystem: config.subsystem.clone(),
        host: config.host.clone(),
    };
    let result = call(link, "Connect", Command::writing(command.encode(), data.encode()))?.result;
    if result & SECURE_CHANNEL_REQUIRED != 0 {
        return Err(HostError::Answer("it wants TLS, which there is not here"));
    }
    match &config.auth {
        Some(auth) => authenticate(link, config, auth)?,
        None if result & AUTHENTICATION_REQUIRED != 0 => {
            return Err(HostError::Answer("it wants authentication, and there is no secret"));
        }
        None => {}
    }
    Ok(result as u16)
}

/// Authenticates a queue that is connected.
fn authenticate<L: Link>(link: &mut L, config: &HostConfig, auth: &HostAuth) -> Result<(), HostError> {
    const SEND: &str = "Authentication Send";
    let mut transaction = [0; 2];
    auth.random.fill(&mut transaction).map_err(|_| HostError::Authentication(AuthError::Random))?;
    let transaction = u16::from_le_bytes(transaction);
    let mut exchange = HostExchange::new(auth, &config.host, &config.subsystem, transaction);
    let send = |message: Vec<u8>| Command::writing(authentication_send(message.len() as u32), message);
    let mut next = Some(exchange.negotiate());
    while let Some(message) = next.take() {
        call(link, SEND, send(message))?;
        if exchange.is_done() {
            break;
        }
        let bytes = MESSAGE_BYTES_MAX as u32;
        let received = Command::reading(authentication_receive(bytes), bytes);
        let received = call(link, "Authentication Receive", received)?.data;
        match exchange.received(&received) {
            Ok(message) => next = message,
            Err(e) => {
                if let Some(message) = exchange.failure(e) {
                    // The caller gets the original error: it says more than a failure of this last message.
                    let _ = call(link, SEND, send(message));
                }
                return Err(HostError::Authentication(e));
            }
        }
    }
    Ok(())
}

/// The admin queue of a controller.
#[derive(Debug)]
pub struct Admin<L> {
    link: L,
    controller: Controller,
    /// The event request that is outstanding.
    event: Option<u16>,
}

impl<L: Link> Admin<L> {
    /// Creates a controller and waits until it is ready.
    ///
    /// # Errors
    /// The reason why it failed.
    pub fn connect(mut link: L, config: HostConfig) -> Result<Self, HostError> {
        let id = connect(&mut link, &config, 0, DYNAMIC_CONTROLLER)?;
        let capabilities = Capabilities::decode(get_property(&mut link, property::CAP, true)?);
        set_configuration(&mut link, Configuration::ENABLED)?;
        wait_for_status(&mut link, capabilities, STATUS_READY)?;
        let data = call(&mut link, "Identify Controller", identify(cns::CONTROLLER, 0))?.data;
        let identity = data.as_slice().try_into().ok().and_then(IdentifyController::decode);
        let identity = identity.ok_or(HostError::Answer("Identify Controller has no name"))?;
        if identity.controller != id {
            return Err(HostError::Answer("Identify Controller has another controller id than Connect"));
        }
        // A discovery controller has no I/O queues: these fields are reserved for it.
        let small = identity.command_capsule < 4 || identity.response_capsule < 1;
        if identity.sgls & 3 == 0 || identity.kind == ControllerKind::Io && small {
            return Err(HostError::Answer("no SGLs, or capsules that are too small"));
        }
        Ok(Self { link, controller: Controller { identity, capabilities, config }, event: None })
    }

    /// What is known of the controller.
    #[must_use]
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Its link.
    pub fn link(&mut self) -> &mut L {
        &mut self.link
    }

    /// Executes any admin command.
    ///
    /// # Errors
    /// The command's status, or the error that ended the connection.
    pub fn call(&mut self, what: &'static str, command: Command) -> Result<Completion, HostError> {
        call(&mut self.link, what, command)
    }

    /// Reads a property; `wide` for properties of 8 bytes.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn property(&mut self, offset: u32, wide: bool) -> Result<u64, HostError> {
        get_property(&mut self.link, offset, wide)
    }

    /// Requests I/O queues. Returns how many the controller allows.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set_queues(&mut self, wanted: u16) -> Result<u16, HostError> {
        let wanted = u32::from(wanted.clamp(1, 0xfffe) - 1);
        let command = command::set_features(feature::QUEUES, wanted | wanted << 16);
        let granted = self.call("Set Features, Number of Queues", Command::new(command))?.result;
        let least = (granted & 0xffff).min(granted >> 16 & 0xffff).min(u64::from(wanted));
        Ok(least as u16 + 1)
    }

    /// The ids of all attached namespaces.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn namespaces(&mut self) -> Result<Vec<u32>, HostError> {
        let mut all: Vec<u32> = Vec::new();
        loop {
            let from = all.last().copied().unwrap_or(0);
            let data = self.call("Identify, active namespaces", identify(cns::ACTIVE_NAMESPACES, from))?.data;
            let list = decode_namespace_list(identify_bytes(&data)?);
            // In rising order: so this ends.
            if !list.is_sorted() || list.first().is_some_and(|&first| first <= from) {
                return Err(HostError::Answer("a namespace list is out of order"));
            }
            all.extend(&list);
            if list.len() < NAMESPACE_LIST_MAX {
                return Ok(all);
            }
        }
    }

    /// A namespace's sizes.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn namespace(&mut self, id: u32) -> Result<NamespaceInfo, HostError> {
        let data = self.call("Identify Namespace", identify(cns::NAMESPACE, id))?.data;
        let found = IdentifyNamespace::decode(identify_bytes(&data)?);
        let found = found.filter(|n| n.blocks > 0).ok_or(HostError::Answer("no such namespace, or no such blocks"))?;
        Ok(NamespaceInfo { id, block_bytes: 1 << found.block_shift, blocks: found.blocks, read_only: found.read_only })
    }

    /// A namespace's identifiers.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn descriptors(&mut self, id: u32) -> Result<Vec<Descriptor>, HostError> {
        let data = self.call("Identify, namespace descriptors", identify(cns::DESCRIPTORS, id))?.data;
        decode_descriptors(identify_bytes(&data)?).ok_or(HostError::Answer("a descriptor has a wrong length"))
    }

    /// Reads bytes of a log page.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn log_page(&mut self, id: u8, offset: u64, bytes: u32) -> Result<Vec<u8>, HostError> {
        let command = command::get_log_page(id, ALL_NAMESPACES, offset, bytes, false);
        Ok(self.call("Get Log Page", Command::reading(command, bytes))?.data)
    }

    /// The newest `count` entries of the error log, 1 to 64, newest first.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn error_log(&mut self, count: u32) -> Result<Vec<ErrorEntry>, HostError> {
        let data = self.log_page(log_page::ERROR, 0, count.clamp(1, 64) * ERROR_ENTRY_BYTES as u32)?;
        let entries = data.as_chunks().0.iter().map(ErrorEntry::decode);
        Ok(entries.take_while(|e| e.count != 0).collect())
    }

    /// The SMART log.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn smart(&mut self) -> Result<SmartLog, HostError> {
        let data = self.log_page(log_page::SMART, 0, SMART_BYTES as u32)?;
        let data = data.first_chunk().ok_or(HostError::Answer("a SMART log that is too short"))?;
        Ok(SmartLog::decode(data))
    }

    /// Namespaces that changed since the last call.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn changed_namespaces(&mut self) -> Result<Vec<u32>, HostError> {
        let data = self.log_page(log_page::CHANGED_NAMESPACES, 0, IDENTIFY_BYTES as u32)?;
        Ok(decode_namespace_list(identify_bytes(&data)?))
    }

    /// The discovery log, as it was at one moment.
    ///
    /// # Errors
    /// As [`Self::call`]; also when the log keeps changing.
    pub fn discovery_log(&mut self) -> Result<Vec<DiscoveryEntry>, HostError> {
        let head = |me: &mut Self| {
            let data = me.log_page(log_page::DISCOVERY, 0, DISCOVERY_ENTRY_BYTES as u32)?;
            DiscoveryHead::decode(&data).ok_or(HostError::Answer("a discovery log of another format"))
        };
        for _ in 0..10 {
            let before = head(self)?;
            if before.entries > DISCOVERY_ENTRIES_MAX {
                return Err(HostError::Answer("a discovery log with too many entries"));
            }
            let mut entries = Vec::new();
            for i in 0..before.entries {
                let at = (i + 1) * DISCOVERY_ENTRY_BYTES as u64;
                let data = self.log_page(log_page::DISCOVERY, at, DISCOVERY_ENTRY_BYTES as u32)?;
                entries.push(data.first_chunk().and_then(DiscoveryEntry::decode));
            }
            if head(self)?.generation == before.generation {
                let all = entries.into_iter().collect::<Option<_>>();
                return all.ok_or(HostError::Answer("an entry of the discovery log has no name"));
            }
        }
        Err(HostError::Answer("a discovery log that changes all the while"))
    }

    /// Tells the controller that the host is alive.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn keep_alive(&mut self) -> Result<(), HostError> {
        self.call("Keep Alive", Command::new(command::keep_alive())).map(drop)
    }

    /// The controller's current Keep Alive Timeout.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn keep_alive_ms(&mut self) -> Result<u64, HostError> {
        let command = Command::new(command::get_features(feature::KEEP_ALIVE));
        Ok(self.call("Get Features, Keep Alive Timer", command)?.result)
    }

    /// Selects events by the feature's mask, and sends the first event request.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn want_events(&mut self, mask: u32) -> Result<(), HostError> {
        let command = command::set_features(feature::ASYNC_EVENTS, mask);
        self.call("Set Features, Asynchronous Event Configuration", Command::new(command))?;
        if self.event.is_none() {
            self.event = Some(submit(&mut self.link, Command::new(command::async_event()))?);
        }
        Ok(())
    }

    /// The event that the controller reported, if any; the next event request is sent at once. This call does not
    /// receive anything: events arrive during other calls.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn event(&mut self) -> Result<Option<AdminEvent>, HostError> {
        let Some(done) = self.event.and_then(|id| self.link.queue().take(id)) else { return Ok(None) };
        self.event = None;
        let done = success("Asynchronous Event Request", done)?;
        self.event = Some(submit(&mut self.link, Command::new(command::async_event()))?);
        let [kind, information, page, ..] = done.result.to_le_bytes();
        Ok(Some(AdminEvent { kind: kind & 7, information, page }))
    }

    /// Asks the controller to abort a command. True if it did.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn abort(&mut self, queue: u16, command_id: u16) -> Result<bool, HostError> {
        let done = self.call("Abort", Command::new(command::abort(queue, command_id)))?;
        Ok(done.result & 1 == 0)
    }

    /// Aborts the pending event request.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn cancel_events(&mut self) -> Result<bool, HostError> {
        let Some(id) = self.event.take() else { return Ok(false) };
        let aborted = self.abort(0, id)?;
        wait(&mut self.link, id)?;
        Ok(aborted)
    }

    /// Shuts the controller down. On return all writes are durable, and the I/O queues are closed.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn shut_down(&mut self) -> Result<(), HostError> {
        set_configuration(&mut self.link, Configuration::SHUTDOWN)?;
        wait_for_status(&mut self.link, self.controller.capabilities, STATUS_SHUT_DOWN)
    }
}

fn identify(cns: u8, namespace: u32) -> Command {
    Command::reading(command::identify(cns, namespace), IDENTIFY_BYTES as u32)
}

fn identify_bytes(data: &[u8]) -> Result<&[u8; IDENTIFY_BYTES], HostError> {
    data.try_into().map_err(|_| HostError::Answer("data of another length"))
}

fn get_property<L: Link>(link: &mut L, offset: u32, wide: bool) -> Result<u64, HostError> {
    Ok(call(link, "Property Get", Command::new(property_get(offset, wide)))?.result)
}

fn set_configuration<L: Link>(link: &mut L, configuration: Configuration) -> Result<(), HostError> {
    let command = property_set(property::CC, false, u64::from(configuration.0));
    call(link, "Property Set", Command::new(command)).map(drop)
}

fn wait_for_status<L: Link>(link: &mut L, capabilities: Capabilities, wanted: u32) -> Result<(), HostError> {
    let (since, units) = (link.now(), u32::from(capabilities.timeout) + 1);
    for _ in 0..LOOKS_PER_UNIT * units {
        let status = get_property(link, property::CSTS, false)? as u32;
        if status & STATUS_FATAL != 0 {
            return Err(HostError::Answer("the controller has a fatal status"));
        }
        if status & wanted == wanted {
            return Ok(());
        }
        if link.now().saturating_sub(since) > STATUS_UNIT * units {
            break;
        }
        link.pause();
    }
    Err(HostError::Answer("the controller's status does not change in its time"))
}

/// An I/O queue of a controller.
#[derive(Debug)]
pub struct Io<L> {
    link: L,
    transfer_max: u32,
}

impl<L: Link> Io<L> {
    /// Connects I/O queue `queue`, 1 or more, over a link whose queue has [`Controller::queue_config`].
    ///
    /// # Errors
    /// The reason why it failed.
    pub fn connect(mut link: L, controller: &Controller, queue: u16) -> Result<Self, HostError> {
        connect(&mut link, &controller.config, queue, controller.identity.controller)?;
        Ok(Self { link, transfer_max: controller.transfer_max() })
    }

    /// Its link.
    pub fn link(&mut self) -> &mut L {
        &mut self.link
    }

    /// Executes any command of the NVM command set.
    ///
    /// # Errors
    /// The command's status, or the error that ended the connection.
    pub fn call(&mut self, what: &'static str, command: Command) -> Result<Completion, HostError> {
        call(&mut self.link, what, command)
    }

    /// Reads blocks from `first` on, with as many commands outstanding as the queue allows.
    ///
    /// # Errors
    /// The first failure. The buffer's contents are then undefined.
    pub fn read(&mut self, namespace: &NamespaceInfo, first: u64, into: &mut [u8]) -> Result<(), HostError> {
        let mut pieces = into.chunks_mut(self.piece(namespace, into.len())?);
        let mut next = first;
        self.pipeline("Read", |link, waiting| {
            let Some(piece) = pieces.next() else { return Ok(false) };
            let count = piece.len() as u32 / namespace.block_bytes;
            let command = command::read(namespace.id, next, count);
            next += u64::from(count);
            waiting.push_back((submit(link, Command::reading(command, piece.len() as u32))?, piece));
            Ok(true)
        })
    }

    /// Writes blocks from `first` on, with as many commands outstanding as the queue allows. With `durable`, a command
    /// completes only when its data is on stable storage.
    ///
    /// # Errors
    /// The first failure. Any part may then have been written.
    pub fn write(
        &mut self,
        namespace: &NamespaceInfo,
        first: u64,
        from: &[u8],
        durable: bool,
    ) -> Result<(), HostError> {
        let mut pieces = from.chunks(self.piece(namespace, from.len())?);
        let mut next = first;
        self.pipeline("Write", |link, waiting| {
            let Some(piece) = pieces.next() else { return Ok(false) };
            let count = piece.len() as u32 / namespace.block_bytes;
            let command = command::write(namespace.id, next, count, durable);
            next += u64::from(count);
            waiting.push_back((submit(link, Command::writing(command, piece.to_vec()))?, &mut []));
            Ok(true)
        })
    }

    /// Starts to read blocks with one command: at most [`Self::room`] commands at once. Returns its id, for
    /// [`Self::ended`].
    ///
    /// # Errors
    /// A length that is not a whole number of blocks or is too long for one command, or the reason why the connection
    /// ended.
    pub fn begin_read(&mut self, namespace: &NamespaceInfo, first: u64, bytes: usize) -> Result<u16, HostError> {
        let count = self.one_command(namespace, bytes)?;
        let command = command::read(namespace.id, first, count);
        submit(&mut self.link, Command::reading(command, count * namespace.block_bytes))
    }

    /// The same into memory of that length, which [`Self::ended`] gives back. What is in it does not matter.
    ///
    /// # Errors
    /// As [`Self::begin_read`].
    pub fn begin_read_into(
        &mut self,
        namespace: &NamespaceInfo,
        first: u64,
        memory: Vec<u8>,
    ) -> Result<u16, HostError> {
        let count = self.one_command(namespace, memory.len())?;
        submit(&mut self.link, Command::reading_into(command::read(namespace.id, first, count), memory))
    }

    /// The same for a write; [`Self::ended_reusing`] gives its memory back.
    ///
    /// # Errors
    /// As [`Self::begin_read`].
    pub fn begin_write(&mut self, namespace: &NamespaceInfo, first: u64, data: Vec<u8>) -> Result<u16, HostError> {
        let count = self.one_command(namespace, data.len())?;
        submit(&mut self.link, Command::writing(command::write(namespace.id, first, count, false), data))
    }

    /// Number of commands that can be started now.
    pub fn room(&mut self) -> usize {
        self.link.queue().room()
    }

    /// Sends the started commands, and waits until something is received.
    ///
    /// # Errors
    /// The reason why the connection ended.
    pub fn advance(&mut self) -> Result<(), HostError> {
        exchange(&mut self.link)
    }

    /// The result of a started command, if it has ended: the data of a read. Returned only once.
    pub fn ended(&mut self, what: &'static str, id: u16) -> Option<Result<Vec<u8>, HostError>> {
        let done = self.link.queue().take(id)?;
        Some(success(what, done).map(|done| done.data))
    }

    /// The same, with the memory of a write's data in their place.
    pub fn ended_reusing(&mut self, what: &'static str, id: u16) -> Option<Result<Vec<u8>, HostError>> {
        let done = self.link.queue().take(id)?;
        Some(success(what, done).map(|done| if done.data.is_empty() { done.sent } else { done.data }))
    }

    /// Takes back the memory of a started command that has not ended, because the connection was lost: for a command on
    /// another one. Data that was sent in the capsule is gone.
    pub fn take_back(&mut self, id: u16) -> Option<Vec<u8>> {
        self.link.queue().take_back(id)
    }

    /// Blocks of one command.
    fn one_command(&self, namespace: &NamespaceInfo, bytes: usize) -> Result<u32, HostError> {
        match self.piece(namespace, bytes)? {
            most if (1..=most).contains(&bytes) => Ok(bytes as u32 / namespace.block_bytes),
            _ => Err(HostError::Buffer { bytes, block_bytes: namespace.block_bytes }),
        }
    }

    /// Makes blocks read as zeros.
    ///
    /// # Errors
    /// The first failure.
    pub fn write_zeroes(&mut self, namespace: &NamespaceInfo, first: u64, count: u64) -> Result<(), HostError> {
        let mut done = 0;
        while done < count {
            let piece = (count - done).min(u64::from(BLOCKS_MAX)) as u32;
            let command = command::write_zeroes(namespace.id, first + done, piece);
            self.call("Write Zeroes", Command::new(command))?;
            done += u64::from(piece);
        }
        Ok(())
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn flush(&mut self, namespace: u32) -> Result<(), HostError> {
        self.call("Flush", Command::new(command::flush(namespace))).map(drop)
    }

    /// Bytes per command, if the buffer is a whole number of blocks.
    fn piece(&self, namespace: &NamespaceInfo, bytes: usize) -> Result<usize, HostError> {
        let block = namespace.block_bytes;
        if block == 0 || !bytes.is_multiple_of(block as usize) {
            return Err(HostError::Buffer { bytes, block_bytes: block });
        }
        let blocks = (self.transfer_max / block).clamp(1, BLOCKS_MAX);
        Ok(blocks as usize * block as usize)
    }

    /// Keeps the queue full. `next` submits a command and returns where its data goes, or `None` when no commands are
    /// left. After a failure, no more are submitted, and the function waits for the outstanding ones.
    fn pipeline<'a>(
        &mut self,
        what: &'static str,
        mut next: impl FnMut(&mut L, &mut VecDeque<(u16, &'a mut [u8])>) -> Result<bool, HostError>,
    ) -> Result<(), HostError> {
        let most = usize::from(self.link.queue().config().entries.max(2)) - 1;
        let (mut waiting, mut more, mut failed) = (VecDeque::new(), true, None);
        loop {
            while more && waiting.len() < most {
                more = next(&mut self.link, &mut waiting)?;
            }
            let Some((id, into)) = waiting.pop_front() else { break };
            match success(what, wait(&mut self.link, id)?) {
                Ok(done) if done.data.len() == into.len() => into.copy_from_slice(&done.data),
                Ok(_) => failed = failed.or(Some(HostError::Answer("data of another length"))),
                Err(e) => failed = failed.or(Some(e)),
            }
            more &= failed.is_none();
        }
        failed.map_or(Ok(()), Err)
    }
}
