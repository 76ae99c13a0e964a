//! NATS: a queue of JetStream that jobs wait in, with one consumer that all workers pull from.
//!
//! Each side has one thread that runs the client. No other thread waits for that one without a limit. What fails is
//! tried again; meanwhile a store does its jobs itself, and a worker goes on with the jobs that it has.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::stream::{DiscardPolicy, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{self, AckKind};
use async_nats::{Client, ConnectOptions, Event, ServerAddr, Subscriber};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use super::{Answer, Came, PoolConfig, PoolCredentials, QueuedJob, Ticket, parse_slot, slot_to_text};
use crate::bad_configuration;
use crate::worker::Shared;

/// How long a server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// What failed is tried again after this time.
const RETRY: Duration = Duration::from_secs(1);
/// How often a worker looks whether it has room, and whether a job is over.
const POLL: Duration = Duration::from_millis(20);
/// How long the server keeps a worker's question for a job. A worker that is about to end asks no more.
const PULL: Duration = Duration::from_secs(5);
/// How much later the server may say that there was no job.
const GRACE: Duration = Duration::from_secs(2);
/// A worker that is not to have a job asks for none for so long, so that another worker gets it.
const STAND_BACK: Duration = Duration::from_millis(500);
/// How long a worker keeps room for a store that said yes, or whose answer was lost.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(15);
/// Jobs that wait or run, at most; more are refused by the server.
const JOBS_MAX: i64 = 10_000;
/// Bytes of a message.
const MESSAGE_BYTES_MAX: i32 = 1 << 10;
/// The server forgets a job that nobody took for so long: its store has done it by then.
const AGE_MAX: Duration = Duration::from_secs(3600);
/// The consumer of all workers.
const WORKERS: &str = "workers";

/// A connection to a pool.
pub(crate) struct Pool {
    /// `None` once it is dropped.
    runtime: Option<Runtime>,
    link: Link,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("config", &self.link.config).finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // It is not waited for: that would panic where a program drops this on a thread of tokio's own.
            runtime.shutdown_background();
        }
    }
}

/// What the tasks of a pool share.
#[derive(Clone)]
struct Link {
    config: Arc<PoolConfig>,
    client: watch::Receiver<Option<Client>>,
    /// What is wrong with the connection; empty while nothing is.
    why: Arc<Mutex<String>>,
    tell: fn(&str),
}

impl Link {
    /// Notes what is wrong, and tells of it once.
    fn wrong(&self, what: String) {
        let mut why = self.why.lock();
        if *why != what {
            why.clone_from(&what);
            drop(why);
            (self.tell)(&format!("pool: {what}"));
        }
    }

    fn right(&self) {
        let mut why = self.why.lock();
        if !why.is_empty() {
            why.clear();
            drop(why);
            (self.tell)("pool: connected");
        }
    }

    fn on(&self, event: &Event) {
        match event {
            Event::Connected => self.right(),
            Event::Disconnected => self.wrong("the connection to the NATS server is lost".to_owned()),
            Event::ServerError(_) | Event::ClientError(_) => self.wrong(event.to_string()),
            _ => {}
        }
    }

    /// Connects, however long that takes. From then on the client connects again by itself.
    async fn connect(self, servers: Vec<ServerAddr>, name: String, to: watch::Sender<Option<Client>>) {
        loop {
            let link = self.clone();
            let mut options = ConnectOptions::new()
                .name(&name)
                .connection_timeout(ANSWER_TIMEOUT)
                .request_timeout(Some(ANSWER_TIMEOUT))
                .event_callback(move |event| {
                    link.on(&event);
                    std::future::ready(())
                });
            options = match self.config.credentials.clone() {
                None => options,
                Some(PoolCredentials::Token(token)) => options.token(token),
                Some(PoolCredentials::User(name, password)) => options.user_and_password(name, password),
            };
            if let Some(ca) = &self.config.ca {
                options = options.add_root_certificates(ca.clone());
            }
            match options.connect(&servers[..]).await {
                Ok(client) => {
                    self.right();
                    to.send_replace(Some(client));
                    return;
                }
                Err(e) => self.wrong(format!("cannot connect to the NATS server: {e}")),
            }
            sleep(RETRY).await;
        }
    }

    /// The client, once there is one.
    async fn client(&self) -> Result<Client, String> {
        let mut client = self.client.clone();
        let there = client.wait_for(Option::is_some).await.map_err(|_| "the pool is closed".to_owned())?;
        there.clone().ok_or_else(|| "the pool is closed".to_owned())
    }

    /// The queue's stream, which is made if there is none.
    async fn stream(&self, client: Client) -> Result<Stream, String> {
        let config = jetstream::stream::Config {
            name: self.config.stream(),
            subjects: vec![self.config.subject()],
            description: Some("compactions that wait for a worker (Rockmill, docs/offload.md)".to_owned()),
            retention: RetentionPolicy::WorkQueue,
            // Jobs need not survive the server: their stores wait for a few seconds only.
            storage: StorageType::Memory,
            max_messages: JOBS_MAX,
            max_message_size: MESSAGE_BYTES_MAX,
            max_age: AGE_MAX,
            discard: DiscardPolicy::New,
            ..Default::default()
        };
        let mut context = jetstream::new(client);
        context.set_timeout(ANSWER_TIMEOUT);
        let made = context.get_or_create_stream(config).await;
        made.map_err(|e| format!("the NATS server has no stream {}: {e}", self.config.stream()))
    }

    /// The consumer that all workers pull from, which is made if there is none.
    async fn consumer(&self) -> Result<Consumer<pull::Config>, String> {
        let stream = self.stream(self.client().await?).await?;
        let config = pull::Config {
            durable_name: Some(WORKERS.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.config.lease,
            max_ack_pending: JOBS_MAX,
            ..Default::default()
        };
        let made = stream.get_or_create_consumer(WORKERS, config).await;
        made.map_err(|e| format!("the stream {} has no consumer {WORKERS}: {e}", self.config.stream()))
    }
}

impl Pool {
    /// Begins to connect, under this name.
    ///
    /// # Errors
    /// What is wrong with the configuration, or there is no thread.
    pub fn start(config: &PoolConfig, name: &str, tell: fn(&str)) -> io::Result<Self> {
        let parse = |server: &String| {
            server.parse::<ServerAddr>().map_err(|e| bad_configuration(format!("NATS server {server:?}: {e}")))
        };
        let servers = config.checked()?.iter().map(parse).collect::<io::Result<Vec<_>>>()?;
        if let Some(ca) = &config.ca {
            // Otherwise it would be tried, and fail, for ever.
            std::fs::metadata(ca).map_err(|e| bad_configuration(format!("{}: {e}", ca.display())))?;
        }
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("pool").enable_all().build()?;
        let (to, client) = watch::channel(None);
        let why = Arc::new(Mutex::new("not connected to the NATS server yet".to_owned()));
        let link = Link { config: Arc::new(config.clone()), client, why, tell };
        runtime.spawn(link.clone().connect(servers, name.to_owned(), to));
        Ok(Self { runtime: Some(runtime), link })
    }

    /// What is wrong with the connection; empty if nothing is known to be.
    pub fn why(&self) -> String {
        self.link.why.lock().clone()
    }

    /// Publishes a job of so many bytes. It is taken back when what this gives is dropped.
    ///
    /// # Errors
    /// The system has no random bytes, or this pool is closed.
    pub fn offer(&self, bytes: u64) -> io::Result<Offered> {
        let ticket = Ticket::random()?;
        let (came, comes) = mpsc::channel();
        let (over, is_over) = oneshot::channel();
        let link = self.link.clone();
        let runtime = self.runtime.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        runtime.spawn(async move {
            if let Err(why) = link.publish(ticket, bytes, &came, is_over).await {
                let _ = came.send(Came::Failed(why)); // nobody waits any more
            }
        });
        Ok(Offered { ticket, comes, over: Some(over) })
    }

    /// Has a worker pull jobs, for as long as this lives.
    pub fn work(&self, worker: &Arc<Shared>, address: SocketAddr) {
        let (link, worker) = (self.link.clone(), Arc::clone(worker));
        if let Some(runtime) = &self.runtime {
            runtime.spawn(async move {
                loop {
                    if let Err(why) = link.pull(&worker, address).await {
                        link.wrong(why);
                    }
                    sleep(RETRY).await;
                }
            });
        }
    }
}

/// A job that is published.
#[derive(Debug)]
pub(crate) struct Offered {
    ticket: Ticket,
    comes: mpsc::Receiver<Came>,
    /// Dropped when the job is over.
    over: Option<oneshot::Sender<()>>,
}

impl Offered {
    /// The ticket that the worker has to be shown.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// What comes within `wait`.
    pub fn next(&self, wait: Duration) -> Option<Came> {
        match self.comes.recv_timeout(wait) {
            Ok(came) => Some(came),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            // Its task is gone, as a panic of the client's would make it.
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(Came::Failed("the pool is closed".to_owned())),
        }
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        drop(self.over.take());
    }
}

/// The store's side.
impl Link {
    /// Publishes a job, and answers workers until it is over.
    async fn publish(
        &self,
        ticket: Ticket,
        bytes: u64,
        came: &mpsc::Sender<Came>,
        mut is_over: oneshot::Receiver<()>,
    ) -> Result<(), String> {
        // Before it is published it can be left at any point: what waits for the server would wait for too long.
        let connected = tokio::select! {
            _ = &mut is_over => return Ok(()),
            client = self.client() => client?,
        };
        let stream = self.stream(connected.clone()).await?;
        let inbox = connected.new_inbox();
        let mut asks = connected.subscribe(inbox.clone()).await.map_err(|e| e.to_string())?;
        let job = QueuedJob { ticket, bytes, inbox };
        let context = jetstream::new(connected.clone());
        let published = context.publish(self.config.subject(), job.to_text().into()).await;
        let published = published.map_err(|e| format!("cannot publish: {e}"))?;
        let published = timeout(ANSWER_TIMEOUT, async { published.await }).await;
        let acked = published.map_err(|_| "the NATS server does not take the job".to_owned())?;
        let sequence = acked.map_err(|e| format!("the NATS server refuses the job: {e}"))?.sequence;
        self.right();
        self.answer(&connected, &mut asks, came, is_over).await;
        // A worker that asks from here on learns that nobody listens. One that has pulled the job already ends it; and
        // if nobody has, nobody is to.
        let _ = asks.unsubscribe().await;
        let _ = stream.delete_message(sequence).await;
        Ok(())
    }

    /// Answers workers until the job is over. One at most is told yes.
    async fn answer(
        &self,
        client: &Client,
        asks: &mut Subscriber,
        came: &mpsc::Sender<Came>,
        mut is_over: oneshot::Receiver<()>,
    ) {
        let (mut is_taken, mut ends) = (false, false);
        while !ends {
            let message = tokio::select! {
                _ = &mut is_over => return,
                message = asks.next() => message,
            };
            let Some(message) = message else {
                // The connection is closed. The job goes on without it.
                let _ = is_over.await;
                return;
            };
            let (Some(reply), Some(address)) = (message.reply, parse_slot(&message.payload)) else { continue };
            let answer = if is_taken {
                Answer::No
            } else {
                let (tell, told) = oneshot::channel();
                let answers = Box::new(move |answer| {
                    let _ = tell.send(answer); // the job may be over
                });
                if came.send(Came::Slot(address, answers)).is_err() {
                    return;
                }
                tokio::select! {
                    // A job may be over as soon as it was given away: the worker is told in any case.
                    biased;
                    answer = told => answer.unwrap_or(Answer::No),
                    _ = &mut is_over => {
                        ends = true;
                        Answer::No
                    }
                }
            };
            is_taken |= answer == Answer::Yes;
            // A worker that does not hear it gives up after a while.
            let _ = client.publish(reply, answer.to_text().into()).await;
        }
    }
}

/// The worker's side.
impl Link {
    /// Pulls a job whenever there is room for one. Returns when something fails.
    async fn pull(&self, worker: &Arc<Shared>, address: SocketAddr) -> Result<(), String> {
        let consumer = self.consumer().await?;
        self.right();
        loop {
            while !worker.has_room() {
                sleep(POLL).await;
            }
            let asked = consumer.fetch().max_messages(1).expires(PULL).messages().await;
            let mut batch = asked.map_err(|e| format!("cannot pull: {e}"))?;
            loop {
                // A server that has lost the consumer says nothing at all.
                let Ok(next) = timeout(PULL + GRACE, batch.next()).await else {
                    return Err("the NATS server does not answer".to_owned());
                };
                let Some(message) = next else { break };
                let message = message.map_err(|e| format!("cannot pull: {e}"))?;
                let Some(job) = QueuedJob::parse(&message.payload) else {
                    (self.tell)("pool: a message in the queue is no job, and is removed");
                    let _ = message.ack_with(AckKind::Term).await;
                    continue;
                };
                // Something else may have taken the room. Another worker is given the job then.
                if !worker.set_aside(job.ticket) {
                    let _ = message.ack_with(AckKind::Nak(None)).await;
                    sleep(STAND_BACK).await;
                    continue;
                }
                let room = Room { worker: Arc::clone(worker), ticket: job.ticket };
                let client = self.client().await?;
                match ask(&client, &job, address).await {
                    Some(Answer::No) => drop(message.ack().await),
                    Some(Answer::Other) => {
                        drop(room);
                        let _ = message.ack_with(AckKind::Nak(None)).await;
                        sleep(STAND_BACK).await;
                    }
                    // The store connects. Where its answer was lost, it may.
                    Some(Answer::Yes) | None => {
                        worker.pulled();
                        tokio::spawn(hold(message, room, consumer.cached_info().config.ack_wait));
                    }
                }
            }
        }
    }
}

/// Room that a worker has set aside. Given back when this is dropped, unless the store has come.
struct Room {
    worker: Arc<Shared>,
    ticket: Ticket,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.worker.give_back(self.ticket);
    }
}

/// Asks a store whether it still wants its job done, and by this worker. `None`: it did not say.
async fn ask(client: &Client, job: &QueuedJob, address: SocketAddr) -> Option<Answer> {
    // Twice, as a question or its answer may have been lost with the connection.
    for _ in 0..2 {
        match client.request(job.inbox.clone(), slot_to_text(address).into()).await {
            Ok(message) => return Answer::parse(&message.payload),
            Err(e) if e.kind() == RequestErrorKind::NoResponders => return Some(Answer::No),
            Err(_) => {}
        }
    }
    None
}

/// Keeps a job's message for as long as the job is this worker's, and says that it is over at its end. However that
/// was, the store knows: what is to be tried again it publishes again.
async fn hold(message: jetstream::Message, room: Room, lease: Duration) {
    let since = Instant::now();
    let mut told = since;
    while room.worker.is_set_aside(room.ticket) {
        if room.worker.waits_for(room.ticket) && since.elapsed() >= CLAIM_TIMEOUT {
            break;
        }
        if told.elapsed() >= lease / 4 {
            told = Instant::now();
            let _ = message.ack_with(AckKind::Progress).await;
        }
        sleep(POLL).await;
    }
    drop(room);
    let _ = message.ack().await;
}
