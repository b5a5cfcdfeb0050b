//! The client program on fe2o3-amqp: an AMQP stack of its own in Rust, and a loop that connects anew.

mod lines;
mod options;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::transaction::{
    OwnedTransaction, TransactionDischarge, TransactionPosting, TransactionRetirement,
};
use fe2o3_amqp::types::messaging::{
    Body, DeleteOnClose, Message, Modified, Outcome, Properties, Source, Target,
};
use fe2o3_amqp::types::primitives::Value;
use fe2o3_amqp::{Connection, Delivery, Receiver, Sender, Session};
use lines::{is_detached, say, show, show_failure, text};
use options::Options;
use serde_json::json;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(60);

type Fallible<T = ()> = Result<T, Box<dyn Error>>;
type Received = Delivery<Body<Value>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut program = Program { options: Options::parse(std::env::args().skip(1)), count: 0 };
    let deadline = Instant::now() + PATIENCE;
    loop {
        match program.run().await {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) if !program.options.has("reconnect") || Instant::now() > deadline => {
                show_failure(error.as_ref());
                return ExitCode::FAILURE;
            }
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Each verb goes on where it was when it is called with a new session.
struct Program {
    options: Options,
    count: u32,
}

impl Program {
    async fn run(&mut self) -> Fallible {
        let container = format!("fe2o3-{}", std::process::id());
        let mut connection: ConnectionHandle<()> =
            Connection::open(self.options.of("container", &container), self.options.of("url", "")).await?;
        let mut session = Session::begin(&mut connection).await?;
        match self.options.verb.as_str() {
            "send" => self.send(&mut session).await?,
            "receive" | "browse" | "replay" => self.receive(&mut session).await?,
            "request" => self.request(&mut session).await?,
            "reply" => self.reply(&mut session).await?,
            "move" => self.relocate(&mut session).await?,
            "unsubscribe" => self.unsubscribe(&mut session).await?,
            other => return Err(format!("no verb {other}").into()),
        }
        session.end().await?;
        connection.close().await?;
        Ok(())
    }

    fn end(&self, reason: &str) {
        say("end", json!({"reason": reason, "count": self.count}));
    }

    async fn send(&mut self, session: &mut SessionHandle<()>) -> Fallible {
        let mut sender = Sender::attach(session, name("sender"), self.options.of("address", "")).await?;
        say("attached", json!({}));
        while self.count < self.options.count() {
            let sending = sender.send(self.options.message(self.count));
            // The end of the connection does not end a send that is under way.
            let outcome = match timeout(self.options.timeout(), sending).await?? {
                Outcome::Accepted(_) => "accepted",
                Outcome::Rejected(_) => "rejected",
                Outcome::Released(_) => "released",
                _ => "modified",
            };
            say("sent", json!({"n": self.count, "outcome": outcome}));
            self.count += 1;
        }
        sender.close().await?;
        self.end("count");
        Ok(())
    }

    async fn receive(&mut self, session: &mut SessionHandle<()>) -> Fallible {
        let named = name("receiver");
        let mut receiver = Receiver::builder()
            .name(self.options.of("subscription", &named))
            .source(self.options.source())
            .credit_mode(CreditMode::Manual) // what is given and not wanted, another consumer would miss
            .attach(session)
            .await?;
        say("attached", json!({}));
        let mut kept = Vec::new();
        let mut reason = "count";
        if self.count < self.options.count() {
            receiver.set_credit(self.options.count() - self.count).await?;
        }
        while self.count < self.options.count() {
            let delivery: Received = match timeout(self.options.timeout(), receiver.recv()).await {
                Err(_) => {
                    reason = "timeout";
                    break;
                }
                Ok(Err(error)) if is_detached(&error) => {
                    self.end("detached");
                    let _ = receiver.close().await; // answers the detach; the library calls that an error
                    return Ok(());
                }
                Ok(received) => received?,
            };
            show(delivery.message());
            self.count += 1;
            match self.options.of("acknowledge", "auto") {
                "auto" => self.settle(&receiver, &delivery).await?,
                _ => kept.push(delivery),
            }
        }
        for delivery in &kept {
            self.settle(&receiver, delivery).await?;
        }
        receiver.close().await?;
        self.end(reason);
        Ok(())
    }

    async fn settle(&self, receiver: &Receiver, delivery: &Received) -> Fallible {
        match self.options.of("outcome", "accept") {
            "none" => {}
            "accept" => receiver.accept(delivery).await?,
            "reject" => receiver.reject(delivery, None).await?,
            "release" => receiver.release(delivery).await?,
            _ => {
                let failed = Modified {
                    delivery_failed: Some(true),
                    undeliverable_here: None,
                    message_annotations: None,
                };
                receiver.modify(delivery, failed).await?;
            }
        }
        Ok(())
    }

    async fn request(&mut self, session: &mut SessionHandle<()>) -> Fallible {
        let source = Source::builder().dynamic(true).add_lifetime_policy(DeleteOnClose {}).build();
        let mut receiver = Receiver::builder().name(name("replies")).source(source).attach(session).await?;
        let reply_to = receiver.source().as_ref().and_then(|it| it.address.clone()).unwrap_or_default();
        say("attached", json!({"reply_to": reply_to}));
        let mut sender = Sender::attach(session, name("sender"), self.options.of("address", "")).await?;
        while self.count < self.options.count() {
            let mut asked = self.options.message(self.count);
            let correlation = Some(format!("c-{}", self.count).into());
            asked.properties = Some(Properties {
                reply_to: Some(reply_to.clone()),
                correlation_id: correlation.clone(),
                ..Default::default()
            });
            sender.send(asked).await?;
            let reply: Received = timeout(self.options.timeout(), receiver.recv()).await??;
            receiver.accept(&reply).await?;
            let found = reply.message().properties.as_ref().and_then(|it| it.correlation_id.clone());
            say(
                "message",
                json!({"body": text(reply.body()), "n": self.count, "correlated": found == correlation}),
            );
            self.count += 1;
        }
        self.end("count");
        Ok(())
    }

    async fn reply(&mut self, session: &mut SessionHandle<()>) -> Fallible {
        let relay = Target::builder().build(); // no address: each message says where it goes
        let mut sender = Sender::builder().name(name("relay")).target(relay).attach(session).await?;
        let mut receiver =
            Receiver::attach(session, name("receiver"), self.options.of("address", "")).await?;
        say("attached", json!({}));
        while self.count < self.options.count() {
            let asked: Received = timeout(self.options.timeout(), receiver.recv()).await??;
            show(asked.message());
            let found = asked.message().properties.clone().unwrap_or_default();
            let properties =
                Properties { to: found.reply_to, correlation_id: found.correlation_id, ..Default::default() };
            let body = format!("re: {}", text(asked.body()));
            sender.send(Message::builder().properties(properties).value(body).build()).await?;
            receiver.accept(&asked).await?;
            self.count += 1;
        }
        self.end("count");
        Ok(())
    }

    /// Messages from one queue to another in a transaction.
    async fn relocate(&mut self, session: &mut SessionHandle<()>) -> Fallible {
        let mut receiver =
            Receiver::attach(session, name("receiver"), self.options.of("address", "")).await?;
        let mut sender = Sender::attach(session, name("sender"), self.options.of("to", "")).await?;
        let transaction = OwnedTransaction::declare(session, name("controller"), None).await?;
        say("attached", json!({}));
        while self.count < self.options.count() {
            let delivery: Received = timeout(self.options.timeout(), receiver.recv()).await??;
            show(delivery.message());
            let (delivery, message) = delivery.into_parts();
            transaction.post(&mut sender, message).await?; // as it came, annotations of the gateway included
            transaction.accept(&mut receiver, delivery).await?;
            self.count += 1;
        }
        say("moved", json!({}));
        match self.options.of("end", "commit") {
            "commit" => transaction.commit().await?,
            "rollback" => transaction.rollback().await?,
            _ => sleep(PATIENCE).await, // until it is killed
        }
        self.end("count");
        Ok(())
    }

    /// Attaches without an address, and closes.
    async fn unsubscribe(&mut self, session: &mut SessionHandle<()>) -> Fallible {
        let receiver = Receiver::builder()
            .name(self.options.of("subscription", ""))
            .source(Source::builder().build())
            .credit_mode(CreditMode::Manual)
            .attach(session)
            .await?;
        say("attached", json!({}));
        receiver.close().await?;
        self.end("count");
        Ok(())
    }
}

/// A link's name: one container must not give it to two links in one direction, nor to a later one that is another.
fn name(role: &str) -> String {
    format!("{role}-{}", std::process::id())
}
